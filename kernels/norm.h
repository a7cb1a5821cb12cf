/* Arguments of norms over rows and over columns. */
#ifndef S2S_KERNELS_NORM_H
#define S2S_KERNELS_NORM_H

#include "kernels/types.h"

/*
 * RMS norm with an optional sum in front:  h = x + residual;  y = (gain + gain_offset) h rstd,
 * rstd = 1/sqrt(mean(h^2) + eps).  Without residual h is x and `sum` is not written.
 */
struct s2s_k_rmsnorm {
    struct s2s_mat x, residual, sum, y; /* [rows, cols]; residual.data may be NULL */
    const float *gain;                  /* [cols] */
    float *rstd;                        /* out [rows]; NULL: not wanted */
    int64_t rows, cols;
    float eps, gain_offset;
};

/*
 * dh = dsum + rstd (u - h rstd^2 mean(u h)), u = (gain + gain_offset) dy.  dh goes to dx and (where
 * not NULL) to dresidual; dgain[cols] += sum over rows of dy h rstd (NULL: not wanted).
 */
struct s2s_k_rmsnorm_backward {
    struct s2s_mat h, dy, dsum;   /* dsum.data may be NULL; dy.data may be NULL: then dh = dsum */
    struct s2s_mat dx, dresidual; /* out; either may be NULL; dx may be dsum */
    const float *gain, *rstd;
    float *dgain;
    int64_t rows, cols;
    float gain_offset;
    bool accumulate_dx, accumulate_dresidual;
    void *workspace; /* rmsnorm_backward_workspace bytes */
};

/*
 * Layer norm with an optional sum in front:  h = residual + alpha x;
 *   y = gain (h - mean) rstd + bias,  rstd = 1/sqrt(variance + eps), population variance.
 * Without residual h is x (alpha 1) and `sum` is not written. sum may be residual.
 */
struct s2s_k_layernorm {
    struct s2s_mat x, residual, sum, y; /* [rows, cols]; residual.data may be NULL */
    const float *gain, *bias;           /* [cols] */
    float *stats;                       /* out [rows, 2]: mean, rstd; NULL: not wanted */
    int64_t rows, cols;
    float alpha, eps;
};

/*
 * xhat = (h - mean) rstd, u = gain dy;  dh = dsum + rstd (u - mean(u) - xhat mean(u xhat)), goes to
 * dresidual and, times alpha, to dx (either NULL: not wanted). dgain += sum dy xhat, dbias += sum
 * dy (NULL: not wanted).
 */
struct s2s_k_layernorm_backward {
    struct s2s_mat h, dy, dsum;   /* dy.data or dsum.data may be NULL */
    struct s2s_mat dx, dresidual; /* dresidual may be dsum */
    const float *gain, *stats;
    float *dgain, *dbias;
    int64_t rows, cols;
    float alpha;
    bool accumulate_dx, accumulate_dresidual;
    void *workspace; /* layernorm_backward_workspace bytes */
};

/* mean and biased variance of each column */
struct s2s_k_column_stats {
    struct s2s_mat x;
    float *mean, *var; /* out [cols] */
    int64_t rows, cols;
    void *workspace; /* column_stats_workspace bytes */
};

/* y = act(gain (x - mean) / sqrt(var + eps) + bias), act silu or none; y may be x */
struct s2s_k_batchnorm {
    struct s2s_mat x, y;
    const float *mean, *var, *gain, *bias; /* [cols] */
    int64_t rows, cols;
    float eps;
    bool silu;
};

/*
 * With dz = dy act', xhat = (x - mean) rstd: dbias += sum dz, dgain += sum dz xhat (NULL: not
 * wanted); dx = gain rstd dz, and with from_batch (mean and var are those of x) minus
 * gain rstd (mean(dz) + xhat mean(dz xhat)).
 */
struct s2s_k_batchnorm_backward {
    struct s2s_k_batchnorm forward;
    struct s2s_mat dy, dx; /* dx.data NULL: not wanted; dx may be dy */
    float *dgain, *dbias;
    bool from_batch, accumulate_dx;
    void *workspace; /* batchnorm_backward_workspace bytes */
};

#endif
