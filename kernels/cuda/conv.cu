/*
 * Convolutions of packed clips, channels last: depthwise over time, and 3x3 with stride 2. A thread
 * an element; gradients of weights are parts of a fixed number of rows, added in order.
 */
#include "kernels/cuda/map.h"
#include "kernels/cuda/seq.h"
#include "kernels/cuda/sum.h"

/* Rows of a part of the weights' gradients. */
enum { PART_ROWS = 64 };

static int64_t n_parts(int64_t rows)
{
    return cuda_ceil_div(rows, PART_ROWS);
}

/* ---- over time ---- */

struct dwconv {
    struct cuda_mat x, y;
    const float *w, *bias;
    const int32_t *cu;
    int64_t n_seqs, width, before;
    bool turned, accumulate; /* turned: the gradient of the input */
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        const int64_t seq = find_seq(cu, n_seqs, row);
        const int64_t begin = cu[seq], end = cu[seq + 1];
        float sum[1] = {bias ? bias[col] : 0.0f};
        for (int64_t k = 0; k < width; k++) {
            const int64_t from = turned ? row + before - k : row - before + k;
            if (from >= begin && from < end)
                sum[0] += w[col * width + k] * cuda_get(x, from, col);
        }
        cuda_update(y, row, col, sum, accumulate);
    }
};

static int64_t before_of(const struct s2s_k_dwconv *f)
{
    return (f->width - 1) / 2 + f->shift;
}

size_t cuda_dwconv_workspace(const struct s2s_queue *queue, const struct s2s_k_dwconv *args)
{
    return 0;
}

void cuda_dwconv(struct s2s_queue *queue, const struct s2s_k_dwconv *args)
{
    const struct dwconv map = {
        cuda_mat(&args->x), cuda_mat(&args->y), args->w,         args->bias, args->cu,
        args->n_seqs,       args->width,        before_of(args), false,      false};
    cuda_map(queue, map, args->n, args->channels, false);
}

struct dwconv_weights {
    struct cuda_mat x, dy;
    float *parts; /* [parts, width + 1, channels]: of the taps, then of the bias */
    const int32_t *cu;
    int64_t n_seqs, n, width, channels, before;
    /* row: part, then tap */
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        const int64_t part = row / (width + 1), k = row - part * (width + 1);
        const int64_t shift = k - before;
        const int64_t begin = part * PART_ROWS;
        const int64_t end = begin + PART_ROWS < n ? begin + PART_ROWS : n;
        int64_t seq = find_seq(cu, n_seqs, begin);
        float sum = 0;
        for (int64_t t = begin; t < end; t++) {
            while (t >= cu[seq + 1])
                seq++;
            const float d = cuda_get(dy, t, col);
            const int64_t from = t + shift;
            if (k == width)
                sum += d;
            else if (from >= cu[seq] && from < cu[seq + 1])
                sum += d * cuda_get(x, from, col);
        }
        parts[row * channels + col] = sum;
    }
};

size_t cuda_dwconv_backward_workspace(const struct s2s_queue *queue,
                                      const struct s2s_k_dwconv_backward *args)
{
    const struct s2s_k_dwconv *f = &args->forward;
    return (size_t)((n_parts(f->n) + 1) * (f->width + 1) * f->channels) * sizeof(float);
}

void cuda_dwconv_backward(struct s2s_queue *queue, const struct s2s_k_dwconv_backward *args)
{
    const struct s2s_k_dwconv *f = &args->forward;
    const int64_t channels = f->channels, each = (f->width + 1) * channels, parts = n_parts(f->n);
    const struct dwconv input = {cuda_mat(&args->dy),
                                 cuda_mat(&args->dx),
                                 f->w,
                                 NULL,
                                 f->cu,
                                 f->n_seqs,
                                 f->width,
                                 before_of(f),
                                 true,
                                 args->accumulate_dx};
    if (args->dx.data)
        cuda_map(queue, input, f->n, channels, false);
    if (!args->dw && !args->dbias)
        return;
    float *total = (float *)args->workspace, *partial = total + each;
    const struct dwconv_weights weights = {
        cuda_mat(&f->x), cuda_mat(&args->dy), partial, f->cu, f->n_seqs, f->n, f->width,
        channels,        before_of(f)};
    cuda_map(queue, weights, parts * (f->width + 1), channels, false);
    cuda_add_parts(queue, total, partial, parts, each, each, false);
    const struct cuda_add_turned taps = {args->dw, total, f->width, channels};
    const struct cuda_add_turned bias = {args->dbias, total + f->width * channels, 1, channels};
    if (args->dw)
        cuda_map(queue, taps, f->width, channels, false);
    if (args->dbias)
        cuda_map(queue, bias, 1, channels, false);
}

/* ---- over images ---- */

enum { TAPS = 9 };

struct image {
    struct cuda_mat x, y;
    const float *w, *bias;
    const int32_t *cu_in, *cu_out;
    int64_t n_seqs, n_in, n_out, in_width, out_width, channels, pad;
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
                            f->n_seqs,
                            f->n_in,
                            f->n_out,
                            f->in_width,
                            s2s_conv2d_half(f->in_width, f->causal),
                            f->channels,
                            f->causal ? 2 : 1,
                            f->one_input,
                            f->relu};
    return m;
}

/* The pixel of channel c at row `row` (of the clip that begins and ends there) and column f; 0
 * outside of the image. */
static __device__ __forceinline__ float pixel(const struct image &m, int64_t begin, int64_t end,
                                              int64_t row, int64_t f, int64_t c)
{
    if (row < begin || row >= end || f < 0 || f >= m.in_width)
        return 0;
    return cuda_get(m.x, row, m.one_input ? f : f * m.channels + c);
}

