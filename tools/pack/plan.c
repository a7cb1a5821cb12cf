/* Measures all samples, and puts them into bins. */
#include "tools/pack/plan.h"

#include <stdatomic.h>

#include "lib/data/data.h"

enum { PLACES_A_BATCH = 32 };

static void release_bad(struct pack_bad *bad)
{
    free(bad->id);
    free(bad->text);
}

void pack_few_add(struct pack_few *few, const struct s2s_source *source,
                  const struct s2s_place *place)
{
    if (few->n < PACK_N_NAMED)
        few->names[few->n] = source->kind->where(source, place);
    few->n++;
}

static void release_few(struct pack_few *few)
{
    for (int i = 0; i < PACK_N_NAMED; i++)
        free(few->names[i]);
}

void pack_plan_release(struct pack_plan *plan)
{
    release_few(&plan->shorter);
    release_few(&plan->longer);
    release_few(&plan->silent);
    for (size_t i = 0; i < plan->n_bad; i++)
        release_bad(&plan->bad[i]);
    for (size_t i = 0; i < plan->n_unlabelled; i++)
        release_bad(&plan->unlabelled[i]);
    free(plan->bad);
    free(plan->unlabelled);
    free(plan->items);
    free(plan->members);
    free(plan->begin);
    pack_seam_release(&plan->seam);
    *plan = (struct pack_plan){.n_items = 0};
}

void pack_plan_bad(struct pack_plan *plan, const char *id, const struct s2s_error *err)
{
    s2s_warn("pack", "left out: %s", err->text);
    s2s_grow(&plan->bad, plan->n_bad, &plan->cap_bad, sizeof *plan->bad);
    plan->bad[plan->n_bad++] =
        (struct pack_bad){id ? s2s_xstrdup(id) : NULL, s2s_xstrdup(err->text), err->code};
}

/* ---- lengths: batches of places are measured on threads and taken in order ---- */

/* What a place became: samples, or why it is none. */
struct measured {
    struct pack_item item;
    enum {
        MEASURED_ITEM,
        MEASURED_MARKED,
        MEASURED_FILTERED,
        MEASURED_BAD,
        MEASURED_TOO_LONG
    } what;
    enum pack_filtered filtered;
    bool shorter, longer, unlabelled;
    struct s2s_duplex_counts turns;
    char *id;
    struct s2s_error *err; /* of MEASURED_BAD, MEASURED_TOO_LONG and unlabelled ones */
};

struct batch {
    struct s2s_place places[PLACES_A_BATCH];
    uint64_t numbers[PLACES_A_BATCH]; /* of them in the walk */
    size_t n_places;
    struct s2s_error *broken; /* what is wrong with a file behind them; NULL: nothing */
    struct measured *out;
    size_t n_out, cap_out;
};

struct survey {
    struct pack_plan *plan;
    const struct pack_loader *loader;
    const struct pack_options *opt;
    uint32_t epoch;
    uint64_t n_places; /* of the source that were passed */
    /* Of endless sources: packs are made as their samples come, until there are enough */
    struct s2s_lookahead *ahead; /* NULL: the sources end */
    const struct pack_seam *from;
    int64_t n_idle;   /* samples since the last that could be packed */
    atomic_bool done; /* by whoever takes measured samples; nothing more is read then */
    struct s2s_progress progress;
};

static int next_batch(void *ctx, void **item, struct s2s_error *err)
{
    struct survey *survey = ctx;
    const struct pack_options *opt = survey->opt;
    struct batch *batch = s2s_xcalloc(1, sizeof *batch);
    int rc = 1;
    while (rc > 0 && batch->n_places < PLACES_A_BATCH && !survey->done) {
        rc = s2s_source_next(survey->loader->source, &batch->places[batch->n_places], err);
        if (rc <= 0)
            break;
        const uint64_t number = survey->n_places++;
        /* what is another part's is not even looked at, nor what is in packs already */
        batch->numbers[batch->n_places] = number;
        batch->n_places += number % (uint64_t)opt->split_n == (uint64_t)opt->split_idx &&
                           pack_seam_wants_any(survey->from, number);
    }
    if (survey->done)
        batch->n_places = 0;
    if (rc < 0 && survey->opt->bad[pack_fault_of(rc)] == PACK_SKIP) {
        batch->broken = s2s_xmalloc(sizeof *err);
        *batch->broken = *err;
    } else if (rc < 0 || batch->n_places == 0) {
        free(batch);
        return rc < 0 ? rc : 0;
    }
    *item = batch;
    return 1;
}

