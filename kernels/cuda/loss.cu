/*
 * Losses of rows, a block a row. Cross entropy: the statistics are one pass over the logits, which
 * stay as they are; the gradient is a second pass, in place.
 */
#include "kernels/cuda/map.h"

/* ---- statistics of a row's logits ---- */

/* A maximum, the sum of exponentials below it, and the lowest class that has it. */
struct top {
    float max, sum;
    int32_t best;
};

static __device__ __forceinline__ struct top top_none(void)
{
    struct top t = {-INFINITY, 0, -1};
    return t;
}

static __device__ __forceinline__ struct top top_join(struct top a, struct top b)
{
    struct top t;
    t.max = a.max > b.max ? a.max : b.max;
    t.best = a.max > b.max                         ? a.best
             : b.max > a.max                       ? b.best
             : (uint32_t)a.best < (uint32_t)b.best ? a.best
                                                   : b.best;
    /* a side without columns gives nothing, and has no difference to take */
    t.sum = (a.sum != 0 ? a.sum * expf(a.max - t.max) : 0.0f) +
            (b.sum != 0 ? b.sum * expf(b.max - t.max) : 0.0f);
    return t;
}

static __device__ __forceinline__ struct top top_of_warp(struct top t)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        struct top other;
        other.max = shfl_xor(t.max, step);
        other.sum = shfl_xor(t.sum, step);
        other.best = shfl_xor(t.best, step);
        /* both lanes of a pair join in one order, so that all have the same bits */
        t = threadIdx.x & step ? top_join(other, t) : top_join(t, other);
    }
    return t;
}

struct stats {
    struct cuda_mat logits;
    const int32_t *labels;
    struct s2s_xent *stats;
    int64_t cols, first_col;
    bool want_best;
};

/*
 * The top of this thread's columns. What is done for each of them decides about the speed with
 * bf16, so the class is looked for at the end, in the group of columns that has the maximum.
 */
template <int N>
static __device__ __forceinline__ struct top top_of_thread(const struct stats &a, int64_t row)
{
    const float log2e = 1.44269504f;
    struct top t = top_none();
    int64_t at = -1; /* of the group */
    float z[N];
    for (int64_t col = threadIdx.x * N; col < a.cols; col += (int64_t)blockDim.x * N) {
        cuda_load(z, a.logits, row, col);
        float max = t.max, sum = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            max = fmaxf(max, z[i]);
        const float off = max > -INFINITY ? max : 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += exp2_fast((z[i] - off) * log2e);
        if (max > t.max) {
            at = col;
            t.sum *= exp2_fast((t.max - off) * log2e);
            t.max = max;
        }
        t.sum += sum;
    }
    if (at < 0)
        return t;
    cuda_load(z, a.logits, row, at);
#pragma unroll
    for (int i = N - 1; i >= 0; i--)
        if (z[i] == t.max)
            t.best = (int32_t)(a.first_col + at + i);
    return t;
}

