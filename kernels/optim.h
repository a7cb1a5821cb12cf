/* Arguments of the optimizer. */
#ifndef S2S_KERNELS_OPTIM_H
#define S2S_KERNELS_OPTIM_H

#include "kernels/types.h"

/*
 * One AdamW step with decoupled decay on a flat range; g = grad * grad_scale:
 *   p -= lr wd p; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 *   p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
 * grad_factor NULL or a device scalar that multiplies grad_scale (clipping without a wait).
 */
struct s2s_k_adamw {
    float *p, *m, *v;
    const float *grad;
    const float *grad_factor;
    int64_t n, t; /* t: number of this step, from 1 */
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
};

#endif
