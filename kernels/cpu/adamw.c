/*
 * AdamW with decoupled decay (Loshchilov and Hutter 2019), one pass over p, g, m, v: 28 bytes a
 * parameter, so it runs at the memory's speed. And the factor that clips its gradients.
 */
#include "kernels/cpu/cpu.h"
#include "lib/base/half.h"

/* fixed blocks: where vector code ends and its remainder begins must not depend on threads */
enum { BLOCK = 16384 };

/* What the loop needs of a range. */
struct rates {
    float b1, b2, a1, a2, keep, step, unbias, eps, factor;
};

static struct rates rates_of(const struct s2s_k_adamw *args, const struct s2s_adamw_range *range,
                             double grad_factor)
{
    const double lr = args->lr * range->lr_mult + range->own_lr,
                 decay = args->weight_decay * range->decay_mult;
    return (struct rates){.b1 = (float)args->beta1,
                          .b2 = (float)args->beta2,
                          .a1 = (float)(1 - args->beta1),
                          .a2 = (float)(1 - args->beta2),
                          .keep = (float)(1 - lr * decay),
                          .step = (float)(lr / (1 - pow(args->beta1, (double)args->t))),
                          .unbias = (float)(1 / sqrt(1 - pow(args->beta2, (double)args->t))),
                          .eps = (float)args->eps,
                          .factor = (float)(args->grad_scale * grad_factor)};
}

static void update(const struct s2s_k_adamw *args, struct rates rate, int64_t begin, int64_t end)
{
    float *p = args->p, *m = args->m, *v = args->v;
    const float *grad = args->grad;
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        float g = grad[i] * rate.factor;
        float mi = rate.b1 * m[i] + rate.a1 * g;
        float vi = rate.b2 * v[i] + rate.a2 * g * g;
        m[i] = mi;
        v[i] = vi;
        p[i] = p[i] * rate.keep - rate.step * mi / (sqrtf(vi) * rate.unbias + rate.eps);
    }
}

/* While the block is in the cache. */
static void copy_out(const struct s2s_k_adamw *args, int64_t begin, int64_t end)
{
    const float *p = args->p;
    if (!args->working.data)
        return;
    if (args->working.dtype == S2S_BF16) {
        uint16_t *restrict to = args->working.data;
        for (int64_t i = begin; i < end; i++)
            to[i] = s2s_bits_f32_to_bf16(s2s_bits_of_f32(p[i]));
    } else {
        memcpy((float *)args->working.data + begin, p + begin, (size_t)(end - begin) * sizeof *p);
    }
}

void cpu_adamw(struct s2s_queue *queue, const struct s2s_k_adamw *args)
{
    const double factor = args->grad_factor ? *args->grad_factor : 1.0;
    if (isnan(factor))
        return;
#pragma omp parallel num_threads(queue->lanes) if (args->n > BLOCK)
    for (int64_t r = 0; r < args->n_ranges; r++) {
        const struct s2s_adamw_range *range = &args->ranges[r];
        const struct rates rate = rates_of(args, range, factor);
        const int64_t n_blocks = cpu_ceil_div(range->n, BLOCK);
#pragma omp for schedule(static) nowait
        for (int64_t b = 0; b < n_blocks; b++) {
            int64_t begin = range->begin + b * BLOCK, left = range->n - b * BLOCK;
            int64_t end = begin + (left < BLOCK ? left : BLOCK);
            update(args, rate, begin, end);
            copy_out(args, begin, end);
        }
    }
}

void cpu_clip_factor(struct s2s_queue *queue, const struct s2s_k_clip_factor *args)
{
    double sum = 0;
    for (int64_t i = 0; i < args->n; i++)
        sum += args->sumsq[i];
    const double norm = args->scale * sqrt(sum);
    const double factor = args->max_norm > 0 ? args->max_norm / (norm + 1e-6) : 1;
    *args->factor = !isfinite(norm) ? (double)NAN : factor < 1 ? factor : 1;
}
