/* y = alpha x + beta z, rows apart. Bound by memory: one pass. */
#include "kernels/cpu/cpu.h"

void cpu_axpby(struct s2s_queue *queue, const struct s2s_k_axpby *args)
{
    const float alpha = args->alpha, beta = args->beta;
    const int64_t cols = args->cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++) {
        const float *x = cpu_row(&args->x, r);
        float *y = cpu_row(&args->y, r);
        const float *z = args->z.data ? cpu_row(&args->z, r) : NULL;
        if (!z)
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                y[i] = alpha * x[i];
        else
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                y[i] = alpha * x[i] + beta * z[i];
    }
}
