/*
 * The operations of the tape. Each allocates its output on the tape, runs kernels, and is recorded
 * when an input needs a gradient. Shapes in brackets; T is the number of packed tokens. Parameters
 * are given as their tensors (param->tensor).
 */
#ifndef S2S_TENSOR_OPS_H
#define S2S_TENSOR_OPS_H

#include "kernels/kernels.h"
#include "lib/tensor/tensor.h"

struct s2s_load;
struct s2s_stack;

/* y [T, out] = x [T, in] w^T + b; w [out, in], b [out] or NULL. */
struct s2s_tensor *s2s_op_linear(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                                 struct s2s_tensor *b);
/* y [T, out] = x w^T in F32 whatever the working dtype. */
struct s2s_tensor *s2s_op_logits(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w);

/* y + alpha x w^T, w [out, in], x [T, in]: what a low-rank adapter adds. Takes over the memory of y
 * [T, out]. */
struct s2s_tensor *s2s_op_add_linear(struct s2s_tape *tape, struct s2s_tensor *y,
                                     struct s2s_tensor *x, struct s2s_tensor *w, float alpha);

/* y = x + b, b [cols] a bias: after what ranks have parts of was summed. Takes over the memory of
 * x. */
struct s2s_tensor *s2s_op_add_bias(struct s2s_tape *tape, struct s2s_tensor *x,
                                   struct s2s_tensor *b);

/* y = a + b, equal shapes. */
struct s2s_tensor *s2s_op_add(struct s2s_tape *tape, struct s2s_tensor *a, struct s2s_tensor *b);
/* y = h + x, as the end of a layer: takes over the memory of x, which nobody may read afterwards.
 */
struct s2s_tensor *s2s_op_add_to(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *h);
/* y = alpha a + beta b (half-step residuals). */
struct s2s_tensor *s2s_op_axpby(struct s2s_tape *tape, float alpha, struct s2s_tensor *a,
                                float beta, struct s2s_tensor *b);
/* y = alpha x */
struct s2s_tensor *s2s_op_scale(struct s2s_tape *tape, float alpha, struct s2s_tensor *x);

/*
 * Dropout (struct s2s_k_dropout): y is x with some elements left out, others divided by 1 - rate; x
 * itself where nothing is. It may take over the memory of x, which nobody may read afterwards.
 */
struct s2s_dropout {
    float rate;
    uint64_t site;           /* of the place in the model: s2s_rng_key of its name */
    struct s2s_tensor *rows; /* I32 [rows, 2] two words that name each row of x; NULL: it stays */
    int64_t first;           /* column of the whole that the first one of x is; of attention its
                                first head */
    bool keeps;              /* others read x as well: its memory stays */
};
struct s2s_tensor *s2s_op_dropout(struct s2s_tape *tape, struct s2s_tensor *x,
                                  const struct s2s_dropout *drop);

/*
 * Rows of a table times `scale`: y [n, cols] of host ids [n] (borrowed for the call). A negative id
 * is a zero row without gradient (pad slots). The row skip_id (-1: none) gets no gradient: Hugging
 * Face's padding_idx.
 */
struct s2s_tensor *s2s_op_embedding(struct s2s_tape *tape, struct s2s_tensor *table,
                                    const int32_t *ids, int64_t n, float scale, int32_t skip_id);

/* y [n, cols] = x[idx[i]], idx I32 [n], differing from each other; negative: a zero row. */
struct s2s_tensor *s2s_op_gather_rows(struct s2s_tape *tape, struct s2s_tensor *x,
                                      struct s2s_tensor *idx);
/*
 * x with rows replaced: y[idx[i]] = rows[i], other rows those of x. idx I32 [n], differing from
 * each other, negative: dropped. Takes over the memory of x, which nobody may read afterwards.
 */
struct s2s_tensor *s2s_op_splice_rows(struct s2s_tape *tape, struct s2s_tensor *x,
                                      struct s2s_tensor *rows, struct s2s_tensor *idx);

/*
 * RMS norm of rows: y = (gain + gain_offset) x / sqrt(mean(x^2) + eps); gain [cols].
 * With a residual the sum h = x + residual is normed, and given back in *sum (the new residual);
 * it takes over the memory of x, which nobody may read afterwards.
 */
struct s2s_tensor *s2s_op_rmsnorm(struct s2s_tape *tape, struct s2s_tensor *x,
                                  struct s2s_tensor *gain, float eps, float gain_offset);
