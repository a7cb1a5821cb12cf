/*
 * Attention of packed sequences, per (head, block of queries of a span):
 *   S = scale Q K^T,  P = exp(S - lse),  O = P V
 * and backward, with P computed again from the saved log-sum-exp (Dao et al. 2022):
 *   dV = P^T dO,  dP = dO V^T,  dS = P (dP - rowsum(P dP)),  dQ = scale dS K,  dK = scale dS^T Q
 *
 * Each block reads only the keys that it may see, so a causal sequence costs half a square, and
 * padding between sequences nothing. The products are the library's; a block of scores stays in the
 * second-level cache.
 *
 * BF16 is multiplied as it is, where the machine can (attention_bf16.h): P and dS are rounded for
 * it, all sums are fp32. Elsewhere operands are widened.
 */
#include <omp.h>

#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/draw.h"

enum { Q_BLOCK = 64, K_BLOCK = 256, MIN_BF16_ROWS = 16 };

struct block {
    int64_t q0, n_q; /* rows of q */
    int64_t k0, n_k; /* rows of k and v that the block sees */
    int64_t shift;   /* query i of the block sees keys up to i + shift, within the n_k */
    bool all;        /* every query sees every key, near or far */
    bool is_part;    /* other blocks hold other keys of the same queries */
};

/* Block `idx` of a span; false when the span has fewer. */
static bool find_block(struct block *blk, const struct s2s_k_attention *args,
                       const struct s2s_span *span, int64_t idx)
{
    const int64_t at = idx * Q_BLOCK;
    if (at >= span->nq)
        return false;
    *blk = (struct block){.q0 = span->q0 + at,
                          .n_q = span->nq - at < Q_BLOCK ? span->nq - at : Q_BLOCK,
                          .k0 = span->k0,
                          .n_k = span->nk,
                          .shift = at + span->shift,
                          .all = span->shift == S2S_SPAN_ALL};
    if (blk->all)
        return true;
    if (blk->n_k > blk->shift + blk->n_q)
        blk->n_k = blk->shift + blk->n_q;
    const int64_t unseen = args->window ? blk->shift + 1 - args->window : 0;
    if (unseen > 0) {
        blk->k0 += unseen;
        blk->n_k -= unseen;
        blk->shift -= unseen;
    }
    return true;
}

/* The part of the block whose keys are rows [begin, begin + K_BLOCK) of k; false when none is. */
static bool take_keys(struct block *blk, int64_t begin)
{
    const int64_t end = begin + K_BLOCK;
    const int64_t lo = blk->k0 > begin ? blk->k0 : begin;
    const int64_t hi = blk->k0 + blk->n_k < end ? blk->k0 + blk->n_k : end;
    if (lo >= hi)
        return false;
    blk->shift -= lo - blk->k0;
    blk->k0 = lo;
    blk->n_k = hi - lo;
    blk->is_part = true;
    return true;
}

/* The keys [*lo, *hi) that row i of the block sees; maybe none. */
static void visible(const struct s2s_k_attention *args, const struct block *blk, int64_t i,
                    int64_t *lo, int64_t *hi)
{
    const int64_t end = blk->shift + i + 1;
    int64_t n = end < blk->n_k ? end : blk->n_k;
    *hi = n > 0 ? n : 0;
    int64_t begin = args->window && !blk->all ? end - args->window : 0;
    *lo = begin < 0 ? 0 : begin < *hi ? begin : *hi;
}

/* Whether products are those of BF16: of whole vectors, and of more queries than in generation. */
static bool in_bf16(const struct s2s_k_attention *args)
{
    return cpu_is_bf16(&args->q) && args->dim % 16 == 0 && args->max_q >= MIN_BF16_ROWS &&
           cpu_has_bgemm();
}

static int64_t score_stride(const struct s2s_k_attention *args)
{
    return cpu_ceil_div(args->max_k, 16) * 16;
}

static int64_t score_floats(const struct s2s_k_attention *args)
{
    return Q_BLOCK * score_stride(args);
}

