/*
 * Depthwise convolution over time, packed clips, channels last:
 *   y[t, c] = b[c] + sum_k w[c, k] x[t - pad + k, c],  pad = (width - 1) / 2 + shift, zeros beyond
 * the clip
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

/* y += a b, a of x's or dy's type */
CPU_INLINE void add_product(float *restrict y, const float *restrict a, const void *b, int64_t n,
                            bool bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += a[i] * cpu_load(b, i, bf16);
}

static int64_t pad_of(const struct s2s_k_dwconv *c)
{
    return (c->width - 1) / 2 + c->shift;
}

/* Sums stand here while the taps come. */
enum { CHUNK = 256 };

/* Channels [begin, begin + n) of y[t] (+)= first + the taps of x around t, the last of them first
 * where reversed */
CPU_INLINE void taps(const struct s2s_k_dwconv *c, const struct s2s_mat *x, const struct s2s_mat *y,
                     int64_t t, const float *table, const float *first, bool reversed,
                     bool accumulate, int64_t begin, int64_t n, bool bf16)
{
    const int64_t seq = cpu_find_seq(c->cu, c->n_seqs, t), pad = pad_of(c);
    float sum[CHUNK];
    void *to = cpu_from(cpu_any_row(y, t), begin, bf16);
    for (int64_t i = 0; i < n; i++)
        sum[i] = first ? first[begin + i] : accumulate ? cpu_load(to, i, bf16) : 0;
    for (int64_t k = 0; k < c->width; k++) {
        const int64_t from = reversed ? t + pad - k : t - pad + k;
        if (from >= c->cu[seq] && from < c->cu[seq + 1])
            add_product(sum, table + k * c->channels + begin,
                        cpu_from(cpu_any_row(x, from), begin, bf16), n, bf16);
    }
    for (int64_t i = 0; i < n; i++)
        cpu_store(to, i, sum[i], bf16);
}

/* One row of y. */
static void taps_row(const struct s2s_k_dwconv *c, const struct s2s_mat *x, const struct s2s_mat *y,
                     int64_t t, const float *table, const float *first, bool reversed,
                     bool accumulate)
{
    for (int64_t begin = 0; begin < c->channels; begin += CHUNK) {
        const int64_t left = c->channels - begin, n = left < CHUNK ? left : CHUNK;
        if (cpu_is_bf16(x))
            taps(c, x, y, t, table, first, reversed, accumulate, begin, n, true);
        else
            taps(c, x, y, t, table, first, reversed, accumulate, begin, n, false);
    }
}

void cpu_dwconv(struct s2s_queue *queue, const struct s2s_k_dwconv *args)
{
    float *table = args->workspace;
    lay_out_weights(table, args);
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * args->channels > CPU_PARALLEL_MIN)
    for (int64_t t = 0; t < args->n; t++)
        taps_row(args, &args->x, &args->y, t, table, args->bias, false, false);
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
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (c->n * c->channels > CPU_PARALLEL_MIN)
    for (int64_t t = 0; t < c->n; t++)
        taps_row(c, &args->dy, &args->dx, t, table, NULL, true, args->accumulate_dx);
}

/* sum [width + 1][channels] += dy[t] times the taps of x, and dy[t] itself */
CPU_INLINE void weights_row(const struct s2s_k_dwconv_backward *args, int64_t t, float *sum,
                            bool bf16)
{
    const struct s2s_k_dwconv *c = &args->forward;
    const int64_t channels = c->channels, pad = pad_of(c);
    const int64_t seq = cpu_find_seq(c->cu, c->n_seqs, t);
    const void *dy = cpu_any_row(&args->dy, t);
    for (int64_t k = 0; k < c->width; k++) {
        const int64_t from = t - pad + k;
        if (from < c->cu[seq] || from >= c->cu[seq + 1])
            continue;
        float *restrict out = sum + k * channels;
        const void *x = cpu_any_row(&c->x, from);
#pragma omp simd
        for (int64_t i = 0; i < channels; i++)
            out[i] += cpu_load(dy, i, bf16) * cpu_load(x, i, bf16);
    }
    float *restrict bias = sum + c->width * channels;
#pragma omp simd
    for (int64_t i = 0; i < channels; i++)
        bias[i] += cpu_load(dy, i, bf16);
}

static void backward_weights(struct s2s_queue *queue, const struct s2s_k_dwconv_backward *args,
                             float *partial)
{
    const struct s2s_k_dwconv *c = &args->forward;
    const int64_t channels = c->channels;
    const int64_t n_blocks = cpu_ceil_div(c->n, CPU_ROW_BLOCK), each = (c->width + 1) * channels;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (c->n * channels > CPU_PARALLEL_MIN)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *sum = partial + b * each;
        memset(sum, 0, (size_t)each * sizeof *sum);
        for (int64_t t = b * CPU_ROW_BLOCK; t < (b + 1) * CPU_ROW_BLOCK && t < c->n; t++)
            if (cpu_is_bf16(&c->x))
                weights_row(args, t, sum, true);
            else
                weights_row(args, t, sum, false);
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
