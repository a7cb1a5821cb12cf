/*
 * Attention of packed sequences, per (sequence, head, block of queries):
 *   S = scale Q K^T,  P = exp(S - lse),  O = P V
 * and backward, with P computed again from the saved log-sum-exp (Dao et al. 2022):
 *   dV = P^T dO,  dP = dO V^T,  dS = P (dP - rowsum(P dP)),  dQ = scale dS K,  dK = scale dS^T Q
 *
 * Each block reads only the keys that it may see, so a causal sequence costs half a square, and
 * padding between sequences nothing. The products are the library's; a block of scores stays in the
 * second-level cache.
 */
#include <omp.h>

#include "kernels/cpu/cpu.h"

enum { Q_BLOCK = 64 };

struct block {
    int64_t q0, n_q; /* rows of q */
    int64_t k0, n_k; /* rows of k and v that the block sees */
    int64_t shift;   /* query i of the block sees keys up to i + shift, within the n_k */
    bool is_part;    /* other blocks hold other keys of the same queries */
};

/* Block `idx` of sequence s; false when the sequence has fewer. */
static bool find_block(struct block *blk, const struct s2s_k_attention *args, int64_t s,
                       int64_t idx)
{
    int64_t q0 = args->cu_q[s], len_q = args->cu_q[s + 1] - q0;
    int64_t k0 = args->cu_k[s], len_k = args->cu_k[s + 1] - k0, at = idx * Q_BLOCK;
    if (at >= len_q)
        return false;
    blk->q0 = q0 + at;
    blk->n_q = len_q - at < Q_BLOCK ? len_q - at : Q_BLOCK;
    blk->k0 = k0;
    blk->shift = at + len_k - len_q;
    blk->n_k = args->causal ? blk->shift + blk->n_q : len_k;
    blk->is_part = false;
    return true;
}

/* The part of the block whose keys are [begin, begin + size) of the sequence; false when none is.
 */
static bool take_keys(struct block *blk, int64_t begin, int64_t size)
{
    if (blk->n_k <= begin)
        return false;
    blk->k0 += begin;
    blk->n_k = blk->n_k - begin < size ? blk->n_k - begin : size;
    blk->shift -= begin;
    blk->is_part = true;
    return true;
}

/* Keys that row i of the block sees; none when a cache is shorter than its queries. */
static int64_t visible(const struct s2s_k_attention *args, const struct block *blk, int64_t i)
{
    int64_t n = blk->shift + i + 1;
    if (!args->causal || n > blk->n_k)
        return blk->n_k;
    return n > 0 ? n : 0;
}

static int64_t score_stride(const struct s2s_k_attention *args)
{
    return cpu_ceil_div(args->max_k, 16) * 16;
}

static float *head_of(const struct s2s_mat *mat, int64_t row, int64_t head, int64_t dim)
{
    return cpu_row(mat, row) + head * dim;
}

size_t cpu_attention_workspace(const struct s2s_queue *queue, const struct s2s_k_attention *args)
{
    return (size_t)queue->lanes * (size_t)(Q_BLOCK * score_stride(args)) * sizeof(float);
}

/* z = exp(z - max) over the n visible of `cols` scores, zeros behind; gives the sum and the max */
static float softmax_row(float *z, int64_t n, int64_t cols, float *max_out)
{
    float max = -INFINITY, sum = 0;
#pragma omp simd reduction(max : max)
    for (int64_t j = 0; j < n; j++)
        max = z[j] > max ? z[j] : max;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        float e = cpu_exp(z[j] - max);
        z[j] = e;
        sum += e;
    }
    memset(z + n, 0, (size_t)(cols - n) * sizeof *z);
    *max_out = max;
    return sum;
}

static void forward_block(const struct s2s_k_attention *args, const struct block *blk, int64_t head,
                          float *scores)
{
    const int64_t dim = args->dim, kv = head / (args->n_heads / args->n_kv_heads);
    const int64_t stride = score_stride(args);
    float *o = head_of(&args->o, blk->q0, head, dim), inverse[Q_BLOCK];
    if (blk->n_k > 0)
        cpu_sgemm(false, true, blk->n_q, blk->n_k, dim, args->scale,
                  head_of(&args->q, blk->q0, head, dim), args->q.stride,
                  head_of(&args->k, blk->k0, kv, dim), args->k.stride, 0, scores, stride);
    for (int64_t i = 0; i < blk->n_q; i++) {
        float max, sum = softmax_row(scores + i * stride, visible(args, blk, i),
                                     blk->n_k > 0 ? blk->n_k : 0, &max);
        inverse[i] = sum > 0 ? 1.0f / sum : 0;
        if (args->lse)
            args->lse[(blk->q0 + i) * args->n_heads + head] = sum > 0 ? max + logf(sum) : INFINITY;
    }
    if (blk->n_k > 0)
        cpu_sgemm(false, false, blk->n_q, dim, blk->n_k, 1, scores, stride,
                  head_of(&args->v, blk->k0, kv, dim), args->v.stride, 0, o, args->o.stride);
    for (int64_t i = 0; i < blk->n_q; i++) {
        float *row = o + i * args->o.stride;
#pragma omp simd
        for (int64_t d = 0; d < dim; d++)
            row[d] = blk->n_k > 0 ? row[d] * inverse[i] : 0;
    }
}

