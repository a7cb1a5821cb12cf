/*
 * Batch norm over the rows of a packed batch, with silu after it, and its gradient:
 *   dx = gain rstd (dz - share (sum of dz + xhat sum of dz xhat)),  dz = dy act'(z)
 * Sums over rows are parts of a fixed number of rows, added in order.
 */
#include "kernels/cuda/map.h"
#include "kernels/cuda/sum.h"

/* ---- mean and variance ---- */

struct moments {
    enum { SUMS = 1 };
    struct cuda_mat x;
    const float *shift; /* NULL: of x itself, else of squares of x - shift */
    template <int N> __device__ void at(int64_t row, int64_t col, float (&out)[1][N]) const
    {
        cuda_load(out[0], x, row, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (shift)
                out[0][i] = (out[0][i] - shift[col + i]) * (out[0][i] - shift[col + i]);
    }
};

struct divide {
    float *out;
    float by;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        out[col] /= by;
    }
};

size_t cuda_column_stats_workspace(const struct s2s_queue *queue,
                                   const struct s2s_k_column_stats *args)
{
    return (size_t)(cuda_column_parts(args->rows) * args->cols) * sizeof(float);
}

static void mean_of(struct s2s_queue *queue, const struct s2s_k_column_stats *args,
                    const float *shift, float *out)
{
    const int64_t cols = args->cols;
    const struct moments map = {cuda_mat(&args->x), shift};
    const struct divide div = {out, args->rows ? (float)args->rows : 1.0f};
    float *parts = (float *)args->workspace;
    cuda_columns(queue, map, parts, args->rows, cols, cuda_is_wide(&args->x, cols));
    cuda_add_parts(queue, out, parts, cuda_column_parts(args->rows), cols, cols, false);
    cuda_map(queue, div, 1, cols, false);
}

void cuda_column_stats(struct s2s_queue *queue, const struct s2s_k_column_stats *args)
{
    mean_of(queue, args, NULL, args->mean);
    mean_of(queue, args, args->mean, args->var);
}

/* ---- the norm ---- */

/* What a column has. */
struct columns {
    const float *mean, *var, *gain, *bias;
    float eps;
    bool silu;
};

static struct columns columns_of(const struct s2s_k_batchnorm *f)
{
    const struct columns c = {f->mean, f->var, f->gain, f->bias, f->eps, f->silu};
    return c;
}

static __device__ __forceinline__ float rstd_of(const struct columns &c, int64_t col)
{
    return 1.0f / sqrtf(c.var[col] + c.eps);
}

struct batchnorm {
    struct cuda_mat x, y;
    struct columns c;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float v[N];
        cuda_load(v, x, row, col);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float xhat = (v[i] - c.mean[col + i]) * rstd_of(c, col + i);
            const float z = c.gain[col + i] * xhat + c.bias[col + i];
            v[i] = c.silu ? z / (1.0f + expf(-z)) : z;
        }
        cuda_store(y, row, col, v);
    }
};

void cuda_batchnorm(struct s2s_queue *queue, const struct s2s_k_batchnorm *args)
{
    const struct batchnorm map = {cuda_mat(&args->x), cuda_mat(&args->y), columns_of(args)};
    cuda_map(queue, map, args->rows, args->cols,
             cuda_is_wide(&args->x, args->cols) && cuda_is_wide(&args->y, args->cols));
}

/* ---- gradient ---- */

/* dz of an element of a column, and xhat */
static __device__ __forceinline__ float dz_of(const struct columns &c, int64_t col, float x,
                                              float dy, float *xhat)
{
    *xhat = (x - c.mean[col]) * rstd_of(c, col);
    if (!c.silu)
        return dy;
    const float z = c.gain[col] * *xhat + c.bias[col], s = 1.0f / (1.0f + expf(-z));
    return dy * (s * (1.0f + z * (1.0f - s)));
}

struct gradient_sums {
    enum { SUMS = 2 };
    struct cuda_mat x, dy;
    struct columns c;
    template <int N> __device__ void at(int64_t row, int64_t col, float (&out)[2][N]) const
    {
        cuda_load(out[0], dy, row, col);
        cuda_load(out[1], x, row, col);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float xhat;
            out[0][i] = dz_of(c, col + i, out[1][i], out[0][i], &xhat);
            out[1][i] = out[0][i] * xhat;
        }
    }
};

struct add_vector {
    float *to;
    const float *from;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        to[col] += from[col];
    }
};

struct gradient_input {
    struct cuda_mat x, dy, dx;
    struct columns c;
    const float *total; /* [2, cols] */
    int64_t cols;
    float share;
    bool accumulate;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float v[N], d[N];
        cuda_load(v, x, row, col);
        cuda_load(d, dy, row, col);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float xhat;
            const float dz = dz_of(c, col + i, v[i], d[i], &xhat);
            d[i] = c.gain[col + i] * rstd_of(c, col + i) *
                   (dz - share * (total[col + i] + xhat * total[cols + col + i]));
        }
        cuda_update(dx, row, col, d, accumulate);
    }
};

size_t cuda_batchnorm_backward_workspace(const struct s2s_queue *queue,
                                         const struct s2s_k_batchnorm_backward *args)
{
    return (size_t)((cuda_column_parts(args->forward.rows) + 1) * 2 * args->forward.cols) *
           sizeof(float);
}

void cuda_batchnorm_backward(struct s2s_queue *queue, const struct s2s_k_batchnorm_backward *args)
{
    const struct s2s_k_batchnorm *f = &args->forward;
    const int64_t cols = f->cols, parts = cuda_column_parts(f->rows);
    const bool wide =
        cuda_is_wide(&f->x, cols) && cuda_is_wide(&args->dy, cols) && cuda_is_wide(&args->dx, cols);
    const struct columns c = columns_of(f);
    const struct gradient_sums sums = {cuda_mat(&f->x), cuda_mat(&args->dy), c};
    float *total = (float *)args->workspace, *partial = total + 2 * cols;
    cuda_columns(queue, sums, partial, f->rows, cols, wide);
    cuda_add_parts(queue, total, partial, parts, 2 * cols, 2 * cols, false);
    const struct add_vector bias = {args->dbias, total}, gain = {args->dgain, total + cols};
    if (args->dbias)
        cuda_map(queue, bias, 1, cols, false);
    if (args->dgain)
        cuda_map(queue, gain, 1, cols, false);
    const struct gradient_input input = {cuda_mat(&f->x),
                                         cuda_mat(&args->dy),
                                         cuda_mat(&args->dx),
                                         c,
                                         total,
                                         cols,
                                         args->from_batch && f->rows ? 1.0f / (float)f->rows : 0.0f,
                                         args->accumulate_dx};
    if (args->dx.data)
        cuda_map(queue, input, f->rows, cols, wide);
}
