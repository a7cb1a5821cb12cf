/* Loss, token accuracy and word error rate of a data set. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/model/generate.h"
#include "lib/tensor/sums.h"
#include "lib/text/metrics.h"
#include "lib/text/tokenizer.h"
#include "lib/train/feed_internal.h"
#include "lib/train/images.h"
#include "lib/train/split.h"
#include "lib/train/trainer.h"

enum { SITE_DERANGE = 0x646572616e };

double s2s_eval_loss(const struct s2s_eval_result *r)
{
    return r->loss_sum / (double)r->n_labels;
}

double s2s_eval_accuracy(const struct s2s_eval_result *r)
{
    return (double)r->n_right / (double)r->n_labels;
}

double s2s_eval_wer(const struct s2s_eval_result *r)
{
    return r->n_words > 0 ? (double)r->n_word_errors / (double)r->n_words : -1;
}

enum { LOSS, HITS, N_SUMS };

/* What one evaluation carries along. */
struct evaluation {
    struct s2s_bundle *bundle;
    const struct s2s_eval_options *options;
    struct s2s_comm *all;  /* ranks of the grid */
    struct s2s_comm *dp;   /* those that share out the packs */
    struct s2s_comm *data; /* and those that have parts of one: dp x cp */
    struct s2s_comm *pp;   /* of which the last stage alone has loss and hits */
    int cp_size, cp_rank;
    struct s2s_flow *flow, own; /* own: where the caller has none */
    struct s2s_sums *sums;
    struct s2s_pack *nothing; /* for a round in which this rank has no pack */
    int64_t depth;            /* packs of a rank that are on their way together */
    struct s2s_eval_result result;
    struct s2s_edits edits;
};

/* ---- rounds ---- */

static int64_t most_anywhere(struct s2s_comm *comm, int64_t n)
{
    s2s_comm_all_reduce(comm, &n, 1, S2S_I64, S2S_GROUP_MAX);
    return n;
}

static bool is_true_anywhere(struct s2s_comm *comm, bool here)
{
    return most_anywhere(comm, here) > 0;
}

static void add_sums(void *ctx, const struct s2s_flow_seen *seen)
{
    const struct evaluation *e = ctx;
    if (!seen->last)
        return;
    s2s_sums_add(e->sums, LOSS, seen->fwd->loss);
    s2s_sums_add(e->sums, HITS, seen->fwd->hits);
}

/* The packs of a rank that go through together, each a microbatch. */
struct round {
    struct s2s_pack **packs; /* [n] of room for as many as are on their way */
    int64_t n;
};

static void clear_round(struct round *r)
{
    while (r->n > 0)
        s2s_pack_free(r->packs[--r->n]);
}

/* What this rank has of the k-th pack of a round: NULL behind the last one. Gives: s2s_pack_free.
 */
static struct s2s_pack *part_of(const struct evaluation *e, const struct round *r, int64_t k)
{
    struct s2s_pack *part = s2s_pack_join(r->packs + k, k < r->n ? 1 : 0);
    s2s_pack_split(part, e->cp_size, e->cp_rank);
    return part;
}

/* n microbatches, of which this rank's packs are the first. Of packs that are cut over ranks, whole
 * again afterwards, each scores its part. */
static void score(struct evaluation *e, const struct round *r, int64_t n)
{
    struct s2s_pack **list = s2s_xcalloc((size_t)n + 1, sizeof(struct s2s_pack *));
    for (int64_t k = 0; k < n; k++)
        list[k] = e->cp_size > 1 ? part_of(e, r, k) : k < r->n ? r->packs[k] : e->nothing;
    const struct s2s_flow_options flow = {.packs = list,
                                          .n_packs = n,
                                          .want_hits = true,
                                          .forward_only = true,
                                          .seen = add_sums,
                                          .ctx = e};
    s2s_flow_run(e->flow, &flow);
    for (int64_t k = 0; k < r->n; k++) {
        e->result.n_labels += r->packs[k]->n_labels;
        e->result.n_utterances += r->packs[k]->batch.n_seqs;
    }
    for (int64_t k = 0; e->cp_size > 1 && k < n; k++)
        s2s_pack_free(list[k]);
    free(list);
}

/*
 * Loss and accuracy of the packs of each rank, of which one may have failed before (*rc).
 * Collective: all ranks run as many forward passes, or none does because one failed; false then.
 */
