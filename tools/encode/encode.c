/* The run of s2s-encode: windows of records, their gathering, and the output stream. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/io/digest.h"
#include "tools/encode/encode.h"

struct record {
    void *bytes; /* the safetensors file, on every rank */
    int64_t len, idx;
    struct s2s_safetensors st;
    bool parsed;
    int64_t first_clip, n_clips; /* in the window */
};

struct clip {
    const struct record *record; /* NULL: a dummy */
    int64_t k;                   /* in the record */
    int64_t length, frames;
    float *rows; /* where its output goes; NULL: not this rank's */
};

/* Some records, encoded together: rank 0 reads them, everybody has them. */
struct window {
    struct record *records;
    struct clip *clips;
    size_t n_records, cap_records, n_clips, cap_clips;
    double seconds;
    struct clip **mine; /* what this rank encodes; dummies behind */
    size_t n_mine, cap_mine;
    struct clip dummy;
    float *send, *recv;
};

struct run {
    const struct encode_options *opt;
    struct s2s_mesh *mesh;
    int rank, n_ranks, n_workers;
    struct s2s_stream *in; /* rank 0 */
    struct s2s_stream_writer *out;
    json_t *header;
    struct encode_reader reader;
    struct s2s_mel_config mel_config;
    struct s2s_mel *mel;
    struct s2s_mel_work **works; /* one a thread */
    struct encode_coder *coder;
    int64_t width;
    struct window win;
    bool at_end;
    struct s2s_error *errors; /* one a thread */
    int *codes;
    struct s2s_progress progress;
    int64_t n_records, n_clips, n_frames;
    double start_s, seconds; /* of sound */
};

/* ---- opening ---- */

/* The encoder's own settings where it brings them, else the usual ones at its number of mel bins.
 */
static int read_mel_config(struct run *run, struct s2s_error *err)
{
    static const struct s2s_mel_config usual = S2S_MEL_CONFIG_DEFAULT;
    const char *from = run->opt->config ? run->opt->config : run->opt->encoder;
    run->mel_config = usual;
    run->mel_config.n_mels = (int)encode_coder_n_mels(run->coder);
    int rc = run->opt->config ? s2s_mel_config_open(&run->mel_config, from, err)
                              : s2s_mel_config_find(&run->mel_config, from, err);
    if (rc == 0 && run->mel_config.n_mels != encode_coder_n_mels(run->coder))
        rc = s2s_error_set(err, S2S_E_SHAPE,
                           "%s makes features of %d mel bins; the encoder expects %lld", from,
                           run->mel_config.n_mels, (long long)encode_coder_n_mels(run->coder));
    return rc;
}

static int open_coder(struct run *run, struct s2s_error *err)
{
    const int n = run->n_workers = encode_n_workers(run->opt);
    int rc = encode_coder_open(&run->coder, run->opt, s2s_mesh_local_rank(run->mesh), err);
    if (rc < 0 || (rc = read_mel_config(run, err)) < 0 ||
        (rc = s2s_mel_new(&run->mel, &run->mel_config, err)) < 0)
        return rc;
    run->reader.mel = &run->mel_config;
    run->width = encode_coder_width(run->coder);
    run->works = s2s_xcalloc((size_t)n, sizeof *run->works);
    for (int i = 0; i < n; i++)
        run->works[i] = s2s_mel_work_new(run->mel);
    run->errors = s2s_xcalloc((size_t)n, sizeof *run->errors);
    run->codes = s2s_xcalloc((size_t)n, sizeof *run->codes);
    return 0;
}

static int open_input(struct run *run, struct s2s_error *err)
{
    if (run->rank != 0)
        return 0;
    int rc = s2s_stream_open(&run->in, run->opt->inputs[0], err);
    if (rc == 0)
        run->header = json_deep_copy(s2s_stream_header(run->in));
    return rc;
}

