/*
 * The gated norm of groups of a row and its gradients: a block a group, whose threads take parts of
 * its columns twice, the second time from the first-level cache. The gradient of the gain is summed
 * by blocks that each take every n-th row, and then over the blocks.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/sum.h"

/* Rows are shared out among so many blocks where a block keeps sums over its rows. */
enum { MAX_PARTS = 264 };

static int64_t n_parts(int64_t rows)
{
    return rows < MAX_PARTS ? rows : (int64_t)MAX_PARTS;
}

static unsigned threads_for(int64_t cols, int width)
{
    const int64_t warps = cuda_ceil_div(cuda_ceil_div(cols, width), 32);
    return (unsigned)(warps < 1 ? 32 : warps < 8 ? warps * 32 : 256);
}

struct gatednorm {
    struct cuda_mat x, z, y;
    const float *gain;
    float *rstd;
    int64_t cols; /* of a group */
    float eps;
};

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* v = x silu(z) */
template <int N>
static __device__ __forceinline__ void gated(float (&v)[N], const struct gatednorm &a, int64_t row,
                                             int64_t col)
{
    float z[N];
    cuda_load(v, a.x, row, col);
    cuda_load(z, a.z, row, col);
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] *= z[i] * sigmoid(z[i]);
}

template <int N> __global__ void gatednorm_kernel(struct gatednorm a)
{
    SHARED(float, room);
    const int64_t row = blockIdx.x, begin = blockIdx.y * a.cols, end = begin + a.cols;
    const int64_t first = begin + threadIdx.x * N, step = (int64_t)blockDim.x * N;
    const struct cuda_mat gain = {(char *)a.gain, 0, false};
    float squares = 0, v[N], w[N];
    for (int64_t col = first; col < end; col += step) {
        gated(v, a, row, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            squares += v[i] * v[i];
    }
    squares = cuda_block_sum(squares, room);
    const float rstd = 1.0f / sqrtf(squares / (float)a.cols + a.eps);
    for (int64_t col = first; col < end; col += step) {
        gated(v, a, row, col);
        cuda_load(w, gain, 0, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = w[i] * (v[i] * rstd);
        cuda_store(a.y, row, col, v);
    }
    if (a.rstd && threadIdx.x == 0)
        a.rstd[row * gridDim.y + blockIdx.y] = rstd;
}

static bool is_wide(const struct s2s_mat *mat, int64_t cols, int64_t each)
{
    return each % CUDA_WIDE == 0 && cuda_is_wide(mat, cols);
}

void cuda_gatednorm(struct s2s_queue *queue, const struct s2s_k_gatednorm *args)
{
    const int64_t cols = args->cols, each = args->n_groups > 0 ? cols / args->n_groups : 0;
    const struct gatednorm a = {cuda_mat(&args->x), cuda_mat(&args->z), cuda_mat(&args->y),
                                args->gain,         args->rstd,         each,
                                args->eps};
    const bool wide = is_wide(&args->x, cols, each) && is_wide(&args->z, cols, each) &&
                      is_wide(&args->y, cols, each) && (uintptr_t)args->gain % 16 == 0;
    const unsigned threads = threads_for(each, wide ? CUDA_WIDE : 1);
    const dim3 grid((unsigned)args->rows, (unsigned)args->n_groups);
    if (wide)
        LAUNCH(queue, gatednorm_kernel<CUDA_WIDE>, grid, threads, 32 * sizeof(float), a);
    else
        LAUNCH(queue, gatednorm_kernel<1>, grid, threads, 32 * sizeof(float), a);
}

struct gatednorm_backward {
    struct cuda_mat x, z, dy, dx, dz;
    const float *gain, *rstd;
    float *partial;     /* [parts, n_groups * cols]; NULL: dgain is not wanted */
    int64_t rows, cols; /* of a group */
    bool accumulate_dx, accumulate_dz;
};

/* u v summed over some columns */
template <int N>
static __device__ __forceinline__ float dot_part(const struct gatednorm_backward &a, int64_t row,
                                                 int64_t col)
{
    const struct cuda_mat gain = {(char *)a.gain, 0, false};
    float x[N], z[N], dy[N], w[N], dot = 0;
    cuda_load(x, a.x, row, col);
    cuda_load(z, a.z, row, col);
    cuda_load(dy, a.dy, row, col);
    cuda_load(w, gain, 0, col);
#pragma unroll
    for (int i = 0; i < N; i++)
        dot += w[i] * dy[i] * (x[i] * (z[i] * sigmoid(z[i])));
    return dot;
}

/* Given scale = rstd^3 mean(u v); x becomes dy v rstd. */
template <int N>
static __device__ __forceinline__ void finish_part(float (&x)[N],
                                                   const struct gatednorm_backward &a, int64_t row,
                                                   int64_t col, float rstd, float scale)
{
    const struct cuda_mat gain = {(char *)a.gain, 0, false};
    float z[N], dy[N], w[N];
    cuda_load(x, a.x, row, col);
    cuda_load(z, a.z, row, col);
    cuda_load(dy, a.dy, row, col);
    cuda_load(w, gain, 0, col);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float sg = sigmoid(z[i]), gate = z[i] * sg, v = x[i] * gate;
        const float dv = w[i] * dy[i] * rstd - v * scale;
        w[i] = dv * gate;
        z[i] = dv * x[i] * (sg * (1 + z[i] * (1 - sg)));
        x[i] = dy[i] * (v * rstd);
    }
    if (a.dx.data)
        cuda_update(a.dx, row, col, w, a.accumulate_dx);
    if (a.dz.data)
        cuda_update(a.dz, row, col, z, a.accumulate_dz);
}

/* KEPT: a thread has no more than one part of a group, whose sums stay in registers. */
template <int N, bool KEPT> __global__ void gatednorm_backward_kernel(struct gatednorm_backward a)
{
    SHARED(float, room);
    const int64_t begin = blockIdx.y * a.cols, end = begin + a.cols;
    const int64_t first = begin + threadIdx.x * N, step = (int64_t)blockDim.x * N;
    const struct cuda_mat to = {
        (char *)(a.partial ? a.partial + blockIdx.x * gridDim.y * a.cols : NULL), 0, false};
    float x[N], sum[N] = {};
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const float rstd = a.rstd[row * gridDim.y + blockIdx.y];
        float dot = 0;
        for (int64_t col = first; col < end; col += step)
            dot += dot_part<N>(a, row, col);
        dot = cuda_block_sum(dot, room);
        const float scale = dot / (float)a.cols * rstd * rstd * rstd;
        for (int64_t col = first; col < end; col += step) {
            finish_part(x, a, row, col, rstd, scale);
            if (!KEPT && to.data)
                cuda_update(to, 0, col, x, row != blockIdx.x);
#pragma unroll
            for (int i = 0; KEPT && i < N; i++)
                sum[i] += x[i];
        }
    }
    if (KEPT && to.data && first < end)
        cuda_store(to, 0, first, sum);
}