struct s2s_tensor *s2s_op_add_rmsnorm(struct s2s_tape *tape, struct s2s_tensor **sum,
                                      struct s2s_tensor *x, struct s2s_tensor *residual,
                                      struct s2s_tensor *gain, float eps, float gain_offset);

/* Cosines and sines [T, dim] of positions (I32 [T]) times inv_freq (host, [dim / 2]), all times
 * factor (1: none). */
struct s2s_tensor *s2s_op_rope_table(struct s2s_tape *tape, struct s2s_tensor *positions,
                                     const double *inv_freq, int64_t dim, double factor);
/* Rows [begin, begin + n) of such a table anew, with other frequencies. */
void s2s_op_rope_rows(struct s2s_tape *tape, struct s2s_tensor *table,
                      const struct s2s_tensor *positions, int64_t begin, int64_t n,
                      const double *inv_freq, double factor);
/* Rotates every head of x [T, n_heads * dim], its first components where the table is narrower.
 * Takes over the memory of x. */
struct s2s_tensor *s2s_op_rope(struct s2s_tape *tape, struct s2s_tensor *x,
                               struct s2s_tensor *table, int64_t n_heads);

/* Where sequences begin: on the device for kernels, sizes on the host for choosing grids. */
struct s2s_seqs {
    struct s2s_tensor *cu_seqlens; /* I32 [n_seqs + 1] */
    int64_t n_seqs, max_seqlen, n_rows;
};
/* Uploads bounds (host int32 [n_seqs + 1]); their longest is max_seqlen. */
struct s2s_seqs s2s_op_seqs(struct s2s_tape *tape, const int32_t *cu_seqlens, int64_t n_seqs);

/* What attention sees (struct s2s_span): made once a batch, shared by its layers. */
struct s2s_spans {
    struct s2s_tensor *table; /* I32: the spans, then where their groups begin */
    int64_t n_spans, n_groups, n_q, n_k, max_q, max_k;
    /* for dropout, or NULL: names of the queries (struct s2s_dropout), I32 [n_q, 2], and where each
     * key stands in its sample, I32 [n_k] */
    struct s2s_tensor *names, *k_at;
};
/* Of packed sequences: host bounds cu_q, cu_k [n_seqs + 1], equal but where a cache has more keys
 * than queries. causal: the last query sees the last key; else every query sees every key. */
struct s2s_spans s2s_op_spans(struct s2s_tape *tape, const int32_t *cu_q, const int32_t *cu_k,
                              int64_t n_seqs, bool causal);

struct s2s_attention_shape {
    int64_t n_heads, n_kv_heads, dim;
    int64_t window; /* how many keys a query sees at most; 0: all that the spans say */
    float scale;    /* 0: 1/sqrt(dim) */
    /* share of what queries see that is left out, where spans have names; its site; of all heads
     * the one that is the first here */
    float dropout;
    uint64_t site;
    int64_t first_head;
};
/* o [n_q, n_heads * dim] of q [n_q, n_heads * dim], k, v [n_k, n_kv_heads * dim]. */
struct s2s_tensor *s2s_op_attention(struct s2s_tape *tape, struct s2s_tensor *q,
                                    struct s2s_tensor *k, struct s2s_tensor *v,
                                    const struct s2s_spans *spans,
                                    const struct s2s_attention_shape *shape);

/* Of any spans (struct s2s_span, host, sorted by the call) over n_q rows of queries and n_k of
 * keys. */
struct s2s_spans s2s_op_spans_of(struct s2s_tape *tape, struct s2s_span *spans, int64_t n_spans,
                                 int64_t n_q, int64_t n_k);

/*
 * ---- sequences cut over ranks (op_attention_cp.c) ----
 *
 * Of R ranks rank r holds chunks r and 2 R - 1 - r of the 2 R equal ones of each packed sequence
 * (DualChunkSwap: lib/thd/cp.h), so that causal work is shared evenly; enum s2s_cp_comm says how
 * each comes to the keys of the others.
 */

