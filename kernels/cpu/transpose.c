/* y[r] (+)= transpose of x[r], [a, b] -> [b, a], in tiles of 16 x 16 (a cache line each way). */
#include "kernels/cpu/cpu.h"

enum { TILE = 16 };

CPU_INLINE void transpose_tile(const void *x, void *y, int64_t a, int64_t b, int64_t i0, int64_t j0,
                               bool accumulate, bool bf16)
{
    const int64_t i1 = i0 + TILE < a ? i0 + TILE : a, j1 = j0 + TILE < b ? j0 + TILE : b;
    for (int64_t j = j0; j < j1; j++)
        for (int64_t i = i0; i < i1; i++)
            cpu_store(y, j * a + i,
                      cpu_load(x, i * b + j, bf16) +
                          (accumulate ? cpu_load(y, j * a + i, bf16) : 0),
                      bf16);
}

void cpu_transpose(struct s2s_queue *queue, const struct s2s_k_transpose *args)
{
    const int64_t a = args->a, b = args->b;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * a * b > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        for (int64_t i = 0; i < a; i += TILE)
            for (int64_t j = 0; j < b; j += TILE)
                if (cpu_is_bf16(&args->x))
                    transpose_tile(cpu_any_row(&args->x, r), cpu_any_row(&args->y, r), a, b, i, j,
                                   args->accumulate, true);
                else
                    transpose_tile(cpu_any_row(&args->x, r), cpu_any_row(&args->y, r), a, b, i, j,
                                   args->accumulate, false);
}
