/*
 * Who runs with whom: the ranks of a launch, grids of named axes over them, and communicators with
 * collectives on raw host memory. One process without a launcher is the mesh of size 1 and goes
 * the same way.
 *
 *     struct s2s_mesh *mesh;
 *     s2s_mesh_open(&mesh, NULL, err);
 *     struct s2s_grid_spec spec = S2S_GRID_SPEC_INIT;
 *     spec.size[S2S_AXIS_DP] = s2s_mesh_size(mesh);
 *     struct s2s_grid *grid;
 *     s2s_mesh_add_grid(&grid, mesh, &spec, err);
 *     struct s2s_comm *dp = s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_DP));
 *     s2s_comm_all_reduce(dp, grads, n, S2S_F32, S2S_GROUP_SUM);
 *     rc = s2s_mesh_all_ok(mesh, rc, err);
 *
 * Failures. What a rank can say before it hurts others goes through s2s_mesh_all_ok and becomes
 * everybody's answer. A collective itself returns nothing: when it fails, or does not complete
 * within the time limit, the rank says which operation of which step it was in and who is missing,
 * and takes the job down. Nothing hangs.
 *
 * Sums are added in the order of the ranks, F32 and halves in double: the same bytes for a given
 * number of ranks, whatever the MPI library.
 *
 * Threads. A mesh is opened, given its grids and groups, and closed by one thread. Collectives may
 * come from several, each on communicators of its own. Where MPI offers less than
 * MPI_THREAD_MULTIPLE, a second thread ends the job, which says so.
 */
#ifndef S2S_MESH_H
#define S2S_MESH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/tensor/par.h"

struct s2s_buf;
struct s2s_error;
struct s2s_kernels;
struct s2s_mesh;
struct s2s_grid;
struct s2s_comm;

struct s2s_mesh_options {
    double timeout_s; /* of one collective; 0: the default */
};

#define S2S_MESH_TIMEOUT_S 600.0

/*
 * Collective over the launch. A launcher is seen in the environment (mpirun, srun with PMI or
 * PMIx); without one, or with one rank, MPI is not touched. options NULL: the defaults. COMM when
 * MPI cannot start or srun started several tasks that do not know of each other.
 */
int s2s_mesh_open(struct s2s_mesh **mesh, const struct s2s_mesh_options *options,
                  struct s2s_error *err);
/*
 * One rank of a launch of n_ranks that is not started: grids, groups and coordinates are those of
 * the real one, and collectives send nothing, but count what they would have sent. Sums are this
 * rank's part alone, gathered parts are all copies of its own (cut, or with zeros, where theirs
 * have another length), what is received is zeros, s2s_mesh_all_ok says this rank's answer. Groups
 * of lib/tensor touch no memory at all, as tensors of a table that counts have none. ARG: rank is
 * not one of n_ranks. Gives: s2s_mesh_close.
 */
int s2s_mesh_open_count(struct s2s_mesh **mesh, int n_ranks, int rank, struct s2s_error *err);
/* Collective: no process ends before all ranks have called it. NULL is a no-op. */
void s2s_mesh_close(struct s2s_mesh *mesh);

/* Whether it is one of s2s_mesh_open_count: what others have never comes. */
bool s2s_mesh_counts(const struct s2s_mesh *mesh);
int s2s_mesh_size(const struct s2s_mesh *mesh);
int s2s_mesh_rank(const struct s2s_mesh *mesh);
int s2s_mesh_local_rank(const struct s2s_mesh *mesh);   /* among those of its node */
struct s2s_comm *s2s_mesh_world(struct s2s_mesh *mesh); /* all ranks; lent */

/* What this rank handed to others over one communicator, whatever groups share it. */
struct s2s_mesh_sent {
    const char *name; /* "main/dp"; lent until the mesh is closed */
    int n_ranks;
    int64_t sent_bytes; /* as s2s_comm_sent_bytes */
};

/* Of the i-th communicator, the world first, then in the order in which they were made. false past
 * the last. Those of one rank are left out. */
bool s2s_mesh_sent_bytes(struct s2s_mesh_sent *sent, const struct s2s_mesh *mesh, size_t i);

void s2s_mesh_set_timeout(struct s2s_mesh *mesh, double timeout_s);

