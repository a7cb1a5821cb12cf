/*
 * Attention with relative positions (Dai et al. 2019, the form of Conformer), packed clips:
 *   S_ij = scale ((q_i + u) k_j + (q_i + v) p_{i-j}),  P = exp(S - lse),  O = P V
 *
 * For a block of n_q queries and the n_k keys of a clip the second product is taken with the
 * n_q + n_k - 1 rows of p that the block can meet; query row i then finds its keys at columns
 * n_q - 1 - i + j: the relative shift is a pointer, nothing is moved. All products are the
 * library's; a block of scores stays in the second-level cache.
 *
 * Where queries see some keys alone, a block meets those that any of its queries sees, and a
 * query's others have probability 0.
 *
 * Backward computes P again from lse. Clips share p: groups of clips, cut by their number alone,
 * add into parts of their own, which are then added in order.
 */
#include <omp.h>

#include "kernels/cpu/draw.h"

enum { Q_BLOCK = 64, MAX_GROUPS = 4 };

typedef struct s2s_k_relattention fwd_args;

struct block {
    int64_t q0, n_q;   /* rows of q */
    int64_t k0, n_k;   /* rows of k */
    int64_t at, first; /* places of query q0 and of key k0 in their clip */
    int64_t p0, n_p;   /* rows of p */
};

static bool find_block(struct block *blk, const fwd_args *args, int64_t s, int64_t idx)
{
    const int64_t clip = args->cu[s], n = args->cu[s + 1] - clip, at = idx * Q_BLOCK;
    if (at >= n)
        return false;
    blk->at = at;
    blk->q0 = clip + at;
    blk->n_q = n - at < Q_BLOCK ? n - at : Q_BLOCK;
    blk->first = s2s_reach_begin(&args->reach, at);
    blk->k0 = clip + blk->first;
    blk->n_k = s2s_reach_end(&args->reach, at + blk->n_q - 1, n) - blk->first;
    /* the last query of the block and the first key: the largest i - j, the first row */
    blk->p0 = args->max_seqlen - 1 - (at + blk->n_q - 1) + blk->first;
    blk->n_p = blk->n_q + blk->n_k - 1;
    return true;
}

static int64_t score_stride(const fwd_args *args)
{
    return cpu_ceil_div(args->max_seqlen, 16) * 16;
}

static int64_t shift_stride(const fwd_args *args)
{
    return cpu_ceil_div(args->max_seqlen + Q_BLOCK, 16) * 16;
}

/* Products are of fp32. Room for operands of BF16, a thread's: rows of queries, and as many of k,
 * value or p as a block meets. */
static int64_t room_floats(const fwd_args *args)
{
    return cpu_is_bf16(&args->q) ? (2 * Q_BLOCK + args->max_seqlen) * args->dim : 0;
}

/* One thread's: scores, scores before the shift, queries with u, with v, operands. */
static int64_t forward_floats(const fwd_args *args)
{
    return Q_BLOCK * (score_stride(args) + shift_stride(args) + 2 * args->dim) + room_floats(args);
}

struct work {
    float *s, *shifted, *qu, *qv;
    float *queries, *keys; /* operands of BF16: Q_BLOCK rows, Q_BLOCK + max_seqlen */
};

static struct work forward_work(const fwd_args *args, float *at)
{
    float *shifted = at + Q_BLOCK * score_stride(args);
    float *qu = shifted + Q_BLOCK * shift_stride(args), *qv = qu + Q_BLOCK * args->dim;
    float *queries = qv + Q_BLOCK * args->dim;
    return (struct work){at, shifted, qu, qv, queries, queries + Q_BLOCK * args->dim};
}

static float *head_of(const struct s2s_mat *mat, int64_t row, int64_t head, int64_t dim)
{
    return cpu_row(mat, row) + head * dim;
}

/* c = a op(b) of n_q rows, b the rows row .. row + n of one head; trans: a is [n_q, dim], b
 * transposed, else a is [n_q, n]. */
