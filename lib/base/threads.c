/* Threads that take items in turn and hand over results in order. */
#include "lib/base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

/* How far the source may run ahead of the sink. */
enum { ITEMS_PER_THREAD = 4 };

int s2s_n_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

enum slot_state { SLOT_EMPTY, SLOT_READY, SLOT_BUSY, SLOT_DONE };

struct slot {
    enum slot_state state;
    void *item;
    int rc;
    struct s2s_error err;
};

/* A ring of slots: the source fills at `filled`, workers take at `taken`, the sink empties at
 * `drained`. */
struct ring {
    const struct s2s_ordered *stages;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct slot *slots;
    size_t size, filled, taken, drained;
    bool ended; /* no more items: the source has ended, or something failed */
    int next_worker;
};

static void *worker_main(void *arg)
{
    struct ring *ring = arg;
    pthread_mutex_lock(&ring->lock);
    int worker = ring->next_worker++;
    for (;;) {
        while (ring->taken == ring->filled && !ring->ended)
            pthread_cond_wait(&ring->changed, &ring->lock);
        if (ring->taken == ring->filled)
            break;
        struct slot *slot = &ring->slots[ring->taken++ % ring->size];
        slot->state = SLOT_BUSY;
        pthread_mutex_unlock(&ring->lock);
        slot->rc = ring->stages->work(ring->stages->ctx, slot->item, worker, &slot->err);
        pthread_mutex_lock(&ring->lock);
        slot->state = SLOT_DONE;
        pthread_cond_broadcast(&ring->changed);
    }
    pthread_mutex_unlock(&ring->lock);
    return NULL;
}

/* Takes items from the source until the ring is full. Returns 0, or the source's error. */
static int fill(struct ring *ring, struct s2s_error *err)
{
    while (!ring->ended && ring->filled - ring->drained < ring->size) {
        void *item = NULL;
        int rc = ring->stages->source(ring->stages->ctx, &item, err);
        pthread_mutex_lock(&ring->lock);
        if (rc > 0) {
            ring->slots[ring->filled % ring->size] =
                (struct slot){.state = SLOT_READY, .item = item};
            ring->filled++;
        } else {
            ring->ended = true;
        }
        pthread_cond_broadcast(&ring->changed);
        pthread_mutex_unlock(&ring->lock);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void drop_item(const struct s2s_ordered *stages, void *item)
{
    if (stages->drop)
        stages->drop(stages->ctx, item);
}

/* Waits for the oldest item and passes it to the sink, or drops it if an earlier one failed. */
static int drain_one(struct ring *ring, bool failed, struct s2s_error *err)
{
    pthread_mutex_lock(&ring->lock);
    struct slot *slot = &ring->slots[ring->drained % ring->size];
    while (slot->state != SLOT_DONE)
        pthread_cond_wait(&ring->changed, &ring->lock);
    pthread_mutex_unlock(&ring->lock);
    ring->drained++;
    if (failed || slot->rc < 0) {
        drop_item(ring->stages, slot->item);
        if (!failed && err)
            *err = slot->err;
        return failed ? 0 : slot->rc;
    }
    return ring->stages->sink(ring->stages->ctx, slot->item, err);
}

static int run_serially(const struct s2s_ordered *stages, struct s2s_error *err)
{
    void *item;
    int rc;
    while ((rc = stages->source(stages->ctx, &item, err)) > 0) {
        rc = stages->work(stages->ctx, item, 0, err);
        if (rc < 0) {
            drop_item(stages, item);
            return rc;
        }
        rc = stages->sink(stages->ctx, item, err);
        if (rc < 0)
            return rc;
    }
    return rc;
}

int s2s_ordered_run(const struct s2s_ordered *stages, int n_threads, struct s2s_error *err)
{
    if (n_threads <= 1)
        return run_serially(stages, err);
    struct ring ring = {.stages = stages, .size = ITEMS_PER_THREAD * (size_t)n_threads};
    if (stages->n_items > 0)
        ring.size = (size_t)(stages->n_items > n_threads ? stages->n_items : n_threads);
    ring.slots = s2s_xcalloc(ring.size, sizeof *ring.slots);
    pthread_mutex_init(&ring.lock, NULL);
    pthread_cond_init(&ring.changed, NULL);
    pthread_t *threads = s2s_xcalloc((size_t)n_threads, sizeof *threads);
    int n_started = 0, rc = 0, source_rc = 0;
    struct s2s_error source_err = S2S_ERROR_INIT;
    while (n_started < n_threads &&
           pthread_create(&threads[n_started], NULL, worker_main, &ring) == 0)
        n_started++;
    if (n_started == 0) { /* no thread could be created */
        rc = run_serially(stages, err);
        goto out;
    }
    for (;;) {
        if (rc == 0 && source_rc == 0)
            source_rc = fill(&ring, &source_err);
        if (ring.drained == ring.filled)
            break;
        int one = drain_one(&ring, rc < 0, err);
        if (one < 0 && rc == 0) {
            rc = one;
            pthread_mutex_lock(&ring.lock);
            ring.ended = true;
            pthread_cond_broadcast(&ring.changed);
            pthread_mutex_unlock(&ring.lock);
        }
    }
    if (rc == 0 && source_rc < 0) {
        rc = source_rc;
        if (err)
            *err = source_err;
    }
out:
    for (int i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
    pthread_cond_destroy(&ring.changed);
    pthread_mutex_destroy(&ring.lock);
    free(threads);
    free(ring.slots);
    return rc;
}

struct range {
    atomic_size_t next;
    atomic_int next_worker;
    size_t n;
    void (*fn)(void *ctx, size_t i, int worker);
    void *ctx;
};

static void *range_main(void *arg)
{
    struct range *range = arg;
    int worker = atomic_fetch_add(&range->next_worker, 1);
    for (size_t i; (i = atomic_fetch_add(&range->next, 1)) < range->n;)
        range->fn(range->ctx, i, worker);
    return NULL;
}

void s2s_parallel_for(size_t n, int n_threads, void (*fn)(void *ctx, size_t i, int worker),
                      void *ctx)
{
    struct range range = {.n = n, .fn = fn, .ctx = ctx};
    size_t n_helpers = n_threads > 1 ? (size_t)n_threads - 1 : 0, n_started = 0;
    if (n_helpers >= n)
        n_helpers = n ? n - 1 : 0;
    pthread_t *threads = s2s_xcalloc(n_helpers, sizeof *threads);
    while (n_started < n_helpers &&
           pthread_create(&threads[n_started], NULL, range_main, &range) == 0)
        n_started++;
    range_main(&range); /* the caller works, too, and alone if no thread could be created */
    for (size_t i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
    free(threads);
}
