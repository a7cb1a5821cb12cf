/*
 * Groups of tensors in the memories of devices: a link of the kernel table's own library for each
 * communicator, beside the communicator itself, which stays what control data goes over. Nobody
 * waits for an operation here. The watch asks its event, and names it when it takes too long.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "lib/mesh/mesh_internal.h"

/* A rank that is told of another one's failure lets that one speak, and its launcher act: the first
 * is when it speaks itself, if nobody of its node has, the second when it ends. */
#define PATIENCE_S 1.5
#define LAST_S 5.0

struct mesh_links {
    const struct s2s_kernels *kernels;
    struct s2s_queue *queue; /* whose device the memory is of */
    struct s2s_group_ops ops;
    _Atomic bool aborted;
};

/* One operation that was issued. Used again when it is complete and waited for. */
struct issued {
    struct mesh_link *link;
    struct s2s_event *event;
    const char *op;
    _Atomic bool complete;
    bool awaited; /* a started one that nobody has waited for */
    int64_t ticket;
    struct issued *next;
};

struct mesh_link {
    struct s2s_comm *comm;
    struct s2s_link *link;
    struct issued *oldest, *newest;
    int64_t n_started;
    _Atomic double failed_s; /* when another rank's failure was first seen; 0: never */
};

static const struct s2s_collectives *library(const struct s2s_mesh *mesh)
{
    return mesh->links->kernels->collectives;
}

/* ---- who has which device ---- */

struct seat {
    char host[64], device[S2S_DEVICE_ID_BYTES];
    int32_t version, may_share;
};

static int check_seats(const struct s2s_mesh *mesh, const struct seat *seats, struct s2s_error *err)
{
    const struct s2s_collectives *lib = library(mesh);
    for (int b = 1; b < mesh->size; b++) {
        if (seats[b].version != seats[0].version)
            return s2s_error_set(err, S2S_E_VERSION,
                                 "rank 0 on %s has %s %d, and rank %d on %s has %d", seats[0].host,
                                 lib->name, seats[0].version, b, seats[b].host, seats[b].version);
        for (int a = 0; a < b && !seats[b].may_share; a++) {
            if (strcmp(seats[a].host, seats[b].host) != 0 ||
                strcmp(seats[a].device, seats[b].device) != 0)
                continue;
            int rc = s2s_error_set(err, S2S_E_RANGE, "ranks %d and %d on %s have one GPU, %s", a, b,
                                   seats[a].host, seats[a].device);
            return s2s_error_hint(err, rc,
                                  "start as many ranks on a host as it has GPUs, and let each see "
                                  "all of them or one of its own (CUDA_VISIBLE_DEVICES)");
        }
    }
    return 0;
}

int s2s_mesh_use_device(struct s2s_mesh *mesh, const struct s2s_kernels *kernels,
                        struct s2s_queue *queue, struct s2s_error *err)
{
    const struct s2s_collectives *lib = kernels->collectives;
    if (mesh->alone || mesh->links || !lib)
        return 0;
    struct seat mine = {.version = 0};
    int version, rc = lib->load(&version);
    if (rc)
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%d ranks with device \"%s\" need %s: %s",
                           mesh->size, kernels->name, lib->name, lib->status_text(rc));
    if ((rc = s2s_mesh_all_ok(mesh, rc, err)) < 0)
        return rc;
    mesh->links = s2s_xcalloc(1, sizeof *mesh->links);
    mesh->links->kernels = kernels;
    mesh->links->queue = queue;
    mesh->links->ops = mesh_group_ops_links;
    mesh->links->ops.memory = kernels->name;
    mine.version = version;
    mine.may_share = lib->may_share();
    lib->device_id(queue, mine.device);
    if (gethostname(mine.host, sizeof mine.host - 1) < 0)
        snprintf(mine.host, sizeof mine.host, "?");
    struct seat *seats = s2s_xcalloc((size_t)mesh->size, sizeof *seats);
    s2s_comm_all_gather(mesh->world, seats, &mine, sizeof mine, S2S_U8);
    rc = check_seats(mesh, seats, err);
    free(seats);
    return rc;
}

/* ---- life ---- */

static _Noreturn void fail(const struct mesh_link *link, const char *op, int status)
{
    mesh_fail_op(link->comm, op, "%s", library(link->comm->mesh)->status_text(status));
}

