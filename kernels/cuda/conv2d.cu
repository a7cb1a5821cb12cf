/*
 * 3x3 convolutions of packed images with stride 2, channels last, one filter a channel. A block has
 * a few rows and 32 V channels; a warp takes runs of columns of a row, a lane V channels with their
 * filters, and each pixel is read once a run: of three columns one stays for the next output.
 * Gradients of weights are parts of a block each, added in order.
 */
#include "kernels/cuda/map.h"
#include "kernels/cuda/seq.h"
#include "kernels/cuda/sum.h"

enum { TAPS = 9, WARPS = 8, THREADS = WARPS * 32, ROWS = 8 /* of a block */, RUN = 16 };

struct image {
    struct cuda_mat x, y;
    const float *w, *bias;
    const int32_t *cu_in, *cu_out;
    int n_seqs, n_in, n_out, in_width, out_width, channels, pad;
    bool one_input, relu;
};

static struct image image_of(const struct s2s_k_conv2d *f)
{
    const struct image m = {cuda_mat(&f->x),
                            cuda_mat(&f->y),
                            f->w,
                            f->bias,
                            f->cu_in,
                            f->cu_out,
                            (int)f->n_seqs,
                            (int)f->n_in,
                            (int)f->n_out,
                            (int)f->in_width,
                            (int)s2s_conv2d_half(f->in_width, f->causal),
                            (int)f->channels,
                            f->causal ? 2 : 1,
                            f->one_input,
                            f->relu};
    return m;
}

/* ---- what a block and a warp are about ---- */

template <int V> struct filters {
    float w[TAPS][32 * V];
};

/* The block's filters, for all its threads after a barrier. */
template <int V> static __device__ __forceinline__ void load_filters(filters<V> *sh, const image &m)
{
    const int first = (int)blockIdx.y * 32 * V, n = min(32 * V, m.channels - first);
    for (int i = (int)threadIdx.x; i < n * TAPS; i += THREADS)
        sh->w[i % TAPS][i / TAPS] = m.w[(int64_t)first * TAPS + i];
}

template <int V> static __device__ __forceinline__ int channel_of()
{
    return ((int)blockIdx.y * 32 + (int)threadIdx.x % 32) * V;
}

/* Run `i` of the block: columns first .. last of a row. Runs of a row are `width` columns together.
 */
struct run {
    int row, first, last;
};

static __device__ __forceinline__ run run_of(int i, int runs, int width)
{
    const int first = i % runs * RUN;
    return {(int)blockIdx.x * ROWS + i / runs, first, min(first + RUN, width)};
}

static __device__ __host__ __forceinline__ int runs_of(int width)
{
    return (width + RUN - 1) / RUN;
}

/* dy of an output where it was not cut off, else 0 */
template <int V>
static __device__ __forceinline__ void passed(float (&d)[V], const image &m,
                                              const struct cuda_mat &dy, int64_t row, int64_t at)
{
    cuda_load(d, dy, row, at);
    if (!m.relu)
        return;
    float y[V];
    cuda_load(y, m.y, row, at);
#pragma unroll
    for (int i = 0; i < V; i++)
        d[i] = y[i] > 0 ? d[i] : 0;
}

/* ---- windows: the pixels that an output sees ---- */

template <int V> struct window {
    float x[3][3][V];
    int begin, end, top; /* rows of the clip; the first one here */

    /* before the output of column f */
    __device__ __forceinline__ window(const image &m, int row, int f, int channel)
    {
        const int seq = (int)find_seq(m.cu_out, m.n_seqs, row);
        begin = m.cu_in[seq];
        end = m.cu_in[seq + 1];
        top = begin + 2 * (row - m.cu_out[seq]) - m.pad;
        load(m, 2, 2 * f - m.pad, channel);
    }
    /* column j is that of the image, zeros outside */
    __device__ __forceinline__ void load(const image &m, int j, int col, int channel)
    {
#pragma unroll
        for (int i = 0; i < 3; i++) {
            const int row = top + i;
            const bool is_there = row >= begin && row < end && col >= 0 && col < m.in_width;
#pragma unroll
            for (int v = 0; v < V; v++)
                x[i][j][v] = 0;
            if (is_there && m.one_input) {
                const float pixel = cuda_get(m.x, row, col);
#pragma unroll
                for (int v = 0; v < V; v++)
                    x[i][j][v] = pixel;
            } else if (is_there) {
                cuda_load(x[i][j], m.x, row, (int64_t)col * m.channels + channel);
            }
        }
    }
    /* from the output before to that of column f */
    __device__ __forceinline__ void move(const image &m, int f, int channel)
    {
#pragma unroll
        for (int i = 0; i < 3; i++)
#pragma unroll
            for (int v = 0; v < V; v++)
                x[i][0][v] = x[i][2][v];
        load(m, 1, 2 * f - m.pad + 1, channel);
        load(m, 2, 2 * f - m.pad + 2, channel);
    }
};