static bool score_round(struct evaluation *e, const struct round *r, int *rc, struct s2s_error *err)
{
    for (int64_t k = 0; *rc == 0 && k < r->n; k++)
        if ((*rc = s2s_model_check(e->bundle->model, &r->packs[k]->batch, err)) < 0)
            s2s_error_add(err, *rc, "%s", r->packs[k]->place);
    const int64_t failed = e->depth + 1, n = most_anywhere(e->all, *rc < 0 ? failed : r->n);
    if (n == failed)
        return false;
    score(e, r, n);
    return true;
}

/* ---- text of an utterance ---- */

/* Images of which all rows stand before slot n. */
static int64_t images_before(const struct s2s_media *images, int64_t n)
{
    int64_t row = 0, k = 0;
    for (; k < images->n; k++) {
        row += images->rows[k];
        if (row > 0 && images->slot_of_row[row - 1] >= n)
            break;
    }
    return k;
}

/* The part before the first token to be predicted. Returns its length; 0: nothing is predicted. */
static int64_t prompt_of(struct s2s_batch *prompt, int32_t bounds[2],
                         const struct s2s_pack *utterance)
{
    const struct s2s_batch *u = &utterance->batch;
    const struct s2s_media *clips = &u->media[0];
    int64_t n = 0, k = 0;
    while (n < u->n_tokens && u->labels[n] < 0)
        n++;
    if (n++ == u->n_tokens)
        return 0;
    *prompt = *u;
    bounds[0] = 0;
    bounds[1] = (int32_t)n;
    prompt->n_tokens = prompt->max_seqlen = n;
    prompt->cu_seqlens = bounds;
    prompt->seq_lens = bounds + 1;
    prompt->labels = NULL;
    while (k < clips->n && utterance->clip_slot[k] + clips->rows[k] <= n)
        k++;
    prompt->media[0].n = k;
    prompt->media[TRAIN_IMAGES].n = images_before(&u->media[TRAIN_IMAGES], n);
    train_images_count(prompt);
    return n;
}

/* The first run of labels: what the model should say, and the token that ends it. */
static void reference_of(struct s2s_ids *ids, int32_t *stop, const struct s2s_batch *u,
                         const struct s2s_tokenizer *tok)
{
    int64_t t = 0;
    while (t < u->n_tokens && u->labels[t] < 0)
        t++;
    for (; t < u->n_tokens && u->labels[t] >= 0; t++)
        s2s_ids_add(ids, u->labels[t]);
    *stop = -1;
    if (ids->len > 0 && s2s_tokenizer_is_special(tok, ids->data[ids->len - 1]))
        *stop = ids->data[--ids->len];
}

static int compare(struct evaluation *e, const struct s2s_ids *ref, const int32_t *got,
                   size_t n_got, const char *text, struct s2s_error *err)
{
    static const struct s2s_text_norm as_it_is = {.lower = false};
    const struct s2s_tokenizer *tok = e->options->tokenizer;
    struct s2s_buf want = S2S_BUF_INIT, have = S2S_BUF_INIT;
    int rc = 0;
    s2s_buf_puts(&want, text ? text : "");
    s2s_buf_puts(&have, "");
    if (!text)
        rc = s2s_tokenizer_decode(tok, &want, ref->data, ref->len, true, err);
    if (rc == 0)
        rc = s2s_tokenizer_decode(tok, &have, got, n_got, true, err);
    if (rc == 0)
        rc = s2s_edits_add(&e->edits, S2S_WORDS, want.data, want.len, have.data, have.len,
                           &as_it_is, err);
    if (rc == 0)
        s2s_debug("train", "'%s' heard as '%s'", want.data, have.data);
    if (rc == 0 && e->options->heard)
        e->options->heard(e->options->heard_ctx, want.data, have.data);
    s2s_buf_release(&want);
    s2s_buf_release(&have);
    return rc;
}

static int transcribe(struct evaluation *e, const struct s2s_pack *utterance, const char *text,
                      struct s2s_error *err)
{
    struct s2s_batch prompt;
    struct s2s_ids ref = S2S_IDS_INIT;
    int32_t bounds[2], stops[2];
    struct s2s_generated got = {.ids = NULL};
    int rc = 0;
    if (prompt_of(&prompt, bounds, utterance) > 0) {
        reference_of(&ref, &stops[0], &utterance->batch, e->options->tokenizer);
        stops[1] = s2s_tokenizer_eos(e->options->tokenizer);
        /* twice the reference is enough to show that the model does not end */
        int64_t limit = 2 * (int64_t)ref.len + 10;
        struct s2s_generate_options opt = {.max_new_tokens = limit < e->options->max_new_tokens
                                                                 ? limit
                                                                 : e->options->max_new_tokens,
                                           .stop_ids = stops,
                                           .n_stop_ids = 2};
        rc = s2s_generate(&got, e->bundle->model, &prompt, &opt, err);
        if (rc == 0)
            rc = compare(e, &ref, got.ids, got.n, text, err);
    }
    s2s_generated_release(&got, 1);
    s2s_ids_release(&ref);
    return rc < 0 ? s2s_error_add(err, rc, "%s", utterance->place) : 0;
}

