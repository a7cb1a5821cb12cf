/* Loads and decodes samples on threads, and writes pack after pack. */
#include "tools/pack/pack.h"

#include "lib/io/digest.h"
#include "lib/io/outfile.h"
#include "tools/pack/duplex.h"
#include "tools/pack/plan.h"
#include "tools/pack/record.h"
#include "tools/pack/report.h"

/* ---- the header ---- */

static const char *const too_long_names[] = {"fail", "truncate", "skip"};
static const char *const audio_names[] = {"none", "path", "pcm", "flac", "mel"};

static void add_layout_config(json_t *config, const struct s2s_layout *layout)
{
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"min_seq_len", layout->min_seq_len},
                   {"multiple", layout->multiple},
                   {"pack_multiple", layout->pack_multiple},
                   {"pack_to", layout->pack_to}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].value > 0)
            json_object_set_new(config, numbers[i].name, json_integer(numbers[i].value));
}

static json_t *config_json(const struct pack_loader *loader, const struct pack_plan *plan,
                           const struct pack_options *opt)
{
    json_t *config =
        json_pack("{s:i, s:i, s:b, s:i, s:I, s:I}", "cp", opt->cp_size, "tp", opt->tp_size,
                  "strict_sp", opt->strict_sp, "pad_id", loader->salm.pad_id, "seed",
                  (json_int_t)opt->common.seed, "epochs", (json_int_t)opt->epochs);
    add_layout_config(config, &loader->layout);
    if (opt->n_packs > 0)
        json_object_set_new(config, "seam", pack_seam_json(&plan->seam));
    if (opt->drop_pad_labels)
        json_object_set_new(config, "pad_labels", json_string("drop"));
    if (opt->max_tokens == 0) {
        const struct pack_batching *b = &opt->batching;
        if (b->size > 0)
            json_object_set_new(config, "batch_size", json_integer(b->size));
        if (b->duration > 0)
            json_object_set_new(config, opt->batch_by_slots ? "batch_tokens" : "batch_duration",
                                json_real(b->duration));
    } else {
        json_object_set_new(config, "tokens", json_integer(plan->capacity));
        if (opt->lookahead > 0)
            json_object_set_new(config, "lookahead", json_integer(opt->lookahead));
        else
            json_object_set_new(config, "algorithm",
                                json_string(s2s_thd_bin_algorithms[opt->algorithm]));
        json_object_set_new(config, "too_long", json_string(too_long_names[opt->too_long]));
    }
    if (loader->kind == PACK_INPUT_IDS)
        return config;
    json_object_set_new(config, "audio_id", json_integer(loader->salm.audio_id));
    json_object_set_new(config, "tokenizer", json_string(s2s_tokenizer_digest(loader->tok)));
    json_object_set_new(config, "prompt", json_string(s2s_prompt_digest(loader->prompt)));
    json_object_set_new(config, "prompt_name", json_string(s2s_prompt_name(loader->prompt)));
    json_object_set_new(config, "sampling_rate", json_integer(loader->mel_config.rate_hz));
    json_object_set_new(config, "encoder_frames",
                        json_pack("{s:i, s:i}", "hop", loader->hop, "factor", loader->factor));
    if (loader->audio == S2S_AUDIO_MEL)
        json_object_set_new(config, "features", s2s_mel_config_json(&loader->mel_config));
    return config;
}

/* What goes on must be what was begun: of the same files, in the same way. */
static int check_begun(const json_t *begun, const json_t *inputs, const struct pack_loader *loader,
                       const struct pack_plan *plan, const struct pack_options *opt,
                       struct s2s_error *err)
{
    json_t *config = config_json(loader, plan, opt);
    const json_t *value, *files = json_array_get(inputs, json_array_size(inputs) - 1);
    const char *key;
    char hex[33];
    size_t n = 0;
    int rc = 0;
    json_object_foreach(config, key, value) if (rc == 0 && strcmp(key, "seam") != 0 &&
                                                !json_equal(value, json_object_get(begun, key)))
        rc = s2s_error_set(err, S2S_E_ARG, "%s: was packed with another '%s'", opt->go_on, key);
    for (; rc == 0 && s2s_source_digest(loader->source, n, hex); n++) {
        const char *was = json_string_value(json_array_get(files, n));
        if (!was || strcmp(was, hex) != 0)
            rc = s2s_error_set(err, S2S_E_ARG, "%s: was packed of other inputs", opt->go_on);
    }
    json_decref(config);
    return rc;
}

