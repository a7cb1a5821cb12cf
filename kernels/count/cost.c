/*
 * The cost of each entry, from the formula in its header. A new entry of kernels/list.h does not
 * compile before it has a cost_NAME here.
 *
 * Products are 2 m n k. Attention is counted as FlashAttention's authors do (Dao et al. 2022): two
 * products of a query and a key forward, five backward, over the pairs that see each other.
 * Pointwise maps and norms are the operations of their formulas; they are below a hundredth of a
 * step.
 */
#include "kernels/count/cost.h"

typedef const struct s2s_uploads uploads_t;

const char *s2s_entry_name(enum s2s_entry entry)
{
    static const char *const names[] = {
#define X(name, suffix, kind, mats) #name,
        S2S_KERNELS(X)
#undef X
            "zero",
        "copy_in", "copy_out", "copy_out_async", "sync"};
    return names[entry];
}

static const double F32_BYTES = 4, I32_BYTES = 4, F64_BYTES = 8;

/* Bytes of [rows, cols]; 0 where the matrix is absent. */
static double mat(const struct s2s_mat *m, double rows, double cols)
{
    return m->data ? rows * cols * (double)s2s_dtype_size(m->dtype) : 0;
}

/* Bytes of n floats; 0 where the vector is absent. */
static double vec(const void *data, double n)
{
    return data ? n * F32_BYTES : 0;
}

/* Bytes of an output that is read only where something is added to it. */
static double added(bool accumulate, double bytes)
{
    return accumulate ? bytes : 0;
}

/* ---- dense ---- */

/* A matrix that all products share counts once. */
static struct s2s_cost cost_gemm(const struct s2s_k_gemm *a, uploads_t *up)
{
    const double m = (double)a->m, n = (double)a->n, k = (double)a->k;
    const double batch = a->n_batch > 0 ? (double)a->n_batch : 1, c = batch * mat(&a->c, m, n);
    return (struct s2s_cost){2 * batch * m * n * k,
                             (a->step_a ? batch : 1) * mat(&a->a, m, k) +
                                 (a->step_b ? batch : 1) * mat(&a->b, k, n) + mat(&a->bias, 1, n) +
                                 added(a->accumulate, c),
                             c};
}

/* The int32 at index i of an array on the device; `other` where it is not known. */
static double at_index(uploads_t *up, const int32_t *array, int64_t i, int64_t other)
{
    const int32_t *host = s2s_uploads_find(up, array + i, sizeof *host);
    return (double)(host ? *host : other);
}

static struct s2s_cost cost_gemm_grouped(const struct s2s_k_gemm_grouped *a, uploads_t *up)
{
    const double rows =
        at_index(up, a->offsets, a->n_groups, a->rows) - at_index(up, a->offsets, 0, 0);
    const double n = (double)a->n, k = (double)a->k, groups = (double)a->n_groups;
    const double c = a->of_weights ? groups * mat(&a->c, k, n) : mat(&a->c, rows, n);
    const double b = a->of_weights ? mat(&a->b, rows, n) : groups * mat(&a->b, k, n);
    return (struct s2s_cost){
        2 * rows * n * k,
        mat(&a->a, rows, k) + b + (groups + 1) * I32_BYTES + added(a->accumulate, c), c};
}

static struct s2s_cost cost_copy(const struct s2s_k_copy *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    return (struct s2s_cost){0, mat(&a->src, rows, cols), mat(&a->dst, rows, cols)};
}

static struct s2s_cost cost_fill(const struct s2s_k_fill *a, uploads_t *up)
{
    return (struct s2s_cost){0, 0, mat(&a->dst, (double)a->rows, (double)a->cols)};
}

static struct s2s_cost cost_axpby(const struct s2s_k_axpby *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    const bool adds = a->z.data != NULL;
    return (struct s2s_cost){rows * cols * ((a->alpha != 1) + (adds && a->beta != 1) + adds),
                             mat(&a->x, rows, cols) + mat(&a->z, rows, cols),
                             mat(&a->y, rows, cols)};
}

static struct s2s_cost cost_colsum(const struct s2s_k_colsum *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    return (struct s2s_cost){rows * cols,
                             mat(&a->x, rows, cols) + added(a->accumulate, cols * F32_BYTES),
                             cols * F32_BYTES};
}

static struct s2s_cost cost_reduce(const struct s2s_k_reduce *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    const double each = a->what == S2S_REDUCE_SUMSQ ? 2 : 1;
    return (struct s2s_cost){each * rows * cols,
                             mat(&a->x, rows, cols) + added(a->accumulate, F64_BYTES), F64_BYTES};
}

