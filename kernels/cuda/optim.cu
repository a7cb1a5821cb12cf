/* AdamW over ranges of flat buffers in one pass, 28 bytes a parameter, and the factor that clips
 * gradients. */
#include "kernels/cuda/cuda.h"

struct adamw {
    float *p, *m, *v;
    const float *grad;
    struct cuda_mat working;
    const double *grad_factor;
    const struct s2s_adamw_range *ranges;
    double lr, weight_decay, grad_scale, correct1; /* correct1: 1 - b1^t */
    float b1, b2, a1, a2, unbias, eps;
};

/* What the loop needs of a range. */
struct rates {
    float keep, step, factor;
};

template <int N>
static __device__ __forceinline__ void adamw_group(const struct adamw &a, struct rates rate,
                                                   const struct cuda_mat mats[4], int64_t i)
{
    float p[N], m[N], v[N], g[N];
    cuda_load(p, mats[0], 0, i);
    cuda_load(m, mats[1], 0, i);
    cuda_load(v, mats[2], 0, i);
    cuda_load(g, mats[3], 0, i);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float grad = g[j] * rate.factor;
        m[j] = a.b1 * m[j] + a.a1 * grad;
        v[j] = a.b2 * v[j] + a.a2 * grad * grad;
        p[j] = p[j] * rate.keep - rate.step * m[j] / (sqrtf(v[j]) * a.unbias + a.eps);
    }
    cuda_store(mats[0], 0, i, p);
    cuda_store(mats[1], 0, i, m);
    cuda_store(mats[2], 0, i, v);
    if (a.working.data)
        cuda_store(a.working, 0, i, p);
}

/* Blocks of one x share a range. */
__global__ void adamw_kernel(struct adamw a)
{
    const struct s2s_adamw_range range = a.ranges[blockIdx.x];
    const double factor = a.grad_factor ? *a.grad_factor : 1.0;
    if (factor != factor)
        return;
    const double lr = a.lr * range.lr_mult + range.own_lr;
    const struct rates rate = {(float)(1 - lr * (a.weight_decay * range.decay_mult)),
                               (float)(lr / a.correct1), (float)(a.grad_scale * factor)};
    const struct cuda_mat mats[4] = {{(char *)a.p, 0, false},
                                     {(char *)a.m, 0, false},
                                     {(char *)a.v, 0, false},
                                     {(char *)a.grad, 0, false}};
    const int64_t first = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    const int64_t step = (int64_t)gridDim.y * blockDim.x;
    const int64_t n_wide = range.begin % CUDA_WIDE == 0 ? range.n / CUDA_WIDE : 0;
    for (int64_t i = first; i < n_wide; i += step)
        adamw_group<CUDA_WIDE>(a, rate, mats, range.begin + i * CUDA_WIDE);
    for (int64_t i = n_wide * CUDA_WIDE + first; i < range.n; i += step)
        adamw_group<1>(a, rate, mats, range.begin + i);
}

void cuda_adamw(struct s2s_queue *queue, const struct s2s_k_adamw *args)
{
    const double t = (double)args->t;
    const struct adamw a = {args->p,
                            args->m,
                            args->v,
                            args->grad,
                            cuda_mat(&args->working),
                            args->grad_factor,
                            args->ranges,
                            args->lr,
                            args->weight_decay,
                            args->grad_scale,
                            1 - pow(args->beta1, t),
                            (float)args->beta1,
                            (float)args->beta2,
                            (float)(1 - args->beta1),
                            (float)(1 - args->beta2),
                            (float)(1 / sqrt(1 - pow(args->beta2, t))),
                            (float)args->eps};
    /* as many blocks a range as its share might want; those that find nothing end at once */
    int64_t blocks = cuda_ceil_div(args->n, (int64_t)CUDA_BLOCK * CUDA_WIDE);
    blocks = blocks > 528 ? 528 : blocks;
    LAUNCH(queue, adamw_kernel, dim3((unsigned)args->n_ranges, (unsigned)blocks), CUDA_BLOCK, 0, a);
}

__global__ void clip_factor_kernel(struct s2s_k_clip_factor a)
{
    double sum = 0;
    for (int64_t i = 0; i < a.n; i++)
        sum += a.sumsq[i];
    const double norm = a.scale * sqrt(sum);
    const double factor = a.max_norm > 0 ? a.max_norm / (norm + 1e-6) : 1;
    const bool finite = norm - norm == 0;
    *a.factor = !finite ? norm - norm : factor < 1 ? factor : 1;
}

void cuda_clip_factor(struct s2s_queue *queue, const struct s2s_k_clip_factor *args)
{
    LAUNCH(queue, clip_factor_kernel, dim3(1), 1, 0, *args);
}
