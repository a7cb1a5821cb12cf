/*
 * Sums over columns and over everything: blocks leave parts in the workspace, a second kernel adds
 * those. How much a block takes depends on the shape alone.
 */
#include "kernels/cuda/sum.h"

/* ---- parts ---- */

enum { LINES = 8 }; /* a block is 32 columns times so many lines, which each take every 8th part */

__global__ void add_parts(float *out, const float *parts, int64_t n_parts, int64_t cols,
                          int64_t stride, bool accumulate)
{
    SHARED(float, sums); /* [LINES, 32] */
    const int lane = threadIdx.x % 32, line = threadIdx.x / 32;
    const int64_t col = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0;
    for (int64_t p = line; col < cols && p < n_parts; p += LINES)
        sum += parts[p * stride + col];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (line > 0 || col >= cols)
        return;
    for (int i = 1; i < LINES; i++)
        sum += sums[i * 32 + lane];
    out[col] = accumulate ? out[col] + sum : sum;
}

void cuda_add_parts(struct s2s_queue *queue, float *out, const float *parts, int64_t n_parts,
                    int64_t cols, int64_t stride, bool accumulate)
{
    LAUNCH(queue, add_parts, dim3((unsigned)cuda_ceil_div(cols, 32)), 32 * LINES,
           32 * LINES * sizeof(float), out, parts, n_parts, cols, stride, accumulate);
}

/* ---- columns ---- */

struct column_values {
    enum { SUMS = 1 };
    struct cuda_mat x;
    template <int N> __device__ void at(int64_t row, int64_t col, float (&out)[1][N]) const
    {
        cuda_load(out[0], x, row, col);
    }
};

size_t cuda_colsum_workspace(const struct s2s_queue *queue, const struct s2s_k_colsum *args)
{
    return (size_t)(cuda_column_parts(args->rows) * args->cols) * sizeof(float);
}

void cuda_colsum(struct s2s_queue *queue, const struct s2s_k_colsum *args)
{
    const int64_t cols = args->cols, parts = cuda_column_parts(args->rows);
    const struct column_values map = {cuda_mat(&args->x)};
    float *partial = (float *)args->workspace;
    cuda_columns(queue, map, partial, args->rows, cols, cuda_is_wide(&args->x, cols));
    cuda_add_parts(queue, args->out, partial, parts, cols, cols, args->accumulate);
}

/* ---- everything, in double ---- */

enum { MAX_REDUCE_PARTS = 1056, REDUCE_MIN = 8192 };

static int64_t reduce_parts(int64_t rows, int64_t cols)
{
    const int64_t parts = cuda_ceil_div(rows * cols, REDUCE_MIN);
    return parts < MAX_REDUCE_PARTS ? parts : (int64_t)MAX_REDUCE_PARTS;
}

template <int N>
__global__ void reduce_kernel(struct cuda_mat x, double *parts, int64_t total, int64_t groups,
                              enum s2s_reduce what)
{
    SHARED(double, room);
    double sum = 0;
    float v[N];
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = total == groups ? 0 : i / groups;
        cuda_load(v, x, row, (i - row * groups) * N);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const double wide = v[j];
            if (what == S2S_REDUCE_SUM)
                sum += wide;
            else if (what == S2S_REDUCE_SUMSQ)
                sum += wide * wide;
            else
                sum += (cuda_bits(v[j]) & 0x7f800000u) == 0x7f800000u;
        }
    }
    sum = cuda_block_sum(sum, room);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void reduce_finish(double *out, const double *parts, int64_t n_parts, bool accumulate)
{
    SHARED(double, room);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n_parts; i += blockDim.x)
        sum += parts[i];
    sum = cuda_block_sum(sum, room);
    if (threadIdx.x == 0)
        *out = accumulate ? *out + sum : sum;
}

size_t cuda_reduce_workspace(const struct s2s_queue *queue, const struct s2s_k_reduce *args)
{
    return (size_t)reduce_parts(args->rows, args->cols) * sizeof(double);
}

void cuda_reduce(struct s2s_queue *queue, const struct s2s_k_reduce *args)
{
    const bool wide = cuda_is_wide(&args->x, args->cols);
    const int64_t groups = wide ? args->cols / CUDA_WIDE : args->cols, total = args->rows * groups;
    const int64_t n = reduce_parts(args->rows, args->cols);
    double *parts = (double *)args->workspace;
    const dim3 grid((unsigned)n);
    const size_t room = 32 * sizeof(double);
    if (wide)
        LAUNCH(queue, reduce_kernel<CUDA_WIDE>, grid, CUDA_BLOCK, room, cuda_mat(&args->x), parts,
               total, groups, args->what);
    else
        LAUNCH(queue, reduce_kernel<1>, grid, CUDA_BLOCK, room, cuda_mat(&args->x), parts, total,
               groups, args->what);
    LAUNCH(queue, reduce_finish, dim3(1), CUDA_BLOCK, room, args->out, parts, n, args->accumulate);
}
