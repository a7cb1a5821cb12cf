/* Arguments of kernels that choose rows by number. */
#ifndef S2S_KERNELS_ROWS_H
#define S2S_KERNELS_ROWS_H

#include "kernels/types.h"

/* y[i] = scale * table[id[i]]; a row whose id is negative is zero. */
struct s2s_k_embedding {
    struct s2s_mat table, y; /* [n_rows, cols], [n, cols] */
    const int32_t *ids;      /* [n], below n_rows */
    int64_t n, cols;
    float scale;
};

/*
 * dtable[rows[r]] += scale * dy[order[i]], for i of starts[r] .. starts[r+1] in this order: tokens
 * sorted by their ids, so that each row has one writer. Tokens that are not named give nothing.
 * dtable is F32.
 */
struct s2s_k_embedding_backward {
    struct s2s_mat dtable, dy; /* [n_rows, cols], [n, cols] */
    const int32_t *rows;       /* [n_ids], differing from each other */
    const int32_t *starts;     /* [n_ids + 1] */
    const int32_t *order;      /* [starts[n_ids]], rows of dy */
    int64_t n_ids, cols;
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
 * dst[i] (+)= sum over j of weight[i, j] src[idx[i, j]], in the order of j; negative: nothing is
 * added. Indices may repeat: with idx the places where row i went, this is the transpose of a
 * gather, and the combination of what experts made of a token.
 */
struct s2s_k_rows_sum {
    struct s2s_mat dst, src;
    const int32_t *idx;   /* [n, n_sources] */
    const float *weights; /* [n, n_sources]; NULL: 1 */
    int64_t n, n_sources, cols;
    bool accumulate;
};

/*
 * Of a sum whose indices differ from each other, negative ones left out:
 *   dsrc[idx[i, j]] = weights[i, j] ddst[i]
 *   dweights[i, j]  = the sum over columns of ddst[i] src[idx[i, j]]  (0 where idx is negative)
 * Rows that no index names stay as they are.
 */
struct s2s_k_rows_sum_backward {
    struct s2s_mat src, ddst, dsrc; /* dsrc.data NULL: not wanted */
    const int32_t *idx;             /* [n, n_sources] */
    const float *weights;           /* [n, n_sources]; NULL: 1 */
    float *dweights;                /* [n, n_sources]; NULL: not wanted, and src is not read */
    int64_t n, n_sources, cols;
};

/* dst[i] = the largest of src[idx[i, j]], element by element, negative indices left out; 0 where no
 * index is left. */
struct s2s_k_rows_max {
    struct s2s_mat dst, src;
    const int32_t *idx; /* [n, n_sources] */
    int64_t n, n_sources, cols;
};

/*
 * Of a maximum whose indices differ from each other, negative ones left out: the first source that
 * has it gets the gradient, element by element, and the others 0:
 *   dsrc[idx[i, j]] (+)= src[idx[i, j]] is the first of the largest ? ddst[i] : 0
 * Rows that no index names stay as they are. Of the forward dst is not read.
 */
struct s2s_k_rows_max_backward {
    struct s2s_k_rows_max forward;
    struct s2s_mat ddst, dsrc;
    bool accumulate;
};

#endif
