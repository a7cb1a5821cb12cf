/*
 * The MPI backend. Bytes travel as MPI_BYTE and sums are ours (combine.c), so the order of a sum
 * and the dtypes that work do not depend on the library. Large buffers go in pieces that stay in
 * the cache: two ranks then move 5 to 7 GB/s instead of 1.5.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/mesh/mesh_internal.h"

enum {
    SMALL = 32 << 10,      /* below this everybody gets everything and adds it up */
    MESSAGE = 1 << 30,     /* MPI counts are int */
    EXCHANGE_TAG = 1,      /* other messages between two ranks have tag 0 */
    GATHER_WHOLE = 4 << 20 /* a gathered buffer that MPI's own collective may have */
};

struct mpi_comm {
    MPI_Comm comm;
};

struct mpi_node {
    MPI_Comm comm;
    MPI_Win window;
};

static MPI_Comm handle(const struct s2s_comm *comm)
{
    return ((struct mpi_comm *)comm->impl)->comm;
}

static void check(const struct s2s_comm *comm, const char *op, int code)
{
    if (code == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int len = 0;
    if (MPI_Error_string(code, text, &len) != MPI_SUCCESS)
        len = 0;
    mesh_fail_op(comm, op, "%.*s", len, text);
}

/* ---- waiting ---- */

enum { EAGER_TRIES = 200, NAP_NS = 20000 };

/*
 * MPI's own wait spins, which is right for a thread that has nothing else to do. One that works
 * beside a computation would take half of its core that way: where nothing moves it sleeps.
 */
static void wait_all(const struct s2s_comm *comm, const char *op, int n, MPI_Request *requests)
{
    if (!comm->patient) {
        check(comm, op, MPI_Waitall(n, requests, MPI_STATUSES_IGNORE));
        return;
    }
    int done = 0;
    for (int tries = 0; !done; tries++) {
        check(comm, op, MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE));
        if (!done && tries > EAGER_TRIES)
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

/* ---- collectives ---- */

/* Elements of chunk r when n are cut into size chunks, and where it begins. */
static int64_t chunk_len(int64_t n, int size, int r)
{
    return n / size + (r < n % size);
}

static int64_t chunk_at(int64_t n, int size, int r)
{
    return n / size * r + (r < n % size ? r : n % size);
}

static void reduce_small(struct s2s_comm *comm, char *buf, int64_t n, enum s2s_dtype dtype,
                         enum s2s_group_op op)
{
    const int len = (int)(n * (int64_t)s2s_dtype_size(dtype));
    char *all = mesh_scratch(comm, (size_t)len * (size_t)comm->size);
    MPI_Request request;
    check(comm, "all_reduce",
          MPI_Iallgather(buf, len, MPI_BYTE, all, len, MPI_BYTE, handle(comm), &request));
    wait_all(comm, "all_reduce", 1, &request);
    mesh_combine(buf, all, comm->size, n, n, dtype, op);
}

/* Everybody adds up its chunk of the piece, then all chunks are gathered. */
static void reduce_piece(struct s2s_comm *comm, char *buf, int64_t n, enum s2s_dtype dtype,
                         enum s2s_group_op op, int *table)
{
    const int64_t item = (int64_t)s2s_dtype_size(dtype);
    const int64_t mine = chunk_len(n, comm->size, comm->rank);
    int *len = table, *at = table + comm->size, *in_len = at + comm->size,
        *in_at = in_len + comm->size;
    for (int r = 0; r < comm->size; r++) {
        len[r] = (int)(chunk_len(n, comm->size, r) * item);
        at[r] = (int)(chunk_at(n, comm->size, r) * item);
        in_len[r] = (int)(mine * item);
        in_at[r] = (int)(mine * item) * r;
    }
    char *parts = mesh_scratch(comm, (size_t)(mine * item) * (size_t)comm->size);
    MPI_Request request;
    check(comm, "all_reduce",
          MPI_Ialltoallv(buf, len, at, MPI_BYTE, parts, in_len, in_at, MPI_BYTE, handle(comm),
                         &request));
    wait_all(comm, "all_reduce", 1, &request);
    mesh_combine(buf + at[comm->rank], parts, comm->size, mine, mine, dtype, op);
    check(
        comm, "all_reduce",
        MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, buf, len, at, MPI_BYTE, handle(comm), &request));
    wait_all(comm, "all_reduce", 1, &request);
}

static void mpi_all_reduce(struct s2s_comm *comm, void *buf, int64_t n, enum s2s_dtype dtype,
                           enum s2s_group_op op)
{
    const int64_t item = (int64_t)s2s_dtype_size(dtype);
    const int64_t step = mesh_piece_bytes(comm->size) / item;
    if (n * item <= SMALL && n * item * comm->size <= MESH_PIECE) {
        reduce_small(comm, buf, n, dtype, op);
        return;
    }
    int *table = s2s_xcalloc(4 * (size_t)comm->size, sizeof *table);
    for (int64_t begin = 0; begin < n; begin += step)
        reduce_piece(comm, (char *)buf + begin * item, n - begin < step ? n - begin : step, dtype,
                     op, table);
    free(table);
}

/* All pairs at once; each side knows both lengths. */
static void all_pairs(struct s2s_comm *comm, const char *op, char *recv, const int64_t *recv_at,
                      const int64_t *recv_len, const char *send, const int64_t *send_at,
                      const int64_t *send_len)
{
    size_t n = 0, cap = 0;
    MPI_Request *requests = NULL;
    for (int k = 1; k < comm->size; k++) {
        int from = (comm->rank - k + comm->size) % comm->size;
        for (int64_t at = 0; at < recv_len[from]; at += MESSAGE) {
            int64_t rest = recv_len[from] - at;
            s2s_grow(&requests, n, &cap, sizeof *requests);
            check(comm, op,
                  MPI_Irecv(recv + recv_at[from] + at, (int)(rest < MESSAGE ? rest : MESSAGE),
                            MPI_BYTE, from, 0, handle(comm), &requests[n++]));
        }
    }
    for (int k = 1; k < comm->size; k++) {
        int to = (comm->rank + k) % comm->size;
        for (int64_t at = 0; at < send_len[to]; at += MESSAGE) {
            int64_t rest = send_len[to] - at;
            s2s_grow(&requests, n, &cap, sizeof *requests);
            check(comm, op,
                  MPI_Isend(send + send_at[to] + at, (int)(rest < MESSAGE ? rest : MESSAGE),
                            MPI_BYTE, to, 0, handle(comm), &requests[n++]));
        }
    }
    if (n > 0)
        wait_all(comm, op, (int)n, requests);
    free(requests);
}

/* Where parts begin that stand one after the other; returns their sum. */
static int64_t prefix(int64_t *at, const int64_t *len, int size)
{
    int64_t sum = 0;
    for (int r = 0; r < size; r++) {
        at[r] = sum;
        sum += len[r];
    }
    return sum;
}

static void gather_whole(struct s2s_comm *comm, char *recv, const int64_t *len, const int64_t *at)
{
    int *table = s2s_xcalloc(2 * (size_t)comm->size, sizeof *table);
    for (int r = 0; r < comm->size; r++) {
        table[r] = (int)len[r];
        table[comm->size + r] = (int)at[r];
    }
    MPI_Request request;
    check(comm, "all_gather",
          MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, recv, table, table + comm->size, MPI_BYTE,
                          handle(comm), &request));
    wait_all(comm, "all_gather", 1, &request);
    free(table);
}

