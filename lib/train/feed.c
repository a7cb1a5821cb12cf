#include "lib/train/feed.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/train/feed_internal.h"

/* what a random number is for: part of its key */
enum { SITE_ORDER = 0x6f72646572, SITE_AUGMENT = 0x61756768 };

/* One step, from the thread that prepares to the one that computes. */
struct prepared {
    struct s2s_feed_step step;
    struct s2s_buf *raw; /* of a pipe: this rank's records */
    int64_t first_pack;
    int rc;
    struct s2s_error err;
};

struct s2s_feed {
    struct s2s_feed_options options;
    struct train_streams streams;
    struct train_pipe *pipe;
    struct s2s_schema pipe_schema;
    struct s2s_pack_reader reader;
    int64_t n_packs;   /* of an epoch; -1 for a pipe */
    int64_t next_pack; /* first pack of the step to be asked for next */
    int64_t *order;    /* of one epoch */
    int64_t order_epoch;

    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool asked, ready, stop;
    struct prepared work; /* the thread's while asked and not ready */
    struct prepared lent; /* the caller's */
};

/* ---- order ---- */

/* Fisher and Yates; draw i decides place n - 1 - i. */
static void shuffle(int64_t *order, int64_t n, uint64_t key)
{
    for (int64_t i = 0; i < n; i++)
        order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)s2s_rng_below(key, (uint64_t)(n - 1 - i), (uint64_t)i + 1);
        int64_t other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

int64_t s2s_feed_order(uint64_t seed, bool shuffled, int64_t n_packs, int64_t position,
                       int64_t **cache, int64_t *cached_epoch)
{
    const int64_t epoch = position / n_packs, at = position % n_packs;
    if (!shuffled)
        return at;
    if (!*cache || *cached_epoch != epoch) {
        free(*cache);
        *cache = s2s_xcalloc((size_t)n_packs, sizeof **cache);
        *cached_epoch = epoch;
        shuffle(*cache, n_packs, S2S_RNG_KEY(seed, (uint64_t)epoch, SITE_ORDER));
    }
    return (*cache)[at];
}

/* ---- the thread ---- */

static void prepared_release(struct prepared *p)
{
    for (size_t i = 0; i < p->step.n_packs; i++) {
        if (p->step.packs)
            s2s_pack_free(p->step.packs[i]);
        if (p->raw)
            s2s_buf_release(&p->raw[i]);
    }
    free(p->step.packs);
    free(p->raw);
    *p = (struct prepared){.rc = 0};
}

/* Pack number `position` of all epochs; i counts this rank's packs of the step. */
static int prepare_pack(struct s2s_feed *f, struct prepared *w, size_t i, int64_t position)
{
    struct s2s_safetensors st;
    const struct s2s_schema *schema = &f->pipe_schema;
    char place[512];
    int rc;
    if (w->raw) {
        snprintf(place, sizeof place, "stdin: record %lld", (long long)position);
        rc = s2s_safetensors_parse(&st, w->raw[i].data, w->raw[i].len, &w->err);
        if (rc < 0)
            return s2s_error_add(&w->err, rc, "%s", place);
    } else {
        struct s2s_record rec;
        int64_t idx = s2s_feed_order(f->options.seed, f->options.shuffle, f->n_packs, position,
                                     &f->order, &f->order_epoch);
        rc = train_streams_read(&f->streams, idx, &rec, &schema, place, &w->err);
        if (rc < 0)
            return rc;
        st = rec.st;
    }
    rc = s2s_pack_read(&w->step.packs[i], &f->reader, schema, &st, place,
                       S2S_RNG_KEY(f->options.seed, (uint64_t)position, SITE_AUGMENT), &w->err);
    if (w->raw)
        s2s_safetensors_release(&st);
    return rc;
}

static void prepare(struct s2s_feed *f, struct prepared *w)
{
    const int rank = s2s_comm_rank(f->options.dp), size = s2s_comm_size(f->options.dp);
    const int64_t together = f->options.packs_per_microbatch;
    size_t n = 0;
    for (int64_t i = 0; i < w->step.n_global; i++)
        n += i / together % size == rank;
    w->step.n_packs = n;
    w->step.packs = s2s_xcalloc(n + 1, sizeof(struct s2s_pack *));
    for (size_t i = 0; i < n && w->rc == 0; i++)
        w->rc = prepare_pack(f, w, i,
                             w->first_pack + ((int64_t)i / together * size + rank) * together +
                                 (int64_t)i % together);
}

