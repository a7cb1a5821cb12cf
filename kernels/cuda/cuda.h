/*
 * What the files of the CUDA table share: the queue, matrices as kernels see them, loads and stores
 * of both element types, and sums over a block. C++ for nvcc and, with the emulator, for g++.
 *
 * A matrix may be F32 or BF16 wherever the list has one: kernels branch on the type, which is the
 * same for all threads, at each access of CUDA_WIDE elements; they compute in fp32.
 */
#ifndef S2S_KERNELS_CUDA_CUDA_H
#define S2S_KERNELS_CUDA_CUDA_H

#include <math.h>
#include <stdint.h>

#include "kernels/cuda/blas.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rt.h"
#include "kernels/cuda/upload.h"
#include "kernels/kernels.h"

/* What queue->handle is. */
struct cuda_queue {
    struct rt_device device;
    struct rt_stream *stream;
    struct blas *blas;
    float *sums; /* fp32 of a product that is not rounded yet, of so many bytes */
    size_t sums_bytes;
    bool tf32;  /* products of F32 */
    bool wgmma; /* the device has the instructions of sm_90a */
    struct upload upload;
};

struct s2s_collectives;
const struct s2s_collectives *cuda_collectives(void);

static inline struct cuda_queue *cuda_queue_of(const struct s2s_queue *queue)
{
    return (struct cuda_queue *)queue->handle;
}

static inline int64_t cuda_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Elements that a thread takes at a time where alignment allows: 16 bytes of BF16. */
enum { CUDA_WIDE = 8, CUDA_BLOCK = 256 };

struct cuda_mat {
    char *data;
    int64_t stride;
    bool bf16;
};

static inline struct cuda_mat cuda_mat(const struct s2s_mat *mat)
{
    struct cuda_mat m = {(char *)mat->data, mat->stride, mat->dtype == S2S_BF16};
    return m;
}

static inline struct cuda_mat cuda_mat_none(void)
{
    struct cuda_mat m = {NULL, 0, false};
    return m;
}

/* Whether all rows begin where 16-byte accesses may, and hold whole groups of CUDA_WIDE. */
static inline bool cuda_is_wide(const struct s2s_mat *mat, int64_t cols)
{
    const int64_t group = mat->dtype == S2S_BF16 ? 8 : 4;
    return !mat->data ||
           ((uintptr_t)mat->data % 16 == 0 && mat->stride % group == 0 && cols % CUDA_WIDE == 0);
}

/* Whether two neighbours of every row begin where they are one access. */
static inline bool cuda_is_paired(const struct s2s_mat *mat, int64_t cols)
{
    const uintptr_t pair = mat->dtype == S2S_BF16 ? 4 : 8;
    return !mat->data ||
           ((uintptr_t)mat->data % pair == 0 && mat->stride % 2 == 0 && cols % 2 == 0);
}

/* ---- on the device ---- */

struct alignas(16) cuda_words {
    uint32_t w[4];
};

static __device__ __forceinline__ float cuda_of_bits(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } x;
    x.u = bits;
    return x.f;
}

static __device__ __forceinline__ uint32_t cuda_bits(float value)
{
    union {
        uint32_t u;
        float f;
    } x;
    x.f = value;
    return x.u;
}

static __device__ __forceinline__ float cuda_of_bf16(uint16_t bits)
{
    return cuda_of_bits((uint32_t)bits << 16);
}

static __device__ __forceinline__ uint16_t cuda_to_bf16(float x)
{
    return (uint16_t)pack_bf16(x, 0);
}

static __device__ __forceinline__ float cuda_get(const struct cuda_mat &m, int64_t row, int64_t col)
{
    const int64_t at = row * m.stride + col;
    return m.bf16 ? cuda_of_bf16(((const uint16_t *)m.data)[at]) : ((const float *)m.data)[at];
}

static __device__ __forceinline__ void cuda_put(const struct cuda_mat &m, int64_t row, int64_t col,
                                                float x)
{
    const int64_t at = row * m.stride + col;
    if (m.bf16)
        ((uint16_t *)m.data)[at] = cuda_to_bf16(x);
    else
        ((float *)m.data)[at] = x;
}