static void mpi_all_gather(struct s2s_comm *comm, char *recv, const char *send, const int64_t *len)
{
    int64_t *at = s2s_xcalloc(3 * (size_t)comm->size, sizeof *at);
    int64_t *send_at = at + comm->size, *send_len = send_at + comm->size;
    if (prefix(at, len, comm->size) <= GATHER_WHOLE) {
        gather_whole(comm, recv, len, at);
    } else {
        for (int r = 0; r < comm->size; r++)
            send_len[r] = len[comm->rank];
        all_pairs(comm, "all_gather", recv, at, len, send, send_at, send_len);
    }
    free(at);
}

static void mpi_all_to_all(struct s2s_comm *comm, char *recv, const int64_t *recv_bytes,
                           const char *send, const int64_t *send_bytes)
{
    int64_t *recv_at = s2s_xcalloc(2 * (size_t)comm->size, sizeof *recv_at);
    int64_t *send_at = recv_at + comm->size;
    prefix(recv_at, recv_bytes, comm->size);
    prefix(send_at, send_bytes, comm->size);
    if (send_bytes[comm->rank] > 0)
        memcpy(recv + recv_at[comm->rank], send + send_at[comm->rank],
               (size_t)send_bytes[comm->rank]);
    all_pairs(comm, "all_to_all", recv, recv_at, recv_bytes, send, send_at, send_bytes);
    free(recv_at);
}

/* Round p moves elements [p*step, (p+1)*step) of everybody's part; the rounds are those of the
 * longest part. */