static json_t *duplex_header(const struct pack_loader *loader, const struct pack_plan *plan)
{
    const char *dtype = plan->exact16 ? "I16" : "F32";
    return json_pack("{s:s, s:o, s:{s:{s:s, s:[s]}, s:{s:s, s:[s]}}}", "kind", "duplex", "config",
                     pack_duplex_config(loader), "schema", "source_pcm", "dtype", dtype, "shape",
                     "n", "target_pcm", "dtype", dtype, "shape", "m");
}

static json_t *header_json(const struct pack_loader *loader, const struct pack_plan *plan,
                           const struct pack_options *opt)
{
    if (loader->duplex.on)
        return duplex_header(loader, plan);
    json_t *header = json_pack(
        "{s:s, s:s, s:s, s:o}", "kind", "pack", "layout", s2s_thd_layouts[loader->layout.kind],
        "audio", audio_names[loader->audio], "config", config_json(loader, plan, opt));
    json_t *schema = json_object();
    if (loader->audio == S2S_AUDIO_PCM)
        json_object_set_new(
            schema, "audio_pcm",
            json_pack("{s:s, s:[s]}", "dtype", plan->exact16 ? "I16" : "F32", "shape", "n"));
    if (loader->audio == S2S_AUDIO_MEL)
        json_object_set_new(
            schema, "audio_mel",
            json_pack("{s:s, s:[s, i]}", "dtype", "F32", "shape", "n", loader->mel_config.n_mels));
    if (loader->layout.kind != S2S_THD_SALM)
        json_object_set_new(schema, "cu_seqlens_padded",
                            json_pack("{s:s, s:[s]}", "dtype", "I32", "shape", "B+1"));
    if (loader->layout.kind == S2S_THD_RL || loader->layout.kind == S2S_THD_SFT)
        json_object_set_new(schema, "loss_mask",
                            json_pack("{s:s, s:[s]}", "dtype", "U8", "shape", "T"));
    if (json_object_size(schema) > 0)
        json_object_set(header, "schema", schema);
    json_decref(schema);
    return header;
}

static int create(struct s2s_stream_writer **out, const struct pack_loader *loader,
                  const struct pack_plan *plan, const struct pack_options *opt,
                  struct s2s_error *err)
{
    static const struct s2s_args_rule rules[] = {
        {"manifest", S2S_ARGS_DROP},
        {"cuts", S2S_ARGS_DROP},
        {"ids", S2S_ARGS_DROP},
        {"report", S2S_ARGS_DROP},
        {"conversations", S2S_ARGS_DROP},
        {"share-gpt", S2S_ARGS_DROP},
        {"sft", S2S_ARGS_DROP},
        {"text", S2S_ARGS_DROP},
        {"text-jsonl", S2S_ARGS_DROP},
        {"input-cfg", S2S_ARGS_DROP},
        {"tars", S2S_ARGS_DROP},
        {"shar", S2S_ARGS_DROP},
        {"tar", S2S_ARGS_DROP},
        {"plan", S2S_ARGS_DROP},
        {"continue", S2S_ARGS_DROP},
        {"tokenizer", S2S_ARGS_FILE},
        {"prompt", S2S_ARGS_FILE},
        {"encoder-frames", S2S_ARGS_FILE},
        {NULL, S2S_ARGS_DROP},
    };
    const struct s2s_stream_options how = {.jobs = opt->common.jobs};
    size_t n_args = 0;
    char **args = s2s_tool_args(rules, &n_args);
    json_t *header = header_json(loader, plan, opt);
    int rc = s2s_stream_create(out, opt->common.out, header, NULL, args, n_args, &how, err);
    json_decref(header);
    for (size_t i = 0; i < n_args; i++)
        free(args[i]);
    free(args);
    return rc;
}

/* ---- packs ---- */

struct job {
    size_t idx;
    struct pack_record record;
    size_t n_rows, n_items;
    int64_t n_audio_samples;
    struct s2s_place *silent; /* [n_silent] of clips that are */
    size_t n_silent, cap_silent;
    struct pack_bad *bad; /* [n_bad], with --bad skip */
    size_t n_bad, cap_bad;
};

