/* Arguments of convolutions of packed clips: clip s has rows cu[s]..cu[s+1]. */
#ifndef S2S_KERNELS_CONV_H
#define S2S_KERNELS_CONV_H

#include "kernels/types.h"

/* Rows (or columns) that a convolution of stride 2 makes of n. */
static inline int64_t s2s_conv2d_half(int64_t n, bool causal)
{
    return causal ? n / 2 + (n > 0) : (n + 1) / 2;
}

/*
 * 3x3 convolution with stride 2 of packed images, one filter a channel, zeros around each image:
 *   y[t, f, c] = act(bias[c] + sum_ij w[c, i, j] x[2t-1+i, 2f-1+j, c])
 * A clip of n rows becomes (n + 1) / 2 rows, the width likewise. one_input: x has a single channel
 * that all filters see. causal: x[2t-2+i, 2f-2+j, c], and n rows become n / 2 + 1 (NeMo's
 * CausalConv2D).
 */
struct s2s_k_conv2d {
    struct s2s_mat x;              /* [n_in, in_width * (channels or 1)] */
    struct s2s_mat y;              /* [n_out, half of in_width * channels] */
    const float *w;                /* [channels, 3, 3] */
    const float *bias;             /* [channels] or NULL */
    const int32_t *cu_in, *cu_out; /* [n_seqs + 1] */
    int64_t n_seqs, n_in, n_out, in_width, channels;
    bool one_input, relu, causal;
    void *workspace; /* conv2d_workspace bytes */
};

/* Adds to dw, dbias (either NULL: not wanted); stores or adds dx (data NULL: not wanted). Reads y
 * of the forward where relu. */
struct s2s_k_conv2d_backward {
    struct s2s_k_conv2d forward;
    struct s2s_mat dy, dx;
    float *dw, *dbias;
    bool accumulate_dx;
    void *workspace; /* conv2d_backward_workspace bytes */
};

/*
 * y[t, c] = bias[c] + sum_k w[c, k] x[t - before + k, c] inside each clip, zeros around, with
 * before = (width - 1) / 2 + shift: of 0 both sides alike, of (width - 1) / 2 the past alone
 */
struct s2s_k_dwconv {
    struct s2s_mat x, y; /* [n, channels] */
    const float *w;      /* [channels, width], width odd */
    const float *bias;   /* [channels] or NULL */
    const int32_t *cu;   /* [n_seqs + 1] */
    int64_t n_seqs, n, channels, width, shift;
    void *workspace; /* dwconv_workspace bytes */
};

/* Adds to dw, dbias (NULL: not wanted); stores or adds dx (data NULL: not wanted). */
struct s2s_k_dwconv_backward {
    struct s2s_k_dwconv forward;
    struct s2s_mat dy, dx;
    float *dw, *dbias;
    bool accumulate_dx;
    void *workspace; /* dwconv_backward_workspace bytes */
};

#endif
