/*
 * Dynamic batching, the other way of saving padding: of each global batch the samples of like
 * length share a padded microbatch. Samples are sorted by length, the shortest first, and dealt out
 * to the data-parallel ranks in turn; all ranks cut their rows at the same places, so that every
 * microbatch of all of them is as long and none waits for another.
 *
 * Source: BatchedDataDict.shard_by_batch_size of NeMo-RL with dynamic_batching_args.
 */
#ifndef S2S_THD_DYNAMIC_H
#define S2S_THD_DYNAMIC_H

#include <stddef.h>
#include <stdint.h>

struct s2s_error;

struct s2s_dynamic_options {
    int64_t max_tokens; /* rows times length of a microbatch at most */
    int64_t round;      /* lengths are rounded up to this; at least 1 */
    int64_t width;      /* but to no more than this, what a row holds; 0: no bound */
    int64_t dp_size;    /* at least 1 */
};

#define S2S_DYNAMIC_OPTIONS_DEFAULT \
    { \
        .round = 1, .dp_size = 1 \
    }

/* Microbatch m of rank r is order[(begin[m] + i) * dp_size + r] for i below begin[m + 1] -
 * begin[m], rows of len[m] slots. */
struct s2s_dynamic {
    uint32_t *order; /* [n], indices of lengths */
    size_t *begin;   /* [n_micro + 1] */
    int32_t *len;    /* [n_micro] */
    size_t n, n_micro;
};

/* lens [n] of one global batch, borrowed. RANGE: a length that max_tokens cannot hold (names the
 * index), or is negative; SHAPE: dp_size does not divide n. Gives: s2s_dynamic_release. */
int s2s_thd_dynamic(struct s2s_dynamic *out, const int32_t *lens, size_t n,
                    const struct s2s_dynamic_options *opt, struct s2s_error *err);
void s2s_dynamic_release(struct s2s_dynamic *out);

#endif
