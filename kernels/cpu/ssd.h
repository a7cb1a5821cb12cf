/*
 * What the scan and its gradients share: how work is divided, and what the steps of a chunk make of
 * a state.
 *
 * A chunk is up to SSD_CHUNK rows of a sequence. In it, with s_t the sum of the step times A up to
 * row t, S the state in front of it and v = step x (Dao & Gu 2024):
 *   y_t = sum_{u <= t} exp(s_t - s_u) (c_t . b_u) v_u + exp(s_t) S c_t + skip x_t
 *   S after it = exp(s_last) S + sum_u exp(s_last - s_u) v_u b_u^T
 * so that nearly all is products of matrices of a chunk's size. A part of the work is some heads of
 * one group in one sequence, which share the products of its b and c.
 */
#ifndef S2S_KERNELS_CPU_SSD_H
#define S2S_KERNELS_CPU_SSD_H

#include "kernels/cpu/cpu.h"

enum { SSD_CHUNK = 64, SSD_HEADS = 8, SSD_PARTS = 8 };

struct ssd_part {
    int64_t seq, group, block;
    int64_t head, n_heads; /* the first of them */
    int64_t begin, len;    /* rows */
};

/* Heads of a part: SSD_HEADS, or fewer where that would make less than SSD_PARTS parts. */
static inline int64_t ssd_heads(const struct s2s_k_ssd *a)
{
    const int64_t all = a->n_heads / a->n_groups, groups = a->n_seqs * a->n_groups;
    int64_t heads = SSD_HEADS;
    while (heads > 1 && (heads >= 2 * all || groups * cpu_ceil_div(all, heads) < SSD_PARTS))
        heads /= 2;
    return heads;
}

/* Blocks of heads of a group. */
static inline int64_t ssd_blocks(const struct s2s_k_ssd *a)
{
    return cpu_ceil_div(a->n_heads / a->n_groups, ssd_heads(a));
}

static inline int64_t ssd_n_parts(const struct s2s_k_ssd *a)
{
    return a->n_groups > 0 ? a->n_seqs * a->n_groups * ssd_blocks(a) : 0;
}

static inline struct ssd_part ssd_part(const struct s2s_k_ssd *a, int64_t i)
{
    const int64_t all = a->n_heads / a->n_groups, heads = ssd_heads(a), blocks = ssd_blocks(a);
    struct ssd_part part = {
        .block = i % blocks, .group = i / blocks % a->n_groups, .seq = i / blocks / a->n_groups};
    const int64_t at = part.block * heads;
    part.head = part.group * all + at;
    part.n_heads = all - at < heads ? all - at : heads;
    part.begin = a->cu[part.seq];
    part.len = a->cu[part.seq + 1] - part.begin;
    return part;
}

static inline int64_t ssd_state(const struct s2s_k_ssd *a)
{
    return a->dim * a->state;
}

/* Where the state of a sequence and head stands in initial or final. */
static inline int64_t ssd_state_at(const struct s2s_k_ssd *a, int64_t seq, int64_t head)
{
    return (seq * a->n_heads + head) * ssd_state(a);
}

/* log(1 + e) of e in [0, 1]: 2 atanh(e / (2 + e)), by its series. */
static inline float ssd_log1p(float e)
{
    const float z = e / (2.0f + e), q = z * z;
    float p = 1.0f / 17;
    p = p * q + 1.0f / 15;
    p = p * q + 1.0f / 13;
    p = p * q + 1.0f / 11;
    p = p * q + 1.0f / 9;
    p = p * q + 1.0f / 7;
    p = p * q + 1.0f / 5;
    p = p * q + 1.0f / 3;
    return 2.0f * (z + z * (q * p));
}

/* What the n rows of a chunk do to the state of a head. */
struct ssd_times {
    float step[SSD_CHUNK], slope[SSD_CHUNK]; /* slope: the step's derivative by dt */
    float high[SSD_CHUNK], low[SSD_CHUNK];   /* sums s_t, as two floats: differences are exact */
    float rise[SSD_CHUNK];                   /* exp(s_t) */
    float left[SSD_CHUNK];                   /* exp(s_last - s_t) */
    float rate, decay;                       /* A; exp(s_last) */
};

/* Zeros behind the n-th. */
static inline void ssd_times(struct ssd_times *w, const struct s2s_k_ssd *a, int64_t head,
                             int64_t row, int64_t n)
{
    const bool bf16 = cpu_is_bf16(&a->dt);
    const float bias = a->dt_bias ? a->dt_bias[head] : 0, least = a->dt_min;
    float z[SSD_CHUNK] = {0};
    for (int64_t t = 0; t < n; t++)
        z[t] = cpu_load(cpu_any_row(&a->dt, row + t), head, bf16) + bias;
#pragma omp simd
    for (int64_t t = 0; t < SSD_CHUNK; t++) {
        const float e = cpu_exp(-fabsf(z[t]));
        const float step = (z[t] > 0 ? z[t] : 0) + ssd_log1p(e);
        const bool clamped = step < least;
        w->step[t] = clamped ? least : step;
        w->slope[t] = clamped ? 0 : (z[t] > 0 ? 1 : e) / (1 + e);
    }
    w->rate = -expf(a->a_log[head]);
    double sum = 0;
    for (int64_t t = 0; t < SSD_CHUNK; t++) {
        sum += t < n ? (double)(w->step[t] * w->rate) : 0;
        w->high[t] = (float)sum;
        w->low[t] = (float)(sum - w->high[t]);
    }
    const float high = w->high[SSD_CHUNK - 1], low = w->low[SSD_CHUNK - 1];
#pragma omp simd
    for (int64_t t = 0; t < SSD_CHUNK; t++) {
        w->rise[t] = cpu_exp(w->high[t]);
        w->left[t] = cpu_exp((high - w->high[t]) + (low - w->low[t]));
    }
    w->decay = w->rise[SSD_CHUNK - 1];
}

/* Rows of a part of a matrix as floats without gaps; zeros where there is none. */
static inline void ssd_rows(float *restrict to, const struct s2s_mat *mat, int64_t row, int64_t n,
                            int64_t col, int64_t cols)
{
    const bool bf16 = cpu_is_bf16(mat);
    for (int64_t t = 0; t < n; t++, to += cols) {
        if (!mat->data) {
            memset(to, 0, (size_t)cols * sizeof *to);
            continue;
        }
        const void *from = cpu_from(cpu_any_row(mat, row + t), col, bf16);
        if (!bf16)
            memcpy(to, from, (size_t)cols * sizeof *to);
        else
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                to[i] = cpu_load(from, i, true);
    }
}

/* to [n, cols] = from, each row by two factors; to may be from */
static inline void ssd_scale(float *to, const float *from, const float *first, const float *second,
                             int64_t n, int64_t cols)
{
    for (int64_t t = 0; t < n; t++) {
        const float factor = first[t] * (second ? second[t] : 1);
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            to[t * cols + i] = from[t * cols + i] * factor;
    }
}

/* Rows outside of all sequences = 0. */
static inline void ssd_zero_others(const struct s2s_k_ssd *a, const struct s2s_mat *mat,
                                   int64_t cols)
{
    const int64_t begin = a->n_seqs ? a->cu[0] : 0, end = a->n_seqs ? a->cu[a->n_seqs] : 0;
    cpu_zero_part(mat, 0, 0, begin, cols);
    cpu_zero_part(mat, end, 0, a->n - end, cols);
}

#endif
