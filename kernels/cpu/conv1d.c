/*
 * Causal depthwise convolution, packed sequences, channels last:
 *   s[t, c] = bias[c] + sum_k w[c, k] x[t - (width - 1) + k, c],  y = silu(s) or s
 * backward, with ds = dy silu'(s) or dy:
 *   dx[t, c] = sum_k w[c, k] ds[t + (width - 1) - k, c],  dw[c, k] = sum_t ds[t, c] x[t - (width -
 * 1) + k, c],  dbias[c] = sum_t ds[t, c]
 *
 * Work is divided into blocks of CPU_ROW_BLOCK rows and CHUNK channels, which the first-level cache
 * holds with their weights, laid out [tap][c]. The backward computes the ds of a block again,
 * and those of the width - 1 rows behind it. Gradients of weights are partial sums of a block of
 * rows, added in order.
 */
#include <omp.h>

#include "kernels/cpu/cpu.h"

enum { CHUNK = 256 };

/* ---- rows in front of rows ---- */

/* What a block of rows and channels needs. */
struct block {
    const struct s2s_k_conv1d *c;
    const float *table, *zeros; /* [width, channels]; [channels], of whatever type */
    int64_t begin, n;           /* channels */
};

static int64_t before(const struct s2s_k_conv1d *c)
{
    return c->width - 1;
}

static bool in_a_sequence(const struct s2s_k_conv1d *c, int64_t t)
{
    return c->n_seqs > 0 && t >= c->cu[0] && t < c->cu[c->n_seqs];
}

/* Input t of sequence seq, t from width - 1 rows before its first; from channel `begin` on. */
CPU_INLINE const void *input(const struct block *b, int64_t seq, int64_t t, bool bf16)
{
    const struct s2s_k_conv1d *c = b->c;
    const int64_t back = c->cu[seq] - t;
    if (back <= 0)
        return cpu_from(cpu_any_row(&c->x, t), b->begin, bf16);
    if (!c->initial.data)
        return b->zeros;
    return cpu_from(cpu_any_row(&c->initial, (seq + 1) * before(c) - back), b->begin, bf16);
}

/* s[i] of row t: the sums before silu. */
CPU_INLINE void sums(float *restrict s, const struct block *b, int64_t seq, int64_t t,
                     int64_t width, bool bf16)
{
    const float *restrict w = b->table + b->begin;
    const float *bias = b->c->bias ? b->c->bias + b->begin : b->zeros;
    const int64_t n = b->n, channels = b->c->channels;
    if (width == 4) {
        const void *x0 = input(b, seq, t - 3, bf16), *x1 = input(b, seq, t - 2, bf16);
        const void *x2 = input(b, seq, t - 1, bf16), *x3 = input(b, seq, t, bf16);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            s[i] = bias[i] + w[i] * cpu_load(x0, i, bf16) +
                   w[channels + i] * cpu_load(x1, i, bf16) +
                   w[2 * channels + i] * cpu_load(x2, i, bf16) +
                   w[3 * channels + i] * cpu_load(x3, i, bf16);
        return;
    }
    memcpy(s, bias, (size_t)n * sizeof *s);
    for (int64_t k = 0; k < width; k++) {
        const void *x = input(b, seq, t - (width - 1) + k, bf16);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            s[i] += w[k * channels + i] * cpu_load(x, i, bf16);
    }
}

/* The weights [tap][c], then zeros [c]. */
static void lay_out(float *table, const struct s2s_k_conv1d *c)
{
    for (int64_t ch = 0; ch < c->channels; ch++)
        for (int64_t k = 0; k < c->width; k++)
            table[k * c->channels + ch] = c->w[ch * c->width + k];
    memset(table + c->width * c->channels, 0, (size_t)c->channels * sizeof *table);
}

static struct block block_of(const struct s2s_k_conv1d *c, const float *table, int64_t chunk)
{
    const int64_t begin = chunk * CHUNK, left = c->channels - begin;
    return (struct block){c, table, table + c->width * c->channels, begin,
                          left < CHUNK ? left : CHUNK};
}

/* ---- forward ---- */

size_t cpu_conv1d_workspace(const struct s2s_queue *queue, const struct s2s_k_conv1d *args)
{
    return (size_t)((args->width + 1) * args->channels) * sizeof(float);
}

