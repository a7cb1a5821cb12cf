/* Passes pieces of bytes to a thread that writes them. */
#include "lib/io/behind.h"

#include <pthread.h>
#include <stdint.h>

#include "lib/base/base.h"
#include "lib/base/threads.h"

enum { N_PIECES = 4 }; /* one is being filled, up to three wait for the sink */

struct s2s_behind {
    s2s_behind_sink *sink;
    void *ctx;
    char *pieces; /* N_PIECES, or 1 without a thread; NULL until needed */
    size_t fill;  /* bytes in the piece being filled */
    bool is_threaded, is_running;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint64_t n_filled, n_taken; /* full pieces handed to the thread; of those, taken by the sink */
    bool stop;
    int rc; /* the sink's error, on the thread */
    struct s2s_error err;
};

struct s2s_behind *s2s_behind_new(s2s_behind_sink *sink, void *ctx, bool is_threaded)
{
    struct s2s_behind *behind = s2s_xmalloc(sizeof *behind);
    *behind = (struct s2s_behind){.sink = sink,
                                  .ctx = ctx,
                                  .is_threaded = is_threaded,
                                  .lock = PTHREAD_MUTEX_INITIALIZER,
                                  .change = PTHREAD_COND_INITIALIZER,
                                  .err = S2S_ERROR_INIT};
    return behind;
}

/* The n-th piece handed to the thread, counted from 0. */
static char *piece(struct s2s_behind *behind, uint64_t n)
{
    return behind->pieces + n % N_PIECES * S2S_BEHIND_PIECE;
}

static void *pass_on(void *arg)
{
    struct s2s_behind *behind = arg;
    pthread_mutex_lock(&behind->lock);
    for (;;) {
        while (behind->n_taken == behind->n_filled && !behind->stop)
            pthread_cond_wait(&behind->change, &behind->lock);
        if (behind->stop || behind->rc < 0)
            break;
        pthread_mutex_unlock(&behind->lock);
        int rc = behind->sink(behind->ctx, piece(behind, behind->n_taken), S2S_BEHIND_PIECE,
                              &behind->err);
        pthread_mutex_lock(&behind->lock);
        behind->n_taken++;
        behind->rc = rc;
        pthread_cond_signal(&behind->change);
    }
    pthread_mutex_unlock(&behind->lock);
    return NULL;
}

static bool has_thread(struct s2s_behind *behind)
{
    if (behind->is_threaded && !behind->is_running) {
        behind->is_running =
            s2s_n_cores() > 1 && pthread_create(&behind->thread, NULL, pass_on, behind) == 0;
        behind->is_threaded = behind->is_running;
    }
    return behind->is_running;
}

/* Waits until at most n_pieces are left to take. */
static int wait_for(struct s2s_behind *behind, uint64_t n_pieces, struct s2s_error *err)
{
    pthread_mutex_lock(&behind->lock);
    while (behind->n_filled - behind->n_taken > n_pieces && behind->rc == 0)
        pthread_cond_wait(&behind->change, &behind->lock);
    const int rc = behind->rc;
    pthread_mutex_unlock(&behind->lock);
    if (rc < 0 && err)
        *err = behind->err;
    return rc;
}

/* Passes on the piece that is now full. */
static int pass(struct s2s_behind *behind, struct s2s_error *err)
{
    behind->fill = 0;
    if (!has_thread(behind))
        return behind->sink(behind->ctx, behind->pieces, S2S_BEHIND_PIECE, err);
    pthread_mutex_lock(&behind->lock);
    behind->n_filled++;
    pthread_cond_signal(&behind->change);
    pthread_mutex_unlock(&behind->lock);
    return wait_for(behind, N_PIECES - 1, err);
}

int s2s_behind_add(struct s2s_behind *behind, const void *bytes, size_t len, struct s2s_error *err)
{
    const char *from = bytes;
    int rc = 0;
    if (!behind->pieces)
        behind->pieces =
            s2s_xalloc_aligned((size_t)(behind->is_threaded ? N_PIECES : 1) * S2S_BEHIND_PIECE);
    while (len > 0 && rc == 0) {
        if (len >= S2S_BEHIND_PIECE && !has_thread(behind)) { /* no copy */
            rc = s2s_behind_flush(behind, err);
            return rc < 0 ? rc : behind->sink(behind->ctx, from, len, err);
        }
        const size_t room = S2S_BEHIND_PIECE - behind->fill, n = room < len ? room : len;
        memcpy(piece(behind, behind->n_filled) + behind->fill, from, n);
        behind->fill += n;
        from += n;
        len -= n;
        if (behind->fill == S2S_BEHIND_PIECE)
            rc = pass(behind, err);
    }
    return rc;
}

int s2s_behind_flush(struct s2s_behind *behind, struct s2s_error *err)
{
    const size_t len = behind->fill;
    int rc = behind->is_running ? wait_for(behind, 0, err) : 0;
    behind->fill = 0;
    if (rc == 0 && len)
        rc = behind->sink(behind->ctx, piece(behind, behind->n_filled), len, err);
    return rc;
}

void s2s_behind_free(struct s2s_behind *behind)
{
    if (!behind)
        return;
    if (behind->is_running) {
        pthread_mutex_lock(&behind->lock);
        behind->stop = true;
        pthread_cond_signal(&behind->change);
        pthread_mutex_unlock(&behind->lock);
        pthread_join(behind->thread, NULL);
    }
    free(behind->pieces);
    free(behind);
}
