/*
 * The operations that touch tensor memory: a table of functions over raw buffers, one table a
 * backend. Nothing above lib/tensor, lib/nn and lib/optim calls them, and nothing above this header
 * reads or writes a tensor's memory any other way.
 *
 * Rules that hold for every entry:
 * - Arguments were checked by the caller. A kernel allocates nothing, does not wait (but for
 *   copy_out and sync), and has no error to return: a backend that can fail keeps its first failure
 *   in queue->status, which the caller reads after sync.
 * - A matrix is [rows, cols] with contiguous columns; `stride` elements lie between rows. Vectors
 *   are plain pointers of the type said in brackets.
 * - Sums are accumulated in fp32 or better, in an order that depends on shapes alone: the same
 *   bytes on any number of threads.
 * - Outputs do not overlap inputs unless said. `accumulate` adds to what is there; without it the
 *   old contents (also NaN) do not matter.
 * - Sizes of 0 are legal and write nothing (sums of nothing are 0).
 */
#ifndef S2S_KERNELS_H
#define S2S_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

/* Where kernels run, in the order they were issued. */
struct s2s_queue {
    void *handle;      /* the backend's own; NULL on the CPU */
    int status;        /* 0, or the backend's first failure */
    const char *layer; /* that runs, for messages */
};

struct s2s_mat {
    void *data;
    int64_t stride; /* elements between rows */
    enum s2s_dtype dtype;
};

/* c[m,n] = alpha op(a) op(b) + bias (or + c), op(a) [m,k], op(b) [k,n]; with trans_a, a is stored
 * [k,m], with trans_b, b is stored [n,k]. bias [n] or NULL; not together with accumulate. */
struct s2s_k_gemm {
    struct s2s_mat a, b, c;
    const void *bias;
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate;
    float alpha;
};

/* y = alpha x + beta y (beta 0: y need not be initialised). y may be x. */
struct s2s_k_axpby {
    struct s2s_mat x, y;
    int64_t rows, cols;
    float alpha, beta;
};

/* out[n] (+)= sum over the rows of x[rows, n] */
struct s2s_k_colsum {
    struct s2s_mat x;
    float *out;
    int64_t rows, cols;
    bool accumulate;
    void *workspace; /* colsum_workspace bytes */
};

/* Forward: y[i] = scale * table[id[i]]; a row whose id is negative is zero.
 * Backward: dtable[id[i]] += scale * dy[i], in the order of i; negative ids and skip_id get
 * nothing. */
struct s2s_k_embedding {
    struct s2s_mat table; /* [n_rows, cols]; in backward its gradient */
    struct s2s_mat y;     /* [n, cols]; in backward its gradient (read) */
    const int32_t *ids;   /* [n], below n_rows */
    int64_t n, cols;
    int32_t skip_id; /* -1: none */
    float scale;
};

/* gather: dst[i] (+)= src[idx[i]] (a negative index: nothing added, or a zero row stored).
 * scatter: dst[idx[i]] (+)= src[i] (a negative index: dropped; indices differ from each other). */
struct s2s_k_rows {
    struct s2s_mat dst, src;
    const int32_t *idx; /* [n] */
    int64_t n, cols;
    bool accumulate;
};

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

/* table[t] = cos(p_t w_0).. cos(p_t w_{d/2-1}), sin(p_t w_0)..: [n, dim]; angles in double */
struct s2s_k_rope_table {
    const int32_t *positions; /* [n] */
    const double *inv_freq;   /* [dim / 2] */
    float *table;
    int64_t n, dim;
};

/* Half-split rotation of every head: pairs (i, i + d/2). y may be x. inverse rotates back (the
 * backward). */
struct s2s_k_rope {
    struct s2s_mat x, y; /* [n, n_heads * dim] */
    const float *table;  /* [n, dim] */
    int64_t n, n_heads, dim;
    bool inverse, accumulate;
};

