/*
 * Times of single kernels of a device, at the shapes of a language model of 1.2 billion parameters:
 *
 *   gpu_bench [DEVICE] [SCALE] [WORD]   cuda and 1; SCALE divides all sizes, for a try without a
 *                                       GPU; of cases whose name has WORD alone
 *
 * One line a case: name, milliseconds (the best of three rounds), and the rate: GB/s of what must
 * be read and written, or TFLOP/s. peer.py prints the same names for torch. The status is 1 where
 * a case failed.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/spans.h"
#include "lib/base/base.h"
#include "lib/base/rng.h"
#include "lib/tensor/device.h"

static const struct s2s_kernels *k;
static struct s2s_queue *queue;
static int64_t scale = 1;
static const char *only = "";
static int n_failed;

/* ---- memory ---- */

enum { RANDOM = 1 << 20 };

static void *raw(size_t bytes)
{
    void *ptr = k->alloc(queue, bytes);
    if (!ptr) {
        fprintf(stderr, "gpu_bench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return ptr;
}

/* Normal values in blocks that repeat. */
static struct s2s_mat matrix(int64_t rows, int64_t cols, enum s2s_dtype dtype)
{
    static float *block, *on_device;
    const struct s2s_mat m = {raw((size_t)(rows * cols) * s2s_dtype_size(dtype)), cols, dtype};
    if (!block) {
        block = s2s_xmalloc(RANDOM * sizeof *block);
        s2s_rng_fill_normal(block, RANDOM, 1, 0, 0, 1);
        on_device = raw(RANDOM * sizeof *block);
        k->copy_in(queue, on_device, block, RANDOM * sizeof *block);
    }
    for (int64_t at = 0; at < rows * cols; at += RANDOM) {
        struct s2s_k_copy copy = {.src = {on_device, RANDOM, S2S_F32}, .dst = m, .rows = 1};
        copy.cols = rows * cols - at < RANDOM ? rows * cols - at : RANDOM;
        copy.dst.data = (char *)m.data + (size_t)at * s2s_dtype_size(dtype);
        k->copy(queue, &copy);
    }
    return m;
}

static float *vector(int64_t n)
{
    return matrix(1, n, S2S_F32).data;
}

static int32_t *integers(const int32_t *host, int64_t n)
{
    int32_t *ptr = raw((size_t)n * sizeof *ptr);
    k->copy_in(queue, ptr, host, (size_t)n * sizeof *ptr);
    return ptr;
}

/* ---- clock ---- */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double rounds(void (*call)(const void *), const void *args, int n)
{
    double best = INFINITY;
    for (int round = 0; round < (scale > 1 ? 1 : 3); round++) {
        const double begin = now_s();
        for (int i = 0; i < n; i++)
            call(args);
        k->sync(queue);
        const double seconds = (now_s() - begin) / n;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void measure(const char *name, void (*call)(const void *), const void *args, double amount,
                    const char *unit)
{
    if (!strstr(name, only))
        return;
    call(args);
    k->sync(queue);
    const double once = rounds(call, args, 1);
    const int n = once < 2e-4 ? 100 : once < 2e-3 ? 20 : 3;
    const double seconds = scale > 1 ? once : rounds(call, args, n);
    if (queue->status) {
        printf("%-32s failed: %s\n", name, k->status_text(queue->status));
        queue->status = 0;
        n_failed++;
    } else {
        printf("%-32s %9.3f ms %9.1f %s\n", name, seconds * 1e3, amount / seconds, unit);
    }
    fflush(stdout);
}

#define CALL(name, suffix) \
    static void call_##name(const void *args) \
    { \
        k->name(queue, (const struct s2s_k_##suffix *)args); \
    }
CALL(gemm, gemm)
CALL(gemm_grouped, gemm_grouped)
CALL(route, route)
CALL(expert_order, expert_order)
CALL(rows_sum, rows_sum)
CALL(rows_sum_backward, rows_sum_backward)
CALL(copy, copy)
CALL(reduce, reduce)
CALL(colsum, colsum)
CALL(glu, glu)
CALL(glu_backward, glu_backward)
CALL(rmsnorm, rmsnorm)
CALL(rmsnorm_backward, rmsnorm_backward)
CALL(rope, rope)
CALL(xent_stats, xent_stats)
CALL(xent_gradient, xent_gradient)
CALL(attention, attention)
CALL(attention_backward, attention_backward)
CALL(adamw, adamw)
CALL(conv1d, conv1d)
CALL(conv1d_backward, conv1d_backward)
CALL(ssd, ssd)
CALL(ssd_backward, ssd_backward)
CALL(gatednorm, gatednorm)
CALL(gatednorm_backward, gatednorm_backward)
CALL(relattention, relattention)
CALL(relattention_backward, relattention_backward)
CALL(conv2d, conv2d)
CALL(conv2d_backward, conv2d_backward)
CALL(dwconv, dwconv)
CALL(dwconv_backward, dwconv_backward)

/* ---- cases ---- */

static const char *type_name(enum s2s_dtype dtype)
{
    return dtype == S2S_BF16 ? "bf16" : "f32";
}

static char *named(const char *what, enum s2s_dtype dtype)
{
    return s2s_xasprintf("%s %s", what, type_name(dtype));
}

static bool with_bias; /* products have one */

static void product(const char *what, int64_t m, int64_t n, int64_t kk, bool trans_a, bool trans_b,
                    enum s2s_dtype dtype, enum s2s_dtype to)
{
    m /= scale;
    n /= scale;
    kk /= scale;
    const struct s2s_k_gemm g = {.a = trans_a ? matrix(kk, m, dtype) : matrix(m, kk, dtype),
                                 .b = trans_b ? matrix(n, kk, dtype) : matrix(kk, n, dtype),
                                 .c = matrix(m, n, to),
                                 .bias = {with_bias ? vector(n) : NULL, 0, S2S_F32},
                                 .m = m,
                                 .n = n,
                                 .k = kk,
                                 .trans_a = trans_a,
                                 .trans_b = trans_b,
                                 .accumulate = trans_a,
                                 .alpha = 1};
    char *name = named(what, dtype);
    measure(name, call_gemm, &g, 2e-12 * (double)m * (double)n * (double)kk, "TFLOP/s");
    free(name);
    k->free(queue, g.a.data);
    k->free(queue, g.b.data);
    k->free(queue, g.c.data);
}

static void products(enum s2s_dtype dtype)
{
    product("gemm 8192^3", 8192, 8192, 8192, false, true, dtype, dtype);
    product("gemm forward 8192x8192x2048", 8192, 8192, 2048, false, true, dtype, dtype);
    product("gemm dx 8192x2048x8192", 8192, 2048, 8192, false, false, dtype, dtype);
    product("gemm dw 8192x2048x8192", 8192, 2048, 8192, true, false, dtype, S2S_F32);
    /* projections of attention, of as many tokens as packs have */
    product("gemm q 8185x2048x2048", 8185, 2048, 2048, false, true, dtype, dtype);
    with_bias = true;
    product("gemm + bias 8185x2048x2048", 8185, 2048, 2048, false, true, dtype, dtype);
    with_bias = false;
    product("gemm k 8185x512x2048", 8185, 512, 2048, false, true, dtype, dtype);
    product("gemm dq 8185x2048x2048", 8185, 2048, 2048, false, false, dtype, dtype);
    product("gemm dk 8185x2048x512", 8185, 2048, 512, false, false, dtype, dtype);
    product("gemm dw of q 2048x2048x8185", 2048, 2048, 8185, true, false, dtype, S2S_F32);
    product("gemm dw of k 512x2048x8185", 512, 2048, 8185, true, false, dtype, S2S_F32);
}

static void norms(enum s2s_dtype dtype)
{
    const int64_t t = 8192 / scale, d = 2048;
    const double elements = (double)(t * d), size = (double)s2s_dtype_size(dtype);
    struct s2s_k_rmsnorm f = {.x = matrix(t, d, dtype),
                              .residual = matrix(t, d, dtype),
                              .sum = matrix(t, d, dtype),
                              .y = matrix(t, d, dtype),
                              .gain = vector(d),
                              .rstd = vector(t),
                              .rows = t,
                              .cols = d,
                              .eps = 1e-5f};
    char *name = named("rmsnorm + residual", dtype);
    measure(name, call_rmsnorm, &f, 4e-9 * size * elements, "GB/s");
    free(name);
    struct s2s_k_rmsnorm_backward b = {.h = f.sum,
                                       .dy = f.y,
                                       .dsum = f.residual,
                                       .dx = f.x,
                                       .gain = f.gain,
                                       .rstd = f.rstd,
                                       .dgain = vector(d),
                                       .rows = t,
                                       .cols = d};
    b.workspace = raw(k->rmsnorm_backward_workspace(queue, &b));
    name = named("rmsnorm backward", dtype);
    measure(name, call_rmsnorm_backward, &b, 4e-9 * size * elements, "GB/s");
    free(name);
}

static void pointwise(enum s2s_dtype dtype)
{
    const int64_t t = 8192 / scale, d = 8192, heads = 32, dim = 64;
    const double size = (double)s2s_dtype_size(dtype), elements = (double)(t * d);
    struct s2s_k_glu f = {.gate = matrix(t, d, dtype),
                          .up = matrix(t, d, dtype),
                          .y = matrix(t, d, dtype),
                          .rows = t,
                          .cols = d,
                          .act = S2S_ACT_SILU};
    struct s2s_k_glu_backward b = {.gate = f.gate,
                                   .up = f.up,
                                   .dy = f.y,
                                   .dgate = matrix(t, d, dtype),
                                   .dup = matrix(t, d, dtype),
                                   .rows = t,
                                   .cols = d,
                                   .act = S2S_ACT_SILU};
    char *name = named("swiglu", dtype);
    measure(name, call_glu, &f, 3e-9 * size * elements, "GB/s");
    free(name);
    name = named("swiglu backward", dtype);
    measure(name, call_glu_backward, &b, 5e-9 * size * elements, "GB/s");
    free(name);
    const struct s2s_k_rope r = {.x = matrix(t, heads * dim, dtype),
                                 .y = matrix(t, heads * dim, dtype),
                                 .table = vector(t * dim),
                                 .n = t,
                                 .n_heads = heads,
                                 .dim = dim,
                                 .rotary_dim = dim};
    name = named("rope 32 x 64", dtype);
    measure(name, call_rope, &r, 2e-9 * size * (double)(t * heads * dim), "GB/s");
    free(name);
    struct s2s_k_colsum c = {.x = f.gate, .out = vector(d), .rows = t, .cols = d};
    c.workspace = raw(k->colsum_workspace(queue, &c));
    name = named("sum over rows", dtype);
    measure(name, call_colsum, &c, 1e-9 * size * elements, "GB/s");
    free(name);
}

static void cross_entropy(enum s2s_dtype dtype)
{
    const int64_t rows = 2048 / scale, vocab = 128256 / scale / 8 * 8;
    const double size = (double)s2s_dtype_size(dtype), elements = (double)(rows * vocab);
    int32_t *host = s2s_xmalloc((size_t)rows * sizeof *host);
    for (int64_t i = 0; i < rows; i++)
        host[i] = (int32_t)(i * 7919 % vocab);
    struct s2s_xent *stats = raw((size_t)rows * sizeof *stats);
    const struct s2s_k_xent_stats s = {.logits = matrix(rows, vocab, dtype),
                                       .labels = integers(host, rows),
                                       .stats = stats,
                                       .rows = rows,
                                       .cols = vocab,
                                       .keep = true};
    char *name = named("cross entropy 2048 x 128256", dtype);
    measure(name, call_xent_stats, &s, 1e-9 * size * elements, "GB/s");
    free(name);
    const struct s2s_k_xent_gradient g = {.logits = s.logits,
                                          .dlogits = matrix(rows, vocab, dtype),
                                          .labels = s.labels,
                                          .part = stats,
                                          .total = stats,
                                          .rows = rows,
                                          .cols = vocab,
                                          .width = vocab,
                                          .grad_scale = 1};
    name = named("cross entropy gradient", dtype);
    measure(name, call_xent_gradient, &g, 2e-9 * size * elements, "GB/s");
    free(name);
    free(host);
    k->free(queue, s.logits.data);
    k->free(queue, g.dlogits.data);
}

/* Sequences of `length` tokens until there are n. */
static void attend(const char *what, int64_t n, int64_t length, int64_t heads, int64_t kv_heads,
                   int64_t dim, enum s2s_dtype dtype)
{
    n /= scale;
    length = length > n ? n : length;
    const int64_t n_seqs = (n + length - 1) / length;
    int32_t *cu = s2s_xcalloc((size_t)n_seqs + 1, sizeof *cu),
            *groups = s2s_xcalloc((size_t)n_seqs + 1, sizeof *groups);
    struct s2s_span *spans = s2s_xcalloc((size_t)n_seqs, sizeof *spans);
    double pairs = 0;
    for (int64_t s = 0; s < n_seqs; s++) {
        cu[s + 1] = (int32_t)((s + 1) * length < n ? (s + 1) * length : n);
        pairs += .5 * pow(cu[s + 1] - cu[s], 2);
    }
    s2s_spans_packed(spans, cu, cu, n_seqs, true);
    struct s2s_k_attention f = {.q = matrix(n, heads * dim, dtype),
                                .k = matrix(n, kv_heads * dim, dtype),
                                .v = matrix(n, kv_heads * dim, dtype),
                                .o = matrix(n, heads * dim, dtype),
                                .lse = vector(n * heads),
                                .n_spans = n_seqs,
                                .n_groups = s2s_spans_group(groups, spans, n_seqs),
                                .n_q = n,
                                .n_k = n,
                                .n_heads = heads,
                                .n_kv_heads = kv_heads,
                                .dim = dim,
                                .max_q = length,
                                .max_k = length,
                                .scale = 1.0f / sqrtf((float)dim)};
    struct s2s_span *on_device = raw((size_t)n_seqs * sizeof *spans);
    k->copy_in(queue, on_device, spans, (size_t)n_seqs * sizeof *spans);
    f.spans = on_device;
    f.groups = integers(groups, f.n_groups + 1);
    f.workspace = raw(k->attention_workspace(queue, &f));
    const double flop = 4e-12 * pairs * (double)(heads * dim);
    char *name = named(what, dtype);
    measure(name, call_attention, &f, flop, "TFLOP/s");
    free(name);
    struct s2s_k_attention_backward b = {.forward = f,
                                         .d_o = matrix(n, heads * dim, dtype),
                                         .dq = matrix(n, heads * dim, dtype),
                                         .dk = matrix(n, kv_heads * dim, dtype),
                                         .dv = matrix(n, kv_heads * dim, dtype)};
    b.workspace = raw(k->attention_backward_workspace(queue, &b));
    name = s2s_xasprintf("%s backward %s", what, type_name(dtype));
    measure(name, call_attention_backward, &b, 2.5 * flop, "TFLOP/s");
    free(name);
    free(cu);
    free(groups);
    free(spans);
}

static void optimizer(void)
{
    const int64_t n = (1 << 28) / scale / scale;
    struct s2s_adamw_range range = {.n = n, .lr_mult = 1, .decay_mult = 1};
    struct s2s_adamw_range *ranges = raw(sizeof range);
    k->copy_in(queue, ranges, &range, sizeof range);
    const struct s2s_k_adamw a = {.p = vector(n),
                                  .m = vector(n),
                                  .v = matrix(1, n, S2S_F32).data,
                                  .grad = vector(n),
                                  .ranges = ranges,
                                  .n_ranges = 1,
                                  .n = n,
                                  .t = 1,
                                  .lr = 1e-4,
                                  .beta1 = .9,
                                  .beta2 = .95,
                                  .eps = 1e-8,
                                  .weight_decay = .1,
                                  .grad_scale = 1};
    k->zero(queue, a.v, (size_t)n * 4);
    measure("adamw 268M f32", call_adamw, &a, 28e-9 * (double)n, "GB/s");
    struct s2s_k_reduce r = {.x = {(void *)a.grad, n, S2S_F32},
                             .out = raw(8),
                             .rows = 1,
                             .cols = n,
                             .what = S2S_REDUCE_SUMSQ};
    r.workspace = raw(k->reduce_workspace(queue, &r));
    measure("sum of squares 268M f32", call_reduce, &r, 4e-9 * (double)n, "GB/s");
    const struct s2s_k_copy c = {
        .src = {a.p, n, S2S_F32}, .dst = {a.m, n, S2S_F32}, .rows = 1, .cols = n};
    measure("copy 1 GiB f32", call_copy, &c, 8e-9 * (double)n, "GB/s");
    k->free(queue, a.p);
    k->free(queue, a.m);
    k->free(queue, a.v);
    k->free(queue, (void *)a.grad);
}

/* ---- experts ---- */

/* n rows for so many experts, of which the fullest has three times as many as the emptiest. */
static int32_t *uneven(int64_t n, int64_t n_experts)
{
    int32_t *bounds = s2s_xcalloc((size_t)n_experts + 1, sizeof *bounds);
    for (int64_t e = 0; e < n_experts; e++) {
        const int64_t share = n_experts > 1 ? n_experts - 1 + 2 * (e * 7 % n_experts) : 1;
        bounds[e + 1] = bounds[e] + (int32_t)(n * share / (n_experts * (2 * n_experts - 2) + 1));
    }
    bounds[n_experts] = (int32_t)n;
    int32_t *on_device = integers(bounds, n_experts + 1);
    free(bounds);
    return on_device;
}

/* x [n, in] of experts [out, in]: y, dx and dw. */
static void experts(int64_t n, int64_t n_experts, int64_t in, int64_t out, enum s2s_dtype dtype)
{
    n /= scale;
    in /= scale;
    out /= scale;
    const double flop = 2e-12 * (double)n * (double)in * (double)out;
    struct s2s_k_gemm_grouped g = {.a = matrix(n, in, dtype),
                                   .b = matrix(n_experts * out, in, dtype),
                                   .c = matrix(n, out, dtype),
                                   .offsets = uneven(n, n_experts),
                                   .n_groups = n_experts,
                                   .rows = n,
                                   .n = out,
                                   .k = in,
                                   .step = in * out,
                                   .trans_b = true};
    const struct s2s_mat x = g.a, y = g.c, w = g.b;
    char *name = s2s_xasprintf("experts %lld, %lldx%lldx%lld %s", (long long)n_experts,
                               (long long)(n * scale), (long long)(out * scale),
                               (long long)(in * scale), type_name(dtype));
    char *dx = s2s_xasprintf("dx of %s", name), *dw = s2s_xasprintf("dw of %s", name);
    measure(name, call_gemm_grouped, &g, flop, "TFLOP/s");
    g.a = y;
    g.c = x;
    g.n = in;
    g.k = out;
    g.trans_b = false;
    measure(dx, call_gemm_grouped, &g, flop, "TFLOP/s");
    g.b = x;
    g.c = matrix(n_experts * out, in, S2S_F32);
    g.of_weights = g.accumulate = true;
    measure(dw, call_gemm_grouped, &g, flop, "TFLOP/s");
    free(name);
    free(dx);
    free(dw);
    k->free(queue, x.data);
    k->free(queue, y.data);
    k->free(queue, w.data);
    k->free(queue, g.c.data);
    k->free(queue, (void *)g.offsets);
}

/* Tokens of 128 experts, 8 each. */
static void routes(enum s2s_dtype dtype)
{
    enum { E = 128, K = 8 };
    const int64_t t = 8192 / scale, n = t * K, d = 2048 / scale;
    const struct s2s_k_route r = {.logits = matrix(t, E, S2S_F32),
                                  .experts = raw((size_t)n * sizeof(int32_t)),
                                  .weights = vector(n),
                                  .n = t,
                                  .n_experts = E,
                                  .n_chosen = K,
                                  .normalise = true,
                                  .scale = 1};
    struct s2s_k_expert_order o = {.experts = r.experts,
                                   .places = raw((size_t)n * sizeof(int32_t)),
                                   .rows = raw((size_t)n * sizeof(int32_t)),
                                   .offsets = raw((E + 1) * sizeof(int32_t)),
                                   .n = n,
                                   .n_experts = E,
                                   .n_chosen = K};
    const double size = (double)s2s_dtype_size(dtype), numbers = (double)n;
    o.workspace = raw(k->expert_order_workspace(queue, &o));
    if (dtype == S2S_F32) {
        measure("route 8192 x 128, 8 each", call_route, &r, 4e-9 * (double)(t * E) + 8e-9 * numbers,
                "GB/s");
        measure("order by expert 65536, 128", call_expert_order, &o, 12e-9 * numbers, "GB/s");
    } else {
        call_route(&r);
        call_expert_order(&o);
    }
    const struct s2s_k_rows_sum c = {.dst = matrix(t, d, dtype),
                                     .src = matrix(n, d, dtype),
                                     .idx = o.places,
                                     .weights = r.weights,
                                     .n = t,
                                     .n_sources = K,
                                     .cols = d};
    char *name = named("combine 8192 x 8, 2048", dtype);
    measure(name, call_rows_sum, &c, 1e-9 * size * (double)d * (double)(t + n), "GB/s");
    free(name);
    const struct s2s_k_rows_sum_backward b = {.src = c.src,
                                              .ddst = c.dst,
                                              .dsrc = matrix(n, d, dtype),
                                              .idx = o.places,
                                              .weights = r.weights,
                                              .dweights = vector(n),
                                              .n = t,
                                              .n_sources = K,
                                              .cols = d};
    name = named("combine backward", dtype);
    measure(name, call_rows_sum_backward, &b, 1e-9 * size * (double)d * (double)(t + 2 * n),
            "GB/s");
    free(name);
    k->free(queue, c.src.data);
    k->free(queue, b.dsrc.data);
}

/* ---- Mamba2 ---- */

enum { SSM_TOKENS = 8192, SSM_DIM = 128, SSM_STATE = 128 };

/* n of a kind that a smaller try has fewer of. */
static int64_t fewer(int64_t n)
{
    return scale < n ? n / scale : 1;
}

static int64_t ssm_heads(void)
{
    return fewer(64);
}

static int64_t ssm_groups(void)
{
    return fewer(8);
}

static void gated_norms(enum s2s_dtype dtype)
{
    const int64_t t = SSM_TOKENS / scale, cols = ssm_heads() * SSM_DIM;
    const double size = (double)s2s_dtype_size(dtype), elements = (double)(t * cols);
    const struct s2s_k_gatednorm f = {.x = matrix(t, cols, dtype),
                                      .z = matrix(t, cols, dtype),
                                      .y = matrix(t, cols, dtype),
                                      .gain = vector(cols),
                                      .rstd = vector(t * ssm_groups()),
                                      .rows = t,
                                      .cols = cols,
                                      .n_groups = ssm_groups(),
                                      .eps = 1e-5f};
    char *name = named("gated norm 8192, 8 groups", dtype);
    measure(name, call_gatednorm, &f, 3e-9 * size * elements, "GB/s");
    free(name);
    struct s2s_k_gatednorm_backward b = {.x = f.x,
                                         .z = f.z,
                                         .dy = f.y,
                                         .dx = matrix(t, cols, dtype),
                                         .dz = matrix(t, cols, dtype),
                                         .gain = f.gain,
                                         .rstd = f.rstd,
                                         .dgain = vector(cols),
                                         .rows = t,
                                         .cols = cols,
                                         .n_groups = ssm_groups()};
    b.workspace = raw(k->gatednorm_backward_workspace(queue, &b));
    name = named("gated norm backward", dtype);
    measure(name, call_gatednorm_backward, &b, 5e-9 * size * elements, "GB/s");
    free(name);
    void *const all[] = {f.x.data, f.z.data, f.y.data, b.dx.data, b.dz.data, b.workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        k->free(queue, all[i]);
}

static void convolve(const int32_t *cu, int64_t n_seqs, enum s2s_dtype dtype)
{
    const int64_t t = SSM_TOKENS / scale, width = 4;
    const int64_t channels = ssm_heads() * SSM_DIM + 2 * ssm_groups() * SSM_STATE;
    const double size = (double)s2s_dtype_size(dtype), elements = (double)(t * channels);
    const struct s2s_k_conv1d f = {.x = matrix(t, channels, dtype),
                                   .y = matrix(t, channels, dtype),
                                   .w = vector(channels * width),
                                   .bias = vector(channels),
                                   .cu = cu,
                                   .n_seqs = n_seqs,
                                   .n = t,
                                   .channels = channels,
                                   .width = width,
                                   .silu = true};
    char *name = named("conv1d 10240 x 4, silu", dtype);
    measure(name, call_conv1d, &f, 2e-9 * size * elements, "GB/s");
    free(name);
    struct s2s_k_conv1d_backward b = {.forward = f,
                                      .dy = f.y,
                                      .dx = matrix(t, channels, dtype),
                                      .dw = vector(channels * width),
                                      .dbias = vector(channels)};
    b.workspace = raw(k->conv1d_backward_workspace(queue, &b));
    name = named("conv1d backward", dtype);
    measure(name, call_conv1d_backward, &b, 3e-9 * size * elements, "GB/s");
    free(name);
    void *const all[] = {f.x.data, f.y.data, b.dx.data, b.workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        k->free(queue, all[i]);
}

/* Sequences of `len` tokens. */
static void scan(const char *what, int64_t len, enum s2s_dtype dtype)
{
    const int64_t t = SSM_TOKENS / scale, inner = ssm_heads() * SSM_DIM;
    const int64_t width = ssm_groups() * SSM_STATE, n = (t + len - 1) / len;
    int32_t *host = s2s_xcalloc((size_t)n + 1, sizeof *host);
    for (int64_t i = 0; i <= n; i++)
        host[i] = (int32_t)(i * len < t ? i * len : t);
    const int32_t *cu = integers(host, n + 1);
    if (n == 1)
        convolve(cu, n, dtype);
    struct s2s_k_ssd f = {.x = matrix(t, inner, dtype),
                          .y = matrix(t, inner, dtype),
                          .dt = matrix(t, ssm_heads(), dtype),
                          .b = matrix(t, width, dtype),
                          .c = matrix(t, width, dtype),
                          .a_log = vector(ssm_heads()),
                          .dt_bias = vector(ssm_heads()),
                          .skip = vector(ssm_heads()),
                          .cu = cu,
                          .n_seqs = n,
                          .n = t,
                          .n_heads = ssm_heads(),
                          .n_groups = ssm_groups(),
                          .dim = SSM_DIM,
                          .state = SSM_STATE,
                          .max_seqlen = len < t ? len : t};
    f.workspace = raw(k->ssd_workspace(queue, &f));
    char *name = named(what, dtype);
    measure(name, call_ssd, &f, 1e-6 * (double)t, "Mtok/s");
    free(name);
    struct s2s_k_ssd_backward b = {.forward = f,
                                   .dy = f.y,
                                   .dx = matrix(t, inner, dtype),
                                   .ddt = matrix(t, ssm_heads(), dtype),
                                   .db = matrix(t, width, dtype),
                                   .dc = matrix(t, width, dtype),
                                   .da_log = vector(ssm_heads()),
                                   .ddt_bias = vector(ssm_heads()),
                                   .dskip = vector(ssm_heads())};
    b.workspace = raw(k->ssd_backward_workspace(queue, &b));
    name = named("  backward", dtype);
    measure(name, call_ssd_backward, &b, 1e-6 * (double)t, "Mtok/s");
    free(name);
    void *const all[] = {f.x.data,  f.y.data,   f.dt.data, f.b.data,  f.c.data,   f.workspace,
                         b.dx.data, b.ddt.data, b.db.data, b.dc.data, b.workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        k->free(queue, all[i]);
    free(host);
}

/* ---- an encoder ---- */

/* Clips of 500 frames, eight heads. */
static void encoder(enum s2s_dtype dtype)
{
    enum { CLIPS = 8, DIM = 64, TAPS = 9 };
    const int64_t heads = fewer(8);
    const int64_t len = 500 * 8 / (scale < 8 ? 8 : scale) + 1, n = CLIPS * len, width = heads * DIM;
    const double size = (double)s2s_dtype_size(dtype);
    const double pairs = (double)CLIPS * (double)(len * len * width);
    int32_t host[CLIPS + 1];
    for (int i = 0; i <= CLIPS; i++)
        host[i] = (int32_t)(i * len);
    struct s2s_k_relattention f = {.q = matrix(n, width, dtype),
                                   .k = matrix(n, width, dtype),
                                   .value = matrix(n, width, dtype),
                                   .o = matrix(n, width, dtype),
                                   .p = matrix(2 * len - 1, width, dtype),
                                   .u = vector(width),
                                   .v = vector(width),
                                   .lse = vector(n * heads),
                                   .cu = integers(host, CLIPS + 1),
                                   .n_seqs = CLIPS,
                                   .n_heads = heads,
                                   .dim = DIM,
                                   .max_seqlen = len,
                                   .scale = 0.125f};
    f.workspace = raw(k->relattention_workspace(queue, &f));
    char *name = named("relattention 8 x 501, 8 x 64", dtype);
    measure(name, call_relattention, &f, 6e-12 * pairs, "TFLOP/s");
    free(name);
    struct s2s_k_relattention_backward b = {.forward = f,
                                            .d_o = matrix(n, width, dtype),
                                            .dq = matrix(n, width, dtype),
                                            .dk = matrix(n, width, dtype),
                                            .dvalue = matrix(n, width, dtype),
                                            .dp = matrix(2 * len - 1, width, dtype),
                                            .du = vector(width),
                                            .dv = vector(width)};
    b.workspace = raw(k->relattention_backward_workspace(queue, &b));
    name = named("relattention backward", dtype);
    measure(name, call_relattention_backward, &b, 16e-12 * pairs, "TFLOP/s");
    free(name);
    struct s2s_k_dwconv c = {.x = f.q,
                             .y = f.o,
                             .w = vector(width * TAPS),
                             .cu = f.cu,
                             .n_seqs = CLIPS,
                             .n = n,
                             .channels = width,
                             .width = TAPS};
    c.workspace = raw(k->dwconv_workspace(queue, &c));
    name = named("dwconv 4008 x 512, 9", dtype);
    measure(name, call_dwconv, &c, 2e-9 * size * (double)(n * width), "GB/s");
    free(name);
    struct s2s_k_dwconv_backward d = {
        .forward = c, .dy = b.d_o, .dx = b.dq, .dw = vector(width * TAPS)};
    d.workspace = raw(k->dwconv_backward_workspace(queue, &d));
    name = named("dwconv backward", dtype);
    measure(name, call_dwconv_backward, &d, 3e-9 * size * (double)(n * width), "GB/s");
    free(name);
}

/* The second convolution of an encoder's subsampling: 40 columns of 256 channels. */
static void images(enum s2s_dtype dtype)
{
    enum { COLUMNS = 40 };
    const int64_t n = 4008 / scale / 2 * 2, channels = 256 / (scale < 32 ? scale : 32);
    const int32_t in[] = {0, (int32_t)n}, out[] = {0, (int32_t)n / 2};
    const double size = (double)s2s_dtype_size(dtype) * (double)(n * COLUMNS * channels);
    struct s2s_k_conv2d f = {.x = matrix(n, COLUMNS * channels, dtype),
                             .y = matrix(n / 2, COLUMNS / 2 * channels, dtype),
                             .w = vector(channels * 9),
                             .bias = vector(channels),
                             .cu_in = integers(in, 2),
                             .cu_out = integers(out, 2),
                             .n_seqs = 1,
                             .n_in = n,
                             .n_out = n / 2,
                             .in_width = COLUMNS,
                             .channels = channels};
    f.workspace = raw(k->conv2d_workspace(queue, &f));
    char *name = named("conv2d 4008 x 40 x 256", dtype);
    measure(name, call_conv2d, &f, 1.25e-9 * size, "GB/s");
    free(name);
    struct s2s_k_conv2d_backward b = {.forward = f,
                                      .dy = matrix(n / 2, COLUMNS / 2 * channels, dtype),
                                      .dx = matrix(n, COLUMNS * channels, dtype),
                                      .dw = vector(channels * 9)};
    b.workspace = raw(k->conv2d_backward_workspace(queue, &b));
    name = named("conv2d backward", dtype);
    measure(name, call_conv2d_backward, &b, 2.5e-9 * size, "GB/s");
    free(name);
}

int main(int argc, char **argv)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_device *device;
    if (argc > 3)
        only = argv[3];
    if (argc > 2)
        scale = strtol(argv[2], NULL, 10) > 0 ? strtol(argv[2], NULL, 10) : 1;
    if (s2s_device_open(&device, argc > 1 ? argv[1] : "cuda", &err) < 0) {
        fprintf(stderr, "gpu_bench: %s\n", err.text);
        return 1;
    }
    k = device->kernels;
    queue = &device->queue;
    optimizer();
    static const enum s2s_dtype both[] = {S2S_BF16, S2S_F32};
    for (size_t i = 0; i < 2; i++) {
        products(both[i]);
        norms(both[i]);
        pointwise(both[i]);
        cross_entropy(both[i]);
        routes(both[i]);
        experts(65536, 128, 2048, 768, both[i]);
        experts(16384, 8, 2048, 8192, both[i]);
        attend("attention 1 x 8192, 32/8 x 64", 8192, 8192, 32, 8, 64, both[i]);
        attend("attention 14 x 600, 32/8 x 64", 8192, 600, 32, 8, 64, both[i]);
        attend("attention 1 x 8192, 16/16 x 128", 8192, 8192, 16, 16, 128, both[i]);
        encoder(both[i]);
        images(both[i]);
        gated_norms(both[i]);
        scan("scan 1 x 8192, 64/8 x 128, 128", 8192, both[i]);
        scan("scan 14 x 600, 64/8 x 128, 128", 600, both[i]);
    }
    s2s_device_close(device);
    return n_failed > 0;
}