static float *head_of(const struct s2s_mat *mat, int64_t row, int64_t head, int64_t dim)
{
    return cpu_row(mat, row) + head * dim;
}

/* Room for operands of BF16, a thread's: widened rows of queries, of what belongs to them, of keys
 * and of values; or struct halves. */
static int64_t room_floats(const struct s2s_k_attention *args)
{
    if (in_bf16(args))
        return score_floats(args) + Q_BLOCK * args->dim;
    return cpu_is_bf16(&args->q) ? 2 * (Q_BLOCK + args->max_k) * args->dim : 0;
}

/* What products in BF16 take: P, dS; and a sum. */
struct halves {
    uint16_t *p, *dp;
    float *sum;
};

static struct halves halves_of(const struct s2s_k_attention *args, float *room)
{
    uint16_t *p = (uint16_t *)(room + Q_BLOCK * args->dim);
    return (struct halves){.sum = room, .p = p, .dp = p + score_floats(args)};
}

/* Rows of scores, each times a factor, rounded. */
static void round_scores(uint16_t *to, const float *from, int64_t stride, int64_t n_q, int64_t n_k,
                         float factor)
{
    for (int64_t i = 0; i < n_q; i++) {
#pragma omp simd
        for (int64_t j = 0; j < n_k; j++)
            cpu_store(to + i * stride, j, factor * from[i * stride + j], true);
    }
}

static void scale_scores(float *scores, int64_t stride, int64_t n_q, int64_t n_k, float scale)
{
    for (int64_t i = 0; i < n_q; i++) {
        float *row = scores + i * stride;
#pragma omp simd
        for (int64_t j = 0; j < n_k; j++)
            row[j] *= scale;
    }
}

/* A part of a matrix as an operand. */
struct operand {
    const float *data;
    int64_t ld;
};

static struct operand operand(const struct s2s_mat *mat, int64_t row, int64_t head, int64_t n,
                              int64_t dim, float *room)
{
    struct operand op;
    op.data = cpu_widen(mat, row, head * dim, n, dim, room, &op.ld);
    return op;
}

/* ---- lists of work ---- */

/* Blocks of queries: idx is the block of the span. Blocks of keys: `of` is a group, idx the first
 * row of k. */
struct tile {
    int32_t of, idx;
};

/* Queries of spans do not overlap, keys of groups neither: so many tiles at most. */
static int64_t max_query_tiles(const struct s2s_k_attention *args)
{
    return args->n_q / Q_BLOCK + args->n_spans;
}

static int64_t max_key_tiles(const struct s2s_k_attention *args)
{
    return args->n_k / K_BLOCK + args->n_groups;
}

static int64_t n_sizes(const struct s2s_k_attention *args)
{
    return args->max_k / Q_BLOCK + 2;
}

static size_t tile_bytes(const struct s2s_k_attention *args, int64_t n_tiles)
{
    return (size_t)n_tiles * sizeof(struct tile) + (size_t)n_sizes(args) * sizeof(int32_t);
}

/* All blocks of queries, those that see most keys first; counts [n_sizes] is scratch. */
static int64_t list_queries(const struct s2s_k_attention *args, struct tile *tiles, int32_t *counts)
{
    const int64_t sizes = n_sizes(args);
    int32_t n = 0;
    struct block blk;
    memset(counts, 0, (size_t)sizes * sizeof *counts);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t s = 0; s < args->n_spans; s++)
            for (int64_t b = 0; find_block(&blk, args, &args->spans[s], b); b++) {
                int64_t size = blk.n_k > 0 ? blk.n_k / Q_BLOCK : 0;
                if (pass == 0)
                    counts[size]++;
                else
                    tiles[counts[size]++] = (struct tile){(int32_t)s, (int32_t)b};
            }
        for (int64_t i = sizes; pass == 0 && i-- > 0;) {
            int32_t of_size = counts[i];
            counts[i] = n;
            n += of_size;
        }
    }
    return n;
}