/*
 * Causal attention of packed sequences. Sequence s has queries cu_q[s]..cu_q[s+1] and keys
 * cu_k[s]..cu_k[s+1]; its last query sees its last key (so with a cache keys are more than
 * queries). Query head h uses kv head h / (n_heads / n_kv_heads).
 *   o = softmax(scale q k^T) v,  lse[t, h] = log-sum-exp of the scaled scores (NULL: not wanted)
 * causal false: every query sees every key of its sequence.
 */
struct s2s_k_attention {
    struct s2s_mat q, k, v, o;  /* q, o [n_q, n_heads * dim]; k, v [n_k, n_kv_heads * dim] */
    float *lse;                 /* [n_q, n_heads] */
    const int32_t *cu_q, *cu_k; /* [n_seqs + 1] */
    int64_t n_seqs, n_heads, n_kv_heads, dim;
    int64_t max_q, max_k; /* longest sequence of each */
    float scale;
    bool causal;
    void *workspace; /* attention_workspace bytes */
};

/* Reads q k v o lse dO (in `d_o`), writes or adds to dq dk dv; P is computed again from lse. */
struct s2s_k_attention_backward {
    struct s2s_k_attention forward;
    struct s2s_mat d_o, dq, dk, dv;
    bool accumulate_dq, accumulate_dk, accumulate_dv;
    void *workspace; /* attention_backward_workspace bytes */
};

enum s2s_act {
    S2S_ACT_SILU,
    S2S_ACT_GELU_TANH,
    S2S_ACT_GELU,
    S2S_ACT_RELU,
    S2S_ACT_RELU2,
    S2S_ACT_SIGMOID
};

/* y = act(gate) * up; up.data NULL: y = act(gate) */
struct s2s_k_glu {
    struct s2s_mat gate, up, y; /* [rows, cols] */
    int64_t rows, cols;
    enum s2s_act act;
};

/* dgate = act'(gate) * up * dy, dup = act(gate) * dy; either may be NULL */
struct s2s_k_glu_backward {
    struct s2s_mat gate, up, dy, dgate, dup;
    int64_t rows, cols;
    enum s2s_act act;
    bool accumulate_dgate, accumulate_dup;
};

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

/* ---- speech encoders: packed clips, clip s has rows cu[s]..cu[s+1] ---- */

/*
 * 3x3 convolution with stride 2 of packed images, one filter a channel, zeros around each image:
 *   y[t, f, c] = act(bias[c] + sum_ij w[c, i, j] x[2t-1+i, 2f-1+j, c])
 * A clip of n rows becomes (n + 1) / 2 rows, the width likewise. one_input: x has a single channel
 * that all filters see.
 */
struct s2s_k_conv2d {
    const float *x;                /* [n_in, in_width, channels or 1] */
    float *y;                      /* [n_out, (in_width + 1) / 2, channels] */
    const float *w;                /* [channels, 3, 3] */
    const float *bias;             /* [channels] or NULL */
    const int32_t *cu_in, *cu_out; /* [n_seqs + 1] */
    int64_t n_seqs, n_in, n_out, in_width, channels;
    bool one_input, relu;
    void *workspace; /* conv2d_workspace bytes */
};

/* Adds to dw, dbias (either NULL: not wanted); stores or adds dx (NULL: not wanted). Reads y of the
 * forward where relu. */
struct s2s_k_conv2d_backward {
    struct s2s_k_conv2d forward;
    const float *dy;
    float *dx, *dw, *dbias;
    bool accumulate_dx;
    void *workspace; /* conv2d_backward_workspace bytes */
};

