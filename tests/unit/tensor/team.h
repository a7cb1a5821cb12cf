/* A group whose ranks are threads of this process: collectives on host memory, for tests. */
#ifndef TENSOR_TEAM_H
#define TENSOR_TEAM_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/tensor/device.h"
#include "lib/tensor/par.h"
#include "lib/tensor/tensor.h"

enum { TEAM_MAX = 4 };

struct team {
    pthread_barrier_t barrier;
    struct s2s_group group[TEAM_MAX];
    const void *buf[TEAM_MAX];
    const int64_t *counts[TEAM_MAX];
    int calls[TEAM_MAX]; /* collectives of each rank */
    pthread_mutex_t lock;
    pthread_cond_t change;
    /* messages from one rank to another, in order: how many were sent and taken, and where the
     * last one sent is */
    struct team_link {
        int64_t n_sent, n_taken;
        const struct s2s_transfer *sent;
    } links[TEAM_MAX][TEAM_MAX];
};

static void team_meet(const struct s2s_group *g, const void *buf, const int64_t *counts)
{
    struct team *team = g->impl;
    team->calls[g->rank]++;
    team->buf[g->rank] = buf;
    team->counts[g->rank] = counts;
    pthread_barrier_wait(&team->barrier);
}

/* Nobody goes on before all have read. */
static void team_part(const struct s2s_group *g)
{
    pthread_barrier_wait(&((struct team *)g->impl)->barrier);
}

/* Nothing has no address. */
static void team_copy(void *dst, const void *src, size_t bytes)
{
    if (bytes > 0)
        memcpy(dst, src, bytes);
}

static float *team_sum(const struct s2s_group *g, int64_t begin, int64_t n)
{
    const struct team *team = g->impl;
    float *sum = s2s_xcalloc((size_t)n + 1, sizeof *sum);
    for (int r = 0; r < g->size; r++)
        for (int64_t i = 0; i < n; i++)
            sum[i] += ((const float *)team->buf[r])[begin + i];
    return sum;
}

static void team_all_reduce(const struct s2s_group *g, struct s2s_queue *queue, void *buf,
                            int64_t n, enum s2s_dtype dtype, enum s2s_group_op op)
{
    team_meet(g, buf, NULL);
    float *sum = team_sum(g, 0, n);
    team_part(g);
    team_copy(buf, sum, (size_t)n * sizeof *sum);
    free(sum);
}

static void team_all_gather(const struct s2s_group *g, struct s2s_queue *queue, void *recv,
                            const void *send, int64_t n, enum s2s_dtype dtype)
{
    const struct team *team = g->impl;
    team_meet(g, send, NULL);
    for (int r = 0; r < g->size; r++)
        if ((const float *)recv + r * n != team->buf[r])
            team_copy((float *)recv + r * n, team->buf[r], (size_t)n * sizeof(float));
    team_part(g);
}

static void team_reduce_scatter(const struct s2s_group *g, struct s2s_queue *queue, void *recv,
                                const void *send, int64_t n, enum s2s_dtype dtype)
{
    team_meet(g, send, NULL);
    float *sum = team_sum(g, g->rank * n, n);
    team_part(g);
    team_copy(recv, sum, (size_t)n * sizeof *sum);
    free(sum);
}

static void team_all_to_all(const struct s2s_group *g, struct s2s_queue *queue, void *recv,
                            const int64_t *recv_counts, const void *send,
                            const int64_t *send_counts, enum s2s_dtype dtype)
{
    const struct team *team = g->impl;
    float *to = recv;
    team_meet(g, send, send_counts);
    for (int r = 0; r < g->size; r++) {
        int64_t begin = 0;
        for (int before = 0; before < g->rank; before++)
            begin += team->counts[r][before];
        team_copy(to, (const float *)team->buf[r] + begin, (size_t)recv_counts[r] * sizeof(float));
        to += recv_counts[r];
    }
    team_part(g);
}

/* A message of the list whose turn it is; a length that differs ends the test. */
static bool team_post(const struct s2s_group *g, const struct s2s_transfer *t)
{
    struct team *team = g->impl;
    struct team_link *link =
        t->send ? &team->links[g->rank][t->peer] : &team->links[t->peer][g->rank];
    if (t->send ? link->n_sent > link->n_taken : link->n_sent == link->n_taken)
        return false;
    if (t->send) {
        link->sent = t;
        link->n_sent++;
        return true;
    }
    if (link->sent->n != t->n || link->sent->dtype != t->dtype)
        S2S_BUG("rank %d sends nothing like what rank %d expects", t->peer, g->rank);
    if (t->n > 0)
        team_copy(t->buf, link->sent->buf, (size_t)t->n * s2s_dtype_size(t->dtype));
    link->n_taken++;
    return true;
}

