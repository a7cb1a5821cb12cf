/*
 * Depthwise convolution over time, packed clips, channels last:
 *   y[t, c] = b[c] + sum_k w[c, k] x[t - pad + k, c],  pad = (width - 1) / 2, zeros beyond the clip
 * backward:
 *   dx[t, c] = sum_k w[c, k] dy[t + pad - k, c],  dw[c, k] = sum_t dy[t, c] x[t - pad + k, c]
 *
 * Loops over channels, one tap a pass in the first-level cache; weights first laid out [tap][c].
 * Gradients of weights are partial sums of CPU_ROW_BLOCK rows, added in order.
 */
#include "kernels/cpu/cpu.h"

size_t cpu_dwconv_workspace(const struct s2s_queue *queue, const struct s2s_k_dwconv *args)
{
    return (size_t)(args->width * args->channels) * sizeof(float);
}

static void lay_out_weights(float *table, const struct s2s_k_dwconv *c)
{
    for (int64_t ch = 0; ch < c->channels; ch++)
        for (int64_t k = 0; k < c->width; k++)
            table[k * c->channels + ch] = c->w[ch * c->width + k];
}

static void add_product(float *restrict y, const float *restrict a, const float *restrict b,
                        int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += a[i] * b[i];
}

void cpu_dwconv(struct s2s_queue *queue, const struct s2s_k_dwconv *args)
{
    const int64_t channels = args->channels, pad = (args->width - 1) / 2;
    float *table = args->workspace;
    lay_out_weights(table, args);
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * channels > CPU_PARALLEL_MIN)
    for (int64_t t = 0; t < args->n; t++) {
        int64_t seq = cpu_find_seq(args->cu, args->n_seqs, t);
        float *y = cpu_row(&args->y, t);
        if (args->bias)
            memcpy(y, args->bias, (size_t)channels * sizeof *y);
        else
            memset(y, 0, (size_t)channels * sizeof *y);
        for (int64_t k = 0; k < args->width; k++) {
            int64_t from = t - pad + k;
            if (from >= args->cu[seq] && from < args->cu[seq + 1])
                add_product(y, table + k * channels, cpu_row(&args->x, from), channels);
        }
    }
}

size_t cpu_dwconv_backward_workspace(const struct s2s_queue *queue,
                                     const struct s2s_k_dwconv_backward *args)
{
    const struct s2s_k_dwconv *c = &args->forward;
    int64_t n_blocks = cpu_ceil_div(c->n, CPU_ROW_BLOCK);
    return cpu_dwconv_workspace(queue, c) +
           (size_t)((n_blocks + 1) * (c->width + 1) * c->channels) * sizeof(float);
}

static void backward_input(struct s2s_queue *queue, const struct s2s_k_dwconv_backward *args,
                           const float *table)
{
    const struct s2s_k_dwconv *c = &args->forward;
    const int64_t channels = c->channels, pad = (c->width - 1) / 2;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (c->n * channels > CPU_PARALLEL_MIN)
    for (int64_t t = 0; t < c->n; t++) {
        int64_t seq = cpu_find_seq(c->cu, c->n_seqs, t);
        float *dx = cpu_row(&args->dx, t);
        if (!args->accumulate_dx)
            memset(dx, 0, (size_t)channels * sizeof *dx);
        for (int64_t k = 0; k < c->width; k++) {
            int64_t from = t + pad - k;
            if (from >= c->cu[seq] && from < c->cu[seq + 1])
                add_product(dx, table + k * channels, cpu_row(&args->dy, from), channels);
        }
    }
}

static void backward_weights(struct s2s_queue *queue, const struct s2s_k_dwconv_backward *args,
                             float *partial)
{
    const struct s2s_k_dwconv *c = &args->forward;
    const int64_t channels = c->channels, pad = (c->width - 1) / 2;
    const int64_t n_blocks = cpu_ceil_div(c->n, CPU_ROW_BLOCK), each = (c->width + 1) * channels;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (c->n * channels > CPU_PARALLEL_MIN)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *sum = partial + b * each;
        memset(sum, 0, (size_t)each * sizeof *sum);
        for (int64_t t = b * CPU_ROW_BLOCK; t < (b + 1) * CPU_ROW_BLOCK && t < c->n; t++) {
            int64_t seq = cpu_find_seq(c->cu, c->n_seqs, t);
            const float *dy = cpu_row(&args->dy, t);
            for (int64_t k = 0; k < c->width; k++) {
                int64_t from = t - pad + k;
                if (from >= c->cu[seq] && from < c->cu[seq + 1])
                    add_product(sum + k * channels, dy, cpu_row(&c->x, from), channels);
            }
            float *bias = sum + c->width * channels;
#pragma omp simd
            for (int64_t i = 0; i < channels; i++)
                bias[i] += dy[i];
        }
    }
    float *total = partial + n_blocks * each;
    cpu_add_partials(total, partial, n_blocks, each, false);
    for (int64_t ch = 0; args->dw && ch < channels; ch++)
        for (int64_t k = 0; k < c->width; k++)
            args->dw[ch * c->width + k] += total[k * channels + ch];
    for (int64_t ch = 0; args->dbias && ch < channels; ch++)
        args->dbias[ch] += total[c->width * channels + ch];
}

void cpu_dwconv_backward(struct s2s_queue *queue, const struct s2s_k_dwconv_backward *args)
{
    const struct s2s_k_dwconv *c = &args->forward;
    float *table = args->workspace;
    lay_out_weights(table, c);
    if (args->dx.data)
        backward_input(queue, args, table);
    if (args->dw || args->dbias)
        backward_weights(queue, args, table + c->width * c->channels);
}