/* N elements from col on: CUDA_WIDE or 2, aligned, or 1. */
template <int N>
static __device__ __forceinline__ void cuda_load(float (&x)[N], const struct cuda_mat &m,
                                                 int64_t row, int64_t col)
{
    if constexpr (N == 1) {
        x[0] = cuda_get(m, row, col);
    } else if constexpr (N == 2) {
        const int64_t at = row * m.stride + col;
        if (m.bf16) {
            const uint32_t pair = *(const uint32_t *)((const uint16_t *)m.data + at);
            x[0] = cuda_of_bits(pair << 16);
            x[1] = cuda_of_bits(pair & 0xffff0000u);
        } else {
            const float2 pair = *(const float2 *)((const float *)m.data + at);
            x[0] = pair.x;
            x[1] = pair.y;
        }
    } else if (m.bf16) {
        const struct cuda_words v =
            *(const struct cuda_words *)((const uint16_t *)m.data + row * m.stride + col);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = cuda_of_bits(v.w[i] << 16);
            x[2 * i + 1] = cuda_of_bits(v.w[i] & 0xffff0000u);
        }
    } else {
        const struct cuda_words *from =
            (const struct cuda_words *)((const float *)m.data + row * m.stride + col);
        const struct cuda_words a = from[0], b = from[1];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = cuda_of_bits(a.w[i]);
            x[4 + i] = cuda_of_bits(b.w[i]);
        }
    }
}

template <int N>
static __device__ __forceinline__ void cuda_store(const struct cuda_mat &m, int64_t row,
                                                  int64_t col, const float (&x)[N])
{
    if constexpr (N == 1) {
        cuda_put(m, row, col, x[0]);
    } else if constexpr (N == 2) {
        const int64_t at = row * m.stride + col;
        if (m.bf16)
            *(uint32_t *)((uint16_t *)m.data + at) = pack_bf16(x[0], x[1]);
        else
            *(float2 *)((float *)m.data + at) = make_float2(x[0], x[1]);
    } else if (m.bf16) {
        struct cuda_words v;
#pragma unroll
        for (int i = 0; i < 4; i++)
            v.w[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
        *(struct cuda_words *)((uint16_t *)m.data + row * m.stride + col) = v;
    } else {
        struct cuda_words a, b, *to = (struct cuda_words *)((float *)m.data + row * m.stride + col);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a.w[i] = cuda_bits(x[i]);
            b.w[i] = cuda_bits(x[4 + i]);
        }
        to[0] = a;
        to[1] = b;
    }
}

/* Adds to what is there, or stores. */
template <int N>
static __device__ __forceinline__ void cuda_update(const struct cuda_mat &m, int64_t row,
                                                   int64_t col, const float (&x)[N],
                                                   bool accumulate)
{
    float y[N];
    if (accumulate) {
        cuda_load(y, m, row, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            y[i] += x[i];
        cuda_store(m, row, col, y);
    } else {
        cuda_store(m, row, col, x);
    }
}

template <class T> static __device__ __forceinline__ T cuda_warp_sum(T x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x += shfl_xor(x, step);
    return x;
}

/* The sum over a block of whole warps, for all its threads. room: 32 of them in shared memory,
 * which the next call with the same room may use again. */
template <class T> static __device__ __forceinline__ T cuda_block_sum(T x, T *room)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    x = cuda_warp_sum(x);
    __syncthreads();
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    return cuda_warp_sum(lane < n_warps ? room[lane] : (T)0);
}

/* ---- the entries ---- */

#define X(name, suffix, kind, mats) ENTRY_##name,
enum entry { S2S_KERNELS(X) N_ENTRIES };
#undef X

/* A status: CUDA_ABSENT + an entry that is called and is not there. Those below are the runtime's
 * and the library's. */
enum { CUDA_ABSENT = 4000 };

#define PLAIN(name, suffix)
#define WORKSPACE(name, suffix) \
    size_t cuda_##name##_workspace(const struct s2s_queue *queue, \
                                   const struct s2s_k_##suffix *args);
#define X(name, suffix, kind, mats) \
    void cuda_##name(struct s2s_queue *queue, const struct s2s_k_##suffix *args); \
    kind(name, suffix)
S2S_KERNELS(X)
#undef X
#undef PLAIN
#undef WORKSPACE

#endif