/* The rows of k that a group sees. */
static void group_keys(const struct s2s_k_attention *args, int64_t g, int64_t *begin, int64_t *end)
{
    *begin = INT64_MAX;
    *end = 0;
    for (int32_t s = args->groups[g]; s < args->groups[g + 1]; s++) {
        const struct s2s_span *span = &args->spans[s];
        if (span->nk == 0)
            continue;
        *begin = span->k0 < *begin ? span->k0 : *begin;
        *end = span->k0 + span->nk > *end ? span->k0 + span->nk : *end;
    }
}

static int64_t list_keys(const struct s2s_k_attention *args, struct tile *tiles)
{
    int64_t n = 0;
    for (int64_t g = 0; g < args->n_groups; g++) {
        int64_t begin, end;
        group_keys(args, g, &begin, &end);
        for (; begin < end; begin += K_BLOCK)
            tiles[n++] = (struct tile){(int32_t)g, (int32_t)begin};
    }
    return n;
}

/* Does every query stand in a span? */
static bool covers_queries(const struct s2s_k_attention *args)
{
    int64_t n = 0;
    for (int64_t s = 0; s < args->n_spans; s++)
        n += args->spans[s].nq;
    return n == args->n_q;
}

static bool worth_threads(const struct s2s_k_attention *args)
{
    return args->n_spans * args->n_heads * args->max_q * args->max_k > 4096;
}

/* ---- forward ---- */

size_t cpu_attention_workspace(const struct s2s_queue *queue, const struct s2s_k_attention *args)
{
    return (size_t)(queue->lanes * (score_floats(args) + room_floats(args))) * sizeof(float) +
           tile_bytes(args, max_query_tiles(args));
}

/* z = exp(z - max) over the visible of `cols` scores, zeros around; gives the sum and the max */
static float softmax_row(float *z, int64_t lo, int64_t hi, int64_t cols, float *max_out)
{
    float max = -INFINITY, sum = 0, *seen = z + lo;
    const int64_t n = hi - lo;
#pragma omp simd reduction(max : max)
    for (int64_t j = 0; j < n; j++)
        max = seen[j] > max ? seen[j] : max;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        float e = cpu_exp(seen[j] - max);
        seen[j] = e;
        sum += e;
    }
    memset(z, 0, (size_t)lo * sizeof *z);
    memset(z + hi, 0, (size_t)(cols - hi) * sizeof *z);
    *max_out = max;
    return sum;
}

/* Rows of a product, each by its factor; 0 where there was no product. */
static void scale_rows(float *o, int64_t ld, const float *factors, int64_t n_q, int64_t dim,
                       bool any)
{
    for (int64_t i = 0; i < n_q; i++) {
        float *row = o + i * ld;
#pragma omp simd
        for (int64_t d = 0; d < dim; d++)
            row[d] = any ? row[d] * factors[i] : 0;
    }
}

/* Leaves out of what query i of the block sees, row [n] from key lo of it on. */
static void drop_row(const struct s2s_k_attention *args, const struct block *blk, int64_t head,
                     int64_t i, int64_t lo, int64_t n, float *row)
{
    if (!args->draw.rows)
        return;
    const struct cpu_draw draw =
        cpu_draw(&args->draw, blk->q0 + i, (uint32_t)(1 + args->first_head + head));
    cpu_drop_scores(&draw, args->k_at + blk->k0 + lo, 0, n, row);
}

/* P of a block, not divided by the sums, of which inverse[] gets the inverses. */
static void soften(const struct s2s_k_attention *args, const struct block *blk, int64_t head,
                   float *scores, float *inverse)
{
    const int64_t stride = score_stride(args), n_k = blk->n_k > 0 ? blk->n_k : 0;
    for (int64_t i = 0; i < blk->n_q; i++) {
        int64_t lo, hi;
        visible(args, blk, i, &lo, &hi);
        float max, sum = softmax_row(scores + i * stride, lo, hi, n_k, &max);
        inverse[i] = sum > 0 ? 1.0f / sum : 0;
        drop_row(args, blk, head, i, lo, hi - lo, scores + i * stride + lo);
        if (args->lse)
            args->lse[(blk->q0 + i) * args->n_heads + head] = sum > 0 ? max + logf(sum) : -INFINITY;
    }
}

