/*
 * Causal depthwise convolution of packed sequences: a thread has a group of channels of one row. A
 * block has rows next to each other, so that their taps come from the first-level cache. The
 * gradients make ds = dy silu'(s) again wherever they need it: reading it from memory costs more.
 */
#include "kernels/cuda/map.h"
#include "kernels/cuda/seq.h"
#include "kernels/cuda/sum.h"

/* A block: rows and groups of channels. */
enum { ROWS = 16, GROUPS = 16 };
/* Rows of a part of the weights' gradients, and taps that a thread has. */
enum { PART_ROWS = 64, TAPS = 4 };

template <int N, class Map> __global__ void rows_kernel(Map map, int64_t rows, int64_t groups)
{
    const int64_t group = (int64_t)blockIdx.x * GROUPS + threadIdx.x % GROUPS;
    const int64_t row = (int64_t)blockIdx.y * ROWS + threadIdx.x / GROUPS;
    if (row < rows && group < groups)
        map.template at<N>(row, group * N);
}

template <class Map>
static void run_rows(struct s2s_queue *queue, const Map &map, int64_t rows, int64_t cols, bool wide)
{
    const int64_t groups = wide ? cols / CUDA_WIDE : cols;
    const dim3 grid((unsigned)cuda_ceil_div(groups, GROUPS), (unsigned)cuda_ceil_div(rows, ROWS));
    if (wide)
        LAUNCH(queue, (rows_kernel<CUDA_WIDE, Map>), grid, ROWS * GROUPS, 0, map, rows, groups);
    else
        LAUNCH(queue, (rows_kernel<1, Map>), grid, ROWS * GROUPS, 0, map, rows, groups);
}

/* What all of a call need. */
struct conv1d {
    struct cuda_mat x, initial;
    const float *w, *bias;
    const int32_t *cu;
    int64_t n_seqs;
    int width;
    bool silu;
};

static struct conv1d conv1d_of(const struct s2s_k_conv1d *args)
{
    const struct conv1d c = {
        cuda_mat(&args->x), cuda_mat(&args->initial), args->w,   args->bias, args->cu,
        args->n_seqs,       (int)args->width,         args->silu};
    return c;
}

/* Input t of a sequence that begins at row `begin`, t from width - 1 rows before that. */
template <int N>
static __device__ __forceinline__ void input(float (&x)[N], const struct conv1d &c, int64_t seq,
                                             int64_t begin, int64_t t, int64_t col)
{
    if (t >= begin) {
        cuda_load(x, c.x, t, col);
    } else if (c.initial.data) {
        cuda_load(x, c.initial, (seq + 1) * (c.width - 1) + t - begin, col);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = 0;
    }
}