void cpu_attention(struct s2s_queue *queue, const struct s2s_k_attention *args)
{
    const int64_t n_blocks = cpu_ceil_div(args->max_q, Q_BLOCK);
    const int64_t per_thread = Q_BLOCK * score_stride(args);
    const bool parallel = args->n_seqs * args->n_heads * args->max_q * args->max_k > 4096;
#pragma omp parallel num_threads(queue->lanes) if (parallel)
    {
        float *scores = (float *)args->workspace + omp_get_thread_num() * per_thread;
        omp_set_num_threads(1); /* see gemm.c */
/* the last blocks see most keys: long work first */
#pragma omp for collapse(3) schedule(dynamic, 1)
        for (int64_t back = 0; back < n_blocks; back++)
            for (int64_t s = 0; s < args->n_seqs; s++)
                for (int64_t head = 0; head < args->n_heads; head++) {
                    struct block blk;
                    if (find_block(&blk, args, s, n_blocks - 1 - back))
                        forward_block(args, &blk, head, scores);
                }
    }
}

/* ---- backward ---- */

size_t cpu_attention_backward_workspace(const struct s2s_queue *queue,
                                        const struct s2s_k_attention_backward *args)
{
    return 2 * cpu_attention_workspace(queue, &args->forward);
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
    if (!blk->is_part)
        return;
    const float *o = head_of(&f->o, blk->q0 + i, head, f->dim);
    const float *d_o = head_of(&args->d_o, blk->q0 + i, head, f->dim);
    delta = 0;
#pragma omp simd reduction(+ : delta)
    for (int64_t d = 0; d < f->dim; d++)
        delta += d_o[d] * o[d];
    *sum_out = 1;
    *delta_out = delta;
}

/* p: scores, then P; dp: its gradient, then that of the scores. Zeros where nothing is visible. */
static void backward_scores(const struct s2s_k_attention_backward *args, const struct block *blk,
                            int64_t head, float *p, float *dp)
{
    const int64_t stride = score_stride(&args->forward);
    for (int64_t i = 0; i < blk->n_q; i++) {
        const int64_t n = visible(&args->forward, blk, i);
        float *pi = p + i * stride, *dpi = dp + i * stride, sum, delta;
        row_sums(args, blk, head, i, n, pi, dpi, &sum, &delta);
        const float inverse = sum > 0 ? 1.0f / sum : 0;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            float e = pi[j] * inverse;
            pi[j] = e;
            dpi[j] = e * (dpi[j] - delta);
        }
        memset(pi + n, 0, (size_t)(blk->n_k - n) * sizeof *pi);
        memset(dpi + n, 0, (size_t)(blk->n_k - n) * sizeof *dpi);
    }
}

/* One block of queries: writes its dq, adds to dk and dv of the keys that it sees. */
static void backward_block(const struct s2s_k_attention_backward *args, const struct block *blk,
                           int64_t head, float *p, float *dp)
{
    const struct s2s_k_attention *f = &args->forward;
    const int64_t dim = f->dim, kv = head / (f->n_heads / f->n_kv_heads), stride = score_stride(f);
    const float *q = head_of(&f->q, blk->q0, head, dim), *k = head_of(&f->k, blk->k0, kv, dim);
    const float *v = head_of(&f->v, blk->k0, kv, dim);
    const float *d_o = head_of(&args->d_o, blk->q0, head, dim);
    cpu_sgemm(false, true, blk->n_q, blk->n_k, dim, f->scale, q, f->q.stride, k, f->k.stride, 0, p,
              stride);
    cpu_sgemm(false, true, blk->n_q, blk->n_k, dim, 1, d_o, args->d_o.stride, v, f->v.stride, 0, dp,
              stride);
    backward_scores(args, blk, head, p, dp);
    if (args->dv.data)
        cpu_sgemm(true, false, blk->n_k, dim, blk->n_q, 1, p, stride, d_o, args->d_o.stride, 1,
                  head_of(&args->dv, blk->k0, kv, dim), args->dv.stride);
    if (args->dk.data)
        cpu_sgemm(true, false, blk->n_k, dim, blk->n_q, f->scale, dp, stride, q, f->q.stride, 1,
                  head_of(&args->dk, blk->k0, kv, dim), args->dk.stride);
    if (args->dq.data)
        cpu_sgemm(false, false, blk->n_q, dim, blk->n_k, f->scale, dp, stride, k, f->k.stride,
                  args->accumulate_dq ? 1 : 0, head_of(&args->dq, blk->q0, head, dim),
                  args->dq.stride);
}

static void zero_rows(const struct s2s_mat *mat, int64_t begin, int64_t end, int64_t head,
                      int64_t dim)
{
    for (int64_t r = begin; mat->data && r < end; r++)
        memset(head_of(mat, r, head, dim), 0, (size_t)dim * sizeof(float));
}