static void mpi_reduce_scatter(struct s2s_comm *comm, char *recv, const char *send,
                               const int64_t *counts, enum s2s_dtype dtype)
{
    const int64_t item = (int64_t)s2s_dtype_size(dtype);
    int64_t step = mesh_piece_bytes(comm->size) / comm->size / item, longest = 0;
    step = step > 0 ? step : 1;
    int64_t *table = s2s_xcalloc(5 * (size_t)comm->size, sizeof *table);
    int64_t *at = table, *send_at = at + comm->size, *send_len = send_at + comm->size,
            *recv_at = send_len + comm->size, *recv_len = recv_at + comm->size;
    prefix(at, counts, comm->size);
    for (int r = 0; r < comm->size; r++)
        longest = counts[r] > longest ? counts[r] : longest;
    char *parts = mesh_scratch(comm, (size_t)(step * item) * (size_t)comm->size);
    for (int64_t begin = 0; begin < longest; begin += step) {
        int64_t mine = 0;
        for (int r = 0; r < comm->size; r++) {
            int64_t len = counts[r] - begin < step ? counts[r] - begin : step;
            len = len > 0 ? len : 0;
            send_at[r] = (at[r] + begin) * item;
            send_len[r] = len * item;
            recv_at[r] = r * step * item;
            mine = r == comm->rank ? len : mine;
        }
        for (int r = 0; r < comm->size; r++)
            recv_len[r] = mine * item;
        if (mine > 0)
            memcpy(parts + recv_at[comm->rank], send + send_at[comm->rank], (size_t)(mine * item));
        all_pairs(comm, "reduce_scatter", parts, recv_at, recv_len, send, send_at, send_len);
        if (mine > 0)
            mesh_combine(recv + begin * item, parts, comm->size, step, mine, dtype, S2S_GROUP_SUM);
    }
    free(table);
}

static void mpi_broadcast(struct s2s_comm *comm, char *buf, int64_t len, int root)
{
    for (int64_t at = 0; at < len; at += MESH_PIECE)
        check(comm, "broadcast",
              MPI_Bcast(buf + at, (int)(len - at < MESH_PIECE ? len - at : MESH_PIECE), MPI_BYTE,
                        root, handle(comm)));
}

/* One part of a message; MPI keeps those between two ranks, of one tag, in order. */
static void post(struct s2s_comm *comm, const struct s2s_transfer *t, int64_t at, int64_t len,
                 MPI_Request *request)
{
    char *buf = (char *)t->buf + at;
    check(comm, "exchange",
          t->send
              ? MPI_Isend(buf, (int)len, MPI_BYTE, t->peer, EXCHANGE_TAG, handle(comm), request)
              : MPI_Irecv(buf, (int)len, MPI_BYTE, t->peer, EXCHANGE_TAG, handle(comm), request));
}

/* Waits for a part, and holds what came against what was expected. */
static void finish(struct s2s_comm *comm, const struct s2s_transfer *t, int64_t len,
                   MPI_Request *request)
{
    MPI_Status status;
    int got = 0, code = MPI_Wait(request, &status), class = MPI_SUCCESS;
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &class);
    if (class == MPI_ERR_TRUNCATE)
        mesh_fail_op(comm, "exchange", "expected %lld bytes from rank %d, found more",
                     (long long)len, comm->world_ranks[t->peer]);
    check(comm, "exchange", code);
    if (t->send)
        return;
    MPI_Get_count(&status, MPI_BYTE, &got);
    if (got != len)
        mesh_fail_op(comm, "exchange", "expected %lld bytes from rank %d, found %d", (long long)len,
                     comm->world_ranks[t->peer], got);
}

/* Everything is posted before anything is waited for. A message of no bytes is one, too. */
static void mpi_exchange(struct s2s_comm *comm, const struct s2s_transfer *list, int n)
{
    struct part {
        const struct s2s_transfer *transfer;
        int64_t len;
        MPI_Request request;
    } *parts = NULL;
    size_t n_parts = 0, cap = 0;
    for (int i = 0; i < n; i++) {
        const int64_t bytes = list[i].n * (int64_t)s2s_dtype_size(list[i].dtype);
        int64_t at = 0;
        do {
            int64_t len = bytes - at < MESSAGE ? bytes - at : MESSAGE;
            s2s_grow(&parts, n_parts, &cap, sizeof *parts);
            parts[n_parts] = (struct part){.transfer = &list[i], .len = len};
            post(comm, &list[i], at, len, &parts[n_parts++].request);
            at += len;
        } while (at < bytes);
    }
    for (size_t i = 0; i < n_parts; i++)
        finish(comm, parts[i].transfer, parts[i].len, &parts[i].request);
    free(parts);
}

static void mpi_barrier(struct s2s_comm *comm)
{
    check(comm, "barrier", MPI_Barrier(handle(comm)));
}

/* ---- life ---- */

