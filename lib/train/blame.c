/* Runs the passes of a step again, and sums their losses sample by sample. */
#include "lib/train/blame.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"

/* Where a rank saw the first NaN or Inf of a microbatch; the lowest key of all ranks is the first.
 */
struct sight {
    int64_t key; /* stage and operation; INT64_MAX: there is none */
    char where[256];
};

/* The samples of this rank's microbatches, one after the other. */
struct search {
    const struct s2s_blame_step *step;
    int64_t n;            /* microbatches */
    int64_t *first;       /* [n + 1] sample of each microbatch */
    int64_t *order;       /* [n] place of its first sample among all of the step */
    int64_t n_global;     /* samples of the step */
    double *sums;         /* [2 * first[n]] losses, then numbers of labels */
    struct sight *sights; /* [n]; NULL: nobody looks */
    int64_t hunted;       /* place among all of the sample whose gradient is no number; -1 */
};

/* ---- who there is ---- */

static struct s2s_comm *comm_of(const struct search *s, enum s2s_axis axis)
{
    return s->step->layout->comms[axis];
}

/* Microbatch i of dp coordinate r is the (i size + r)-th of the step. */
static void count_samples(struct search *s)
{
    struct s2s_comm *dp = comm_of(s, S2S_AXIS_DP);
    const int size = s2s_comm_size(dp), rank = s2s_comm_rank(dp);
    int64_t *own = s2s_xcalloc((size_t)s->n + 1, sizeof *own),
            *all = s2s_xcalloc((size_t)(s->n * size) + 1, sizeof *all);
    s->first = s2s_xcalloc((size_t)s->n + 1, sizeof *s->first);
    s->order = s2s_xcalloc((size_t)s->n + 1, sizeof *s->order);
    for (int64_t i = 0; i < s->n; i++) {
        own[i] = s->step->passes->packs[i]->batch.n_seqs;
        s->first[i + 1] = s->first[i] + own[i];
    }
    s2s_comm_all_gather(dp, all, own, s->n, S2S_I64);
    for (int64_t i = 0; i < s->n; i++)
        for (int r = 0; r < size; r++) {
            if (r == rank)
                s->order[i] = s->n_global;
            s->n_global += all[r * s->n + i];
        }
    free(own);
    free(all);
}

/* ---- their losses ---- */

static void add_losses(struct search *s, const struct s2s_batch *b, int64_t microbatch,
                       const struct s2s_tensor *rows)
{
    double *sum = s->sums + s->first[microbatch];
    float *losses = s2s_xcalloc((size_t)s2s_tensor_numel(rows) + 1, sizeof *losses);
    s2s_tensor_read(rows, losses);
    for (int64_t q = 0; q < b->n_seqs; q++)
        for (int32_t t = b->cu_seqlens[q]; t < b->cu_seqlens[q + 1]; t++)
            if (b->labels[t] >= 0)
                sum[q] += (double)losses[t];
    free(losses);
}

static void look(struct search *s, const struct s2s_flow_seen *seen)
{
    struct sight *sight = &s->sights[seen->microbatch];
    struct s2s_nonfinite found;
    if (!s2s_tape_find_nonfinite(seen->tape, &found))
        return;
    const int64_t key = (int64_t)seen->stage << 32 | found.nth;
    if (key >= sight->key)
        return;
    sight->key = key;
    snprintf(sight->where, sizeof sight->where, "%.150s, output %d of %s (%lld values)",
             found.layer, found.output, found.op, (long long)found.count);
}

static void see(void *ctx, const struct s2s_flow_seen *seen)
{
    struct search *s = ctx;
    if (seen->microbatch >= s->n) /* an empty one that fills the pipeline */
        return;
    if (s->sights)
        look(s, seen);
    if (seen->last && seen->fwd->rows)
        add_losses(s, &s->step->passes->packs[seen->microbatch]->batch, seen->microbatch,
                   seen->fwd->rows);
}

/* The forward passes alone: the same numbers come out. Labels of a sample that is cut over ranks
 * are summed, and the last stage of a pipeline tells the others. */