static void forward_in_bf16(const struct s2s_k_attention *args, const struct block *blk,
                            int64_t head, float *scores)
{
    const int64_t dim = args->dim, kv = head / (args->n_heads / args->n_kv_heads);
    const int64_t stride = score_stride(args), n_k = blk->n_k > 0 ? blk->n_k : 0;
    const struct halves h = halves_of(args, scores + score_floats(args));
    const struct cpu_att_part q = {&args->q, blk->q0, head * dim, blk->n_q, dim};
    const struct cpu_att_part k = {&args->k, blk->k0, kv * dim, n_k, dim};
    const struct cpu_att_part v = {&args->v, blk->k0, kv * dim, n_k, dim};
    float inverse[Q_BLOCK];
    if (n_k > 0) {
        cpu_att_times_keys(scores, stride, &q, &k);
        scale_scores(scores, stride, blk->n_q, n_k, args->scale);
    }
    soften(args, blk, head, scores, inverse);
    if (n_k > 0) {
        round_scores(h.p, scores, stride, blk->n_q, n_k, 1);
        cpu_att_times_values(h.sum, blk->n_q, h.p, stride, &v);
    }
    scale_rows(h.sum, dim, inverse, blk->n_q, dim, n_k > 0);
    cpu_narrow(&args->o, blk->q0, head * dim, blk->n_q, dim, h.sum, dim, false);
}

static void forward_block(const struct s2s_k_attention *args, const struct block *blk, int64_t head,
                          float *scores)
{
    if (in_bf16(args)) {
        forward_in_bf16(args, blk, head, scores);
        return;
    }
    const int64_t dim = args->dim, kv = head / (args->n_heads / args->n_kv_heads);
    const int64_t stride = score_stride(args), n_k = blk->n_k > 0 ? blk->n_k : 0;
    const bool bf16 = cpu_is_bf16(&args->q);
    float *room = scores + score_floats(args), *keys = room + Q_BLOCK * dim, inverse[Q_BLOCK];
    float *o = bf16 ? room : head_of(&args->o, blk->q0, head, dim);
    const int64_t ldo = bf16 ? dim : args->o.stride;
    if (n_k > 0) {
        struct operand q = operand(&args->q, blk->q0, head, blk->n_q, dim, room);
        struct operand k = operand(&args->k, blk->k0, kv, n_k, dim, keys);
        cpu_sgemm(false, true, blk->n_q, n_k, dim, args->scale, q.data, q.ld, k.data, k.ld, 0,
                  scores, stride);
    }
    soften(args, blk, head, scores, inverse);
    if (n_k > 0) {
        struct operand v = operand(&args->v, blk->k0, kv, n_k, dim, keys);
        cpu_sgemm(false, false, blk->n_q, dim, n_k, 1, scores, stride, v.data, v.ld, 0, o, ldo);
    }
    scale_rows(o, ldo, inverse, blk->n_q, dim, n_k > 0);
    if (bf16)
        cpu_narrow(&args->o, blk->q0, head * dim, blk->n_q, dim, o, ldo, false);
}

void cpu_attention(struct s2s_queue *queue, const struct s2s_k_attention *args)
{
    float *scores = args->workspace;
    const int64_t each = score_floats(args) + room_floats(args);
    struct tile *tiles = (struct tile *)(scores + queue->lanes * each);
    const int64_t n_tiles = list_queries(args, tiles, (int32_t *)(tiles + max_query_tiles(args)));
    if (!covers_queries(args)) {
        cpu_zero_part(&args->o, 0, 0, args->n_q, args->n_heads * args->dim);
        for (int64_t i = 0; args->lse && i < args->n_q * args->n_heads; i++)
            args->lse[i] = -INFINITY;
    }
#pragma omp parallel num_threads(queue->lanes) if (worth_threads(args))
    {
        float *own = scores + omp_get_thread_num() * each;
        omp_set_num_threads(1); /* see gemm.c */
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t t = 0; t < n_tiles; t++)
            for (int64_t head = 0; head < args->n_heads; head++) {
                struct block blk;
                if (find_block(&blk, args, &args->spans[tiles[t].of], tiles[t].idx))
                    forward_block(args, &blk, head, own);
            }
    }
}