struct packer {
    struct pack_plan *plan;
    const struct pack_loader *loader;
    const struct pack_options *opt;
    struct pack_space *space;
    struct s2s_stream_writer *out;
    struct pack_totals *totals;
    size_t next;
    struct s2s_progress progress;
};

static int next_job(void *ctx, void **item, struct s2s_error *err)
{
    struct packer *packer = ctx;
    if (packer->next == packer->plan->n_packs)
        return 0;
    struct job *job = s2s_xcalloc(1, sizeof *job);
    job->idx = packer->next++;
    *item = job;
    return 1;
}

static void drop_job(void *ctx, void *item)
{
    struct packer *packer = ctx;
    struct job *job = item;
    pack_record_release(&job->record);
    pack_space_give(packer->space, &job->record.audio);
    for (size_t i = 0; i < job->n_bad; i++) {
        free(job->bad[i].id);
        free(job->bad[i].text);
    }
    free(job->bad);
    free(job->silent);
    free(job);
}

/* Loads a row, and appends its audio to the record's. */
static int load_row(struct pack_row *row, const struct packer *packer, const struct pack_item *item,
                    struct pack_worker *worker, struct s2s_buf *audio, struct s2s_error *err)
{
    const struct pack_loader *loader = packer->loader;
    const struct pack_plan *plan = packer->plan;
    int rc = pack_row_load(row, loader, &item->place, item->epoch, err);
    if (rc == 0) /* the file has changed since the plan was made */
        rc = s2s_source_error(s2s_error_set(err, S2S_E_FORMAT, "is not what was planned"),
                              loader->source, &item->place, err);
    if (rc < 0)
        return rc;
    if (item->truncated)
        s2s_layout_truncate(&row->thd.n_ids, &row->thd.n_clips, &row->thd, &loader->layout,
                            &loader->salm, plan->capacity);
    if (row->thd.n_clips == 0)
        return 0;
    rc = pack_row_decode(row, loader, plan->exact16, worker, audio, err);
    if (rc < 0) {
        s2s_source_error(rc, loader->source, &item->place, err);
        pack_row_release(row);
    }
    return rc < 0 ? rc : 0;
}

/* Bytes that the audio of a pack takes in its record, as far as what headers promise is believed.
 */
static size_t audio_bytes(const struct packer *packer, const uint32_t *members, size_t n)
{
    enum { BELIEVED = 64 << 20 };
    const struct pack_loader *loader = packer->loader;
    size_t n_samples = 0, bytes = 0;
    for (size_t i = 0; i < n; i++)
        n_samples += (size_t)packer->plan->items[members[i]].n_samples;
    if (loader->audio == S2S_AUDIO_PCM)
        bytes = n_samples * (packer->plan->exact16 ? sizeof(int16_t) : sizeof(float));
    else if (loader->audio == S2S_AUDIO_MEL)
        bytes = n_samples / (size_t)loader->hop * (size_t)loader->mel_config.n_mels * sizeof(float);
    return bytes < BELIEVED ? bytes : BELIEVED;
}

static void note_bad(struct job *job, const struct s2s_error *err)
{
    s2s_grow(&job->bad, job->n_bad, &job->cap_bad, sizeof *job->bad);
    job->bad[job->n_bad++] = (struct pack_bad){NULL, s2s_xstrdup(err->text), err->code};
}

static void note_silent(struct job *job, const struct pack_row *row, const struct s2s_place *place)
{
    for (int64_t n = pack_row_silent(row); n > 0; n--) {
        s2s_grow(&job->silent, job->n_silent, &job->cap_silent, sizeof *job->silent);
        job->silent[job->n_silent++] = *place;
    }
}

static int make_pack(void *ctx, void *ptr, int worker, struct s2s_error *err)
{
    const struct packer *packer = ctx;
    const struct pack_plan *plan = packer->plan;
    struct job *job = ptr;
    const uint32_t *members = plan->members + plan->begin[job->idx];
    struct pack_worker *own = pack_space_worker(packer->space, worker);
    struct s2s_buf *audio = &job->record.audio;
    int rc = 0;
    job->n_items = plan->begin[job->idx + 1] - plan->begin[job->idx];
    pack_space_take(packer->space, audio, audio_bytes(packer, members, job->n_items));
    struct pack_row *rows = s2s_xcalloc(job->n_items, sizeof *rows);
    for (size_t i = 0; i < job->n_items; i++) {
        const struct pack_item *item = &plan->items[members[i]];
        rc = load_row(&rows[job->n_rows], packer, item, own, audio, err);
        if (rc < 0 && packer->opt->bad[pack_fault_of(rc)] != PACK_SKIP)
            break;
        if (rc < 0) {
            note_bad(job, err);
        } else {
            note_silent(job, &rows[job->n_rows], &item->place);
            job->n_audio_samples += rows[job->n_rows++].thd.n_clips > 0 ? item->n_samples : 0;
        }
        rc = 0;
    }
    if (rc == 0 && job->n_rows > 0)
        rc = pack_record_make(&job->record, rows, job->n_rows, packer->loader, plan->exact16, err);
    for (size_t i = 0; i < job->n_rows; i++)
        pack_row_release(&rows[i]);
    free(rows);
    return rc;
}