/* ---- forward ---- */

template <int V> __global__ void __launch_bounds__(THREADS) conv2d_kernel(const image m)
{
    SHARED(filters<V>, sh);
    const int lane = (int)threadIdx.x % 32, channel = channel_of<V>();
    const int runs = runs_of(m.out_width);
    load_filters(sh, m);
    __syncthreads();
    if (channel >= m.channels)
        return;
    float w[3][3][V], bias[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
        bias[v] = m.bias ? m.bias[channel + v] : 0;
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            w[k / 3][k % 3][v] = sh->w[k][lane * V + v];
    }
    for (int r = (int)threadIdx.x / 32; r < ROWS * runs; r += WARPS) {
        const run at = run_of(r, runs, m.out_width);
        if (at.row >= m.n_out)
            break;
        window<V> seen(m, at.row, at.first, channel);
        for (int f = at.first; f < at.last; f++) {
            float sum[V];
            seen.move(m, f, channel);
#pragma unroll
            for (int v = 0; v < V; v++) {
                sum[v] = bias[v];
#pragma unroll
                for (int k = 0; k < TAPS; k++)
                    sum[v] += w[k / 3][k % 3][v] * seen.x[k / 3][k % 3][v];
                if (m.relu && sum[v] < 0)
                    sum[v] = 0;
            }
            cuda_store(m.y, at.row, (int64_t)f * m.channels + channel, sum);
        }
    }
}

static dim3 grid_of(int64_t rows, int64_t channels, int v)
{
    return dim3((unsigned)cuda_ceil_div(rows, ROWS), (unsigned)cuda_ceil_div(channels, 32 * v));
}

static bool has_pairs(const struct s2s_k_conv2d *f)
{
    return cuda_is_paired(&f->y, f->channels) &&
           (f->one_input || cuda_is_paired(&f->x, f->channels));
}

size_t cuda_conv2d_workspace(const struct s2s_queue *queue, const struct s2s_k_conv2d *args)
{
    return 0;
}

void cuda_conv2d(struct s2s_queue *queue, const struct s2s_k_conv2d *args)
{
    const struct image m = image_of(args);
    if (has_pairs(args))
        LAUNCH(queue, conv2d_kernel<2>, grid_of(m.n_out, m.channels, 2), THREADS,
               sizeof(filters<2>), m);
    else
        LAUNCH(queue, conv2d_kernel<1>, grid_of(m.n_out, m.channels, 1), THREADS,
               sizeof(filters<1>), m);
}

/* ---- gradient of the input ---- */

struct conv2d_input {
    struct image m;
    struct cuda_mat dy, dx;
    bool accumulate;
};

/* Of one row of pixels: the two rows of outputs at most that see it, and their taps. */
template <int V> struct seen_by {
    float w[2][3][V];
    float d[2][2][V]; /* of the output before, and of this one */
    int row[2];       /* -1: none */

    __device__ __forceinline__ seen_by(const image &m, const filters<V> *sh, int pixel_row)
    {
        const int seq = (int)find_seq(m.cu_in, m.n_seqs, pixel_row);
        const int out = m.cu_out[seq], n = m.cu_out[seq + 1] - out;
        const int u = pixel_row - m.cu_in[seq] + m.pad; /* of tap 0, times two */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int t = u / 2 - h, tap = u % 2 + 2 * h;
            row[h] = tap < 3 && t >= 0 && t < n ? out + t : -1;
#pragma unroll
            for (int j = 0; j < 3; j++)
#pragma unroll
                for (int v = 0; v < V; v++)
                    w[h][j][v] =
                        row[h] >= 0 ? sh->w[tap * 3 + j][(int)threadIdx.x % 32 * V + v] : 0;
        }
    }
    __device__ __forceinline__ void load(const conv2d_input &a, int g, int channel)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                d[h][0][v] = d[h][1][v];
                d[h][1][v] = 0;
            }
            if (row[h] >= 0 && g >= 0 && g < a.m.out_width)
                passed(d[h][1], a.m, a.dy, row[h], (int64_t)g * a.m.channels + channel);
        }
    }
};

