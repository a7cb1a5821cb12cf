/* Pointwise kernels: a functor at each group of elements of a [rows, cols] matrix. */
#ifndef S2S_KERNELS_CUDA_MAP_H
#define S2S_KERNELS_CUDA_MAP_H

#include "kernels/cuda/cuda.h"

/* Calls map.at<N>(row, col) for each group of N columns; there are `total` groups, `groups` a row.
 */
template <int N, class Map> __global__ void cuda_map_kernel(Map map, int64_t total, int64_t groups)
{
    const int64_t i = (int64_t)blockIdx.x * CUDA_BLOCK + threadIdx.x;
    if (i >= total)
        return;
    /* a division of 32 bits costs a quarter of one of 64 */
    const int64_t row = total >> 31 ? i / groups : (int64_t)((uint32_t)i / (uint32_t)groups);
    map.template at<N>(row, (i - row * groups) * N);
}

/* wide: all matrices of map are (cuda_is_wide). */
template <class Map>
static void cuda_map(struct s2s_queue *queue, const Map &map, int64_t rows, int64_t cols, bool wide)
{
    const int64_t groups = wide ? cols / CUDA_WIDE : cols, total = rows * groups;
    const dim3 grid((unsigned)cuda_ceil_div(total, CUDA_BLOCK));
    if (wide)
        LAUNCH(queue, (cuda_map_kernel<CUDA_WIDE, Map>), grid, CUDA_BLOCK, 0, map, total, groups);
    else
        LAUNCH(queue, (cuda_map_kernel<1, Map>), grid, CUDA_BLOCK, 0, map, total, groups);
}

/* to[c, k] += from[k, c] */
struct cuda_add_turned {
    float *to;
    const float *from;
    int64_t rows, cols; /* of `from` */
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        to[col * rows + row] += from[row * cols + col];
    }
};

#endif