/* Whether everything that this rank sent was taken. */
static bool team_delivered(const struct s2s_group *g)
{
    const struct team *team = g->impl;
    for (int r = 0; r < g->size; r++)
        if (team->links[g->rank][r].n_sent > team->links[g->rank][r].n_taken)
            return false;
    return true;
}

/* Ends when all was received and all that was sent was taken, as an MPI without buffers would. */
static void team_exchange(const struct s2s_group *g, struct s2s_queue *queue,
                          const struct s2s_transfer *list, int n)
{
    struct team *team = g->impl;
    bool done[32] = {false};
    int left = n;
    pthread_mutex_lock(&team->lock);
    team->calls[g->rank]++;
    while (left > 0 || !team_delivered(g)) {
        bool blocked[2][TEAM_MAX] = {{false}}; /* messages between two ranks keep their order */
        const int before = left;
        for (int i = 0; i < n; i++) {
            bool *is_blocked = &blocked[list[i].send][list[i].peer];
            if (done[i] || *is_blocked)
                continue;
            done[i] = team_post(g, &list[i]);
            *is_blocked = !done[i];
            left -= done[i];
        }
        if (left < before)
            pthread_cond_broadcast(&team->change);
        else
            pthread_cond_wait(&team->change, &team->lock);
    }
    pthread_mutex_unlock(&team->lock);
}

/* Complete at once. */
static int64_t team_start_exchange(const struct s2s_group *g, struct s2s_queue *queue,
                                   const struct s2s_transfer *list, int n)
{
    team_exchange(g, queue, list, n);
    return 1;
}

static int64_t team_start_all_reduce(const struct s2s_group *g, struct s2s_queue *queue, void *buf,
                                     int64_t n, enum s2s_dtype dtype, enum s2s_group_op op)
{
    team_all_reduce(g, queue, buf, n, dtype, op);
    return 1;
}

static int64_t team_start_all_gather(const struct s2s_group *g, struct s2s_queue *queue, void *recv,
                                     const void *send, int64_t n, enum s2s_dtype dtype)
{
    team_all_gather(g, queue, recv, send, n, dtype);
    return 1;
}

static int64_t team_start_reduce_scatter(const struct s2s_group *g, struct s2s_queue *queue,
                                         void *recv, const void *send, int64_t n,
                                         enum s2s_dtype dtype)
{
    team_reduce_scatter(g, queue, recv, send, n, dtype);
    return 1;
}

static void team_wait(const struct s2s_group *g, struct s2s_queue *queue, int64_t ticket)
{
}

static const struct s2s_group_ops team_ops = {.memory = "cpu",
                                              .all_reduce = team_all_reduce,
                                              .all_gather = team_all_gather,
                                              .reduce_scatter = team_reduce_scatter,
                                              .all_to_all = team_all_to_all,
                                              .exchange = team_exchange,
                                              .start_exchange = team_start_exchange,
                                              .start_all_reduce = team_start_all_reduce,
                                              .start_all_gather = team_start_all_gather,
                                              .start_reduce_scatter = team_start_reduce_scatter,
                                              .wait = team_wait};

struct team_member {
    struct team *team;
    const struct s2s_group *group;
    void (*run)(const struct s2s_group *group, void *ctx);
    void *ctx;
};

static void *team_thread(void *arg)
{
    const struct team_member *m = arg;
    m->run(m->group, m->ctx);
    return NULL;
}

/* run(group, ctx) as each of size ranks. */
static inline void team_run(struct team *team, int size,
                            void (*run)(const struct s2s_group *group, void *ctx), void *ctx)
{
    pthread_t threads[TEAM_MAX];
    struct team_member members[TEAM_MAX];
    *team = (struct team){.calls = {0}};
    pthread_barrier_init(&team->barrier, NULL, (unsigned)size);
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->change, NULL);
    for (int r = 0; r < size; r++) {
        team->group[r] = (struct s2s_group){"tp", size, r, &team_ops, team};
        members[r] = (struct team_member){team, &team->group[r], run, ctx};
        pthread_create(&threads[r], NULL, team_thread, &members[r]);
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&team->barrier);
    pthread_mutex_destroy(&team->lock);
    pthread_cond_destroy(&team->change);
}

/* The device of a rank, one thread, and a tape on it. */
static inline struct s2s_tape *open_tape(struct s2s_device **device, bool records)
{
    if (s2s_device_open(device, "cpu", NULL) < 0)
        S2S_BUG("no device");
    (*device)->queue.lanes = 1;
    return s2s_tape_new(*device, records);
}

static inline void close_tape(struct s2s_tape *tape, struct s2s_device *device)
{
    s2s_tape_free(tape);
    s2s_device_close(device);
}

#endif