CPU_INLINE void forward_rows(const struct block *b, int64_t t0, int64_t t1, bool bf16)
{
    const struct s2s_k_conv1d *c = b->c;
    float s[CHUNK];
    for (int64_t t = t0; t < t1; t++) {
        void *y = cpu_from(cpu_any_row(&c->y, t), b->begin, bf16);
        if (in_a_sequence(c, t))
            sums(s, b, cpu_find_seq(c->cu, c->n_seqs, t), t, c->width == 4 ? 4 : c->width, bf16);
        else
            memset(s, 0, sizeof s);
        if (c->silu)
#pragma omp simd
            for (int64_t i = 0; i < b->n; i++)
                cpu_store(y, i, s[i] * cpu_sigmoid(s[i]), bf16);
        else
#pragma omp simd
            for (int64_t i = 0; i < b->n; i++)
                cpu_store(y, i, s[i], bf16);
    }
}

/* The last width - 1 inputs of a sequence, which may stand where its initial ones do: the rows that
 * come from there stand behind those that they go to. */
static void keep_last(const struct s2s_k_conv1d *c, int64_t seq)
{
    const bool bf16 = cpu_is_bf16(&c->x);
    const size_t bytes = (size_t)c->channels * s2s_dtype_size(c->x.dtype);
    const int64_t len = c->cu[seq + 1] - c->cu[seq];
    for (int64_t k = 0; k < before(c); k++) {
        const int64_t from = len - before(c) + k; /* row of the sequence */
        void *to = cpu_from(c->final.data, (seq * before(c) + k) * c->final.stride, bf16);
        if (from >= 0)
            memcpy(to, cpu_any_row(&c->x, c->cu[seq] + from), bytes);
        else if (!c->initial.data)
            memset(to, 0, bytes);
        else if (len > 0 || c->initial.data != c->final.data)
            memmove(to, cpu_any_row(&c->initial, (seq + 1) * before(c) + from), bytes);
    }
}

void cpu_conv1d(struct s2s_queue *queue, const struct s2s_k_conv1d *args)
{
    float *table = args->workspace;
    if (args->channels == 0)
        return;
    lay_out(table, args);
    const int64_t n_blocks = cpu_ceil_div(args->n, CPU_ROW_BLOCK);
    const int64_t n_chunks = cpu_ceil_div(args->channels, CHUNK);
#pragma omp parallel for collapse(2) num_threads(queue->lanes) \
    schedule(static) if (args->n * args->channels > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < n_blocks; r++)
        for (int64_t i = 0; i < n_chunks; i++) {
            const struct block b = block_of(args, table, i);
            const int64_t t0 = r * CPU_ROW_BLOCK, end = t0 + CPU_ROW_BLOCK;
            const int64_t t1 = end < args->n ? end : args->n;
            if (cpu_is_bf16(&args->x))
                forward_rows(&b, t0, t1, true);
            else
                forward_rows(&b, t0, t1, false);
        }
    for (int64_t s = 0; args->final.data && s < args->n_seqs; s++)
        keep_last(args, s);
}

/* ---- backward ---- */

size_t cpu_conv1d_backward_workspace(const struct s2s_queue *queue,
                                     const struct s2s_k_conv1d_backward *args)
{
    const struct s2s_k_conv1d *c = &args->forward;
    const int64_t n_blocks = cpu_ceil_div(c->n, CPU_ROW_BLOCK);
    const int64_t rows = CPU_ROW_BLOCK + before(c);
    return cpu_conv1d_workspace(queue, c) +
           (size_t)((n_blocks + 1) * (c->width + 1) * c->channels + queue->lanes * rows * CHUNK) *
               sizeof(float);
}

/* ds of a row: dy times the derivative of silu at what is computed again. */
CPU_INLINE void row_ds(float *restrict ds, const struct s2s_k_conv1d_backward *args,
                       const struct block *b, int64_t seq, int64_t t, int64_t width, bool bf16)
{
    const void *dy = cpu_from(cpu_any_row(&args->dy, t), b->begin, bf16);
    if (!b->c->silu) {
#pragma omp simd
        for (int64_t i = 0; i < b->n; i++)
            ds[i] = cpu_load(dy, i, bf16);
        return;
    }
    sums(ds, b, seq, t, width, bf16);
#pragma omp simd
    for (int64_t i = 0; i < b->n; i++) {
        const float sg = cpu_sigmoid(ds[i]);
        ds[i] = cpu_load(dy, i, bf16) * sg * (1 + ds[i] * (1 - sg));
    }
}