static void *feed_run(void *arg)
{
    struct s2s_feed *f = arg;
    pthread_mutex_lock(&f->lock);
    for (;;) {
        while (!f->stop && !(f->asked && !f->ready))
            pthread_cond_wait(&f->change, &f->lock);
        if (f->stop)
            break;
        pthread_mutex_unlock(&f->lock);
        prepare(f, &f->work);
        pthread_mutex_lock(&f->lock);
        f->ready = true;
        pthread_cond_broadcast(&f->change);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* Asks the thread for the step after those asked for. Collective for a pipe, of which nothing is
 * asked yet if not `wait` and it is behind: the step at hand does not wait for the one after. */
static void ask(struct s2s_feed *f, bool wait)
{
    int there = 1;
    f->work = (struct prepared){.first_pack = f->next_pack};
    f->work.step.n_global = f->options.packs_per_step;
    if (f->pipe)
        there = train_pipe_take(f->pipe, f->options.packs_per_step, f->options.packs_per_microbatch,
                                wait, &f->work.raw, &f->work.step.n_packs, &f->work.step.n_global,
                                &f->work.err);
    if (there == 0)
        return;
    if (there < 0)
        f->work.rc = there; /* the pipe itself failed, for all ranks */
    f->next_pack += f->work.step.n_global;
    pthread_mutex_lock(&f->lock);
    f->asked = true;
    f->ready = f->work.rc < 0; /* nothing to prepare */
    pthread_cond_broadcast(&f->change);
    pthread_mutex_unlock(&f->lock);
}

/* ---- the door ---- */

static int open_source(struct s2s_feed *f, struct s2s_error *err)
{
    const struct s2s_feed_options *o = &f->options;
    if (o->n_paths == 0)
        return s2s_error_set(err, S2S_E_NOTFOUND, "data.train names no stream");
    if (o->n_paths == 1 && strcmp(o->paths[0], "-") == 0) {
        f->n_packs = -1;
        int rc = train_pipe_open(&f->pipe, o, &f->pipe_schema, &f->reader, err);
        return rc < 0 ? rc
                      : train_streams_tokenizer(train_pipe_streams(f->pipe), o->tokenizer, err);
    }
    int rc = train_streams_open(&f->streams, o->paths, o->n_paths, err);
    if (rc < 0)
        return rc;
    f->n_packs = train_streams_n_records(&f->streams);
    if (f->n_packs == 0)
        return s2s_error_set(err, S2S_E_RANGE, "%s: no record to train on", o->paths[0]);
    if ((rc = train_streams_tokenizer(&f->streams, o->tokenizer, err)) < 0)
        return rc;
    return train_reader_fits_all(&f->reader, &f->streams, err);
}

int s2s_feed_open(struct s2s_feed **out, const struct s2s_feed_options *options,
                  struct s2s_error *err)
{
    struct s2s_feed *f = s2s_xcalloc(1, sizeof *f);
    f->options = *options;
    f->next_pack = options->first_pack;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->change, NULL);
    int rc = train_reader_open(&f->reader, options->features, options->n_mels, err);
    if (rc == 0)
        rc = open_source(f, err);
    f->reader.augment = options->augment;
    f->reader.token_dropout = options->token_dropout;
    if (rc == 0) {
        f->running = pthread_create(&f->thread, NULL, feed_run, f) == 0;
        if (!f->running)
            rc = s2s_error_set(err, S2S_E_NOMEM, "no thread to prepare data");
    }
    if (rc < 0) {
        s2s_feed_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

int s2s_feed_next(struct s2s_feed *f, const struct s2s_feed_step **step, struct s2s_error *err)
{
    prepared_release(&f->lent);
    if (!f->asked)
        ask(f, true);
    pthread_mutex_lock(&f->lock);
    while (!f->ready)
        pthread_cond_wait(&f->change, &f->lock);
    f->lent = f->work;
    f->asked = f->ready = false;
    pthread_mutex_unlock(&f->lock);
    /* first, whatever happened to this rank: asking is collective */
    if (f->lent.step.n_global > 0)
        ask(f, false);
    if (f->lent.rc < 0) {
        *err = f->lent.err;
        return f->lent.rc;
    }
    *step = &f->lent.step;
    return 0;
}

int64_t s2s_feed_n_packs(const struct s2s_feed *f)
{
    return f->n_packs;
}

void s2s_feed_close(struct s2s_feed *f)
{
    if (!f)
        return;
    if (f->running) {
        pthread_mutex_lock(&f->lock);
        f->stop = true;
        pthread_cond_broadcast(&f->change);
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->thread, NULL);
    }
    if (f->asked)
        prepared_release(&f->work);
    prepared_release(&f->lent);
    if (f->streams.in)
        train_streams_close(&f->streams);
    train_pipe_close(f->pipe);
    s2s_schema_release(&f->pipe_schema);
    train_reader_close(&f->reader);
    free(f->order);
    free(f);
}