const struct s2s_group_ops *mesh_link_open(struct s2s_comm *comm)
{
    struct s2s_mesh *mesh = comm->mesh;
    char id[S2S_LINK_ID_BYTES] = "";
    if (comm->link)
        return &mesh->links->ops;
    struct mesh_link *link = s2s_xcalloc(1, sizeof *link);
    link->comm = comm;
    comm->link = link;
    int status = comm->size > 1 && comm->rank == 0 ? library(mesh)->make_id(id) : 0;
    if (status)
        fail(link, "new link", status);
    s2s_comm_broadcast(comm, id, sizeof id, S2S_U8, 0);
    const int64_t ticket = comm->size > 1 ? mesh_enter(comm, "new link", 0) : 0;
    status = library(mesh)->open(&link->link, mesh->links->queue, comm->size > 1 ? id : NULL,
                                 comm->size, comm->rank);
    if (status)
        fail(link, "new link", status);
    mesh_leave(mesh, ticket);
    return &mesh->links->ops;
}

void mesh_link_close(struct s2s_comm *comm)
{
    struct mesh_link *link = comm->link;
    if (!link)
        return;
    library(comm->mesh)->close(link->link);
    while (link->oldest) {
        struct issued *next = link->oldest->next;
        comm->mesh->links->kernels->event_free(comm->mesh->links->queue, link->oldest->event);
        free(link->oldest);
        link->oldest = next;
    }
    free(link);
    comm->link = NULL;
}

static void *abort_all(void *arg)
{
    struct s2s_mesh *mesh = arg;
    for (size_t i = 0; i < mesh->n_comms; i++)
        if (mesh->comms[i]->link && mesh->comms[i]->link->link)
            library(mesh)->abort(mesh->comms[i]->link->link);
    if (mesh->world->link && mesh->world->link->link)
        library(mesh)->abort(mesh->world->link->link);
    return NULL;
}

/* In a thread of its own, which the process does not wait for: what is broken may hang. */
void mesh_links_abort(struct s2s_mesh *mesh)
{
    pthread_t thread;
    if (!mesh->links || atomic_exchange(&mesh->links->aborted, true) ||
        pthread_create(&thread, NULL, abort_all, mesh) != 0)
        return;
    pthread_detach(thread);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
}

/* ---- what is under way ---- */

/* Another rank failed: does not return when it is time to end. From the thread of the watch, and
 * from the one that was in the operation. */
static void hear_of(struct mesh_link *link, const char *op, int status)
{
    double first_s = 0;
    const double now_s = s2s_now_s();
    if (atomic_compare_exchange_strong(&link->failed_s, &first_s, now_s))
        first_s = now_s;
    if (now_s - first_s > PATIENCE_S && !mesh_watch_was_told(link->comm->mesh))
        fail(link, op, status);
    if (now_s - first_s > LAST_S)
        _exit(1);
}

/* Asked by the watch until it says yes. */
static bool is_complete(void *arg)
{
    struct issued *op = arg;
    struct mesh_link *link = op->link;
    bool remote;
    const int status = library(link->comm->mesh)->failure(link->link, &remote);
    if (status == 0) {
        const bool passed = library(link->comm->mesh)->passed(op->event);
        if (passed)
            atomic_store(&op->complete, true);
        return passed;
    }
    if (!remote)
        fail(link, op->op, status);
    hear_of(link, op->op, status);
    return false;
}

static struct issued *next_op(struct mesh_link *link)
{
    const struct mesh_links *links = link->comm->mesh->links;
    struct issued *op = link->oldest;
    if (op && atomic_load(&op->complete) && !op->awaited) {
        link->oldest = op->next;
        if (link->newest == op)
            link->newest = NULL;
    } else {
        op = s2s_xcalloc(1, sizeof *op);
        op->link = link;
        op->event = links->kernels->event_new(links->queue);
        if (!op->event)
            mesh_fail_op(link->comm, "new event", "out of memory");
    }
    op->next = NULL;
    atomic_store(&op->complete, false);
    op->awaited = false;
    if (link->newest)
        link->newest->next = op;
    else
        link->oldest = op;
    link->newest = op;
    return op;
}

