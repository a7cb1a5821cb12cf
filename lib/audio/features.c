/* The run of `s2s-encode --features mel`: streams and sound files in, clips of log-mel out. */
#include "lib/audio/features.h"

#include <jansson.h>

#include "lib/audio/audio.h"
#include "lib/audio/audio_internal.h"
#include "lib/audio/mel.h"
#include "lib/io/digest.h"
#include "lib/stream/stream.h"

/* Names of the clips' tensors in a pack (or cpshard) and in an audio record. */
static const char *const pack_clips[] = {"audio_pcm", "audio_cu_samples", "audio_bytes",
                                         "audio_cu_bytes"};
static const char *const audio_clips[] = {"pcm", "bytes"};

/* One record, or one file, on its way from the source to the sink. */
struct item {
    const char *path; /* of a sound file; else: */
    void *bytes;      /* the record */
    size_t len;
    int64_t idx;
    struct s2s_safetensors st;
    bool is_parsed;
    float *mel; /* [cu[n_clips], n_mels] */
    size_t n_rows, cap;
    int64_t *cu; /* [n_clips + 1] */
    size_t n_clips;
    double duration_s;
    char xxh3[33];
};

struct job {
    const struct s2s_features_options *opt;
    struct s2s_mel *mel;
    struct s2s_mel_work **works; /* one a thread */
    struct s2s_stream *in;
    const char *form;
    size_t next_file;
    struct s2s_stream_writer *out;
    char **digests; /* of the files */
    size_t n_digests;
};

static void item_free(struct item *item)
{
    if (item->is_parsed)
        s2s_safetensors_release(&item->st);
    free(item->bytes);
    free(item->mel);
    free(item->cu);
    free(item);
}

/* ---- clips ---- */

static int add_clip(struct job *job, struct item *item, int worker, const float *pcm, size_t n)
{
    size_t width = (size_t)s2s_mel_config(job->mel)->n_mels;
    size_t n_frames = (size_t)s2s_mel_frames(job->mel, n);
    if (item->n_rows + n_frames > item->cap || !item->mel) {
        item->cap = 2 * item->cap + n_frames + 1;
        item->mel = s2s_xrealloc(item->mel, item->cap, width * sizeof *item->mel);
    }
    s2s_mel_compute(job->mel, job->works[worker], item->mel + item->n_rows * width, pcm, n);
    item->n_rows += n_frames;
    item->cu = s2s_xrealloc(item->cu, item->n_clips + 2, sizeof *item->cu);
    item->cu[0] = 0;
    item->cu[++item->n_clips] = (int64_t)item->n_rows;
    return 0;
}

static struct s2s_audio_options decode_options(const struct job *job)
{
    struct s2s_audio_options options = S2S_AUDIO_OPTIONS_DEFAULT;
    options.rate_hz = s2s_mel_config(job->mel)->rate_hz;
    return options;
}

static int add_decoded(struct job *job, struct item *item, int worker, struct s2s_audio *audio)
{
    int rc = add_clip(job, item, worker, audio->data, audio->n_samples);
    s2s_audio_release(audio);
    return rc;
}

/* Samples begin .. end-1 of a waveform tensor. */
static int add_pcm(struct job *job, struct item *item, int worker,
                   const struct s2s_st_tensor *tensor, int64_t begin, int64_t end)
{
    size_t n = (size_t)(end - begin), size = s2s_dtype_size(tensor->dtype);
    const char *from = (const char *)tensor->data + (size_t)begin * size;
    float *pcm = s2s_xmalloc((n + 1) * sizeof *pcm);
    if (tensor->dtype == S2S_I16) {
        int16_t *aligned = s2s_xmalloc((n + 1) * sizeof *aligned);
        memcpy(aligned, from, n * size);
        s2s_audio_from_s16(pcm, aligned, n);
        free(aligned);
    } else {
        memcpy(pcm, from, n * size);
    }
    int rc = add_clip(job, item, worker, pcm, n);
    free(pcm);
    return rc;
}

static int add_encoded(struct job *job, struct item *item, int worker,
                       const struct s2s_st_tensor *tensor, int64_t begin, int64_t end,
                       struct s2s_error *err)
{
    struct s2s_audio_options options = decode_options(job);
    struct s2s_audio audio;
    int rc = s2s_audio_decode_bytes(&audio, (const char *)tensor->data + begin,
                                    (size_t)(end - begin), &options, err);
    return rc < 0 ? rc : add_decoded(job, item, worker, &audio);
}

