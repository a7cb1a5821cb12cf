/* Gather and scatter of whole rows, whose indices differ from each other, so that any order is the
 * same; and sums of rows, each in its own order. */
#include "kernels/cpu/cpu.h"

static void put_row(float *dst, const float *src, int64_t cols, bool accumulate)
{
    if (accumulate)
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            dst[i] += src[i];
    else
        memcpy(dst, src, (size_t)cols * sizeof *dst);
}

void cpu_gather_rows(struct s2s_queue *queue, const struct s2s_k_rows *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * args->cols > CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < args->n; i++) {
        float *dst = cpu_row(&args->dst, i);
        if (args->idx[i] >= 0)
            put_row(dst, cpu_row(&args->src, args->idx[i]), args->cols, args->accumulate);
        else if (!args->accumulate)
            memset(dst, 0, (size_t)args->cols * sizeof *dst);
    }
}

void cpu_scatter_rows(struct s2s_queue *queue, const struct s2s_k_rows *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * args->cols > CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < args->n; i++)
        if (args->idx[i] >= 0)
            put_row(cpu_row(&args->dst, args->idx[i]), cpu_row(&args->src, i), args->cols,
                    args->accumulate);
}

void cpu_rows_sum(struct s2s_queue *queue, const struct s2s_k_rows_sum *args)
{
    const int64_t cols = args->cols, n_sources = args->n_sources;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * n_sources * cols > CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < args->n; i++) {
        float *dst = cpu_row(&args->dst, i);
        if (!args->accumulate)
            memset(dst, 0, (size_t)cols * sizeof *dst);
        for (int64_t j = i * n_sources; j < (i + 1) * n_sources; j++) {
            if (args->idx[j] < 0)
                continue;
            const float *src = cpu_row(&args->src, args->idx[j]);
            const float weight = args->weights ? args->weights[j] : 1.0f;
#pragma omp simd
            for (int64_t c = 0; c < cols; c++)
                dst[c] += weight * src[c];
        }
    }
}

void cpu_rows_sum_backward(struct s2s_queue *queue, const struct s2s_k_rows_sum_backward *args)
{
    const int64_t cols = args->cols, n = args->n * args->n_sources;
#pragma omp parallel for num_threads(queue->lanes) schedule(static) if (n * cols > CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < n; i++) {
        const float *dy = cpu_row(&args->ddst, i / args->n_sources);
        const float weight = args->weights ? args->weights[i] : 1.0f;
        const int32_t at = args->idx[i];
        if (args->dsrc.data && at >= 0) {
            float *dx = cpu_row(&args->dsrc, at);
#pragma omp simd
            for (int64_t c = 0; c < cols; c++)
                dx[c] = weight * dy[c];
        }
        if (!args->dweights)
            continue;
        float sum = 0;
        const float *x = at >= 0 ? cpu_row(&args->src, at) : NULL;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < (x ? cols : 0); c++)
            sum += x[c] * dy[c];
        args->dweights[i] = sum;
    }
}