/* ---- backward ---- */

/* A thread's: scores, their gradients, operands. */
static int64_t backward_floats(const struct s2s_k_attention *f)
{
    return 2 * score_floats(f) + room_floats(f);
}

/* dk and dv of BF16 are summed here. */
static int64_t sum_floats(const struct s2s_k_attention *f)
{
    return cpu_is_bf16(&f->q) ? f->n_k * f->n_kv_heads * f->dim : 0;
}

size_t cpu_attention_backward_workspace(const struct s2s_queue *queue,
                                        const struct s2s_k_attention_backward *args)
{
    const struct s2s_k_attention *f = &args->forward;
    return (size_t)(queue->lanes * backward_floats(f) + 2 * sum_floats(f)) * sizeof(float) +
           tile_bytes(f, max_query_tiles(f) + max_key_tiles(f));
}

/* rowsum(dO O) of one head */
CPU_INLINE float product_sum(const struct s2s_k_attention_backward *args, int64_t row, int64_t head,
                             bool bf16)
{
    const struct s2s_k_attention *f = &args->forward;
    const void *o = cpu_from(cpu_any_row(&f->o, row), head * f->dim, bf16);
    const void *d_o = cpu_from(cpu_any_row(&args->d_o, row), head * f->dim, bf16);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < f->dim; d++)
        sum += cpu_load(d_o, d, bf16) * cpu_load(o, d, bf16);
    return sum;
}

/*
 * Row i of a block: p = exp(scores - lse) of its n keys, and the sum of p and the mean of dp under
 * it. Where all keys of the row are here both come from these very numbers, so that roundings of
 * lse and dp do not stay in dS; where they are not, they are 1 and rowsum(dO O).
 */
static void row_sums(const struct s2s_k_attention_backward *args, const struct block *blk,
                     int64_t head, int64_t i, int64_t n, float *p, const float *dp, float *sum_out,
                     float *delta_out)
{
    const struct s2s_k_attention *f = &args->forward;
    const float lse = f->lse[(blk->q0 + i) * f->n_heads + head];
    float sum = 0, delta = 0;
#pragma omp simd reduction(+ : sum, delta)
    for (int64_t j = 0; j < n; j++) {
        p[j] = cpu_exp(p[j] - lse);
        sum += p[j];
        delta += p[j] * dp[j];
    }
    *sum_out = sum;
    *delta_out = sum > 0 ? delta / sum : 0;
    if (!blk->is_part && !args->partial)
        return;
    *sum_out = 1;
    *delta_out = cpu_is_bf16(&f->o) ? product_sum(args, blk->q0 + i, head, true)
                                    : product_sum(args, blk->q0 + i, head, false);
}

/* p: scores, then P (with what is left out); dp: its gradient, then that of the scores. Zeros where
 * nothing is visible. */
static void backward_scores(const struct s2s_k_attention_backward *args, const struct block *blk,
                            int64_t head, float *p, float *dp)
{
    const int64_t stride = score_stride(&args->forward);
    for (int64_t i = 0; i < blk->n_q; i++) {
        int64_t lo, hi;
        visible(&args->forward, blk, i, &lo, &hi);
        const int64_t n = hi - lo;
        float *pi = p + i * stride + lo, *dpi = dp + i * stride + lo, sum, delta;
        drop_row(&args->forward, blk, head, i, lo, n, dpi);
        row_sums(args, blk, head, i, n, pi, dpi, &sum, &delta);
        const float inverse = sum > 0 ? 1.0f / sum : 0;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            float e = pi[j] * inverse;
            pi[j] = e;
            dpi[j] = e * (dpi[j] - delta);
        }
        drop_row(&args->forward, blk, head, i, lo, n, pi);
        memset(p + i * stride, 0, (size_t)lo * sizeof *p);
        memset(dp + i * stride, 0, (size_t)lo * sizeof *dp);
        memset(pi + n, 0, (size_t)(blk->n_k - hi) * sizeof *pi);
        memset(dpi + n, 0, (size_t)(blk->n_k - hi) * sizeof *dpi);
    }
}