size_t cuda_gatednorm_backward_workspace(const struct s2s_queue *queue,
                                         const struct s2s_k_gatednorm_backward *args)
{
    return (size_t)(n_parts(args->rows) * args->cols) * sizeof(float);
}

void cuda_gatednorm_backward(struct s2s_queue *queue, const struct s2s_k_gatednorm_backward *args)
{
    const int64_t cols = args->cols, each = args->n_groups > 0 ? cols / args->n_groups : 0;
    const int64_t parts = n_parts(args->rows);
    float *partial = args->dgain ? (float *)args->workspace : NULL;
    const struct gatednorm_backward a = {cuda_mat(&args->x),  cuda_mat(&args->z),
                                         cuda_mat(&args->dy), cuda_mat(&args->dx),
                                         cuda_mat(&args->dz), args->gain,
                                         args->rstd,          partial,
                                         args->rows,          each,
                                         args->accumulate_dx, args->accumulate_dz};
    const bool wide = is_wide(&args->x, cols, each) && is_wide(&args->z, cols, each) &&
                      is_wide(&args->dy, cols, each) && is_wide(&args->dx, cols, each) &&
                      is_wide(&args->dz, cols, each) && (uintptr_t)args->gain % 16 == 0;
    const int width = wide ? CUDA_WIDE : 1;
    const unsigned threads = threads_for(each, width);
    const bool kept = each <= (int64_t)threads * width;
    const size_t room = 32 * sizeof(float);
    /* without parts to sum, a block a row */
    const dim3 grid((unsigned)(partial ? parts : args->rows), (unsigned)args->n_groups);
    if (wide && kept)
        LAUNCH(queue, (gatednorm_backward_kernel<CUDA_WIDE, true>), grid, threads, room, a);
    else if (wide)
        LAUNCH(queue, (gatednorm_backward_kernel<CUDA_WIDE, false>), grid, threads, room, a);
    else if (kept)
        LAUNCH(queue, (gatednorm_backward_kernel<1, true>), grid, threads, room, a);
    else
        LAUNCH(queue, (gatednorm_backward_kernel<1, false>), grid, threads, room, a);
    if (partial)
        cuda_add_parts(queue, args->dgain, partial, parts, cols, cols, true);
}
