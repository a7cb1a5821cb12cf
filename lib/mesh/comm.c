/* Communicators: the one interface. Each call is counted, watched and handed to the backend. */
#include <stdlib.h>
#include <string.h>

#include "lib/mesh/mesh_internal.h"

struct s2s_comm *mesh_comm_new(struct s2s_mesh *mesh, const char *name, const int *world_ranks,
                               int n, int rank)
{
    struct s2s_comm *comm = s2s_xcalloc(1, sizeof *comm);
    comm->mesh = mesh;
    comm->name = s2s_xstrdup(name);
    comm->size = n;
    comm->rank = rank;
    comm->world_ranks = s2s_xcalloc((size_t)n, sizeof *comm->world_ranks);
    memcpy(comm->world_ranks, world_ranks, (size_t)n * sizeof *world_ranks);
    comm->backend = n > 1 ? mesh->backend : &mesh_backend_self;
    comm->row = -1;
    if (n == 1) {
        comm->backend->split(comm, world_ranks, n);
        return comm;
    }
    mesh_watch_row(comm);
    const int64_t ticket = mesh_enter(comm, "new group", 0);
    comm->backend->split(comm, world_ranks, n);
    mesh_leave(comm->mesh, ticket);
    return comm;
}

struct s2s_comm *mesh_comm_world(struct s2s_mesh *mesh)
{
    int *all = s2s_xcalloc((size_t)mesh->size, sizeof *all);
    for (int r = 0; r < mesh->size; r++)
        all[r] = r;
    struct s2s_comm *world = mesh_comm_new(mesh, "world", all, mesh->size, mesh->rank);
    free(all);
    return world;
}

struct s2s_comm *mesh_comm_over(struct s2s_mesh *mesh, const char *name, const int *world_ranks,
                                int n)
{
    if (n == 1)
        return mesh->self;
    /* all ranks of a group find the same here: they made the same groups before */
    for (size_t i = 0; i < mesh->n_comms; i++)
        if (mesh->comms[i]->size == n &&
            memcmp(mesh->comms[i]->world_ranks, world_ranks, (size_t)n * sizeof *world_ranks) == 0)
            return mesh->comms[i];
    int rank = 0;
    while (world_ranks[rank] != mesh->rank)
        rank++;
    s2s_grow(&mesh->comms, mesh->n_comms, &mesh->cap_comms, sizeof *mesh->comms);
    return mesh->comms[mesh->n_comms++] = mesh_comm_new(mesh, name, world_ranks, n, rank);
}

void mesh_comm_free(struct s2s_comm *comm)
{
    if (!comm)
        return;
    mesh_beside_free(comm);
    mesh_link_close(comm);
    comm->backend->free(comm);
    mesh_groups_free(comm->groups);
    free(comm->scratch);
    free(comm->world_ranks);
    free(comm->name);
    free(comm);
}

void *mesh_scratch(struct s2s_comm *comm, size_t bytes)
{
    if (comm->scratch_bytes < bytes) {
        free(comm->scratch);
        comm->scratch = s2s_xalloc_aligned(bytes);
        comm->scratch_bytes = bytes;
    }
    return comm->scratch;
}

int s2s_comm_size(const struct s2s_comm *comm)
{
    return comm->size;
}

int s2s_comm_rank(const struct s2s_comm *comm)
{
    return comm->rank;
}

int64_t s2s_comm_sent_bytes(const struct s2s_comm *comm)
{
    return comm->sent_bytes + mesh_beside_sent_bytes(comm);
}

int64_t mesh_bytes(int64_t n, enum s2s_dtype dtype)
{
    if (n < 0)
        S2S_BUG("a collective of %lld elements", (long long)n);
    return n * (int64_t)s2s_dtype_size(dtype);
}

int64_t mesh_sent_all_reduce(const struct s2s_comm *comm, int64_t len_bytes)
{
    return 2 * len_bytes * (comm->size - 1) / comm->size;
}

