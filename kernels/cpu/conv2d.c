/*
 * 3x3 convolution with stride 2 of packed images, channels last:
 *   y[t, f, c] = act(b[c] + sum_ij w[c, i, j] x[2t-1+i, 2f-1+j, c])
 *
 * Work is cut into blocks of packed output (backward to the input: input) rows; a row knows its
 * clip's borders, so clips of any length stand end to end. The loops run over channels, one image
 * row of three taps a pass: all in the first-level cache. Weights are first laid out [tap][c].
 */
#include "kernels/cpu/cpu.h"

enum { TAPS = 9, BLOCK = 64 };

/* Where a row block begins, and the clip of its current row. */
struct place {
    int64_t seq, in_begin, in_end, out_begin, out_end;
};

static void enter_seq(struct place *at, const struct s2s_k_conv2d *c, int64_t seq)
{
    *at = (struct place){seq, c->cu_in[seq], c->cu_in[seq + 1], c->cu_out[seq], c->cu_out[seq + 1]};
}

static int64_t out_width(const struct s2s_k_conv2d *c)
{
    return s2s_conv2d_half(c->in_width, c->causal);
}

/* Rows above an image, and columns before it, that the first output sees. */
static int64_t pad_of(const struct s2s_k_conv2d *c)
{
    return c->causal ? 2 : 1;
}

static int64_t in_channels(const struct s2s_k_conv2d *c)
{
    return c->one_input ? 1 : c->channels;
}

/* Weights [TAPS][channels], then a row of zeros that stands for what is outside an image. */
static size_t table_floats(const struct s2s_k_conv2d *c)
{
    return (size_t)((TAPS + 1) * c->channels);
}

static void lay_out_weights(float *table, const struct s2s_k_conv2d *c)
{
    for (int64_t ch = 0; ch < c->channels; ch++)
        for (int k = 0; k < TAPS; k++)
            table[k * c->channels + ch] = c->w[ch * TAPS + k];
    memset(table + TAPS * c->channels, 0, (size_t)c->channels * sizeof *table);
}

size_t cpu_conv2d_workspace(const struct s2s_queue *queue, const struct s2s_k_conv2d *args)
{
    return table_floats(args) * sizeof(float);
}

/* The pixel (row, f) of the input; NULL beyond the borders of its clip: zeros. */
CPU_INLINE const void *pixel(const struct s2s_k_conv2d *c, const struct place *at, int64_t row,
                             int64_t f, bool bf16)
{
    if (row < at->in_begin || row >= at->in_end || f < 0 || f >= c->in_width)
        return NULL;
    return cpu_from(cpu_any_row(&c->x, row), f * in_channels(c), bf16);
}

/* Sums of some channels stand here while the taps come. */
enum { CHUNK = 256 };

/* y += the three taps of one image row, n channels; w and x are where these begin */
CPU_INLINE void add_taps(float *restrict y, const float *restrict w, const void *const x[3],
                         int64_t channels, int64_t n, bool one_input, bool bf16)
{
    const float *restrict w1 = w + channels, *restrict w2 = w1 + channels;
    const void *x0 = x[0], *x1 = x[1], *x2 = x[2];
    if (one_input) {
        float a = cpu_load(x0, 0, bf16), b = cpu_load(x1, 0, bf16), c = cpu_load(x2, 0, bf16);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] += w[i] * a + w1[i] * b + w2[i] * c;
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += w[i] * cpu_load(x0, i, bf16) + w1[i] * cpu_load(x1, i, bf16) +
                w2[i] * cpu_load(x2, i, bf16);
}

/* Channels [begin, begin + n) of the output pixel (row, f). */
CPU_INLINE void forward_pixel(const struct s2s_k_conv2d *c, const struct place *at, int64_t row,
                              int64_t f, const float *table, int64_t begin, int64_t n, bool bf16)
{
    const int64_t channels = c->channels, pad = pad_of(c);
    const int64_t in_row = at->in_begin + 2 * (row - at->out_begin) - pad;
    const float *zeros = table + TAPS * channels;
    void *y = cpu_from(cpu_any_row(&c->y, row), f * channels + begin, bf16);
    float sum[CHUNK];
    for (int64_t i = 0; i < n; i++)
        sum[i] = c->bias ? c->bias[begin + i] : 0;
    for (int i = 0; i < 3; i++) {
        const void *x[3];
        for (int j = 0; j < 3; j++) {
            x[j] = pixel(c, at, in_row + i, 2 * f - pad + j, bf16);
            x[j] = x[j] ? cpu_from(x[j], c->one_input ? 0 : begin, bf16) : zeros;
        }
        add_taps(sum, table + 3 * i * channels + begin, x, channels, n, c->one_input, bf16);
    }
    if (c->relu)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            sum[i] = sum[i] > 0 ? sum[i] : 0;
    for (int64_t i = 0; i < n; i++)
        cpu_store(y, i, sum[i], bf16);
}