/* y[t, c] = bias[c] + sum_k w[c, k] x[t - (width - 1) / 2 + k, c] inside each clip, zeros around */
struct s2s_k_dwconv {
    struct s2s_mat x, y; /* [n, channels] */
    const float *w;      /* [channels, width], width odd */
    const float *bias;   /* [channels] or NULL */
    const int32_t *cu;   /* [n_seqs + 1] */
    int64_t n_seqs, n, channels, width;
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

/* table[i] of the relative position r = n-1-i, i in [0, 2n-1): sin(r w_0), cos(r w_0), sin(r
 * w_1).., w_m = 10000^(-2m/dim); angles in double */
struct s2s_k_relpos_table {
    float *table; /* [2n - 1, dim] */
    int64_t n, dim;
};

/*
 * Attention with relative positions inside each clip, every query sees every key of it:
 *   S_ij = scale ((q_i + u) . k_j + (q_i + v) . p_{i-j}),  o = softmax(S) value
 * p holds the projected table of max_seqlen: row max_seqlen - 1 - i + j is that of i - j.
 */
struct s2s_k_relattention {
    struct s2s_mat q, k, value, o; /* [n, n_heads * dim] */
    struct s2s_mat p;              /* [2 max_seqlen - 1, n_heads * dim] */
    const float *u, *v;            /* [n_heads, dim] */
    float *lse;                    /* [n, n_heads]; NULL: not wanted */
    const int32_t *cu;             /* [n_seqs + 1] */
    int64_t n_seqs, n_heads, dim, max_seqlen;
    float scale;
    void *workspace; /* relattention_workspace bytes */
};

/* Reads what the forward read and wrote, and dO; stores or adds dq dk dvalue dp, adds to du, dv.
 * Any may be NULL. */
struct s2s_k_relattention_backward {
    struct s2s_k_relattention forward;
    struct s2s_mat d_o, dq, dk, dvalue, dp;
    float *du, *dv;
    bool accumulate_dq, accumulate_dk, accumulate_dvalue, accumulate_dp;
    void *workspace; /* relattention_backward_workspace bytes */
};

/* y[r] (+)= the transpose of x[r], [a, b] -> [b, a], for each of `rows` */
struct s2s_k_transpose {
    const float *x;
    float *y;
    int64_t rows, a, b;
    bool accumulate;
};

enum s2s_reduce { S2S_REDUCE_SUM, S2S_REDUCE_SUMSQ, S2S_REDUCE_NONFINITE };

/* *out (+)= sum of x, of x^2, or the number of NaN and Inf in x[n]; sums in double */
struct s2s_k_reduce {
    const float *x;
    double *out;
    int64_t n;
    enum s2s_reduce what;
    bool accumulate;
    void *workspace; /* reduce_workspace bytes */
};

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

struct s2s_kernels {
    const char *name;

    /* memory; alloc returns NULL when there is none left, and aligns to 64 bytes at least */
    void *(*alloc)(size_t bytes);
    void (*free)(void *ptr);
    /* host memory to device and back; the host buffer may be reused when the call returns */
    void (*copy_in)(struct s2s_queue *queue, void *dst, const void *host, size_t bytes);
    void (*copy_out)(struct s2s_queue *queue, void *host, const void *src, size_t bytes);
    void (*zero)(struct s2s_queue *queue, void *dst, size_t bytes);
    void (*sync)(struct s2s_queue *queue);

