/*
 * Batch norm over the rows of a packed batch, with silu after it:
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

/* sum += x - shift of a row, squared where asked */
CPU_INLINE void add_row(float *sum, const void *x, const float *shift, bool square, int64_t cols,
                        bool bf16)
{
    if (square)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            sum[i] += (cpu_load(x, i, bf16) - shift[i]) * (cpu_load(x, i, bf16) - shift[i]);
    else
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            sum[i] += cpu_load(x, i, bf16);
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
        for (int64_t r = b * CPU_ROW_BLOCK; r < (b + 1) * CPU_ROW_BLOCK && r < args->rows; r++)
            if (cpu_is_bf16(&args->x))
                add_row(sum, cpu_any_row(&args->x, r), shift, square, cols, true);
            else
                add_row(sum, cpu_any_row(&args->x, r), shift, square, cols, false);
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

CPU_INLINE void forward_row(const struct s2s_k_batchnorm *args, int64_t r, bool bf16)
{
    const int64_t cols = args->cols;
    const float *mean = args->mean, *var = args->var, *gain = args->gain, *bias = args->bias;
    const float eps = args->eps;
    const void *x = cpu_any_row(&args->x, r);
    void *y = cpu_any_row(&args->y, r);
    if (args->silu)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            float z = normed(cpu_load(x, i, bf16), mean[i], rstd_of(var[i], eps), gain[i], bias[i]);
            cpu_store(y, i, z * cpu_sigmoid(z), bf16);
        }
    else
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            cpu_store(y, i,
                      normed(cpu_load(x, i, bf16), mean[i], rstd_of(var[i], eps), gain[i], bias[i]),
                      bf16);
}

void cpu_batchnorm(struct s2s_queue *queue, const struct s2s_k_batchnorm *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        if (cpu_is_bf16(&args->x))
            forward_row(args, r, true);
        else
            forward_row(args, r, false);
}

size_t cpu_batchnorm_backward_workspace(const struct s2s_queue *queue,
                                        const struct s2s_k_batchnorm_backward *args)
{
    const struct s2s_k_batchnorm *f = &args->forward;
    /* two partial sums a block, their totals, and rstd */
    return (size_t)(cpu_ceil_div(f->rows, CPU_ROW_BLOCK) * 2 + 3) * (size_t)f->cols * sizeof(float);
}

/* silu is a constant in each call below, so that each becomes a loop of its own; vectors stand in
 * locals, which no store can change, so that the loops become vector code */
CPU_INLINE float slope(bool silu, float z)
{
    if (!silu)
        return 1.0f;
    float s = cpu_sigmoid(z);
    return s * (1.0f + z * (1.0f - s));
}

/* What a row's loop reads of the columns. */
struct columns {
    const float *mean, *rstd, *gain, *bias;
    int64_t n;
};

/* plain += dz, scaled += dz xhat */
CPU_INLINE void sum_row(bool silu, const struct columns *col, const void *x, const void *dy,
                        float *plain, float *scaled, bool bf16)
{
    const float *mean = col->mean, *rstd = col->rstd, *gain = col->gain, *bias = col->bias;
    const int64_t n = col->n;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float xhat = (cpu_load(x, i, bf16) - mean[i]) * rstd[i];
        float dz = cpu_load(dy, i, bf16) * slope(silu, gain[i] * xhat + bias[i]);
        plain[i] += dz;
        scaled[i] += dz * xhat;
    }
}

/* total [2][cols] = sums of dz and dz xhat */
static void sum_gradients(struct s2s_queue *queue, const struct s2s_k_batchnorm_backward *args,
                          const struct columns *col, float *total)
{
    const struct s2s_k_batchnorm *f = &args->forward;
    const int64_t cols = f->cols, n_blocks = cpu_ceil_div(f->rows, CPU_ROW_BLOCK);
    float *partial = args->workspace;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (f->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *plain = partial + b * 2 * cols, *scaled = plain + cols;
        memset(plain, 0, (size_t)(2 * cols) * sizeof *plain);
        for (int64_t r = b * CPU_ROW_BLOCK; r < (b + 1) * CPU_ROW_BLOCK && r < f->rows; r++) {
            const void *x = cpu_any_row(&f->x, r), *dy = cpu_any_row(&args->dy, r);
            if (cpu_is_bf16(&f->x) && f->silu)
                sum_row(true, col, x, dy, plain, scaled, true);
            else if (cpu_is_bf16(&f->x))
                sum_row(false, col, x, dy, plain, scaled, true);
            else if (f->silu)
                sum_row(true, col, x, dy, plain, scaled, false);
            else
                sum_row(false, col, x, dy, plain, scaled, false);
        }
    }
    cpu_add_partials(total, partial, n_blocks, 2 * cols, false);
}