static void drop_batch(void *ctx, void *item)
{
    struct batch *batch = item;
    for (size_t i = 0; i < batch->n_out; i++) {
        free(batch->out[i].id);
        free(batch->out[i].err);
    }
    free(batch->out);
    free(batch->broken);
    free(batch);
}

static struct measured *add_measured(struct batch *batch)
{
    s2s_grow(&batch->out, batch->n_out, &batch->cap_out, sizeof *batch->out);
    struct measured *m = &batch->out[batch->n_out++];
    memset(m, 0, sizeof *m);
    return m;
}

static void set_error(struct measured *m, const struct s2s_error *err, const char *id)
{
    m->err = s2s_xmalloc(sizeof *m->err);
    *m->err = *err;
    m->id = id ? s2s_xstrdup(id) : NULL;
}

static void keep_shape(struct pack_item *item, const struct s2s_salm_shape *shape)
{
    item->len = (int32_t)shape->len;
    item->len_padded = (int32_t)shape->len_padded;
    item->pad_labels = (int32_t)shape->pad_labels;
    item->pad_stripped = (int32_t)shape->pad_stripped;
    item->first_supervised = shape->first_supervised;
}

/* Cuts a row that is longer than a pack. False when that leaves nothing, or is not wanted. */
static bool truncate_row(struct measured *m, const struct survey *survey, struct pack_row *row,
                         int64_t n_labels)
{
    struct s2s_error ignored = S2S_ERROR_INIT;
    struct s2s_salm_shape shape;
    if (survey->opt->too_long != PACK_TOO_LONG_TRUNCATE)
        return false;
    const struct pack_loader *loader = survey->loader;
    s2s_layout_truncate(&row->thd.n_ids, &row->thd.n_clips, &row->thd, &loader->layout,
                        &loader->salm, survey->plan->capacity);
    if (row->thd.n_ids == 0 ||
        s2s_layout_measure(&shape, &row->thd, &loader->layout, &loader->salm, &ignored) < 0)
        return false;
    m->item.truncated = true;
    m->unlabelled = n_labels > 0 && shape.n_labels == 0;
    keep_shape(&m->item, &shape);
    m->item.n_samples = pack_row_samples(row);
    return true;
}

/* 16-bit samples say all of a clip. */
static bool is_exact16(const struct pack_clip *clip)
{
    return !s2s_audio_changes(&clip->range.change) && clip->info.int16 &&
           clip->info.rate_hz == clip->range.rate_hz &&
           (clip->info.n_channels == 1 || clip->sound->channel >= 0);
}

static int measure_shape(struct s2s_salm_shape *shape, const struct pack_loader *loader,
                         const struct pack_row *row, struct s2s_error *err)
{
    if (!loader->duplex.on)
        return s2s_layout_measure(shape, &row->thd, &loader->layout, &loader->salm, err);
    *shape = (struct s2s_salm_shape){.len = row->n_frames, .len_padded = row->n_frames};
    return 0;
}