static struct s2s_cost cost_transpose(const struct s2s_k_transpose *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)(a->a * a->b), y = mat(&a->y, rows, cols);
    return (struct s2s_cost){added(a->accumulate, rows * cols),
                             mat(&a->x, rows, cols) + added(a->accumulate, y), y};
}

/* A comparison and a product each; what is drawn counts as nothing. */
static struct s2s_cost cost_dropout(const struct s2s_k_dropout *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols, y = mat(&a->y, rows, cols);
    return (struct s2s_cost){
        rows * cols * (2 + a->accumulate),
        mat(&a->x, rows, cols) + rows * 2 * I32_BYTES + added(a->accumulate, y), y};
}

static double act_flops(enum s2s_act act)
{
    static const double each[] = {
        [S2S_ACT_SILU] = 4, [S2S_ACT_GELU_TANH] = 9, [S2S_ACT_GELU] = 5,
        [S2S_ACT_RELU] = 1, [S2S_ACT_RELU2] = 2,     [S2S_ACT_SIGMOID] = 3,
    };
    return each[act];
}

static struct s2s_cost cost_glu(const struct s2s_k_glu *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    return (struct s2s_cost){rows * cols * (act_flops(a->act) + (a->up.data != NULL)),
                             mat(&a->gate, rows, cols) + mat(&a->up, rows, cols),
                             mat(&a->y, rows, cols)};
}

/* The derivative costs about what the map does, and three products follow. */
static struct s2s_cost cost_glu_backward(const struct s2s_k_glu_backward *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    const double dgate = mat(&a->dgate, rows, cols), dup = mat(&a->dup, rows, cols);
    return (struct s2s_cost){rows * cols * (2 * act_flops(a->act) + 3),
                             mat(&a->gate, rows, cols) + mat(&a->up, rows, cols) +
                                 mat(&a->dy, rows, cols) + added(a->accumulate_dgate, dgate) +
                                 added(a->accumulate_dup, dup),
                             dgate + dup};
}

/* ---- rows ---- */

static struct s2s_cost cost_embedding(const struct s2s_k_embedding *a, uploads_t *up)
{
    const double n = (double)a->n, cols = (double)a->cols;
    return (struct s2s_cost){a->scale != 1 ? n * cols : 0, mat(&a->table, n, cols) + n * I32_BYTES,
                             mat(&a->y, n, cols)};
}

static struct s2s_cost cost_embedding_backward(const struct s2s_k_embedding_backward *a,
                                               uploads_t *up)
{
    const double n_ids = (double)a->n_ids, cols = (double)a->cols,
                 n = at_index(up, a->starts, a->n_ids, a->n_ids);
    const double dtable = mat(&a->dtable, n_ids, cols);
    return (struct s2s_cost){
        2 * n * cols, mat(&a->dy, n, cols) + dtable + (2 * n_ids + 1 + n) * I32_BYTES, dtable};
}

static struct s2s_cost cost_gather_rows(const struct s2s_k_rows *a, uploads_t *up)
{
    const double n = (double)a->n, cols = (double)a->cols, dst = mat(&a->dst, n, cols);
    return (struct s2s_cost){added(a->accumulate, n * cols),
                             mat(&a->src, n, cols) + n * I32_BYTES + added(a->accumulate, dst),
                             dst};
}

static struct s2s_cost cost_scatter_rows(const struct s2s_k_rows *a, uploads_t *up)
{
    return cost_gather_rows(a, up);
}

static struct s2s_cost cost_rows_sum(const struct s2s_k_rows_sum *a, uploads_t *up)
{
    const double n = (double)a->n, cols = (double)a->cols, each = n * (double)a->n_sources,
                 dst = mat(&a->dst, n, cols);
    return (struct s2s_cost){each * cols * (1 + (a->weights != NULL)),
                             mat(&a->src, each, cols) + each * I32_BYTES + vec(a->weights, each) +
                                 added(a->accumulate, dst),
                             dst};
}

static struct s2s_cost cost_rows_sum_backward(const struct s2s_k_rows_sum_backward *a,
                                              uploads_t *up)
{
    const double cols = (double)a->cols, each = (double)a->n * (double)a->n_sources,
                 dsrc = mat(&a->dsrc, each, cols);
    const bool dots = a->dweights != NULL;
    return (struct s2s_cost){each * cols * ((dsrc > 0 && a->weights) + 2 * dots),
                             mat(&a->ddst, (double)a->n, cols) +
                                 (dots ? mat(&a->src, each, cols) : 0) + each * I32_BYTES +
                                 vec(a->weights, each),
                             dsrc + vec(a->dweights, each)};
}