/* ---- a pack as it is ---- */

static int transcribe_pack(struct evaluation *e, const struct s2s_pack *pack, struct s2s_error *err)
{
    json_t *texts = pack->texts ? json_loads(pack->texts, 0, NULL) : NULL;
    int rc = 0;
    for (int64_t s = 0; rc == 0 && s < pack->batch.n_seqs; s++) {
        struct s2s_pack *u = s2s_pack_utterance(pack, s, NULL);
        rc = transcribe(e, u, json_string_value(json_array_get(texts, (size_t)s)), err);
        s2s_pack_free(u);
    }
    json_decref(texts);
    return rc;
}

static int read_pack(struct s2s_pack **pack, struct train_streams *streams,
                     struct s2s_pack_reader *reader, int64_t idx, struct s2s_error *err)
{
    struct s2s_record rec;
    const struct s2s_schema *schema;
    char place[512];
    int rc = train_streams_read(streams, idx, &rec, &schema, place, err);
    return rc < 0 ? rc : s2s_pack_read(pack, reader, schema, &rec.st, place, 0, err);
}

/* The next packs of this rank, every size-th from `own` on. */
static int read_round(struct round *r, struct evaluation *e, struct train_streams *streams,
                      struct s2s_pack_reader *reader, int64_t own, struct s2s_error *err)
{
    const int64_t n = train_streams_n_records(streams), size = s2s_comm_size(e->dp);
    int rc = 0;
    for (; rc == 0 && r->n < e->depth && own < n; own += size)
        if ((rc = read_pack(&r->packs[r->n], streams, reader, own, err)) == 0)
            r->n++;
    return rc;
}

static int evaluate_packs(struct evaluation *e, struct train_streams *streams,
                          struct s2s_pack_reader *reader, struct round *r, struct s2s_error *err)
{
    const struct s2s_eval_options *o = e->options;
    const int64_t n = train_streams_n_records(streams), size = s2s_comm_size(e->dp);
    bool goes_on = true;
    int rc = 0;
    for (int64_t first = 0; goes_on && first < n; first += size * e->depth) {
        if (o->give_up && o->give_up(o->give_up_ctx))
            return s2s_error_set(err, S2S_E_INTERRUPTED, "evaluation broken off");
        if (rc == 0)
            rc = read_round(r, e, streams, reader, first + s2s_comm_rank(e->dp), err);
        goes_on = score_round(e, r, &rc, err);
        for (int64_t k = 0; goes_on && o->text && rc == 0 && k < r->n; k++)
            rc = transcribe_pack(e, r->packs[k], err);
        clear_round(r);
    }
    return rc;
}

/* ---- every utterance with the sound of another ---- */

struct heard {
    struct s2s_pack **own; /* utterances */
    char **texts;          /* or NULL */
    size_t n, cap, cap_texts;
    int64_t most_tokens; /* of a pack */
};

static int collect(struct heard *all, struct train_streams *streams, struct s2s_pack_reader *reader,
                   struct s2s_error *err)
{
    int rc = 0;
    for (int64_t i = 0; rc == 0 && i < train_streams_n_records(streams); i++) {
        struct s2s_pack *pack = NULL;
        if ((rc = read_pack(&pack, streams, reader, i, err)) < 0)
            break;
        json_t *texts = pack->texts ? json_loads(pack->texts, 0, NULL) : NULL;
        if (pack->batch.n_tokens > all->most_tokens)
            all->most_tokens = pack->batch.n_tokens;
        for (int64_t s = 0; s < pack->batch.n_seqs; s++) {
            struct s2s_pack *u = s2s_pack_utterance(pack, s, NULL);
            if (u->batch.media[0].n == 0) {
                s2s_pack_free(u);
                continue;
            }
            const char *text = json_string_value(json_array_get(texts, (size_t)s));
            s2s_grow(&all->own, all->n, &all->cap, sizeof *all->own);
            s2s_grow(&all->texts, all->n, &all->cap_texts, sizeof *all->texts);
            all->texts[all->n] = text ? s2s_xstrdup(text) : NULL;
            all->own[all->n++] = u;
        }
        json_decref(texts);
        s2s_pack_free(pack);
    }
    if (rc == 0 && all->n < 2)
        rc = s2s_error_set(err, S2S_E_RANGE, "%zu utterances with sound cannot be exchanged",
                           all->n);
    return rc;
}