/* What final's gradient adds to that of input t of a sequence, or NULL. */
CPU_INLINE const void *of_final(const struct s2s_k_conv1d_backward *args, const struct block *b,
                                int64_t seq, int64_t t, bool bf16)
{
    const int64_t back = b->c->cu[seq + 1] - t; /* 1: the last one */
    if (!args->dfinal.data || back > before(b->c))
        return NULL;
    return cpu_from(cpu_any_row(&args->dfinal, (seq + 1) * before(b->c) - back), b->begin, bf16);
}

CPU_INLINE void add_row(float *restrict sum, const void *x, int64_t n, bool bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[i] += cpu_load(x, i, bf16);
}

/* dx[t] (+)= sum_k w_k ds[t + (width - 1) - k]; ds(t) is its row, of rows up to `end`, the
 * sequence's. `to` NULL: not wanted. */
CPU_INLINE void input_grad(void *to, const struct s2s_k_conv1d_backward *args,
                           const struct block *b, int64_t seq, int64_t t, const float *ds_of_t,
                           bool accumulate, bool bf16)
{
    const struct s2s_k_conv1d *c = b->c;
    const void *last = of_final(args, b, seq, t, bf16);
    float sum[CHUNK];
    memset(sum, 0, (size_t)b->n * sizeof *sum);
    if (accumulate)
        add_row(sum, to, b->n, bf16);
    if (last)
        add_row(sum, last, b->n, bf16);
    for (int64_t k = 0; args->dy.data && k < c->width; k++) {
        const int64_t at = before(c) - k; /* rows after t */
        const float *restrict ds = ds_of_t + at * CHUNK, *w = b->table + k * c->channels + b->begin;
        if (t + at < c->cu[seq] || t + at >= c->cu[seq + 1])
            continue;
#pragma omp simd
        for (int64_t i = 0; i < b->n; i++)
            sum[i] += w[i] * ds[i];
    }
#pragma omp simd
    for (int64_t i = 0; i < b->n; i++)
        cpu_store(to, i, sum[i], bf16);
}

/* partial [width + 1][channels] += ds of a row times its inputs, and ds itself */
CPU_INLINE void weights_grad(float *partial, const struct block *b, int64_t seq, int64_t t,
                             const float *restrict ds, bool bf16)
{
    const struct s2s_k_conv1d *c = b->c;
    for (int64_t k = 0; k < c->width; k++) {
        float *restrict dw = partial + k * c->channels + b->begin;
        const void *x = input(b, seq, t - before(c) + k, bf16);
#pragma omp simd
        for (int64_t i = 0; i < b->n; i++)
            dw[i] += ds[i] * cpu_load(x, i, bf16);
    }
    float *restrict db = partial + c->width * c->channels + b->begin;
#pragma omp simd
    for (int64_t i = 0; i < b->n; i++)
        db[i] += ds[i];
}

/* Gradients of the inputs before the first rows of the sequences that begin in [t0, t1), while
 * their ds are here. A sequence without rows begins where another one does. */
CPU_INLINE void initial_grad(const struct s2s_k_conv1d_backward *args, const struct block *b,
                             int64_t seq, const float *ds_of_first, bool bf16)
{
    const struct s2s_k_conv1d *c = b->c;
    for (int64_t k = 0; k < before(c); k++) {
        const int64_t back = before(c) - k, t = c->cu[seq] - back;
        void *to = cpu_from(cpu_any_row(&args->dinitial, seq * before(c) + k), b->begin, bf16);
        input_grad(to, args, b, seq, t, ds_of_first - back * CHUNK, args->accumulate_dinitial,
                   bf16);
    }
}