/* What attention sees then: made once a batch, shared by its layers. */
struct s2s_spans_cp {
    const struct s2s_group *group;
    enum s2s_cp_comm comm;
    int64_t n;                /* rows of this rank; of every rank as many */
    struct s2s_tensor *order; /* I32 [n * R], see below; NULL for p2p */
    struct s2s_spans own;     /* all_gather: of this rank's queries; a2a: of all; p2p: at home */
    struct s2s_spans lower, higher; /* p2p: of keys that come from a rank below, or above */
    /* p2p, of layers with this window: [2 R] of the first and the second chunks that come from each
     * rank, of which our queries see those that are near; NULL: no layer has one */
    struct s2s_spans *chunks;
    int64_t window;
    struct s2s_tensor
        *k_at; /* p2p, for dropout: I32 [R, n] where the keys of each rank stand; or NULL
                */
};
/*
 * Of this rank's bounds cu (host [n_seqs + 1], all even) among its n rows; those behind the last
 * sequence see nothing. order (host [n * R], borrowed; NULL for p2p): where slot g of the whole
 * stands when the ranks' rows are laid one behind the other (s2s_thd_cp_inverse); then the rows
 * that stand in no sequence. The group is kept; alone it is s2s_op_spans.
 */
struct s2s_spans_cp s2s_op_spans_cp(struct s2s_tape *tape, const int32_t *cu, int64_t n_seqs,
                                    int64_t n, const int32_t *order, const struct s2s_group *group,
                                    enum s2s_cp_comm comm);
/* For layers with a window, of the same bounds. */
void s2s_op_spans_cp_window(struct s2s_tape *tape, struct s2s_spans_cp *cp, const int32_t *cu,
                            int64_t n_seqs, int64_t window);
/* s2s_op_attention of this rank's rows; spans are kept. Collective as those below. */
struct s2s_tensor *s2s_op_attention_cp(struct s2s_tape *tape, struct s2s_tensor *q,
                                       struct s2s_tensor *k, struct s2s_tensor *v,
                                       const struct s2s_spans_cp *spans,
                                       const struct s2s_attention_shape *shape);

/*
 * Rows traded for columns (op_trade.c): an operation that needs whole sequences, and works on heads
 * by themselves, has all rows of some heads on each rank. Made once a batch.
 */
enum { S2S_TRADE_PARTS = 4 };
struct s2s_trade {
    const struct s2s_group *group;
    int64_t n;                /* rows of this rank; of every rank as many */
    struct s2s_tensor *order; /* I32 [n * R], as that of struct s2s_spans_cp */
};
/* Columns of x next to each other of which each rank gets `width`, `sharing` ranks next to each
 * other the same ones; sharing divides the ranks. */
struct s2s_trade_part {
    int64_t width;
    int sharing;
};
/* y [n R, sum of widths]: all rows, in order, of this rank's columns of each part of x [n, ..]. */
struct s2s_tensor *s2s_op_rows_to_columns(struct s2s_tape *tape, struct s2s_tensor *x,
                                          const struct s2s_trade *trade,
                                          const struct s2s_trade_part *parts, int n_parts);
/* y [n, R cols]: this rank's rows of all ranks' columns x [n R, cols], by rank. */
struct s2s_tensor *s2s_op_columns_to_rows(struct s2s_tape *tape, struct s2s_tensor *x,
                                          const struct s2s_trade *trade);
/* Ranges of the first dimension of x, without gaps between its rows, one behind the other: what
 * such ranks use of a parameter. n of up to S2S_TRADE_PARTS, which do not overlap. */
struct s2s_range {
    int64_t begin, n;
};
struct s2s_tensor *s2s_op_ranges(struct s2s_tape *tape, struct s2s_tensor *x,
                                 const struct s2s_range *ranges, int n);

/* y = act(gate) * up; up NULL: act(gate). */
struct s2s_tensor *s2s_op_glu(struct s2s_tape *tape, struct s2s_tensor *gate, struct s2s_tensor *up,
                              enum s2s_act act);

/* ---- speech encoders: packed clips, channels last ---- */

/*
 * 3x3 convolution with stride 2 of packed images x [n, width, C or 1] (3 dimensions), zeros around:
 * [n', (width + 1) / 2, C], where a clip of n rows has (n + 1) / 2. w [C, 1, 3, 3], b [C] or NULL.
 * causal: struct s2s_k_conv2d.
 */
struct s2s_tensor *s2s_op_conv2d(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                                 struct s2s_tensor *b, const struct s2s_seqs *in,
                                 const struct s2s_seqs *out, bool relu, bool causal);
