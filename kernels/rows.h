/* Arguments of kernels that choose rows by number. */
#ifndef S2S_KERNELS_ROWS_H
#define S2S_KERNELS_ROWS_H

#include "kernels/types.h"

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

#endif