/* Where this rank is, for messages: "step 12: reduce gradients". step -1: none. phase is kept. */
void s2s_mesh_note(struct s2s_mesh *mesh, int64_t step, const char *phase);

/*
 * Collective over all ranks: everybody's answer is the failure of the lowest rank that failed, its
 * text after "[rank r]: " (with one rank: rc and err as they are). Returns 0 when all succeeded.
 */
int s2s_mesh_all_ok(struct s2s_mesh *mesh, int rc, struct s2s_error *err);

/* Says what is in err, with rank, step and phase, and takes the job down with its exit status. */
_Noreturn void s2s_mesh_fail(struct s2s_mesh *mesh, const struct s2s_error *err);

/* ---- grids ---- */

/* A box of axes over ranks first_rank .. first_rank + product - 1. `order` names all five axes from
 * the one whose neighbours are consecutive ranks outwards, as Megatron's order string. */
struct s2s_grid_spec {
    const char *name; /* "main"; copied */
    int first_rank;
    int size[S2S_AXES];
    const char *order;
    const char *experts_of; /* a grid of experts: the grid whose ranks it lays out; NULL: none */
};

#define S2S_GRID_SPEC_INIT \
    { \
        "main", 0, {1, 1, 1, 1, 1}, "tp-cp-ep-dp-pp", NULL \
    }

const char *s2s_mesh_axis_name(enum s2s_axis axis); /* "tp" */

/*
 * The groups along the axes in `mask` (bits), as Megatron counts them: pure arithmetic. Ranks of
 * group i stand at (*ranks)[i * *group_size]. Gives: free *ranks. ARG for a bad order string or
 * size.
 */
int s2s_grid_groups(int **ranks, int *n_groups, int *group_size, const struct s2s_grid_spec *spec,
                    unsigned mask, struct s2s_error *err);

/*
 * Adds a grid and makes its groups: the same call on every rank of the launch, also on those that
 * are not in the grid, and in the same order as other grids. The groups are those along each axis
 * alone and along
 *
 *     tp-cp, cp-dp, tp-dp, tp-ep, tp-pp, tp-cp-dp, tp-ep-pp, tp-cp-ep-pp (all but dp), all five
 *
 * all made here and in this order, so that it does not matter in which order ranks ask for them.
 * An axis of size 1 adds nothing: groups of the same ranks, of one grid or of several, share one
 * communicator, named after the first. RANGE when the grid does not fit the launch; ARG as above
 * and for a name that another grid has. Lent until s2s_mesh_close.
 */
int s2s_mesh_add_grid(struct s2s_grid **grid, struct s2s_mesh *mesh,
                      const struct s2s_grid_spec *spec, struct s2s_error *err);
/*
 * All grids together, after the last was added; the same answer on every rank. RANGE when a rank is
 * in no grid. ARG when two grids have ranks in common, but not all; or when a grid of experts is
 * not over the ranks of its grid, has a cp, or puts ranks in other pipeline stages. The text names
 * ranks, grids and sizes.
 */
int s2s_mesh_check(const struct s2s_mesh *mesh, struct s2s_error *err);

/* Position of this rank along an axis; -1 when it is not in the grid. */
int s2s_grid_coord(const struct s2s_grid *grid, enum s2s_axis axis);
/* The communicator of this rank's group along the axes in mask, such as
 * S2S_AXIS_BIT(S2S_AXIS_DP) | S2S_AXIS_BIT(S2S_AXIS_CP): one of those listed above, another mask is
 * our bug. A look-up. NULL when this rank is not in the grid. Lent. */
struct s2s_comm *s2s_grid_comm(struct s2s_grid *grid, unsigned mask);

/*
 * A group that no grid has, such as the first and the last pipeline stage, or the leaders of a
 * bridge: the same call with the same list on every rank of the launch, in the same order as other
 * groups and grids. *comm is NULL on ranks that are not in the list; its ranks are in the order of
 * the list. Groups of the same list share one communicator, also with those of grids. ARG, on all
 * ranks: no rank, a rank twice or one that was not started. Lent.
 */