/*
 * How a convolution goes over images, of rows and of columns: taps of `size`, at every stride-th
 * place, with zeros `before` the first and `after` the last one of each image.
 */
struct s2s_conv_shape {
    int64_t stride, size[2], before[2], after[2];
};
/* Places along rows (0) or columns (1) that n of them have; none of none. */
int64_t s2s_conv_places(const struct s2s_conv_shape *shape, int axis, int64_t n);
/*
 * y [n', places of width, O] = relu(b[o] + sum over taps and channels of w x): all channels are
 * seen. x [n, width, C], w [O, C, size..] of the type of x, b [O]. Bounds of the clips in x and in
 * y are in host memory, [n_clips + 1].
 */
struct s2s_tensor *s2s_op_conv(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                               struct s2s_tensor *b, const struct s2s_conv_shape *shape,
                               const int32_t *cu_in, const int32_t *cu_out, int64_t n_clips);
/* The largest of each square of two rows and columns of a clip, of fewer at its end: half of x
 * [n, width, C] each way, rounded up. */
struct s2s_tensor *s2s_op_max_pool(struct s2s_tape *tape, struct s2s_tensor *x,
                                   const int32_t *cu_in, const int32_t *cu_out, int64_t n_clips);
/* Depthwise convolution over the rows of each sequence, zeros around; x [T, C], w [C, 1, width]
 * with width odd, b [C] or NULL. Row t sees as many rows before it as behind it, and `shift` more
 * before it (as many fewer behind it). */
struct s2s_tensor *s2s_op_dwconv(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                                 struct s2s_tensor *b, const struct s2s_seqs *seqs, int64_t shift);

/* Layer norm of rows; gain, bias [cols]. With a residual h = residual + alpha x is normed, and
 * given back in *sum, which takes over the memory of x. */
struct s2s_tensor *s2s_op_layernorm(struct s2s_tape *tape, struct s2s_tensor *x,
                                    struct s2s_tensor *gain, struct s2s_tensor *bias, float eps);
struct s2s_tensor *s2s_op_add_layernorm(struct s2s_tape *tape, struct s2s_tensor **sum,
                                        struct s2s_tensor *x, float alpha,
                                        struct s2s_tensor *residual, struct s2s_tensor *gain,
                                        struct s2s_tensor *bias, float eps);

/*
 * Batch norm of the columns of x [T, C] and silu. With `batch` the statistics are those of x, and
 * the backward pass moves the running ones, or leaves that to the end of the step (tape->running):
 * mean = (1 - momentum) mean + momentum mean(x), var likewise with the unbiased variance; so once a
 * step, however often the forward runs. Without it the running ones are used. All four vectors [C].
 */
struct s2s_batchnorm {
    struct s2s_tensor *gain, *bias, *running_mean, *running_var;
    float eps, momentum;
    bool batch;
};
struct s2s_tensor *s2s_op_batchnorm_silu(struct s2s_tape *tape, struct s2s_tensor *x,
                                         const struct s2s_batchnorm *norm);

/* y [T, C] = x[:, 0..C) * sigmoid(x[:, C..2C)) */
struct s2s_tensor *s2s_op_glu_halves(struct s2s_tape *tape, struct s2s_tensor *x);

/* Sines and cosines of the relative positions n-1 .. -(n-1), interleaved: [2n - 1, dim]. */
struct s2s_tensor *s2s_op_relpos_table(struct s2s_tape *tape, int64_t n, int64_t dim);
/*
 * Attention with relative positions in each sequence (struct s2s_k_relattention): q, k, value
 * [T, n_heads * dim], p [2 max_seqlen - 1, n_heads * dim] the projected table of the longest
 * sequence, u, v [n_heads, dim].
 */
struct s2s_relattention_inputs {
    struct s2s_tensor *q, *k, *value, *p, *u, *v;
    struct s2s_dropout dropout; /* of what queries see; its first is a head */
    struct s2s_reach reach;     /* chunk 0: every key of their sequence */
};
struct s2s_tensor *s2s_op_relattention(struct s2s_tape *tape,
                                       const struct s2s_relattention_inputs *in,
                                       const struct s2s_seqs *seqs);

/* ---- image encoders (op_vision.c) ---- */

/* For each of n rows up to n_sources rows of a table and their weights; host memory, borrowed for
 * the call. A negative index adds nothing. */