/* The header of the input, on every rank. */
static int share_header(struct run *run, struct s2s_error *err)
{
    struct s2s_comm *world = s2s_mesh_world(run->mesh);
    char *text = run->header ? json_dumps(run->header, JSON_COMPACT) : NULL;
    int64_t len = text ? (int64_t)strlen(text) : 0;
    s2s_comm_broadcast(world, &len, 1, S2S_I64, 0);
    if (!text)
        text = s2s_xcalloc((size_t)len + 1, 1);
    s2s_comm_broadcast(world, text, len, S2S_U8, 0);
    if (!run->header)
        run->header = json_loadb(text, (size_t)len, 0, NULL);
    free(text);
    int rc = s2s_schema_compile(&run->reader.schema, run->header, err);
    return rc < 0 ? rc : encode_check_stream(&run->reader, run->header, err);
}

static bool is_audio(const struct run *run)
{
    return run->reader.schema.kind == S2S_KIND_AUDIO;
}

/* header.json of the output: embeddings instead of clips */
static int make_header(json_t **out, struct run *run, struct s2s_error *err)
{
    const struct encode_options *opt = run->opt;
    char encoder[33], projection[33];
    json_t *header = json_deep_copy(run->header), *schema = json_object_get(header, "schema");
    void *next;
    const char *name, *dtype = opt->bf16 ? "BF16" : "F32";
    json_t *value;
    int rc = encode_digest_model(encoder, opt->encoder, err);
    if (rc == 0 && opt->projection) {
        char *path = encode_projection_path(opt->projection);
        rc = s2s_digest_file(projection, path, err);
        free(path);
    }
    json_object_foreach_safe(schema, next, name, value)
    {
        if (encode_is_clip_tensor(name))
            json_object_del(schema, name);
    }
    json_object_set_new(schema, is_audio(run) ? "embeds" : "audio_embeds",
                        json_pack("{s:s, s:[s, I]}", "dtype", dtype, "shape",
                                  is_audio(run) ? "G" : "n", (json_int_t)run->width));
    json_object_set_new(header, "kind", json_string(is_audio(run) ? "audio" : "embed"));
    json_object_set_new(header, "audio", json_string("none"));
    json_object_set_new(header, "embed",
                        json_pack("{s:I, s:s, s:s, s:s?}", "hidden", (json_int_t)run->width,
                                  "dtype", dtype, "encoder", encoder, "projection",
                                  opt->projection ? projection : NULL));
    *out = header;
    return rc;
}

static int create_output(struct run *run, struct s2s_error *err)
{
    static const struct s2s_args_rule rules[] = {{"encoder", S2S_ARGS_FILE},
                                                 {"projection", S2S_ARGS_FILE},
                                                 {"config", S2S_ARGS_FILE},
                                                 {"batch-seconds", S2S_ARGS_DROP},
                                                 {NULL, 0}};
    if (run->rank != 0)
        return 0;
    json_t *header = NULL;
    size_t n_args = 0;
    char **args = s2s_tool_args(rules, &n_args);
    int rc = make_header(&header, run, err);
    if (rc == 0)
        rc = s2s_stream_create(&run->out, run->opt->common.out, header, s2s_stream_header(run->in),
                               args, n_args, NULL, err);
    json_decref(header);
    for (size_t i = 0; i < n_args; i++)
        free(args[i]);
    free(args);
    return rc;
}

/* ---- a window ---- */

static void clear_window(struct window *w)
{
    for (size_t i = 0; i < w->n_records; i++) {
        if (w->records[i].parsed)
            s2s_safetensors_release(&w->records[i].st);
        free(w->records[i].bytes);
    }
    free(w->send);
    free(w->recv);
    w->send = w->recv = NULL;
    w->n_records = w->n_clips = w->n_mine = 0;
    w->seconds = 0;
}

static struct record *add_record(struct window *w)
{
    s2s_grow(&w->records, w->n_records, &w->cap_records, sizeof *w->records);
    struct record *rec = &w->records[w->n_records++];
    *rec = (struct record){0};
    return rec;
}

static double seconds_of(const struct run *run, int64_t length)
{
    if (run->reader.schema.audio == S2S_AUDIO_MEL)
        length *= run->mel_config.hop;
    return (double)length / run->mel_config.rate_hz;
}