template <int V>
static __device__ __forceinline__ void put_pixel(const conv2d_input &a, int row, int f, int channel,
                                                 const float (&x)[V])
{
    if (f >= 0 && f < a.m.in_width)
        cuda_update(a.dx, row, (int64_t)f * a.m.channels + channel, x, a.accumulate);
}

/* Columns 2 g - pad and the next one, which see outputs g - 1 and g. */
template <int V>
__global__ void __launch_bounds__(THREADS) conv2d_input_kernel(const conv2d_input a)
{
    SHARED(filters<V>, sh);
    const image &m = a.m;
    const int channel = channel_of<V>(), width = (m.in_width - 1 + m.pad) / 2 + 1;
    const int runs = runs_of(width);
    load_filters(sh, m);
    __syncthreads();
    if (channel >= m.channels)
        return;
    for (int r = (int)threadIdx.x / 32; r < ROWS * runs; r += WARPS) {
        const run at = run_of(r, runs, width);
        if (at.row >= m.n_in)
            break;
        seen_by<V> by(m, sh, at.row);
        by.load(a, at.first - 1, channel);
        for (int g = at.first; g < at.last; g++) {
            float even[V], odd[V];
            by.load(a, g, channel);
#pragma unroll
            for (int v = 0; v < V; v++) {
                even[v] = by.w[0][0][v] * by.d[0][1][v] + by.w[0][2][v] * by.d[0][0][v] +
                          by.w[1][0][v] * by.d[1][1][v] + by.w[1][2][v] * by.d[1][0][v];
                odd[v] = by.w[0][1][v] * by.d[0][1][v] + by.w[1][1][v] * by.d[1][1][v];
            }
            put_pixel(a, at.row, 2 * g - m.pad, channel, even);
            put_pixel(a, at.row, 2 * g - m.pad + 1, channel, odd);
        }
    }
}

/* Of an image that all filters see: a warp a pixel, whose lanes share the channels. */
__global__ void __launch_bounds__(THREADS) conv2d_one_input_kernel(const conv2d_input a)
{
    const image &m = a.m;
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int row = (int)(i / m.in_width), f = (int)(i - (int64_t)row * m.in_width);
    if (row >= m.n_in)
        return;
    const int seq = (int)find_seq(m.cu_in, m.n_seqs, row);
    const int out = m.cu_out[seq], n = m.cu_out[seq + 1] - out;
    float sum = 0;
    for (int k = 0; k < TAPS; k++) {
        const int t2 = row - m.cu_in[seq] + m.pad - k / 3, f2 = f + m.pad - k % 3;
        if (t2 < 0 || t2 % 2 || t2 / 2 >= n || f2 < 0 || f2 % 2 || f2 / 2 >= m.out_width)
            continue;
        for (int c = (int)threadIdx.x % 32; c < m.channels; c += 32) {
            float d[1];
            passed(d, m, a.dy, out + t2 / 2, (int64_t)(f2 / 2) * m.channels + c);
            sum += m.w[c * TAPS + k] * d[0];
        }
    }
    const float total[1] = {cuda_warp_sum(sum)};
    if (threadIdx.x % 32 == 0)
        cuda_update(a.dx, row, f, total, a.accumulate);
}

static void input_run(struct s2s_queue *queue, const struct s2s_k_conv2d_backward *args,
                      bool has_pairs)
{
    const struct s2s_k_conv2d *f = &args->forward;
    const struct conv2d_input a = {image_of(f), cuda_mat(&args->dy), cuda_mat(&args->dx),
                                   args->accumulate_dx};
    const int64_t channels = f->channels;
    if (f->one_input)
        LAUNCH(queue, conv2d_one_input_kernel,
               (unsigned)cuda_ceil_div(f->n_in * f->in_width, WARPS), THREADS, 0, a);
    else if (has_pairs && cuda_is_paired(&args->dx, channels))
        LAUNCH(queue, conv2d_input_kernel<2>, grid_of(f->n_in, channels, 2), THREADS,
               sizeof(filters<2>), a);
    else
        LAUNCH(queue, conv2d_input_kernel<1>, grid_of(f->n_in, channels, 1), THREADS,
               sizeof(filters<1>), a);
}

