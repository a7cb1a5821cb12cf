/*
 * Norms of rows and their gradients: a block a row, whose threads take groups of columns. The
 * gradients of gains are summed by blocks that each take every n-th row, and then over the blocks.
 */
#include "kernels/cuda/sum.h"

/* Rows are shared out among so many blocks where a block keeps sums over its rows. */
enum { MAX_PARTS = 264 };

static int64_t n_parts(int64_t rows)
{
    return rows < MAX_PARTS ? rows : (int64_t)MAX_PARTS;
}

static unsigned threads_for(int64_t cols, int width)
{
    const int64_t groups = cuda_ceil_div(cols, width), warps = cuda_ceil_div(groups, 32);
    return (unsigned)(warps < 1 ? 32 : warps < 8 ? warps * 32 : 256);
}

/* Grids of rows: more than one grid dimension can hold is no case of training. */
static dim3 grid_of(int64_t rows)
{
    return dim3((unsigned)rows);
}

/* ---- rms norm ---- */

struct rmsnorm {
    struct cuda_mat x, residual, sum, y;
    const float *gain;
    float *rstd;
    int64_t cols;
    float eps, gain_offset;
};

template <int N> __global__ void rmsnorm_kernel(struct rmsnorm a)
{
    SHARED(float, room);
    const int64_t row = blockIdx.x, step = (int64_t)blockDim.x * N;
    const struct cuda_mat h = a.residual.data ? a.sum : a.x;
    float squares = 0, x[N], y[N];
    for (int64_t col = threadIdx.x * N; col < a.cols; col += step) {
        cuda_load(x, a.x, row, col);
        if (a.residual.data) {
            cuda_load(y, a.residual, row, col);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] += y[i];
            cuda_store(a.sum, row, col, x);
            cuda_load(x, a.sum, row, col); /* as it was rounded */
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            squares += x[i] * x[i];
    }
    squares = cuda_block_sum(squares, room);
    const float rstd = 1.0f / sqrtf(squares / (float)a.cols + a.eps);
    for (int64_t col = threadIdx.x * N; col < a.cols; col += step) {
        cuda_load(x, h, row, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            y[i] = (a.gain[col + i] + a.gain_offset) * (x[i] * rstd);
        cuda_store(a.y, row, col, y);
    }
    if (a.rstd && threadIdx.x == 0)
        a.rstd[row] = rstd;
}

void cuda_rmsnorm(struct s2s_queue *queue, const struct s2s_k_rmsnorm *args)
{
    const int64_t cols = args->cols;
    const struct rmsnorm a = {cuda_mat(&args->x),
                              cuda_mat(&args->residual),
                              cuda_mat(&args->sum),
                              cuda_mat(&args->y),
                              args->gain,
                              args->rstd,
                              cols,
                              args->eps,
                              args->gain_offset};
    const bool has_sum = args->residual.data != NULL;
    if (cuda_is_wide(&args->x, cols) && cuda_is_wide(&args->y, cols) &&
        (!has_sum || (cuda_is_wide(&args->residual, cols) && cuda_is_wide(&args->sum, cols))))
        LAUNCH(queue, rmsnorm_kernel<CUDA_WIDE>, grid_of(args->rows), threads_for(cols, CUDA_WIDE),
               32 * sizeof(float), a);
    else
        LAUNCH(queue, rmsnorm_kernel<1>, grid_of(args->rows), threads_for(cols, 1),
               32 * sizeof(float), a);
}

struct rmsnorm_backward {
    struct cuda_mat h, dy, dsum, dx, dresidual;
    const float *gain, *rstd;
    float *partial; /* [parts, cols]; NULL: dgain is not wanted */
    int64_t rows, cols;
    float gain_offset;
    bool accumulate_dx, accumulate_dresidual;
};

/* dh of a row into its outputs, given scale = rstd^3 mean(u h); adds dy h rstd to dgain. */
template <int N>
static __device__ __forceinline__ void rmsnorm_row(const struct rmsnorm_backward &a, int64_t row,
                                                   float rstd, float scale, float *dgain)
{
    float h[N], dy[N], dsum[N];
    for (int64_t col = threadIdx.x * N; col < a.cols; col += (int64_t)blockDim.x * N) {
        if (a.dsum.data)
            cuda_load(dsum, a.dsum, row, col);
        if (a.dy.data) {
            cuda_load(h, a.h, row, col);
            cuda_load(dy, a.dy, row, col);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            float dh = a.dsum.data ? dsum[i] : 0.0f;
            if (a.dy.data) {
                dh += (a.gain[col + i] + a.gain_offset) * dy[i] * rstd - h[i] * scale;
                if (dgain)
                    dgain[col + i] += dy[i] * (h[i] * rstd);
            }
            dsum[i] = dh;
        }
        if (a.dresidual.data)
            cuda_update(a.dresidual, row, col, dsum, a.accumulate_dresidual);
        if (a.dx.data)
            cuda_update(a.dx, row, col, dsum, a.accumulate_dx);
    }
}

template <int N> __global__ void rmsnorm_backward_kernel(struct rmsnorm_backward a)
{
    SHARED(float, room);
    float *dgain = a.partial ? a.partial + blockIdx.x * a.cols : NULL;
    const int64_t step = (int64_t)blockDim.x * N;
    for (int64_t col = threadIdx.x * N; dgain && col < a.cols; col += step)
#pragma unroll
        for (int i = 0; i < N; i++)
            dgain[col + i] = 0;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        float dot = 0, h[N], dy[N];
        for (int64_t col = threadIdx.x * N; a.dy.data && col < a.cols; col += step) {
            cuda_load(h, a.h, row, col);
            cuda_load(dy, a.dy, row, col);
#pragma unroll
            for (int i = 0; i < N; i++)
                dot += (a.gain[col + i] + a.gain_offset) * dy[i] * h[i];
        }
        const float rstd = a.dy.data ? a.rstd[row] : 0.0f;
        dot = cuda_block_sum(dot, room);
        rmsnorm_row<N>(a, row, rstd, dot / (float)a.cols * rstd * rstd * rstd, dgain);
    }
}