static void by_head(const fwd_args *args, bool trans, int64_t n_q, const float *a, int64_t lda,
                    const struct s2s_mat *b, int64_t row, int64_t n, int64_t head,
                    const struct work *w, float *c, int64_t ldc)
{
    int64_t ld;
    const float *data = cpu_widen(b, row, head * args->dim, n, args->dim, w->keys, &ld);
    cpu_sgemm(false, trans, n_q, trans ? n : args->dim, trans ? args->dim : n, 1, a, lda, data, ld,
              0, c, ldc);
}

size_t cpu_relattention_workspace(const struct s2s_queue *queue, const fwd_args *args)
{
    return (size_t)queue->lanes * (size_t)forward_floats(args) * sizeof(float);
}

CPU_INLINE void add_biases_row(const fwd_args *args, int64_t row, int64_t head, float *qu,
                               float *qv, bool bf16)
{
    const int64_t dim = args->dim;
    const float *u = args->u + head * dim, *v = args->v + head * dim;
    const void *q = cpu_from(cpu_any_row(&args->q, row), head * dim, bf16);
#pragma omp simd
    for (int64_t d = 0; d < dim; d++) {
        qu[d] = args->scale * (cpu_load(q, d, bf16) + u[d]);
        qv[d] = args->scale * (cpu_load(q, d, bf16) + v[d]);
    }
}

/* qu = scale (q + u), qv = scale (q + v) */
static void add_biases(const fwd_args *args, const struct block *blk, int64_t head,
                       const struct work *w)
{
    for (int64_t i = 0; i < blk->n_q; i++) {
        float *qu = w->qu + i * args->dim, *qv = w->qv + i * args->dim;
        if (cpu_is_bf16(&args->q))
            add_biases_row(args, blk->q0 + i, head, qu, qv, true);
        else
            add_biases_row(args, blk->q0 + i, head, qu, qv, false);
    }
}

/* w->s = q k part, w->shifted = q p part before the shift */
static void products(const fwd_args *args, const struct block *blk, int64_t head,
                     const struct work *w)
{
    add_biases(args, blk, head, w);
    by_head(args, true, blk->n_q, w->qu, args->dim, &args->k, blk->k0, blk->n_k, head, w, w->s,
            score_stride(args));
    by_head(args, true, blk->n_q, w->qv, args->dim, &args->p, blk->p0, blk->n_p, head, w,
            w->shifted, shift_stride(args));
}

/* The n_k values of query row i among those before the shift. */
static float *shifted_row(const fwd_args *args, const struct block *blk, float *shifted, int64_t i)
{
    return shifted + i * shift_stride(args) + blk->n_q - 1 - i;
}

/* Of the keys of a block those that its query i sees: gives their number, *begin where they begin.
 */
static int64_t keys_of(const fwd_args *args, const struct block *blk, int64_t i, int64_t *begin)
{
    *begin = s2s_reach_begin(&args->reach, blk->at + i) - blk->first;
    return s2s_reach_end(&args->reach, blk->at + i, blk->first + blk->n_k) - blk->first - *begin;
}

/* Zeros around [begin, begin + n) of a row of all keys of a block. */
static void clear_around(float *row, int64_t n_k, int64_t begin, int64_t n)
{
    memset(row, 0, (size_t)begin * sizeof *row);
    memset(row + begin + n, 0, (size_t)(n_k - begin - n) * sizeof *row);
}

/* s = exp(s + shifted - max); gives the sum and the max */
static float softmax_row(float *restrict s, const float *restrict shifted, int64_t n,
                         float *max_out)
{
    float max = -INFINITY, sum = 0;
#pragma omp simd reduction(max : max)
    for (int64_t j = 0; j < n; j++) {
        float z = s[j] + shifted[j];
        s[j] = z;
        max = z > max ? z : max;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) {
        float e = cpu_exp(s[j] - max);
        s[j] = e;
        sum += e;
    }
    *max_out = max;
    return sum;
}

/* p: of n keys from `first` of its clip on */
static void drop_row(const fwd_args *args, int64_t row, int64_t head, int64_t first, int64_t n,
                     float *p)
{
    if (!args->draw.rows)
        return;
    const struct cpu_draw draw =
        cpu_draw(&args->draw, row, (uint32_t)(1 + args->first_head + head));
    cpu_drop_scores(&draw, NULL, first, n, p);
}

