/* Words of Philox4x32-10 for many blocks of one row as vector code, and rows of scores without some
 * of their elements. */
#ifndef S2S_KERNELS_CPU_DRAW_H
#define S2S_KERNELS_CPU_DRAW_H

#include "kernels/cpu/cpu.h"

/* A row's generator, and what its words are compared with. */
struct cpu_draw {
    uint32_t row[2], plane, key[2], limit;
    float scale; /* of what stays */
};

static inline struct cpu_draw cpu_draw(const struct s2s_draw *draw, int64_t row, uint32_t plane)
{
    return (struct cpu_draw){.row = {draw->rows[2 * row], draw->rows[2 * row + 1]},
                             .plane = plane,
                             .key = {(uint32_t)draw->key, (uint32_t)(draw->key >> 32)},
                             .limit = (uint32_t)((double)draw->rate * 0x1p32),
                             .scale = 1.0f / (1.0f - draw->rate)};
}

enum { CPU_DRAW_BLOCKS = 64, CPU_DRAW_WORDS = 4 * CPU_DRAW_BLOCKS };

/* words of blocks first .. first + CPU_DRAW_BLOCKS */
CPU_INLINE void cpu_draw_words(uint32_t *restrict words, const struct cpu_draw *draw,
                               uint32_t first)
{
#pragma omp simd
    for (int b = 0; b < CPU_DRAW_BLOCKS; b++) {
        uint32_t c0 = draw->row[0], c1 = draw->row[1], c2 = first + (uint32_t)b, c3 = draw->plane;
        uint32_t k0 = draw->key[0], k1 = draw->key[1];
        for (int round = 0; round < 10; round++) {
            const uint64_t p0 = (uint64_t)0xd2511f53U * c0, p1 = (uint64_t)0xcd9e8d57U * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)p1;
            c3 = (uint32_t)p0;
            k0 += 0x9e3779b9U;
            k1 += 0xbb67ae85U;
        }
        words[4 * b] = c0;
        words[4 * b + 1] = c1;
        words[4 * b + 2] = c2;
        words[4 * b + 3] = c3;
    }
}

/* Leaves out of p[0..n): element j is at[j], or, where at is NULL, first + j. */
static inline void cpu_drop_scores(const struct cpu_draw *draw, const int32_t *at, int64_t first,
                                   int64_t n, float *p)
{
    uint32_t words[CPU_DRAW_WORDS];
    for (int64_t j = 0; j < n;) {
        const int64_t e = at ? at[j] : first + j, skip = e % 4;
        int64_t run = n - j < CPU_DRAW_WORDS - skip ? n - j : CPU_DRAW_WORDS - skip, i = 1;
        while (at && i < run && at[j + i] == e + i)
            i++;
        run = at ? i : run;
        cpu_draw_words(words, draw, (uint32_t)(e / 4));
#pragma omp simd
        for (i = 0; i < run; i++)
            p[j + i] = words[skip + i] < draw->limit ? 0.0f : draw->scale * p[j + i];
        j += run;
    }
}

#endif
