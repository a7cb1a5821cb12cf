/*
 * Dense products of one thread, by oneDNN. Inside a parallel region oneDNN uses one thread; the
 * kernels are generated for the CPU at the first call.
 *
 * oneDNN's C interface has a function for fp32 alone. Products of BF16 are primitives, each for one
 * combination of sizes and strides, which every thread keeps for itself until it ends.
 */
#include <dlfcn.h>
#include <dnnl.h>
#include <pthread.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "lib/base/error.h"
#include "lib/base/mem.h"

static void out_of_memory(void)
{
    struct s2s_error err = S2S_ERROR_INIT;
    s2s_error_set(&err, S2S_E_NOMEM, "out of memory while oneDNN prepares a product");
    s2s_out_of_memory(&err);
}

/*
 * C++'s operator new calls a handler when memory is out. oneDNN makes code and tables with it, and
 * would throw an exception through the C functions above it, which aborts. The name is that of
 * std::set_new_handler in the C++ library that oneDNN brings along.
 */
void cpu_gemm_open(void)
{
    typedef void (*handler)(void);
    handler (*set)(handler) =
        (handler(*)(handler))dlsym(RTLD_DEFAULT, "_ZSt15set_new_handlerPFvvE");
    if (set)
        set(out_of_memory);
}

/* Memory that oneDNN could not have is not our bug. */
static void fail(dnnl_status_t status, const char *what, int64_t m, int64_t n, int64_t k)
{
    struct s2s_error err = S2S_ERROR_INIT;
    if (status != dnnl_out_of_memory)
        S2S_BUG("oneDNN's %s: status %d for %lld x %lld x %lld", what, (int)status, (long long)m,
                (long long)n, (long long)k);
    s2s_error_set(&err, S2S_E_NOMEM, "out of memory in a product of %lld x %lld x %lld",
                  (long long)m, (long long)n, (long long)k);
    s2s_out_of_memory(&err);
}

void cpu_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
               int64_t ldc)
{
    dnnl_status_t status = dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, alpha, a,
                                      lda, b, ldb, beta, c, ldc);
    if (status != dnnl_success)
        fail(status, "sgemm", m, n, k);
}

/* ---- BF16 ---- */

bool cpu_has_bgemm(void)
{
    const unsigned bf16 = dnnl_cpu_isa_avx512_core_bf16;
    return ((unsigned)dnnl_get_effective_cpu_isa() & bf16) == bf16;
}

/* What a primitive is made for. No gaps: it is compared as bytes. */
struct key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b, bias, accumulate, c_type, used;
};

struct product {
    struct key key;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, bias;
};

enum { SLOTS = 8192, MOST = SLOTS / 2 };

/* A thread's products, by hash of their keys. */
struct products {
    struct product slots[SLOTS];
    int n;
    dnnl_stream_t stream;
};
static _Thread_local struct products *own;

static dnnl_engine_t engine;
static pthread_key_t at_end; /* of a thread: free_products */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void check(dnnl_status_t status, const char *what, const struct key *key)
{
    if (status != dnnl_success)
        fail(status, what, key->m, key->n, key->k);
}

static dnnl_memory_desc_t describe(int64_t rows, int64_t cols, int64_t ld, bool trans,
                                   dnnl_data_type_t type, const struct key *key)
{
    dnnl_memory_desc_t desc;
    const dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : ld, trans ? ld : 1};
    check(dnnl_memory_desc_init_by_strides(&desc, 2, dims, type, strides), "matrix", key);
    return desc;
}

static dnnl_memory_t memory_of(const dnnl_memory_desc_t *desc, const struct key *key)
{
    dnnl_memory_t memory;
    check(dnnl_memory_create(&memory, desc, engine, DNNL_MEMORY_NONE), "memory", key);
    return memory;
}

