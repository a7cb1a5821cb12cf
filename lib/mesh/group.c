/* The table that lib/tensor calls: communicators on the memory of the CPU table, after its queue.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/mesh/mesh_internal.h"

struct mesh_ticket {
    int64_t ticket, number; /* number: of the order to the thread beside; 0: it is complete */
};

struct mesh_group {
    struct s2s_group group;
    void (*sync)(struct s2s_queue *queue);
    struct mesh_group *next;
    int64_t n_started;
    struct mesh_ticket *open; /* not waited for yet */
    size_t n_open, cap_open;
};

/* The group's communicator, once the queue has done what was issued before. */
static struct s2s_comm *after(const struct s2s_group *group, struct s2s_queue *queue)
{
    const struct mesh_group *g = (const struct mesh_group *)group;
    if (g->sync)
        g->sync(queue);
    return group->impl;
}

static void group_all_reduce(const struct s2s_group *group, struct s2s_queue *queue, void *buf,
                             int64_t n, enum s2s_dtype dtype, enum s2s_group_op op)
{
    s2s_comm_all_reduce(after(group, queue), buf, n, dtype, op);
}

static void group_all_gather(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                             const void *send, int64_t n, enum s2s_dtype dtype)
{
    s2s_comm_all_gather(after(group, queue), recv, send, n, dtype);
}

static void group_all_gatherv(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                              const void *send, const int64_t *counts, enum s2s_dtype dtype)
{
    s2s_comm_all_gatherv(after(group, queue), recv, send, counts, dtype);
}

static void group_reduce_scatter(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                                 const void *send, int64_t n, enum s2s_dtype dtype)
{
    int64_t *counts = s2s_xcalloc((size_t)group->size, sizeof *counts);
    for (int r = 0; r < group->size; r++)
        counts[r] = n;
    s2s_comm_reduce_scatter(after(group, queue), recv, send, counts, dtype);
    free(counts);
}

static void group_all_to_all(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                             const int64_t *recv_counts, const void *send,
                             const int64_t *send_counts, enum s2s_dtype dtype)
{
    s2s_comm_all_to_all(after(group, queue), recv, recv_counts, send, send_counts, dtype);
}

static void group_broadcast(const struct s2s_group *group, struct s2s_queue *queue, void *buf,
                            int64_t n, enum s2s_dtype dtype, int root)
{
    s2s_comm_broadcast(after(group, queue), buf, n, dtype, root);
}

static void group_exchange(const struct s2s_group *group, struct s2s_queue *queue,
                           const struct s2s_transfer *list, int n)
{
    s2s_comm_exchange(after(group, queue), list, n);
}

/* ---- started ones: tickets are kept so that a wrong one is found ---- */

static int64_t new_ticket(const struct s2s_group *group)
{
    struct mesh_group *g = (struct mesh_group *)group;
    s2s_grow(&g->open, g->n_open, &g->cap_open, sizeof *g->open);
    g->open[g->n_open] = (struct mesh_ticket){.ticket = ++g->n_started};
    return g->open[g->n_open++].ticket;
}

/* Of an order to the thread that runs beside. */
static int64_t order(const struct s2s_group *group, struct s2s_queue *queue,
                     const struct mesh_order *what)
{
    struct mesh_group *g = (struct mesh_group *)group;
    const int64_t number = mesh_beside_start(after(group, queue), what), ticket = new_ticket(group);
    g->open[g->n_open - 1].number = number;
    return ticket;
}

int64_t mesh_group_start_all_reduce(const struct s2s_group *group, struct s2s_queue *queue,
                                    void *buf, int64_t n, enum s2s_dtype dtype,
                                    enum s2s_group_op op)
{
    const struct s2s_comm *comm = group->impl;
    if (comm->beside)
        return order(group, queue,
                     &(struct mesh_order){
                         .kind = MESH_ALL_REDUCE, .recv = buf, .n = n, .dtype = dtype, .op = op});
    group->ops->all_reduce(group, queue, buf, n, dtype, op);
    return new_ticket(group);
}

int64_t mesh_group_start_all_gather(const struct s2s_group *group, struct s2s_queue *queue,
                                    void *recv, const void *send, int64_t n, enum s2s_dtype dtype)
{
    const struct s2s_comm *comm = group->impl;
    if (comm->beside)
        return order(
            group, queue,
            &(struct mesh_order){
                .kind = MESH_ALL_GATHER, .recv = recv, .send = send, .n = n, .dtype = dtype});
    group->ops->all_gather(group, queue, recv, send, n, dtype);
    return new_ticket(group);
}

int64_t mesh_group_start_reduce_scatter(const struct s2s_group *group, struct s2s_queue *queue,
                                        void *recv, const void *send, int64_t n,
                                        enum s2s_dtype dtype)
{
    const struct s2s_comm *comm = group->impl;
    if (comm->beside)
        return order(
            group, queue,
            &(struct mesh_order){
                .kind = MESH_REDUCE_SCATTER, .recv = recv, .send = send, .n = n, .dtype = dtype});
    group->ops->reduce_scatter(group, queue, recv, send, n, dtype);
    return new_ticket(group);
}

int64_t mesh_group_start_exchange(const struct s2s_group *group, struct s2s_queue *queue,
                                  const struct s2s_transfer *list, int n)
{
    group->ops->exchange(group, queue, list, n);
    return new_ticket(group);
}

void mesh_group_wait(const struct s2s_group *group, struct s2s_queue *queue, int64_t ticket)
{
    struct mesh_group *g = (struct mesh_group *)group;
    (void)queue;
    size_t i = 0;
    while (i < g->n_open && g->open[i].ticket != ticket)
        i++;
    if (i == g->n_open)
        S2S_BUG("ticket %lld of group %s was not given, or was waited for", (long long)ticket,
                group->axis);
    if (g->open[i].number > 0)
        mesh_beside_wait(group->impl, g->open[i].number);
    g->open[i] = g->open[--g->n_open];
}

static void group_run_beside(const struct s2s_group *group)
{
    s2s_comm_run_beside(group->impl);
}

const struct s2s_group_ops mesh_group_ops = {
    .memory = "cpu",
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
    .run_beside = group_run_beside,
};

const struct s2s_group *s2s_comm_group(struct s2s_comm *comm, const char *axis,
                                       void (*sync)(struct s2s_queue *queue))
{
    for (struct mesh_group *g = comm->groups; g; g = g->next)
        if (strcmp(g->group.axis, axis) == 0 && g->sync == sync)
            return &g->group;
    const struct s2s_group_ops *ops =
        comm->mesh->links ? mesh_link_open(comm) : comm->mesh->group_ops;
    struct mesh_group *g = s2s_xcalloc(1, sizeof *g);
    *g = (struct mesh_group){
        .group = {.axis = axis, .size = comm->size, .rank = comm->rank, .ops = ops, .impl = comm},
        .sync = sync,
        .next = comm->groups};
    comm->groups = g;
    return &g->group;
}

void mesh_groups_free(struct mesh_group *groups)
{
    while (groups) {
        struct mesh_group *next = groups->next;
        free(groups->open);
        free(groups);
        groups = next;
    }
}
