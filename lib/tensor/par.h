/*
 * The process groups a layer may talk to. lib/tensor knows only this table of functions; lib/mesh
 * fills it with what the launcher offers, so that no layer depends on MPI. A NULL group, or one of
 * size 1, makes every collective a no-op that records nothing.
 */
#ifndef S2S_TENSOR_PAR_H
#define S2S_TENSOR_PAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

/* What ranks are laid out along: the axes of a grid, and of the cuts of a parameter. In a grid of
 * experts the axis tp is Megatron's etp, and cp is 1. */
enum s2s_axis {
    S2S_AXIS_NONE = -1,
    S2S_AXIS_TP,
    S2S_AXIS_CP,
    S2S_AXIS_EP,
    S2S_AXIS_DP,
    S2S_AXIS_PP,
    S2S_AXES
};

#define S2S_AXIS_BIT(axis) (1u << (axis))

enum s2s_group_op { S2S_GROUP_SUM, S2S_GROUP_MAX };

/* One group as its member sees it. */
struct s2s_group {
    const char *axis; /* "tp" */
    int size, rank;   /* rank within the group */
    const struct s2s_group_ops *ops;
    void *impl; /* of who filled it in */
};

/* Collective over the group, on device memory, in the order of the calls. A failure ends the job
 * (mesh names rank, step and operation), so nothing is returned. Counts are elements. */
struct s2s_group_ops {
    void (*all_reduce)(const struct s2s_group *group, void *buf, int64_t n, enum s2s_dtype dtype,
                       enum s2s_group_op op);
    /* recv [size * n] */
    void (*all_gather)(const struct s2s_group *group, void *recv, const void *send, int64_t n,
                       enum s2s_dtype dtype);
    /* send [size * n], recv [n] */
    void (*reduce_scatter)(const struct s2s_group *group, void *recv, const void *send, int64_t n,
                           enum s2s_dtype dtype);
    /* counts and offsets [size] each way, in elements */
    void (*all_to_all)(const struct s2s_group *group, void *recv, const int64_t *recv_counts,
                       const void *send, const int64_t *send_counts, enum s2s_dtype dtype);
};

/* What a layer is built for. All NULL is one process. */
struct s2s_par {
    const struct s2s_group *tp, *cp, *ep, *etp, *fsdp;
    bool sp; /* activations between tp regions are cut along the tokens */
};

static inline int s2s_group_size(const struct s2s_group *group)
{
    return group ? group->size : 1;
}

static inline int s2s_group_rank(const struct s2s_group *group)
{
    return group ? group->rank : 0;
}

#endif