static void add_totals(struct pack_totals *t, const struct job *job)
{
    const struct s2s_salm_pack *p = &job->record.pack;
    int32_t longest = 0;
    for (size_t i = 0; i < p->n_seqs; i++)
        longest = p->seq_lens[i] > longest ? p->seq_lens[i] : longest;
    t->n_samples += (int64_t)p->n_seqs;
    t->n_packs++;
    t->n_tokens += p->num_tokens;
    t->n_slots += (int64_t)p->n_slots;
    t->n_padded_batch_slots += (int64_t)p->n_seqs * longest;
    t->n_audio_samples += job->n_audio_samples;
    s2s_salm_counts_add(&t->counts, &p->counts);
}

static int write_pack(void *ctx, void *ptr, struct s2s_error *err)
{
    struct packer *packer = ctx;
    struct job *job = ptr;
    struct pack_record *r = &job->record;
    int rc = 0;
    for (size_t i = 0; i < job->n_bad; i++) {
        struct s2s_error bad = S2S_ERROR_INIT;
        s2s_error_set(&bad, job->bad[i].code, "%s", job->bad[i].text);
        pack_plan_bad(packer->plan, job->bad[i].id, &bad);
    }
    if (job->n_rows > 0) {
        add_totals(packer->totals, job);
        for (size_t i = 0; i < job->n_silent; i++)
            pack_few_add(&packer->plan->silent, packer->loader->source, &job->silent[i]);
        rc = s2s_stream_write(packer->out, r->tensors, r->n_tensors, r->meta, r->n_meta, err);
    }
    s2s_progress_add(&packer->progress, (int64_t)job->n_items);
    drop_job(ctx, job);
    return rc;
}

/* The totals of packs that are not laid out, from the lengths of their samples. */
static void plan_totals(struct pack_totals *t, const struct pack_plan *plan,
                        const struct pack_loader *loader)
{
    const struct s2s_salm_options *salm = &loader->salm;
    for (size_t k = 0; k < plan->n_packs; k++) {
        const uint32_t *members = plan->members + plan->begin[k];
        const size_t n = plan->begin[k + 1] - plan->begin[k];
        int64_t slots = 0, longest = 0, n_first = 0, n_first_longest = 0;
        for (size_t i = 0; i < n; i++) {
            const struct pack_item *item = &plan->items[members[i]];
            slots += item->len_padded;
            t->n_tokens += item->len;
            t->n_audio_samples += item->n_samples;
            t->counts.pad_labels += item->pad_labels;
            t->counts.pad_stripped += item->pad_stripped;
            n_first += item->first_supervised;
            if (item->len > longest) {
                longest = item->len;
                n_first_longest = 0;
            }
            n_first_longest += item->first_supervised && item->len == longest;
        }
        slots = s2s_layout_slots(slots, &loader->layout, salm);
        t->n_samples += (int64_t)n;
        t->n_slots += slots;
        t->n_padded_batch_slots += (int64_t)n * longest;
        t->counts.first_supervised += n_first - n_first_longest;
        t->counts.sp_misaligned += salm->tp_size > 1 && slots / salm->cp_size % salm->tp_size != 0;
    }
    t->n_packs = (int64_t)plan->n_packs;
}

static int run_packs(struct packer *packer, struct s2s_error *err)
{
    const int jobs = packer->opt->common.jobs;
    const struct s2s_ordered stages = {.source = next_job,
                                       .work = make_pack,
                                       .sink = write_pack,
                                       .drop = drop_job,
                                       .ctx = packer,
                                       .n_items = jobs + 1};
    const struct pack_plan *plan = packer->plan;
    packer->space = pack_space_new(jobs, packer->loader->mel);
    s2s_progress_begin(&packer->progress, "packing", "samples",
                       (int64_t)plan->begin[plan->n_packs]);
    int rc = s2s_ordered_run(&stages, jobs, err);
    s2s_progress_end(&packer->progress);
    pack_space_free(packer->space);
    if (rc == 0 && packer->totals->n_packs == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "E_EMPTY_BATCH: all samples are bad");
    return rc;
}

