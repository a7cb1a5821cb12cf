/* Arguments of attention and of the positions that go into it. */
#ifndef S2S_KERNELS_ATTENTION_H
#define S2S_KERNELS_ATTENTION_H

#include "kernels/random.h"

/* table[t] = factor (cos(p_t w_0).. cos(p_t w_{d/2-1}), sin(p_t w_0)..): [n, dim]; angles in
 * double. dim is that of what is rotated. */
struct s2s_k_rope_table {
    const int32_t *positions; /* [n] */
    const double *inv_freq;   /* [dim / 2] */
    float *table;
    int64_t n, dim;
    double factor; /* of attention (yarn); 1: a rotation */
};

/*
 * Half-split rotation of the first rotary_dim components of every head, pairs (i, i + d/2); the
 * others stay. y may be x. transposed: by the transpose of the matrix (the backward), which for a
 * factor of 1 rotates back.
 */
struct s2s_k_rope {
    struct s2s_mat x, y; /* [n, n_heads * dim] */
    const float *table;  /* [n, rotary_dim] */
    int64_t n, n_heads, dim, rotary_dim;
    bool transposed, accumulate;
};

/*
 * Queries q0 .. q0+nq and the keys k0 .. k0+nk that they see: query i of the span sees key j of it
 * where j <= i + shift; all of them with S2S_SPAN_ALL. A packed sequence of one device is one span
 * (its last query sees its last key: shift = nk - nq); where a device holds some chunks of a
 * sequence, each is one, and their keys overlap. nq and nk may be 0, shift may be negative.
 */
struct s2s_span {
    int32_t q0, nq, k0, nk, shift;
};
enum { S2S_SPAN_ALL = INT32_MAX };

/*
 * Attention of packed sequences, span by span. Query head h uses kv head h / (n_heads /
 * n_kv_heads).
 *   o = softmax(scale q k^T) v,  lse[t, h] = log-sum-exp of the scaled scores (NULL: not wanted)
 * With a window, keys j <= i + shift - window are not seen either (but by spans of S2S_SPAN_ALL).
 * A query that sees nothing, or stands in no span, has o = 0 and lse = -inf.
 *
 * Queries of two spans do not overlap; keys of two groups do not either. A group is spans
 * groups[g] .. groups[g+1], which add to the gradients of their keys in this order. kernels/spans.h
 * makes both.
 *
 * With draw.rows, o = dropout(softmax(..)) v: of query i and
 * head h what it sees of key j is element k_at[j] of plane 1 + first_head + h.
 */
struct s2s_k_attention {
    struct s2s_mat q, k, v, o;    /* q, o [n_q, n_heads * dim]; k, v [n_k, n_kv_heads * dim] */
    float *lse;                   /* [n_q, n_heads] */
    const struct s2s_span *spans; /* [n_spans] */
    const int32_t *groups;        /* [n_groups + 1] */
    int64_t n_spans, n_groups, n_q, n_k, n_heads, n_kv_heads, dim;
    int64_t max_q, max_k; /* no span has more */
    int64_t window;       /* 0: none */
    float scale;
    struct s2s_draw draw; /* its rows [n_q, 2] */
    const int32_t *k_at;  /* [n_k] where each key stands in its sample */
    int64_t first_head;   /* of all heads, that is the first one here */
    void *workspace;      /* attention_workspace bytes */
};

/*
 * Reads q k v o lse dO (in `d_o`), writes or adds to dq dk dv; P is computed again from lse. Rows
 * that stand in no span get nothing: 0, or what was there. partial: the queries see other keys as
 * well, which are not in this call; o and lse are over all of them.
 */
struct s2s_k_attention_backward {
    struct s2s_k_attention forward;
    struct s2s_mat d_o, dq, dk, dv;
    bool accumulate_dq, accumulate_dk, accumulate_dv, partial;
    void *workspace; /* attention_backward_workspace bytes */
};

/*
 * What the same queries see among two sets of keys becomes what they see among both: with a, b the
 * lse and part_lse of a query and head, and l = log(e^a + e^b),
 *   o = e^(a-l) o + e^(b-l) part,  lse = l
 * A lse of -inf stands for no key.
 */
struct s2s_k_attention_merge {
    struct s2s_mat o, part; /* [n_q, n_heads * dim] */
    float *lse;             /* [n_q, n_heads] */
    const float *part_lse;  /* [n_q, n_heads] */
    int64_t n_q, n_heads, dim;
};

/* table[i] of the relative position r = n-1-i, i in [0, 2n-1): sin(r w_0), cos(r w_0), sin(r
 * w_1).., w_m = 10000^(-2m/dim); angles in double */
struct s2s_k_relpos_table {
    float *table; /* [2n - 1, dim] */
    int64_t n, dim;
};

/*
 * Which keys of its clip a query sees, by their places in it: query i, in the chunk that begins at
 * c = i - i mod chunk, those from c - before on and below c + chunk + after. chunk 0: all of them.
 * NeMo's att_context_size [left, right] is {1, left, right} of style regular, and {right + 1, left,
 * 0} of chunked_limited, where right + 1 divides left; S2S_REACH_ALL is its -1.
 */
struct s2s_reach {
    int64_t chunk, before, after;
};
enum { S2S_REACH_ALL = INT32_MAX };

/* The first key that query i of a clip of n sees, and the one behind the last. */
static inline int64_t s2s_reach_begin(const struct s2s_reach *reach, int64_t i)
{
    const int64_t first = reach->chunk > 0 ? i / reach->chunk * reach->chunk - reach->before : 0;
    return first > 0 ? first : 0;
}

static inline int64_t s2s_reach_end(const struct s2s_reach *reach, int64_t i, int64_t n)
{
    const int64_t end = reach->chunk > 0 ? (i / reach->chunk + 1) * reach->chunk + reach->after : n;
    return end < n ? end : n;
}

/*
 * Attention with relative positions inside each clip, every query sees the keys of it that its
 * reach says:
 *   S_ij = scale ((q_i + u) . k_j + (q_i + v) . p_{i-j}),  o = softmax(S) value
 * p holds the projected table of max_seqlen: row max_seqlen - 1 - i + j is that of i - j. Dropout
 * is as that of attention; a key's element is its place in its clip.
 */
struct s2s_k_relattention {
    struct s2s_mat q, k, value, o; /* [n, n_heads * dim] */
    struct s2s_mat p;              /* [2 max_seqlen - 1, n_heads * dim] */
    const float *u, *v;            /* [n_heads, dim] */
    float *lse;                    /* [n, n_heads]; NULL: not wanted */
    const int32_t *cu;             /* [n_seqs + 1] */
    int64_t n_seqs, n_heads, dim, max_seqlen;
    float scale;
    struct s2s_draw draw; /* its rows [n, 2] */
    int64_t first_head;
    struct s2s_reach reach;
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

#endif