CPU_INLINE void backward_rows(const struct s2s_k_conv1d_backward *args, const struct block *b,
                              int64_t t0, int64_t t1, float *ds, float *partial, bool bf16)
{
    const struct s2s_k_conv1d *c = b->c;
    const int64_t end = t1 + before(c) < c->n ? t1 + before(c) : c->n;
    for (int64_t t = t0; args->dy.data && t < end; t++)
        if (in_a_sequence(c, t))
            row_ds(ds + (t - t0) * CHUNK, args, b, cpu_find_seq(c->cu, c->n_seqs, t), t,
                   c->width == 4 ? 4 : c->width, bf16);
    for (int64_t t = t0; t < t1; t++) {
        void *dx = args->dx.data ? cpu_from(cpu_any_row(&args->dx, t), b->begin, bf16) : NULL;
        if (!in_a_sequence(c, t)) {
            for (int64_t i = 0; dx && !args->accumulate_dx && i < b->n; i++)
                cpu_store(dx, i, 0, bf16);
            continue;
        }
        const int64_t seq = cpu_find_seq(c->cu, c->n_seqs, t);
        const float *own = ds + (t - t0) * CHUNK;
        if (dx)
            input_grad(dx, args, b, seq, t, own, args->accumulate_dx, bf16);
        if (partial)
            weights_grad(partial, b, seq, t, own, bf16);
        if (args->dinitial.data && t == c->cu[seq])
            initial_grad(args, b, seq, own, bf16);
    }
}

/* Of a sequence without rows initial is final. */
static void pass_final(const struct s2s_k_conv1d_backward *args, int64_t seq)
{
    const struct s2s_k_conv1d *c = &args->forward;
    const bool bf16 = cpu_is_bf16(&args->dinitial), add = args->accumulate_dinitial;
    for (int64_t r = seq * before(c); r < (seq + 1) * before(c); r++) {
        void *to = cpu_any_row(&args->dinitial, r);
        const void *from = args->dfinal.data ? cpu_any_row(&args->dfinal, r) : NULL;
        for (int64_t i = 0; i < c->channels; i++)
            cpu_store(to, i,
                      (add ? cpu_load(to, i, bf16) : 0) + (from ? cpu_load(from, i, bf16) : 0),
                      bf16);
    }
}

static void add_weights(const struct s2s_k_conv1d_backward *args, float *partial, int64_t n_blocks)
{
    const struct s2s_k_conv1d *c = &args->forward;
    const int64_t each = (c->width + 1) * c->channels;
    float *total = partial + n_blocks * each;
    cpu_add_partials(total, partial, n_blocks, each, false);
    for (int64_t ch = 0; args->dw && ch < c->channels; ch++)
        for (int64_t k = 0; k < c->width; k++)
            args->dw[ch * c->width + k] += total[k * c->channels + ch];
    for (int64_t ch = 0; args->dbias && ch < c->channels; ch++)
        args->dbias[ch] += total[c->width * c->channels + ch];
}

void cpu_conv1d_backward(struct s2s_queue *queue, const struct s2s_k_conv1d_backward *args)
{
    const struct s2s_k_conv1d *c = &args->forward;
    const int64_t n_blocks = cpu_ceil_div(c->n, CPU_ROW_BLOCK);
    const int64_t n_chunks = cpu_ceil_div(c->channels, CHUNK), each = (c->width + 1) * c->channels;
    const bool weights = args->dy.data && (args->dw || args->dbias);
    float *table = args->workspace, *partial = table + each;
    float *ds = partial + (n_blocks + 1) * each;
    if (c->channels == 0)
        return;
    lay_out(table, c);
#pragma omp parallel for collapse(2) num_threads(queue->lanes) \
    schedule(static) if (c->n * c->channels > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < n_blocks; r++)
        for (int64_t i = 0; i < n_chunks; i++) {
            const struct block b = block_of(c, table, i);
            const int64_t t0 = r * CPU_ROW_BLOCK, end = t0 + CPU_ROW_BLOCK;
            const int64_t t1 = end < c->n ? end : c->n;
            float *own = ds + omp_get_thread_num() * (CPU_ROW_BLOCK + before(c)) * CHUNK;
            float *sum = weights ? partial + r * each : NULL;
            for (int64_t k = 0; sum && k <= c->width; k++)
                memset(sum + k * c->channels + b.begin, 0, (size_t)b.n * sizeof *sum);
            if (cpu_is_bf16(&c->x))
                backward_rows(args, &b, t0, t1, own, sum, true);
            else
                backward_rows(args, &b, t0, t1, own, sum, false);
        }
    for (int64_t s = 0; args->dinitial.data && s < c->n_seqs; s++)
        if (c->cu[s] == c->cu[s + 1])
            pass_final(args, s);
    if (weights)
        add_weights(args, partial, n_blocks);
}
