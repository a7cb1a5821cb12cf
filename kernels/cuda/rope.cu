/* Rotary positions: the table of angles, and the rotation of half-split pairs (i, i + half). */
#include "kernels/cuda/cuda.h"

__global__ void rope_table_kernel(struct s2s_k_rope_table a)
{
    const int64_t half = a.dim / 2, i = (int64_t)blockIdx.x * CUDA_BLOCK + threadIdx.x;
    if (i >= a.n * half)
        return;
    const int64_t t = i / half, at = i - t * half;
    const double angle = a.positions[t] * a.inv_freq[at];
    a.table[t * a.dim + at] = (float)(a.factor * cos(angle));
    a.table[t * a.dim + half + at] = (float)(a.factor * sin(angle));
}

void cuda_rope_table(struct s2s_queue *queue, const struct s2s_k_rope_table *args)
{
    LAUNCH(queue, rope_table_kernel,
           dim3((unsigned)cuda_ceil_div(args->n * (args->dim / 2), CUDA_BLOCK)), CUDA_BLOCK, 0,
           *args);
}

struct rope {
    struct cuda_mat x, y;
    const float *table;
    int64_t total, n_heads, dim, rotary,
        tasks; /* tasks a head: groups of pairs, then of the rest */
    float sign;
    bool accumulate;
};

/* Components `at` .. of a head that are not rotated. */
template <int N>
static __device__ __forceinline__ void rope_rest(const struct rope &a, int64_t t, int64_t col)
{
    float x[N];
    cuda_load(x, a.x, t, col);
    cuda_update(a.y, t, col, x, a.accumulate);
}

template <int N> __global__ void rope_kernel(struct rope a)
{
    const int64_t i = (int64_t)blockIdx.x * CUDA_BLOCK + threadIdx.x;
    if (i >= a.total)
        return;
    const int64_t head = a.total >> 31 ? i / a.tasks : (int64_t)((uint32_t)i / (uint32_t)a.tasks);
    const int64_t at = (i - head * a.tasks) * N, half = a.rotary / 2;
    const int64_t t = head / a.n_heads, col = (head - t * a.n_heads) * a.dim;
    if (at >= half) {
        rope_rest<N>(a, t, col + half + at);
        return;
    }
    float x[N], y[N], low[N], high[N];
    const float *cosines = a.table + t * a.rotary + at, *sines = cosines + half;
    cuda_load(x, a.x, t, col + at);
    cuda_load(y, a.x, t, col + half + at);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float c = cosines[j], s = a.sign * sines[j];
        low[j] = x[j] * c - y[j] * s;
        high[j] = y[j] * c + x[j] * s;
    }
    cuda_update(a.y, t, col + at, low, a.accumulate);
    cuda_update(a.y, t, col + half + at, high, a.accumulate);
}

void cuda_rope(struct s2s_queue *queue, const struct s2s_k_rope *args)
{
    const int64_t half = args->rotary_dim / 2, rest = args->dim - args->rotary_dim;
    const int64_t cols = args->n_heads * args->dim;
    const bool wide = half % CUDA_WIDE == 0 && rest % CUDA_WIDE == 0 &&
                      cuda_is_wide(&args->x, cols) && cuda_is_wide(&args->y, cols);
    /* in place, what is not rotated stays */
    const bool moves = args->x.data != args->y.data || args->accumulate;
    const int64_t tasks = (half + (moves ? rest : 0)) / (wide ? CUDA_WIDE : 1);
    const int64_t total = args->n * args->n_heads * tasks;
    const struct rope a = {cuda_mat(&args->x),
                           cuda_mat(&args->y),
                           args->table,
                           total,
                           args->n_heads,
                           args->dim,
                           args->rotary_dim,
                           tasks,
                           args->transposed ? -1.0f : 1.0f,
                           args->accumulate};
    const dim3 grid((unsigned)cuda_ceil_div(total, CUDA_BLOCK));
    if (wide)
        LAUNCH(queue, rope_kernel<CUDA_WIDE>, grid, CUDA_BLOCK, 0, a);
    else
        LAUNCH(queue, rope_kernel<1>, grid, CUDA_BLOCK, 0, a);
}

__global__ void relpos_table_kernel(struct s2s_k_relpos_table a)
{
    const int64_t half = a.dim / 2, i = (int64_t)blockIdx.x * CUDA_BLOCK + threadIdx.x;
    if (i >= (2 * a.n - 1) * half)
        return;
    const int64_t row = i / half, at = i - row * half;
    const double width = exp(-log(10000.0) * (double)(2 * at) / (double)a.dim);
    const double angle = (double)(a.n - 1 - row) * width;
    a.table[row * a.dim + 2 * at] = (float)sin(angle);
    a.table[row * a.dim + 2 * at + 1] = (float)cos(angle);
}

void cuda_relpos_table(struct s2s_queue *queue, const struct s2s_k_relpos_table *args)
{
    const int64_t total = args->n > 0 ? (2 * args->n - 1) * (args->dim / 2) : 0;
    LAUNCH(queue, relpos_table_kernel, dim3((unsigned)cuda_ceil_div(total, CUDA_BLOCK)), CUDA_BLOCK,
           0, *args);
}