static int64_t frames_of(const struct run *run, int64_t length)
{
    if (run->reader.schema.audio != S2S_AUDIO_MEL)
        length = s2s_mel_frames(run->mel, (size_t)length);
    return encode_coder_frames(run->coder, length);
}

/* Keeps a record for the window; gives the seconds of its clips. */
static int keep_record(struct run *run, const struct s2s_record *rec, double *seconds,
                       struct s2s_error *err)
{
    struct record *r = add_record(&run->win);
    r->len = (int64_t)rec->len_bytes;
    r->idx = rec->idx;
    r->bytes = s2s_xmalloc(rec->len_bytes);
    memcpy(r->bytes, rec->bytes, rec->len_bytes);
    for (int64_t k = 0, n = encode_n_clips(&run->reader, &rec->st); k < n; k++) {
        int64_t length = 0;
        int rc = encode_clip_length(&length, &run->reader, &rec->st, k, err);
        if (rc < 0)
            return s2s_error_add(err, rc, "record %lld: clip %lld", (long long)r->idx,
                                 (long long)k);
        *seconds += seconds_of(run, length);
    }
    return 0;
}

/* Rank 0: records until there is enough sound or no more. */
static int read_window(struct run *run, struct s2s_error *err)
{
    enum { MAX_RECORDS = 4096 };
    struct s2s_record rec;
    double seconds = 0;
    while (seconds < run->opt->batch_seconds && run->win.n_records < MAX_RECORDS) {
        int rc = s2s_stream_next(run->in, &rec, err);
        run->at_end = rc == 0;
        if (rc > 0)
            rc = keep_record(run, &rec, &seconds, err);
        if (rc < 0)
            return s2s_error_add(err, rc, "%s", run->opt->inputs[0]);
        if (run->at_end)
            break;
    }
    return 0;
}

static void share_window(struct run *run)
{
    struct s2s_comm *world = s2s_mesh_world(run->mesh);
    struct window *w = &run->win;
    int64_t head[2] = {(int64_t)w->n_records, run->at_end};
    s2s_comm_broadcast(world, head, 2, S2S_I64, 0);
    run->at_end = head[1];
    for (int64_t i = 0; i < head[0]; i++) {
        struct record *r = run->rank == 0 ? &w->records[i] : add_record(w);
        int64_t size[2] = {r->len, r->idx};
        s2s_comm_broadcast(world, size, 2, S2S_I64, 0);
        r->len = size[0];
        r->idx = size[1];
        if (!r->bytes)
            r->bytes = s2s_xmalloc((size_t)r->len);
        s2s_comm_broadcast(world, r->bytes, r->len, S2S_U8, 0);
    }
}

/* Slots of a pack against what the encoder makes of the clip. */
static int check_frames(const struct run *run, const struct record *rec, const struct clip *clip,
                        struct s2s_error *err)
{
    const struct s2s_st_tensor *t = s2s_safetensors_find(&rec->st, "audio_frames");
    int32_t slots;
    if (is_audio(run))
        return 0;
    memcpy(&slots, (const char *)t->data + clip->k * 4, sizeof slots);
    if (slots == clip->frames)
        return 0;
    return s2s_error_hint(
        err,
        s2s_error_set(err, S2S_E_SHAPE,
                      "clip %lld has %d slots; the encoder makes %lld frames of it",
                      (long long)clip->k, slots, (long long)clip->frames),
        "pack with --encoder-frames %s", run->opt->encoder);
}

static int parse_record(struct run *run, struct record *rec, struct s2s_error *err)
{
    struct window *w = &run->win;
    int rc = s2s_safetensors_parse(&rec->st, rec->bytes, (size_t)rec->len, err);
    if (rc < 0)
        return rc;
    rec->parsed = true;
    rec->first_clip = (int64_t)w->n_clips;
    rec->n_clips = encode_n_clips(&run->reader, &rec->st);
    for (int64_t k = 0; k < rec->n_clips; k++) {
        s2s_grow(&w->clips, w->n_clips, &w->cap_clips, sizeof *w->clips);
        struct clip *clip = &w->clips[w->n_clips++];
        *clip = (struct clip){.record = rec, .k = k};
        if ((rc = encode_clip_length(&clip->length, &run->reader, &rec->st, k, err)) < 0)
            return s2s_error_add(err, rc, "clip %lld", (long long)k);
        clip->frames = frames_of(run, clip->length);
        if ((rc = check_frames(run, rec, clip, err)) < 0)
            return rc;
        w->seconds += seconds_of(run, clip->length);
    }
    return 0;
}