static void mpi_split(struct s2s_comm *comm, const int *world_ranks, int n)
{
    struct mpi_comm *impl = s2s_xcalloc(1, sizeof *impl);
    MPI_Group world, group;
    comm->impl = impl;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, n, world_ranks, &group);
    int code = MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &impl->comm);
    if (code != MPI_SUCCESS)
        impl->comm = MPI_COMM_WORLD;
    check(comm, "new group", code);
    MPI_Comm_set_errhandler(impl->comm, MPI_ERRORS_RETURN);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
}

static void mpi_free(struct s2s_comm *comm)
{
    struct mpi_comm *impl = comm->impl;
    if (impl)
        MPI_Comm_free(&impl->comm);
    free(impl);
}

static void *end_process(void *status)
{
    nanosleep(&(struct timespec){.tv_nsec = 700000000}, NULL);
    _exit((int)(intptr_t)status);
}

/* Also called by the watch thread while another waits inside MPI: if MPI cannot end the job, the
 * process ends itself and the launcher sees it. */
static _Noreturn void mpi_abort(int status)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_process, (void *)(intptr_t)status) != 0)
        alarm(1);
    MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status);
}

static void mpi_finalize(struct s2s_mesh *mesh)
{
    struct mpi_node *node = mesh->impl;
    if (node->window != MPI_WIN_NULL)
        MPI_Win_free(&node->window);
    MPI_Comm_free(&node->comm);
    free(node);
    MPI_Finalize();
}

/* The window's memory at a second address, where it stays when MPI has ended; false: it cannot. */
static bool keep_slots(struct mesh_watch *watch)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)watch->slots;
    const size_t before = at % page;
    const size_t len = before + sizeof *watch->slots * (size_t)watch->n_slots;
    /* an old length of 0 maps what is shared again */
    char *again = mremap((void *)(at - before), 0, len, MREMAP_MAYMOVE);
    if (again == MAP_FAILED)
        return false;
    watch->slots = (struct mesh_slot *)(again + before);
    return true;
}

/* Ranks of one node see each other's slots; without shared memory each sees its own. */
static void share_slots(struct s2s_mesh *mesh, struct mpi_node *node)
{
    struct mesh_watch *watch = &mesh->watch;
    int rank = 0, size = 1, unit;
    MPI_Aint len;
    void *base = NULL;
    node->window = MPI_WIN_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, mesh->rank, MPI_INFO_NULL,
                        &node->comm);
    MPI_Comm_set_errhandler(node->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(node->comm, &rank);
    MPI_Comm_size(node->comm, &size);
    MPI_Aint want = rank == 0 ? (MPI_Aint)(sizeof(struct mesh_slot) * (size_t)size) : 0;
    if (MPI_Win_allocate_shared(want, 1, MPI_INFO_NULL, node->comm, &base, &node->window) !=
            MPI_SUCCESS ||
        MPI_Win_shared_query(node->window, 0, &len, &unit, &base) != MPI_SUCCESS) {
        watch->slots = watch->mine = &watch->own;
        watch->n_slots = 1;
        return;
    }
    watch->slots = base;
    watch->n_slots = size;
    watch->outlives = keep_slots(watch);
    watch->mine = watch->slots + rank;
}

static const struct mesh_backend backend = {
    .name = "mpi",
    .all_reduce = mpi_all_reduce,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .broadcast = mpi_broadcast,
    .all_to_all = mpi_all_to_all,
    .exchange = mpi_exchange,
    .barrier = mpi_barrier,
    .split = mpi_split,
    .free = mpi_free,
    .abort = mpi_abort,
    .finalize = mpi_finalize,
};

int mesh_mpi_start(struct s2s_mesh *mesh, struct s2s_error *err)
{
    int level = 0, started = 0;
    /* a rank that waits gives its core to those it waits for */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    MPI_Initialized(&started);
    if (!started && MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        return s2s_error_set(err, S2S_E_COMM, "MPI does not start");
    MPI_Query_thread(&level);
    mesh->threads = level == MPI_THREAD_MULTIPLE     ? MESH_ANY_THREAD
                    : level == MPI_THREAD_SERIALIZED ? MESH_ONE_AT_A_TIME
                                                     : MESH_FIRST_THREAD;
    MPI_Comm_size(MPI_COMM_WORLD, &mesh->size);
    MPI_Comm_rank(MPI_COMM_WORLD, &mesh->rank);
    if (mesh->size == 1) {
        MPI_Finalize();
        return 0;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    mesh->backend = &backend;
    struct mpi_node *node = s2s_xcalloc(1, sizeof *node);
    mesh->impl = node;
    share_slots(mesh, node);
    mesh->world = mesh_comm_world(mesh);
    return 0;
}