static void measure_row(struct measured *m, const struct survey *survey, struct pack_row *row)
{
    const int64_t capacity = survey->plan->capacity;
    const struct s2s_source *source = survey->loader->source;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_shape shape;
    int rc = measure_shape(&shape, survey->loader, row, &err);
    if (rc < 0) {
        s2s_source_error(rc, source, &m->item.place, &err);
        m->what = MEASURED_BAD;
        set_error(m, &err, row->thd.id);
        return;
    }
    keep_shape(&m->item, &shape);
    m->item.n_samples = pack_row_samples(row);
    m->item.n_ids = (int32_t)row->thd.n_ids;
    m->turns = row->turns;
    m->item.exact16 = true;
    for (size_t k = 0; k < row->n_clips; k++) {
        m->item.exact16 &= is_exact16(&row->clips[k]);
        m->shorter |= row->clips[k].shorter;
        m->longer |= row->clips[k].longer;
    }
    m->filtered =
        pack_filter_row(&survey->opt->filter, row, shape.len, survey->loader->mel_config.rate_hz);
    if (m->filtered != PACK_KEPT) {
        m->what = MEASURED_FILTERED;
        return;
    }
    if (capacity == 0 || shape.len_padded <= capacity)
        return;
    if (truncate_row(m, survey, row, shape.n_labels)) {
        if (m->unlabelled) {
            s2s_error_set(&err, S2S_E_RANGE,
                          "utterance '%s' of %lld slots is cut to %d, of which none has a label",
                          row->thd.id, (long long)shape.len, m->item.len);
            s2s_source_error(S2S_E_RANGE, source, &m->item.place, &err);
            set_error(m, &err, row->thd.id);
        }
        return;
    }
    s2s_error_set(&err, S2S_E_RANGE,
                  "utterance '%s' needs %lld slots (%lld of its own), a pack has %lld", row->thd.id,
                  (long long)shape.len_padded, (long long)shape.len, (long long)capacity);
    s2s_error_hint(&err, S2S_E_RANGE, "raise --tokens, or choose --too-long truncate or skip");
    s2s_source_error(S2S_E_RANGE, source, &m->item.place, &err);
    m->what = MEASURED_TOO_LONG;
    set_error(m, &err, row->thd.id);
}

/* All variants of a place. */
static void measure_place(struct batch *batch, const struct survey *survey,
                          const struct s2s_place *place, uint64_t number)
{
    struct s2s_error err = S2S_ERROR_INIT;
    int n_variants = 1;
    for (int variant = 0; variant < n_variants; variant++) {
        struct pack_row row;
        struct measured *m = add_measured(batch);
        m->item.place = *place;
        m->item.place.variant = variant;
        m->item.number = number;
        m->item.epoch = survey->epoch;
        int n = pack_row_load(&row, survey->loader, &m->item.place, survey->epoch, &err);
        if (n <= 0) {
            m->what = n == 0 ? MEASURED_MARKED : MEASURED_BAD;
            if (n < 0)
                set_error(m, &err, NULL);
            return;
        }
        n_variants = n;
        measure_row(m, survey, &row);
        pack_row_release(&row);
    }
}

static int measure_batch(void *ctx, void *item, int worker, struct s2s_error *err)
{
    struct batch *batch = item;
    for (size_t i = 0; i < batch->n_places; i++)
        measure_place(batch, ctx, &batch->places[i], batch->numbers[i]);
    if (batch->broken) {
        struct measured *m = add_measured(batch);
        m->what = MEASURED_BAD;
        set_error(m, batch->broken, NULL);
    }
    return 0;
}

/* The first few are said at once; the report names all. */
static void note_unlabelled(struct pack_plan *plan, struct measured *m)
{
    enum { N_SAID = 10 };
    if (plan->n_unlabelled < N_SAID)
        s2s_warn("pack", "%s", m->err->text);
    s2s_grow(&plan->unlabelled, plan->n_unlabelled, &plan->cap_unlabelled,
             sizeof *plan->unlabelled);
    plan->unlabelled[plan->n_unlabelled++] = (struct pack_bad){m->id, s2s_xstrdup(m->err->text), 0};
    m->id = NULL;
}