/* A ring in random order: nobody is its own neighbour. */
static int64_t *derange(size_t n)
{
    int64_t *order = NULL, epoch = -1, *donor = s2s_xcalloc(n, sizeof *donor);
    for (size_t i = 0; i < n; i++) {
        int64_t from = s2s_feed_order(SITE_DERANGE, true, (int64_t)n, (int64_t)i, &order, &epoch);
        donor[from] = order[(i + 1) % n];
    }
    free(order);
    return donor;
}

/* This rank's next utterances, as many as a batch holds. */
struct group {
    struct s2s_pack **list;
    size_t n, next; /* next: utterance of all that comes after them */
};

static void take_group(struct group *g, const struct evaluation *e, const struct heard *all,
                       const int64_t *donor)
{
    const int64_t limit = e->options->max_tokens > 0 ? e->options->max_tokens : all->most_tokens;
    const size_t size = (size_t)s2s_comm_size(e->dp);
    int64_t tokens = 0;
    g->n = 0;
    for (; g->next < all->n; g->next += size) {
        struct s2s_pack *u = s2s_pack_utterance(all->own[g->next], 0, all->own[donor[g->next]]);
        if (g->n > 0 && tokens + u->batch.n_tokens > limit) {
            s2s_pack_free(u);
            return;
        }
        tokens += u->batch.n_tokens;
        g->list[g->n++] = u;
    }
}

static int transcribe_group(struct evaluation *e, const struct heard *all, const struct group *g,
                            size_t first, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < g->n; i++)
        rc = transcribe(e, g->list[i], all->texts[first + i * (size_t)s2s_comm_size(e->dp)], err);
    return rc;
}

/* One group a round: its texts follow before the next one is made. */
static int evaluate_heard(struct evaluation *e, const struct heard *all, struct round *r,
                          struct s2s_error *err)
{
    int64_t *donor = derange(all->n);
    struct group g = {.next = (size_t)s2s_comm_rank(e->dp)};
    bool goes_on = true;
    int rc = 0;
    g.list = s2s_xcalloc(all->n, sizeof(struct s2s_pack *));
    while (goes_on) {
        const size_t first = g.next;
        take_group(&g, e, all, donor);
        goes_on = is_true_anywhere(e->all, g.n > 0);
        if (!goes_on)
            break;
        if (g.n > 0)
            r->packs[r->n++] = s2s_pack_join(g.list, g.n);
        goes_on = score_round(e, r, &rc, err);
        if (goes_on && e->options->text)
            rc = transcribe_group(e, all, &g, first, err);
        clear_round(r);
        while (g.n > 0)
            s2s_pack_free(g.list[--g.n]);
    }
    free(g.list);
    free(donor);
    return rc;
}

static int evaluate_shuffled(struct evaluation *e, struct train_streams *streams,
                             struct s2s_pack_reader *reader, struct round *r, struct s2s_error *err)
{
    struct heard all = {.own = NULL};
    int rc = collect(&all, streams, reader, err);
    if (!is_true_anywhere(e->all, rc < 0))
        rc = evaluate_heard(e, &all, r, err);
    for (size_t i = 0; i < all.n; i++) {
        s2s_pack_free(all.own[i]);
        free(all.texts[i]);
    }
    free(all.own);
    free(all.texts);
    return rc;
}

/* ---- the door ---- */

/* Of all ranks; the sums are read here, once. */
static int share(struct evaluation *e, struct s2s_error *err)
{
    struct s2s_eval_result *r = &e->result;
    double sums[N_SUMS];
    int rc = s2s_sums_read(e->sums, sums, err);
    if (is_true_anywhere(e->all, rc < 0))
        return rc;
    int64_t n[5] = {r->n_utterances, r->n_labels, 0, e->edits.n_ref,
                    e->edits.substitutions + e->edits.deletions + e->edits.insertions};
    s2s_comm_all_reduce(e->pp, sums, N_SUMS, S2S_F64, S2S_GROUP_SUM);
    s2s_comm_all_reduce(e->dp, n, 5, S2S_I64, S2S_GROUP_SUM);
    s2s_comm_all_reduce(e->data, sums, N_SUMS, S2S_F64, S2S_GROUP_SUM);
    r->loss_sum = sums[LOSS];
    n[2] = (int64_t)sums[HITS];
    r->n_utterances = n[0];
    r->n_labels = n[1];
    r->n_right = n[2];
    r->n_words = n[3];
    r->n_word_errors = n[4];
    return 0;
}

