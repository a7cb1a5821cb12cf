/*
 * Norms of rows and their gradients: a block a row, whose threads take groups of columns. The
 * gradients of gains are summed by blocks that each take every n-th row, and then over the blocks.
 */
#include "kernels/cuda/map.h"
#include "kernels/cuda/sum.h"

/* Rows are shared out among so many blocks where a block keeps sums over its rows. */
enum { MAX_PARTS = 528 };

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

/* A thread has the groups threadIdx.x, threadIdx.x + blockDim.x, .. of its row. K of them, which
 * are all, stay in registers between the passes. */
enum { MAX_KEPT = 4 };

/* For LAUNCH_KEPT below: 1, 2, 4 or, with rows longer than that, 0. */
static int kept(int64_t cols, int width, unsigned threads)
{
    const int64_t groups = cuda_ceil_div(cuda_ceil_div(cols, width), threads);
    return groups <= 1 ? 1 : groups <= 2 ? 2 : groups <= MAX_KEPT ? 4 : 0;
}

#define LAUNCH_KEPT(queue, kernel, is_wide, grid, cols, ...) \
    do { \
        const int width_ = is_wide ? CUDA_WIDE : 1; \
        const unsigned threads_ = threads_for(cols, width_); \
        const int kept_ = kept(cols, width_, threads_); \
        const size_t room_ = 32 * sizeof(float); \
        if (is_wide && kept_ == 1) \
            LAUNCH(queue, (kernel<CUDA_WIDE, 1>), grid, threads_, room_, __VA_ARGS__); \
        else if (is_wide && kept_ == 2) \
            LAUNCH(queue, (kernel<CUDA_WIDE, 2>), grid, threads_, room_, __VA_ARGS__); \
        else if (is_wide && kept_ == 4) \
            LAUNCH(queue, (kernel<CUDA_WIDE, 4>), grid, threads_, room_, __VA_ARGS__); \
        else if (is_wide) \
            LAUNCH(queue, (kernel<CUDA_WIDE, 0>), grid, threads_, room_, __VA_ARGS__); \
        else \
            LAUNCH(queue, (kernel<1, 0>), grid, threads_, room_, __VA_ARGS__); \
    } while (0)

struct rmsnorm {
    struct cuda_mat x, residual, sum, y;
    const float *gain;
    float *rstd;
    int64_t cols;
    float eps, gain_offset;
};