/*
 * dx (+)= gain rstd (dz - share (sum of dz + xhat sum of dz xhat)) of columns [begin, begin + n);
 * dx may be dy. Through two small arrays, so that the compiler rounds dz and the product each by
 * itself, however it makes the loops: then the bytes do not depend on them.
 */
enum { CHUNK = 256 };

CPU_INLINE void input_chunk(bool silu, bool accumulate, const struct columns *col, int64_t begin,
                            int64_t n, const void *x, const void *dy, void *dx, const float *total,
                            float share, bool bf16)
{
    const float *mean = col->mean + begin, *rstd = col->rstd + begin, *gain = col->gain + begin;
    const float *bias = col->bias + begin, *plain = total + begin, *scaled = plain + col->n;
    float dz[CHUNK], d[CHUNK];
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dz[i] = cpu_load(dy, i, bf16) *
                slope(silu, gain[i] * ((cpu_load(x, i, bf16) - mean[i]) * rstd[i]) + bias[i]);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float xhat = (cpu_load(x, i, bf16) - mean[i]) * rstd[i];
        d[i] = gain[i] * rstd[i] * (dz[i] - share * (plain[i] + xhat * scaled[i]));
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        cpu_store(dx, i, accumulate ? cpu_load(dx, i, bf16) + d[i] : d[i], bf16);
}

CPU_INLINE void input_row(bool silu, bool accumulate, const struct columns *col, const void *x,
                          const void *dy, void *dx, const float *total, float share, bool bf16)
{
    for (int64_t begin = 0; begin < col->n; begin += CHUNK) {
        const int64_t left = col->n - begin;
        input_chunk(silu, accumulate, col, begin, left < CHUNK ? left : CHUNK,
                    cpu_from(x, begin, bf16), cpu_from(dy, begin, bf16), cpu_from(dx, begin, bf16),
                    total, share, bf16);
    }
}

static void backward_input(struct s2s_queue *queue, const struct s2s_k_batchnorm_backward *args,
                           const struct columns *col, const float *total)
{
    const struct s2s_k_batchnorm *f = &args->forward;
    const float share = args->from_batch && f->rows ? 1.0f / (float)f->rows : 0.0f;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (f->rows * f->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < f->rows; r++) {
        const void *x = cpu_any_row(&f->x, r), *dy = cpu_any_row(&args->dy, r);
        void *dx = cpu_any_row(&args->dx, r);
        const bool adds = args->accumulate_dx;
        if (cpu_is_bf16(&f->x) && f->silu)
            input_row(true, adds, col, x, dy, dx, total, share, true);
        else if (cpu_is_bf16(&f->x))
            input_row(false, adds, col, x, dy, dx, total, share, true);
        else if (f->silu && adds)
            input_row(true, true, col, x, dy, dx, total, share, false);
        else if (f->silu)
            input_row(true, false, col, x, dy, dx, total, share, false);
        else if (adds)
            input_row(false, true, col, x, dy, dx, total, share, false);
        else
            input_row(false, false, col, x, dy, dx, total, share, false);
    }
}

void cpu_batchnorm_backward(struct s2s_queue *queue, const struct s2s_k_batchnorm_backward *args)
{
    const struct s2s_k_batchnorm *f = &args->forward;
    const int64_t cols = f->cols, n_blocks = cpu_ceil_div(f->rows, CPU_ROW_BLOCK);
    float *total = (float *)args->workspace + n_blocks * 2 * cols, *rstd = total + 2 * cols;
    for (int64_t i = 0; i < cols; i++)
        rstd[i] = rstd_of(f->var[i], f->eps);
    const struct columns col = {f->mean, rstd, f->gain, f->bias, cols};
    sum_gradients(queue, args, &col, total);
    for (int64_t i = 0; i < cols; i++) {
        if (args->dbias)
            args->dbias[i] += total[i];
        if (args->dgain)
            args->dgain[i] += total[cols + i];
    }
    if (args->dx.data)
        backward_input(queue, args, &col, total);
}