/* One kv head of one sequence with all query heads of its group, in order. */
static void backward_head(const struct s2s_k_attention_backward *args, int64_t s, int64_t kv,
                          float *p, float *dp)
{
    const struct s2s_k_attention *f = &args->forward;
    const int64_t group = f->n_heads / f->n_kv_heads;
    if (!args->accumulate_dk)
        zero_rows(&args->dk, f->cu_k[s], f->cu_k[s + 1], kv, f->dim);
    if (!args->accumulate_dv)
        zero_rows(&args->dv, f->cu_k[s], f->cu_k[s + 1], kv, f->dim);
    for (int64_t head = kv * group; head < (kv + 1) * group; head++) {
        struct block blk;
        for (int64_t b = 0; find_block(&blk, f, s, b); b++) {
            if (blk.n_k > 0)
                backward_block(args, &blk, head, p, dp);
            else if (!args->accumulate_dq)
                zero_rows(&args->dq, blk.q0, blk.q0 + blk.n_q, head, f->dim);
        }
    }
}

/* Few long sequences and few heads: not enough of the above for many cores. Then dq is computed a
 * block of queries at a time, and dk, dv a block of keys at a time: the scores twice, but every
 * block on its own. */
enum { K_BLOCK = 256, FEW_HEADS = 16, LONG = 128 };

static bool is_split(const struct s2s_k_attention *f)
{
    return f->n_seqs * f->n_kv_heads < FEW_HEADS && f->max_q > LONG;
}

static void backward_keys(const struct s2s_k_attention_backward *args, int64_t s, int64_t kv,
                          int64_t begin, float *p, float *dp)
{
    const struct s2s_k_attention *f = &args->forward;
    const int64_t group = f->n_heads / f->n_kv_heads, k0 = f->cu_k[s] + begin;
    const int64_t end = k0 + K_BLOCK < f->cu_k[s + 1] ? k0 + K_BLOCK : f->cu_k[s + 1];
    if (!args->accumulate_dk)
        zero_rows(&args->dk, k0, end, kv, f->dim);
    if (!args->accumulate_dv)
        zero_rows(&args->dv, k0, end, kv, f->dim);
    for (int64_t head = kv * group; head < (kv + 1) * group; head++) {
        struct block blk;
        for (int64_t b = 0; find_block(&blk, f, s, b); b++)
            if (take_keys(&blk, begin, K_BLOCK))
                backward_block(args, &blk, head, p, dp);
    }
}

static void backward_split(const struct s2s_k_attention_backward *args, float *p, float *dp)
{
    const struct s2s_k_attention *f = &args->forward;
    struct s2s_k_attention_backward queries = *args, keys = *args;
    queries.dk = queries.dv = keys.dq = (struct s2s_mat){0};
    const int64_t n_q = cpu_ceil_div(f->max_q, Q_BLOCK), n_k = cpu_ceil_div(f->max_k, K_BLOCK);
#pragma omp for collapse(3) schedule(dynamic, 1) nowait
    for (int64_t back = 0; back < n_q; back++)
        for (int64_t s = 0; s < f->n_seqs; s++)
            for (int64_t head = 0; head < f->n_heads; head++) {
                struct block blk;
                if (!args->dq.data || !find_block(&blk, f, s, n_q - 1 - back))
                    continue;
                if (blk.n_k > 0)
                    backward_block(&queries, &blk, head, p, dp);
                else if (!args->accumulate_dq)
                    zero_rows(&args->dq, blk.q0, blk.q0 + blk.n_q, head, f->dim);
            }
#pragma omp for collapse(3) schedule(dynamic, 1)
    for (int64_t b = 0; b < n_k; b++)
        for (int64_t s = 0; s < f->n_seqs; s++)
            for (int64_t kv = 0; kv < f->n_kv_heads; kv++)
                if (f->cu_k[s] + b * K_BLOCK < f->cu_k[s + 1])
                    backward_keys(&keys, s, kv, b * K_BLOCK, p, dp);
}

void cpu_attention_backward(struct s2s_queue *queue, const struct s2s_k_attention_backward *args)
{
    const struct s2s_k_attention *f = &args->forward;
    const int64_t per_thread = Q_BLOCK * score_stride(f);
    const bool parallel = f->n_seqs * f->n_heads * f->max_q * f->max_k > 4096;
    const bool split = is_split(f);
#pragma omp parallel num_threads(queue->lanes) if (parallel)
    {
        float *p = (float *)args->workspace + 2 * omp_get_thread_num() * per_thread;
        omp_set_num_threads(1); /* see gemm.c */
        if (split) {
            backward_split(args, p, p + per_thread);
        } else {
#pragma omp for collapse(2) schedule(dynamic, 1)
            for (int64_t s = 0; s < f->n_seqs; s++)
                for (int64_t kv = 0; kv < f->n_kv_heads; kv++)
                    backward_head(args, s, kv, p, p + per_thread);
        }
    }
}
