/*
 * Products: those of the library, then the bias. Where that makes BF16 the library gives its sums
 * in fp32, some rows at a time so that they stay in the GPU's cache, and each is rounded once, with
 * its bias: the library's own epilogue takes no bias of fp32 there.
 */
#include "kernels/cuda/map.h"

#ifdef __CUDACC__
static const int64_t sums_bytes = 16 << 20;
#else
static const int64_t sums_bytes = 16 << 10; /* tests have small matrices */
#endif
static const int64_t least_rows = 128;

/* c (+)= sums + bias; where c is F32 sums are what is in c (data NULL), and where there was nothing
 * to sum they are 0. */
struct add_bias {
    struct cuda_mat c, sums, bias;
    int64_t rows, step; /* rows of one product, elements between products */
    bool accumulate;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float x[N] = {}, sum[N] = {};
        const int64_t batch = row / rows;
        struct cuda_mat to = c;
        to.data += batch * step * (c.bf16 ? 2 : 4);
        if (bias.data)
            cuda_load(x, bias, 0, col);
        if (sums.data)
            cuda_load(sum, sums, row, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] += sum[i];
        cuda_update(to, row - batch * rows, col, x, accumulate);
    }
};

static void bias_over(struct s2s_queue *queue, const struct s2s_k_gemm *args,
                      const struct s2s_mat *sums, bool accumulate)
{
    const int64_t n_batch = args->n_batch > 0 ? args->n_batch : 1;
    const struct add_bias map = {cuda_mat(&args->c), cuda_mat(sums), cuda_mat(&args->bias), args->m,
                                 args->step_c,       accumulate};
    struct s2s_mat bias = args->bias;
    bias.stride = 0;
    const int64_t group = args->c.dtype == S2S_BF16 ? 8 : 4;
    cuda_map(queue, map, n_batch * args->m, args->n,
             cuda_is_wide(&args->c, args->n) && cuda_is_wide(&bias, args->n) &&
                 cuda_is_wide(sums, args->n) && args->step_c % group == 0);
}

/* Room for the sums of `rows` rows of n; false: there is no memory, which the queue says. */
static bool has_room(struct s2s_queue *queue, int64_t rows, int64_t n)
{
    struct cuda_queue *q = cuda_queue_of(queue);
    const size_t bytes =
        (size_t)(rows * n > sums_bytes / 4 ? rows * n : sums_bytes / 4) * sizeof(float);
    if (bytes <= q->sums_bytes)
        return true;
    rt_keep(queue, rt_stream_wait(q->stream));
    rt_free(q->sums);
    q->sums = (float *)rt_alloc(bytes);
    q->sums_bytes = q->sums ? bytes : 0;
    if (!q->sums)
        rt_keep(queue, BLAS_NO_MEMORY);
    return !queue->status;
}

static struct s2s_mat from(const struct s2s_mat *mat, int64_t elements)
{
    struct s2s_mat m = *mat;
    m.data = (char *)m.data + elements * (m.dtype == S2S_BF16 ? 2 : 4);
    return m;
}

/* c of BF16 with a bias, one product. */
static void round_once(struct s2s_queue *queue, const struct s2s_k_gemm *args)
{
    const struct cuda_queue *q = cuda_queue_of(queue);
    const int64_t fit = sums_bytes / (int64_t)sizeof(float) / args->n;
    const int64_t most = fit > least_rows ? fit / least_rows * least_rows : least_rows;
    const int64_t rows = args->m < most ? args->m : most;
    if (!has_room(queue, rows, args->n))
        return;
    for (int64_t row = 0; row < args->m && !queue->status; row += rows) {
        struct s2s_k_gemm part = *args;
        const struct s2s_mat sums = {q->sums, args->n, S2S_F32};
        part.m = args->m - row < rows ? args->m - row : rows;
        part.a = from(&args->a, args->trans_a ? row : row * args->a.stride);
        part.c = sums;
        rt_keep(queue, blas_gemm(q->blas, &part, 0, q->tf32));
        part.c = from(&args->c, row * args->c.stride);
        bias_over(queue, &part, &sums, args->accumulate);
    }
}

void cuda_gemm(struct s2s_queue *queue, const struct s2s_k_gemm *args)
{
    const struct cuda_queue *q = cuda_queue_of(queue);
    const struct s2s_mat none = {};
    if (args->m == 0 || args->n == 0 || queue->status)
        return;
    if (args->k == 0) {
        if (args->bias.data || !args->accumulate)
            bias_over(queue, args, &none, args->accumulate);
        return;
    }
    if (!args->bias.data || args->c.dtype == S2S_F32) {
        rt_keep(queue, blas_gemm(q->blas, args, args->accumulate ? 1.0f : 0.0f, q->tf32));
        if (args->bias.data)
            bias_over(queue, args, &none, true);
        return;
    }
    const int64_t n_batch = args->n_batch > 0 ? args->n_batch : 1;
    for (int64_t i = 0; i < n_batch; i++) {
        struct s2s_k_gemm one = *args;
        one.n_batch = 0;
        one.a = from(&args->a, i * args->step_a);
        one.b = from(&args->b, i * args->step_b);
        one.c = from(&args->c, i * args->step_c);
        round_once(queue, &one);
    }
}