/* All clips of a pack: values between bounds. The reader has held the bounds against the values. */
static int add_bounded(struct job *job, struct item *item, int worker, const char *values,
                       const char *bounds, bool is_pcm, struct s2s_error *err)
{
    const struct s2s_st_tensor *tensor = s2s_safetensors_find(&item->st, values);
    const struct s2s_st_tensor *cu = s2s_safetensors_find(&item->st, bounds);
    if (!tensor || !cu)
        return s2s_error_set(err, S2S_E_NOTFOUND, "no tensor %s", tensor ? bounds : values);
    for (int64_t k = 0; k + 1 < cu->shape[0]; k++) {
        int64_t span[2];
        memcpy(span, (const char *)cu->data + (size_t)k * sizeof *span, sizeof span);
        int rc = is_pcm ? add_pcm(job, item, worker, tensor, span[0], span[1])
                        : add_encoded(job, item, worker, tensor, span[0], span[1], err);
        if (rc < 0)
            return s2s_error_add(err, rc, "clip %lld", (long long)k);
    }
    return 0;
}

/* The one clip of an audio record. */
static int add_single(struct job *job, struct item *item, int worker, bool is_pcm,
                      struct s2s_error *err)
{
    const struct s2s_st_tensor *tensor =
        s2s_safetensors_find(&item->st, audio_clips[is_pcm ? 0 : 1]);
    const char *rate = s2s_safetensors_meta(&item->st, "sampling_rate");
    int rate_hz = s2s_mel_config(job->mel)->rate_hz;
    if (!tensor)
        return s2s_error_set(err, S2S_E_NOTFOUND, "no tensor %s", audio_clips[is_pcm ? 0 : 1]);
    if (is_pcm && rate && strtol(rate, NULL, 10) != rate_hz)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "the samples are at %s Hz, the features want %d Hz", rate, rate_hz);
    return is_pcm ? add_pcm(job, item, worker, tensor, 0, tensor->shape[0])
                  : add_encoded(job, item, worker, tensor, 0, tensor->shape[0], err);
}

static int work_record(struct job *job, struct item *item, int worker, struct s2s_error *err)
{
    bool is_pcm = !strcmp(job->form, "pcm");
    int rc = s2s_safetensors_parse(&item->st, item->bytes, item->len, err);
    if (rc < 0)
        return rc;
    item->is_parsed = true;
    if (s2s_stream_kind(job->in) == S2S_KIND_AUDIO)
        return add_single(job, item, worker, is_pcm, err);
    return add_bounded(job, item, worker, pack_clips[is_pcm ? 0 : 2], pack_clips[is_pcm ? 1 : 3],
                       is_pcm, err);
}

static int work_file(struct job *job, struct item *item, int worker, struct s2s_error *err)
{
    struct s2s_audio_options options = decode_options(job);
    struct s2s_audio audio;
    options.digest = true;
    int rc = s2s_audio_decode_file(&audio, item->path, &options, err);
    if (rc < 0)
        return rc;
    item->duration_s = (double)audio.n_samples / audio.rate_hz;
    memcpy(item->xxh3, audio.xxh3, sizeof item->xxh3);
    return add_decoded(job, item, worker, &audio);
}

static int work(void *ctx, void *ptr, int worker, struct s2s_error *err)
{
    struct item *item = ptr;
    if (item->path)
        return work_file(ctx, item, worker, err);
    int rc = work_record(ctx, item, worker, err);
    return rc < 0 ? s2s_error_add(err, rc, "record %lld", (long long)item->idx) : 0;
}

/* ---- source ---- */

static int source(void *ctx, void **ptr, struct s2s_error *err)
{
    struct job *job = ctx;
    struct item *item = s2s_xcalloc(1, sizeof *item);
    int rc = 0;
    if (!job->in && job->next_file < job->opt->n_inputs) {
        item->path = job->opt->inputs[job->next_file++];
        rc = 1;
    } else if (job->in) {
        struct s2s_record rec;
        rc = s2s_stream_next(job->in, &rec, err);
        if (rc > 0) {
            item->bytes = s2s_xmalloc(rec.len_bytes);
            item->len = rec.len_bytes;
            item->idx = rec.idx;
            memcpy(item->bytes, rec.bytes, rec.len_bytes);
        }
    }
    if (rc <= 0)
        item_free(item);
    else
        *ptr = item;
    return rc;
}

