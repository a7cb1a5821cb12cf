/*
 * A thread that runs started operations beside the computation. MPI moves large messages only while
 * somebody is inside it, so an operation that nobody attends to would wait for its wait.
 */
#include <stdlib.h>
#include <signal.h>

#include "lib/mesh/mesh_internal.h"

struct mesh_beside {
    struct s2s_comm *comm; /* the same ranks, for the thread alone */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    struct mesh_order *orders; /* those not done yet, the first of them is number n_done + 1 */
    size_t n, cap;
    int64_t n_done, sent_bytes;
    bool stop;
};

static void obey(struct s2s_comm *comm, const struct mesh_order *o)
{
    int64_t *counts;
    switch (o->kind) {
    case MESH_ALL_REDUCE:
        s2s_comm_all_reduce(comm, o->recv, o->n, o->dtype, o->op);
        break;
    case MESH_ALL_GATHER:
        s2s_comm_all_gather(comm, o->recv, o->send, o->n, o->dtype);
        break;
    case MESH_REDUCE_SCATTER:
        counts = s2s_xcalloc((size_t)comm->size, sizeof *counts);
        for (int r = 0; r < comm->size; r++)
            counts[r] = o->n;
        s2s_comm_reduce_scatter(comm, o->recv, o->send, counts, o->dtype);
        free(counts);
        break;
    }
}

static void *run(void *arg)
{
    struct mesh_beside *b = arg;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (b->n == 0 && !b->stop)
            pthread_cond_wait(&b->changed, &b->lock);
        if (b->n == 0)
            break;
        const struct mesh_order order = b->orders[0];
        pthread_mutex_unlock(&b->lock);
        obey(b->comm, &order);
        pthread_mutex_lock(&b->lock);
        memmove(b->orders, b->orders + 1, --b->n * sizeof *b->orders);
        b->n_done++;
        b->sent_bytes = b->comm->sent_bytes;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

void s2s_comm_run_beside(struct s2s_comm *comm)
{
    if (comm->size == 1 || comm->mesh->alone || comm->mesh->threads != MESH_ANY_THREAD ||
        comm->beside)
        return;
    struct mesh_beside *b = s2s_xcalloc(1, sizeof *b);
    char *name = s2s_xasprintf("%s beside", comm->name);
    b->comm = mesh_comm_new(comm->mesh, name, comm->world_ranks, comm->size, comm->rank);
    b->comm->patient = true;
    free(name);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&b->thread, NULL, run, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        mesh_fail_op(comm, "new thread", "%s", strerror(rc));
    comm->beside = b;
}

int64_t mesh_beside_start(struct s2s_comm *comm, const struct mesh_order *order)
{
    struct mesh_beside *b = comm->beside;
    pthread_mutex_lock(&b->lock);
    s2s_grow(&b->orders, b->n, &b->cap, sizeof *b->orders);
    b->orders[b->n++] = *order;
    const int64_t number = b->n_done + (int64_t)b->n;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return number;
}

void mesh_beside_wait(struct s2s_comm *comm, int64_t number)
{
    struct mesh_beside *b = comm->beside;
    pthread_mutex_lock(&b->lock);
    while (b->n_done < number)
        pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

int64_t mesh_beside_sent_bytes(const struct s2s_comm *comm)
{
    struct mesh_beside *b = comm->beside;
    if (!b)
        return 0;
    pthread_mutex_lock(&b->lock);
    const int64_t bytes = b->sent_bytes;
    pthread_mutex_unlock(&b->lock);
    return bytes;
}

void mesh_beside_free(struct s2s_comm *comm)
{
    struct mesh_beside *b = comm->beside;
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    mesh_comm_free(b->comm);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b->orders);
    free(b);
    comm->beside = NULL;
}
