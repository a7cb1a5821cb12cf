/*
 * What ranks that each have a device talk by, where a table has it: operations between the memories
 * of several devices, in the order of their queues. lib/mesh makes its groups of tensors of this;
 * who is a rank, and what ranks say to each other to begin with, is lib/mesh's.
 *
 * A call that can fail gives 0, or a status for status_text.
 */
#ifndef S2S_KERNELS_COLLECTIVES_H
#define S2S_KERNELS_COLLECTIVES_H

#include "kernels/types.h"

struct s2s_event;
struct s2s_link; /* one rank's end of a communicator; the table's own */

enum s2s_link_kind {
    S2S_LINK_ALL_REDUCE,
    S2S_LINK_ALL_GATHER,
    S2S_LINK_REDUCE_SCATTER,
    S2S_LINK_BROADCAST,
    S2S_LINK_EXCHANGE
};

struct s2s_link_message {
    void *buf; /* device memory */
    size_t len_bytes;
    int peer; /* may be the rank itself, if both ends are in one list */
    bool send;
};

/* Buffers are device memory and may be in place as par.h of lib/tensor says. Of an exchange the
 * list counts alone. */
struct s2s_link_call {
    enum s2s_link_kind kind;
    void *recv; /* of an all-reduce and a broadcast the only buffer */
    const void *send;
    int64_t n; /* elements: of the buffer, or of the part of each rank; the same on all ranks */
    enum s2s_dtype dtype;
    bool max; /* an all-reduce gives the largest, not the sum */
    int root;
    const struct s2s_link_message *list;
    int n_list;
};

enum { S2S_LINK_ID_BYTES = 128, S2S_DEVICE_ID_BYTES = 32 };

struct s2s_collectives {
    const char *name; /* of the library: "NCCL" */
    /* Loads the library. version: major, minor and patch as 10000, 100 and 1. */
    int (*load)(int *version);
    const char *(*status_text)(int status); /* valid until the next failure */

    /* Which device the queue is of, among all of its host. */
    void (*device_id)(const struct s2s_queue *queue, char id[S2S_DEVICE_ID_BYTES]);
    /* Whether the user asks for several ranks on one device, and the library can do it. */
    bool (*may_share)(void);

    /* A new communicator's name, which one rank makes for all. */
    int (*make_id)(char id[S2S_LINK_ID_BYTES]);
    /* Collective over the ranks, waits for all. id NULL: one rank, which needs no library. Gives:
     * close. */
    int (*open)(struct s2s_link **link, struct s2s_queue *queue, const char *id, int n_ranks,
                int rank);
    void (*close)(struct s2s_link *link); /* collective; waits for what was issued */

    /*
     * After what the queue holds. done is recorded behind it. The queue goes on after it, or, with
     * beside, at once: event_wait of done then orders what follows. The list is read at once.
     */
    int (*issue)(struct s2s_link *link, struct s2s_queue *queue, const struct s2s_link_call *call,
                 struct s2s_event *done, bool beside);

    /* From any thread: */
    bool (*passed)(struct s2s_event *event); /* whether all before its last record is done */
    /* What failed in the link since it was opened, without a call that says so; remote: another
     * rank has the reason. */
    int (*failure)(struct s2s_link *link, bool *remote);
    /* Ends what is under way, here and at the other ranks. The link is good for nothing then. */
    void (*abort)(struct s2s_link *link);
};

#endif
