/* What the files of this room share. */
#ifndef MESH_INTERNAL_H
#define MESH_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "lib/base/base.h"
#include "lib/mesh/mesh.h"

struct mesh_slot;
struct mesh_group;
struct mesh_beside;
struct mesh_link;
struct mesh_links;

/*
 * What a backend offers: bytes, already checked, sizes above 1. A second backend is a second table.
 * Failures end the job by mesh_fail_op.
 */
struct mesh_backend {
    const char *name;
    void (*all_reduce)(struct s2s_comm *comm, void *buf, int64_t n, enum s2s_dtype dtype,
                       enum s2s_group_op op);
    void (*all_gather)(struct s2s_comm *comm, char *recv, const char *send,
                       const int64_t *len_bytes);
    void (*reduce_scatter)(struct s2s_comm *comm, char *recv, const char *send,
                           const int64_t *counts, enum s2s_dtype dtype);
    void (*broadcast)(struct s2s_comm *comm, char *buf, int64_t len_bytes, int root);
    void (*all_to_all)(struct s2s_comm *comm, char *recv, const int64_t *recv_bytes,
                       const char *send, const int64_t *send_bytes);
    void (*exchange)(struct s2s_comm *comm, const struct s2s_transfer *list, int n);
    void (*barrier)(struct s2s_comm *comm);
    /* a communicator of these world ranks, called by all of them; sets impl */
    void (*split)(struct s2s_comm *comm, const int *world_ranks, int n);
    void (*free)(struct s2s_comm *comm);
    void (*abort)(int status) __attribute__((noreturn));
    void (*finalize)(struct s2s_mesh *mesh);
};

extern const struct mesh_backend mesh_backend_self;

/* Messages of a rank to itself: sent ones wait in comm->impl until they are received. */
void mesh_self_put(struct s2s_comm *comm, const struct s2s_transfer *transfer);
void mesh_self_take(struct s2s_comm *comm, const struct s2s_transfer *transfer);
void mesh_self_free(struct s2s_comm *comm);

extern const struct mesh_backend mesh_backend_count;
extern const struct s2s_group_ops mesh_group_ops_count;

struct s2s_comm {
    struct s2s_mesh *mesh;
    const struct mesh_backend *backend;
    char *name;
    int size, rank;
    int *world_ranks; /* [size] */
    void *impl;
    char *scratch;
    size_t scratch_bytes;
    int64_t sent_bytes;
    struct mesh_group *groups;  /* handed to lib/tensor */
    int64_t n_entered;          /* collectives of all its ranks so far; under the watch's lock */
    int row;                    /* where a rank's slot counts them; -1: nowhere */
    struct mesh_beside *beside; /* the thread of what is started; NULL: start completes it */
    struct mesh_link *link;     /* between devices; NULL: there is none */
    bool patient;               /* it is such a thread's: who waits sleeps, others compute */
};

struct s2s_grid {
    struct s2s_mesh *mesh;
    struct s2s_grid_spec spec; /* texts are its own */
    int n_ranks;
    int pp_stride; /* ranks between neighbours along pp */
    int coord[S2S_AXES];
    unsigned long_axes;                    /* mask of those longer than 1 */
    struct s2s_comm *comms[1 << S2S_AXES]; /* by mask of axes longer than 1; lent */
};

enum { MESH_ROWS = 64, MESH_LOOK = 64 };

/* How far a rank has come on one communicator. */
struct mesh_row {
    char name[48]; /* the communicator's, cut short; empty: a free row, as are those after it */
    _Atomic int64_t n_entered;
};

/* What a rank shows to the others on its node, in shared memory. */
struct mesh_slot {
    _Atomic int64_t beat_ms; /* monotonic clock, renewed by the watch thread */
    _Atomic int n_flights;   /* operations entered and not complete; op: the oldest of them */
    struct mesh_row rows[MESH_ROWS];
    _Atomic int64_t step;
    _Atomic uint64_t pid_space; /* which process ids count */
    _Atomic int pid, world_rank;
    _Atomic int done;  /* ended on purpose */
    _Atomic int spoke; /* said why the job ends */
    char phase[40], op[96];
};

/* Whether an operation that was started is complete; called by the watch thread under its lock. */
typedef bool mesh_done(void *arg);