static int parse_window(struct run *run, struct s2s_error *err)
{
    for (size_t i = 0; i < run->win.n_records; i++) {
        struct record *rec = &run->win.records[i];
        int rc = parse_record(run, rec, err);
        if (rc < 0)
            return s2s_error_add(err, rc, "%s: record %lld", run->opt->inputs[0],
                                 (long long)rec->idx);
    }
    return 0;
}

/* ---- shares ---- */

static void add_mine(struct window *w, struct clip *clip)
{
    s2s_grow(&w->mine, w->n_mine, &w->cap_mine, sizeof *w->mine);
    w->mine[w->n_mine++] = clip;
}

/* One set of clips that is spread over the ranks: the rank's clips, and as many dummies as its
 * share lacks, join `mine`. */
static void share_clips(struct run *run, int rank, int64_t first, int64_t n)
{
    struct window *w = &run->win;
    int64_t *lengths = s2s_xcalloc((size_t)n + 1, sizeof *lengths);
    for (int64_t i = 0; i < n; i++)
        lengths[i] = w->clips[first + i].length;
    struct encode_share share = encode_share(lengths, n, run->n_ranks);
    int64_t begin, end;
    encode_share_range(&share, rank, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        add_mine(w, &w->clips[first + i]);
    for (int64_t i = end - begin; i < share.per_rank; i++) {
        w->dummy = (struct clip){.length = share.dummy_len};
        add_mine(w, &w->dummy);
    }
    free(lengths);
}

/* What a rank encodes: its share of each pack; of an audio stream its share of all clips. Gives the
 * number of rows. */
static int64_t take_share(struct run *run, int rank)
{
    struct window *w = &run->win;
    int64_t n_rows = 0;
    w->n_mine = 0;
    if (is_audio(run))
        share_clips(run, rank, 0, (int64_t)w->n_clips);
    for (size_t i = 0; !is_audio(run) && i < w->n_records; i++)
        share_clips(run, rank, w->records[i].first_clip, w->records[i].n_clips);
    for (size_t i = 0; i < w->n_mine; i++)
        n_rows += w->mine[i]->frames;
    return n_rows;
}

/* The rows of the share that was taken stand one after the other from `at` on; gives their end. */
static float *place_mine(struct run *run, float *at)
{
    struct window *w = &run->win;
    for (size_t i = 0; i < w->n_mine; i++)
        if (w->mine[i]->record) {
            w->mine[i]->rows = at;
            at += w->mine[i]->frames * run->width;
        }
    return at;
}

/* ---- encoding ---- */

static int encode_one(struct run *run, const struct clip *clip, int worker, struct s2s_error *err)
{
    const int64_t width = run->mel_config.n_mels;
    float *mel = NULL, *rows = clip->rows;
    int64_t n_mel = 0;
    int rc = 0;
    if (!clip->record) {
        /* features of silence: nothing varies, so normalisation leaves zeros */
        n_mel = run->reader.schema.audio == S2S_AUDIO_MEL
                    ? clip->length
                    : s2s_mel_frames(run->mel, (size_t)clip->length);
        mel = s2s_xcalloc((size_t)(n_mel * width) + 1, sizeof *mel);
        rows = s2s_xmalloc((size_t)(encode_coder_frames(run->coder, n_mel) * run->width + 1) *
                           sizeof *rows);
    } else {
        rc = encode_clip_mel(&mel, &n_mel, &run->reader, run->mel, run->works[worker],
                             &clip->record->st, clip->k, err);
        if (rc == 0 && encode_coder_frames(run->coder, n_mel) != clip->frames)
            rc = s2s_error_set(err, S2S_E_SHAPE,
                               "%lld mel frames where its header promises another number",
                               (long long)n_mel);
    }
    if (rc == 0)
        rc = encode_coder_run(run->coder, worker, rows, mel, n_mel, err);
    free(mel);
    if (!clip->record)
        free(rows);
    return rc;
}

static void encode_task(void *ctx, size_t i, int worker)
{
    struct run *run = ctx;
    const struct clip *clip = run->win.mine[i];
    struct s2s_error err = S2S_ERROR_INIT;
    if (run->codes[worker] < 0)
        return;
    int rc = encode_one(run, clip, worker, &err);
    if (rc < 0) {
        if (clip->record)
            s2s_error_add(&err, rc, "%s: record %lld: clip %lld", run->opt->inputs[0],
                          (long long)clip->record->idx, (long long)clip->k);
        run->codes[worker] = rc;
        run->errors[worker] = err;
    }
}

static int encode_mine(struct run *run, struct s2s_error *err)
{
    s2s_parallel_for(run->win.n_mine, run->n_workers, encode_task, run);
    for (int i = 0; i < run->n_workers; i++)
        if (run->codes[i] < 0) {
            *err = run->errors[i];
            return run->codes[i];
        }
    return 0;
}

/* Everybody's rows in the order of the ranks; then every clip knows its place. */
static void gather_rows(struct run *run, const float *mine)
{
    struct window *w = &run->win;
    int64_t *counts = s2s_xcalloc((size_t)run->n_ranks, sizeof *counts), total = 0;
    for (int r = 0; r < run->n_ranks; r++)
        total += counts[r] = take_share(run, r) * run->width;
    float *at = w->recv = s2s_xmalloc((size_t)(total + 1) * sizeof *w->recv);
    s2s_comm_all_gatherv(s2s_mesh_world(run->mesh), w->recv, mine, counts, S2S_F32);
    for (int r = 0; r < run->n_ranks; r++) {
        take_share(run, r);
        at = place_mine(run, at);
    }
    free(counts);
}

static int encode_window(struct run *run, struct s2s_error *err)
{
    struct window *w = &run->win;
    int64_t n_rows = take_share(run, run->rank);
    w->send = s2s_xmalloc((size_t)(n_rows * run->width + 1) * sizeof *w->send);
    place_mine(run, w->send);
    int rc = s2s_mesh_all_ok(run->mesh, encode_mine(run, err), err);
    if (rc == 0 && run->n_ranks > 1)
        gather_rows(run, w->send);
    return rc;
}

/* ---- output ---- */

static int write_record(struct run *run, const struct record *rec, struct s2s_error *err)
{
    const struct window *w = &run->win;
    const size_t size = run->opt->bf16 ? 2 : 4;
    int64_t n_rows = 0;
    for (int64_t k = 0; k < rec->n_clips; k++)
        n_rows += w->clips[rec->first_clip + k].frames;
    char *values = s2s_xmalloc((size_t)(n_rows * run->width) * size + 1), *at = values;
    for (int64_t k = 0; k < rec->n_clips; k++) {
        const struct clip *clip = &w->clips[rec->first_clip + k];
        int64_t n = clip->frames * run->width;
        for (int64_t i = 0; run->opt->bf16 && i < n; i++)
            ((uint16_t *)(void *)at)[i] = s2s_f32_to_bf16(clip->rows[i]);
        if (!run->opt->bf16)
            memcpy(at, clip->rows, (size_t)n * size);
        at += (size_t)n * size;
    }
    struct s2s_st_tensor *tensors = s2s_xcalloc(rec->st.n_tensors + 1, sizeof *tensors);
    size_t n = 0;
    for (size_t i = 0; i < rec->st.n_tensors; i++)
        if (!encode_is_clip_tensor(rec->st.tensors[i].name))
            tensors[n++] = rec->st.tensors[i];
    tensors[n++] = (struct s2s_st_tensor){.name = is_audio(run) ? "embeds" : "audio_embeds",
                                          .dtype = run->opt->bf16 ? S2S_BF16 : S2S_F32,
                                          .n_dims = 2,
                                          .shape = {n_rows, run->width},
                                          .data = values,
                                          .len_bytes = (size_t)(n_rows * run->width) * size};
    int rc = s2s_stream_write(run->out, tensors, n, rec->st.meta, rec->st.n_meta, err);
    run->n_frames += n_rows;
    run->n_clips += rec->n_clips;
    run->n_records++;
    s2s_progress_add(&run->progress, 1);
    free(tensors);
    free(values);
    return rc;
}

static int write_window(struct run *run, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; run->rank == 0 && rc == 0 && i < run->win.n_records; i++)
        if ((rc = write_record(run, &run->win.records[i], err)) < 0)
            s2s_error_add(err, rc, "record %lld", (long long)run->win.records[i].idx);
    run->seconds += run->win.seconds;
    return rc;
}

