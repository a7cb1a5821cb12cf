/* Compresses frames on several threads and writes them in order. */
#include "lib/io/zstdseek.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include <zstd.h>

#include "lib/base/base.h"
#include "lib/io/digest.h"
#include "lib/io/outfile.h"

enum slot_state { SLOT_EMPTY, SLOT_FULL, SLOT_BUSY, SLOT_DONE };

struct slot {
    enum slot_state state;
    struct s2s_buf in; /* content */
    char *out;         /* compressed content */
    size_t out_cap, out_len;
    const char *failure;
};

struct s2s_zstd_writer {
    struct s2s_outfile *out;
    struct s2s_zstd_table table;
    int level;
    /* ring of frames: [written, taken) are compressed or being compressed, [taken, filled) wait */
    struct slot *slots;
    size_t n_slots, filled, taken, written;
    bool stopping;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t *threads;
    int n_threads;
    ZSTD_CCtx *own; /* for the caller's thread, if there are no others */
};

static ZSTD_CCtx *new_context(int level)
{
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    if (!ctx)
        s2s_no_memory();
    ZSTD_CCtx_setParameter(ctx, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(ctx, ZSTD_c_checksumFlag, 1);
    return ctx;
}

static void compress_slot(ZSTD_CCtx *ctx, struct slot *slot)
{
    size_t bound = ZSTD_compressBound(slot->in.len);
    if (bound > slot->out_cap) {
        slot->out = s2s_xrealloc(slot->out, bound, 1);
        slot->out_cap = bound;
    }
    size_t len = ZSTD_compress2(ctx, slot->out, slot->out_cap, slot->in.data, slot->in.len);
    slot->failure = ZSTD_isError(len) ? ZSTD_getErrorName(len) : NULL;
    slot->out_len = ZSTD_isError(len) ? 0 : len;
}

static void *worker_main(void *arg)
{
    struct s2s_zstd_writer *zstd = arg;
    ZSTD_CCtx *ctx = new_context(zstd->level);
    pthread_mutex_lock(&zstd->lock);
    for (;;) {
        while (zstd->taken == zstd->filled && !zstd->stopping)
            pthread_cond_wait(&zstd->changed, &zstd->lock);
        if (zstd->stopping)
            break;
        struct slot *slot = &zstd->slots[zstd->taken++ % zstd->n_slots];
        slot->state = SLOT_BUSY;
        pthread_mutex_unlock(&zstd->lock);
        compress_slot(ctx, slot);
        pthread_mutex_lock(&zstd->lock);
        slot->state = SLOT_DONE;
        pthread_cond_broadcast(&zstd->changed);
    }
    pthread_mutex_unlock(&zstd->lock);
    ZSTD_freeCCtx(ctx);
    return NULL;
}

struct s2s_zstd_writer *s2s_zstd_writer_new(struct s2s_outfile *out, int level, int jobs)
{
    struct s2s_zstd_writer *zstd = s2s_xcalloc(1, sizeof *zstd);
    zstd->out = out;
    zstd->level = level;
    zstd->n_slots = jobs > 1 ? 2 * (size_t)jobs : 1;
    zstd->slots = s2s_xcalloc(zstd->n_slots, sizeof *zstd->slots);
    pthread_mutex_init(&zstd->lock, NULL);
    pthread_cond_init(&zstd->changed, NULL);
    zstd->threads = s2s_xcalloc((size_t)(jobs > 1 ? jobs : 0), sizeof *zstd->threads);
    while (jobs > 1 && zstd->n_threads < jobs &&
           pthread_create(&zstd->threads[zstd->n_threads], NULL, worker_main, zstd) == 0)
        zstd->n_threads++;
    if (zstd->n_threads == 0) {
        zstd->own = new_context(level);
        zstd->n_slots = 1;
    }
    return zstd;
}

/* Waits for the oldest frame and writes it. */
static int write_oldest(struct s2s_zstd_writer *zstd, struct s2s_error *err)
{
    struct slot *slot = &zstd->slots[zstd->written % zstd->n_slots];
    pthread_mutex_lock(&zstd->lock);
    while (slot->state != SLOT_DONE)
        pthread_cond_wait(&zstd->changed, &zstd->lock);
    pthread_mutex_unlock(&zstd->lock);
    zstd->written++;
    slot->state = SLOT_EMPTY;
    if (slot->failure)
        return s2s_error_set(err, S2S_E_IO, "zstd cannot compress %zu bytes: %s", slot->in.len,
                             slot->failure);
    if (slot->out_len > UINT32_MAX)
        return s2s_error_set(err, S2S_E_RANGE, "a zstd frame of %zu bytes", slot->out_len);
    s2s_zstd_table_add(&zstd->table, (uint32_t)slot->in.len, (uint32_t)slot->out_len,
                       s2s_xxh3_64(slot->out, slot->out_len));
    return s2s_outfile_write(zstd->out, slot->out, slot->out_len, err);
}

int s2s_zstd_writer_add(struct s2s_zstd_writer *zstd, struct s2s_buf *bytes, struct s2s_error *err)
{
    if (bytes->len > UINT32_MAX) {
        int rc = s2s_error_set(err, S2S_E_RANGE,
                               "%zu bytes do not fit into a zstd frame, which holds 4 GiB at most",
                               bytes->len);
        return s2s_error_hint(err, rc, "write the stream without compression");
    }
    if (zstd->filled - zstd->written == zstd->n_slots) {
        int rc = write_oldest(zstd, err);
        if (rc < 0)
            return rc;
    }
    struct slot *slot = &zstd->slots[zstd->filled % zstd->n_slots];
    struct s2s_buf old = slot->in;
    slot->in = *bytes;
    *bytes = old;
    s2s_buf_clear(bytes);
    if (zstd->own)
        compress_slot(zstd->own, slot);
    pthread_mutex_lock(&zstd->lock);
    slot->state = zstd->own ? SLOT_DONE : SLOT_FULL;
    zstd->filled++;
    pthread_cond_broadcast(&zstd->changed);
    pthread_mutex_unlock(&zstd->lock);
    return 0;
}

int s2s_zstd_writer_finish(struct s2s_zstd_writer *zstd, struct s2s_error *err)
{
    while (zstd->written < zstd->filled) {
        int rc = write_oldest(zstd, err);
        if (rc < 0)
            return rc;
    }
    struct s2s_buf tail = S2S_BUF_INIT;
    s2s_zstd_table_tail(&zstd->table, &tail);
    int rc = s2s_outfile_write(zstd->out, tail.data, tail.len, err);
    s2s_buf_release(&tail);
    return rc;
}

void s2s_zstd_writer_free(struct s2s_zstd_writer *zstd)
{
    if (!zstd)
        return;
    pthread_mutex_lock(&zstd->lock);
    zstd->stopping = true;
    pthread_cond_broadcast(&zstd->changed);
    pthread_mutex_unlock(&zstd->lock);
    for (int i = 0; i < zstd->n_threads; i++)
        pthread_join(zstd->threads[i], NULL);
    for (size_t i = 0; i < zstd->n_slots; i++) {
        s2s_buf_release(&zstd->slots[i].in);
        free(zstd->slots[i].out);
    }
    ZSTD_freeCCtx(zstd->own);
    s2s_zstd_table_release(&zstd->table);
    pthread_cond_destroy(&zstd->changed);
    pthread_mutex_destroy(&zstd->lock);
    free(zstd->threads);
    free(zstd->slots);
    free(zstd);
}