size_t cuda_rmsnorm_backward_workspace(const struct s2s_queue *queue,
                                       const struct s2s_k_rmsnorm_backward *args)
{
    return (size_t)(n_parts(args->rows) * args->cols) * sizeof(float);
}

void cuda_rmsnorm_backward(struct s2s_queue *queue, const struct s2s_k_rmsnorm_backward *args)
{
    const int64_t cols = args->cols, parts = n_parts(args->rows);
    float *partial = args->dgain && args->dy.data ? (float *)args->workspace : NULL;
    const bool passes_on = args->dx.data == args->dsum.data && !args->dy.data;
    const struct rmsnorm_backward a = {
        cuda_mat(&args->h), cuda_mat(&args->dy), cuda_mat(&args->dsum),
        /* what is there already is not written */
        passes_on ? cuda_mat_none() : cuda_mat(&args->dx), cuda_mat(&args->dresidual), args->gain,
        args->rstd, partial, args->rows, cols, args->gain_offset, args->accumulate_dx,
        args->accumulate_dresidual};
    /* without parts to sum, a block a row */
    const dim3 grid = grid_of(partial ? parts : args->rows);
    if (cuda_is_wide(&args->h, cols) && cuda_is_wide(&args->dy, cols) &&
        cuda_is_wide(&args->dsum, cols) && cuda_is_wide(&args->dx, cols) &&
        cuda_is_wide(&args->dresidual, cols))
        LAUNCH(queue, rmsnorm_backward_kernel<CUDA_WIDE>, grid, threads_for(cols, CUDA_WIDE),
               32 * sizeof(float), a);
    else
        LAUNCH(queue, rmsnorm_backward_kernel<1>, grid, threads_for(cols, 1), 32 * sizeof(float),
               a);
    if (partial)
        cuda_add_parts(queue, args->dgain, partial, parts, cols, cols, true);
}