static int commit(struct run *run, struct s2s_error *err)
{
    char digest[33], *digests[] = {digest};
    if (run->rank != 0)
        return 0;
    int rc = s2s_stream_end_digest(run->in, digest, err);
    if (rc < 0)
        return rc;
    struct s2s_stream_writer *out = run->out;
    run->out = NULL;
    return s2s_stream_commit(out, s2s_stream_inputs(run->in), digests, 1, err);
}

static void say_done(const struct run *run)
{
    if (run->rank == 0 && run->opt->common.verbosity >= 0)
        fprintf(
            stderr,
            "s2s-encode: %lld records, %lld clips, %.1f s of sound, %lld frames in %.1f s, peak "
            "%lld MiB\n",
            (long long)run->n_records, (long long)run->n_clips, run->seconds,
            (long long)run->n_frames, s2s_now_s() - run->start_s,
            (long long)s2s_peak_memory_bytes() >> 20);
}

/* ---- the whole ---- */

/* Every step that can fail on one rank ends with everybody's answer. */
static int run_all(struct run *run, struct s2s_error *err)
{
    struct s2s_mesh *mesh = run->mesh;
    int rc = s2s_mesh_all_ok(mesh, open_coder(run, err), err);
    if (rc < 0 || (rc = s2s_mesh_all_ok(mesh, open_input(run, err), err)) < 0 ||
        (rc = s2s_mesh_all_ok(mesh, share_header(run, err), err)) < 0 ||
        (rc = s2s_mesh_all_ok(mesh, create_output(run, err), err)) < 0)
        return rc;
    while (!run->at_end) {
        clear_window(&run->win);
        rc = s2s_mesh_all_ok(mesh, run->rank == 0 ? read_window(run, err) : 0, err);
        if (rc < 0)
            return rc;
        share_window(run);
        if ((rc = s2s_mesh_all_ok(mesh, parse_window(run, err), err)) < 0 ||
            (rc = encode_window(run, err)) < 0 ||
            (rc = s2s_mesh_all_ok(mesh, write_window(run, err), err)) < 0)
            return rc;
    }
    return s2s_mesh_all_ok(mesh, commit(run, err), err);
}

int encode_run(const struct encode_options *opt, struct s2s_mesh *mesh, struct s2s_error *err)
{
    struct run run = {.opt = opt,
                      .mesh = mesh,
                      .rank = s2s_mesh_rank(mesh),
                      .n_ranks = s2s_mesh_size(mesh),
                      .start_s = s2s_now_s()};
    if (run.rank == 0)
        s2s_progress_begin(&run.progress, "encoding", "records", 0);
    int rc = run_all(&run, err);
    if (run.rank == 0)
        s2s_progress_end(&run.progress);
    if (rc == 0)
        say_done(&run);
    clear_window(&run.win);
    free(run.win.records);
    free(run.win.clips);
    free(run.win.mine);
    s2s_stream_abort(run.out);
    s2s_stream_close(run.in);
    s2s_schema_release(&run.reader.schema);
    json_decref(run.header);
    for (int i = 0; run.works && i < run.n_workers; i++)
        s2s_mel_work_free(run.works[i]);
    free(run.works);
    free(run.errors);
    free(run.codes);
    s2s_mel_free(run.mel);
    encode_coder_close(run.coder);
    return rc;
}
