/* Arguments of the optimizer. */
#ifndef S2S_KERNELS_OPTIM_H
#define S2S_KERNELS_OPTIM_H

#include "kernels/types.h"

/* Elements [begin, begin + n) that share multipliers of the learning rate and of the decay. */
struct s2s_adamw_range {
    int64_t begin, n;
    double lr_mult, decay_mult;
    double own_lr; /* the learning rate is lr lr_mult + own_lr */
};

/*
 * One AdamW step with decoupled decay over ranges of flat buffers, which do not overlap; with
 * g = grad * grad_scale and a range's own lr and wd (times its multipliers):
 *   p -= lr wd p; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 *   p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
 * grad_factor NULL or a device scalar that multiplies grad_scale (clipping without a wait); where
 * it is NaN nothing is written at all.
 */
struct s2s_k_adamw {
    float *p, *m, *v;
    const float *grad;
    struct s2s_mat working;               /* data NULL, or a copy of p [1, ..]: F32 or BF16 */
    const double *grad_factor;            /* device scalar, or NULL */
    const struct s2s_adamw_range *ranges; /* [n_ranges], device memory */
    int64_t n_ranges, n, t;               /* n: the elements of all ranges; t: the step, from 1 */
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
};

/* *factor = min(1, max_norm / (norm + 1e-6)) (max_norm 0: 1), norm = scale sqrt(sum of sumsq); NaN
 * where the norm is not finite. */
struct s2s_k_clip_factor {
    const double *sumsq; /* [n] */
    double *factor;      /* out [1] */
    int64_t n;
    double scale, max_norm;
};

#endif