/* Row t before silu. */
template <int N>
static __device__ __forceinline__ void sum_taps(float (&s)[N], const struct conv1d &c, int64_t seq,
                                                int64_t begin, int64_t t, int64_t col)
{
    float x[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = c.bias ? c.bias[col + i] : 0;
    for (int k = 0; k < c.width; k++) {
        input(x, c, seq, begin, t - (c.width - 1) + k, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            s[i] += c.w[(col + i) * c.width + k] * x[i];
    }
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

template <int N>
static __device__ __forceinline__ void nothing(const struct cuda_mat &m, int64_t row, int64_t col)
{
    const float zeros[N] = {};
    cuda_store(m, row, col, zeros);
}

/* ---- forward ---- */

struct conv1d_rows {
    struct conv1d c;
    struct cuda_mat y;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float s[N];
        if (!in_a_seq(c.cu, c.n_seqs, row)) {
            nothing<N>(y, row, col);
            return;
        }
        const int64_t seq = find_seq(c.cu, c.n_seqs, row);
        sum_taps(s, c, seq, c.cu[seq], row, col);
        if (c.silu)
#pragma unroll
            for (int i = 0; i < N; i++)
                s[i] *= sigmoid(s[i]);
        cuda_store(y, row, col, s);
    }
};

/* The last inputs of a sequence, of which `row` is the number: a thread has all of its columns, as
 * they may stand where the initial ones do. */
struct conv1d_last {
    struct conv1d c;
    struct cuda_mat last;
    template <int N> __device__ void at(int64_t seq, int64_t col) const
    {
        const int64_t begin = c.cu[seq], end = c.cu[seq + 1];
        float x[N];
        for (int k = 0; k < c.width - 1; k++) {
            input(x, c, seq, begin, end - (c.width - 1) + k, col);
            cuda_store(last, seq * (c.width - 1) + k, col, x);
        }
    }
};

size_t cuda_conv1d_workspace(const struct s2s_queue *queue, const struct s2s_k_conv1d *args)
{
    return 0;
}

void cuda_conv1d(struct s2s_queue *queue, const struct s2s_k_conv1d *args)
{
    const struct conv1d c = conv1d_of(args);
    const struct conv1d_rows rows = {c, cuda_mat(&args->y)};
    const struct conv1d_last last = {c, cuda_mat(&args->final)};
    const bool wide =
        cuda_is_wide(&args->x, args->channels) && cuda_is_wide(&args->initial, args->channels);
    run_rows(queue, rows, args->n, args->channels, wide && cuda_is_wide(&args->y, args->channels));
    if (args->final.data)
        run_rows(queue, last, args->n_seqs, args->channels,
                 wide && cuda_is_wide(&args->final, args->channels));
}

/* ---- backward ---- */

struct conv1d_gradients {
    struct conv1d c;
    struct cuda_mat dy, dfinal;
};

/* ds of row t */
template <int N>
static __device__ __forceinline__ void make_ds(float (&ds)[N], const struct conv1d_gradients &g,
                                               int64_t seq, int64_t begin, int64_t t, int64_t col)
{
    cuda_load(ds, g.dy, t, col);
    if (!g.c.silu)
        return;
    float s[N];
    sum_taps(s, g.c, seq, begin, t, col);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float sg = sigmoid(s[i]);
        ds[i] *= sg * (1 + s[i] * (1 - sg));
    }
}

/* The gradient of input t of a sequence, also of those before its first row. */
template <int N>
static __device__ __forceinline__ void input_gradient(float (&dx)[N],
                                                      const struct conv1d_gradients &g, int64_t seq,
                                                      int64_t t, int64_t col)
{
    const int64_t begin = g.c.cu[seq], end = g.c.cu[seq + 1];
    const int before = g.c.width - 1;
    float ds[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        dx[i] = 0;
    if (g.dfinal.data && end - t <= before)
        cuda_load(dx, g.dfinal, (seq + 1) * before - (end - t), col);
    for (int k = 0; g.dy.data && k < g.c.width; k++) {
        const int64_t from = t + before - k;
        if (from < begin || from >= end)
            continue;
        make_ds(ds, g, seq, begin, from, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            dx[i] += g.c.w[(col + i) * g.c.width + k] * ds[i];
    }
}

struct conv1d_dx {
    struct conv1d_gradients g;
    struct cuda_mat dx;
    bool accumulate;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float x[N];
        if (in_a_seq(g.c.cu, g.c.n_seqs, row)) {
            input_gradient(x, g, find_seq(g.c.cu, g.c.n_seqs, row), row, col);
            cuda_update(dx, row, col, x, accumulate);
        } else if (!accumulate) {
            nothing<N>(dx, row, col);
        }
    }
};

struct conv1d_dinitial {
    struct conv1d_gradients g;
    struct cuda_mat dinitial;
    bool accumulate;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        const int before = g.c.width - 1;
        const int64_t seq = row / before;
        float x[N];
        input_gradient(x, g, seq, g.c.cu[seq] - before + row % before, col);
        cuda_update(dinitial, row, col, x, accumulate);
    }
};

/* parts[part][tap, then one for the bias][channel]: sums over the rows of a part. Blocks in z have
 * TAPS taps each, the first of them the bias too. */
template <int N>
__global__ void weights_kernel(struct conv1d_gradients g, float *parts, int64_t n, int64_t channels)
{
    const int64_t col = ((int64_t)blockIdx.x * CUDA_COLUMN_THREADS + threadIdx.x) * N;
    const int64_t begin = (int64_t)blockIdx.y * PART_ROWS;
    const int64_t end = begin + PART_ROWS < n ? begin + PART_ROWS : n;
    const int width = g.c.width, first = (int)blockIdx.z * TAPS;
    float sum[TAPS][N] = {}, of_bias[N] = {}, ds[N], x[N];
    if (col >= channels)
        return;
    for (int64_t t = begin; t < end; t++) {
        if (!in_a_seq(g.c.cu, g.c.n_seqs, t))
            continue;
        const int64_t seq = find_seq(g.c.cu, g.c.n_seqs, t), row = g.c.cu[seq];
        make_ds(ds, g, seq, row, t, col);
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            if (first + k >= width)
                continue;
            input(x, g.c, seq, row, t - (width - 1) + first + k, col);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[k][i] += ds[i] * x[i];
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            of_bias[i] += ds[i];
    }
    float *to = parts + (int64_t)blockIdx.y * (width + 1) * channels + col;
#pragma unroll
    for (int k = 0; k < TAPS; k++)
        if (first + k < width)
#pragma unroll
            for (int i = 0; i < N; i++)
                to[(first + k) * channels + i] = sum[k][i];
    if (first == 0)
#pragma unroll
        for (int i = 0; i < N; i++)
            to[width * channels + i] = of_bias[i];
}

static int64_t n_parts(int64_t rows)
{
    return cuda_ceil_div(rows, PART_ROWS);
}

size_t cuda_conv1d_backward_workspace(const struct s2s_queue *queue,
                                      const struct s2s_k_conv1d_backward *args)
{
    const struct s2s_k_conv1d *f = &args->forward;
    return (size_t)((n_parts(f->n) + 1) * (f->width + 1) * f->channels) * sizeof(float);
}

static void weights(struct s2s_queue *queue, const struct s2s_k_conv1d_backward *args,
                    const struct conv1d_gradients *g, bool wide)
{
    const struct s2s_k_conv1d *f = &args->forward;
    const int64_t each = (f->width + 1) * f->channels, parts = n_parts(f->n);
    float *total = (float *)args->workspace, *partial = total + each;
    const dim3 grid(
        (unsigned)cuda_ceil_div(f->channels, CUDA_COLUMN_THREADS * (wide ? CUDA_WIDE : 1)),
        (unsigned)parts, (unsigned)cuda_ceil_div(f->width, TAPS));
    if (wide)
        LAUNCH(queue, weights_kernel<CUDA_WIDE>, grid, CUDA_COLUMN_THREADS, 0, *g, partial, f->n,
               f->channels);
    else
        LAUNCH(queue, weights_kernel<1>, grid, CUDA_COLUMN_THREADS, 0, *g, partial, f->n,
               f->channels);
    cuda_add_parts(queue, total, partial, parts, each, each, false);
    const struct cuda_add_turned taps = {args->dw, total, f->width, f->channels};
    const struct cuda_add_turned bias = {args->dbias, total + f->width * f->channels, 1,
                                         f->channels};
    if (args->dw)
        cuda_map(queue, taps, f->width, f->channels, false);
    if (args->dbias)
        cuda_map(queue, bias, 1, f->channels, false);
}

void cuda_conv1d_backward(struct s2s_queue *queue, const struct s2s_k_conv1d_backward *args)
{
    const struct s2s_k_conv1d *f = &args->forward;
    const int64_t channels = f->channels;
    const struct conv1d_gradients g = {conv1d_of(f), cuda_mat(&args->dy), cuda_mat(&args->dfinal)};
    const struct conv1d_dx dx = {g, cuda_mat(&args->dx), args->accumulate_dx};
    const struct conv1d_dinitial dinitial = {g, cuda_mat(&args->dinitial),
                                             args->accumulate_dinitial};
    const bool wide = cuda_is_wide(&f->x, channels) && cuda_is_wide(&f->initial, channels) &&
                      cuda_is_wide(&args->dy, channels) && cuda_is_wide(&args->dfinal, channels);
    if (args->dx.data)
        run_rows(queue, dx, f->n, channels, wide && cuda_is_wide(&args->dx, channels));
    if (args->dinitial.data)
        run_rows(queue, dinitial, f->n_seqs * (f->width - 1), channels,
                 wide && cuda_is_wide(&args->dinitial, channels));
    if (args->dy.data && (args->dw || args->dbias) && f->n > 0)
        weights(queue, args, &g, wide);
}