struct conv2d {
    struct image m;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        const int64_t f = col / m.channels, c = col - f * m.channels;
        const int64_t seq = find_seq(m.cu_out, m.n_seqs, row);
        const int64_t begin = m.cu_in[seq], end = m.cu_in[seq + 1];
        const int64_t top = begin + 2 * (row - m.cu_out[seq]) - m.pad;
        float sum[1] = {m.bias ? m.bias[c] : 0.0f};
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++)
                sum[0] +=
                    m.w[c * TAPS + i * 3 + j] * pixel(m, begin, end, top + i, 2 * f - m.pad + j, c);
        if (m.relu && sum[0] < 0)
            sum[0] = 0;
        cuda_store(m.y, row, col, sum);
    }
};

size_t cuda_conv2d_workspace(const struct s2s_queue *queue, const struct s2s_k_conv2d *args)
{
    return 0;
}

void cuda_conv2d(struct s2s_queue *queue, const struct s2s_k_conv2d *args)
{
    const struct conv2d map = {image_of(args)};
    cuda_map(queue, map, args->n_out, map.m.out_width * args->channels, false);
}

/* dy of an output where it was not cut off */
static __device__ __forceinline__ float passed(const struct image &m, const struct cuda_mat &dy,
                                               int64_t row, int64_t f, int64_t c)
{
    const int64_t at = f * m.channels + c;
    return m.relu && !(cuda_get(m.y, row, at) > 0) ? 0.0f : cuda_get(dy, row, at);
}

struct conv2d_input {
    struct image m;
    struct cuda_mat dy, dx;
    bool accumulate;

    /* what the pixel (row, f) of the clip gets through the filter of channel c */
    __device__ float of_channel(int64_t seq, int64_t row, int64_t f, int64_t c) const
    {
        const int64_t out = m.cu_out[seq], n = m.cu_out[seq + 1] - out;
        float sum = 0;
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++) {
                const int64_t t2 = row - m.cu_in[seq] + m.pad - i, f2 = f + m.pad - j;
                if (t2 < 0 || t2 % 2 || t2 / 2 >= n || f2 < 0 || f2 % 2 || f2 / 2 >= m.out_width)
                    continue;
                sum += m.w[c * TAPS + i * 3 + j] * passed(m, dy, out + t2 / 2, f2 / 2, c);
            }
        return sum;
    }

    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        const int64_t seq = find_seq(m.cu_in, m.n_seqs, row);
        float sum[1] = {0};
        if (m.one_input) {
            for (int64_t c = 0; c < m.channels; c++)
                sum[0] += of_channel(seq, row, col, c);
        } else {
            const int64_t f = col / m.channels;
            sum[0] = of_channel(seq, row, f, col - f * m.channels);
        }
        cuda_update(dx, row, col, sum, accumulate);
    }
};

enum { IMAGE_ROWS = 4 }; /* of a part: a row has many pixels */

struct conv2d_weights {
    struct image m;
    struct cuda_mat dy;
    float *parts; /* [parts, TAPS + 1, channels] */
    /* row: part, then tap */
    template <int N> __device__ void at(int64_t row, int64_t c) const
    {
        const int64_t part = row / (TAPS + 1);
        const int k = (int)(row - part * (TAPS + 1));
        const int64_t first = part * IMAGE_ROWS;
        const int64_t last = first + IMAGE_ROWS < m.n_out ? first + IMAGE_ROWS : m.n_out;
        float sum = 0;
        for (int64_t t = first; t < last; t++) {
            const int64_t seq = find_seq(m.cu_out, m.n_seqs, t);
            const int64_t begin = m.cu_in[seq], end = m.cu_in[seq + 1];
            const int64_t at = begin + 2 * (t - m.cu_out[seq]) - m.pad + k / 3;
            for (int64_t f = 0; f < m.out_width; f++)
                sum += passed(m, dy, t, f, c) *
                       (k == TAPS ? 1.0f : pixel(m, begin, end, at, 2 * f - m.pad + k % 3, c));
        }
        parts[row * m.channels + c] = sum;
    }
};

size_t cuda_conv2d_backward_workspace(const struct s2s_queue *queue,
                                      const struct s2s_k_conv2d_backward *args)
{
    const int64_t parts = cuda_ceil_div(args->forward.n_out, IMAGE_ROWS);
    return (size_t)((parts + 1) * (TAPS + 1) * args->forward.channels) * sizeof(float);
}

void cuda_conv2d_backward(struct s2s_queue *queue, const struct s2s_k_conv2d_backward *args)
{
    const struct s2s_k_conv2d *f = &args->forward;
    const int64_t channels = f->channels, each = (TAPS + 1) * channels;
    const int64_t parts = cuda_ceil_div(f->n_out, IMAGE_ROWS);
    const struct conv2d_input input = {image_of(f), cuda_mat(&args->dy), cuda_mat(&args->dx),
                                       args->accumulate_dx};
    if (args->dx.data)
        cuda_map(queue, input, f->n_in, f->in_width * (f->one_input ? 1 : channels), false);
    if (!args->dw && !args->dbias)
        return;
    float *total = (float *)args->workspace, *partial = total + each;
    const struct conv2d_weights weights = {image_of(f), cuda_mat(&args->dy), partial};
    cuda_map(queue, weights, parts * (TAPS + 1), channels, false);
    cuda_add_parts(queue, total, partial, parts, each, each, false);
    const struct cuda_add_turned taps = {args->dw, total, TAPS, channels};
    const struct cuda_add_turned bias = {args->dbias, total + TAPS * channels, 1, channels};
    if (args->dw)
        cuda_map(queue, taps, TAPS, channels, false);
    if (args->dbias)
        cuda_map(queue, bias, 1, channels, false);
}