static int commit(struct s2s_stream_writer *out, const struct pack_loader *loader,
                  struct s2s_error *err)
{
    char **digests = NULL;
    char hex[33];
    size_t n = 0, cap = 0;
    while (s2s_source_digest(loader->source, n, hex)) {
        s2s_grow(&digests, n, &cap, sizeof *digests);
        digests[n++] = s2s_xstrdup(hex);
    }
    int rc = s2s_stream_commit(out, NULL, digests, n, err);
    for (size_t i = 0; i < n; i++)
        free(digests[i]);
    free(digests);
    return rc;
}

/* What is written must not replace what is read. */
static int check_outputs(const struct pack_options *opt, struct s2s_error *err)
{
    const char *const outputs[] = {opt->common.out, opt->report};
    for (size_t k = 0; k < 2; k++) {
        bool is_input = s2s_outfile_is(outputs[k], opt->tokenizer);
        for (size_t i = 0; i < opt->n_inputs; i++)
            is_input |= s2s_outfile_is(outputs[k], opt->inputs[i]);
        for (size_t i = 0; i < opt->n_tars; i++)
            is_input |= s2s_outfile_is(outputs[k], opt->tars[i]);
        if (is_input)
            return s2s_error_set(err, S2S_E_ARG, "%s: is part of the input: choose another name",
                                 outputs[k]);
    }
    const char *out = opt->common.out ? opt->common.out : "-";
    /* of a plan both are text */
    if (opt->report && !strcmp(out, opt->report) && (strcmp(out, "-") != 0 || !opt->plan))
        return s2s_error_set(err, S2S_E_ARG, "%s: is OUT and the report: give each its name",
                             strcmp(out, "-") ? out : "stdout");
    return 0;
}

int pack_run(const struct pack_options *opt, struct s2s_error *err)
{
    struct pack_loader loader;
    struct pack_plan plan = {.n_items = 0};
    struct pack_totals totals = {.n_packs = 0};
    struct packer packer = {.plan = &plan, .loader = &loader, .opt = opt, .totals = &totals};
    struct s2s_outfile *report = NULL;
    struct pack_seam from = {.n_held = 0};
    json_t *begun = NULL, *inputs = NULL;
    const double start_s = s2s_now_s();
    int rc = check_outputs(opt, err);
    if (rc == 0)
        rc = pack_loader_open(&loader, opt, err);
    if (rc < 0)
        return rc;
    if (opt->go_on)
        rc = pack_seam_read(&from, &begun, &inputs, opt->go_on, err);
    if (rc == 0 && opt->report) /* where it cannot be is not found out after hours */
        rc = s2s_outfile_open(&report, opt->report, err);
    if (rc == 0 && !opt->plan && (!opt->common.out || !strcmp(opt->common.out, "-")))
        rc = s2s_tool_check_stdout(err);
    if (rc == 0)
        rc = pack_plan_make(&plan, &loader, opt, &from, err);
    if (rc == 0 && begun)
        rc = check_begun(begun, inputs, &loader, &plan, opt, err);
    totals.plan_s = s2s_now_s() - start_s;
    if (rc == 0 && !opt->plan)
        rc = create(&packer.out, &loader, &plan, opt, err);
    if (rc == 0 && opt->plan)
        plan_totals(&totals, &plan, &loader);
    else if (rc == 0)
        rc = run_packs(&packer, err);
    if (rc == 0 && packer.out) {
        rc = commit(packer.out, &loader, err);
        packer.out = NULL;
    }
    totals.pack_s = s2s_now_s() - start_s - totals.plan_s;
    if (rc == 0) {
        rc = pack_report(&totals, &plan, &loader, opt, report, err);
        report = NULL;
    }
    s2s_outfile_abort(report);
    s2s_stream_abort(packer.out);
    pack_plan_release(&plan);
    pack_loader_close(&loader);
    pack_seam_release(&from);
    json_decref(begun);
    json_decref(inputs);
    return rc;
}