/* dq of one block: a product of dp and k; room of BF16 */
static void backward_queries(const struct s2s_k_attention_backward *args, const struct block *blk,
                             int64_t head, const float *dp, struct operand k, float *room)
{
    const struct s2s_k_attention *f = &args->forward;
    const int64_t dim = f->dim, stride = score_stride(f);
    if (!cpu_is_bf16(&args->dq)) {
        cpu_sgemm(false, false, blk->n_q, dim, blk->n_k, f->scale, dp, stride, k.data, k.ld,
                  args->accumulate_dq ? 1 : 0, head_of(&args->dq, blk->q0, head, dim),
                  args->dq.stride);
        return;
    }
    cpu_sgemm(false, false, blk->n_q, dim, blk->n_k, f->scale, dp, stride, k.data, k.ld, 0, room,
              dim);
    cpu_narrow(&args->dq, blk->q0, head * dim, blk->n_q, dim, room, dim, args->accumulate_dq);
}

static void backward_in_bf16(const struct s2s_k_attention_backward *args, const struct block *blk,
                             int64_t head, float *p, float *dp)
{
    const struct s2s_k_attention *f = &args->forward;
    const int64_t dim = f->dim, kv = head / (f->n_heads / f->n_kv_heads), stride = score_stride(f);
    const struct halves h = halves_of(f, dp + score_floats(f));
    const struct cpu_att_part q = {&f->q, blk->q0, head * dim, blk->n_q, dim};
    const struct cpu_att_part d_o = {&args->d_o, blk->q0, head * dim, blk->n_q, dim};
    const struct cpu_att_part k = {&f->k, blk->k0, kv * dim, blk->n_k, dim};
    const struct cpu_att_part v = {&f->v, blk->k0, kv * dim, blk->n_k, dim};
    const struct cpu_att_part dk = {&args->dk, blk->k0, kv * dim, blk->n_k, dim};
    const struct cpu_att_part dv = {&args->dv, blk->k0, kv * dim, blk->n_k, dim};
    cpu_att_times_keys(p, stride, &q, &k);
    scale_scores(p, stride, blk->n_q, blk->n_k, f->scale);
    cpu_att_times_keys(dp, stride, &d_o, &v);
    backward_scores(args, blk, head, p, dp);
    if (args->dv.data) {
        round_scores(h.p, p, stride, blk->n_q, blk->n_k, 1);
        cpu_att_add_columns(&dv, h.p, stride, &d_o);
    }
    if (args->dk.data || args->dq.data)
        round_scores(h.dp, dp, stride, blk->n_q, blk->n_k, f->scale);
    if (args->dk.data)
        cpu_att_add_columns(&dk, h.dp, stride, &q);
    if (!args->dq.data)
        return;
    cpu_att_times_values(h.sum, blk->n_q, h.dp, stride, &k);
    cpu_narrow(&args->dq, blk->q0, head * dim, blk->n_q, dim, h.sum, dim, args->accumulate_dq);
}

