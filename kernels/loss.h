/* Arguments of losses: a value a row, and gradients. */
#ifndef S2S_KERNELS_LOSS_H
#define S2S_KERNELS_LOSS_H

#include "kernels/types.h"

/*
 * loss[i] = logsumexp(logits[i]) - logits[i, label_i], 0 where the label is negative. With
 * `gradient` the logits are overwritten by grad_scale (softmax - onehot), zero rows where the label
 * is negative.
 */
struct s2s_k_cross_entropy {
    struct s2s_mat logits; /* [rows, cols], F32 */
    const int32_t *labels; /* [rows], below cols */
    float *loss;           /* out [rows] */
    float *hits;           /* out [rows]: 1 where the label has the largest logit (of equals the
                              lowest id), else 0; NULL: not wanted */
    int64_t rows, cols;
    float grad_scale;
    bool gradient;
};

/* half squared distance: loss[i] = 0.5 sum_j (x - target)^2; dx (+)= grad_scale (x - target) */
struct s2s_k_sqdist {
    struct s2s_mat x, target, dx; /* dx.data NULL: not wanted */
    float *loss;                  /* out [rows] */
    int64_t rows, cols;
    float grad_scale;
    bool accumulate;
};

#endif
