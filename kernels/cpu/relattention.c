/*
 * Attention with relative positions (Dai et al. 2019, the form of Conformer), packed clips:
 *   S_ij = scale ((q_i + u) k_j + (q_i + v) p_{i-j}),  P = exp(S - lse),  O = P V
 *
 * For a block of n_q queries and the n_k keys of a clip the second product is taken with the
 * n_q + n_k - 1 rows of p that the block can meet; query row i then finds its keys at columns
 * n_q - 1 - i + j: the relative shift is a pointer, nothing is moved. All products are the
 * library's; a block of scores stays in the second-level cache.
 *
 * Backward computes P again from lse. Clips share p: groups of clips, cut by their number alone,
 * add into parts of their own, which are then added in order.
 */
#include <omp.h>

#include "kernels/cpu/cpu.h"

enum { Q_BLOCK = 64, MAX_GROUPS = 4 };

typedef struct s2s_k_relattention fwd_args;

struct block {
    int64_t q0, n_q; /* rows of q */
    int64_t k0, n_k; /* rows of k */
    int64_t p0, n_p; /* rows of p */
};

static bool find_block(struct block *blk, const fwd_args *args, int64_t s, int64_t idx)
{
    int64_t k0 = args->cu[s], n_k = args->cu[s + 1] - k0, at = idx * Q_BLOCK;
    if (at >= n_k)
        return false;
    blk->q0 = k0 + at;
    blk->n_q = n_k - at < Q_BLOCK ? n_k - at : Q_BLOCK;
    blk->k0 = k0;
    blk->n_k = n_k;
    /* the last query of the block and the first key: the largest i - j, the first row */
    blk->p0 = args->max_seqlen - 1 - (at + blk->n_q - 1);
    blk->n_p = blk->n_q + n_k - 1;
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

/* One thread's: scores, scores before the shift, queries with u, with v. */
static int64_t forward_floats(const fwd_args *args)
{
    return Q_BLOCK * (score_stride(args) + shift_stride(args) + 2 * args->dim);
}

struct work {
    float *s, *shifted, *qu, *qv;
};

static struct work forward_work(const fwd_args *args, float *at)
{
    float *shifted = at + Q_BLOCK * score_stride(args);
    float *qu = shifted + Q_BLOCK * shift_stride(args);
    return (struct work){at, shifted, qu, qu + Q_BLOCK * args->dim};
}

static float *head_of(const struct s2s_mat *mat, int64_t row, int64_t head, int64_t dim)
{
    return cpu_row(mat, row) + head * dim;
}

size_t cpu_relattention_workspace(const struct s2s_queue *queue, const fwd_args *args)
{
    return (size_t)queue->lanes * (size_t)forward_floats(args) * sizeof(float);
}

/* qu = scale (q + u), qv = scale (q + v) */
static void add_biases(const fwd_args *args, const struct block *blk, int64_t head,
                       const struct work *w)
{
    const int64_t dim = args->dim;
    const float *u = args->u + head * dim, *v = args->v + head * dim;
    for (int64_t i = 0; i < blk->n_q; i++) {
        const float *q = head_of(&args->q, blk->q0 + i, head, dim);
        float *qu = w->qu + i * dim, *qv = w->qv + i * dim;
#pragma omp simd
        for (int64_t d = 0; d < dim; d++) {
            qu[d] = args->scale * (q[d] + u[d]);
            qv[d] = args->scale * (q[d] + v[d]);
        }
    }
}

/* w->s = q k part, w->shifted = q p part before the shift */
static void products(const fwd_args *args, const struct block *blk, int64_t head,
                     const struct work *w)
{
    const int64_t dim = args->dim;
    add_biases(args, blk, head, w);
    cpu_sgemm(false, true, blk->n_q, blk->n_k, dim, 1, w->qu, dim,
              head_of(&args->k, blk->k0, head, dim), args->k.stride, 0, w->s, score_stride(args));
    cpu_sgemm(false, true, blk->n_q, blk->n_p, dim, 1, w->qv, dim,
              head_of(&args->p, blk->p0, head, dim), args->p.stride, 0, w->shifted,
              shift_stride(args));
}

/* The n_k values of query row i among those before the shift. */
static float *shifted_row(const fwd_args *args, const struct block *blk, float *shifted, int64_t i)
{
    return shifted + i * shift_stride(args) + blk->n_q - 1 - i;
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

static void forward_block(const fwd_args *args, const struct block *blk, int64_t head,
                          const struct work *w)
{
    const int64_t dim = args->dim, stride = score_stride(args);
    float *o = head_of(&args->o, blk->q0, head, dim), inverse[Q_BLOCK];
    products(args, blk, head, w);
    for (int64_t i = 0; i < blk->n_q; i++) {
        float max, sum = softmax_row(w->s + i * stride, shifted_row(args, blk, w->shifted, i),
                                     blk->n_k, &max);
        inverse[i] = 1.0f / sum;
        if (args->lse)
            args->lse[(blk->q0 + i) * args->n_heads + head] = max + logf(sum);
    }
    cpu_sgemm(false, false, blk->n_q, dim, blk->n_k, 1, w->s, stride,
              head_of(&args->value, blk->k0, head, dim), args->value.stride, 0, o, args->o.stride);
    for (int64_t i = 0; i < blk->n_q; i++) {
        float *row = o + i * args->o.stride;
#pragma omp simd
        for (int64_t d = 0; d < dim; d++)
            row[d] *= inverse[i];
    }
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

/* One thread's: the forward's, then dP, dS before the shift, and the gradient of the queries. */
static int64_t backward_floats(const fwd_args *f)
{
    return forward_floats(f) + Q_BLOCK * (score_stride(f) + shift_stride(f) + f->dim);
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
};

static struct backward_work make_backward_work(const fwd_args *f, float *at)
{
    float *dp = at + forward_floats(f), *dshifted = dp + Q_BLOCK * score_stride(f);
    return (struct backward_work){forward_work(f, at), dp, dshifted,
                                  dshifted + Q_BLOCK * shift_stride(f)};
}

/* f.s = P, dp = dshifted = dS (zeros where no key stands) */
static void backward_scores(const bwd_args *args, const struct block *blk, int64_t head,
                            const struct backward_work *w)
{
    const fwd_args *f = &args->forward;
    for (int64_t i = 0; i < blk->n_q; i++) {
        const float lse = f->lse[(blk->q0 + i) * f->n_heads + head];
        float sum = 0, delta = 0, *p = w->f.s + i * score_stride(f),
              *dp = w->dp + i * score_stride(f);
        const float *shifted = shifted_row(f, blk, w->f.shifted, i);
        float *row = w->dshifted + i * shift_stride(f), *ds = shifted_row(f, blk, w->dshifted, i);
        /* the row's own sums, so that roundings of lse and dp do not stay in dS */
#pragma omp simd reduction(+ : sum, delta)
        for (int64_t j = 0; j < blk->n_k; j++) {
            p[j] = cpu_exp(p[j] + shifted[j] - lse);
            sum += p[j];
            delta += p[j] * dp[j];
        }
        const float inverse = sum > 0 ? 1.0f / sum : 0;
        delta *= inverse;
        memset(row, 0, (size_t)blk->n_p * sizeof *row);
#pragma omp simd
        for (int64_t j = 0; j < blk->n_k; j++) {
            float e = p[j] * inverse;
            float d = e * (dp[j] - delta);
            p[j] = e;
            dp[j] = d;
            ds[j] = d;
        }
    }
}

/* dq (+)= scale w->dq, bias += its rows' sum */
static void add_queries(const bwd_args *args, const struct block *blk, int64_t head,
                        const float *dq, float *bias, bool accumulate)
{
    const fwd_args *f = &args->forward;
    for (int64_t i = 0; i < blk->n_q; i++) {
        const float *from = dq + i * f->dim;
#pragma omp simd
        for (int64_t d = 0; d < f->dim; d++)
            bias[d] += f->scale * from[d];
        if (!args->dq.data)
            continue;
        float *to = head_of(&args->dq, blk->q0 + i, head, f->dim);
#pragma omp simd
        for (int64_t d = 0; d < f->dim; d++)
            to[d] = (accumulate ? to[d] : 0) + f->scale * from[d];
    }
}

static void backward_block(const bwd_args *args, const struct block *blk, int64_t head,
                           const struct backward_work *w, float *part)
{
    const fwd_args *f = &args->forward;
    const int64_t dim = f->dim, width = f->n_heads * dim, ss = score_stride(f);
    const int64_t sh = shift_stride(f);
    const float *d_o = head_of(&args->d_o, blk->q0, head, dim);
    float *part_u = part + (2 * f->max_seqlen - 1) * width, *part_v = part_u + width;
    products(f, blk, head, &w->f);
    cpu_sgemm(false, true, blk->n_q, blk->n_k, dim, 1, d_o, args->d_o.stride,
              head_of(&f->value, blk->k0, head, dim), f->value.stride, 0, w->dp, ss);
    backward_scores(args, blk, head, w);
    if (args->dvalue.data)
        cpu_sgemm(true, false, blk->n_k, dim, blk->n_q, 1, w->f.s, ss, d_o, args->d_o.stride, 1,
                  head_of(&args->dvalue, blk->k0, head, dim), args->dvalue.stride);
    if (args->dk.data)
        cpu_sgemm(true, false, blk->n_k, dim, blk->n_q, 1, w->dp, ss, w->f.qu, dim, 1,
                  head_of(&args->dk, blk->k0, head, dim), args->dk.stride);
    if (args->dp.data)
        cpu_sgemm(true, false, blk->n_p, dim, blk->n_q, 1, w->dshifted, sh, w->f.qv, dim, 1,
                  part + blk->p0 * width + head * dim, width);
    cpu_sgemm(false, false, blk->n_q, dim, blk->n_k, 1, w->dp, ss,
              head_of(&f->k, blk->k0, head, dim), f->k.stride, 0, w->dq, dim);
    add_queries(args, blk, head, w->dq, part_u + head * dim, args->accumulate_dq);
    cpu_sgemm(false, false, blk->n_q, dim, blk->n_p, 1, w->dshifted, sh,
              head_of(&f->p, blk->p0, head, dim), f->p.stride, 0, w->dq, dim);
    add_queries(args, blk, head, w->dq, part_v + head * dim, true);
}

static void zero_rows(const struct s2s_mat *mat, int64_t begin, int64_t end, int64_t head,
                      int64_t dim)
{
    for (int64_t r = begin; mat->data && r < end; r++)
        memset(head_of(mat, r, head, dim), 0, (size_t)dim * sizeof(float));
}

/* One head of the clips of one group, in order. */
static void backward_head(const bwd_args *args, int64_t group, int64_t head,
                          const struct backward_work *w, float *part)
{
    const fwd_args *f = &args->forward;
    const int64_t width = f->n_heads * f->dim, n = n_groups(f);
    for (int64_t r = 0; r < 2 * f->max_seqlen + 1; r++)
        memset(part + r * width + head * f->dim, 0, (size_t)f->dim * sizeof *part);
    for (int64_t s = group * f->n_seqs / n; s < (group + 1) * f->n_seqs / n; s++) {
        struct block blk;
        if (!args->accumulate_dk)
            zero_rows(&args->dk, f->cu[s], f->cu[s + 1], head, f->dim);
        if (!args->accumulate_dvalue)
            zero_rows(&args->dvalue, f->cu[s], f->cu[s + 1], head, f->dim);
        for (int64_t b = 0; find_block(&blk, f, s, b); b++)
            backward_block(args, &blk, head, w, part);
    }
}

/* Adds the groups' parts, in order. */
static void add_parts(struct s2s_queue *queue, const bwd_args *args, const float *parts)
{
    const fwd_args *f = &args->forward;
    const int64_t width = f->n_heads * f->dim, n_rows = 2 * f->max_seqlen - 1;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (n_rows * width > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < n_rows + 2; r++) {
        float *to = r == n_rows       ? args->du
                    : r == n_rows + 1 ? args->dv
                    : args->dp.data   ? cpu_row(&args->dp, r)
                                      : NULL;
        if (!to)
            continue;
        if (r < n_rows && !args->accumulate_dp)
            memset(to, 0, (size_t)width * sizeof *to);
        for (int64_t g = 0; g < n_groups(f); g++) {
            const float *from = parts + g * part_floats(f) + r * width;
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                to[i] += from[i];
        }
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