/* ---- sink ---- */

static bool is_clip_tensor(const char *name, bool is_audio)
{
    const char *const *names = is_audio ? audio_clips : pack_clips;
    for (size_t i = 0; i < (is_audio ? 2 : 4); i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

/* The record as it was, with features instead of clips. */
static int write_record(struct job *job, struct item *item, struct s2s_error *err)
{
    bool is_audio = s2s_stream_kind(job->in) == S2S_KIND_AUDIO;
    int64_t n_mels = s2s_mel_config(job->mel)->n_mels;
    static const int64_t no_clips[1] = {0};
    struct s2s_st_tensor *tensors = s2s_xcalloc(item->st.n_tensors + 2, sizeof *tensors);
    size_t n = 0;
    for (size_t i = 0; i < item->st.n_tensors; i++)
        if (!is_clip_tensor(item->st.tensors[i].name, is_audio))
            tensors[n++] = item->st.tensors[i];
    tensors[n++] = (struct s2s_st_tensor){is_audio ? "mel" : "audio_mel",
                                          S2S_F32,
                                          2,
                                          {(int64_t)item->n_rows, n_mels},
                                          item->mel ? (const void *)item->mel : "",
                                          item->n_rows * (size_t)n_mels * sizeof(float)};
    if (!is_audio)
        tensors[n++] = (struct s2s_st_tensor){"audio_cu_mel",
                                              S2S_I64,
                                              1,
                                              {(int64_t)item->n_clips + 1},
                                              item->cu ? item->cu : no_clips,
                                              (item->n_clips + 1) * sizeof(int64_t)};
    int rc = s2s_stream_write(job->out, tensors, n, item->st.meta, item->st.n_meta, err);
    free(tensors);
    return rc;
}

static int write_file(struct job *job, struct item *item, struct s2s_error *err)
{
    const struct s2s_mel_config *config = s2s_mel_config(job->mel);
    const char *slash = strrchr(item->path, '/'), *name = slash ? slash + 1 : item->path;
    const char *dot = strrchr(name, '.');
    char *id = s2s_xstrndup(name, dot && dot > name ? (size_t)(dot - name) : strlen(name));
    char *duration = s2s_xasprintf("%.10g", item->duration_s);
    char *rate = s2s_xasprintf("%d", config->rate_hz);
    struct s2s_st_meta meta[] = {
        {"id", id}, {"source", item->path}, {"duration", duration}, {"sampling_rate", rate}};
    struct s2s_st_tensor tensor = {
        "mel",     S2S_F32,
        2,         {(int64_t)item->n_rows, config->n_mels},
        item->mel, item->n_rows * (size_t)config->n_mels * sizeof(float)};
    int rc = s2s_stream_write(job->out, &tensor, 1, meta, 4, err);
    job->digests[job->n_digests++] = s2s_xstrdup(item->xxh3);
    free(id);
    free(duration);
    free(rate);
    return rc;
}

static int sink(void *ctx, void *ptr, struct s2s_error *err)
{
    struct job *job = ctx;
    struct item *item = ptr;
    int rc = item->path ? write_file(job, item, err) : write_record(job, item, err);
    item_free(item);
    return rc;
}

static void drop(void *ctx, void *ptr)
{
    item_free(ptr);
}

/* ---- header ---- */

static void describe_features(json_t *header, const struct s2s_mel_config *c)
{
    json_t *config = json_deep_copy(json_object_get(header, "config"));
    if (!config)
        config = json_object();
    json_object_set_new(config, "sampling_rate", json_integer(c->rate_hz));
    json_object_set_new(config, "features", s2s_mel_config_json(c));
    json_object_set_new(header, "config", config);
    json_object_set_new(header, "audio", json_string("mel"));
}

/* The header that is written, from that of the stream that is read. */
static json_t *header_of(const struct job *job)
{
    const struct s2s_mel_config *config = s2s_mel_config(job->mel);
    json_t *header = job->in ? json_deep_copy(s2s_stream_header(job->in)) : json_object();
    if (job->in) {
        bool is_audio = s2s_stream_kind(job->in) == S2S_KIND_AUDIO;
        json_t *schema = json_object_get(header, "schema");
        for (size_t i = 0; i < (is_audio ? 2 : 4); i++)
            json_object_del(schema, is_audio ? audio_clips[i] : pack_clips[i]);
    } else {
        json_object_set_new(header, "kind", json_string("audio"));
    }
    describe_features(header, config);
    return header;
}

static int check_input(struct job *job, struct s2s_error *err)
{
    const json_t *header = s2s_stream_header(job->in);
    job->form = json_string_value(json_object_get(header, "audio"));
    job->form = job->form ? job->form : "none";
    if (s2s_stream_kind(job->in) == S2S_KIND_DUPLEX || s2s_stream_kind(job->in) == S2S_KIND_EMBED ||
        (strcmp(job->form, "pcm") && strcmp(job->form, "flac")))
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "a stream of kind %s with clips of form %s has no sound in it",
                             s2s_kind_name(s2s_stream_kind(job->in)), job->form);
    return s2s_mel_config_fits(s2s_mel_config(job->mel), header, err);
}

/* ---- the whole ---- */

static bool is_stream_name(const char *path)
{
    size_t len = strlen(path);
    return !strcmp(path, "-") || (len > 4 && !strcmp(path + len - 4, ".s2s")) ||
           (len > 8 && !strcmp(path + len - 8, ".s2s.zst"));
}

static int open_all(struct job *job, struct s2s_error *err)
{
    struct s2s_mel_config config = S2S_MEL_CONFIG_DEFAULT;
    const struct s2s_features_options *opt = job->opt;
    int rc = opt->config ? s2s_mel_config_open(&config, opt->config, err) : 0;
    if (rc == 0)
        rc = s2s_mel_new(&job->mel, &config, err);
    if (rc == 0 && opt->n_inputs == 1 && is_stream_name(opt->inputs[0])) {
        rc = s2s_stream_open(&job->in, opt->inputs[0], err);
        if (rc == 0 && (rc = check_input(job, err)) < 0)
            s2s_error_add(err, rc, "%s", opt->inputs[0]);
    }
    if (rc < 0)
        return rc;
    json_t *header = header_of(job);
    rc = s2s_stream_create(&job->out, opt->out, header, job->in ? s2s_stream_header(job->in) : NULL,
                           opt->args, opt->n_args, NULL, err);
    json_decref(header);
    job->works = s2s_xcalloc((size_t)opt->jobs, sizeof *job->works);
    for (int i = 0; i < opt->jobs; i++)
        job->works[i] = s2s_mel_work_new(job->mel);
    job->digests = s2s_xcalloc(opt->n_inputs + 1, sizeof *job->digests);
    return rc;
}

static int commit(struct job *job, struct s2s_error *err)
{
    if (job->in) {
        char *digest = s2s_xcalloc(1, 33);
        int rc = s2s_stream_end_digest(job->in, digest, err);
        job->digests[job->n_digests++] = digest;
        if (rc < 0)
            return rc;
    }
    struct s2s_stream_writer *out = job->out;
    job->out = NULL;
    return s2s_stream_commit(out, job->in ? s2s_stream_inputs(job->in) : NULL, job->digests,
                             job->n_digests, err);
}

int s2s_features_run(const struct s2s_features_options *opt, struct s2s_error *err)
{
    struct job job = {.opt = opt};
    const struct s2s_ordered stages = {
        .source = source, .work = work, .sink = sink, .drop = drop, .ctx = &job};
    int rc = open_all(&job, err);
    if (rc == 0)
        rc = s2s_ordered_run(&stages, opt->jobs, err);
    if (rc == 0)
        rc = commit(&job, err);
    s2s_stream_abort(job.out);
    s2s_stream_close(job.in);
    for (int i = 0; job.works && i < opt->jobs; i++)
        s2s_mel_work_free(job.works[i]);
    free(job.works);
    for (size_t i = 0; i < job.n_digests; i++)
        free(job.digests[i]);
    free(job.digests);
    s2s_mel_free(job.mel);
    return rc;
}
