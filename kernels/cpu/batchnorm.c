/*
 * Batch norm over the rows of a packed batch, with silu behind it:
 *   z = gain (x - mean) rstd + bias,  y = z sigmoid(z)  (or z)
 * backward, with dz = dy silu'(z) and xhat = (x - mean) rstd:
 *   dgain = sum dz xhat,  dbias = sum dz,  dx = gain rstd (dz - [mean(dz) + xhat mean(dz xhat)])
 * the bracket only where mean and variance are the batch's own. z is computed again in backward.
 * Sums over rows are partial sums of CPU_ROW_BLOCK rows, added in order.
 */
#include "kernels/cpu/cpu.h"

size_t cpu_column_stats_workspace(const struct s2s_queue *queue,
                                  const struct s2s_k_column_stats *args)
{
    return (size_t)((cpu_ceil_div(args->rows, CPU_ROW_BLOCK)) * args->cols) * sizeof(float);
}

/* out = sum over rows of x - shift (squared where asked), over the number of rows */
static void mean_of(struct s2s_queue *queue, const struct s2s_k_column_stats *args,
                    const float *shift, bool square, float *out)
{
    const int64_t cols = args->cols, n_blocks = cpu_ceil_div(args->rows, CPU_ROW_BLOCK);
    float *partial = args->workspace;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *sum = partial + b * cols;
        memset(sum, 0, (size_t)cols * sizeof *sum);
        for (int64_t r = b * CPU_ROW_BLOCK; r < (b + 1) * CPU_ROW_BLOCK && r < args->rows; r++) {
            const float *x = cpu_row(&args->x, r);
            if (square)
#pragma omp simd
                for (int64_t i = 0; i < cols; i++)
                    sum[i] += (x[i] - shift[i]) * (x[i] - shift[i]);
            else
#pragma omp simd
                for (int64_t i = 0; i < cols; i++)
                    sum[i] += x[i];
        }
    }
    cpu_add_partials(out, partial, n_blocks, cols, false);
    for (int64_t i = 0; i < cols; i++)
        out[i] /= args->rows ? (float)args->rows : 1;
}

void cpu_column_stats(struct s2s_queue *queue, const struct s2s_k_column_stats *args)
{
    mean_of(queue, args, NULL, false, args->mean);
    mean_of(queue, args, args->mean, true, args->var);
}

/* z = scale x + shift would cancel where mean is large; this form does not */
static inline float normed(float x, float mean, float rstd, float gain, float bias)
{
    return gain * ((x - mean) * rstd) + bias;
}

static inline float rstd_of(float var, float eps)
{
    return 1.0f / sqrtf(var + eps);
}

void cpu_batchnorm(struct s2s_queue *queue, const struct s2s_k_batchnorm *args)
{
    const int64_t cols = args->cols;
    const float *mean = args->mean, *var = args->var, *gain = args->gain, *bias = args->bias;
    const float eps = args->eps;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++) {
        const float *x = cpu_row(&args->x, r);
        float *y = cpu_row(&args->y, r);
        if (args->silu)
#pragma omp simd
            for (int64_t i = 0; i < cols; i++) {
                float z = normed(x[i], mean[i], rstd_of(var[i], eps), gain[i], bias[i]);
                y[i] = z * cpu_sigmoid(z);
            }
        else
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                y[i] = normed(x[i], mean[i], rstd_of(var[i], eps), gain[i], bias[i]);
    }
}

size_t cpu_batchnorm_backward_workspace(const struct s2s_queue *queue,
                                        const struct s2s_k_batchnorm_backward *args)
{
    const struct s2s_k_batchnorm *f = &args->forward;
    return (size_t)(cpu_ceil_div(f->rows, CPU_ROW_BLOCK) * 2 + 2) * (size_t)f->cols * sizeof(float);
}

static inline float slope(bool silu, float z)
{
    float s = cpu_sigmoid(z);
    return silu ? s * (1.0f + z * (1.0f - s)) : 1.0f;
}

/* total [2][cols] = sums of dz and dz xhat */
static float *sum_gradients(struct s2s_queue *queue, const struct s2s_k_batchnorm_backward *args)
{
    const struct s2s_k_batchnorm *f = &args->forward;
    const int64_t cols = f->cols, n_blocks = cpu_ceil_div(f->rows, CPU_ROW_BLOCK);
    const bool silu = f->silu;
    float *partial = args->workspace, *total = partial + n_blocks * 2 * cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (f->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *restrict plain = partial + b * 2 * cols, *restrict scaled = plain + cols;
        memset(plain, 0, (size_t)(2 * cols) * sizeof *plain);
        for (int64_t r = b * CPU_ROW_BLOCK; r < (b + 1) * CPU_ROW_BLOCK && r < f->rows; r++) {
            const float *x = cpu_row(&f->x, r), *dy = cpu_row(&args->dy, r);
#pragma omp simd
            for (int64_t i = 0; i < cols; i++) {
                float xhat = (x[i] - f->mean[i]) * rstd_of(f->var[i], f->eps);
                float dz = dy[i] * slope(silu, f->gain[i] * xhat + f->bias[i]);
                plain[i] += dz;
                scaled[i] += dz * xhat;
            }
        }
    }
    cpu_add_partials(total, partial, n_blocks, 2 * cols, false);
    return total;
}

static void backward_input(struct s2s_queue *queue, const struct s2s_k_batchnorm_backward *args,
                           const float *total)
{
    const struct s2s_k_batchnorm *f = &args->forward;
    const int64_t cols = f->cols;
    const bool silu = f->silu, accumulate = args->accumulate_dx;
    const float share = args->from_batch && f->rows ? 1.0f / (float)f->rows : 0.0f;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (f->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < f->rows; r++) {
        const float *x = cpu_row(&f->x, r), *dy = cpu_row(&args->dy, r);
        float *dx = cpu_row(&args->dx, r);
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            float rstd = rstd_of(f->var[i], f->eps), xhat = (x[i] - f->mean[i]) * rstd;
            float dz = dy[i] * slope(silu, f->gain[i] * xhat + f->bias[i]);
            float d = f->gain[i] * rstd * (dz - share * (total[i] + xhat * total[cols + i]));
            dx[i] = accumulate ? dx[i] + d : d;
        }
    }
}

void cpu_batchnorm_backward(struct s2s_queue *queue, const struct s2s_k_batchnorm_backward *args)
{
    const int64_t cols = args->forward.cols;
    const float *total = sum_gradients(queue, args);
    for (int64_t i = 0; i < cols; i++) {
        if (args->dbias)
            args->dbias[i] += total[i];
        if (args->dgain)
            args->dgain[i] += total[cols + i];
    }
    if (args->dx.data)
        backward_input(queue, args, total);
}