struct s2s_row_mix {
    int64_t n, n_sources;
    const int32_t *idx;   /* [n, n_sources] */
    const float *weights; /* [n, n_sources] */
};
/* y[i] = x[i] + the sum over j of weights[i, j] table[idx[i, j]]: positions of which a table has
 * those of another size. Takes over the memory of x. */
struct s2s_tensor *s2s_op_add_mixed_rows(struct s2s_tape *tape, struct s2s_tensor *x,
                                         struct s2s_tensor *table, const struct s2s_row_mix *mix);
/* y = x with column i times gain[i]. Takes over the memory of x where the gain is not trained. */
struct s2s_tensor *s2s_op_scale_columns(struct s2s_tape *tape, struct s2s_tensor *x,
                                        struct s2s_tensor *gain);

/* ---- collectives: operations in conjugate pairs (op_comm.c) ---- */

/*
 * Each is collective over the group, in its forward and in its backward, which runs also where no
 * gradient flowed in. At size 1 (or without a group) it gives x back and records nothing. x is a
 * matrix without gaps.
 */

/* y is x; its gradient is summed over the group: in front of what each rank has its own part of. */
struct s2s_tensor *s2s_op_copy_to_group(struct s2s_tape *tape, struct s2s_tensor *x,
                                        const struct s2s_group *group);
/* y is the sum of x over the group; every rank's gradient passes as it is. Takes over the memory of
 * x. */
struct s2s_tensor *s2s_op_all_reduce(struct s2s_tape *tape, struct s2s_tensor *x,
                                     const struct s2s_group *group);
/* y [size * n, cols] is every rank's x [n, cols], by rank; the gradient of a rank's rows is the sum
 * of what all ranks have for them, or, with `same`, this rank's: all ranks use y in the same way.
 */
struct s2s_tensor *s2s_op_all_gather(struct s2s_tape *tape, struct s2s_tensor *x,
                                     const struct s2s_group *group, bool same);
/* y [n, cols] is this rank's part of the sum of x [size * n, cols]; gradients are gathered. */
struct s2s_tensor *s2s_op_reduce_scatter(struct s2s_tape *tape, struct s2s_tensor *x,
                                         const struct s2s_group *group);
/*
 * Linear maps whose rows are cut over ranks, outside (op_linear_sp.c). What all ranks' rows are is
 * known while it is computed, and again in the backward; the tape keeps each rank's own.
 *
 * out[i] [size * rows, ..] = x' w[i]^T + b[i] of every rank's rows x', by rank; n of up to 3. The
 * gradient of a rank's rows is the sum of what all ranks have for them.
 */
void s2s_op_gather_linear(struct s2s_tape *tape, struct s2s_tensor *x,
                          const struct s2s_group *group, int n, struct s2s_tensor *const *w,
                          struct s2s_tensor *const *b, struct s2s_tensor **out);
/* y [rows / size, out] is this rank's part of the sum over the ranks of x w^T. */
struct s2s_tensor *s2s_op_linear_scatter(struct s2s_tape *tape, struct s2s_tensor *x,
                                         struct s2s_tensor *w, const struct s2s_group *group);
/* Rows of x for each rank, one after the other, go there; y holds what came, by rank. send, recv:
 * numbers of rows [size], borrowed. The gradient goes back the same way. */
struct s2s_tensor *s2s_op_all_to_all(struct s2s_tape *tape, struct s2s_tensor *x,
                                     const struct s2s_group *group, const int64_t *send,
                                     const int64_t *recv);

/*
 * Columns of the ranks [first, first + n) of the group side by side (op_columns.c): y [rows, sum of
 * widths] of each one's x [rows, its width]. This rank is one of them, and only they talk. widths
 * [n], borrowed. The gradient of a rank's columns is the sum of what all of them have for it.
 */
struct s2s_columns_of {
    const struct s2s_group *group;
    int first, n;
    const int64_t *widths;
};
struct s2s_tensor *s2s_op_gather_columns(struct s2s_tape *tape, struct s2s_tensor *x,
                                         const struct s2s_columns_of *ranks);

/* ---- mixtures of experts (op_moe.c) ---- */

/* How a router chooses (struct s2s_k_route). */
struct s2s_router {
    int64_t n_experts, n_chosen;
    int64_t n_groups, n_chosen_groups, n_group_best; /* n_groups 0: no groups */
    enum s2s_score score;
    bool normalise;
    float scale;
};

