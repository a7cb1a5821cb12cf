/*
 * Sums over rows (gradients of biases and gains). Blocks of CPU_ROW_BLOCK rows give partial sums,
 * which are added in order: the same bytes on any number of threads.
 */
#include "kernels/cpu/cpu.h"

size_t cpu_colsum_workspace(const struct s2s_queue *queue, const struct s2s_k_colsum *args)
{
    return (size_t)(cpu_ceil_div(args->rows, CPU_ROW_BLOCK) * args->cols) * sizeof(float);
}

CPU_INLINE void add_row(float *sum, const void *x, int64_t cols, bool bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < cols; i++)
        sum[i] += cpu_load(x, i, bf16);
}

void cpu_colsum(struct s2s_queue *queue, const struct s2s_k_colsum *args)
{
    const int64_t cols = args->cols, n_blocks = cpu_ceil_div(args->rows, CPU_ROW_BLOCK);
    float *partial = args->workspace;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *sum = partial + b * cols;
        int64_t end = (b + 1) * CPU_ROW_BLOCK < args->rows ? (b + 1) * CPU_ROW_BLOCK : args->rows;
        memset(sum, 0, (size_t)cols * sizeof *sum);
        for (int64_t r = b * CPU_ROW_BLOCK; r < end; r++)
            if (cpu_is_bf16(&args->x))
                add_row(sum, cpu_any_row(&args->x, r), cols, true);
            else
                add_row(sum, cpu_any_row(&args->x, r), cols, false);
    }
    cpu_add_partials(args->out, partial, n_blocks, cols, args->accumulate);
}

void cpu_add_partials(float *out, const float *partial, int64_t n_partials, int64_t cols,
                      bool accumulate)
{
    if (!accumulate)
        memset(out, 0, (size_t)cols * sizeof *out);
    for (int64_t b = 0; b < n_partials; b++) {
        const float *sum = partial + b * cols;
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            out[i] += sum[i];
    }
}