/* ---- layer norm ---- */

struct layernorm {
    struct cuda_mat x, residual, sum, y;
    const float *gain, *bias;
    float *stats;
    int64_t cols;
    float alpha, eps;
};

template <int N> __global__ void layernorm_kernel(struct layernorm a)
{
    SHARED(float, room);
    const int64_t row = blockIdx.x, step = (int64_t)blockDim.x * N;
    const struct cuda_mat h = a.residual.data ? a.sum : a.x;
    float sum = 0, squares = 0, x[N], y[N];
    for (int64_t col = threadIdx.x * N; col < a.cols; col += step) {
        cuda_load(x, a.x, row, col);
        if (a.residual.data) {
            cuda_load(y, a.residual, row, col);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = y[i] + a.alpha * x[i];
            cuda_store(a.sum, row, col, x);
            cuda_load(x, a.sum, row, col); /* as it was rounded */
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += x[i];
    }
    const float mean = cuda_block_sum(sum, room) / (float)a.cols;
    for (int64_t col = threadIdx.x * N; col < a.cols; col += step) {
        cuda_load(x, h, row, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            squares += (x[i] - mean) * (x[i] - mean);
    }
    const float rstd = 1.0f / sqrtf(cuda_block_sum(squares, room) / (float)a.cols + a.eps);
    for (int64_t col = threadIdx.x * N; col < a.cols; col += step) {
        cuda_load(x, h, row, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            y[i] = a.gain[col + i] * ((x[i] - mean) * rstd) + a.bias[col + i];
        cuda_store(a.y, row, col, y);
    }
    if (a.stats && threadIdx.x == 0) {
        a.stats[2 * row] = mean;
        a.stats[2 * row + 1] = rstd;
    }
}

void cuda_layernorm(struct s2s_queue *queue, const struct s2s_k_layernorm *args)
{
    const int64_t cols = args->cols;
    const struct layernorm a = {cuda_mat(&args->x),   cuda_mat(&args->residual),
                                cuda_mat(&args->sum), cuda_mat(&args->y),
                                args->gain,           args->bias,
                                args->stats,          cols,
                                args->alpha,          args->eps};
    const bool has_sum = args->residual.data != NULL;
    if (cuda_is_wide(&args->x, cols) && cuda_is_wide(&args->y, cols) &&
        (!has_sum || (cuda_is_wide(&args->residual, cols) && cuda_is_wide(&args->sum, cols))))
        LAUNCH(queue, layernorm_kernel<CUDA_WIDE>, grid_of(args->rows),
               threads_for(cols, CUDA_WIDE), 32 * sizeof(float), a);
    else
        LAUNCH(queue, layernorm_kernel<1>, grid_of(args->rows), threads_for(cols, 1),
               32 * sizeof(float), a);
}

struct layernorm_backward {
    struct cuda_mat h, dy, dsum, dx, dresidual;
    const float *gain, *stats;
    float *partial; /* [parts, 2, cols]: of the gain, of the bias; NULL: not wanted */
    int64_t rows, cols;
    float alpha;
    bool accumulate_dx, accumulate_dresidual;
};

template <int N>
static __device__ __forceinline__ void layernorm_row(const struct layernorm_backward &a,
                                                     int64_t row, float mean, float rstd,
                                                     float mean_u, float mean_ux, float *dgain)
{
    float h[N], dy[N], dh[N];
    for (int64_t col = threadIdx.x * N; col < a.cols; col += (int64_t)blockDim.x * N) {
#pragma unroll
        for (int i = 0; i < N; i++)
            dh[i] = 0;
        if (a.dsum.data)
            cuda_load(dh, a.dsum, row, col);
        if (a.dy.data) {
            cuda_load(h, a.h, row, col);
            cuda_load(dy, a.dy, row, col);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float xhat = (h[i] - mean) * rstd;
                dh[i] += rstd * (a.gain[col + i] * dy[i] - mean_u - xhat * mean_ux);
                if (dgain) {
                    dgain[col + i] += dy[i] * xhat;
                    dgain[a.cols + col + i] += dy[i];
                }
            }
        }
        if (a.dresidual.data)
            cuda_update(a.dresidual, row, col, dh, a.accumulate_dresidual);
#pragma unroll
        for (int i = 0; i < N; i++)
            dh[i] *= a.alpha;
        if (a.dx.data)
            cuda_update(a.dx, row, col, dh, a.accumulate_dx);
    }
}

template <int N> __global__ void layernorm_backward_kernel(struct layernorm_backward a)
{
    SHARED(float, room);
    float *dgain = a.partial ? a.partial + blockIdx.x * 2 * a.cols : NULL;
    const int64_t step = (int64_t)blockDim.x * N;
    for (int64_t col = threadIdx.x * N; dgain && col < a.cols; col += step)
#pragma unroll
        for (int i = 0; i < N; i++)
            dgain[col + i] = dgain[a.cols + col + i] = 0;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        float u_sum = 0, ux_sum = 0, h[N], dy[N];
        const float mean = a.dy.data ? a.stats[2 * row] : 0.0f;
        const float rstd = a.dy.data ? a.stats[2 * row + 1] : 0.0f;
        for (int64_t col = threadIdx.x * N; a.dy.data && col < a.cols; col += step) {
            cuda_load(h, a.h, row, col);
            cuda_load(dy, a.dy, row, col);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float u = a.gain[col + i] * dy[i];
                u_sum += u;
                ux_sum += u * ((h[i] - mean) * rstd);
            }
        }
        u_sum = cuda_block_sum(u_sum, room) / (float)a.cols;
        ux_sum = cuda_block_sum(ux_sum, room) / (float)a.cols;
        layernorm_row<N>(a, row, mean, rstd, u_sum, ux_sum, dgain);
    }
}

