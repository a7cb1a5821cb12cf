/*
 * Clips shared out over ranks that all have the same list of them: each runs an encoder over its
 * own, and everybody gets what came of all. Rank r of R has clips [r per, (r + 1) per), per =
 * ceil(n / R); the last ranks may have none, and take part with nothing.
 */
#ifndef S2S_NN_SPREAD_H
#define S2S_NN_SPREAD_H

#include "lib/tensor/ops.h"

/* [*begin, *end) of n clips. Without a group: all. */
void s2s_nn_spread(int64_t *begin, int64_t *end, int64_t n, const struct s2s_group *group);

/*
 * x [rows of this rank's clips, cols] -> those of all n clips, in their order. rows: host [n] of
 * each clip, the same on all ranks. The gradient of a clip's rows is the sum of what all ranks have
 * for them. Collective; without a group x.
 */
struct s2s_tensor *s2s_nn_spread_gather(struct s2s_tape *tape, struct s2s_tensor *x,
                                        const int32_t *rows, int64_t n,
                                        const struct s2s_group *group);

#endif