static void forward_block(const fwd_args *args, const struct block *blk, int64_t head,
                          const struct work *w)
{
    const int64_t dim = args->dim, stride = score_stride(args);
    const bool bf16 = cpu_is_bf16(&args->o);
    float *o = bf16 ? w->queries : head_of(&args->o, blk->q0, head, dim), inverse[Q_BLOCK];
    const int64_t ldo = bf16 ? dim : args->o.stride;
    products(args, blk, head, w);
    for (int64_t i = 0; i < blk->n_q; i++) {
        int64_t begin, n = keys_of(args, blk, i, &begin);
        float *s = w->s + i * stride;
        float max,
            sum = softmax_row(s + begin, shifted_row(args, blk, w->shifted, i) + begin, n, &max);
        inverse[i] = 1.0f / sum;
        clear_around(s, blk->n_k, begin, n);
        drop_row(args, blk->q0 + i, head, blk->first, blk->n_k, s);
        if (args->lse)
            args->lse[(blk->q0 + i) * args->n_heads + head] = max + logf(sum);
    }
    by_head(args, false, blk->n_q, w->s, stride, &args->value, blk->k0, blk->n_k, head, w, o, ldo);
    for (int64_t i = 0; i < blk->n_q; i++) {
        float *row = o + i * ldo;
#pragma omp simd
        for (int64_t d = 0; d < dim; d++)
            row[d] *= inverse[i];
    }
    if (bf16)
        cpu_narrow(&args->o, blk->q0, head * dim, blk->n_q, dim, o, ldo, false);
}

void cpu_relattention(struct s2s_queue *queue, const fwd_args *args)
{
    const int64_t n_blocks = cpu_ceil_div(args->max_seqlen, Q_BLOCK);
    const bool parallel = args->n_seqs * args->n_heads * args->max_seqlen * args->max_seqlen > 4096;
#pragma omp parallel num_threads(queue->lanes) if (parallel)
    {
        struct work w = forward_work(args, (float *)args->workspace +
                                               omp_get_thread_num() * forward_floats(args));
        omp_set_num_threads(1); /* see gemm.c */
#pragma omp for collapse(3) schedule(dynamic, 1)
        for (int64_t s = 0; s < args->n_seqs; s++)
            for (int64_t b = 0; b < n_blocks; b++)
                for (int64_t head = 0; head < args->n_heads; head++) {
                    struct block blk;
                    if (find_block(&blk, args, s, b))
                        forward_block(args, &blk, head, &w);
                }
    }
}

/* ---- backward ---- */

typedef struct s2s_k_relattention_backward bwd_args;

/* Of BF16, a thread's: dq of a block, dk and dvalue of a clip's head. */
static int64_t sum_floats(const fwd_args *f)
{
    return cpu_is_bf16(&f->q) ? (Q_BLOCK + 2 * f->max_seqlen) * f->dim : 0;
}

/* One thread's: the forward's, then dP, dS before the shift, the gradient of the queries, sums. */
static int64_t backward_floats(const fwd_args *f)
{
    return forward_floats(f) + Q_BLOCK * (score_stride(f) + shift_stride(f) + f->dim) +
           sum_floats(f);
}

static int64_t n_groups(const fwd_args *f)
{
    return f->n_seqs < MAX_GROUPS ? f->n_seqs : MAX_GROUPS;
}

/* A group's part of dp, du, dv. */
static int64_t part_floats(const fwd_args *f)
{
    return (2 * f->max_seqlen + 1) * f->n_heads * f->dim;
}

size_t cpu_relattention_backward_workspace(const struct s2s_queue *queue, const bwd_args *args)
{
    const fwd_args *f = &args->forward;
    return (size_t)(queue->lanes * backward_floats(f) + n_groups(f) * part_floats(f)) *
           sizeof(float);
}

