/*
 * h = x + residual;  rstd = 1/sqrt(mean(h^2) + eps);  y = (gain + offset) h rstd
 * dh = dsum + rstd (u - h rstd^2 mean(u h)),  u = (gain + offset) dy;  dgain = sum_rows dy h rstd
 *
 * One pass over memory each way: a row stays in the first-level cache between its two loops.
 */
#include "kernels/cpu/cpu.h"

CPU_INLINE float sum_squares(const void *h, int64_t cols, bool bf16)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < cols; i++)
        sum += cpu_load(h, i, bf16) * cpu_load(h, i, bf16);
    return sum;
}

CPU_INLINE void forward_row(const struct s2s_k_rmsnorm *args, int64_t r, bool bf16)
{
    const int64_t cols = args->cols;
    const float *gain = args->gain, offset = args->gain_offset;
    const void *h = cpu_any_row(&args->x, r);
    if (args->residual.data) {
        const void *x = h, *residual = cpu_any_row(&args->residual, r);
        void *sum = cpu_any_row(&args->sum, r);
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            cpu_store(sum, i, cpu_load(x, i, bf16) + cpu_load(residual, i, bf16), bf16);
        h = sum;
    }
    float rstd = 1.0f / sqrtf(sum_squares(h, cols, bf16) / (float)cols + args->eps);
    void *y = cpu_any_row(&args->y, r);
#pragma omp simd
    for (int64_t i = 0; i < cols; i++)
        cpu_store(y, i, (gain[i] + offset) * (cpu_load(h, i, bf16) * rstd), bf16);
    if (args->rstd)
        args->rstd[r] = rstd;
}

void cpu_rmsnorm(struct s2s_queue *queue, const struct s2s_k_rmsnorm *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        if (cpu_is_bf16(&args->x))
            forward_row(args, r, true);
        else
            forward_row(args, r, false);
}

size_t cpu_rmsnorm_backward_workspace(const struct s2s_queue *queue,
                                      const struct s2s_k_rmsnorm_backward *args)
{
    return (size_t)(cpu_ceil_div(args->rows, CPU_ROW_BLOCK) * args->cols) * sizeof(float);
}

/* dh of one row into dx; adds dy h rstd to dgain */
CPU_INLINE void backward_row(const struct s2s_k_rmsnorm_backward *args, int64_t r, float *dgain,
                             bool bf16)
{
    const int64_t cols = args->cols;
    const void *h = cpu_any_row(&args->h, r), *dy = cpu_any_row(&args->dy, r);
    const float *gain = args->gain, offset = args->gain_offset, rstd = args->rstd[r];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < cols; i++)
        dot += (gain[i] + offset) * cpu_load(dy, i, bf16) * cpu_load(h, i, bf16);
    const float scale = dot / (float)cols * rstd * rstd * rstd;
    if (dgain)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            dgain[i] += cpu_load(dy, i, bf16) * (cpu_load(h, i, bf16) * rstd);
    const void *dsum = args->dsum.data ? cpu_any_row(&args->dsum, r) : NULL;
    void *outs[2] = {args->dx.data ? cpu_any_row(&args->dx, r) : NULL,
                     args->dresidual.data ? cpu_any_row(&args->dresidual, r) : NULL};
    const float add[2] = {args->accumulate_dx, args->accumulate_dresidual};
    /* dx may be dsum: the other output is written first */
    for (int o = 1; o >= 0; o--) {
        void *out = outs[o];
        if (!out)
            continue;
        if (dsum)
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                cpu_store(out, i,
                          (add[o] != 0 ? cpu_load(out, i, bf16) : 0.0f) + cpu_load(dsum, i, bf16) +
                              ((gain[i] + offset) * cpu_load(dy, i, bf16) * rstd -
                               cpu_load(h, i, bf16) * scale),
                          bf16);
        else
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                cpu_store(out, i,
                          (add[o] != 0 ? cpu_load(out, i, bf16) : 0.0f) +
                              ((gain[i] + offset) * cpu_load(dy, i, bf16) * rstd -
                               cpu_load(h, i, bf16) * scale),
                          bf16);
    }
}

/* out (+)= dsum */
CPU_INLINE void pass_to(const struct s2s_mat *out, const void *dsum, int64_t r, int64_t cols,
                        bool accumulate, bool bf16)
{
    void *to = cpu_any_row(out, r);
    for (int64_t i = 0; i < cols; i++)
        cpu_store(to, i, (accumulate ? cpu_load(to, i, bf16) : 0.0f) + cpu_load(dsum, i, bf16),
                  bf16);
}

/* no gradient through the norm: dh = dsum */
CPU_INLINE void pass_row(const struct s2s_k_rmsnorm_backward *args, int64_t r, bool bf16)
{
    const void *dsum = cpu_any_row(&args->dsum, r);
    if (args->dresidual.data)
        pass_to(&args->dresidual, dsum, r, args->cols, args->accumulate_dresidual, bf16);
    if (args->dx.data && args->dx.data != args->dsum.data)
        pass_to(&args->dx, dsum, r, args->cols, args->accumulate_dx, bf16);
}

/* Rows [begin, end). */
CPU_INLINE void backward_rows(const struct s2s_k_rmsnorm_backward *args, int64_t begin, int64_t end,
                              float *dgain, bool bf16)
{
    for (int64_t r = begin; r < end; r++)
        if (args->dy.data)
            backward_row(args, r, dgain, bf16);
        else
            pass_row(args, r, bf16);
}

void cpu_rmsnorm_backward(struct s2s_queue *queue, const struct s2s_k_rmsnorm_backward *args)
{
    const int64_t cols = args->cols, n_blocks = cpu_ceil_div(args->rows, CPU_ROW_BLOCK);
    float *partial = args->dgain && args->dy.data ? args->workspace : NULL;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *dgain = partial ? partial + b * cols : NULL;
        int64_t end = (b + 1) * CPU_ROW_BLOCK < args->rows ? (b + 1) * CPU_ROW_BLOCK : args->rows;
        if (dgain)
            memset(dgain, 0, (size_t)cols * sizeof *dgain);
        if (cpu_is_bf16(&args->h))
            backward_rows(args, b * CPU_ROW_BLOCK, end, dgain, true);
        else
            backward_rows(args, b * CPU_ROW_BLOCK, end, dgain, false);
    }
    if (partial)
        cpu_add_partials(args->dgain, partial, n_blocks, cols, true);
}