/* Where T rows go, each to K of E experts: I32, sorted by expert. */
struct s2s_routes {
    struct s2s_tensor *weights; /* [T, K] */
    struct s2s_tensor *experts; /* [T K] */
    struct s2s_tensor *places;  /* [T K] of each choice: its row among those that are sorted */
    struct s2s_tensor *rows;    /* [T K] of each of these: the row that it is a copy of */
    struct s2s_tensor *offsets; /* [E + 1] where each expert's begin */
    int64_t n, n_chosen, n_experts;
};
/* logits [T, E]; bias [E] or NULL takes part in the choice alone. Gradients reach the logits by the
 * weights. */
struct s2s_routes s2s_op_route(struct s2s_tape *tape, struct s2s_tensor *logits,
                               struct s2s_tensor *bias, const struct s2s_router *router);
/* y [T K, cols]: rows of x [T, cols], by expert. */
struct s2s_tensor *s2s_op_dispatch(struct s2s_tape *tape, struct s2s_tensor *x,
                                   const struct s2s_routes *routes);
/* y [T, cols]: of each row the weighted sum of its rows in x [T K, cols], in the order of its
 * choices. Of one x once. */
struct s2s_tensor *s2s_op_combine(struct s2s_tape *tape, struct s2s_tensor *x,
                                  const struct s2s_routes *routes);
/* y [rows, out] = x w_e^T for the rows offsets[e] .. offsets[e + 1] of x [rows, in], w_e [out, in]
 * the e-th of the stack. offsets I32 [n + 1]; they leave no row out. */
struct s2s_tensor *s2s_op_grouped_linear(struct s2s_tape *tape, struct s2s_tensor *x,
                                         const struct s2s_stack *w, struct s2s_tensor *offsets);

/*
 * Experts on the ranks of a group, E / size next to each other on each. What a rank has to know of
 * the others' routes: numbers of rows on the host, and the order of what comes.
 */
struct s2s_expert_rows {
    const int64_t *send, *recv; /* [size] rows to and from each rank, in the tape's memory */
    struct s2s_tensor *order;   /* I32 [rows that come]: sorted by this rank's experts */
    struct s2s_tensor *back;    /* the way back */
    struct s2s_tensor *offsets; /* I32 [E / size + 1] of the sorted ones */
};
/* Collective, and the one place of a forward where the host waits for the device. On a table that
 * counts, which has no counts to read, all experts get as many rows. */
struct s2s_expert_rows s2s_op_expert_rows(struct s2s_tape *tape, const struct s2s_routes *routes,
                                          const struct s2s_group *group);

/*
 * Losses of balance (struct s2s_k_router_load) as a side of the logits [T, E], which are given back
 * as they are: the backward adds the gradient of balance losses[0] + square losses[1], and, once a
 * backward, the losses to `losses`, however often a segment runs.
 */
struct s2s_balance {
    struct s2s_tensor *segments; /* I32 [T]; NULL: one */
    int64_t n_segments;
    float balance, square;         /* factors of the losses, with the seed of the step */
    const struct s2s_group *group; /* whose ranks have other rows of the same segments, or NULL */
    double *losses;                /* [3] device memory; NULL: not wanted */
    bool over_step; /* by the counts of a mean microbatch since the step began, which `load` has */
};
struct s2s_tensor *s2s_op_balance(struct s2s_tape *tape, struct s2s_tensor *logits,
                                  const struct s2s_router *router,
                                  const struct s2s_balance *balance, struct s2s_load *load);
/* Adds what the routes chose to the load, for the bias of the choice; rows [T]: a negative one does
 * not count, NULL: all do. Once a pass: only on a tape that records. */
void s2s_op_count_routes(struct s2s_tape *tape, const struct s2s_routes *routes,
                         const struct s2s_tensor *rows, struct s2s_load *load);

/*
 * ---- state-space models: Mamba2 (op_ssm.c) ----
 *
 * Sequences of x may begin and end with a state: `initial` (NULL: zeros), and `final`, NULL where
 * it is not wanted. *final NULL becomes a new tensor; on a tape that does not record it may be a
 * tensor of the caller's to write to, also `initial`: a step of generation is sequences of one row.
 * Rows of x behind the last sequence give zeros.
 */

