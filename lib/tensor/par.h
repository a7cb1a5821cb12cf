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

struct s2s_queue;

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

/* One message of an exchange. */
struct s2s_transfer {
    void *buf; /* [n], read when it is sent, written when it is received */
    int64_t n;
    enum s2s_dtype dtype;
    int peer;  /* rank within the group; may be one's own */
    bool send; /* to the peer; else from it */
};

/*
 * Collective over the group, in the same order on all its ranks. Buffers are device memory, counts
 * are elements and may be 0. An operation comes after what was issued to the queue before it, and
 * what is issued to the queue after it sees its result; the caller does not wait for that. A
 * failure ends the job (mesh names rank, step and operation), so nothing is returned.
 *
 * A started operation may run beside later work of the queue. Its buffers are its own until wait,
 * which orders the queue's later work after it; each ticket is waited for once, in any order.
 */
struct s2s_group_ops {
    /* Name of the kernel table ("cpu") whose memory the buffers are: a group for tensors. What is
     * no tensor (control data in host memory) goes through mesh's communicators instead. */
    const char *memory;
    /* in place */
    void (*all_reduce)(const struct s2s_group *group, struct s2s_queue *queue, void *buf, int64_t n,
                       enum s2s_dtype dtype, enum s2s_group_op op);
    /* recv [size * n]; send may be its place in recv */
    void (*all_gather)(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                       const void *send, int64_t n, enum s2s_dtype dtype);
    /* counts [size], the same on all ranks; parts stand one after the other in recv */
    void (*all_gatherv)(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                        const void *send, const int64_t *counts, enum s2s_dtype dtype);
    /* send [size * n], recv [n]: the sum of everybody's part for this rank; recv may be that part
     * of send */
    void (*reduce_scatter)(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                           const void *send, int64_t n, enum s2s_dtype dtype);
    /* counts [size] each way; parts one after the other */
    void (*all_to_all)(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                       const int64_t *recv_counts, const void *send, const int64_t *send_counts,
                       enum s2s_dtype dtype);
    void (*broadcast)(const struct s2s_group *group, struct s2s_queue *queue, void *buf, int64_t n,
                      enum s2s_dtype dtype, int root);
    /* Of the ranks named in each other's lists alone. All messages are posted together, so ranks
     * that send to each other do not block each other; between two ranks, the messages one way are
     * received in the order in which they were sent. A length that differs is a failure. */
    void (*exchange)(const struct s2s_group *group, struct s2s_queue *queue,
                     const struct s2s_transfer *list, int n);

    /* As above; each returns its ticket, above 0. */
    int64_t (*start_all_reduce)(const struct s2s_group *group, struct s2s_queue *queue, void *buf,
                                int64_t n, enum s2s_dtype dtype, enum s2s_group_op op);
    int64_t (*start_all_gather)(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                                const void *send, int64_t n, enum s2s_dtype dtype);
    int64_t (*start_reduce_scatter)(const struct s2s_group *group, struct s2s_queue *queue,
                                    void *recv, const void *send, int64_t n, enum s2s_dtype dtype);
    int64_t (*start_exchange)(const struct s2s_group *group, struct s2s_queue *queue,
                              const struct s2s_transfer *list,
                              int n); /* the list is read at once */
    void (*wait)(const struct s2s_group *group, struct s2s_queue *queue, int64_t ticket);
    /* Collective, any number of times: started operations run beside the computation from here on,
     * where that must be arranged for (a thread, a communicator). NULL: nothing has to be. */
    void (*run_beside)(const struct s2s_group *group);
};

/*
 * How ranks that each hold some chunks of every sequence come to the keys of the others, in
 * Megatron's words (cp_comm_type):
 *   all_gather  keys and values of all ranks, gathered again for the backward
 *   a2a         rows are traded for heads, so that each rank has some heads of everything; both
 *               numbers of heads are multiples of the ranks'
 *   p2p         keys and values go round a ring while those at hand are computed with; what each
 *               gave is merged by the log-sum-exps. Without a window
 * Source: Liu et al. 2023, "Ring attention"; Jacobs et al. 2023, "DeepSpeed Ulysses"; the first is
 * TransformerEngine's.
 */
enum s2s_cp_comm { S2S_CP_ALL_GATHER, S2S_CP_ALL_TO_ALL, S2S_CP_P2P };

/* What a layer is built for. All NULL is one process. */
struct s2s_par {
    const struct s2s_group *tp, *cp, *ep, *etp;
    const struct s2s_group *tokens; /* who has other tokens of the same packs: cp, with sp tp too */
    const struct s2s_group *batch;  /* who has other tokens: of other packs, too */
    enum s2s_cp_comm cp_comm;
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