int64_t mesh_sent_all_gather(const struct s2s_comm *comm, int64_t my_bytes)
{
    return my_bytes * (comm->size - 1);
}

int64_t mesh_sent_parts(const struct s2s_comm *comm, const int64_t *counts, enum s2s_dtype dtype)
{
    int64_t others = 0;
    for (int r = 0; r < comm->size; r++)
        others += r == comm->rank ? 0 : mesh_bytes(counts[r], dtype);
    return others;
}

int64_t mesh_sent_broadcast(const struct s2s_comm *comm, int64_t len_bytes, int root)
{
    return comm->rank == root ? len_bytes * (comm->size - 1) : 0;
}

int64_t mesh_sent_exchange(const struct s2s_comm *comm, const struct s2s_transfer *list, int n)
{
    int64_t sent = 0;
    for (int i = 0; i < n; i++) {
        if (list[i].peer < 0 || list[i].peer >= comm->size)
            S2S_BUG("a message for rank %d of %s, which has %d", list[i].peer, comm->name,
                    comm->size);
        int64_t len = mesh_bytes(list[i].n, list[i].dtype);
        sent += list[i].send && list[i].peer != comm->rank ? len : 0;
    }
    return sent;
}

void s2s_comm_all_reduce(struct s2s_comm *comm, void *buf, int64_t n, enum s2s_dtype dtype,
                         enum s2s_group_op op)
{
    const int64_t len = mesh_bytes(n, dtype);
    if (comm->size == 1 || len == 0)
        return;
    const int64_t ticket = mesh_enter(comm, "all_reduce", len);
    comm->backend->all_reduce(comm, buf, n, dtype, op);
    comm->sent_bytes += mesh_sent_all_reduce(comm, len);
    mesh_leave(comm->mesh, ticket);
}

static void gather_bytes(struct s2s_comm *comm, char *recv, const char *send, const int64_t *len)
{
    int64_t at = 0;
    for (int r = 0; r < comm->rank; r++)
        at += len[r];
    if (send != recv + at && len[comm->rank] > 0)
        memmove(recv + at, send, (size_t)len[comm->rank]);
    if (comm->size == 1)
        return;
    const int64_t ticket = mesh_enter(comm, "all_gather", len[comm->rank]);
    comm->backend->all_gather(comm, recv, recv + at, len);
    comm->sent_bytes += mesh_sent_all_gather(comm, len[comm->rank]);
    mesh_leave(comm->mesh, ticket);
}

void s2s_comm_all_gather(struct s2s_comm *comm, void *recv, const void *send, int64_t n,
                         enum s2s_dtype dtype)
{
    int64_t *len = s2s_xcalloc((size_t)comm->size, sizeof *len);
    for (int r = 0; r < comm->size; r++)
        len[r] = mesh_bytes(n, dtype);
    gather_bytes(comm, recv, send, len);
    free(len);
}

void s2s_comm_all_gatherv(struct s2s_comm *comm, void *recv, const void *send,
                          const int64_t *counts, enum s2s_dtype dtype)
{
    int64_t *len = s2s_xcalloc((size_t)comm->size, sizeof *len);
    for (int r = 0; r < comm->size; r++)
        len[r] = mesh_bytes(counts[r], dtype);
    gather_bytes(comm, recv, send, len);
    free(len);
}

void s2s_comm_reduce_scatter(struct s2s_comm *comm, void *recv, const void *send,
                             const int64_t *counts, enum s2s_dtype dtype)
{
    if (comm->size == 1) {
        memmove(recv, send, (size_t)mesh_bytes(counts[0], dtype));
        return;
    }
    const int64_t others = mesh_sent_parts(comm, counts, dtype);
    const int64_t ticket = mesh_enter(comm, "reduce_scatter", others);
    comm->backend->reduce_scatter(comm, recv, send, counts, dtype);
    comm->sent_bytes += others;
    mesh_leave(comm->mesh, ticket);
}