struct backward_work {
    struct work f;
    float *dp, *dshifted, *dq; /* dp: gradient of the probabilities, then of the scores */
    float *sum_q;              /* of BF16: dq of both products */
    struct s2s_mat dk, dvalue; /* where one clip's head adds up: the outputs, or fp32 for those of
                                  BF16 */
};

static struct backward_work make_backward_work(const fwd_args *f, float *at)
{
    float *dp = at + forward_floats(f), *dshifted = dp + Q_BLOCK * score_stride(f);
    float *dq = dshifted + Q_BLOCK * shift_stride(f);
    return (struct backward_work){.f = forward_work(f, at),
                                  .dp = dp,
                                  .dshifted = dshifted,
                                  .dq = dq,
                                  .sum_q = dq + Q_BLOCK * f->dim};
}

/* f.s = P, dp = dshifted = dS (zeros where no key stands) */
static void backward_scores(const bwd_args *args, const struct block *blk, int64_t head,
                            const struct backward_work *w)
{
    const fwd_args *f = &args->forward;
    for (int64_t i = 0; i < blk->n_q; i++) {
        const float lse = f->lse[(blk->q0 + i) * f->n_heads + head];
        int64_t begin, n = keys_of(f, blk, i, &begin);
        float *all_p = w->f.s + i * score_stride(f), *all_dp = w->dp + i * score_stride(f);
        float sum = 0, delta = 0, *p = all_p + begin, *dp = all_dp + begin;
        const float *shifted = shifted_row(f, blk, w->f.shifted, i) + begin;
        float *row = w->dshifted + i * shift_stride(f);
        float *ds = shifted_row(f, blk, w->dshifted, i) + begin;
        clear_around(all_p, blk->n_k, begin, n);
        clear_around(all_dp, blk->n_k, begin, n);
        drop_row(f, blk->q0 + i, head, blk->first, blk->n_k, all_dp);
        /* the row's own sums, so that roundings of lse and dp do not stay in dS */
#pragma omp simd reduction(+ : sum, delta)
        for (int64_t j = 0; j < n; j++) {
            p[j] = cpu_exp(p[j] + shifted[j] - lse);
            sum += p[j];
            delta += p[j] * dp[j];
        }
        const float inverse = sum > 0 ? 1.0f / sum : 0;
        delta *= inverse;
        memset(row, 0, (size_t)blk->n_p * sizeof *row);
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            float e = p[j] * inverse;
            float d = e * (dp[j] - delta);
            p[j] = e;
            dp[j] = d;
            ds[j] = d;
        }
        drop_row(f, blk->q0 + i, head, blk->first, blk->n_k, all_p);
    }
}

/* to (+)= scale dq, bias += its rows' sum */
static void add_queries(const fwd_args *f, int64_t n_q, const float *dq, float *to, int64_t ld,
                        float *bias, bool accumulate)
{
    for (int64_t i = 0; i < n_q; i++) {
        const float *from = dq + i * f->dim;
#pragma omp simd
        for (int64_t d = 0; d < f->dim; d++)
            bias[d] += f->scale * from[d];
        if (!to)
            continue;
        float *row = to + i * ld;
#pragma omp simd
        for (int64_t d = 0; d < f->dim; d++)
            row[d] = (accumulate ? row[d] : 0) + f->scale * from[d];
    }
}

/* dq, du and dv of a block: two products, whose sum is rounded once */
static void backward_queries(const bwd_args *args, const struct block *blk, int64_t head,
                             const struct backward_work *w, float *part_u, float *part_v)
{
    const fwd_args *f = &args->forward;
    const int64_t dim = f->dim;
    const bool bf16 = args->dq.data && cpu_is_bf16(&args->dq);
    float *to = bf16 ? w->sum_q : args->dq.data ? head_of(&args->dq, blk->q0, head, dim) : NULL;
    const int64_t ld = bf16 ? dim : args->dq.stride;
    by_head(f, false, blk->n_q, w->dp, score_stride(f), &f->k, blk->k0, blk->n_k, head, &w->f,
            w->dq, dim);
    add_queries(f, blk->n_q, w->dq, to, ld, part_u, !bf16 && args->accumulate_dq);
    by_head(f, false, blk->n_q, w->dshifted, shift_stride(f), &f->p, blk->p0, blk->n_p, head, &w->f,
            w->dq, dim);
    add_queries(f, blk->n_q, w->dq, to, ld, part_v, true);
    if (bf16)
        cpu_narrow(&args->dq, blk->q0, head * dim, blk->n_q, dim, to, ld, args->accumulate_dq);
}

