/* The transpose of each row's [a, b] matrix, by tiles that go through shared memory. */
#include "kernels/cuda/cuda.h"

enum { TILE = 32, TILE_LINES = 8 };

struct transpose {
    struct cuda_mat x, y;
    int64_t a, b, tiles_a;
    bool accumulate;
};

__global__ void transpose_kernel(struct transpose t)
{
    SHARED(float, tile); /* [TILE, TILE + 1]: the odd row keeps banks apart */
    const int64_t row = blockIdx.x / t.tiles_a;
    const int64_t i0 = (blockIdx.x - row * t.tiles_a) * TILE, j0 = (int64_t)blockIdx.y * TILE;
    const int lane = threadIdx.x % TILE, line = threadIdx.x / TILE;
    for (int i = line; i < TILE; i += TILE_LINES)
        if (i0 + i < t.a && j0 + lane < t.b)
            tile[i * (TILE + 1) + lane] = cuda_get(t.x, row, (i0 + i) * t.b + j0 + lane);
    __syncthreads();
    for (int j = line; j < TILE; j += TILE_LINES)
        if (j0 + j < t.b && i0 + lane < t.a) {
            const float x[1] = {tile[lane * (TILE + 1) + j]};
            cuda_update(t.y, row, (j0 + j) * t.a + i0 + lane, x, t.accumulate);
        }
}

void cuda_transpose(struct s2s_queue *queue, const struct s2s_k_transpose *args)
{
    const int64_t tiles_a = cuda_ceil_div(args->a, TILE), tiles_b = cuda_ceil_div(args->b, TILE);
    const struct transpose t = {cuda_mat(&args->x), cuda_mat(&args->y), args->a, args->b, tiles_a,
                                args->accumulate};
    LAUNCH(queue, transpose_kernel, dim3((unsigned)(args->rows * tiles_a), (unsigned)tiles_b),
           TILE * TILE_LINES, TILE * (TILE + 1) * sizeof(float), t);
}