void s2s_comm_broadcast(struct s2s_comm *comm, void *buf, int64_t n, enum s2s_dtype dtype, int root)
{
    const int64_t len = mesh_bytes(n, dtype);
    if (comm->size == 1 || len == 0)
        return;
    const int64_t ticket = mesh_enter(comm, "broadcast", len);
    comm->backend->broadcast(comm, buf, len, root);
    comm->sent_bytes += mesh_sent_broadcast(comm, len, root);
    mesh_leave(comm->mesh, ticket);
}

void s2s_comm_all_to_all(struct s2s_comm *comm, void *recv, const int64_t *recv_counts,
                         const void *send, const int64_t *send_counts, enum s2s_dtype dtype)
{
    if (comm->size == 1) {
        memmove(recv, send, (size_t)mesh_bytes(send_counts[0], dtype));
        return;
    }
    const int64_t others = mesh_sent_parts(comm, send_counts, dtype);
    int64_t *len = s2s_xcalloc(2 * (size_t)comm->size, sizeof *len);
    for (int r = 0; r < comm->size; r++) {
        len[r] = mesh_bytes(recv_counts[r], dtype);
        len[comm->size + r] = mesh_bytes(send_counts[r], dtype);
    }
    const int64_t ticket = mesh_enter(comm, "all_to_all", others);
    comm->backend->all_to_all(comm, recv, len, send, len + comm->size);
    comm->sent_bytes += others;
    mesh_leave(comm->mesh, ticket);
    free(len);
}

void s2s_comm_exchange(struct s2s_comm *comm, const struct s2s_transfer *list, int n)
{
    const int64_t sent = mesh_sent_exchange(comm, list, n);
    const int64_t ticket = mesh_enter_exchange(comm, list, n, sent);
    comm->backend->exchange(comm, list, n);
    comm->sent_bytes += sent;
    mesh_leave(comm->mesh, ticket);
}

void s2s_comm_send(struct s2s_comm *comm, const void *buf, int64_t n, enum s2s_dtype dtype, int to)
{
    s2s_comm_exchange(comm, &(struct s2s_transfer){(void *)buf, n, dtype, to, true}, 1);
}

void s2s_comm_recv(struct s2s_comm *comm, void *buf, int64_t n, enum s2s_dtype dtype, int from)
{
    s2s_comm_exchange(comm, &(struct s2s_transfer){buf, n, dtype, from, false}, 1);
}

static void barrier(struct s2s_comm *comm, const char *op)
{
    if (comm->size == 1)
        return;
    const int64_t ticket = mesh_enter(comm, op, 0);
    comm->backend->barrier(comm);
    mesh_leave(comm->mesh, ticket);
}

void s2s_comm_barrier(struct s2s_comm *comm)
{
    barrier(comm, "barrier");
}

void mesh_meet(struct s2s_mesh *mesh, const char *what)
{
    barrier(mesh->world, what);
}

struct s2s_buf *s2s_comm_gather_bufs(struct s2s_comm *comm, const struct s2s_buf *mine)
{
    const int n = comm->size;
    int64_t *lens = s2s_xcalloc((size_t)n, sizeof *lens), len = (int64_t)mine->len, total = 0;
    s2s_comm_all_gather(comm, lens, &len, 1, S2S_I64);
    for (int r = 0; r < n; r++)
        total += lens[r];
    char *all = s2s_xmalloc((size_t)total + 1), *at = all;
    s2s_comm_all_gatherv(comm, all, mine->data, lens, S2S_U8);
    struct s2s_buf *bufs = s2s_xcalloc((size_t)n, sizeof *bufs);
    for (int r = 0; r < n; r++) {
        s2s_buf_add(&bufs[r], at, (size_t)lens[r]);
        at += lens[r];
    }
    free(all);
    free(lens);
    return bufs;
}
