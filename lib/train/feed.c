/* Hands out the packs of each step, in a seeded order. */
#include "lib/train/feed.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/train/feed_internal.h"
#include "lib/train/split.h"

/* what a random number is for: part of its key */
enum { SITE_ORDER = 0x6f72646572, SITE_AUGMENT = 0x61756768, SITE_STEP = 0x73746570 };

/* One step, from the thread that prepares to the one that computes. */
struct prepared {
    struct s2s_feed_step step;
    struct s2s_pack **packs; /* [n_packs] of this dp coordinate; NULL where a peer reads it */
    size_t n_packs;
    struct s2s_buf *raw; /* [n_raw] of a pipe: records that this rank reads */
    size_t n_raw;
    int64_t first_pack;
    int rc;
    struct s2s_error err;
};

struct s2s_feed {
    struct s2s_feed_options options;
    struct train_place at;
    struct train_part part; /* of a microbatch, that is this rank's */
    char **paths;           /* [n_paths] of the options, as this rank has them */
    bool cut;               /* the streams hold this rank's part already */
    struct s2s_comm *peers; /* the same packs; NULL outside of the grid */
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
    for (size_t i = 0; p->packs && i < p->n_packs; i++)
        s2s_pack_free(p->packs[i]);
    for (int64_t i = 0; p->step.microbatches && i < p->step.n_microbatches; i++)
        s2s_pack_free(p->step.microbatches[i]);
    for (size_t i = 0; i < p->n_raw; i++)
        s2s_buf_release(&p->raw[i]);
    free(p->packs);
    free(p->step.microbatches);
    free(p->raw);
    *p = (struct prepared){.rc = 0};
}