/* Says where they all have gone. */
static int no_sample(const struct pack_plan *plan, const struct pack_options *opt,
                     struct s2s_error *err)
{
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_buf_printf(&text, "%lld read, %zu bad, %lld too long", (long long)plan->n_read, plan->n_bad,
                   (long long)plan->n_too_long);
    if (plan->n_marked > 0)
        s2s_buf_printf(&text, ", %lld marked _skipme", (long long)plan->n_marked);
    for (int i = PACK_KEPT + 1; i < N_PACK_FILTERED; i++)
        if (plan->n_filtered[i] > 0)
            s2s_buf_printf(&text, ", %lld left out by %s", (long long)plan->n_filtered[i],
                           pack_filtered_names[i]);
    if (opt->batching.drop_last)
        s2s_buf_puts(&text, "; --drop-last leaves out batches that are not full");
    int rc = s2s_error_set(err, S2S_E_FORMAT, "E_EMPTY_BATCH: there is no sample to pack (%s)",
                           text.data);
    s2s_buf_release(&text);
    return rc;
}

/* Adds a pack of n items. */
static void add_pack(struct pack_plan *plan, const uint32_t *items, size_t n)
{
    s2s_grow(&plan->begin, plan->n_packs + 1, &plan->cap_begin, sizeof *plan->begin);
    plan->begin[0] = 0;
    size_t at = plan->begin[plan->n_packs];
    for (size_t i = 0; i < n; i++) {
        s2s_grow(&plan->members, at, &plan->cap_members, sizeof *plan->members);
        plan->members[at++] = items[i];
    }
    plan->begin[++plan->n_packs] = at;
}

/* Packs what the window is full of; behind the last pack it notes where the next run goes on. */
static void pack_ahead(struct survey *survey, uint32_t item)
{
    struct pack_plan *plan = survey->plan;
    const struct pack_item *last = &plan->items[item];
    const uint32_t *items;
    bool full = s2s_lookahead_add(survey->ahead, item, last->len_padded);
    while (full && (int64_t)plan->n_packs < survey->opt->n_packs) {
        const size_t n = s2s_lookahead_take(survey->ahead, &items);
        add_pack(plan, items, n);
        full = false; /* it has taken one at least */
    }
    if ((int64_t)plan->n_packs < survey->opt->n_packs)
        return;
    plan->seam.next = (struct pack_spot){last->number, last->place.variant + 1};
    survey->done = true;
}

/* What is held is what is in no pack. */
static void note_held(struct pack_plan *plan)
{
    bool *is_packed = s2s_xcalloc(plan->n_items + 1, sizeof *is_packed);
    for (size_t i = 0; i < plan->begin[plan->n_packs]; i++)
        is_packed[plan->members[i]] = true;
    for (size_t i = 0; i < plan->n_items; i++)
        if (!is_packed[i])
            pack_seam_add(&plan->seam,
                          (struct pack_spot){plan->items[i].number, plan->items[i].place.variant});
    free(is_packed);
}

static int take(struct survey *survey, struct measured *m, struct s2s_error *err)
{
    struct pack_plan *plan = survey->plan;
    enum { MAX_IDLE = 1 << 24 };
    const struct pack_spot spot = {m->item.number, m->item.place.variant};
    if (survey->done)
        return 0;
    if (survey->ahead && survey->n_idle++ > MAX_IDLE)
        return no_sample(plan, survey->opt, err);
    if (survey->ahead && !pack_seam_wants(survey->from, spot))
        return 0;
    const bool is_too_long = m->what == MEASURED_TOO_LONG, is_first = survey->epoch == 0;
    plan->n_read += is_first && m->what != MEASURED_MARKED;
    plan->n_marked += is_first && m->what == MEASURED_MARKED;
    if (m->what == MEASURED_ITEM) {
        plan->n_truncated += m->item.truncated;
        if (is_first && m->shorter)
            pack_few_add(&plan->shorter, survey->loader->source, &m->item.place);
        if (is_first && m->longer)
            pack_few_add(&plan->longer, survey->loader->source, &m->item.place);
        plan->turns.late += m->turns.late;
        plan->turns.cut += m->turns.cut;
        plan->turns.overrun += m->turns.overrun;
        plan->turns.unfinished += m->turns.unfinished;
        if (m->unlabelled)
            note_unlabelled(plan, m);
        s2s_grow(&plan->items, plan->n_items, &plan->cap_items, sizeof *plan->items);
        plan->items[plan->n_items++] = m->item;
        survey->n_idle = 0;
        if (survey->ahead)
            pack_ahead(survey, (uint32_t)plan->n_items - 1);
    } else if (m->what == MEASURED_FILTERED) {
        plan->n_filtered[m->filtered]++;
    } else if (m->what != MEASURED_MARKED) {
        if (is_too_long ? survey->opt->too_long == PACK_TOO_LONG_FAIL
                        : survey->opt->bad[pack_fault_of(m->err->code)] != PACK_SKIP) {
            *err = *m->err;
            return err->code;
        }
        plan->n_too_long += is_too_long;
        if (!is_too_long && is_first)
            pack_plan_bad(plan, m->id, m->err);
    }
    return 0;
}