static int open_set(struct train_streams *streams, const char *const *path, struct s2s_error *err)
{
    return strcmp(*path, "-") == 0
               ? s2s_error_set(err, S2S_E_UNSUPPORTED, "data to evaluate on cannot be a pipe")
               : train_streams_open(streams, path, 1, NULL, err);
}

int s2s_evaluate_try(const char *path, const char *tokenizer, struct s2s_error *err)
{
    struct train_streams streams = {.in = NULL};
    int rc = open_set(&streams, &path, err);
    if (rc == 0)
        rc = train_streams_tokenizer(&streams, tokenizer, err);
    train_streams_close(&streams);
    return rc;
}

/* Ranks generate each its own texts, those of tp and cp the same ones: as many steps as they take.
 * Nobody whose steps are others may wait for them. */
static int check_text(const struct s2s_par *par, int pp_size, struct s2s_error *err)
{
    const int ep = s2s_group_size(par->ep) * s2s_group_size(par->etp);
    int rc = 0;
    if (pp_size > 1) {
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "no rank of a pipeline of %d can generate text alone", pp_size);
        s2s_error_hint(err, rc, "give mesh.pp=1, or --no-text for losses and accuracies");
    } else if (ep > s2s_group_size(par->tp) * s2s_group_size(par->cp)) {
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "ranks that have other packs share experts (mesh.ep %d), and cannot "
                           "generate text alone",
                           s2s_group_size(par->ep));
        s2s_error_hint(err, rc, "give mesh.ep=1, or --no-text for losses and accuracies");
    }
    return rc;
}

int s2s_evaluate(struct s2s_eval_result *result, struct s2s_bundle *bundle, struct s2s_grid *grid,
                 const char *path, const char *features, const struct s2s_eval_options *options,
                 struct s2s_error *err)
{
    /* of a round of m packs p stages wait (p - 1) / (m + p - 1) */
    enum { CP = S2S_AXIS_BIT(S2S_AXIS_CP), DP = S2S_AXIS_BIT(S2S_AXIS_DP), PACKS_A_STAGE = 4 };
    const int pp_size = s2s_comm_size(s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_PP)));
    struct evaluation e = {.bundle = bundle,
                           .options = options,
                           .all = s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXES) - 1),
                           .dp = s2s_grid_comm(grid, DP),
                           .data = s2s_grid_comm(grid, DP | CP),
                           .pp = s2s_grid_comm(grid, S2S_AXIS_BIT(S2S_AXIS_PP)),
                           .cp_size = s2s_comm_size(s2s_grid_comm(grid, CP)),
                           .cp_rank = s2s_comm_rank(s2s_grid_comm(grid, CP)),
                           .sums = s2s_sums_new(bundle->device, N_SUMS),
                           .nothing = s2s_pack_join(NULL, 0),
                           .depth = pp_size > 1 ? PACKS_A_STAGE * pp_size : 1};
    struct round round = {s2s_xcalloc((size_t)e.depth, sizeof(struct s2s_pack *)), 0};
    struct train_streams streams = {.in = NULL};
    struct s2s_pack_reader reader = {.mel = NULL};
    e.flow = options->flow ? options->flow : &e.own;
    if (!options->flow)
        s2s_flow_init(&e.own, bundle->model, &bundle->stages,
                      s2s_comm_group(e.pp, "pp", bundle->device->kernels->sync));
    int rc = open_set(&streams, &path, err);
    if (rc == 0 && options->text)
        rc = check_text(bundle->model->par, pp_size, err);
    if (rc == 0)
        rc = train_reader_open(&reader, features, (int)bundle->model->n_mels, err);
    if (rc == 0)
        rc = train_reader_fits_all(&reader, &streams, err);
    bool failed = is_true_anywhere(e.all, rc < 0);
    if (!failed) {
        rc = options->shuffle_audio ? evaluate_shuffled(&e, &streams, &reader, &round, err)
                                    : evaluate_packs(&e, &streams, &reader, &round, err);
        failed = is_true_anywhere(e.all, rc < 0);
    }
    if (!failed)
        rc = share(&e, err);
    if (!failed && rc == 0 && e.result.n_labels == 0)
        rc = s2s_error_set(err, S2S_E_RANGE, "%s: no token has a label: there is no loss", path);
    *result = e.result;
    s2s_pack_free(e.nothing);
    s2s_sums_free(e.sums);
    s2s_flow_release(&e.own);
    free(round.packs);
    train_reader_close(&reader);
    train_streams_close(&streams);
    return rc;
}