    void (*gemm)(struct s2s_queue *queue, const struct s2s_k_gemm *args);
    void (*axpby)(struct s2s_queue *queue, const struct s2s_k_axpby *args);
    void (*colsum)(struct s2s_queue *queue, const struct s2s_k_colsum *args);
    void (*embedding)(struct s2s_queue *queue, const struct s2s_k_embedding *args);
    void (*embedding_backward)(struct s2s_queue *queue, const struct s2s_k_embedding *args);
    void (*gather_rows)(struct s2s_queue *queue, const struct s2s_k_rows *args);
    void (*scatter_rows)(struct s2s_queue *queue, const struct s2s_k_rows *args);
    void (*rmsnorm)(struct s2s_queue *queue, const struct s2s_k_rmsnorm *args);
    void (*rmsnorm_backward)(struct s2s_queue *queue, const struct s2s_k_rmsnorm_backward *args);
    void (*rope_table)(struct s2s_queue *queue, const struct s2s_k_rope_table *args);
    void (*rope)(struct s2s_queue *queue, const struct s2s_k_rope *args);
    void (*attention)(struct s2s_queue *queue, const struct s2s_k_attention *args);
    void (*attention_backward)(struct s2s_queue *queue,
                               const struct s2s_k_attention_backward *args);
    void (*glu)(struct s2s_queue *queue, const struct s2s_k_glu *args);
    void (*glu_backward)(struct s2s_queue *queue, const struct s2s_k_glu_backward *args);
    void (*conv2d)(struct s2s_queue *queue, const struct s2s_k_conv2d *args);
    void (*conv2d_backward)(struct s2s_queue *queue, const struct s2s_k_conv2d_backward *args);
    void (*dwconv)(struct s2s_queue *queue, const struct s2s_k_dwconv *args);
    void (*dwconv_backward)(struct s2s_queue *queue, const struct s2s_k_dwconv_backward *args);
    void (*layernorm)(struct s2s_queue *queue, const struct s2s_k_layernorm *args);
    void (*layernorm_backward)(struct s2s_queue *queue,
                               const struct s2s_k_layernorm_backward *args);
    void (*column_stats)(struct s2s_queue *queue, const struct s2s_k_column_stats *args);
    void (*batchnorm)(struct s2s_queue *queue, const struct s2s_k_batchnorm *args);
    void (*batchnorm_backward)(struct s2s_queue *queue,
                               const struct s2s_k_batchnorm_backward *args);
    void (*relpos_table)(struct s2s_queue *queue, const struct s2s_k_relpos_table *args);
    void (*relattention)(struct s2s_queue *queue, const struct s2s_k_relattention *args);
    void (*relattention_backward)(struct s2s_queue *queue,
                                  const struct s2s_k_relattention_backward *args);
    void (*transpose)(struct s2s_queue *queue, const struct s2s_k_transpose *args);
    void (*cross_entropy)(struct s2s_queue *queue, const struct s2s_k_cross_entropy *args);
    void (*sqdist)(struct s2s_queue *queue, const struct s2s_k_sqdist *args);
    void (*reduce)(struct s2s_queue *queue, const struct s2s_k_reduce *args);
    void (*adamw)(struct s2s_queue *queue, const struct s2s_k_adamw *args);

    /* bytes of workspace that a call with these arguments needs; data pointers are not read */
    size_t (*colsum_workspace)(const struct s2s_k_colsum *args);
    size_t (*rmsnorm_backward_workspace)(const struct s2s_k_rmsnorm_backward *args);
    size_t (*attention_workspace)(const struct s2s_k_attention *args);
    size_t (*attention_backward_workspace)(const struct s2s_k_attention_backward *args);
    size_t (*conv2d_workspace)(const struct s2s_k_conv2d *args);
    size_t (*conv2d_backward_workspace)(const struct s2s_k_conv2d_backward *args);
    size_t (*dwconv_workspace)(const struct s2s_k_dwconv *args);
    size_t (*dwconv_backward_workspace)(const struct s2s_k_dwconv_backward *args);
    size_t (*layernorm_backward_workspace)(const struct s2s_k_layernorm_backward *args);
    size_t (*column_stats_workspace)(const struct s2s_k_column_stats *args);
    size_t (*batchnorm_backward_workspace)(const struct s2s_k_batchnorm_backward *args);
    size_t (*relattention_workspace)(const struct s2s_k_relattention *args);
    size_t (*relattention_backward_workspace)(const struct s2s_k_relattention_backward *args);
    size_t (*reduce_workspace)(const struct s2s_k_reduce *args);
};

/* The default table, always there. OpenMP threads; oneDNN or a CBLAS for dense products. */
extern const struct s2s_kernels s2s_kernels_cpu;

#endif