/* An operation that was entered and is not complete. */
struct mesh_flight {
    int64_t ticket;
    const struct s2s_comm *comm;
    const char *op;
    int64_t len_bytes;
    int64_t number; /* among the communicator's collectives, from 1; 0: not of all its ranks */
    int *peers;     /* [n_peers] world ranks it waits for; NULL: all of comm */
    int n_peers;
    double since_s;
    bool told;        /* that it takes long */
    pthread_t thread; /* that entered it */
    bool inside;      /* the thread has not come back from it */
    mesh_done *done;  /* after that: asked until it says true; NULL: the thread leaves */
    void *arg;
};

/* The thread that looks at the clock while the others wait. */
struct mesh_watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool running, stop;
    double timeout_s;
    double death_s; /* when a dead rank was first seen; 0: never */
    /* under lock, the oldest first */
    struct mesh_flight *flights;
    size_t n_flights, cap_flights;
    int64_t n_tickets;
    size_t look_at; /* so many flights, and who enters looks which of them are complete */
    int n_rows;
    struct mesh_slot *slots, *mine; /* [n_slots] of this node, or one of our own */
    int n_slots;
    bool outlives; /* slots stay where they are when the backend has ended */
    struct mesh_slot own;
};

/* Whose calls the backend stands. */
enum mesh_threads { MESH_ANY_THREAD, MESH_ONE_AT_A_TIME, MESH_FIRST_THREAD };

struct s2s_mesh {
    const struct mesh_backend *backend;
    const struct s2s_group_ops *group_ops; /* what lib/tensor calls */
    bool alone; /* there is no other process: one rank, or counted ones */
    enum mesh_threads threads;
    pthread_t first_thread; /* that opened it */
    int size, rank;
    struct s2s_comm *world, *self; /* self: this rank alone, the group along axes of size 1 */
    struct s2s_grid **grids;
    size_t n_grids, cap_grids;
    struct s2s_comm **comms; /* all but world and self, each over other ranks; to be freed */
    size_t n_comms, cap_comms;
    struct mesh_links *links; /* of devices; NULL: tensors are in host memory */
    struct mesh_watch watch;
    _Atomic int64_t step;
    const char *_Atomic phase;
    _Atomic bool fails; /* somebody says why, and ends the job */
    void *impl;
};

/* Starts MPI: sets backend, size, rank, world and the node's slots. Of libs2s-mpi.so, which is
 * mpi.c and combine.c. */
typedef int mesh_start(struct s2s_mesh *mesh, struct s2s_error *err);
mesh_start mesh_mpi_start;
/* Collective over the ranks, of which this one is number `rank`. Gives: mesh_comm_free. */
struct s2s_comm *mesh_comm_new(struct s2s_mesh *mesh, const char *name, const int *world_ranks,
                               int n, int rank);
struct s2s_comm *mesh_comm_world(struct s2s_mesh *mesh); /* over all ranks; likewise */
/* The mesh's communicator over these ranks in this order, of which this one is one; made at the
 * first call, which is collective over them. Lent. */
struct s2s_comm *mesh_comm_over(struct s2s_mesh *mesh, const char *name, const int *world_ranks,
                                int n);
void mesh_comm_free(struct s2s_comm *comm);
void mesh_groups_free(struct mesh_group *groups);
extern const struct s2s_group_ops mesh_group_ops;
/* For a group_ops whose operations are complete when they return: the started ones and wait.
 * Tickets are kept so that a wrong one is found. */
int64_t mesh_group_start_all_reduce(const struct s2s_group *group, struct s2s_queue *queue,
                                    void *buf, int64_t n, enum s2s_dtype dtype,
                                    enum s2s_group_op op);
int64_t mesh_group_start_all_gather(const struct s2s_group *group, struct s2s_queue *queue,
                                    void *recv, const void *send, int64_t n, enum s2s_dtype dtype);
int64_t mesh_group_start_reduce_scatter(const struct s2s_group *group, struct s2s_queue *queue,
                                        void *recv, const void *send, int64_t n,
                                        enum s2s_dtype dtype);
int64_t mesh_group_start_exchange(const struct s2s_group *group, struct s2s_queue *queue,
                                  const struct s2s_transfer *list, int n);
void mesh_group_wait(const struct s2s_group *group, struct s2s_queue *queue, int64_t ticket);

/* ---- started operations that a thread runs (beside.c) ---- */

enum mesh_started { MESH_ALL_REDUCE, MESH_ALL_GATHER, MESH_REDUCE_SCATTER };

