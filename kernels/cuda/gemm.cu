/* Products: those of the library, then the bias. */
#include "kernels/cuda/map.h"

struct add_bias {
    struct cuda_mat c, bias;
    int64_t rows, step; /* rows of one product, elements between products */
    bool only;          /* c is the bias: there was nothing to sum */
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float x[N];
        const int64_t batch = row / rows;
        struct cuda_mat to = c;
        to.data += batch * step * (c.bf16 ? 2 : 4);
        if (bias.data) {
            cuda_load(x, bias, 0, col);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = 0;
        }
        cuda_update(to, row - batch * rows, col, x, !only);
    }
};

static void bias_over(struct s2s_queue *queue, const struct s2s_k_gemm *args, bool only)
{
    const int64_t n_batch = args->n_batch > 0 ? args->n_batch : 1;
    const struct add_bias map = {cuda_mat(&args->c), cuda_mat(&args->bias), args->m, args->step_c,
                                 only};
    struct s2s_mat bias = args->bias;
    bias.stride = 0;
    const int64_t group = args->c.dtype == S2S_BF16 ? 8 : 4;
    cuda_map(queue, map, n_batch * args->m, args->n,
             cuda_is_wide(&args->c, args->n) && cuda_is_wide(&bias, args->n) &&
                 args->step_c % group == 0);
}

void cuda_gemm(struct s2s_queue *queue, const struct s2s_k_gemm *args)
{
    const struct cuda_queue *q = cuda_queue_of(queue);
    if (args->m == 0 || args->n == 0 || queue->status)
        return;
    if (args->k > 0)
        rt_keep(queue, blas_gemm(q->blas, args, args->accumulate ? 1.0f : 0.0f, q->tf32));
    if (args->bias.data || (args->k == 0 && !args->accumulate))
        bias_over(queue, args, args->k == 0 && !args->accumulate);
}