static int take_batch(void *ctx, void *item, struct s2s_error *err)
{
    struct survey *survey = ctx;
    struct batch *batch = item;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < batch->n_out; i++)
        rc = take(survey, &batch->out[i], err);
    s2s_progress_add(&survey->progress, (int64_t)batch->n_out);
    drop_batch(ctx, batch);
    return rc;
}

/* Samples as long as they are in an epoch go to the end of plan->items. */
static int survey_lengths(struct pack_plan *plan, const struct pack_loader *loader,
                          const struct pack_options *opt, const struct pack_seam *from,
                          uint32_t epoch, struct s2s_error *err)
{
    struct survey survey = {
        .plan = plan, .loader = loader, .opt = opt, .from = from, .epoch = epoch};
    const struct s2s_ordered stages = {.source = next_batch,
                                       .work = measure_batch,
                                       .sink = take_batch,
                                       .drop = drop_batch,
                                       .ctx = &survey};
    if (opt->n_packs > 0)
        survey.ahead = s2s_lookahead_new((size_t)opt->lookahead, plan->capacity);
    s2s_source_rewind(loader->source);
    s2s_progress_begin(&survey.progress, "measuring", "samples", 0);
    int rc = s2s_ordered_run(&stages, opt->common.jobs, err);
    s2s_progress_end(&survey.progress);
    s2s_lookahead_free(survey.ahead);
    if (rc == 0 && survey.ahead && !survey.done) /* sources that have no sample at all end */
        rc = no_sample(plan, opt, err);
    if (epoch == 0)
        plan->n_marked += loader->source->n_marked;
    if (rc == 0 && plan->n_items > UINT32_MAX / 2)
        rc = s2s_error_set(err, S2S_E_RANGE, "%zu samples are too many", plan->n_items);
    return rc;
}

/* ---- order and bins ---- */

/* Every split_n-th sample of those from `first` on. */
static uint32_t *select_items(const struct pack_plan *plan, size_t first, size_t *n)
{
    uint32_t *selected = s2s_xmalloc((plan->n_items - first + 1) * sizeof *selected);
    *n = 0;
    for (size_t i = first; i < plan->n_items; i++)
        selected[(*n)++] = (uint32_t)i;
    return selected;
}

static uint64_t seed_of(const struct pack_options *opt, int64_t epoch)
{
    return (uint64_t)opt->common.seed + (uint64_t)epoch; /* which may be more than an int64 holds */
}

static int bins_of(struct s2s_bins *bins, struct pack_plan *plan, const uint32_t *order, size_t n,
                   const struct pack_options *opt, int64_t epoch, struct s2s_error *err)
{
    struct s2s_bins_options how = S2S_BINS_OPTIONS_DEFAULT;
    int32_t *lens = s2s_xmalloc((n + 1) * sizeof *lens);
    for (size_t i = 0; i < n; i++)
        lens[i] = plan->items[order[i]].len_padded;
    how.algorithm = opt->algorithm;
    how.multiple = plan->bin_multiple;
    how.lookahead = opt->lookahead;
    how.capacity = plan->capacity;
    how.min_bins = opt->min_bins;
    how.bins_multiple = opt->bins_multiple;
    how.seed = seed_of(opt, epoch);
    int rc = s2s_thd_bins(bins, lens, n, &how, err);
    if (rc == 0)
        plan->n_bound += s2s_thd_bins_bound(bins, lens, &how);
    free(lens);
    return rc;
}

