/*
 * Layer norm of rows with an optional sum in front:
 *   h = residual + alpha x,  y = gain (h - mean) rstd + bias
 * and backward, with xhat = (h - mean) rstd and u = gain dy:
 *   dh = dsum + rstd (u - mean(u) - xhat mean(u xhat)),  dgain = sum dy xhat,  dbias = sum dy
 * One thread a row; a row stays in the first-level cache for its passes.
 */
#include "kernels/cpu/cpu.h"

CPU_INLINE void row_moments(const void *h, int64_t cols, float eps, float *mean_out,
                            float *rstd_out, bool bf16)
{
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < cols; i++)
        sum += cpu_load(h, i, bf16);
    float mean = sum / (float)cols;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < cols; i++)
        squares += (cpu_load(h, i, bf16) - mean) * (cpu_load(h, i, bf16) - mean);
    *mean_out = mean;
    *rstd_out = 1.0f / sqrtf(squares / (float)cols + eps);
}

CPU_INLINE void forward_row(const struct s2s_k_layernorm *args, int64_t r, bool bf16)
{
    const int64_t cols = args->cols;
    const float *gain = args->gain, *bias = args->bias;
    const void *h = cpu_any_row(&args->x, r);
    if (args->residual.data) {
        const void *x = h, *residual = cpu_any_row(&args->residual, r);
        void *sum = cpu_any_row(&args->sum, r);
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            cpu_store(sum, i, cpu_load(residual, i, bf16) + args->alpha * cpu_load(x, i, bf16),
                      bf16);
        h = sum;
    }
    float mean, rstd;
    void *y = cpu_any_row(&args->y, r);
    row_moments(h, cols, args->eps, &mean, &rstd, bf16);
#pragma omp simd
    for (int64_t i = 0; i < cols; i++)
        cpu_store(y, i, gain[i] * ((cpu_load(h, i, bf16) - mean) * rstd) + bias[i], bf16);
    if (args->stats) {
        args->stats[2 * r] = mean;
        args->stats[2 * r + 1] = rstd;
    }
}

void cpu_layernorm(struct s2s_queue *queue, const struct s2s_k_layernorm *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        if (cpu_is_bf16(&args->x))
            forward_row(args, r, true);
        else
            forward_row(args, r, false);
}

size_t cpu_layernorm_backward_workspace(const struct s2s_queue *queue,
                                        const struct s2s_k_layernorm_backward *args)
{
    /* per block dgain, dbias and a row of dh; then the totals */
    return (size_t)(cpu_ceil_div(args->rows, CPU_ROW_BLOCK) * 3 + 2) * (size_t)args->cols *
           sizeof(float);
}

/* dh of one row, in place of nothing: into dh */
CPU_INLINE void backward_row(const struct s2s_k_layernorm_backward *args, int64_t r,
                             float *restrict dh, bool bf16)
{
    const int64_t cols = args->cols;
    const void *h = cpu_any_row(&args->h, r);
    const void *dsum = args->dsum.data ? cpu_any_row(&args->dsum, r) : NULL;
    const float *gain = args->gain;
    if (args->dy.data) {
        const void *dy = cpu_any_row(&args->dy, r);
        float mean = args->stats[2 * r], rstd = args->stats[2 * r + 1], a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
        for (int64_t i = 0; i < cols; i++) {
            float u = gain[i] * cpu_load(dy, i, bf16);
            a += u;
            b += u * ((cpu_load(h, i, bf16) - mean) * rstd);
        }
        a /= (float)cols;
        b /= (float)cols;
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            dh[i] = rstd * (gain[i] * cpu_load(dy, i, bf16) - a -
                            (cpu_load(h, i, bf16) - mean) * rstd * b);
    } else {
        memset(dh, 0, (size_t)cols * sizeof *dh);
    }
    if (dsum)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            dh[i] += cpu_load(dsum, i, bf16);
}

CPU_INLINE void store(const struct s2s_mat *out, int64_t r, const float *dh, float alpha,
                      int64_t cols, bool accumulate, bool bf16)
{
    if (!out->data)
        return;
    void *to = cpu_any_row(out, r);
    if (accumulate)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            cpu_store(to, i, cpu_load(to, i, bf16) + alpha * dh[i], bf16);
    else
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            cpu_store(to, i, alpha * dh[i], bf16);
}

CPU_INLINE void add_gains(const struct s2s_k_layernorm_backward *args, int64_t r, float *dgain,
                          float *dbias, bool bf16)
{
    const void *h = cpu_any_row(&args->h, r), *dy = cpu_any_row(&args->dy, r);
    const float mean = args->stats[2 * r], rstd = args->stats[2 * r + 1];
#pragma omp simd
    for (int64_t i = 0; i < args->cols; i++) {
        dgain[i] += cpu_load(dy, i, bf16) * ((cpu_load(h, i, bf16) - mean) * rstd);
        dbias[i] += cpu_load(dy, i, bf16);
    }
}

/* One row; sum [dgain, dbias] (NULL: not wanted), dh: room for a row */
CPU_INLINE void one_row(const struct s2s_k_layernorm_backward *args, int64_t r, float *sum,
                        float *dh, bool bf16)
{
    if (sum)
        add_gains(args, r, sum, sum + args->cols, bf16);
    backward_row(args, r, dh, bf16);
    store(&args->dx, r, dh, args->alpha, args->cols, args->accumulate_dx, bf16);
    store(&args->dresidual, r, dh, 1, args->cols, args->accumulate_dresidual, bf16);
}

void cpu_layernorm_backward(struct s2s_queue *queue, const struct s2s_k_layernorm_backward *args)
{
    const int64_t cols = args->cols, n_blocks = cpu_ceil_div(args->rows, CPU_ROW_BLOCK);
    const bool gains = args->dy.data && (args->dgain || args->dbias);
    float *partial = args->workspace; /* [n_blocks][dgain, dbias] */
    float *total = partial + n_blocks * 2 * cols, *rows = total + 2 * cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *dh = rows + b * cols, *sum = partial + b * 2 * cols;
        memset(sum, 0, (size_t)(2 * cols) * sizeof *sum);
        for (int64_t r = b * CPU_ROW_BLOCK; r < (b + 1) * CPU_ROW_BLOCK && r < args->rows; r++)
            if (cpu_is_bf16(&args->h))
                one_row(args, r, gains ? sum : NULL, dh, true);
            else
                one_row(args, r, gains ? sum : NULL, dh, false);
    }
    if (!gains)
        return;
    cpu_add_partials(total, partial, n_blocks, 2 * cols, false);
    for (int64_t i = 0; i < cols; i++) {
        if (args->dgain)
            args->dgain[i] += total[i];
        if (args->dbias)
            args->dbias[i] += total[cols + i];
    }
}
