/*
 * Dense products of one thread, by oneDNN. Inside a parallel region oneDNN uses one thread; the
 * kernels are generated for the CPU at the first call.
 *
 * oneDNN's C interface has a function for fp32 alone. Products of BF16 are primitives, which every
 * thread keeps for itself until it ends: a few that take any size and stride, and where many rows
 * meet one matrix a primitive for each combination of sizes, which takes that matrix in an order of
 * the library's own.
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

/* With a and b as they are or transposed, with and without a bias and what is added to, of either
 * type of c. */
enum { VARIANTS = 32 };

/* What a primitive is made for. No gaps: it is compared as bytes. */
struct key {
    int64_t m, n, k, ldb, order;
    int32_t trans_b, bias, accumulate, c_type, reorders, used;
};

/* A product of the sizes of its key, or what brings n columns of b into their order: from a to b.
 */
struct product {
    struct key key;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, bias;
    dnnl_memory_desc_t order; /* of b */
};

enum { SLOTS = 4096, MOST = SLOTS / 2 };

struct cpu_room {
    dnnl_memory_desc_t order;
    void *data;
    size_t cap;
};

/* A thread's. */
struct products {
    dnnl_primitive_t any_size[VARIANTS]; /* NULL: not made yet */
    struct product slots[SLOTS];         /* by hash of their keys */
    int n;
    dnnl_stream_t stream;
    struct cpu_room room;
};
static _Thread_local struct products *own;

static dnnl_engine_t engine;
static pthread_key_t at_end; /* of a thread: free_products */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void check(dnnl_status_t status, const char *what, const struct s2s_k_gemm *g)
{
    if (status != dnnl_success)
        fail(status, what, g->m, g->n, g->k);
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
    free(products->room.data);
    for (int i = 0; i < VARIANTS; i++)
        dnnl_primitive_destroy(products->any_size[i]);
    dnnl_stream_destroy(products->stream);
    free(products);
}

static void make_engine(void)
{
    static const struct s2s_k_gemm none;
    check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine", &none);
    if (pthread_key_create(&at_end, free_products) != 0)
        S2S_BUG("no key for what threads keep");
}

static struct products *own_products(const struct s2s_k_gemm *g)
{
    if (own)
        return own;
    pthread_once(&once, make_engine);
    own = s2s_xcalloc(1, sizeof *own);
    check(dnnl_stream_create(&own->stream, engine, dnnl_stream_default_flags), "stream", g);
    pthread_setspecific(at_end, own);
    return own;
}

static dnnl_memory_desc_t describe(int64_t rows, int64_t cols, int64_t ld, bool trans,
                                   dnnl_data_type_t type, const struct s2s_k_gemm *g)
{
    dnnl_memory_desc_t desc;
    const dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : ld, trans ? ld : 1};
    check(dnnl_memory_desc_init_by_strides(&desc, 2, dims, type, strides), "matrix", g);
    return desc;
}

static dnnl_memory_t memory_of(const dnnl_memory_desc_t *desc, const void *data,
                               const struct s2s_k_gemm *g)
{
    dnnl_memory_t memory;
    check(dnnl_memory_create(&memory, desc, engine, (void *)data), "memory", g);
    return memory;
}

static dnnl_data_type_t type_of_c(const struct s2s_k_gemm *g)
{
    return g->c.dtype == S2S_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* The operands of a product, whose sizes and strides may all be ANY. */
struct operands {
    dnnl_memory_desc_t a, b, c, bias;
};

static dnnl_primitive_desc_t plan_product(const struct operands *of, const struct s2s_k_gemm *g)
{
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t post;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t plan;
    check(dnnl_primitive_attr_create(&attr), "attributes", g);
    check(dnnl_post_ops_create(&post), "attributes", g);
    if (g->accumulate)
        check(dnnl_post_ops_append_sum(post, 1), "sum", g);
    check(dnnl_primitive_attr_set_post_ops(attr, post), "sum", g);
    check(dnnl_matmul_desc_init(&desc, &of->a, &of->b, g->bias.data ? &of->bias : NULL, &of->c),
          "product", g);
    check(dnnl_primitive_desc_create(&plan, &desc, attr, engine, NULL), "product", g);
    dnnl_primitive_attr_destroy(attr);
    dnnl_post_ops_destroy(post);
    return plan;
}

static dnnl_primitive_t make_primitive(dnnl_primitive_desc_t plan, const struct s2s_k_gemm *g)
{
    dnnl_primitive_t made;
    check(dnnl_primitive_create(&made, plan), "product", g);
    dnnl_primitive_desc_destroy(plan);
    return made;
}

static void execute(dnnl_primitive_t primitive, dnnl_memory_t a, dnnl_memory_t b, dnnl_memory_t c,
                    dnnl_memory_t bias, const struct s2s_k_gemm *g)
{
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}, {DNNL_ARG_BIAS, bias}};
    check(dnnl_primitive_execute(primitive, own->stream, g->bias.data ? 4 : 3, args), "product", g);
}

