/* What a warp makes of one row of a router's logits: its scores, and the largest numbers of it. */
#ifndef S2S_KERNELS_CUDA_MOE_ROW_H
#define S2S_KERNELS_CUDA_MOE_ROW_H

#include "kernels/cuda/cuda.h"

/* Rows of a block, one a warp. Lane l has the numbers l, l + 32, .. of its row. */
enum { MOE_WARPS = 4, MOE_THREADS = MOE_WARPS * 32 };

static inline unsigned moe_grid(int64_t rows)
{
    return (unsigned)cuda_ceil_div(rows, MOE_WARPS);
}

/* The row of this warp, and its part of shared memory of so many floats a warp. */
static __device__ __forceinline__ int64_t moe_row_of_warp()
{
    return (int64_t)blockIdx.x * MOE_WARPS + threadIdx.x / 32;
}

static __device__ __forceinline__ float moe_warp_max(float x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, shfl_xor(x, step));
    return x;
}

struct moe_row {
    float max, exp; /* the largest logit, the sum of exp(l - max) */
    float sum;      /* of the scores */
};

/* s[n] = the scores of a row. Lanes see each other's after a __syncwarp. */
static __device__ __forceinline__ moe_row moe_look(float *s, const struct cuda_mat &logits,
                                                   int64_t r, int n, enum s2s_score score)
{
    const int lane = (int)threadIdx.x % 32;
    moe_row row = {-INFINITY, 0, 0};
    for (int e = lane; e < n; e += 32)
        row.max = fmaxf(row.max, cuda_get(logits, r, e));
    row.max = moe_warp_max(row.max);
    for (int e = lane; e < n; e += 32) {
        const float l = cuda_get(logits, r, e), x = expf(l - row.max);
        s[e] = score == S2S_SCORE_SOFTMAX ? x : 1 / (1 + expf(-l));
        row.exp += x;
        row.sum += s[e];
    }
    row.exp = cuda_warp_sum(row.exp);
    row.sum = cuda_warp_sum(row.sum);
    if (score == S2S_SCORE_SIGMOID)
        return row;
    for (int e = lane; e < n; e += 32)
        s[e] /= row.exp;
    row.sum = 1;
    return row;
}

/* ---- the largest, of equals the first ---- */

struct moe_best {
    float x;
    int e;
};

static __device__ __forceinline__ moe_best moe_before_all()
{
    return {INFINITY, -1};
}

static __device__ __forceinline__ bool moe_is_before(const moe_best &a, const moe_best &b)
{
    return a.x > b.x || (a.x == b.x && a.e < b.e);
}

/* A number that can be compared: NaN is the smallest. */
static __device__ __forceinline__ float moe_comparable(float x)
{
    return x == x ? x : -INFINITY;
}

/* Of x[e], e = begin, begin + step .. below end, the first in order that comes after `last`; bit i
 * of closed says that the i-th of these does not count. */
static __device__ __forceinline__ moe_best moe_next(const float *x, int begin, int end, int step,
                                                    moe_best last, uint32_t closed)
{
    moe_best best = {-INFINITY, INT32_MAX};
    for (int e = begin; e < end; e += step, closed >>= 1) {
        const moe_best here = {x[e], e};
        if (!(closed & 1) && moe_is_before(last, here) && moe_is_before(here, best))
            best = here;
    }
    return best;
}

/* The same of the numbers of all lanes: x[n], which all of them see. */
static __device__ __forceinline__ moe_best moe_next_of_row(const float *x, int n, moe_best last,
                                                           uint32_t closed)
{
    moe_best best = moe_next(x, (int)threadIdx.x % 32, n, 32, last, closed);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const moe_best other = {shfl_xor(best.x, step), shfl_xor(best.e, step)};
        if (moe_is_before(other, best))
            best = other;
    }
    return best;
}

#endif