/* Pack number `position` of all epochs; of a pipe it is in raw. */
static int prepare_pack(struct s2s_feed *f, struct prepared *w, struct s2s_pack **pack,
                        int64_t position, const struct s2s_buf *raw)
{
    struct s2s_safetensors st;
    const struct s2s_schema *schema = &f->pipe_schema;
    char place[512];
    /* a sample draws anew in each epoch; a pipe does not say where one begins */
    const uint64_t drawn = (uint64_t)(raw ? position : position / f->n_packs);
    int rc;
    if (raw) {
        snprintf(place, sizeof place, "stdin: record %lld", (long long)position);
        rc = s2s_safetensors_parse(&st, raw->data, raw->len, &w->err);
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
    rc = s2s_pack_read(pack, &f->reader, schema, &st, place,
                       S2S_RNG_KEY(f->options.seed, drawn, SITE_AUGMENT), &w->err);
    if (raw)
        s2s_safetensors_release(&st);
    return rc;
}

/* The packs of this dp coordinate become its microbatches, or empty ones, or this rank's parts of
 * them. */
static void join_packs(const struct s2s_feed *f, struct prepared *w)
{
    const size_t together = (size_t)f->options.packs_per_microbatch;
    struct s2s_feed_step *step = &w->step;
    step->microbatches = s2s_xcalloc((size_t)step->n_microbatches + 1, sizeof(struct s2s_pack *));
    for (int64_t m = 0; m < step->n_microbatches; m++) {
        const size_t first = (size_t)m * together,
                     left = w->n_packs > first ? w->n_packs - first : 0;
        const size_t n = left < together ? left : together;
        if (n != 1) {
            step->microbatches[m] = s2s_pack_join(w->packs + first, n);
        } else {
            step->microbatches[m] = w->packs[first];
            w->packs[first] = NULL;
        }
        step->microbatches[m]->batch.draw = S2S_RNG_KEY(
            f->options.seed, (uint64_t)(w->first_pack / f->options.packs_per_step), SITE_STEP);
        if (!f->cut)
            s2s_pack_split(step->microbatches[m], f->part.cp_size, f->part.cp_rank);
    }
    for (size_t i = 0; i < w->n_packs; i++)
        s2s_pack_free(w->packs[i]);
    w->n_packs = 0;
}

static void prepare(struct s2s_feed *f, struct prepared *w)
{
    const int64_t together = f->options.packs_per_microbatch;
    int64_t nth;
    size_t n_read = 0;
    w->packs = s2s_xcalloc((size_t)w->step.n_global + 1, sizeof(struct s2s_pack *));
    for (int64_t i = 0; i < w->step.n_global; i++) {
        if (!train_place_has(&f->at, i, together, &nth))
            continue;
        w->n_packs++;
        if (w->rc == 0 &&
            (s2s_mesh_counts(f->options.mesh) || train_place_reads(&f->at, i, together)))
            w->rc = prepare_pack(f, w, &w->packs[nth], w->first_pack + i,
                                 w->raw ? &w->raw[n_read++] : NULL);
    }
    w->step.n_microbatches = train_place_microbatches(&f->at, w->step.n_global, together);
    if (w->rc == 0 && f->at.n_peers == 1)
        join_packs(f, w);
}

/* ---- between peers ---- */

/* What this rank has to read, or why it could not. */
static void write_mine(struct s2s_buf *to, const struct prepared *w, size_t peer, size_t n_peers)
{
    const int64_t rc = w->rc;
    s2s_buf_add(to, &rc, sizeof rc);
    if (rc < 0)
        s2s_buf_add(to, &w->err, sizeof w->err);
    for (size_t i = peer; rc == 0 && i < w->n_packs; i += n_peers)
        train_pack_write(to, w->packs[i]);
}

/* What a peer read; its failure counts as this rank's where this one had none. */
static void take_theirs(struct prepared *w, const struct s2s_buf *from, size_t peer, size_t n_peers)
{
    const char *at = from->data + sizeof(int64_t);
    int64_t rc;
    memcpy(&rc, from->data, sizeof rc);
    if (rc < 0 && w->rc == 0) {
        w->rc = (int)rc;
        memcpy(&w->err, at, sizeof w->err);
    }
    for (size_t i = peer; rc == 0 && i < w->n_packs; i += n_peers)
        if (!w->packs[i])
            w->packs[i] = train_pack_take(&at);
}

/* Collective over the peers: each has all packs of their dp coordinate then, or a failure. On a
 * mesh that counts, whose peers send nothing, the rank has read them all. */
static void exchange(struct s2s_feed *f, struct prepared *w)
{
    struct s2s_buf mine = S2S_BUF_INIT;
    const size_t n_peers = (size_t)f->at.n_peers;
    write_mine(&mine, w, (size_t)f->at.peer, n_peers);
    struct s2s_buf *theirs = s2s_comm_gather_bufs(f->peers, &mine);
    s2s_buf_release(&mine);
    for (size_t i = 0; i < n_peers; i++) {
        if (!s2s_mesh_counts(f->options.mesh))
            take_theirs(w, &theirs[i], i, n_peers);
        s2s_buf_release(&theirs[i]);
    }
    free(theirs);
    if (w->rc == 0)
        join_packs(f, w);
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
                                wait, &f->work.raw, &f->work.n_raw, &f->work.step.n_global,
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
        int rc = train_pipe_open(&f->pipe, o, &f->at, &f->pipe_schema, &f->reader, err);
        return rc < 0 ? rc
                      : train_streams_tokenizer(train_pipe_streams(f->pipe), o->tokenizer, err);
    }
    int rc = train_streams_open(&f->streams, (const char *const *)f->paths, o->n_paths,
                                f->cut ? &f->part : NULL, err);
    if (rc < 0)
        return rc;
    f->n_packs = train_streams_n_records(&f->streams);
    if (f->n_packs == 0)
        return s2s_error_set(err, S2S_E_RANGE, "%s: no record to train on", o->paths[0]);
    if ((rc = train_streams_tokenizer(&f->streams, o->tokenizer, err)) < 0)
        return rc;
    return train_reader_fits_all(&f->reader, &f->streams, err);
}