/* Comparisons are no operations. */
static struct s2s_cost cost_rows_max(const struct s2s_k_rows_max *a, uploads_t *up)
{
    const double cols = (double)a->cols, each = (double)a->n * (double)a->n_sources;
    return (struct s2s_cost){0, mat(&a->src, each, cols) + each * I32_BYTES,
                             mat(&a->dst, (double)a->n, cols)};
}

static struct s2s_cost cost_rows_max_backward(const struct s2s_k_rows_max_backward *a,
                                              uploads_t *up)
{
    const struct s2s_k_rows_max *f = &a->forward;
    const double cols = (double)f->cols, each = (double)f->n * (double)f->n_sources,
                 dsrc = mat(&a->dsrc, each, cols);
    return (struct s2s_cost){a->accumulate ? each * cols : 0,
                             mat(&f->src, each, cols) + mat(&a->ddst, (double)f->n, cols) +
                                 each * I32_BYTES + added(a->accumulate, dsrc),
                             dsrc};
}

/* ---- mixtures of experts ---- */

/* Comparisons of the choice are no operations. */
static double score_flops(enum s2s_score score)
{
    return score == S2S_SCORE_SIGMOID ? 3 : 4;
}

static struct s2s_cost cost_route(const struct s2s_k_route *a, uploads_t *up)
{
    const double n = (double)a->n, all = (double)a->n_experts, each = n * (double)a->n_chosen;
    return (struct s2s_cost){
        n * all * (score_flops(a->score) + (a->bias != NULL)) + each * (1 + a->normalise),
        mat(&a->logits, n, all) + vec(a->bias, all), each * (I32_BYTES + F32_BYTES)};
}

static struct s2s_cost cost_route_backward(const struct s2s_k_route_backward *a, uploads_t *up)
{
    const struct s2s_k_route *f = &a->forward;
    const double n = (double)f->n, all = (double)f->n_experts, each = n * (double)f->n_chosen,
                 dlogits = mat(&a->dlogits, n, all);
    return (struct s2s_cost){n * all * (score_flops(f->score) + 4) + each * 6,
                             mat(&f->logits, n, all) + each * (I32_BYTES + F32_BYTES) +
                                 added(a->accumulate, dlogits),
                             dlogits};
}

static struct s2s_cost cost_expert_order(const struct s2s_k_expert_order *a, uploads_t *up)
{
    const double n = (double)a->n;
    return (struct s2s_cost){0, n * I32_BYTES, (2 * n + (double)a->n_experts + 1) * I32_BYTES};
}

static struct s2s_cost cost_router_load(const struct s2s_k_router_load *a, uploads_t *up)
{
    const double n = (double)a->n, all = (double)a->n_experts, sums = (double)a->n_segments * all;
    return (struct s2s_cost){n * all * (score_flops(a->score) + 2),
                             mat(&a->logits, n, all) + (a->segments ? n * I32_BYTES : 0),
                             (2 * sums + 2) * F32_BYTES};
}

static struct s2s_cost cost_router_balance(const struct s2s_k_router_balance *a, uploads_t *up)
{
    const double sums = (double)a->n_segments * (double)a->n_experts;
    const double losses = a->losses ? 3 * F64_BYTES : 0;
    return (struct s2s_cost){4 * sums, (2 * sums + 2) * F32_BYTES + losses,
                             sums * F32_BYTES + losses};
}

static struct s2s_cost cost_router_balance_backward(const struct s2s_k_router_balance_backward *a,
                                                    uploads_t *up)
{
    const struct s2s_k_router_load *f = &a->forward;
    const double n = (double)f->n, all = (double)f->n_experts, dlogits = mat(&a->dlogits, n, all);
    return (struct s2s_cost){n * all * (score_flops(f->score) + 8),
                             mat(&f->logits, n, all) + (f->segments ? n * I32_BYTES : 0) +
                                 (double)f->n_segments * all * F32_BYTES +
                                 added(a->accumulate, dlogits),
                             dlogits};
}

static struct s2s_cost cost_expert_counts(const struct s2s_k_expert_counts *a, uploads_t *up)
{
    const double n = (double)a->n, counts = (double)a->n_experts * F32_BYTES;
    const double rows = a->segments ? n * I32_BYTES : 0;
    return (struct s2s_cost){0, n * (double)a->n_chosen * I32_BYTES + rows + counts, counts};
}

static struct s2s_cost cost_router_bias(const struct s2s_k_router_bias *a, uploads_t *up)
{
    const double n = (double)a->n_experts;
    return (struct s2s_cost){2 * n, 2 * n * F32_BYTES, n * F32_BYTES};
}