/* ---- gradients of the weights ---- */

struct conv2d_weights {
    struct image m;
    struct cuda_mat dy;
    float *parts; /* [parts, TAPS + 1, channels]: of the taps, then of the bias */
};

template <int V> struct weights_shared {
    float sum[WARPS][TAPS + 1][32 * V];
};

template <int V>
__global__ void __launch_bounds__(THREADS, 1) conv2d_weights_kernel(const conv2d_weights a)
{
    enum { COLS = 32 * V };
    SHARED(weights_shared<V>, sh);
    const image &m = a.m;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int channel = channel_of<V>(), runs = runs_of(m.out_width);
    float sum[TAPS + 1][V] = {};
    for (int r = warp; channel < m.channels && r < ROWS * runs; r += WARPS) {
        const run at = run_of(r, runs, m.out_width);
        if (at.row >= m.n_out)
            break;
        window<V> seen(m, at.row, at.first, channel);
        for (int f = at.first; f < at.last; f++) {
            float d[V];
            passed(d, m, a.dy, at.row, (int64_t)f * m.channels + channel);
            seen.move(m, f, channel);
#pragma unroll
            for (int v = 0; v < V; v++) {
                sum[TAPS][v] += d[v];
#pragma unroll
                for (int k = 0; k < TAPS; k++)
                    sum[k][v] += d[v] * seen.x[k / 3][k % 3][v];
            }
        }
    }
#pragma unroll
    for (int k = 0; k <= TAPS; k++)
#pragma unroll
        for (int v = 0; v < V; v++)
            sh->sum[warp][k][lane * V + v] = sum[k][v];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < (TAPS + 1) * COLS; i += THREADS) {
        const int k = i / COLS, col = (int)blockIdx.y * COLS + i % COLS;
        float total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            total += sh->sum[w][k][i % COLS];
        if (col < m.channels)
            a.parts[((int64_t)blockIdx.x * (TAPS + 1) + k) * m.channels + col] = total;
    }
}

size_t cuda_conv2d_backward_workspace(const struct s2s_queue *queue,
                                      const struct s2s_k_conv2d_backward *args)
{
    const int64_t parts = cuda_ceil_div(args->forward.n_out, ROWS);
    return (size_t)((parts + 1) * (TAPS + 1) * args->forward.channels) * sizeof(float);
}

void cuda_conv2d_backward(struct s2s_queue *queue, const struct s2s_k_conv2d_backward *args)
{
    const struct s2s_k_conv2d *f = &args->forward;
    const int64_t channels = f->channels, each = (TAPS + 1) * channels;
    const int64_t parts = cuda_ceil_div(f->n_out, ROWS);
    const bool pairs = has_pairs(f) && cuda_is_paired(&args->dy, channels);
    if (args->dx.data)
        input_run(queue, args, pairs);
    if (!args->dw && !args->dbias)
        return;
    float *total = (float *)args->workspace, *partial = total + each;
    const struct conv2d_weights weights = {image_of(f), cuda_mat(&args->dy), partial};
    if (pairs)
        LAUNCH(queue, conv2d_weights_kernel<2>, grid_of(f->n_out, channels, 2), THREADS,
               sizeof(weights_shared<2>), weights);
    else
        LAUNCH(queue, conv2d_weights_kernel<1>, grid_of(f->n_out, channels, 1), THREADS,
               sizeof(weights_shared<1>), weights);
    cuda_add_parts(queue, total, partial, parts, each, each, false);
    const struct cuda_add_turned taps = {args->dw, total, TAPS, channels};
    const struct cuda_add_turned bias = {args->dbias, total + TAPS * channels, 1, channels};
    if (args->dw)
        cuda_map(queue, taps, TAPS, channels, false);
    if (args->dbias)
        cuda_map(queue, bias, 1, channels, false);
}
