/* Tiles of queries that meet a tile of keys, as the gradients of keys and values go over them. */
#ifndef S2S_KERNELS_CUDA_ATTENTION_PAIRS_H
#define S2S_KERNELS_CUDA_ATTENTION_PAIRS_H

#include "kernels/cuda/attention_tile.h"

/* One tile of queries on the way of a block. */
struct keys_step {
    int row, n_rows, head; /* first query in memory; how many from there; n_rows 0: the end */
    int i, j;              /* the same query, and the block's first key, of the span's */
    int nk, shift;
};

/* Do queries i .. i + n see keys j .. j + m: none of them 0, all of them 2? */
static __device__ __forceinline__ int sees(const att_problem &p, const keys_step *step, int i,
                                           int n, int j, int m)
{
    if (j >= step->nk || j + m <= 0)
        return 0;
    int all = j >= 0 && j + m <= step->nk;
    if (step->shift != S2S_SPAN_ALL) {
        const int last = i + step->shift; /* that the first query sees */
        if (j > last + n - 1 || (p.window && j + m - 1 <= last - p.window))
            return 0;
        all = all && j + m - 1 <= last && (!p.window || j > last + n - 1 - p.window);
    }
    return 1 + all;
}

#endif
