/* Keeps memory of threads and records for the next ones. */
#include "tools/pack/space.h"

#include <pthread.h>
#include <stdlib.h>

struct pack_space {
    struct pack_worker *workers;
    int n_workers;
    pthread_mutex_t lock;
    struct s2s_buf *spare; /* [n_spare]: as many as there ever were records at once */
    size_t n_spare, cap_spare;
};

struct pack_space *pack_space_new(int n_workers, const struct s2s_mel *mel)
{
    struct pack_space *space = s2s_xcalloc(1, sizeof *space);
    pthread_mutex_init(&space->lock, NULL);
    space->workers = s2s_xcalloc((size_t)n_workers, sizeof *space->workers);
    space->n_workers = n_workers;
    for (int i = 0; i < n_workers; i++)
        space->workers[i] = (struct pack_worker){
            .space = s2s_audio_space_new(),
            .mel = mel ? s2s_mel_work_new(mel) : NULL,
        };
    return space;
}

void pack_space_free(struct pack_space *space)
{
    if (!space)
        return;
    for (int i = 0; i < space->n_workers; i++) {
        s2s_audio_space_free(space->workers[i].space);
        s2s_mel_work_free(space->workers[i].mel);
    }
    for (size_t i = 0; i < space->n_spare; i++)
        s2s_buf_release(&space->spare[i]);
    pthread_mutex_destroy(&space->lock);
    free(space->workers);
    free(space->spare);
    free(space);
}

struct pack_worker *pack_space_worker(struct pack_space *space, int worker)
{
    return &space->workers[worker];
}

void pack_space_take(struct pack_space *space, struct s2s_buf *buf, size_t len)
{
    *buf = (struct s2s_buf)S2S_BUF_INIT;
    pthread_mutex_lock(&space->lock);
    if (space->n_spare > 0)
        *buf = space->spare[--space->n_spare];
    pthread_mutex_unlock(&space->lock);
    s2s_buf_clear(buf);
    if (len < buf->cap)
        return;
    s2s_buf_release(buf); /* nothing of it is worth a copy */
    const size_t cap = len + len / 8 + 1;
    *buf = (struct s2s_buf){s2s_xalloc_aligned(cap), 0, cap};
}

void pack_space_give(struct pack_space *space, struct s2s_buf *buf)
{
    if (!buf->data)
        return;
    pthread_mutex_lock(&space->lock);
    s2s_grow(&space->spare, space->n_spare, &space->cap_spare, sizeof *space->spare);
    space->spare[space->n_spare++] = *buf;
    pthread_mutex_unlock(&space->lock);
    *buf = (struct s2s_buf)S2S_BUF_INIT;
}