static void find_losses(struct search *s, bool looks)
{
    struct s2s_flow_options passes = *s->step->passes;
    const int64_t n = s->first[s->n];
    s->sums = s2s_xcalloc((size_t)(2 * n) + 1, sizeof *s->sums);
    if (looks) {
        s->sights = s2s_xcalloc((size_t)s->n + 1, sizeof *s->sights);
        for (int64_t i = 0; i < s->n; i++)
            s->sights[i].key = INT64_MAX;
    }
    passes.balance = NULL;
    passes.forward_only = passes.want_rows = true;
    /* norms over the batch are those of training, and their statistics the step's own */
    passes.records = looks || passes.running;
    passes.running = NULL;
    /* a loss that is recorded adds to gradients at once, and the step still needs its own */
    passes.seed = 0;
    passes.begins = NULL;
    passes.seen = see;
    passes.ctx = s;
    s2s_flow_run(s->step->flow, &passes);
    s2s_comm_all_reduce(comm_of(s, S2S_AXIS_PP), s->sums, n, S2S_F64, S2S_GROUP_SUM);
    for (int64_t i = 0; i < s->n; i++) {
        const struct s2s_batch *b = &s->step->passes->packs[i]->batch;
        for (int64_t q = 0; q < b->n_seqs; q++)
            for (int32_t t = b->cu_seqlens[q]; t < b->cu_seqlens[q + 1]; t++)
                s->sums[n + s->first[i] + q] += b->labels[t] >= 0;
    }
    s2s_comm_all_reduce(comm_of(s, S2S_AXIS_CP), s->sums, 2 * n, S2S_F64, S2S_GROUP_SUM);
}

/* ---- their gradients ---- */

/* Only the samples [begin, end) of all have labels. */
static bool fails_with(const struct search *s, int64_t begin, int64_t end)
{
    struct s2s_pack *const *packs = s->step->passes->packs;
    struct s2s_pack *some = s2s_xcalloc((size_t)s->n + 1, sizeof *some);
    struct s2s_pack **list = s2s_xcalloc((size_t)s->n + 1, sizeof(struct s2s_pack *));
    for (int64_t i = 0; i < s->n; i++) {
        const struct s2s_batch *b = &packs[i]->batch;
        int32_t *labels = s2s_xcalloc((size_t)b->n_tokens + 1, sizeof *labels);
        for (int64_t t = 0; t < b->n_tokens; t++)
            labels[t] = -100;
        for (int64_t q = 0; q < b->n_seqs; q++)
            if (s->order[i] + q >= begin && s->order[i] + q < end)
                memcpy(labels + b->cu_seqlens[q], b->labels + b->cu_seqlens[q],
                       (size_t)(b->cu_seqlens[q + 1] - b->cu_seqlens[q]) * sizeof *labels);
        some[i] = *packs[i];
        some[i].batch.labels = labels;
        list[i] = &some[i];
    }
    const bool fails = s->step->fails(s->step->ctx, list);
    for (int64_t i = 0; i < s->n; i++)
        free((int32_t *)some[i].batch.labels);
    free(some);
    free(list);
    return fails;
}

/*
 * Halves the samples of the step until one is left whose labels alone give a gradient that is no
 * number. It is nobody's where none at all do: with the numbers between them, in sums alone.
 */
static void hunt(struct search *s)
{
    int64_t begin = 0, end = s->n_global;
    s->hunted = -1;
    if (end == 0 || fails_with(s, 0, 0))
        return;
    while (end - begin > 1) {
        const int64_t middle = begin + (end - begin) / 2;
        if (fails_with(s, begin, middle))
            end = middle;
        else
            begin = middle;
    }
    if (fails_with(s, begin, end))
        s->hunted = begin;
}