static void forward_row(const struct s2s_k_conv2d *c, const struct place *at, int64_t row,
                        const float *table)
{
    const int64_t width = out_width(c), channels = c->channels;
    for (int64_t f = 0; f < width; f++)
        for (int64_t begin = 0; begin < channels; begin += CHUNK) {
            const int64_t n = channels - begin < CHUNK ? channels - begin : CHUNK;
            if (cpu_is_bf16(&c->x))
                forward_pixel(c, at, row, f, table, begin, n, true);
            else
                forward_pixel(c, at, row, f, table, begin, n, false);
        }
}

void cpu_conv2d(struct s2s_queue *queue, const struct s2s_k_conv2d *args)
{
    float *table = args->workspace;
    const int64_t n_blocks = cpu_ceil_div(args->n_out, BLOCK / 8);
    lay_out_weights(table, args);
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n_out * args->channels > 1024)
    for (int64_t b = 0; b < n_blocks; b++) {
        int64_t begin = b * (BLOCK / 8), end = begin + BLOCK / 8;
        struct place at;
        enter_seq(&at, args, cpu_find_seq(args->cu_out, args->n_seqs, begin));
        for (int64_t row = begin; row < end && row < args->n_out; row++) {
            while (row >= at.out_end)
                enter_seq(&at, args, at.seq + 1);
            forward_row(args, &at, row, table);
        }
    }
}

/* ---- backward ---- */

size_t cpu_conv2d_backward_workspace(const struct s2s_queue *queue,
                                     const struct s2s_k_conv2d_backward *args)
{
    const struct s2s_k_conv2d *c = &args->forward;
    /* per block: taps, bias, and the masked gradient of a pixel */
    size_t blocks = (size_t)cpu_ceil_div(c->n_out, BLOCK), each = (size_t)(TAPS + 2);
    return (table_floats(c) + (blocks * each + TAPS + 1) * (size_t)c->channels) * sizeof(float);
}

/* The gradient in front of the ReLU. */
CPU_INLINE void mask_gradient(float *restrict dz, const struct s2s_k_conv2d_backward *args,
                              int64_t row, int64_t col, bool bf16)
{
    const void *dy = cpu_from(cpu_any_row(&args->dy, row), col, bf16);
    const int64_t channels = args->forward.channels;
    if (!args->forward.relu) {
        for (int64_t i = 0; i < channels; i++)
            dz[i] = cpu_load(dy, i, bf16);
        return;
    }
    const void *y = cpu_from(cpu_any_row(&args->forward.y, row), col, bf16);
#pragma omp simd
    for (int64_t i = 0; i < channels; i++)
        dz[i] = cpu_load(y, i, bf16) > 0 ? cpu_load(dy, i, bf16) : 0;
}

/* sum [TAPS + 1][channels] += dz times its taps, and dz itself */
CPU_INLINE void weights_row(const struct s2s_k_conv2d_backward *args, const struct place *at,
                            int64_t row, float *restrict sum, float *restrict dz, bool bf16)
{
    const struct s2s_k_conv2d *c = &args->forward;
    const int64_t width = out_width(c), channels = c->channels, pad = pad_of(c);
    const int64_t in_row = at->in_begin + 2 * (row - at->out_begin) - pad;
    for (int64_t f = 0; f < width; f++) {
        mask_gradient(dz, args, row, f * channels, bf16);
        for (int k = 0; k < TAPS; k++) {
            const void *x = pixel(c, at, in_row + k / 3, 2 * f - pad + k % 3, bf16);
            float *restrict out = sum + k * channels;
            if (!x)
                continue;
            if (c->one_input) {
                float a = cpu_load(x, 0, bf16);
#pragma omp simd
                for (int64_t i = 0; i < channels; i++)
                    out[i] += dz[i] * a;
            } else {
#pragma omp simd
                for (int64_t i = 0; i < channels; i++)
                    out[i] += dz[i] * cpu_load(x, i, bf16);
            }
        }
        float *restrict bias = sum + TAPS * channels;
#pragma omp simd
        for (int64_t i = 0; i < channels; i++)
            bias[i] += dz[i];
    }
}