struct mesh_order {
    enum mesh_started kind;
    void *recv; /* of an all-reduce its only buffer */
    const void *send;
    int64_t n;
    enum s2s_dtype dtype;
    enum s2s_group_op op;
};

/* Hands the order to the thread of comm, after those before it. Gives its number, from 1. */
int64_t mesh_beside_start(struct s2s_comm *comm, const struct mesh_order *order);
/* Waits until the thread is through with that order. */
void mesh_beside_wait(struct s2s_comm *comm, int64_t number);
int64_t mesh_beside_sent_bytes(const struct s2s_comm *comm);
void mesh_beside_free(struct s2s_comm *comm); /* without one it is a no-op */

/* ---- groups of tensors in the memory of devices (links.c) ---- */

extern const struct s2s_group_ops mesh_group_ops_links; /* but for the name of the memory */
/* Collective over comm at the first call: the table for its groups of tensors. */
const struct s2s_group_ops *mesh_link_open(struct s2s_comm *comm);
void mesh_link_close(struct s2s_comm *comm);  /* without one it is a no-op */
void mesh_links_abort(struct s2s_mesh *mesh); /* of a job that ends; from any thread */

/* Bytes that this rank hands to others: one formula each, for what is sent and what is counted. */
int64_t mesh_bytes(int64_t n, enum s2s_dtype dtype);
int64_t mesh_sent_all_reduce(const struct s2s_comm *comm, int64_t len_bytes);
int64_t mesh_sent_all_gather(const struct s2s_comm *comm, int64_t my_bytes);
int64_t mesh_sent_parts(const struct s2s_comm *comm, const int64_t *counts, enum s2s_dtype dtype);
int64_t mesh_sent_broadcast(const struct s2s_comm *comm, int64_t len_bytes, int root);
int64_t mesh_sent_exchange(const struct s2s_comm *comm, const struct s2s_transfer *list, int n);

void mesh_meet(struct s2s_mesh *mesh, const char *what); /* waits until all ranks have come */
void *mesh_scratch(struct s2s_comm *comm, size_t bytes);

enum { MESH_PIECE = 2 << 20, MESH_CHUNK = 64 << 10, MESH_PIECE_MOST = 1 << 30 };

/*
 * Bytes of a reduction that go at a time, all ranks' chunks together: what stays in the cache, but
 * with many ranks 64 KiB of each, for a shorter message takes as long. Sums do not depend on it.
 * MPI counts in int.
 */
static inline int64_t mesh_piece_bytes(int n_ranks)
{
    const int64_t piece = (int64_t)n_ranks * MESH_CHUNK;
    if (piece < MESH_PIECE)
        return MESH_PIECE;
    return piece < MESH_PIECE_MOST ? piece : MESH_PIECE_MOST;
}

/* dst[i] = parts[0][i] op parts[1][i] op ..; parts stand `stride` elements apart; dst may be one of
 * them. */
void mesh_combine(void *dst, const void *parts, int n_parts, int64_t stride, int64_t n,
                  enum s2s_dtype dtype, enum s2s_group_op op);

/* A failure inside a collective: says where and ends the job. */
_Noreturn void mesh_fail_op(const struct s2s_comm *comm, const char *op, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void mesh_fail_text(struct s2s_mesh *mesh, const char *text, const char *hint,
                              int status);

void mesh_watch_start(struct s2s_mesh *mesh);
void mesh_watch_last(struct s2s_mesh *mesh); /* no operation comes after this; collective */
void mesh_watch_stop(struct s2s_mesh *mesh); /* once the backend has ended */
void mesh_watch_note(struct s2s_mesh *mesh);
/* Whether another rank of this node has said why the job ends. */
bool mesh_watch_was_told(const struct s2s_mesh *mesh);
void mesh_watch_row(struct s2s_comm *comm); /* gives it a row of this rank's slot */

/*
 * Around an operation of all ranks of the communicator, or of those in the list (len_bytes is for
 * messages). A backend that returns before the operation is complete calls mesh_leave_until instead
 * of mesh_leave: the operation is watched until done(arg) says true, or until mesh_leave.
 */
int64_t mesh_enter(struct s2s_comm *comm, const char *op, int64_t len_bytes);
int64_t mesh_enter_exchange(struct s2s_comm *comm, const struct s2s_transfer *list, int n,
                            int64_t len_bytes);
void mesh_leave(struct s2s_mesh *mesh, int64_t ticket);
void mesh_leave_until(struct s2s_mesh *mesh, int64_t ticket, mesh_done *done, void *arg);

#endif