/* The highest index of a parameter that any rank has: all know its name. */
static const char *share_param(const struct search *s, const struct s2s_param *p)
{
    const struct s2s_params *params = s->step->flow->model->params;
    int64_t at = -1;
    for (size_t i = 0; p && i < params->n; i++)
        if (params->list[i] == p)
            at = (int64_t)i;
    s2s_comm_all_reduce(s->step->world, &at, 1, S2S_I64, S2S_GROUP_MAX);
    return at < 0 ? NULL : params->list[at]->name;
}

/* ---- what is said of them ---- */

static bool is_bad(const struct search *s, int64_t sample, int64_t order)
{
    return !isfinite(s->sums[sample]) || order == s->hunted;
}

/* By how much the sample lifts the loss of the step. */
static double rank_of(const struct search *s, int64_t sample, double mean)
{
    const double labels = s->sums[s->first[s->n] + sample];
    return s->sums[sample] - labels * mean;
}

static bool comes_before(const struct s2s_suspect *x, const struct s2s_suspect *y)
{
    return x->rank > y->rank || (x->rank == y->rank && x->order < y->order);
}

/* The list keeps the first of all that were added. */
static void add_suspect(struct s2s_blame *blame, const struct s2s_suspect *suspect)
{
    int i = blame->n < S2S_SUSPECTS ? blame->n++ : S2S_SUSPECTS;
    while (i > 0 && comes_before(suspect, &blame->list[i - 1])) {
        if (i < S2S_SUSPECTS)
            blame->list[i] = blame->list[i - 1];
        i--;
    }
    if (i < S2S_SUSPECTS)
        blame->list[i] = *suspect;
}

static void name(struct s2s_suspect *suspect, const struct s2s_pack *pack, int64_t seq)
{
    struct s2s_buf id = S2S_BUF_INIT;
    const char *place;
    s2s_pack_name(pack, seq, &id, &place);
    snprintf(suspect->id, sizeof suspect->id, "%s", id.data);
    snprintf(suspect->place, sizeof suspect->place, "%s", place);
    s2s_buf_release(&id);
}

/* Those of this rank's packs, as its peers see them too. */
static void list_own(struct s2s_blame *blame, const struct search *s)
{
    const double mean = isfinite(s->step->loss) ? s->step->loss : 0;
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) {
            const int64_t order = s->order[i] + k - s->first[i];
            const bool bad = is_bad(s, k, order);
            struct s2s_suspect one = {.loss = s->sums[k],
                                      .n_labels = (int64_t)s->sums[s->first[s->n] + k],
                                      .rank = bad ? (double)INFINITY : rank_of(s, k, mean),
                                      .order = order};
            blame->n_bad += bad;
            if ((one.n_labels == 0 && !bad) ||
                (blame->n == S2S_SUSPECTS && !comes_before(&one, &blame->list[S2S_SUSPECTS - 1])))
                continue;
            name(&one, s->step->passes->packs[i], k - s->first[i]);
            add_suspect(blame, &one);
        }
}

/* The lists of all dp coordinates become one. */
static void share_lists(struct s2s_blame *blame, const struct search *s)
{
    struct s2s_comm *dp = comm_of(s, S2S_AXIS_DP);
    const int size = s2s_comm_size(dp);
    if (size == 1)
        return;
    const struct s2s_blame own = *blame;
    struct s2s_blame *all = s2s_xcalloc((size_t)size, sizeof *all);
    s2s_comm_all_gather(dp, all, &own, sizeof own, S2S_U8);
    blame->n = 0;
    blame->n_bad = 0;
    for (int r = 0; r < size; r++) {
        blame->n_bad += all[r].n_bad;
        for (int i = 0; i < all[r].n; i++)
            add_suspect(blame, &all[r].list[i]);
    }
    free(all);
}

/* The earliest of all ranks of an axis. */
static void share_sight(struct sight *sight, struct s2s_comm *comm)
{
    const int size = s2s_comm_size(comm);
    const struct sight own = *sight;
    struct sight *all = s2s_xcalloc((size_t)size, sizeof *all);
    s2s_comm_all_gather(comm, all, &own, sizeof own, S2S_U8);
    for (int r = 0; r < size; r++)
        if (all[r].key < sight->key)
            *sight = all[r];
    free(all);
}