/* One block of queries: writes its dq, adds to dk and dv of the keys that it sees. */
static void backward_block(const struct s2s_k_attention_backward *args, const struct block *blk,
                           int64_t head, float *p, float *dp)
{
    const struct s2s_k_attention *f = &args->forward;
    if (in_bf16(f)) {
        backward_in_bf16(args, blk, head, p, dp);
        return;
    }
    const int64_t dim = f->dim, kv = head / (f->n_heads / f->n_kv_heads), stride = score_stride(f);
    float *room = dp + score_floats(f), *room_o = room + Q_BLOCK * dim;
    float *room_k = room_o + Q_BLOCK * dim, *room_v = room_k + f->max_k * dim;
    struct operand q = operand(&f->q, blk->q0, head, blk->n_q, dim, room);
    struct operand d_o = operand(&args->d_o, blk->q0, head, blk->n_q, dim, room_o);
    struct operand k = operand(&f->k, blk->k0, kv, blk->n_k, dim, room_k);
    struct operand v = operand(&f->v, blk->k0, kv, blk->n_k, dim, room_v);
    cpu_sgemm(false, true, blk->n_q, blk->n_k, dim, f->scale, q.data, q.ld, k.data, k.ld, 0, p,
              stride);
    cpu_sgemm(false, true, blk->n_q, blk->n_k, dim, 1, d_o.data, d_o.ld, v.data, v.ld, 0, dp,
              stride);
    backward_scores(args, blk, head, p, dp);
    if (args->dv.data)
        cpu_sgemm(true, false, blk->n_k, dim, blk->n_q, 1, p, stride, d_o.data, d_o.ld, 1,
                  head_of(&args->dv, blk->k0, kv, dim), args->dv.stride);
    if (args->dk.data)
        cpu_sgemm(true, false, blk->n_k, dim, blk->n_q, f->scale, dp, stride, q.data, q.ld, 1,
                  head_of(&args->dk, blk->k0, kv, dim), args->dk.stride);
    if (args->dq.data)
        backward_queries(args, blk, head, dp, k, room_o);
}

/* The dq of one block of queries where it does not touch other gradients: all zero. */
static void no_keys(const struct s2s_k_attention_backward *args, const struct block *blk,
                    int64_t head)
{
    if (!args->accumulate_dq)
        cpu_zero_part(&args->dq, blk->q0, head * args->forward.dim, blk->n_q, args->forward.dim);
}

/* One kv head of one group with all query heads that use it, in order. */
static void backward_head(const struct s2s_k_attention_backward *args, int64_t g, int64_t kv,
                          float *p, float *dp)
{
    const struct s2s_k_attention *f = &args->forward;
    const int64_t n = f->n_heads / f->n_kv_heads;
    for (int64_t head = kv * n; head < (kv + 1) * n; head++)
        for (int32_t s = f->groups[g]; s < f->groups[g + 1]; s++) {
            struct block blk;
            for (int64_t b = 0; find_block(&blk, f, &f->spans[s], b); b++) {
                if (blk.n_k > 0)
                    backward_block(args, &blk, head, p, dp);
                else
                    no_keys(args, &blk, head);
            }
        }
}

/* Few groups and few heads: not enough of the above for many cores. Then dq is computed a block of
 * queries at a time, and dk, dv a block of keys at a time: the scores twice, but every block on its
 * own. */
enum { FEW_HEADS = 16, LONG = 128 };

static bool is_split(const struct s2s_k_attention *f)
{
    return f->n_groups * f->n_kv_heads < FEW_HEADS && f->max_q > LONG;
}

static void backward_keys(const struct s2s_k_attention_backward *args, const struct tile *tile,
                          int64_t kv, float *p, float *dp)
{
    const struct s2s_k_attention *f = &args->forward;
    const int64_t n = f->n_heads / f->n_kv_heads;
    for (int64_t head = kv * n; head < (kv + 1) * n; head++)
        for (int32_t s = f->groups[tile->of]; s < f->groups[tile->of + 1]; s++) {
            struct block blk;
            for (int64_t b = 0; find_block(&blk, f, &f->spans[s], b); b++)
                if (take_keys(&blk, tile->idx))
                    backward_block(args, &blk, head, p, dp);
        }
}

