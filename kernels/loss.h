/* Arguments of losses: a value a row, and gradients. */
#ifndef S2S_KERNELS_LOSS_H
#define S2S_KERNELS_LOSS_H

#include "kernels/types.h"

/*
 * Cross entropy, in three steps so that ranks may hold parts of the vocabulary: each takes the
 * statistics of its columns, all put the parts together, each makes the gradient of its columns.
 * Rows whose label is negative count nothing and are not looked at. Logits are F32; gradients of
 * BF16 stand in a matrix of their own.
 */

/* What a row's columns come to. Four words of 4 bytes: ranks exchange it as it is. */
struct s2s_xent {
    float max;    /* of the logits; -inf: no columns */
    float sum;    /* of exp(logit - max) */
    float target; /* the label's logit, 0 where another part has it */
    int32_t best; /* the lowest id that has the largest logit; -1: not wanted */
};

/* The logits are of the classes first_col .. first_col + cols; those of pad classes are left out of
 * cols. */
struct s2s_k_xent_stats {
    struct s2s_mat logits;  /* [rows, cols] */
    const int32_t *labels;  /* [rows], global ids */
    struct s2s_xent *stats; /* out [rows] */
    int64_t rows, cols, first_col;
    bool want_best;
    bool keep; /* xent_gradient follows: logits become what it takes, in the backend's own form */
};

/*
 * Puts parts together, in their order:
 *   loss[i] = weight[i] (lse - logit of the label),  logprob[i] = logit of the label - lse,
 *   hits[i] = 1 where the label has the largest logit (of equals the lowest id), else 0;
 * all 0 where the label is negative. hits needs the best of every part.
 */
struct s2s_k_xent_finish {
    const struct s2s_xent *parts; /* [n_parts, rows], by their first columns */
    const int32_t *labels;        /* [rows] */
    const float *weights;         /* [rows]; NULL: 1 */
    struct s2s_xent *total;       /* out [rows], for xent_gradient; may be parts */
    float *loss, *logprob, *hits; /* out [rows]; any may be NULL */
    int64_t rows, n_parts;
};

/* dlogits = weight grad_scale (softmax - onehot), zero rows where the label is negative, and zero
 * in columns cols .. width (pad classes). */
struct s2s_k_xent_gradient {
    struct s2s_mat logits;                /* [rows, cols], as xent_stats left them */
    struct s2s_mat dlogits;               /* out [rows, width]; may be logits */
    const int32_t *labels;                /* [rows] */
    const float *weights;                 /* [rows]; NULL: 1 */
    const struct s2s_xent *part, *total;  /* [rows]: of these columns, of all; may be the same */
    int64_t rows, cols, width, first_col; /* width: cols, or more with pad classes */
    float grad_scale;
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