static void backward_block(const bwd_args *args, const struct block *blk, int64_t head,
                           const struct backward_work *w, float *part)
{
    const fwd_args *f = &args->forward;
    const int64_t dim = f->dim, width = f->n_heads * dim, ss = score_stride(f);
    float *part_u = part + (2 * f->max_seqlen - 1) * width, *part_v = part_u + width;
    int64_t ldo;
    const float *d_o =
        cpu_widen(&args->d_o, blk->q0, head * dim, blk->n_q, dim, w->f.queries, &ldo);
    products(f, blk, head, &w->f);
    by_head(f, true, blk->n_q, d_o, ldo, &f->value, blk->k0, blk->n_k, head, &w->f, w->dp, ss);
    backward_scores(args, blk, head, w);
    if (args->dvalue.data)
        cpu_sgemm(true, false, blk->n_k, dim, blk->n_q, 1, w->f.s, ss, d_o, ldo, 1,
                  cpu_row(&w->dvalue, blk->first), w->dvalue.stride);
    if (args->dk.data)
        cpu_sgemm(true, false, blk->n_k, dim, blk->n_q, 1, w->dp, ss, w->f.qu, dim, 1,
                  cpu_row(&w->dk, blk->first), w->dk.stride);
    if (args->dp.data)
        cpu_sgemm(true, false, blk->n_p, dim, blk->n_q, 1, w->dshifted, shift_stride(f), w->f.qv,
                  dim, 1, part + blk->p0 * width + head * dim, width);
    backward_queries(args, blk, head, w, part_u + head * dim, part_v + head * dim);
}

/* Where one head of the rows from k0 on of an output adds up; zeros, or what is to be added to. */
static struct s2s_mat begin_sum(const struct s2s_mat *out, bool accumulate, int64_t k0, int64_t n,
                                int64_t col, int64_t dim, float *room)
{
    if (!out->data)
        return *out;
    if (!accumulate && !cpu_is_bf16(out))
        cpu_zero_part(out, k0, col, n, dim);
    if (!cpu_is_bf16(out))
        return (struct s2s_mat){cpu_row(out, k0) + col, out->stride, S2S_F32};
    memset(room, 0, (size_t)(n * dim) * sizeof *room);
    return (struct s2s_mat){room, dim, S2S_F32};
}

static void end_sum(const struct s2s_mat *out, bool accumulate, int64_t k0, int64_t n, int64_t col,
                    int64_t dim, const struct s2s_mat *sum)
{
    if (out->data && cpu_is_bf16(out))
        cpu_narrow(out, k0, col, n, dim, sum->data, sum->stride, accumulate);
}

/* One head of the clips of one group, in order. */
static void backward_head(const bwd_args *args, int64_t group, int64_t head,
                          const struct backward_work *work, float *part)
{
    const fwd_args *f = &args->forward;
    const int64_t dim = f->dim, width = f->n_heads * dim, n_all = n_groups(f), col = head * dim;
    struct backward_work w = *work;
    float *room_k = w.sum_q + Q_BLOCK * dim, *room_v = room_k + f->max_seqlen * dim;
    for (int64_t r = 0; r < 2 * f->max_seqlen + 1; r++)
        memset(part + r * width + col, 0, (size_t)dim * sizeof *part);
    for (int64_t s = group * f->n_seqs / n_all; s < (group + 1) * f->n_seqs / n_all; s++) {
        const int64_t k0 = f->cu[s], n = f->cu[s + 1] - k0;
        struct block blk;
        w.dk = begin_sum(&args->dk, args->accumulate_dk, k0, n, col, dim, room_k);
        w.dvalue = begin_sum(&args->dvalue, args->accumulate_dvalue, k0, n, col, dim, room_v);
        for (int64_t b = 0; find_block(&blk, f, s, b); b++)
            backward_block(args, &blk, head, &w, part);
        end_sum(&args->dk, args->accumulate_dk, k0, n, col, dim, &w.dk);
        end_sum(&args->dvalue, args->accumulate_dvalue, k0, n, col, dim, &w.dvalue);
    }
}