/* Lengths of a batch are seconds of sound, which a sample without any has not. */
static int length_of(double *len, const struct pack_item *item, const struct pack_loader *loader,
                     const struct pack_options *opt, struct s2s_error *err)
{
    *len = opt->batch_by_slots ? item->len : (double)item->n_samples / loader->mel_config.rate_hz;
    if (*len > 0 || opt->batching.duration == 0)
        return 0;
    int rc = s2s_error_set(err, S2S_E_ARG, "a sample without sound has no --batch-duration");
    s2s_source_error(rc, loader->source, &item->place, err);
    return s2s_error_hint(err, rc, "--batch-tokens counts slots");
}

static int batches_of(struct s2s_bins *bins, struct pack_plan *plan,
                      const struct pack_loader *loader, const uint32_t *order, size_t n,
                      const struct pack_options *opt, int64_t epoch, struct s2s_error *err)
{
    double *lens = s2s_xmalloc((n + 1) * sizeof *lens);
    double *ids = s2s_xmalloc((n + 1) * sizeof *ids);
    struct pack_batching_of of = {.lens = lens,
                                  .lens2 = ids,
                                  .n = n,
                                  .min = opt->filter.min_s,
                                  .max = opt->batch_by_slots ? 1e300 : opt->filter.max_s,
                                  .shuffle = (uint64_t)opt->shuffle,
                                  .seed = seed_of(opt, epoch),
                                  .multiple = opt->bins_multiple};
    struct pack_batching one = opt->batching;
    size_t n_unfit = 0;
    int rc = 0;
    if (opt->duplex.on)
        one.size = 1;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct pack_item *item = &plan->items[order[i]];
        ids[i] = item->n_ids;
        rc = length_of(&lens[i], item, loader, opt, err);
    }
    if (rc == 0)
        rc = pack_batching_run(bins, &n_unfit, &one, &of, err);
    plan->n_filtered[PACK_FILTERED_BUCKET] += (int64_t)n_unfit;
    free(lens);
    free(ids);
    return rc;
}

static int add_epoch(struct pack_plan *plan, size_t first, const struct pack_loader *loader,
                     const struct pack_options *opt, int64_t epoch, struct s2s_error *err)
{
    struct s2s_bins bins = S2S_BINS_INIT;
    size_t n = 0;
    uint32_t *order = select_items(plan, first, &n);
    int rc = 0;
    if (n == 0)
        rc = no_sample(plan, opt, err);
    for (size_t i = 0; i < n; i++)
        plan->exact16 = plan->exact16 && plan->items[order[i]].exact16;
    if (!pack_batching_has_buckets(&opt->batching)) /* they are what shuffles */
        s2s_data_shuffle(order, n, (size_t)opt->shuffle, seed_of(opt, epoch));
    if (rc == 0 && opt->max_tokens == 0)
        rc = batches_of(&bins, plan, loader, order, n, opt, epoch, err);
    else if (rc == 0)
        rc = bins_of(&bins, plan, order, n, opt, epoch, err);
    if (rc == 0 && bins.n_bins == 0)
        rc = no_sample(plan, opt, err);
    if (rc == 0) {
        const size_t base = plan->begin ? plan->begin[plan->n_packs] : 0;
        plan->members = s2s_xrealloc(plan->members, base + bins.n_items + 1, sizeof *plan->members);
        plan->begin =
            s2s_xrealloc(plan->begin, plan->n_packs + bins.n_bins + 1, sizeof *plan->begin);
        for (size_t i = 0; i < bins.n_items; i++)
            plan->members[base + i] = order[bins.items[i]];
        for (size_t b = 0; b <= bins.n_bins; b++)
            plan->begin[plan->n_packs + b] = base + bins.begin[b];
        plan->n_packs += bins.n_bins;
    }
    s2s_bins_release(&bins);
    free(order);
    return rc;
}

