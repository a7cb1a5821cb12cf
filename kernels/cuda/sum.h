/* Sums over parts that blocks left, in an order that depends on their number alone. */
#ifndef S2S_KERNELS_CUDA_SUM_H
#define S2S_KERNELS_CUDA_SUM_H

#include "kernels/cuda/cuda.h"

/* out[cols] (+)= the sum of n_parts vectors, which stand `stride` floats apart. */
void cuda_add_parts(struct s2s_queue *queue, float *out, const float *parts, int64_t n_parts,
                    int64_t cols, int64_t stride, bool accumulate);

/* ---- sums over rows of what a functor makes of them ---- */

enum { CUDA_COLUMN_ROWS = 64, CUDA_COLUMN_THREADS = 64 }; /* rows of a part, threads of a block */

static inline int64_t cuda_column_parts(int64_t rows)
{
    return cuda_ceil_div(rows, CUDA_COLUMN_ROWS);
}

/* parts[part][s][col] = the sum of map's s-th value (of Map::SUMS) over the rows of the part. */
template <int N, class Map>
__global__ void cuda_column_kernel(Map map, float *parts, int64_t rows, int64_t cols)
{
    const int64_t col = ((int64_t)blockIdx.x * CUDA_COLUMN_THREADS + threadIdx.x) * N;
    const int64_t begin = (int64_t)blockIdx.y * CUDA_COLUMN_ROWS;
    const int64_t end = begin + CUDA_COLUMN_ROWS < rows ? begin + CUDA_COLUMN_ROWS : rows;
    float sum[Map::SUMS][N] = {}, x[Map::SUMS][N];
    if (col >= cols)
        return;
    for (int64_t row = begin; row < end; row++) {
        map.template at<N>(row, col, x);
#pragma unroll
        for (int s = 0; s < Map::SUMS; s++)
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[s][i] += x[s][i];
    }
#pragma unroll
    for (int s = 0; s < Map::SUMS; s++)
#pragma unroll
        for (int i = 0; i < N; i++)
            parts[((int64_t)blockIdx.y * Map::SUMS + s) * cols + col + i] = sum[s][i];
}

template <class Map>
static void cuda_columns(struct s2s_queue *queue, const Map &map, float *parts, int64_t rows,
                         int64_t cols, bool wide)
{
    const int64_t width = wide ? CUDA_WIDE : 1;
    const dim3 grid((unsigned)cuda_ceil_div(cols, width * CUDA_COLUMN_THREADS),
                    (unsigned)cuda_column_parts(rows));
    if (wide)
        LAUNCH(queue, (cuda_column_kernel<CUDA_WIDE, Map>), grid, CUDA_COLUMN_THREADS, 0, map,
               parts, rows, cols);
    else
        LAUNCH(queue, (cuda_column_kernel<1, Map>), grid, CUDA_COLUMN_THREADS, 0, map, parts, rows,
               cols);
}

#endif