/* Along tp, ep and pp ranks stand on the same data, along cp unless each reads its own part. */
static void find_place(struct s2s_feed *f)
{
    const unsigned all = S2S_AXIS_BIT(S2S_AXES) - 1, dp = S2S_AXIS_BIT(S2S_AXIS_DP),
                   cp = S2S_AXIS_BIT(S2S_AXIS_CP);
    struct s2s_grid *grid = f->options.grid;
    struct s2s_comm *others = s2s_grid_comm(grid, dp);
    f->at = (struct train_place){.dp = s2s_grid_coord(grid, S2S_AXIS_DP),
                                 .n_dp = others ? s2s_comm_size(others) : 1,
                                 .n_peers = 1};
    f->peers = s2s_grid_comm(grid, f->cut ? all & ~(dp | cp) : all & ~dp);
    if (f->peers) {
        f->at.peer = s2s_comm_rank(f->peers);
        f->at.n_peers = s2s_comm_size(f->peers);
    }
}

/* The rank's own names of the streams: either all have a %r, which it stands in for, or none. */
static int name_streams(struct s2s_feed *f, struct s2s_error *err)
{
    const struct s2s_feed_options *o = &f->options;
    struct s2s_comm *cp = s2s_grid_comm(o->grid, S2S_AXIS_BIT(S2S_AXIS_CP));
    f->part = (struct train_part){cp ? s2s_comm_size(cp) : 1, cp ? s2s_comm_rank(cp) : 0};
    f->paths = s2s_xcalloc(o->n_paths + 1, sizeof(char *));
    size_t n_parts = 0;
    for (size_t i = 0; i < o->n_paths; i++) {
        f->paths[i] = s2s_feed_path(o->paths[i], f->part.cp_rank);
        n_parts += strcmp(f->paths[i], o->paths[i]) != 0;
    }
    f->cut = n_parts > 0;
    if (n_parts > 0 && n_parts < o->n_paths)
        return s2s_error_set(err, S2S_E_ARG,
                             "data.train has names with %%r, of parts of streams, and names "
                             "without");
    if (f->cut && o->token_dropout > 0)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "train.token_dropout wants whole sequences, and data.train has parts "
                             "of them (%%r)");
    return 0;
}

char *s2s_feed_path(const char *path, int cp_rank)
{
    struct s2s_buf name = S2S_BUF_INIT;
    for (const char *p = path; *p; p++)
        if (p[0] == '%' && p[1] == 'r') {
            s2s_buf_printf(&name, "%d", cp_rank);
            p++;
        } else {
            s2s_buf_putc(&name, *p);
        }
    return name.data ? name.data : s2s_xstrdup("");
}

int s2s_feed_open(struct s2s_feed **out, const struct s2s_feed_options *options,
                  struct s2s_error *err)
{
    struct s2s_feed *f = s2s_xcalloc(1, sizeof *f);
    f->options = *options;
    f->next_pack = options->first_pack;
    int rc = name_streams(f, err);
    find_place(f);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->change, NULL);
    if (rc == 0)
        rc = train_reader_open(&f->reader, options->features, options->n_mels, err);
    /* a pipe is opened by all ranks together: none may be missing because of its own files */
    if (strcmp(options->paths[0], "-") == 0)
        rc = s2s_mesh_all_ok(options->mesh, rc, err);
    if (rc == 0)
        rc = open_source(f, err);
    f->reader.augment = options->augment;
    f->reader.dither = options->dither;
    f->reader.token_dropout = options->token_dropout;
    f->reader.draws = options->draws;
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
    /* first, whatever happened to this rank: asking is collective, and so is giving */
    if (f->lent.step.n_global > 0)
        ask(f, false);
    if (f->lent.step.n_global > 0 && f->at.n_peers > 1)
        exchange(f, &f->lent);
    if (f->lent.rc < 0) {
        *err = f->lent.err;
        return f->lent.rc;
    }
    *step = &f->lent.step;
    return 0;
}

json_t *s2s_feed_describe(const struct s2s_feed *f)
{
    return f->pipe ? NULL : train_streams_describe(&f->streams);
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
    for (size_t i = 0; f->paths && i < f->options.n_paths; i++)
        free(f->paths[i]);
    free(f->paths);
    free(f->order);
    free(f);
}