/* h of a group, stored where there is a sum; gives the sum of its squares. */
template <int N>
static __device__ __forceinline__ float rmsnorm_load(const struct rmsnorm &a, int64_t row,
                                                     int64_t col, float (&h)[N])
{
    float squares = 0, y[N];
    cuda_load(h, a.x, row, col);
    if (a.residual.data) {
        cuda_load(y, a.residual, row, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            h[i] = a.sum.bf16 ? cuda_of_bf16(cuda_to_bf16(h[i] + y[i])) : h[i] + y[i];
        cuda_store(a.sum, row, col, h);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        squares += h[i] * h[i];
    return squares;
}

template <int N>
static __device__ __forceinline__ void rmsnorm_store(const struct rmsnorm &a, int64_t row,
                                                     int64_t col, const float (&h)[N], float rstd)
{
    const struct cuda_mat gain = {(char *)a.gain, 0, false};
    float y[N];
    cuda_load(y, gain, 0, col);
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] = (y[i] + a.gain_offset) * (h[i] * rstd);
    cuda_store(a.y, row, col, y);
}

template <int N, int K> __global__ void rmsnorm_kernel(struct rmsnorm a)
{
    SHARED(float, room);
    const int64_t row = blockIdx.x, step = (int64_t)blockDim.x * N, first = threadIdx.x * N;
    const struct cuda_mat from = a.residual.data ? a.sum : a.x;
    float squares = 0, h[K ? K : 1][N] = {};
    if constexpr (K > 0) {
#pragma unroll
        for (int g = 0; g < K; g++)
            if (first + g * step < a.cols)
                squares += rmsnorm_load(a, row, first + g * step, h[g]);
    } else {
        for (int64_t col = first; col < a.cols; col += step)
            squares += rmsnorm_load(a, row, col, h[0]);
    }
    squares = cuda_block_sum(squares, room);
    const float rstd = 1.0f / sqrtf(squares / (float)a.cols + a.eps);
    if constexpr (K > 0) {
#pragma unroll
        for (int g = 0; g < K; g++)
            if (first + g * step < a.cols)
                rmsnorm_store(a, row, first + g * step, h[g], rstd);
    } else {
        for (int64_t col = first; col < a.cols; col += step) {
            cuda_load(h[0], from, row, col);
            rmsnorm_store(a, row, col, h[0], rstd);
        }
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
    const bool wide =
        cuda_is_wide(&args->x, cols) && cuda_is_wide(&args->y, cols) &&
        (uintptr_t)args->gain % 16 == 0 &&
        (!has_sum || (cuda_is_wide(&args->residual, cols) && cuda_is_wide(&args->sum, cols)));
    LAUNCH_KEPT(queue, rmsnorm_kernel, wide, grid_of(args->rows), cols, a);
}

struct rmsnorm_backward {
    struct cuda_mat h, dy, dsum, dx, dresidual;
    const float *gain, *rstd;
    float *partial; /* [parts, cols]; NULL: dgain is not wanted */
    int64_t rows, cols;
    float gain_offset;
    bool accumulate_dx, accumulate_dresidual;
};

/* u h summed over a group; u is (gain + gain_offset) dy */
template <int N>
static __device__ __forceinline__ float rmsnorm_dot(const struct rmsnorm_backward &a, int64_t row,
                                                    int64_t col, float (&h)[N], float (&dy)[N])
{
    const struct cuda_mat gain = {(char *)a.gain, 0, false};
    float dot = 0, w[N];
    cuda_load(h, a.h, row, col);
    cuda_load(dy, a.dy, row, col);
    cuda_load(w, gain, 0, col);
#pragma unroll
    for (int i = 0; i < N; i++)
        dot += (w[i] + a.gain_offset) * dy[i] * h[i];
    return dot;
}

/* What a group of dh begins with: what came past the norm. */
template <int N>
static __device__ __forceinline__ void rmsnorm_begin(const struct rmsnorm_backward &a, int64_t row,
                                                     int64_t col, float (&dh)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        dh[i] = 0;
    if (a.dsum.data)
        cuda_load(dh, a.dsum, row, col);
}

/* dh of a group, which has begun, into its outputs, given scale = rstd^3 mean(u h); dy becomes
 * dy h rstd. */
template <int N>
static __device__ __forceinline__ void rmsnorm_finish(const struct rmsnorm_backward &a, int64_t row,
                                                      int64_t col, const float (&h)[N],
                                                      float (&dy)[N], float (&dh)[N], float rstd,
                                                      float scale)
{
    const struct cuda_mat gain = {(char *)a.gain, 0, false};
    float w[N];
    cuda_load(w, gain, 0, col);
#pragma unroll
    for (int i = 0; i < N; i++) {
        dh[i] += (w[i] + a.gain_offset) * dy[i] * rstd - h[i] * scale;
        dy[i] *= h[i] * rstd;
    }
    if (a.dresidual.data)
        cuda_update(a.dresidual, row, col, dh, a.accumulate_dresidual);
    if (a.dx.data)
        cuda_update(a.dx, row, col, dh, a.accumulate_dx);
}

/* Adds to the block's part of dgain, or begins it. */
template <int N>
static __device__ __forceinline__ void rmsnorm_gain(float *dgain, int64_t col, const float (&x)[N],
                                                    bool begin)
{
    const struct cuda_mat to = {(char *)dgain, 0, false};
    cuda_update(to, 0, col, x, !begin);
}

template <int N, int K> __global__ void rmsnorm_backward_kernel(struct rmsnorm_backward a)
{
    SHARED(float, room);
    float *dgain = a.partial ? a.partial + blockIdx.x * a.cols : NULL;
    const int64_t step = (int64_t)blockDim.x * N, first = threadIdx.x * N;
    float h[K ? K : 1][N] = {}, dy[K ? K : 1][N] = {}, sum[K ? K : 1][N] = {};
    float dh[K ? K : 1][N] = {};
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        float dot = 0;
        const float rstd = a.rstd[row];
        if constexpr (K > 0) {
#pragma unroll
            for (int g = 0; g < K; g++)
                if (first + g * step < a.cols) {
                    /* read here, it is on its way while the block adds up */
                    rmsnorm_begin(a, row, first + g * step, dh[g]);
                    dot += rmsnorm_dot(a, row, first + g * step, h[g], dy[g]);
                }
        } else {
            for (int64_t col = first; col < a.cols; col += step)
                dot += rmsnorm_dot(a, row, col, h[0], dy[0]);
        }
        dot = cuda_block_sum(dot, room);
        const float scale = dot / (float)a.cols * rstd * rstd * rstd;
        if constexpr (K > 0) {
#pragma unroll
            for (int g = 0; g < K; g++)
                if (first + g * step < a.cols) {
                    rmsnorm_finish(a, row, first + g * step, h[g], dy[g], dh[g], rstd, scale);
#pragma unroll
                    for (int i = 0; i < N; i++)
                        sum[g][i] += dy[g][i];
                }
        } else {
            for (int64_t col = first; col < a.cols; col += step) {
                cuda_load(h[0], a.h, row, col);
                cuda_load(dy[0], a.dy, row, col);
                rmsnorm_begin(a, row, col, dh[0]);
                rmsnorm_finish(a, row, col, h[0], dy[0], dh[0], rstd, scale);
                if (dgain)
                    rmsnorm_gain(dgain, col, dy[0], row == blockIdx.x);
            }
        }
    }
    if constexpr (K > 0)
#pragma unroll
        for (int g = 0; g < K; g++)
            if (dgain && first + g * step < a.cols)
                rmsnorm_gain(dgain, first + g * step, sum[g], true);
}

/* no gradient through the norm: dh = dsum */
struct pass_on {
    struct cuda_mat dsum, dx, dresidual;
    bool accumulate_dx, accumulate_dresidual;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float x[N];
        cuda_load(x, dsum, row, col);
        if (dresidual.data)
            cuda_update(dresidual, row, col, x, accumulate_dresidual);
        if (dx.data)
            cuda_update(dx, row, col, x, accumulate_dx);
    }
};

