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
    void *handle; /* the backend's own; NULL on the CPU */
    int status;   /* 0, or the backend's first failure */
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

enum s2s_act { S2S_ACT_SILU, S2S_ACT_GELU_TANH, S2S_ACT_GELU, S2S_ACT_RELU, S2S_ACT_RELU2 };

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
    void (*cross_entropy)(struct s2s_queue *queue, const struct s2s_k_cross_entropy *args);
    void (*sqdist)(struct s2s_queue *queue, const struct s2s_k_sqdist *args);
    void (*reduce)(struct s2s_queue *queue, const struct s2s_k_reduce *args);
    void (*adamw)(struct s2s_queue *queue, const struct s2s_k_adamw *args);

    /* bytes of workspace that a call with these arguments needs; data pointers are not read */
    size_t (*colsum_workspace)(const struct s2s_k_colsum *args);
    size_t (*rmsnorm_backward_workspace)(const struct s2s_k_rmsnorm_backward *args);
    size_t (*attention_workspace)(const struct s2s_k_attention *args);
    size_t (*attention_backward_workspace)(const struct s2s_k_attention_backward *args);
    size_t (*reduce_workspace)(const struct s2s_k_reduce *args);
};

/* The default table, always there. OpenMP threads; oneDNN or a CBLAS for dense products. */
extern const struct s2s_kernels s2s_kernels_cpu;

#endif
