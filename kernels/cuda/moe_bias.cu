/* How often each expert was chosen, and the biases of the choice that follow from it. A block each:
 * counts are whole numbers, so that no order of adding them shows. */
#include "kernels/cuda/cuda.h"

enum { COUNT_THREADS = 1024 };

struct choices {
    const int32_t *experts, *segments;
    float *counts;
    int64_t n; /* rows and choices of each */
    int n_chosen, n_experts;
};

__global__ void __launch_bounds__(COUNT_THREADS) counts_kernel(const struct choices a)
{
    SHARED(int, own); /* [n_experts] */
    for (int e = (int)threadIdx.x; e < a.n_experts; e += COUNT_THREADS)
        own[e] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < a.n; i += COUNT_THREADS)
        if (!a.segments || a.segments[i / a.n_chosen] >= 0)
            atomicAdd(&own[a.experts[i]], 1);
    __syncthreads();
    for (int e = (int)threadIdx.x; e < a.n_experts; e += COUNT_THREADS)
        a.counts[e] += (float)own[e];
}

void cuda_expert_counts(struct s2s_queue *queue, const struct s2s_k_expert_counts *args)
{
    const struct choices a = {args->experts,       args->segments,
                              args->counts,        args->n * args->n_chosen,
                              (int)args->n_chosen, (int)args->n_experts};
    if (a.n > 0)
        LAUNCH(queue, counts_kernel, 1, COUNT_THREADS, (size_t)a.n_experts * sizeof(int), a);
}

__global__ void __launch_bounds__(CUDA_BLOCK)
    bias_kernel(const float *counts, float *bias, int n_experts, float rate)
{
    SHARED(double, room);
    double sum = 0;
    for (int e = (int)threadIdx.x; e < n_experts; e += CUDA_BLOCK)
        sum += counts[e];
    const double mean = cuda_block_sum(sum, room) / n_experts;
    for (int e = (int)threadIdx.x; e < n_experts; e += CUDA_BLOCK) {
        if (counts[e] < mean)
            bias[e] += rate;
        else if (counts[e] > mean)
            bias[e] -= rate;
    }
}

void cuda_router_bias(struct s2s_queue *queue, const struct s2s_k_router_bias *args)
{
    LAUNCH(queue, bias_kernel, 1, CUDA_BLOCK, 32 * sizeof(double), args->counts, args->bias,
           (int)args->n_experts, args->rate);
}
