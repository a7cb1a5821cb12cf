/*
 * AdamW with decoupled decay (Loshchilov and Hutter 2019), one pass over p, g, m, v: 28 bytes a
 * parameter, so it runs at the memory's speed.
 */
#include "kernels/cpu/cpu.h"

void cpu_adamw(struct s2s_queue *queue, const struct s2s_k_adamw *args)
{
    const float b1 = (float)args->beta1, b2 = (float)args->beta2;
    const float a1 = (float)(1 - args->beta1), a2 = (float)(1 - args->beta2);
    const float keep = (float)(1 - args->lr * args->weight_decay);
    const float step = (float)(args->lr / (1 - pow(args->beta1, (double)args->t)));
    const float unbias = (float)(1 / sqrt(1 - pow(args->beta2, (double)args->t)));
    const float eps = (float)args->eps;
    const float factor =
        (float)(args->grad_scale * (args->grad_factor ? (double)*args->grad_factor : 1.0));
    float *p = args->p, *m = args->m, *v = args->v;
    const float *grad = args->grad;
    /* fixed blocks: where vector code ends and its remainder begins must not depend on threads */
    enum { BLOCK = 16384 };
#pragma omp parallel for num_threads(queue->lanes) schedule(static) if (args->n > BLOCK)
    for (int64_t begin = 0; begin < args->n; begin += BLOCK) {
        int64_t end = args->n - begin < BLOCK ? args->n : begin + BLOCK;
#pragma omp simd
        for (int64_t i = begin; i < end; i++) {
            float g = grad[i] * factor;
            float mi = b1 * m[i] + a1 * g;
            float vi = b2 * v[i] + a2 * g * g;
            m[i] = mi;
            v[i] = vi;
            p[i] = p[i] * keep - step * mi / (sqrtf(vi) * unbias + eps);
        }
    }
}
