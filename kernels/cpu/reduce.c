/* Sums of a matrix in double: blocks of a row of a fixed size, added in order. */
#include "kernels/cpu/cpu.h"

enum { BLOCK = 32768 };

size_t cpu_reduce_workspace(const struct s2s_queue *queue, const struct s2s_k_reduce *args)
{
    return (size_t)(args->rows * cpu_ceil_div(args->cols, BLOCK)) * sizeof(double);
}

CPU_INLINE double reduce_block(const void *x, int64_t n, enum s2s_reduce what, bool bf16)
{
    double sum = 0;
    switch (what) {
    case S2S_REDUCE_SUM:
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += (double)cpu_load(x, i, bf16);
        break;
    case S2S_REDUCE_SUMSQ:
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += (double)cpu_load(x, i, bf16) * (double)cpu_load(x, i, bf16);
        break;
    case S2S_REDUCE_NONFINITE:
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = s2s_bits_of_f32(cpu_load(x, i, bf16));
            sum += (bits & 0x7f800000u) == 0x7f800000u;
        }
        break;
    }
    return sum;
}

void cpu_reduce(struct s2s_queue *queue, const struct s2s_k_reduce *args)
{
    double *partial = args->workspace, sum = args->accumulate ? *args->out : 0;
    const int64_t a_row = cpu_ceil_div(args->cols, BLOCK), n_blocks = args->rows * a_row;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > BLOCK)
    for (int64_t b = 0; b < n_blocks; b++) {
        const int64_t begin = b % a_row * BLOCK, left = args->cols - begin;
        const int64_t n = left < BLOCK ? left : BLOCK;
        const void *x = cpu_any_row(&args->x, b / a_row);
        partial[b] = cpu_is_bf16(&args->x)
                         ? reduce_block(cpu_from(x, begin, true), n, args->what, true)
                         : reduce_block(cpu_from(x, begin, false), n, args->what, false);
    }
    for (int64_t b = 0; b < n_blocks; b++)
        sum += partial[b];
    *args->out = sum;
}
