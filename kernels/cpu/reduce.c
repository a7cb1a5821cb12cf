/* Sums of a matrix in double: blocks of a row of a fixed size, added in order. */
#include "kernels/cpu/cpu.h"

enum { BLOCK = 32768 };

size_t cpu_reduce_workspace(const struct s2s_queue *queue, const struct s2s_k_reduce *args)
{
    return (size_t)(args->rows * cpu_ceil_div(args->cols, BLOCK)) * sizeof(double);
}

static double reduce_block(const float *x, int64_t n, enum s2s_reduce what)
{
    double sum = 0;
    switch (what) {
    case S2S_REDUCE_SUM:
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += (double)x[i];
        break;
    case S2S_REDUCE_SUMSQ:
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += (double)x[i] * (double)x[i];
        break;
    case S2S_REDUCE_NONFINITE:
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, x + i, sizeof bits);
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
        int64_t begin = b % a_row * BLOCK, left = args->cols - begin;
        partial[b] = reduce_block(cpu_row(&args->x, b / a_row) + begin, left < BLOCK ? left : BLOCK,
                                  args->what);
    }
    for (int64_t b = 0; b < n_blocks; b++)
        sum += partial[b];
    *args->out = sum;
}