static struct product make_product(const struct key *key)
{
    const dnnl_data_type_t c_type = key->c_type == S2S_BF16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_memory_desc_t a = describe(key->m, key->k, key->lda, key->trans_a, dnnl_bf16, key);
    const dnnl_memory_desc_t b = describe(key->k, key->n, key->ldb, key->trans_b, dnnl_bf16, key);
    const dnnl_memory_desc_t c = describe(key->m, key->n, key->ldc, false, c_type, key);
    const dnnl_memory_desc_t bias = describe(1, key->n, key->n, false, dnnl_f32, key);
    struct product made = {.key = *key};
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t post;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t plan;
    check(dnnl_primitive_attr_create(&attr), "attributes", key);
    check(dnnl_post_ops_create(&post), "attributes", key);
    if (key->accumulate)
        check(dnnl_post_ops_append_sum(post, 1), "sum", key);
    check(dnnl_primitive_attr_set_post_ops(attr, post), "sum", key);
    check(dnnl_matmul_desc_init(&desc, &a, &b, key->bias ? &bias : NULL, &c), "product", key);
    check(dnnl_primitive_desc_create(&plan, &desc, attr, engine, NULL), "product", key);
    check(dnnl_primitive_create(&made.primitive, plan), "product", key);
    made.a = memory_of(&a, key);
    made.b = memory_of(&b, key);
    made.c = memory_of(&c, key);
    made.bias = memory_of(&bias, key);
    dnnl_primitive_desc_destroy(plan);
    dnnl_primitive_attr_destroy(attr);
    dnnl_post_ops_destroy(post);
    return made;
}

/* Only shapes that nobody has again and again come to so many. */
static void forget_products(struct products *of)
{
    for (int i = 0; i < SLOTS; i++) {
        struct product *p = &of->slots[i];
        if (!p->key.used)
            continue;
        dnnl_primitive_destroy(p->primitive);
        dnnl_memory_destroy(p->a);
        dnnl_memory_destroy(p->b);
        dnnl_memory_destroy(p->c);
        dnnl_memory_destroy(p->bias);
        p->key.used = false;
    }
    of->n = 0;
}

static void free_products(void *of)
{
    struct products *products = of;
    forget_products(products);
    dnnl_stream_destroy(products->stream);
    free(products);
}

static void make_engine(void)
{
    static const struct key none;
    check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine", &none);
    if (pthread_key_create(&at_end, free_products) != 0)
        S2S_BUG("no key for what threads keep");
}

static struct product *find_product(const struct key *key)
{
    if (!own) {
        pthread_once(&once, make_engine);
        own = s2s_xcalloc(1, sizeof *own);
        check(dnnl_stream_create(&own->stream, engine, dnnl_stream_default_flags), "stream", key);
        pthread_setspecific(at_end, own);
    }
    if (own->n == MOST)
        forget_products(own);
    const int64_t *words = (const int64_t *)key;
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof *key / sizeof *words; i++)
        hash = (hash ^ (uint64_t)words[i]) * 0x9e3779b97f4a7c15u;
    size_t at = hash >> 40 & (SLOTS - 1);
    while (own->slots[at].key.used && memcmp(&own->slots[at].key, key, sizeof *key) != 0)
        at = (at + 1) & (SLOTS - 1);
    if (!own->slots[at].key.used) {
        own->slots[at] = make_product(key);
        own->n++;
    }
    return &own->slots[at];
}

void cpu_bgemm(const struct s2s_k_gemm *g)
{
    const struct key key = {.m = g->m,
                            .n = g->n,
                            .k = g->k,
                            .lda = g->a.stride,
                            .ldb = g->b.stride,
                            .ldc = g->c.stride,
                            .trans_a = g->trans_a,
                            .trans_b = g->trans_b,
                            .bias = g->bias.data != NULL,
                            .accumulate = g->accumulate,
                            .c_type = g->c.dtype,
                            .used = true};
    const struct product *p = find_product(&key);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->a},
                                    {DNNL_ARG_WEIGHTS, p->b},
                                    {DNNL_ARG_DST, p->c},
                                    {DNNL_ARG_BIAS, p->bias}};
    dnnl_memory_set_data_handle(p->a, g->a.data);
    dnnl_memory_set_data_handle(p->b, g->b.data);
    dnnl_memory_set_data_handle(p->c, g->c.data);
    dnnl_memory_set_data_handle(p->bias, g->bias.data);
    check(dnnl_primitive_execute(p->primitive, own->stream, key.bias ? 4 : 3, args), "product",
          &key);
}
