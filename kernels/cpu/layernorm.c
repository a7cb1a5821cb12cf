/*
 * Layer norm of rows with an optional sum in front:
 *   h = residual + alpha x,  y = gain (h - mean) rstd + bias
 * and backward, with xhat = (h - mean) rstd and u = gain dy:
 *   dh = dsum + rstd (u - mean(u) - xhat mean(u xhat)),  dgain = sum dy xhat,  dbias = sum dy
 * One thread a row; a row stays in the first-level cache for its passes.
 */
#include "kernels/cpu/cpu.h"

static void row_moments(const float *h, int64_t cols, float eps, float *mean_out, float *rstd_out)
{
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < cols; i++)
        sum += h[i];
    float mean = sum / (float)cols;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < cols; i++)
        squares += (h[i] - mean) * (h[i] - mean);
    *mean_out = mean;
    *rstd_out = 1.0f / sqrtf(squares / (float)cols + eps);
}

void cpu_layernorm(struct s2s_queue *queue, const struct s2s_k_layernorm *args)
{
    const int64_t cols = args->cols;
    const float *gain = args->gain, *bias = args->bias;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++) {
        const float *h = cpu_row(&args->x, r);
        if (args->residual.data) {
            const float *x = h, *residual = cpu_row(&args->residual, r);
            float *sum = cpu_row(&args->sum, r);
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                sum[i] = residual[i] + args->alpha * x[i];
            h = sum;
        }
        float mean, rstd, *y = cpu_row(&args->y, r);
        row_moments(h, cols, args->eps, &mean, &rstd);
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            y[i] = gain[i] * ((h[i] - mean) * rstd) + bias[i];
        if (args->stats) {
            args->stats[2 * r] = mean;
            args->stats[2 * r + 1] = rstd;
        }
    }
}

size_t cpu_layernorm_backward_workspace(const struct s2s_queue *queue,
                                        const struct s2s_k_layernorm_backward *args)
{
    /* per block dgain, dbias and a row of dh; then the totals */
    return (size_t)(cpu_ceil_div(args->rows, CPU_ROW_BLOCK) * 3 + 2) * (size_t)args->cols *
           sizeof(float);
}

/* dh of one row, in place of nothing: into dh */
static void backward_row(const struct s2s_k_layernorm_backward *args, int64_t r, float *restrict dh)
{
    const int64_t cols = args->cols;
    const float *h = cpu_row(&args->h, r), *dsum = args->dsum.data ? cpu_row(&args->dsum, r) : NULL;
    const float *gain = args->gain;
    if (args->dy.data) {
        const float *dy = cpu_row(&args->dy, r);
        float mean = args->stats[2 * r], rstd = args->stats[2 * r + 1], a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
        for (int64_t i = 0; i < cols; i++) {
            float u = gain[i] * dy[i];
            a += u;
            b += u * ((h[i] - mean) * rstd);
        }
        a /= (float)cols;
        b /= (float)cols;
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            dh[i] = rstd * (gain[i] * dy[i] - a - (h[i] - mean) * rstd * b);
    } else {
        memset(dh, 0, (size_t)cols * sizeof *dh);
    }
    if (dsum)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            dh[i] += dsum[i];
}

static void store(const struct s2s_mat *out, int64_t r, const float *dh, float alpha, int64_t cols,
                  bool accumulate)
{
    if (!out->data)
        return;
    float *to = cpu_row(out, r);
    if (accumulate)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            to[i] += alpha * dh[i];
    else
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            to[i] = alpha * dh[i];
}

static void add_gains(const struct s2s_k_layernorm_backward *args, int64_t r, float *dgain,
                      float *dbias)
{
    const float *h = cpu_row(&args->h, r), *dy = cpu_row(&args->dy, r);
    const float mean = args->stats[2 * r], rstd = args->stats[2 * r + 1];
#pragma omp simd
    for (int64_t i = 0; i < args->cols; i++) {
        dgain[i] += dy[i] * ((h[i] - mean) * rstd);
        dbias[i] += dy[i];
    }
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
        for (int64_t r = b * CPU_ROW_BLOCK; r < (b + 1) * CPU_ROW_BLOCK && r < args->rows; r++) {
            if (gains)
                add_gains(args, r, sum, sum + cols);
            backward_row(args, r, dh);
            store(&args->dx, r, dh, args->alpha, cols, args->accumulate_dx);
            store(&args->dresidual, r, dh, 1, cols, args->accumulate_dresidual);
        }
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