static void backward_weights(struct s2s_queue *queue, const struct s2s_k_conv2d_backward *args,
                             float *partial)
{
    const struct s2s_k_conv2d *c = &args->forward;
    const int64_t channels = c->channels, n_blocks = cpu_ceil_div(c->n_out, BLOCK);
    const int64_t each = (TAPS + 1) * channels;
    float *scratch = partial + n_blocks * each; /* [n_blocks][channels] */
#pragma omp parallel for num_threads(queue->lanes) schedule(static) if (c->n_out * channels > 1024)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *sum = partial + b * each;
        struct place at;
        memset(sum, 0, (size_t)each * sizeof *sum);
        enter_seq(&at, c, cpu_find_seq(c->cu_out, c->n_seqs, b * BLOCK));
        for (int64_t row = b * BLOCK; row < (b + 1) * BLOCK && row < c->n_out; row++) {
            while (row >= at.out_end)
                enter_seq(&at, c, at.seq + 1);
            if (cpu_is_bf16(&c->x))
                weights_row(args, &at, row, sum, scratch + b * channels, true);
            else
                weights_row(args, &at, row, sum, scratch + b * channels, false);
        }
    }
    float *total = scratch + n_blocks * channels;
    cpu_add_partials(total, partial, n_blocks, each, false);
    for (int64_t ch = 0; args->dw && ch < channels; ch++)
        for (int k = 0; k < TAPS; k++)
            args->dw[ch * TAPS + k] += total[k * channels + ch];
    for (int64_t ch = 0; args->dbias && ch < channels; ch++)
        args->dbias[ch] += total[TAPS * channels + ch];
}

/* n of the channels, from `begin` on, of dx of one input pixel: the output pixels that saw it */
CPU_INLINE void input_pixel(const struct s2s_k_conv2d_backward *args, const struct place *at,
                            int64_t row, int64_t f, const float *table, int64_t begin, int64_t n,
                            bool bf16)
{
    const struct s2s_k_conv2d *c = &args->forward;
    const int64_t width = out_width(c), channels = c->channels, pad = pad_of(c);
    const int64_t in = c->one_input ? 1 : n;
    void *dx = cpu_from(cpu_any_row(&args->dx, row), f * in_channels(c) + begin, bf16);
    float sum[CHUNK], one = 0;
    for (int64_t i = 0; i < in; i++)
        sum[i] = args->accumulate_dx ? cpu_load(dx, i, bf16) : 0;
    for (int k = 0; k < TAPS; k++) {
        int64_t t2 = row - at->in_begin + pad - k / 3, f2 = f + pad - k % 3;
        int64_t t = at->out_begin + t2 / 2;
        if (t2 < 0 || t2 % 2 || f2 < 0 || f2 % 2 || t >= at->out_end || f2 / 2 >= width)
            continue;
        const int64_t col = f2 / 2 * channels + begin;
        const void *dy = cpu_from(cpu_any_row(&args->dy, t), col, bf16);
        const void *y = c->relu ? cpu_from(cpu_any_row(&c->y, t), col, bf16) : NULL;
        const float *w = table + k * channels + begin;
        if (c->one_input) {
#pragma omp simd reduction(+ : one)
            for (int64_t i = 0; i < n; i++)
                one += c->relu && !(cpu_load(y, i, bf16) > 0) ? 0 : w[i] * cpu_load(dy, i, bf16);
        } else if (c->relu) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                sum[i] += cpu_load(y, i, bf16) > 0 ? w[i] * cpu_load(dy, i, bf16) : 0;
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                sum[i] += w[i] * cpu_load(dy, i, bf16);
        }
    }
    if (c->one_input)
        sum[0] += one;
    for (int64_t i = 0; i < in; i++)
        cpu_store(dx, i, sum[i], bf16);
}

static void input_row(const struct s2s_k_conv2d_backward *args, const struct place *at, int64_t row,
                      const float *table)
{
    const struct s2s_k_conv2d *c = &args->forward;
    const int64_t piece = c->one_input ? c->channels : CHUNK;
    for (int64_t f = 0; f < c->in_width; f++)
        for (int64_t begin = 0; begin < c->channels; begin += piece) {
            const int64_t left = c->channels - begin, n = left < piece ? left : piece;
            if (cpu_is_bf16(&c->x))
                input_pixel(args, at, row, f, table, begin, n, true);
            else
                input_pixel(args, at, row, f, table, begin, n, false);
        }
}

void cpu_conv2d_backward(struct s2s_queue *queue, const struct s2s_k_conv2d_backward *args)
{
    const struct s2s_k_conv2d *c = &args->forward;
    float *table = args->workspace;
    lay_out_weights(table, c);
    if (args->dw || args->dbias)
        backward_weights(queue, args, table + table_floats(c));
    if (!args->dx.data)
        return;
    const int64_t n_blocks = cpu_ceil_div(c->n_in, BLOCK / 8);
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (c->n_in * c->channels > 1024)
    for (int64_t b = 0; b < n_blocks; b++) {
        struct place at;
        enter_seq(&at, c, cpu_find_seq(c->cu_in, c->n_seqs, b * (BLOCK / 8)));
        for (int64_t row = b * (BLOCK / 8); row < (b + 1) * (BLOCK / 8) && row < c->n_in; row++) {
            while (row >= at.in_end)
                enter_seq(&at, c, at.seq + 1);
            input_row(args, &at, row, table);
        }
    }
}