/* ---- of any size ---- */

static struct operands any_operands(const struct s2s_k_gemm *g)
{
    const int64_t any = DNNL_RUNTIME_DIM_VAL;
    return (struct operands){.a = describe(any, any, any, g->trans_a, dnnl_bf16, g),
                             .b = describe(any, any, any, g->trans_b, dnnl_bf16, g),
                             .c = describe(any, any, any, false, type_of_c(g), g),
                             .bias = describe(1, any, any, false, dnnl_f32, g)};
}

void cpu_bgemm(const struct s2s_k_gemm *g)
{
    dnnl_primitive_t *variant =
        &own_products(g)->any_size[g->trans_a + 2 * g->trans_b + 4 * (g->bias.data != NULL) +
                                   8 * g->accumulate + 16 * (g->c.dtype == S2S_BF16)];
    if (!*variant) {
        const struct operands any = any_operands(g);
        *variant = make_primitive(plan_product(&any, g), g);
    }
    const dnnl_memory_desc_t descs[] = {describe(g->m, g->k, g->a.stride, g->trans_a, dnnl_bf16, g),
                                        describe(g->k, g->n, g->b.stride, g->trans_b, dnnl_bf16, g),
                                        describe(g->m, g->n, g->c.stride, false, type_of_c(g), g),
                                        describe(1, g->n, g->n, false, dnnl_f32, g)};
    const void *const data[] = {g->a.data, g->b.data, g->c.data, g->bias.data};
    const int n = g->bias.data ? 4 : 3;
    dnnl_memory_t of[4] = {NULL};
    for (int i = 0; i < n; i++)
        of[i] = memory_of(&descs[i], data[i], g);
    execute(*variant, of[0], of[1], of[2], of[3], g);
    for (int i = 0; i < n; i++)
        dnnl_memory_destroy(of[i]);
}

/* ---- with b in the library's order ---- */

static struct product *find_slot(const struct key *key, const struct s2s_k_gemm *g)
{
    struct products *all = own_products(g);
    if (all->n == MOST)
        forget_products(all);
    const int64_t *words = (const int64_t *)key;
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof *key / sizeof *words; i++)
        hash = (hash ^ (uint64_t)words[i]) * 0x9e3779b97f4a7c15u;
    size_t at = hash >> 40 & (SLOTS - 1);
    while (all->slots[at].key.used && memcmp(&all->slots[at].key, key, sizeof *key) != 0)
        at = (at + 1) & (SLOTS - 1);
    return &all->slots[at];
}

/* A product of g's sizes, for which the library has chosen the order of b. */
static const struct product *find_product(const struct s2s_k_gemm *g)
{
    const struct key key = {.m = g->m,
                            .n = g->n,
                            .k = g->k,
                            .bias = g->bias.data != NULL,
                            .accumulate = g->accumulate,
                            .c_type = g->c.dtype,
                            .used = true};
    struct product *p = find_slot(&key, g);
    if (p->key.used)
        return p;
    struct operands of = {.a = describe(g->m, g->k, g->k, false, dnnl_bf16, g),
                          .c = describe(g->m, g->n, g->n, false, type_of_c(g), g),
                          .bias = describe(1, g->n, g->n, false, dnnl_f32, g)};
    const dnnl_dims_t dims = {g->k, g->n};
    check(dnnl_memory_desc_init_by_tag(&of.b, 2, dims, dnnl_bf16, dnnl_format_tag_any), "matrix",
          g);
    const dnnl_primitive_desc_t plan = plan_product(&of, g);
    const dnnl_memory_desc_t order = *dnnl_primitive_desc_query_md(plan, dnnl_query_weights_md, 0);
    *p = (struct product){.key = key,
                          .primitive = make_primitive(plan, g),
                          .a = memory_of(&of.a, DNNL_MEMORY_NONE, g),
                          .b = memory_of(&order, DNNL_MEMORY_NONE, g),
                          .c = memory_of(&of.c, DNNL_MEMORY_NONE, g),
                          .bias = memory_of(&of.bias, DNNL_MEMORY_NONE, g),
                          .order = order};
    own->n++;
    return p;
}

