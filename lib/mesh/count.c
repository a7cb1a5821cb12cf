/*
 * The backend that counts: one rank of a launch that was not started. Communicators of host memory
 * give this rank's part for everybody's, so that a program runs; groups of tensors only count.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/mesh/mesh_internal.h"

/* As much of a part as fits, then zeros. */
static void copy_part(char *dst, int64_t dst_bytes, const char *src, int64_t src_bytes)
{
    const size_t n = (size_t)(src_bytes < dst_bytes ? src_bytes : dst_bytes);
    if (n > 0)
        memmove(dst, src, n);
    if ((size_t)dst_bytes > n)
        memset(dst + n, 0, (size_t)dst_bytes - n);
}

static void count_all_reduce(struct s2s_comm *comm, void *buf, int64_t n, enum s2s_dtype dtype,
                             enum s2s_group_op op)
{
    (void)comm, (void)buf, (void)n, (void)dtype, (void)op;
}

static void count_all_gather(struct s2s_comm *comm, char *recv, const char *send,
                             const int64_t *len_bytes)
{
    for (int r = 0; r < comm->size; r++) {
        if (r != comm->rank)
            copy_part(recv, len_bytes[r], send, len_bytes[comm->rank]);
        recv += len_bytes[r];
    }
}

static void count_reduce_scatter(struct s2s_comm *comm, char *recv, const char *send,
                                 const int64_t *counts, enum s2s_dtype dtype)
{
    const int64_t len = mesh_bytes(counts[comm->rank], dtype);
    for (int r = 0; r < comm->rank; r++)
        send += mesh_bytes(counts[r], dtype);
    copy_part(recv, len, send, len);
}

static void count_broadcast(struct s2s_comm *comm, char *buf, int64_t len_bytes, int root)
{
    (void)comm, (void)buf, (void)len_bytes, (void)root;
}

/* From everybody comes what this rank has for itself. */
static void count_all_to_all(struct s2s_comm *comm, char *recv, const int64_t *recv_bytes,
                             const char *send, const int64_t *send_bytes)
{
    for (int r = 0; r < comm->rank; r++)
        send += send_bytes[r];
    for (int r = 0; r < comm->size; r++) {
        copy_part(recv, recv_bytes[r], send, send_bytes[comm->rank]);
        recv += recv_bytes[r];
    }
}

static void count_exchange(struct s2s_comm *comm, const struct s2s_transfer *list, int n)
{
    for (int i = 0; i < n; i++)
        if (list[i].send && list[i].peer == comm->rank)
            mesh_self_put(comm, &list[i]);
    for (int i = 0; i < n; i++) {
        if (list[i].send)
            continue;
        if (list[i].peer == comm->rank)
            mesh_self_take(comm, &list[i]);
        else
            memset(list[i].buf, 0, (size_t)mesh_bytes(list[i].n, list[i].dtype));
    }
}

static void count_barrier(struct s2s_comm *comm)
{
    (void)comm;
}

static void count_split(struct s2s_comm *comm, const int *world_ranks, int n)
{
    (void)world_ranks, (void)n;
    comm->impl = NULL;
}

static _Noreturn void count_abort(int status)
{
    _exit(status);
}

const struct mesh_backend mesh_backend_count = {
    .name = "count",
    .all_reduce = count_all_reduce,
    .all_gather = count_all_gather,
    .reduce_scatter = count_reduce_scatter,
    .broadcast = count_broadcast,
    .all_to_all = count_all_to_all,
    .exchange = count_exchange,
    .barrier = count_barrier,
    .split = count_split,
    .free = mesh_self_free,
    .abort = count_abort,
};

/* ---- groups of tensors: numbers alone ---- */

static void add(const struct s2s_group *group, int64_t sent_bytes)
{
    struct s2s_comm *comm = group->impl;
    comm->sent_bytes += sent_bytes;
}

static void group_all_reduce(const struct s2s_group *group, struct s2s_queue *queue, void *buf,
                             int64_t n, enum s2s_dtype dtype, enum s2s_group_op op)
{
    (void)queue, (void)buf, (void)op;
    add(group, mesh_sent_all_reduce(group->impl, mesh_bytes(n, dtype)));
}

static void group_all_gather(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                             const void *send, int64_t n, enum s2s_dtype dtype)
{
    (void)queue, (void)recv, (void)send;
    add(group, mesh_sent_all_gather(group->impl, mesh_bytes(n, dtype)));
}

static void group_all_gatherv(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                              const void *send, const int64_t *counts, enum s2s_dtype dtype)
{
    (void)queue, (void)recv, (void)send;
    add(group, mesh_sent_all_gather(group->impl, mesh_bytes(counts[group->rank], dtype)));
}

static void group_reduce_scatter(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                                 const void *send, int64_t n, enum s2s_dtype dtype)
{
    (void)queue, (void)recv, (void)send;
    add(group, mesh_bytes(n, dtype) * (group->size - 1));
}

static void group_all_to_all(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                             const int64_t *recv_counts, const void *send,
                             const int64_t *send_counts, enum s2s_dtype dtype)
{
    (void)queue, (void)recv, (void)recv_counts, (void)send;
    add(group, mesh_sent_parts(group->impl, send_counts, dtype));
}

static void group_broadcast(const struct s2s_group *group, struct s2s_queue *queue, void *buf,
                            int64_t n, enum s2s_dtype dtype, int root)
{
    (void)queue, (void)buf;
    add(group, mesh_sent_broadcast(group->impl, mesh_bytes(n, dtype), root));
}

static void group_exchange(const struct s2s_group *group, struct s2s_queue *queue,
                           const struct s2s_transfer *list, int n)
{
    (void)queue;
    add(group, mesh_sent_exchange(group->impl, list, n));
}

const struct s2s_group_ops mesh_group_ops_count = {
    .memory = "count",
    .all_reduce = group_all_reduce,
    .all_gather = group_all_gather,
    .all_gatherv = group_all_gatherv,
    .reduce_scatter = group_reduce_scatter,
    .all_to_all = group_all_to_all,
    .broadcast = group_broadcast,
    .exchange = group_exchange,
    .start_all_reduce = mesh_group_start_all_reduce,
    .start_all_gather = mesh_group_start_all_gather,
    .start_reduce_scatter = mesh_group_start_reduce_scatter,
    .start_exchange = mesh_group_start_exchange,
    .wait = mesh_group_wait,
};