template <int N> __global__ void xent_stats_kernel(struct stats a)
{
    SHARED(struct top, room); /* [32] */
    const int64_t row = blockIdx.x;
    const int64_t label = a.labels[row];
    struct s2s_xent *out = &a.stats[row];
    if (label < 0) {
        if (threadIdx.x == 0) {
            out->max = out->sum = out->target = 0;
            out->best = -1;
        }
        return;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    struct top t = top_of_warp(top_of_thread<N>(a, row));
    if (lane == 0)
        room[warp] = t;
    __syncthreads();
    if (warp > 0)
        return;
    t = top_of_warp(lane < n_warps ? room[lane] : top_none());
    if (lane > 0)
        return;
    const int64_t at = label - a.first_col;
    out->max = t.max;
    out->sum = t.sum;
    out->target = at >= 0 && at < a.cols ? cuda_get(a.logits, row, at) : 0.0f;
    out->best = a.want_best ? t.best : -1;
}

enum { ROW_THREADS = 512 };

void cuda_xent_stats(struct s2s_queue *queue, const struct s2s_k_xent_stats *args)
{
    const struct stats a = {cuda_mat(&args->logits), args->labels,   args->stats, args->cols,
                            args->first_col,         args->want_best};
    const dim3 grid((unsigned)args->rows);
    if (cuda_is_wide(&args->logits, args->cols))
        LAUNCH(queue, xent_stats_kernel<CUDA_WIDE>, grid, ROW_THREADS, 32 * sizeof(struct top), a);
    else
        LAUNCH(queue, xent_stats_kernel<1>, grid, ROW_THREADS, 32 * sizeof(struct top), a);
}

/* ---- parts of the vocabulary put together ---- */

__global__ void xent_finish_kernel(struct s2s_k_xent_finish a)
{
    const int64_t r = (int64_t)blockIdx.x * CUDA_BLOCK + threadIdx.x;
    if (r >= a.rows)
        return;
    const bool counts = a.labels[r] >= 0;
    struct s2s_xent total = a.parts[r];
    for (int64_t p = 1; p < a.n_parts; p++) {
        const struct s2s_xent part = a.parts[p * a.rows + r];
        if (part.max > total.max) {
            total.best = part.best;
            total.max = part.max;
        }
        total.target += part.target;
    }
    float sum = 0;
    for (int64_t p = 0; p < a.n_parts; p++) {
        const struct s2s_xent part = a.parts[p * a.rows + r];
        if (part.sum != 0)
            sum += part.sum * expf(part.max - total.max);
    }
    total.sum = sum;
    const float loss = counts ? logf(total.sum) - (total.target - total.max) : 0.0f;
    a.total[r] = total;
    if (a.loss)
        a.loss[r] = a.weights && counts ? a.weights[r] * loss : loss;
    if (a.logprob)
        a.logprob[r] = -loss;
    if (a.hits)
        a.hits[r] = counts && total.best == a.labels[r] ? 1.0f : 0.0f;
}

void cuda_xent_finish(struct s2s_queue *queue, const struct s2s_k_xent_finish *args)
{
    LAUNCH(queue, xent_finish_kernel, dim3((unsigned)cuda_ceil_div(args->rows, CUDA_BLOCK)),
           CUDA_BLOCK, 0, *args);
}

/* ---- gradient ---- */

struct gradient {
    struct cuda_mat logits, dlogits;
    const int32_t *labels;
    const float *weights;
    const struct s2s_xent *total;
    int64_t cols, first_col;
    float grad_scale;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float z[N];
        const int64_t label = labels[row], target = label - first_col;
        const float weight = grad_scale * (weights ? weights[row] : 1.0f);
        const float max = total[row].max, scale = weight / total[row].sum;
        if (label >= 0 && col + N <= cols) {
            cuda_load(z, logits, row, col);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                z[i] = label >= 0 && col + i < cols ? cuda_get(logits, row, col + i) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            z[i] = label >= 0 && col + i < cols ? expf(z[i] - max) * scale : 0.0f;
            if (label >= 0 && col + i == target && target < cols)
                z[i] -= weight;
        }
        cuda_store(dlogits, row, col, z);
    }
};

void cuda_xent_gradient(struct s2s_queue *queue, const struct s2s_k_xent_gradient *args)
{
    const struct gradient map = {cuda_mat(&args->logits),
                                 cuda_mat(&args->dlogits),
                                 args->labels,
                                 args->weights,
                                 args->total,
                                 args->cols,
                                 args->first_col,
                                 args->grad_scale};
    cuda_map(queue, map, args->rows, args->width,
             cuda_is_wide(&args->logits, args->width) && cuda_is_wide(&args->dlogits, args->width));
}

/* ---- squared distance ---- */

struct sqdist {
    struct cuda_mat x, target, dx;
    float *loss;
    int64_t cols;
    float grad_scale;
    bool accumulate;
};

__global__ void sqdist_kernel(struct sqdist a)
{
    SHARED(double, room);
    const int64_t row = blockIdx.x;
    double sum = 0;
    float d[1];
    for (int64_t col = threadIdx.x; col < a.cols; col += blockDim.x) {
        d[0] = cuda_get(a.x, row, col) - cuda_get(a.target, row, col);
        sum += (double)d[0] * d[0];
        d[0] *= a.grad_scale;
        if (a.dx.data)
            cuda_update(a.dx, row, col, d, a.accumulate);
    }
    sum = cuda_block_sum(sum, room);
    if (threadIdx.x == 0)
        a.loss[row] = (float)(0.5 * sum);
}

void cuda_sqdist(struct s2s_queue *queue, const struct s2s_k_sqdist *args)
{
    const struct sqdist a = {
        cuda_mat(&args->x), cuda_mat(&args->target), cuda_mat(&args->dx), args->loss,
        args->cols,         args->grad_scale,        args->accumulate};
    LAUNCH(queue, sqdist_kernel, dim3((unsigned)args->rows), CUDA_BLOCK, 32 * sizeof(double), a);
}
