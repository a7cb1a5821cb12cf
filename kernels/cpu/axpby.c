/* y = alpha x + beta z, rows apart. Bound by memory: one pass. */
#include "kernels/cpu/cpu.h"

CPU_INLINE void one_row(const struct s2s_k_axpby *args, int64_t r, bool bf16_x, bool bf16)
{
    const float alpha = args->alpha, beta = args->beta;
    const int64_t cols = args->cols;
    const void *x = cpu_any_row(&args->x, r), *z = args->z.data ? cpu_any_row(&args->z, r) : NULL;
    void *y = cpu_any_row(&args->y, r);
    if (!z)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            cpu_store(y, i, alpha * cpu_load(x, i, bf16_x), bf16);
    else
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            cpu_store(y, i, alpha * cpu_load(x, i, bf16_x) + beta * cpu_load(z, i, bf16), bf16);
}

void cpu_axpby(struct s2s_queue *queue, const struct s2s_k_axpby *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        if (cpu_is_bf16(&args->x))
            one_row(args, r, true, true);
        else if (cpu_is_bf16(&args->y))
            one_row(args, r, false, true);
        else
            one_row(args, r, false, false);
}