static void backward_split(const struct s2s_k_attention_backward *args, const struct tile *tiles,
                           int64_t n_q, int64_t n_k, float *p, float *dp)
{
    const struct s2s_k_attention *f = &args->forward;
    struct s2s_k_attention_backward queries = *args, keys = *args;
    queries.dk = queries.dv = keys.dq = (struct s2s_mat){0};
#pragma omp for collapse(2) schedule(dynamic, 1) nowait
    for (int64_t t = 0; t < n_q; t++)
        for (int64_t head = 0; head < f->n_heads; head++) {
            struct block blk;
            if (!args->dq.data || !find_block(&blk, f, &f->spans[tiles[t].of], tiles[t].idx))
                continue;
            if (blk.n_k > 0)
                backward_block(&queries, &blk, head, p, dp);
            else
                no_keys(args, &blk, head);
        }
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t t = 0; t < n_k; t++)
        for (int64_t kv = 0; kv < f->n_kv_heads; kv++)
            backward_keys(&keys, &tiles[n_q + t], kv, p, dp);
}

/* The backward whose dk and dv are F32: scratch is the whole workspace. */
static void backward_all(struct s2s_queue *queue, const struct s2s_k_attention_backward *args,
                         float *scratch)
{
    const struct s2s_k_attention *f = &args->forward;
    const int64_t each = backward_floats(f);
    struct tile *tiles = (struct tile *)(scratch + queue->lanes * each + 2 * sum_floats(f));
    int32_t *counts = (int32_t *)(tiles + max_query_tiles(f) + max_key_tiles(f));
    const bool split = is_split(f), zero_dq = !args->accumulate_dq && !covers_queries(f);
    const int64_t n_q = split ? list_queries(f, tiles, counts) : 0;
    const int64_t n_k = split ? list_keys(f, tiles + n_q) : 0;
#pragma omp parallel num_threads(queue->lanes) if (worth_threads(f))
    {
        float *p = scratch + omp_get_thread_num() * each, *dp = p + score_floats(f);
        omp_set_num_threads(1); /* see gemm.c */
#pragma omp for schedule(static)
        for (int64_t r = 0; r < f->n_k; r++) {
            if (!args->accumulate_dk)
                cpu_zero_part(&args->dk, r, 0, 1, f->n_kv_heads * f->dim);
            if (!args->accumulate_dv)
                cpu_zero_part(&args->dv, r, 0, 1, f->n_kv_heads * f->dim);
        }
#pragma omp for schedule(static)
        for (int64_t r = 0; r < f->n_q; r++)
            if (zero_dq)
                cpu_zero_part(&args->dq, r, 0, 1, f->n_heads * f->dim);
        if (split) {
            backward_split(args, tiles, n_q, n_k, p, dp);
        } else {
#pragma omp for collapse(2) schedule(dynamic, 1)
            for (int64_t g = 0; g < f->n_groups; g++)
                for (int64_t kv = 0; kv < f->n_kv_heads; kv++)
                    backward_head(args, g, kv, p, dp);
        }
    }
}

/* Many blocks add to dk and dv: those of BF16 are sums of fp32 until all have. */
static void backward_bf16(struct s2s_queue *queue, const struct s2s_k_attention_backward *args)
{
    const struct s2s_k_attention *f = &args->forward;
    const int64_t width = f->n_kv_heads * f->dim;
    float *scratch = args->workspace, *dk = scratch + queue->lanes * backward_floats(f);
    float *dv = dk + sum_floats(f);
    struct s2s_k_attention_backward sums = *args;
    sums.dk = (struct s2s_mat){args->dk.data ? dk : NULL, width, S2S_F32};
    sums.dv = (struct s2s_mat){args->dv.data ? dv : NULL, width, S2S_F32};
    sums.accumulate_dk = sums.accumulate_dv = false;
    backward_all(queue, &sums, scratch);
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (f->n_k * width > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < f->n_k; r++) {
        if (args->dk.data)
            cpu_narrow(&args->dk, r, 0, 1, width, dk + r * width, width, args->accumulate_dk);
        if (args->dv.data)
            cpu_narrow(&args->dv, r, 0, 1, width, dv + r * width, width, args->accumulate_dv);
    }
}

void cpu_attention_backward(struct s2s_queue *queue, const struct s2s_k_attention_backward *args)
{
    if (cpu_is_bf16(&args->forward.q))
        backward_bf16(queue, args);
    else
        backward_all(queue, args, args->workspace);
}
