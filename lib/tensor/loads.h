/*
 * How many rows chose each expert, over the microbatches of a step: what moves the biases of the
 * choice at its end (Megatron's expert bias), and what a loss over the load of the step goes by
 * (its global auxiliary loss).
 *
 *     s2s_loads_begin(loads);
 *     for (each microbatch) { ... s2s_op_balance, s2s_op_count_routes: struct s2s_balance.loads }
 *     s2s_loads_end(loads, groups, n_groups, rate);
 */
#ifndef S2S_TENSOR_LOADS_H
#define S2S_TENSOR_LOADS_H

#include "lib/tensor/param.h"

/* Of one router. */
struct s2s_load {
    const struct s2s_param *gate;
    struct s2s_param *bias; /* that moves; NULL: there is none, or it is frozen */
    int64_t n_experts;
    float *routed;  /* [n_experts] device memory: really chosen, on this rank */
    float *wanted;  /* [n_experts] the largest probabilities, on all ranks that have other tokens */
    int64_t n_seen; /* microbatches in wanted */
};

struct s2s_loads {
    struct s2s_device *device; /* kept */
    struct s2s_load *list;     /* [n] */
    int64_t n, n_counts;
    struct s2s_arena arena;
    float *counts; /* [2 n_counts]: routed of all routers, then wanted */
};

/* Of the routers that are here, in a finished registry (kept). Gives: s2s_loads_free. */
struct s2s_loads *s2s_loads_new(struct s2s_params *params);
void s2s_loads_free(struct s2s_loads *loads); /* NULL is a no-op */

void s2s_loads_begin(struct s2s_loads *loads);
/* That of the router whose matrix this is. */
struct s2s_load *s2s_loads_find(const struct s2s_loads *loads, const struct s2s_param *gate);
/*
 * Moves each bias by `rate` towards an even load of all ranks of the groups, whose counts are
 * summed over one after the other. Ranks that have the same rows may be among them: only the sign
 * of a difference counts. Collective over the groups.
 */
void s2s_loads_end(struct s2s_loads *loads, const struct s2s_group *const *groups, int n_groups,
                   float rate);

#endif
