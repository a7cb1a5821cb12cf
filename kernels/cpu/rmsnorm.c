/*
 * h = x + residual;  rstd = 1/sqrt(mean(h^2) + eps);  y = (gain + offset) h rstd
 * dh = dsum + rstd (u - h rstd^2 mean(u h)),  u = (gain + offset) dy;  dgain = sum_rows dy h rstd
 *
 * One pass over memory each way: a row stays in the first-level cache between its two loops.
 */
#include "kernels/cpu/cpu.h"

static float sum_squares(const float *h, int64_t cols)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < cols; i++)
        sum += h[i] * h[i];
    return sum;
}

void cpu_rmsnorm(struct s2s_queue *queue, const struct s2s_k_rmsnorm *args)
{
    const int64_t cols = args->cols;
    const float *gain = args->gain, offset = args->gain_offset;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++) {
        const float *h = cpu_row(&args->x, r);
        if (args->residual.data) {
            const float *x = h, *residual = cpu_row(&args->residual, r);
            float *sum = cpu_row(&args->sum, r);
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                sum[i] = x[i] + residual[i];
            h = sum;
        }
        float rstd = 1.0f / sqrtf(sum_squares(h, cols) / (float)cols + args->eps);
        float *y = cpu_row(&args->y, r);
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            y[i] = (gain[i] + offset) * (h[i] * rstd);
        if (args->rstd)
            args->rstd[r] = rstd;
    }
}

size_t cpu_rmsnorm_backward_workspace(const struct s2s_queue *queue,
                                      const struct s2s_k_rmsnorm_backward *args)
{
    return (size_t)(cpu_ceil_div(args->rows, CPU_ROW_BLOCK) * args->cols) * sizeof(float);
}

/* dh of one row into dx; adds dy h rstd to dgain */
static void backward_row(const struct s2s_k_rmsnorm_backward *args, int64_t r, float *dgain)
{
    const int64_t cols = args->cols;
    const float *h = cpu_row(&args->h, r), *dy = cpu_row(&args->dy, r), *gain = args->gain;
    const float offset = args->gain_offset, rstd = args->rstd[r];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < cols; i++)
        dot += (gain[i] + offset) * dy[i] * h[i];
    const float scale = dot / (float)cols * rstd * rstd * rstd;
    if (dgain)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            dgain[i] += dy[i] * (h[i] * rstd);
    const float *dsum = args->dsum.data ? cpu_row(&args->dsum, r) : NULL;
    float *outs[2] = {args->dx.data ? cpu_row(&args->dx, r) : NULL,
                      args->dresidual.data ? cpu_row(&args->dresidual, r) : NULL};
    const float add[2] = {args->accumulate_dx, args->accumulate_dresidual};
    /* dx may be dsum: the other output is written first */
    for (int o = 1; o >= 0; o--) {
        float *out = outs[o];
        if (!out)
            continue;
        if (dsum)
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                out[i] = (add[o] != 0 ? out[i] : 0.0f) + dsum[i] +
                         ((gain[i] + offset) * dy[i] * rstd - h[i] * scale);
        else
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                out[i] = (add[o] != 0 ? out[i] : 0.0f) +
                         ((gain[i] + offset) * dy[i] * rstd - h[i] * scale);
    }
}

/* no gradient through the norm: dh = dsum */
static void pass_row(const struct s2s_k_rmsnorm_backward *args, int64_t r)
{
    const float *dsum = cpu_row(&args->dsum, r);
    if (args->dresidual.data) {
        float *out = cpu_row(&args->dresidual, r);
        for (int64_t i = 0; i < args->cols; i++)
            out[i] = (args->accumulate_dresidual ? out[i] : 0.0f) + dsum[i];
    }
    if (args->dx.data && args->dx.data != args->dsum.data) {
        float *out = cpu_row(&args->dx, r);
        for (int64_t i = 0; i < args->cols; i++)
            out[i] = (args->accumulate_dx ? out[i] : 0.0f) + dsum[i];
    }
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
        for (int64_t r = b * CPU_ROW_BLOCK; r < end; r++) {
            if (args->dy.data)
                backward_row(args, r, dgain);
            else
                pass_row(args, r);
        }
    }
    if (partial)
        cpu_add_partials(args->dgain, partial, n_blocks, cols, true);
}