int s2s_mesh_add_group(struct s2s_comm **comm, struct s2s_mesh *mesh, const char *name,
                       const int *ranks, int n, struct s2s_error *err);

/* ---- communicators ---- */

int s2s_comm_size(const struct s2s_comm *comm);
int s2s_comm_rank(const struct s2s_comm *comm);
/* Bytes this rank handed to others, as the collectives' formulas count them. */
int64_t s2s_comm_sent_bytes(const struct s2s_comm *comm);

/*
 * Collective over the launch, once: groups of tensors that are made from here on are of memory of
 * the queue's device, and talk by what its table has for that (struct s2s_collectives), never
 * through the host. Where it has nothing, and alone, nothing changes. kernels is kept. queue: any
 * of the device, open until the last operation. UNSUPPORTED: the library is not there or too old;
 * VERSION: ranks have different ones; RANGE: two ranks have one device, which its text names.
 */
int s2s_mesh_use_device(struct s2s_mesh *mesh, const struct s2s_kernels *kernels,
                        struct s2s_queue *queue, struct s2s_error *err);

/*
 * As lib/tensor wants it, on the memory of the CPU table, which is host memory (of a mesh that
 * counts: of the table that counts, which has none): an operation first waits for the queue by
 * `sync` (the table's own; NULL: the queue is never behind), and is complete when it returns,
 * started ones too, unless they run beside (below). axis is kept. Lent until the mesh is closed.
 *
 * On the memory of a device (above) nobody waits, sync is not needed, sums are in the order and the
 * type of its library, and the first call for a communicator is collective over it.
 */
const struct s2s_group *s2s_comm_group(struct s2s_comm *comm, const char *axis,
                                       void (*sync)(struct s2s_queue *queue));

/*
 * Collective over comm, once: what is started over its groups (par.h) from here on runs in a thread
 * and a communicator of its own, beside the caller's computation and in the order in which it was
 * started. Where MPI does not stand two threads, and on a mesh that counts, nothing changes.
 */
void s2s_comm_run_beside(struct s2s_comm *comm);

/* Collective over comm, in the same order on all its ranks. Counts are elements. */

/* In place. F64 F32 F16 BF16 I64 I32 U8; done in pieces: 2 MiB, or 64 KiB for each rank. */
void s2s_comm_all_reduce(struct s2s_comm *comm, void *buf, int64_t n, enum s2s_dtype dtype,
                         enum s2s_group_op op);
/* recv [size * n]; send may be its place in recv */
void s2s_comm_all_gather(struct s2s_comm *comm, void *recv, const void *send, int64_t n,
                         enum s2s_dtype dtype);
/* counts [size], the same on all ranks; parts stand one after the other in recv */
void s2s_comm_all_gatherv(struct s2s_comm *comm, void *recv, const void *send,
                          const int64_t *counts, enum s2s_dtype dtype);
/* Everybody's bytes, on every rank: gives an array [size] of buffers, by rank (release each). */
struct s2s_buf *s2s_comm_gather_bufs(struct s2s_comm *comm, const struct s2s_buf *mine);
/* send [sum of counts], recv [counts[rank]]: the sum of everybody's part for this rank */
void s2s_comm_reduce_scatter(struct s2s_comm *comm, void *recv, const void *send,
                             const int64_t *counts, enum s2s_dtype dtype);
void s2s_comm_broadcast(struct s2s_comm *comm, void *buf, int64_t n, enum s2s_dtype dtype,
                        int root);
/* counts [size] each way; parts one after the other */
void s2s_comm_all_to_all(struct s2s_comm *comm, void *recv, const int64_t *recv_counts,
                         const void *send, const int64_t *send_counts, enum s2s_dtype dtype);
/* All messages posted together: see exchange in par.h. */
void s2s_comm_exchange(struct s2s_comm *comm, const struct s2s_transfer *list, int n);
/* Exchanges of one message. Two ranks that both send first wait for each other: let them exchange.
 */
void s2s_comm_send(struct s2s_comm *comm, const void *buf, int64_t n, enum s2s_dtype dtype, int to);
void s2s_comm_recv(struct s2s_comm *comm, void *buf, int64_t n, enum s2s_dtype dtype, int from);
void s2s_comm_barrier(struct s2s_comm *comm);

#endif