struct cpu_room *cpu_bgemm_room(const struct s2s_k_gemm *g)
{
    const struct product *p = find_product(g);
    const size_t bytes = dnnl_memory_desc_get_size(&p->order);
    struct cpu_room *room = &own->room;
    if (p->order.format_kind != dnnl_blocked || p->order.format_desc.blocking.inner_nblks == 0)
        return NULL;
    if (bytes > room->cap) {
        free(room->data);
        room->data = s2s_xalloc_aligned(bytes);
        room->cap = bytes;
    }
    room->order = p->order;
    return room;
}

/* A number for an order: products of one b may want several. */
static int64_t number_of(const dnnl_memory_desc_t *order)
{
    const dnnl_blocking_desc_t *blocks = &order->format_desc.blocking;
    uint64_t number = (uint64_t)blocks->strides[0] * 31 + (uint64_t)blocks->strides[1];
    for (int i = 0; i < blocks->inner_nblks; i++)
        number =
            (number * 31 + (uint64_t)blocks->inner_blks[i]) * 31 + (uint64_t)blocks->inner_idxs[i];
    return (int64_t)number;
}

/* What brings n columns of b into their place. */
static const struct product *find_reorder(const struct s2s_k_gemm *g, int64_t n,
                                          const dnnl_memory_desc_t *to)
{
    const struct key key = {.m = g->n,
                            .n = n,
                            .k = g->k,
                            .ldb = g->b.stride,
                            .order = number_of(to),
                            .trans_b = g->trans_b,
                            .reorders = true,
                            .used = true};
    const dnnl_memory_desc_t from = describe(g->k, n, g->b.stride, g->trans_b, dnnl_bf16, g);
    struct product *p = find_slot(&key, g);
    dnnl_primitive_desc_t plan;
    if (p->key.used && dnnl_memory_desc_equal(&p->order, to))
        return p;
    if (p->key.used)
        S2S_BUG("two orders of one number");
    check(dnnl_reorder_primitive_desc_create(&plan, &from, engine, to, engine, NULL), "order", g);
    *p = (struct product){.key = key,
                          .primitive = make_primitive(plan, g),
                          .a = memory_of(&from, DNNL_MEMORY_NONE, g),
                          .b = memory_of(to, DNNL_MEMORY_NONE, g),
                          .order = *to};
    own->n++;
    return p;
}

void cpu_bgemm_order(const struct s2s_k_gemm *g, struct cpu_room *room, int64_t n0, int64_t n)
{
    dnnl_memory_desc_t to;
    const dnnl_dims_t dims = {g->k, n}, at = {0, n0};
    check(dnnl_memory_desc_init_submemory(&to, &room->order, dims, at), "order", g);
    void *const begin = (uint16_t *)room->data + to.offset0;
    to.offset0 = 0;
    const struct product *p = find_reorder(g, n, &to);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, p->a}, {DNNL_ARG_TO, p->b}};
    dnnl_memory_set_data_handle(p->a, (uint16_t *)g->b.data + (g->trans_b ? n0 * g->b.stride : n0));
    dnnl_memory_set_data_handle(p->b, begin);
    check(dnnl_primitive_execute(p->primitive, own->stream, 2, args), "order", g);
}

void cpu_bgemm_ordered(const struct s2s_k_gemm *g, const struct cpu_room *room)
{
    const struct product *p = find_product(g);
    if (!dnnl_memory_desc_equal(&p->order, &room->order)) {
        cpu_bgemm(g); /* of few rows the library may want another order */
        return;
    }
    dnnl_memory_set_data_handle(p->a, g->a.data);
    dnnl_memory_set_data_handle(p->b, room->data);
    dnnl_memory_set_data_handle(p->c, g->c.data);
    dnnl_memory_set_data_handle(p->bias, g->bias.data);
    execute(p->primitive, p->a, p->b, p->c, p->bias, g);
}