/* Slots a pack may have; what is planned with must be possible to keep to. */
static int set_capacity(struct pack_plan *plan, const struct pack_loader *loader,
                        const struct pack_options *opt, struct s2s_error *err)
{
    if (opt->max_tokens == 0)
        return 0;
    const bool of_salm = loader->layout.kind == S2S_THD_SALM;
    plan->bin_multiple = s2s_layout_bin_multiple(&loader->layout, &loader->salm);
    plan->capacity = s2s_layout_capacity(opt->max_tokens, &loader->layout, &loader->salm);
    if (plan->capacity == 0 && of_salm)
        return s2s_error_set(
            err, S2S_E_ARG, "--tokens %lld is less than the multiple that --cp %d and --tp %d need",
            (long long)opt->max_tokens, opt->cp_size, opt->tp_size);
    if (plan->capacity == 0)
        return s2s_error_set(err, S2S_E_ARG,
                             "--tokens %lld is less than --min-seq-len, --pack-to or "
                             "--pack-multiple",
                             (long long)opt->max_tokens);
    if (plan->capacity != opt->max_tokens && of_salm)
        s2s_warn("pack",
                 "--tokens %lld is lowered to %lld, a multiple of what --cp %d and --tp %d "
                 "need",
                 (long long)opt->max_tokens, (long long)plan->capacity, opt->cp_size, opt->tp_size);
    else if (plan->capacity != opt->max_tokens)
        s2s_warn("pack", "--tokens %lld is lowered to %lld, as --pack-to or --pack-multiple asks",
                 (long long)opt->max_tokens, (long long)plan->capacity);
    return 0;
}

/* Samples that are held are no part of what is planned. */
static int plan_endless(struct pack_plan *plan, const struct pack_loader *loader,
                        const struct pack_options *opt, const struct pack_seam *from,
                        struct s2s_error *err)
{
    int64_t slots = 0;
    if (plan->capacity > S2S_LOOKAHEAD_MAX_CAPACITY)
        return s2s_error_set(err, S2S_E_ARG, "--lookahead takes packs of up to %d slots",
                             S2S_LOOKAHEAD_MAX_CAPACITY);
    int rc = survey_lengths(plan, loader, opt, from, 0, err);
    if (rc < 0)
        return rc;
    note_held(plan);
    for (size_t i = 0; i < plan->begin[plan->n_packs]; i++) {
        const struct pack_item *item = &plan->items[plan->members[i]];
        slots += item->len_padded;
        plan->exact16 = plan->exact16 && item->exact16;
    }
    plan->n_bound = (slots + plan->capacity - 1) / plan->capacity;
    return 0;
}

int pack_plan_make(struct pack_plan *plan, const struct pack_loader *loader,
                   const struct pack_options *opt, const struct pack_seam *from,
                   struct s2s_error *err)
{
    *plan = (struct pack_plan){.exact16 = true};
    size_t first = 0; /* of the samples of an epoch */
    int rc = set_capacity(plan, loader, opt, err);
    if (rc == 0 && opt->n_packs > 0)
        rc = plan_endless(plan, loader, opt, from, err);
    for (int64_t epoch = 0; rc == 0 && opt->n_packs == 0 && epoch < opt->epochs; epoch++) {
        /* what is drawn for an epoch makes samples of their own */
        const bool anew = epoch == 0 || s2s_audio_perturbs(&loader->perturb);
        first = anew ? plan->n_items : first;
        rc = anew ? survey_lengths(plan, loader, opt, from, (uint32_t)epoch, err) : 0;
        if (rc == 0)
            rc = add_epoch(plan, first, loader, opt, epoch, err);
    }
    if (opt->pcm != PACK_PCM_AUTO)
        plan->exact16 = opt->pcm == PACK_PCM_I16;
    if (rc < 0)
        pack_plan_release(plan);
    return rc;
}