/* to (+)= row r of the groups' parts, added in order */
CPU_INLINE void add_parts_row(const fwd_args *f, const float *parts, int64_t r, void *to,
                              bool accumulate, bool bf16)
{
    enum { CHUNK = 64 };
    const int64_t width = f->n_heads * f->dim;
    float sum[CHUNK];
    for (int64_t begin = 0; begin < width; begin += CHUNK) {
        const int64_t n = width - begin < CHUNK ? width - begin : CHUNK;
        for (int64_t i = 0; i < n; i++)
            sum[i] = accumulate ? cpu_load(to, begin + i, bf16) : 0;
        for (int64_t g = 0; g < n_groups(f); g++) {
            const float *from = parts + g * part_floats(f) + r * width + begin;
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                sum[i] += from[i];
        }
        for (int64_t i = 0; i < n; i++)
            cpu_store(to, begin + i, sum[i], bf16);
    }
}

static void add_parts(struct s2s_queue *queue, const bwd_args *args, const float *parts)
{
    const fwd_args *f = &args->forward;
    const int64_t width = f->n_heads * f->dim, n_rows = 2 * f->max_seqlen - 1;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (n_rows * width > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < n_rows + 2; r++) {
        void *to = r == n_rows       ? args->du
                   : r == n_rows + 1 ? args->dv
                   : args->dp.data   ? cpu_any_row(&args->dp, r)
                                     : NULL;
        if (!to)
            continue;
        if (r < n_rows && cpu_is_bf16(&args->dp))
            add_parts_row(f, parts, r, to, args->accumulate_dp, true);
        else
            add_parts_row(f, parts, r, to, r >= n_rows || args->accumulate_dp, false);
    }
}

void cpu_relattention_backward(struct s2s_queue *queue, const bwd_args *args)
{
    const fwd_args *f = &args->forward;
    const int64_t groups = n_groups(f);
    float *parts = args->workspace, *threads = parts + groups * part_floats(f);
    const bool parallel = f->n_seqs * f->n_heads * f->max_seqlen * f->max_seqlen > 4096;
#pragma omp parallel num_threads(queue->lanes) if (parallel)
    {
        struct backward_work w =
            make_backward_work(f, threads + omp_get_thread_num() * backward_floats(f));
        omp_set_num_threads(1); /* see gemm.c */
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t g = 0; g < groups; g++)
            for (int64_t head = 0; head < f->n_heads; head++)
                backward_head(args, g, head, &w, parts + g * part_floats(f));
    }
    add_parts(queue, args, parts);
}

/* ---- the table ---- */

/*
 * sin(r w) and cos(r w) for r = 0.. by rotation in double: the error grows by an ulp a row, so it
 * stays far below fp32's.
 */
void cpu_relpos_table(struct s2s_queue *queue, const struct s2s_k_relpos_table *args)
{
    const int64_t n = args->n, dim = args->dim;
#pragma omp parallel for num_threads(queue->lanes) schedule(static) if (n * dim > CPU_PARALLEL_MIN)
    for (int64_t m = 0; m < dim / 2; m++) {
        double w = pow(10000.0, -2.0 * (double)m / (double)dim);
        double sin_w = sin(w), cos_w = cos(w), s = 0, c = 1;
        for (int64_t r = 0; r < n; r++) {
            float *plus = args->table + (n - 1 - r) * dim + 2 * m;
            float *minus = args->table + (n - 1 + r) * dim + 2 * m;
            minus[0] = (float)-s;
            plus[0] = (float)s;
            plus[1] = minus[1] = (float)c;
            double next = s * cos_w + c * sin_w;
            c = c * cos_w - s * sin_w;
            s = next;
        }
    }
}