size_t cuda_layernorm_backward_workspace(const struct s2s_queue *queue,
                                         const struct s2s_k_layernorm_backward *args)
{
    return (size_t)(n_parts(args->rows) * 2 * args->cols) * sizeof(float);
}

void cuda_layernorm_backward(struct s2s_queue *queue, const struct s2s_k_layernorm_backward *args)
{
    const int64_t cols = args->cols, parts = n_parts(args->rows);
    float *partial =
        (args->dgain || args->dbias) && args->dy.data ? (float *)args->workspace : NULL;
    const struct layernorm_backward a = {cuda_mat(&args->h),
                                         cuda_mat(&args->dy),
                                         cuda_mat(&args->dsum),
                                         cuda_mat(&args->dx),
                                         cuda_mat(&args->dresidual),
                                         args->gain,
                                         args->stats,
                                         partial,
                                         args->rows,
                                         cols,
                                         args->alpha,
                                         args->accumulate_dx,
                                         args->accumulate_dresidual};
    const dim3 grid = grid_of(partial ? parts : args->rows);
    if (cuda_is_wide(&args->h, cols) && cuda_is_wide(&args->dy, cols) &&
        cuda_is_wide(&args->dsum, cols) && cuda_is_wide(&args->dx, cols) &&
        cuda_is_wide(&args->dresidual, cols))
        LAUNCH(queue, layernorm_backward_kernel<CUDA_WIDE>, grid, threads_for(cols, CUDA_WIDE),
               32 * sizeof(float), a);
    else
        LAUNCH(queue, layernorm_backward_kernel<1>, grid, threads_for(cols, 1), 32 * sizeof(float),
               a);
    if (partial && args->dgain)
        cuda_add_parts(queue, args->dgain, partial, parts, cols, 2 * cols, true);
    if (partial && args->dbias)
        cuda_add_parts(queue, args->dbias, partial + cols, parts, cols, 2 * cols, true);
}
