/*
 * Attention, backward: what both kernels need of each query, then dq by tiles of queries and dk, dv
 * by tiles of keys (kernels/cpu/attention.c has the formulas). The scores are computed twice, and
 * nothing is added by atomics: the same bytes every run. Then, the merge of two sets of keys.
 */
#include "kernels/cuda/attention_bwd.h"

enum { PREPARE_THREADS = 256, LANES = 8 /* of one query and head */ };

struct prepare {
    struct cuda_mat o, d_o;
    const float *lse; /* [n_q, n_heads] */
    float *lse_out, *delta;
    int n_q, n_heads, dim;
};

template <int W>
__global__ void __launch_bounds__(PREPARE_THREADS) prepare_kernel(const struct prepare a)
{
    const int lane = (int)threadIdx.x % LANES;
    const int64_t n = (int64_t)a.n_q * a.n_heads;
    const int64_t step = (int64_t)gridDim.x * (PREPARE_THREADS / LANES);
    int64_t i = (int64_t)blockIdx.x * (PREPARE_THREADS / LANES) + threadIdx.x / LANES;
    for (; __any_sync(~0u, i < n); i += step) {
        const int64_t row = i / a.n_heads, head = i % a.n_heads;
        float sum = 0;
        for (int c = lane * W; i < n && c < a.dim; c += LANES * W) {
            float x[W], y[W];
            cuda_load(x, a.o, row, head * a.dim + c);
            cuda_load(y, a.d_o, row, head * a.dim + c);
#pragma unroll
            for (int e = 0; e < W; e++)
                sum += x[e] * y[e];
        }
#pragma unroll
        for (int by = LANES / 2; by > 0; by /= 2)
            sum += shfl_xor(sum, by);
        if (i >= n || lane != 0)
            continue;
        const float lse = a.lse[i];
        a.delta[head * a.n_q + row] = sum;
        /* a query without keys has P = 0 */
        a.lse_out[head * a.n_q + row] = lse == -INFINITY ? INFINITY : lse * att_log2e;
    }
}

static void prepare(struct s2s_queue *queue, const struct s2s_k_attention_backward *args,
                    const struct att_backward *b)
{
    const struct s2s_k_attention *f = &args->forward;
    const struct prepare a = {cuda_mat(&f->o), cuda_mat(&args->d_o), f->lse,  b->lse, b->delta,
                              b->p.n_q,        b->p.n_heads,         b->p.dim};
    const int64_t width = f->n_heads * f->dim;
    const bool wide =
        cuda_is_wide(&f->o, width) && cuda_is_wide(&args->d_o, width) && f->dim % CUDA_WIDE == 0;
    const int64_t blocks = cuda_ceil_div((int64_t)b->p.n_q * b->p.n_heads, PREPARE_THREADS / LANES);
    const unsigned grid = (unsigned)(blocks < 4096 ? blocks : 4096);
    if (wide)
        LAUNCH(queue, prepare_kernel<CUDA_WIDE>, grid, PREPARE_THREADS, 0, a);
    else
        LAUNCH(queue, prepare_kernel<1>, grid, PREPARE_THREADS, 0, a);
}

size_t cuda_attention_backward_workspace(const struct s2s_queue *queue,
                                         const struct s2s_k_attention_backward *args)
{
    const struct s2s_k_attention *f = &args->forward;
    return att_list_bytes(f->n_q, f->n_spans) + att_list_bytes(f->n_k, f->n_groups) +
           (size_t)(2 * f->n_q * f->n_heads) * sizeof(float);
}

void cuda_attention_backward(struct s2s_queue *queue, const struct s2s_k_attention_backward *args)
{
    const struct s2s_k_attention *f = &args->forward;
    char *workspace = (char *)args->workspace;
    struct att_backward b = {att_problem_of(f),
                             att_list_take(&workspace, f->n_q, f->n_spans),
                             att_list_take(&workspace, f->n_k, f->n_groups),
                             att_source_of(&f->q, f->dim),
                             att_source_of(&f->k, f->dim),
                             att_source_of(&f->v, f->dim),
                             att_source_of(&args->d_o, f->dim),
                             att_target_of(&args->dq, f->dim, args->accumulate_dq),
                             att_target_of(&args->dk, f->dim, args->accumulate_dk),
                             att_target_of(&args->dv, f->dim, args->accumulate_dv),
                             NULL,
                             NULL};
    const bool bf16 = att_is_bf16(f, args->d_o.dtype);
    b.lse = (float *)workspace;
    b.delta = b.lse + f->n_q * f->n_heads;
    if (f->n_heads == 0)
        return;
    if (f->n_q > 0)
        prepare(queue, args, &b);
    if (f->n_q > 0 && args->dq.data)
        att_backward_queries(queue, &b, bf16);
    if (f->n_k > 0 && (args->dk.data || args->dv.data))
        att_backward_keys(queue, &b, bf16);
}

/* ---- merge ---- */

struct merge {
    struct cuda_mat o, part;
    float *lse;
    const float *part_lse;
    unsigned n; /* queries and heads */
    int n_heads, dim;
};

/* A warp a query and head. */
__global__ void __launch_bounds__(PREPARE_THREADS) merge_kernel(const struct merge a)
{
    const int lane = (int)threadIdx.x % 32;
    const unsigned i = blockIdx.x * (PREPARE_THREADS / 32) + threadIdx.x / 32;
    if (i >= a.n)
        return;
    const float x = a.lse[i], y = a.part_lse[i];
    const float top = fmaxf(x, y), off = top == -INFINITY ? 0 : top;
    const float l = off + logf(expf(x - off) + expf(y - off));
    const float keep = top == -INFINITY ? 1 : expf(x - l),
                take = expf(y - (top == -INFINITY ? 0 : l));
    const unsigned row = i / (unsigned)a.n_heads, head = i % (unsigned)a.n_heads;
    __syncwarp();
    for (int c = lane; c < a.dim; c += 32) {
        const int64_t col = (int64_t)head * a.dim + c;
        const float was = cuda_get(a.o, row, col), other = cuda_get(a.part, row, col);
        cuda_put(a.o, row, col, keep * was + take * other);
    }
    if (lane == 0)
        a.lse[i] = l;
}

void cuda_attention_merge(struct s2s_queue *queue, const struct s2s_k_attention_merge *args)
{
    const struct merge a = {cuda_mat(&args->o),
                            cuda_mat(&args->part),
                            args->lse,
                            args->part_lse,
                            (unsigned)(args->n_q * args->n_heads),
                            (int)args->n_heads,
                            (int)args->dim};
    LAUNCH(queue, merge_kernel, (unsigned)cuda_ceil_div(a.n, PREPARE_THREADS / 32), PREPARE_THREADS,
           0, a);
}