static _Noreturn void fail_in_turn(struct mesh_link *link, const char *op, int status)
{
    bool remote;
    while (library(link->comm->mesh)->failure(link->link, &remote) != 0 && remote) {
        hear_of(link, op, status);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    fail(link, op, status);
}

/* Returns a ticket where it runs beside, else 0. `ticket` is the watch's; len: for its messages. */
static int64_t issue(const struct s2s_group *group, struct s2s_queue *queue, const char *name,
                     int64_t watched, const struct s2s_link_call *call, int64_t sent, bool beside)
{
    struct s2s_comm *comm = group->impl;
    struct mesh_link *link = comm->link;
    struct issued *op = next_op(link);
    op->op = name;
    const int status = library(comm->mesh)->issue(link->link, queue, call, op->event, beside);
    if (status)
        fail_in_turn(link, name, status);
    if (watched > 0) {
        comm->sent_bytes += sent;
        mesh_leave_until(comm->mesh, watched, is_complete, op);
    } else {
        /* a group of one rank: nobody is waited for */
        atomic_store(&op->complete, true);
    }
    if (!beside)
        return 0;
    op->awaited = true;
    return op->ticket = ++link->n_started;
}

static int64_t collective(const struct s2s_group *group, struct s2s_queue *queue, const char *name,
                          const struct s2s_link_call *call, int64_t sent, bool beside)
{
    const int64_t watched = group->size > 1 ? mesh_enter(group->impl, name, sent) : 0;
    return issue(group, queue, name, watched, call, sent, beside);
}

/* ---- operations ---- */

static int64_t all_reduce(const struct s2s_group *group, struct s2s_queue *queue, void *buf,
                          int64_t n, enum s2s_dtype dtype, enum s2s_group_op op, bool beside)
{
    const struct s2s_link_call call = {.kind = S2S_LINK_ALL_REDUCE,
                                       .recv = buf,
                                       .n = n,
                                       .dtype = dtype,
                                       .max = op == S2S_GROUP_MAX};
    return collective(group, queue, "all_reduce", &call,
                      mesh_sent_all_reduce(group->impl, mesh_bytes(n, dtype)), beside);
}

static int64_t all_gather(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                          const void *send, int64_t n, enum s2s_dtype dtype, bool beside)
{
    const struct s2s_link_call call = {
        .kind = S2S_LINK_ALL_GATHER, .recv = recv, .send = send, .n = n, .dtype = dtype};
    return collective(group, queue, "all_gather", &call,
                      mesh_sent_all_gather(group->impl, mesh_bytes(n, dtype)), beside);
}

static int64_t reduce_scatter(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                              const void *send, int64_t n, enum s2s_dtype dtype, bool beside)
{
    const struct s2s_link_call call = {
        .kind = S2S_LINK_REDUCE_SCATTER, .recv = recv, .send = send, .n = n, .dtype = dtype};
    return collective(group, queue, "reduce_scatter", &call,
                      mesh_bytes(n, dtype) * (group->size - 1), beside);
}

/* Parts of different lengths are messages: one to each rank, one from each. */
static void parts(const struct s2s_group *group, struct s2s_queue *queue, const char *name,
                  void *recv, const int64_t *recv_counts, const void *send,
                  const int64_t *send_counts, bool same, enum s2s_dtype dtype, int64_t sent)
{
    struct s2s_link_message *list = s2s_xcalloc(2 * (size_t)group->size, sizeof *list);
    char *to = recv, *from = (char *)send;
    int n = 0;
    for (int r = 0; r < group->size; r++) {
        const int64_t in = mesh_bytes(recv_counts[r], dtype),
                      out = mesh_bytes(send_counts[same ? group->rank : r], dtype);
        list[n++] = (struct s2s_link_message){to, (size_t)in, r, false};
        list[n++] = (struct s2s_link_message){from, (size_t)out, r, true};
        to += in;
        from += same ? 0 : out;
    }
    const struct s2s_link_call call = {.kind = S2S_LINK_EXCHANGE, .list = list, .n_list = n};
    collective(group, queue, name, &call, sent, false);
    free(list);
}

static int64_t exchange(const struct s2s_group *group, struct s2s_queue *queue,
                        const struct s2s_transfer *list, int n, bool beside)
{
    struct s2s_link_message *messages = s2s_xcalloc((size_t)n + 1, sizeof *messages);
    for (int i = 0; i < n; i++)
        messages[i] = (struct s2s_link_message){
            list[i].buf, (size_t)mesh_bytes(list[i].n, list[i].dtype), list[i].peer, list[i].send};
    const struct s2s_link_call call = {.kind = S2S_LINK_EXCHANGE, .list = messages, .n_list = n};
    const int64_t sent = mesh_sent_exchange(group->impl, list, n);
    const int64_t watched = group->size > 1 ? mesh_enter_exchange(group->impl, list, n, sent) : 0;
    const int64_t ticket = issue(group, queue, "exchange", watched, &call, sent, beside);
    free(messages);
    return ticket;
}

/* ---- the table that lib/tensor calls ---- */

static void link_all_reduce(const struct s2s_group *group, struct s2s_queue *queue, void *buf,
                            int64_t n, enum s2s_dtype dtype, enum s2s_group_op op)
{
    all_reduce(group, queue, buf, n, dtype, op, false);
}

static void link_all_gather(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                            const void *send, int64_t n, enum s2s_dtype dtype)
{
    all_gather(group, queue, recv, send, n, dtype, false);
}

static void link_all_gatherv(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                             const void *send, const int64_t *counts, enum s2s_dtype dtype)
{
    parts(group, queue, "all_gather", recv, counts, send, counts, true, dtype,
          mesh_sent_all_gather(group->impl, mesh_bytes(counts[group->rank], dtype)));
}

static void link_reduce_scatter(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                                const void *send, int64_t n, enum s2s_dtype dtype)
{
    reduce_scatter(group, queue, recv, send, n, dtype, false);
}

static void link_all_to_all(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                            const int64_t *recv_counts, const void *send,
                            const int64_t *send_counts, enum s2s_dtype dtype)
{
    parts(group, queue, "all_to_all", recv, recv_counts, send, send_counts, false, dtype,
          mesh_sent_parts(group->impl, send_counts, dtype));
}

static void link_broadcast(const struct s2s_group *group, struct s2s_queue *queue, void *buf,
                           int64_t n, enum s2s_dtype dtype, int root)
{
    const struct s2s_link_call call = {
        .kind = S2S_LINK_BROADCAST, .recv = buf, .n = n, .dtype = dtype, .root = root};
    collective(group, queue, "broadcast", &call,
               mesh_sent_broadcast(group->impl, mesh_bytes(n, dtype), root), false);
}

static void link_exchange(const struct s2s_group *group, struct s2s_queue *queue,
                          const struct s2s_transfer *list, int n)
{
    exchange(group, queue, list, n, false);
}

static int64_t start_all_reduce(const struct s2s_group *group, struct s2s_queue *queue, void *buf,
                                int64_t n, enum s2s_dtype dtype, enum s2s_group_op op)
{
    return all_reduce(group, queue, buf, n, dtype, op, true);
}

static int64_t start_all_gather(const struct s2s_group *group, struct s2s_queue *queue, void *recv,
                                const void *send, int64_t n, enum s2s_dtype dtype)
{
    return all_gather(group, queue, recv, send, n, dtype, true);
}

static int64_t start_reduce_scatter(const struct s2s_group *group, struct s2s_queue *queue,
                                    void *recv, const void *send, int64_t n, enum s2s_dtype dtype)
{
    return reduce_scatter(group, queue, recv, send, n, dtype, true);
}

static int64_t start_exchange(const struct s2s_group *group, struct s2s_queue *queue,
                              const struct s2s_transfer *list, int n)
{
    return exchange(group, queue, list, n, true);
}

static void link_wait(const struct s2s_group *group, struct s2s_queue *queue, int64_t ticket)
{
    const struct s2s_comm *comm = group->impl;
    struct issued *op = comm->link->oldest;
    while (op && !(op->awaited && op->ticket == ticket))
        op = op->next;
    if (!op)
        S2S_BUG("ticket %lld of group %s was not given, or was waited for", (long long)ticket,
                group->axis);
    comm->mesh->links->kernels->event_wait(queue, op->event);
    op->awaited = false;
}

const struct s2s_group_ops mesh_group_ops_links = {
    .all_reduce = link_all_reduce,
    .all_gather = link_all_gather,
    .all_gatherv = link_all_gatherv,
    .reduce_scatter = link_reduce_scatter,
    .all_to_all = link_all_to_all,
    .broadcast = link_broadcast,
    .exchange = link_exchange,
    .start_all_reduce = start_all_reduce,
    .start_all_gather = start_all_gather,
    .start_reduce_scatter = start_reduce_scatter,
    .start_exchange = start_exchange,
    .wait = link_wait,
};
