/*
 * What dropout draws (kernels/random.h), on the device: Philox4x32-10 of a row's name and of where
 * an element stands in it, so that every kernel which meets the element draws the same.
 */
#ifndef S2S_KERNELS_CUDA_DRAW_H
#define S2S_KERNELS_CUDA_DRAW_H

#include "kernels/cuda/cuda.h"

struct cuda_draw {
    const uint32_t *rows; /* NULL: nothing is left out */
    uint32_t key[2], limit, plane;
    float scale; /* of what stays */
};

static inline struct cuda_draw cuda_draw_of(const struct s2s_draw *draw, int64_t plane)
{
    const struct cuda_draw d = {draw->rows,
                                {(uint32_t)draw->key, (uint32_t)(draw->key >> 32)},
                                (uint32_t)((double)draw->rate * 4294967296.0),
                                (uint32_t)plane,
                                1.0f / (1.0f - draw->rate)};
    return d;
}

/* The four words of elements 4 block .. 4 block + 3; `plane` is counted from the draw's. */
static __device__ __forceinline__ void cuda_draw_words(uint32_t (&c)[4], const cuda_draw &d,
                                                       int64_t row, uint32_t block, uint32_t plane)
{
    uint32_t k0 = d.key[0], k1 = d.key[1];
    c[0] = d.rows[2 * row];
    c[1] = d.rows[2 * row + 1];
    c[2] = block;
    c[3] = d.plane + plane;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xd2511f53U * c[0], p1 = (uint64_t)0xcd9e8d57U * c[2];
        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)p1;
        c[3] = (uint32_t)p0;
        k0 += 0x9e3779b9U;
        k1 += 0xbb67ae85U;
    }
}

/* Word e % 4. */
static __device__ __forceinline__ uint32_t cuda_draw_pick(const uint32_t (&words)[4], uint32_t e)
{
    const uint32_t low = e & 1 ? words[1] : words[0], high = e & 1 ? words[3] : words[2];
    return e & 2 ? high : low;
}

/* What element e of a row is multiplied with: 0, or what makes up for those left out. */
static __device__ __forceinline__ float cuda_kept(const cuda_draw &d, int64_t row, uint32_t e,
                                                  uint32_t plane)
{
    uint32_t words[4];
    cuda_draw_words(words, d, row, e / 4, plane);
    return cuda_draw_pick(words, e) < d.limit ? 0.0f : d.scale;
}

/* Those of elements e and f, which are drawn at once where they are of one block. */
static __device__ __forceinline__ float2 cuda_kept_two(const cuda_draw &d, int64_t row, uint32_t e,
                                                       uint32_t f, uint32_t plane)
{
    uint32_t words[4];
    cuda_draw_words(words, d, row, e / 4, plane);
    const bool first = cuda_draw_pick(words, e) < d.limit;
    if (e / 4 != f / 4)
        cuda_draw_words(words, d, row, f / 4, plane);
    const bool second = cuda_draw_pick(words, f) < d.limit;
    return make_float2(first ? 0.0f : d.scale, second ? 0.0f : d.scale);
}

#endif