/* ---- norms ---- */

static struct s2s_cost cost_rmsnorm(const struct s2s_k_rmsnorm *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    const bool sums = a->residual.data != NULL;
    return (struct s2s_cost){
        rows * cols * (4 + sums),
        mat(&a->x, rows, cols) + mat(&a->residual, rows, cols) + vec(a->gain, cols),
        mat(&a->y, rows, cols) + (sums ? mat(&a->sum, rows, cols) : 0) + vec(a->rstd, rows)};
}

static struct s2s_cost cost_rmsnorm_backward(const struct s2s_k_rmsnorm_backward *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    const double dx = mat(&a->dx, rows, cols), dresidual = mat(&a->dresidual, rows, cols);
    return (struct s2s_cost){
        rows * cols * (7 + 3 * (a->dgain != NULL)),
        mat(&a->h, rows, cols) + mat(&a->dy, rows, cols) + mat(&a->dsum, rows, cols) +
            vec(a->gain, cols) + vec(a->rstd, rows) + vec(a->dgain, cols) +
            added(a->accumulate_dx, dx) + added(a->accumulate_dresidual, dresidual),
        dx + dresidual + vec(a->dgain, cols)};
}

static struct s2s_cost cost_layernorm(const struct s2s_k_layernorm *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    const bool sums = a->residual.data != NULL;
    return (struct s2s_cost){
        rows * cols * (7 + 2 * sums),
        mat(&a->x, rows, cols) + mat(&a->residual, rows, cols) + 2 * vec(a->gain, cols),
        mat(&a->y, rows, cols) + (sums ? mat(&a->sum, rows, cols) : 0) + 2 * vec(a->stats, rows)};
}

static struct s2s_cost cost_layernorm_backward(const struct s2s_k_layernorm_backward *a,
                                               uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    const double dx = mat(&a->dx, rows, cols), dresidual = mat(&a->dresidual, rows, cols);
    const double dvecs = vec(a->dgain, cols) + vec(a->dbias, cols);
    return (struct s2s_cost){rows * cols * (10 + 2 * (a->dgain != NULL) + (a->dbias != NULL)),
                             mat(&a->h, rows, cols) + mat(&a->dy, rows, cols) +
                                 mat(&a->dsum, rows, cols) + vec(a->gain, cols) +
                                 2 * vec(a->stats, rows) + dvecs + added(a->accumulate_dx, dx) +
                                 added(a->accumulate_dresidual, dresidual),
                             dx + dresidual + dvecs};
}

static struct s2s_cost cost_column_stats(const struct s2s_k_column_stats *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    return (struct s2s_cost){rows * cols * 4, mat(&a->x, rows, cols), 2 * cols * F32_BYTES};
}

static struct s2s_cost cost_batchnorm(const struct s2s_k_batchnorm *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    return (struct s2s_cost){rows * cols * (4 + (a->silu ? act_flops(S2S_ACT_SILU) : 0)),
                             mat(&a->x, rows, cols) + 4 * cols * F32_BYTES, mat(&a->y, rows, cols)};
}

static struct s2s_cost cost_batchnorm_backward(const struct s2s_k_batchnorm_backward *a,
                                               uploads_t *up)
{
    const struct s2s_k_batchnorm *f = &a->forward;
    const double rows = (double)f->rows, cols = (double)f->cols, dx = mat(&a->dx, rows, cols);
    const double dvecs = vec(a->dgain, cols) + vec(a->dbias, cols);
    return (struct s2s_cost){
        rows * cols * (6 + 4 * a->from_batch + (f->silu ? 4 + 2 * act_flops(S2S_ACT_SILU) : 0)),
        mat(&f->x, rows, cols) + mat(&a->dy, rows, cols) + 4 * cols * F32_BYTES + dvecs +
            added(a->accumulate_dx, dx),
        dx + dvecs};
}

/* ---- attention ---- */

static struct s2s_cost cost_rope_table(const struct s2s_k_rope_table *a, uploads_t *up)
{
    const double n = (double)a->n, dim = (double)a->dim;
    return (struct s2s_cost){1.5 * n * dim, n * I32_BYTES + dim / 2 * F64_BYTES,
                             n * dim * F32_BYTES};
}