/* y [T, C]: each channel convolved with its last `width` inputs; w [C, 1, width] F32, b [C] or
 * NULL; silu: y = silu of it. States [n_seqs * (width - 1), C] are the last inputs, of x's dtype.
 */
struct s2s_tensor *s2s_op_conv1d(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                                 struct s2s_tensor *b, const struct s2s_seqs *seqs, bool silu,
                                 struct s2s_tensor *initial, struct s2s_tensor **final);

/* What the scan reads (struct s2s_k_ssd): x [T, n_heads * dim], dt [T, n_heads], b, c
 * [T, n_groups * state]; a_log, dt_bias, skip [n_heads] F32, the last two or NULL. */
struct s2s_ssd_inputs {
    struct s2s_tensor *x, *dt, *b, *c, *a_log, *dt_bias, *skip;
    struct s2s_tensor *initial; /* F32 [n_seqs, n_heads, dim, state] or NULL */
};
struct s2s_ssd_shape {
    int64_t n_heads, n_groups, dim, state;
    float dt_min; /* the least step: Hugging Face's time_step_min; 0 as Megatron: no least */
};
/* y [T, n_heads * dim] */
struct s2s_tensor *s2s_op_ssd(struct s2s_tape *tape, const struct s2s_ssd_inputs *in,
                              const struct s2s_ssd_shape *shape, const struct s2s_seqs *seqs,
                              struct s2s_tensor **final);

/* y [T, cols] = RMS norm of x silu(z), over each of n_groups equal parts of a row; gain [cols]. */
struct s2s_tensor *s2s_op_gatednorm(struct s2s_tape *tape, struct s2s_tensor *x,
                                    struct s2s_tensor *z, struct s2s_tensor *gain, int64_t n_groups,
                                    float eps);

/* x [T, a, b] -> [T, b * a], every row transposed. */
struct s2s_tensor *s2s_op_transpose(struct s2s_tape *tape, struct s2s_tensor *x);

/*
 * Cross entropy of the logits x w^T, summed over the rows whose label is not negative: a F64
 * scalar. labels are host int32 [T] (borrowed for the call). Logits exist for a slice of rows at a
 * time; rows without label cost nothing. On a recording tape the gradients, times `seed`, are
 * computed in this same pass (those of w are added to its bucket at once), so call it only when
 * s2s_tape_backward follows. hits (NULL: not wanted) becomes a F64 scalar: how many labels have the
 * largest logit.
 */
struct s2s_tensor *s2s_op_linear_xent(struct s2s_tape *tape, struct s2s_tensor *x,
                                      struct s2s_tensor *w, const int32_t *labels, double seed,
                                      struct s2s_tensor **hits);

/* All n_classes, of which each rank of a group has a part: s2s_cut_begin (param.h) says which. */
struct s2s_classes {
    const struct s2s_group *group; /* NULL, or of size 1: all are here */
    int64_t n;
};
/*
 * The same where w [this rank's classes, width] is a part of the output matrix: labels are those of
 * all classes, x and the loss are the same on all ranks. The gradient of x is a part of its sum:
 * let x come through s2s_op_copy_to_group or s2s_op_all_gather. Collective over the group, whose
 * ranks all have the same labels. rows (NULL: not wanted) becomes F32 [T, 1]: the loss of each row,
 * 0 where it has no label.
 */
struct s2s_tensor *s2s_op_linear_xent_of(struct s2s_tape *tape, struct s2s_tensor *x,
                                         struct s2s_tensor *w, const struct s2s_classes *classes,
                                         const int32_t *labels, double seed,
                                         struct s2s_tensor **hits, struct s2s_tensor **rows);

/*
 * Log-probability of each row's label under softmax(x w^T): [T, 1], 0 where the label (host int32
 * [T], borrowed) is negative. For losses that are no sum of them (preferences, policy gradients):
 * its backward takes any gradient, and computes the logits again, a slice of rows at a time.
 */
struct s2s_tensor *s2s_op_linear_logprob(struct s2s_tape *tape, struct s2s_tensor *x,
                                         struct s2s_tensor *w, const int32_t *labels);

/* 0.5 sum (x - target)^2 as a F64 scalar, gradient times `seed`; target has the shape of x. */
struct s2s_tensor *s2s_op_sqdist(struct s2s_tape *tape, struct s2s_tensor *x,
                                 struct s2s_tensor *target, double seed);

#endif