/* In the first microbatch of the step with a loss that is no number. */
static void share_where(struct s2s_blame *blame, const struct search *s)
{
    static const enum s2s_axis peers[] = {S2S_AXIS_TP, S2S_AXIS_CP, S2S_AXIS_PP};
    struct sight sight = {.key = INT64_MAX};
    int64_t order = INT64_MAX;
    for (int64_t i = s->n - 1; i >= 0; i--)
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++)
            if (!isfinite(s->sums[k])) {
                sight = s->sights[i];
                order = s->order[i];
            }
    for (size_t a = 0; a < sizeof peers / sizeof *peers; a++)
        share_sight(&sight, comm_of(s, peers[a]));
    if (sight.key == INT64_MAX && order < INT64_MAX)
        sight = (struct sight){0, "the logits"}; /* which are no output of an operation */
    sight.key = sight.key < INT64_MAX ? order : INT64_MAX;
    share_sight(&sight, comm_of(s, S2S_AXIS_DP));
    if (sight.key < INT64_MAX)
        snprintf(blame->where, sizeof blame->where, "the first NaN or Inf is in %s", sight.where);
}

/* Values that are no numbers explain all else. */
static void find_poison(struct s2s_blame *blame, const struct search *s)
{
    const char *param =
        share_param(s, s2s_params_find_nonfinite(s->step->flow->model->params, false));
    const size_t len = strlen(blame->where);
    if (!param)
        return;
    blame->poisoned = true;
    snprintf(blame->where + len, sizeof blame->where - len, "%sparameter %.120s holds NaN or Inf",
             len ? "; " : "", param);
}

/* Losses are numbers: where the backward has its first NaN or Inf, and of whom. */
static void find_gradient(struct s2s_blame *blame, struct search *s)
{
    const char *param =
        share_param(s, s2s_params_find_nonfinite(s->step->flow->model->params, true));
    if (param)
        snprintf(blame->where, sizeof blame->where,
                 "the first NaN or Inf of the backward is in the gradient of %.200s", param);
    hunt(s);
}

void s2s_blame_find(struct s2s_blame *blame, const struct s2s_blame_step *step)
{
    struct search s = {.step = step, .n = step->passes->n_packs, .hunted = -1};
    const bool is_nan = step->trouble == S2S_TROUBLE_NAN;
    *blame = (struct s2s_blame){.trouble = step->trouble};
    count_samples(&s);
    if (is_nan && isfinite(step->loss))
        find_gradient(blame, &s);
    find_losses(&s, is_nan && !isfinite(step->loss));
    if (s.sights)
        share_where(blame, &s);
    if (is_nan)
        find_poison(blame, &s);
    list_own(blame, &s);
    share_lists(blame, &s);
    free(s.first);
    free(s.order);
    free(s.sums);
    free(s.sights);
}

/* Names of one record together: "u3, u7 of train.s2s: record 17". */
void s2s_blame_say(struct s2s_buf *to, const struct s2s_blame *blame)
{
    const bool bad = blame->n_bad > 0;
    const int n = bad && blame->n_bad < blame->n ? (int)blame->n_bad : blame->n;
    if (blame->where[0])
        s2s_buf_printf(to, "%s; ", blame->where);
    s2s_buf_puts(to, bad ? "it is in samples " : "samples that lift the loss most: ");
    for (int i = 0; i < n; i++) {
        const struct s2s_suspect *one = &blame->list[i];
        s2s_buf_puts(to, one->id);
        if (!bad)
            s2s_buf_printf(to, " (%.4g nats a token)", one->loss / (double)one->n_labels);
        if (i + 1 < n && strcmp(one->place, one[1].place) == 0)
            s2s_buf_puts(to, ", ");
        else
            s2s_buf_printf(to, " of %s%s", one->place, i + 1 < n ? ", " : "");
    }
    if (blame->n_bad > n)
        s2s_buf_printf(to, ", and %lld more", (long long)(blame->n_bad - n));
}