static struct s2s_cost cost_rope(const struct s2s_k_rope *a, uploads_t *up)
{
    const double n = (double)a->n, heads = (double)a->n_heads, turned = (double)a->rotary_dim;
    const double cols = heads * (double)a->dim, y = mat(&a->y, n, cols);
    return (struct s2s_cost){n * heads * turned * 3,
                             mat(&a->x, n, cols) + n * turned * F32_BYTES + added(a->accumulate, y),
                             y};
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* Pairs of a span whose query i sees the first i + shift + 1 of its keys. */
static double prefix_pairs(const struct s2s_span *span, double shift)
{
    const double nq = (double)span->nq, nk = (double)span->nk, first = shift + 1;
    const double sees = clamp(-first, 0, nq), all = clamp(nk - first, sees, nq);
    return (all - sees) * (first + (sees + all - 1) / 2) + (nq - all) * nk;
}

/* Of all spans. Where they are not known, each query sees half of the most keys there can be. */
static double seen_pairs(const struct s2s_k_attention *a, uploads_t *up)
{
    const struct s2s_span *spans =
        s2s_uploads_find(up, a->spans, (size_t)a->n_spans * sizeof *spans);
    double pairs = 0;
    if (!spans)
        return (double)a->n_q * (double)a->max_k / 2;
    for (int64_t i = 0; i < a->n_spans; i++) {
        const struct s2s_span *span = spans + i;
        if (span->shift == S2S_SPAN_ALL)
            pairs += (double)span->nq * (double)span->nk;
        else
            pairs += prefix_pairs(span, span->shift) -
                     (a->window > 0 ? prefix_pairs(span, (double)(span->shift - a->window)) : 0);
    }
    return pairs;
}

static struct s2s_cost cost_attention(const struct s2s_k_attention *a, uploads_t *up)
{
    const double heads = (double)a->n_heads, dim = (double)a->dim, q = heads * dim,
                 kv = (double)a->n_kv_heads * dim, n_q = (double)a->n_q, n_k = (double)a->n_k;
    return (struct s2s_cost){heads * seen_pairs(a, up) * (4 * dim + 4),
                             mat(&a->q, n_q, q) + mat(&a->k, n_k, kv) + mat(&a->v, n_k, kv),
                             mat(&a->o, n_q, q) + vec(a->lse, n_q * heads)};
}

static struct s2s_cost cost_attention_backward(const struct s2s_k_attention_backward *a,
                                               uploads_t *up)
{
    const struct s2s_k_attention *f = &a->forward;
    const double heads = (double)f->n_heads, dim = (double)f->dim, q = heads * dim,
                 kv = (double)f->n_kv_heads * dim, n_q = (double)f->n_q, n_k = (double)f->n_k;
    const double dq = mat(&a->dq, n_q, q), dk = mat(&a->dk, n_k, kv), dv = mat(&a->dv, n_k, kv);
    return (struct s2s_cost){heads * seen_pairs(f, up) * (10 * dim + 6),
                             mat(&f->q, n_q, q) + mat(&f->k, n_k, kv) + mat(&f->v, n_k, kv) +
                                 mat(&f->o, n_q, q) + mat(&a->d_o, n_q, q) +
                                 vec(f->lse, n_q * heads) + added(a->accumulate_dq, dq) +
                                 added(a->accumulate_dk, dk) + added(a->accumulate_dv, dv),
                             dq + dk + dv};
}

static struct s2s_cost cost_attention_merge(const struct s2s_k_attention_merge *a, uploads_t *up)
{
    const double heads = (double)a->n_heads, rows = (double)a->n_q,
                 o = rows * heads * (double)a->dim;
    const double outs = mat(&a->o, rows, heads * (double)a->dim) + vec(a->lse, rows * heads);
    return (struct s2s_cost){
        3 * o + 6 * rows * heads,
        outs + mat(&a->part, rows, heads * (double)a->dim) + vec(a->part_lse, rows * heads), outs};
}

static struct s2s_cost cost_relpos_table(const struct s2s_k_relpos_table *a, uploads_t *up)
{
    const double n = (double)(2 * a->n - 1) * (double)a->dim;
    return (struct s2s_cost){1.5 * n, 0, n * F32_BYTES};
}

/* What relative attention sees: all positions, and the pairs of them inside of clips. */
struct seen {
    double n, pairs;
};

static struct seen seen_inside(const struct s2s_k_relattention *a, uploads_t *up)
{
    const int32_t *cu = s2s_uploads_find(up, a->cu, (size_t)(a->n_seqs + 1) * sizeof *cu);
    struct seen seen = {0};
    for (int64_t s = 0; s < a->n_seqs; s++) {
        const int64_t n = cu ? cu[s + 1] - cu[s] : a->max_seqlen;
        seen.n += (double)n;
        if (a->reach.chunk == 0)
            seen.pairs += (double)n * (double)n;
        for (int64_t i = 0; a->reach.chunk > 0 && i < n; i++)
            seen.pairs += (double)(s2s_reach_end(&a->reach, i, n) - s2s_reach_begin(&a->reach, i));
    }
    return seen;
}

/* Three products a pair: with the key, with the position, with the value. */
static struct s2s_cost cost_relattention(const struct s2s_k_relattention *a, uploads_t *up)
{
    const struct seen seen = seen_inside(a, up);
    const double heads = (double)a->n_heads, cols = heads * (double)a->dim, n = seen.n;
    return (struct s2s_cost){heads * seen.pairs * (6 * (double)a->dim + 6),
                             mat(&a->q, n, cols) + mat(&a->k, n, cols) + mat(&a->value, n, cols) +
                                 mat(&a->p, (double)(2 * a->max_seqlen - 1), cols) +
                                 2 * cols * F32_BYTES,
                             mat(&a->o, n, cols) + vec(a->lse, n * heads)};
}

/* The two products of the scores again, and six for dP, dvalue, dq (twice), dk and dp. */
static struct s2s_cost cost_relattention_backward(const struct s2s_k_relattention_backward *a,
                                                  uploads_t *up)
{
    const struct s2s_k_relattention *f = &a->forward;
    const struct seen seen = seen_inside(f, up);
    const double heads = (double)f->n_heads, cols = heads * (double)f->dim, n = seen.n;
    const double n_pos = (double)(2 * f->max_seqlen - 1);
    const double dq = mat(&a->dq, n, cols), dk = mat(&a->dk, n, cols),
                 dvalue = mat(&a->dvalue, n, cols), dp = mat(&a->dp, n_pos, cols),
                 dvecs = vec(a->du, cols) + vec(a->dv, cols);
    return (struct s2s_cost){heads * seen.pairs * (16 * (double)f->dim + 8),
                             mat(&f->q, n, cols) + mat(&f->k, n, cols) + mat(&f->value, n, cols) +
                                 mat(&f->p, n_pos, cols) + mat(&a->d_o, n, cols) +
                                 vec(f->lse, n * heads) + 2 * cols * F32_BYTES + dvecs +
                                 added(a->accumulate_dq, dq) + added(a->accumulate_dk, dk) +
                                 added(a->accumulate_dvalue, dvalue) + added(a->accumulate_dp, dp),
                             dq + dk + dvalue + dp + dvecs};
}

/* ---- convolution ---- */

enum { CONV2D_TAPS = 9 };

static double conv2d_outputs(const struct s2s_k_conv2d *a)
{
    return (double)a->n_out * (double)s2s_conv2d_half(a->in_width, a->causal) * (double)a->channels;
}

static double conv2d_inputs(const struct s2s_k_conv2d *a)
{
    return (double)a->n_in * (double)a->in_width * (double)(a->one_input ? 1 : a->channels);
}

static struct s2s_cost cost_conv2d(const struct s2s_k_conv2d *a, uploads_t *up)
{
    const double n = conv2d_outputs(a), channels = (double)a->channels;
    return (struct s2s_cost){n * (2 * CONV2D_TAPS + a->relu),
                             mat(&a->x, 1, conv2d_inputs(a)) + vec(a->w, CONV2D_TAPS * channels) +
                                 vec(a->bias, channels),
                             mat(&a->y, 1, n)};
}

static struct s2s_cost cost_conv2d_backward(const struct s2s_k_conv2d_backward *a, uploads_t *up)
{
    const struct s2s_k_conv2d *f = &a->forward;
    const double n = conv2d_outputs(f), channels = (double)f->channels;
    const double dx = mat(&a->dx, 1, conv2d_inputs(f));
    const double dw = vec(a->dw, CONV2D_TAPS * channels) + vec(a->dbias, channels);
    return (struct s2s_cost){n * (2 * CONV2D_TAPS * ((a->dx.data != NULL) + (a->dw != NULL)) +
                                  (a->dbias != NULL) + f->relu),
                             mat(&f->x, 1, conv2d_inputs(f)) + vec(f->w, CONV2D_TAPS * channels) +
                                 mat(&a->dy, 1, n) + (f->relu ? mat(&f->y, 1, n) : 0) + dw +
                                 added(a->accumulate_dx, dx),
                             dx + dw};
}

static struct s2s_cost cost_dwconv(const struct s2s_k_dwconv *a, uploads_t *up)
{
    const double n = (double)a->n, channels = (double)a->channels, width = (double)a->width;
    return (struct s2s_cost){2 * n * channels * width,
                             mat(&a->x, n, channels) + vec(a->w, channels * width) +
                                 vec(a->bias, channels),
                             mat(&a->y, n, channels)};
}

static struct s2s_cost cost_dwconv_backward(const struct s2s_k_dwconv_backward *a, uploads_t *up)
{
    const struct s2s_k_dwconv *f = &a->forward;
    const double n = (double)f->n, channels = (double)f->channels, width = (double)f->width;
    const double dx = mat(&a->dx, n, channels);
    const double dw = vec(a->dw, channels * width) + vec(a->dbias, channels);
    return (struct s2s_cost){2 * n * channels * width * ((a->dx.data != NULL) + (a->dw != NULL)),
                             mat(&f->x, n, channels) + mat(&a->dy, n, channels) +
                                 vec(f->w, channels * width) + dw + added(a->accumulate_dx, dx),
                             dx + dw};
}

/* ---- state-space models ---- */

static struct s2s_cost cost_conv1d(const struct s2s_k_conv1d *a, uploads_t *up)
{
    const double n = (double)a->n, channels = (double)a->channels, width = (double)a->width;
    const double ends = (double)a->n_seqs * (width - 1);
    return (struct s2s_cost){n * channels * (2 * width + 4 * a->silu),
                             mat(&a->x, n, channels) + mat(&a->initial, ends, channels) +
                                 vec(a->w, channels * width) + vec(a->bias, channels),
                             mat(&a->y, n, channels) + mat(&a->final, ends, channels)};
}

static struct s2s_cost cost_conv1d_backward(const struct s2s_k_conv1d_backward *a, uploads_t *up)
{
    const struct s2s_k_conv1d *f = &a->forward;
    const double n = (double)f->n, channels = (double)f->channels, width = (double)f->width;
    const double ends = (double)f->n_seqs * (width - 1), dx = mat(&a->dx, n, channels);
    const double dinitial = mat(&a->dinitial, ends, channels);
    const double dw = vec(a->dw, channels * width) + vec(a->dbias, channels);
    const double each = 2 * width * ((a->dx.data != NULL) + (a->dw != NULL)) + (a->dbias != NULL) +
                        f->silu * (2 * width + 7);
    return (struct s2s_cost){
        n * channels * each,
        mat(&f->x, n, channels) + mat(&f->initial, ends, channels) + mat(&a->dy, n, channels) +
            mat(&a->dfinal, ends, channels) + vec(f->w, channels * width) + vec(f->bias, channels) +
            dw + added(a->accumulate_dx, dx) + added(a->accumulate_dinitial, dinitial),
        dx + dinitial + dw};
}

/* Bytes of the operands of the scan. */
static double ssd_inputs(const struct s2s_k_ssd *a)
{
    const double n = (double)a->n, heads = (double)a->n_heads;
    const double width = (double)(a->n_groups * a->state);
    return mat(&a->x, n, heads * (double)a->dim) + mat(&a->dt, n, heads) + mat(&a->b, n, width) +
           mat(&a->c, n, width) + vec(a->a_log, heads) + vec(a->dt_bias, heads) +
           vec(a->skip, heads);
}

static double ssd_states(const struct s2s_k_ssd *a, const void *states)
{
    return vec(states, (double)(a->n_seqs * a->n_heads * a->dim * a->state));
}

/* By the recurrence, whatever the chunks are: of each element of a state two products and a sum,
 * and a product and a sum for y. */
static struct s2s_cost cost_ssd(const struct s2s_k_ssd *a, uploads_t *up)
{
    const double rows = (double)(a->n * a->n_heads), dim = (double)a->dim;
    return (struct s2s_cost){rows * (5 * dim * (double)a->state + 3 * dim + 5),
                             ssd_inputs(a) + ssd_states(a, a->initial),
                             mat(&a->y, (double)a->n, (double)a->n_heads * dim) +
                                 ssd_states(a, a->final)};
}

/* The states again, and five products and sums and a decay of each element. */
static struct s2s_cost cost_ssd_backward(const struct s2s_k_ssd_backward *a, uploads_t *up)
{
    const struct s2s_k_ssd *f = &a->forward;
    const double n = (double)f->n, heads = (double)f->n_heads, dim = (double)f->dim;
    const double width = (double)(f->n_groups * f->state);
    const double dx = mat(&a->dx, n, heads * dim), ddt = mat(&a->ddt, n, heads);
    const double db = mat(&a->db, n, width), dc = mat(&a->dc, n, width);
    const double dinitial = ssd_states(f, a->dinitial);
    const double vectors = vec(a->da_log, heads) + vec(a->ddt_bias, heads) + vec(a->dskip, heads);
    return (struct s2s_cost){n * heads * (14 * dim * (double)f->state + 8 * dim + 10),
                             ssd_inputs(f) + ssd_states(f, f->initial) +
                                 mat(&a->dy, n, heads * dim) + ssd_states(f, a->dfinal) +
                                 added(a->accumulate_dx, dx) + added(a->accumulate_ddt, ddt) +
                                 added(a->accumulate_db, db) + added(a->accumulate_dc, dc) +
                                 added(a->accumulate_dinitial, dinitial) + vectors,
                             dx + ddt + db + dc + dinitial + vectors};
}

static struct s2s_cost cost_gatednorm(const struct s2s_k_gatednorm *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols, groups = (double)a->n_groups;
    return (struct s2s_cost){rows * (9 * cols + 3 * groups),
                             mat(&a->x, rows, cols) + mat(&a->z, rows, cols) + vec(a->gain, cols),
                             mat(&a->y, rows, cols) + vec(a->rstd, rows * groups)};
}

static struct s2s_cost cost_gatednorm_backward(const struct s2s_k_gatednorm_backward *a,
                                               uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols, groups = (double)a->n_groups;
    const double dx = mat(&a->dx, rows, cols), dz = mat(&a->dz, rows, cols);
    const double dgain = vec(a->dgain, cols);
    return (struct s2s_cost){rows * (24 * cols + 4 * groups),
                             mat(&a->x, rows, cols) + mat(&a->z, rows, cols) +
                                 mat(&a->dy, rows, cols) + vec(a->gain, cols) +
                                 vec(a->rstd, rows * groups) + dgain + added(a->accumulate_dx, dx) +
                                 added(a->accumulate_dz, dz),
                             dx + dz + dgain};
}

/* ---- losses, optimizer ---- */

/* Of each logit: the largest one, a difference, exp, and the sum. */
static struct s2s_cost cost_xent_stats(const struct s2s_k_xent_stats *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols, z = mat(&a->logits, rows, cols);
    return (struct s2s_cost){4 * rows * cols, z + rows * I32_BYTES,
                             added(a->keep, z) + rows * (double)sizeof(struct s2s_xent)};
}

static struct s2s_cost cost_xent_finish(const struct s2s_k_xent_finish *a, uploads_t *up)
{
    const double rows = (double)a->rows, parts = rows * (double)a->n_parts,
                 row_bytes = (double)sizeof(struct s2s_xent);
    return (struct s2s_cost){
        4 * parts + 3 * rows, parts * row_bytes + rows * I32_BYTES + vec(a->weights, rows),
        rows * row_bytes + vec(a->loss, rows) + vec(a->logprob, rows) + vec(a->hits, rows)};
}

static struct s2s_cost cost_xent_gradient(const struct s2s_k_xent_gradient *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols;
    const double stats = rows * (double)sizeof(struct s2s_xent) * (1 + (a->part != a->total));
    return (struct s2s_cost){2 * rows * cols,
                             mat(&a->logits, rows, cols) + stats + rows * I32_BYTES +
                                 vec(a->weights, rows),
                             mat(&a->dlogits, rows, (double)a->width)};
}

static struct s2s_cost cost_sqdist(const struct s2s_k_sqdist *a, uploads_t *up)
{
    const double rows = (double)a->rows, cols = (double)a->cols, dx = mat(&a->dx, rows, cols);
    return (struct s2s_cost){rows * cols * (3 + 2 * (a->dx.data != NULL)),
                             mat(&a->x, rows, cols) + mat(&a->target, rows, cols) +
                                 added(a->accumulate, dx),
                             dx + vec(a->loss, rows)};
}

static struct s2s_cost cost_adamw(const struct s2s_k_adamw *a, uploads_t *up)
{
    const double n = (double)a->n, ranges = (double)a->n_ranges * sizeof *a->ranges;
    return (struct s2s_cost){15 * n, 4 * n * F32_BYTES + ranges,
                             3 * n * F32_BYTES + mat(&a->working, 1, n)};
}

static struct s2s_cost cost_clip_factor(const struct s2s_k_clip_factor *a, uploads_t *up)
{
    const double n = (double)a->n;
    return (struct s2s_cost){n + 5, n * F64_BYTES, F64_BYTES};
}

/* ---- all of them ---- */

#define X(name, suffix, kind, mats) \
    struct s2s_cost s2s_cost_##name(const struct s2s_k_##suffix *args, uploads_t *up) \
    { \
        return cost_##name(args, up); \
    }
S2S_KERNELS(X)
#undef X
