/*
 * Arguments of what Mamba2 layers are made of (Dao & Gu 2024): a causal convolution, the scan of a
 * state-space model, a gated norm. Sequences are packed: s has rows cu[s]..cu[s+1], maybe none; a
 * row of no sequence has y = 0 and no gradient.
 */
#ifndef S2S_KERNELS_SSM_H
#define S2S_KERNELS_SSM_H

#include "kernels/types.h"

/*
 * Depthwise convolution of each channel with its last `width` inputs:
 *   y[t, c] = act(bias[c] + sum_k w[c, k] x[t - (width - 1) + k, c]),  act silu or none
 * Before the first row of a sequence stand the width - 1 rows that `initial` has for it, else
 * zeros. `final` gets the last width - 1 inputs of each sequence, those of `initial` among them
 * where the sequence is shorter; it may be `initial`.
 */
struct s2s_k_conv1d {
    struct s2s_mat x, y;           /* [n, channels] */
    struct s2s_mat initial, final; /* [n_seqs * (width - 1), channels]; data may be NULL */
    const float *w;                /* [channels, width], width at least 1 */
    const float *bias;             /* [channels] or NULL */
    const int32_t *cu;             /* [n_seqs + 1] */
    int64_t n_seqs, n, channels, width;
    bool silu;
    void *workspace; /* conv1d_workspace bytes */
};

/*
 * Reads dy and dfinal (either may be NULL: no gradient there); stores or adds dx, dinitial, adds to
 * dw, dbias (any NULL: not wanted). Neither y nor final of the forward is read.
 */
struct s2s_k_conv1d_backward {
    struct s2s_k_conv1d forward;
    struct s2s_mat dy, dfinal, dx, dinitial;
    float *dw, *dbias;
    bool accumulate_dx, accumulate_dinitial;
    void *workspace; /* conv1d_backward_workspace bytes */
};

/*
 * The scan of Mamba2: head h has a state S [dim, state] that begins each sequence as `initial`
 * says, else as zeros; with x_t [dim], and b_t, c_t [state] of the head's group h / (n_heads /
 * n_groups), step = max(softplus(dt_t + dt_bias), dt_min),  a = exp(-exp(a_log) step) S = a S +
 * step x_t b_t^T,  y_t = S c_t + skip x_t `final` gets what S is after the last row of each
 * sequence; it may be `initial`. States are F32, and sums of products, whatever the matrices are.
 */
struct s2s_k_ssd {
    struct s2s_mat x, y;  /* [n, n_heads * dim] */
    struct s2s_mat dt;    /* [n, n_heads], before the bias */
    struct s2s_mat b, c;  /* [n, n_groups * state] */
    const float *a_log;   /* [n_heads] */
    const float *dt_bias; /* [n_heads] or NULL */
    const float *skip;    /* [n_heads] or NULL: 0 */
    const float *initial; /* [n_seqs, n_heads, dim, state] or NULL */
    float *final;         /* the same, or NULL: not wanted */
    const int32_t *cu;    /* [n_seqs + 1] */
    int64_t n_seqs, n, n_heads, n_groups, dim, state;
    int64_t max_seqlen; /* no sequence has more */
    float dt_min;       /* 0: the step is not clamped */
    void *workspace;    /* ssd_workspace bytes */
};

/*
 * Reads what the forward read, dy and dfinal (either may be NULL: no gradient there); stores or
 * adds dx, ddt, db, dc, dinitial, adds to da_log, ddt_bias, dskip (any NULL: not wanted). A step
 * that was clamped has no gradient. Neither y nor final of the forward is read.
 */
struct s2s_k_ssd_backward {
    struct s2s_k_ssd forward;
    struct s2s_mat dy, dx, ddt, db, dc;
    const float *dfinal; /* as final */
    float *dinitial;     /* as initial */
    float *da_log, *ddt_bias, *dskip;
    bool accumulate_dx, accumulate_ddt, accumulate_db, accumulate_dc, accumulate_dinitial;
    void *workspace; /* ssd_backward_workspace bytes */
};

/*
 * RMS norm of a gated row, over each of n_groups equal parts of it on its own:
 *   v = x silu(z),  y = gain v rstd,  rstd = 1 / sqrt(mean of the group(v^2) + eps)
 */
struct s2s_k_gatednorm {
    struct s2s_mat x, z, y; /* [rows, cols]; y may be x */
    const float *gain;      /* [cols] */
    float *rstd;            /* out [rows, n_groups]; NULL: not wanted */
    int64_t rows, cols, n_groups;
    float eps;
};

/*
 * With u = gain dy and dv = rstd (u - v rstd^2 mean of the group(u v)):
 *   dx = dv silu(z),  dz = dv x silu'(z),  dgain += sum over the rows of dy v rstd
 * Any may be NULL: not wanted. dx may be dy.
 */
struct s2s_k_gatednorm_backward {
    struct s2s_mat x, z, dy, dx, dz; /* [rows, cols] */
    const float *gain, *rstd;
    float *dgain;
    int64_t rows, cols, n_groups;
    bool accumulate_dx, accumulate_dz;
    void *workspace; /* gatednorm_backward_workspace bytes */
};

#endif