static void pass_rows(struct s2s_queue *queue, const struct s2s_k_rmsnorm_backward *args)
{
    /* what is there already is not written */
    const bool is_there = args->dx.data == args->dsum.data;
    const struct pass_on map = {
        cuda_mat(&args->dsum), is_there ? cuda_mat_none() : cuda_mat(&args->dx),
        cuda_mat(&args->dresidual), args->accumulate_dx, args->accumulate_dresidual};
    cuda_map(queue, map, args->rows, args->cols,
             cuda_is_wide(&args->dsum, args->cols) && cuda_is_wide(&args->dx, args->cols) &&
                 cuda_is_wide(&args->dresidual, args->cols));
}

size_t cuda_rmsnorm_backward_workspace(const struct s2s_queue *queue,
                                       const struct s2s_k_rmsnorm_backward *args)
{
    return (size_t)(n_parts(args->rows) * args->cols) * sizeof(float);
}

void cuda_rmsnorm_backward(struct s2s_queue *queue, const struct s2s_k_rmsnorm_backward *args)
{
    if (!args->dy.data) {
        pass_rows(queue, args);
        return;
    }
    const int64_t cols = args->cols, parts = n_parts(args->rows);
    float *partial = args->dgain ? (float *)args->workspace : NULL;
    const struct rmsnorm_backward a = {cuda_mat(&args->h),
                                       cuda_mat(&args->dy),
                                       cuda_mat(&args->dsum),
                                       cuda_mat(&args->dx),
                                       cuda_mat(&args->dresidual),
                                       args->gain,
                                       args->rstd,
                                       partial,
                                       args->rows,
                                       cols,
                                       args->gain_offset,
                                       args->accumulate_dx,
                                       args->accumulate_dresidual};
    const bool wide = cuda_is_wide(&args->h, cols) && cuda_is_wide(&args->dy, cols) &&
                      cuda_is_wide(&args->dsum, cols) && cuda_is_wide(&args->dx, cols) &&
                      cuda_is_wide(&args->dresidual, cols) && (uintptr_t)args->gain % 16 == 0;
    /* without parts to sum, a block a row */
    LAUNCH_KEPT(queue, rmsnorm_backward_kernel, wide, grid_of(partial ? parts : args->rows), cols,
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
