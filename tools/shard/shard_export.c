/* export: the clips and texts of a stream as Lhotse's Shar, or as tars of WebDataset. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>

#include "lib/audio/audio.h"
#include "lib/data/tar_writer.h"
#include "lib/io/outfile.h"
#include "lib/stream/schema.h"
#include "tools/shard/shard.h"

/* One utterance: its clip, and what is known of it. */
struct utterance {
    char *id, *text;        /* text: NULL: not known */
    struct s2s_audio audio; /* not set where bytes are */
    void *bytes;            /* [len_bytes] of a FLAC file */
    size_t len_bytes;
    int64_t n_samples;
    int rate_hz;
    const char *path; /* the stream that it is of; lent */
    int64_t record;
    int rc; /* of its encoding, with err */
    struct s2s_error err;
};

enum { UTTERANCES_A_THREAD = 4 };

struct exporter {
    const struct shard_options *opt;
    int rate_hz;
    size_t n_shards, n_in_shard;
    struct s2s_tar_writer *tar;
    struct s2s_buf cuts; /* lines of the shard */
    json_t *names;       /* an object: those of the members so far */
    int64_t n_written;
    struct utterance *queue; /* [n_queued] that are not encoded and written yet */
    size_t n_queued, cap_queue;
};

/* ---- shards ---- */

static int gzip(struct s2s_buf *out, const struct s2s_buf *in, struct s2s_error *err)
{
    enum { GZIP_BITS = 15 + 16 }; /* with a header that has neither name nor time */
    z_stream z = {.next_in = (Bytef *)in->data, .avail_in = (uInt)in->len};
    if (in->len > UINT32_MAX / 2 || deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, GZIP_BITS,
                                                 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return s2s_error_set(err, S2S_E_NOMEM, "%zu bytes of cuts cannot be compressed", in->len);
    const size_t cap = deflateBound(&z, (uLong)in->len);
    char *bytes = s2s_xmalloc(cap + 1);
    z.next_out = (Bytef *)bytes;
    z.avail_out = (uInt)cap;
    const int code = deflate(&z, Z_FINISH);
    if (code == Z_STREAM_END)
        s2s_buf_add(out, bytes, cap - z.avail_out);
    deflateEnd(&z);
    free(bytes);
    return code == Z_STREAM_END ? 0 : s2s_error_set(err, S2S_E_NOMEM, "deflate failed: %d", code);
}

static int write_cuts(struct exporter *e, struct s2s_error *err)
{
    char *path = s2s_xasprintf("%s/cuts.%06zu.jsonl.gz", e->opt->common.out, e->n_shards);
    struct s2s_buf packed = S2S_BUF_INIT;
    struct s2s_outfile *out = NULL;
    int rc = gzip(&packed, &e->cuts, err);
    if (rc == 0)
        rc = s2s_outfile_open(&out, path, err);
    if (rc == 0 && (rc = s2s_outfile_write(out, packed.data, packed.len, err)) < 0)
        s2s_outfile_abort(out);
    else if (rc == 0)
        rc = s2s_outfile_commit(out, err);
    s2s_buf_release(&packed);
    s2s_buf_release(&e->cuts);
    free(path);
    return rc;
}

/* The tar first: without its cuts nobody reads it. */
static int end_shard(struct exporter *e, struct s2s_error *err)
{
    if (!e->tar)
        return 0;
    int rc = s2s_tar_writer_commit(e->tar, err);
    e->tar = NULL;
    if (rc == 0 && !e->opt->webdataset)
        rc = write_cuts(e, err);
    e->n_shards++;
    e->n_in_shard = 0;
    return rc;
}

static int begin_shard(struct exporter *e, struct s2s_error *err)
{
    char *path = s2s_xasprintf(e->opt->webdataset ? "%s/%06zu.tar" : "%s/recording.%06zu.tar",
                               e->opt->common.out, e->n_shards);
    int rc = s2s_tar_writer_open(&e->tar, path, err);
    free(path);
    return rc;
}

/* ---- utterances ---- */

static json_t *recording_json(const struct utterance *u)
{
    return json_pack("{s:s, s:[{s:s, s:[i], s:s}], s:i, s:I, s:f, s:[i]}", "id", u->id, "sources",
                     "type", "shar", "channels", 0, "source", "", "sampling_rate", u->rate_hz,
                     "num_samples", (json_int_t)u->n_samples, "duration",
                     (double)u->n_samples / u->rate_hz, "channel_ids", 0);
}

static json_t *cut_json(const struct utterance *u)
{
    const double duration_s = (double)u->n_samples / u->rate_hz;
    json_t *supervisions = json_array();
    if (u->text)
        json_array_append_new(supervisions,
                              json_pack("{s:s, s:s, s:f, s:f, s:i, s:s}", "id", u->id,
                                        "recording_id", u->id, "start", 0.0, "duration", duration_s,
                                        "channel", 0, "text", u->text));
    return json_pack("{s:s, s:f, s:f, s:i, s:o, s:o, s:s}", "id", u->id, "start", 0.0, "duration",
                     duration_s, "channel", 0, "supervisions", supervisions, "recording",
                     recording_json(u), "type", "MonoCut");
}

static int add_json(struct exporter *e, const char *id, json_t *json, struct s2s_error *err)
{
    char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17));
    char *line = s2s_xasprintf("%s\n", text ? text : "");
    char *name = s2s_xasprintf("%s.json", id);
    int rc = s2s_tar_writer_add(e->tar, name, line, strlen(line), err);
    free(name);
    free(line);
    free(text);
    json_decref(json);
    return rc;
}

static void add_cut(struct exporter *e, const struct utterance *u)
{
    json_t *cut = cut_json(u);
    char *text = json_dumps(cut, JSON_COMPACT | JSON_REAL_PRECISION(17));
    s2s_buf_add(&e->cuts, text, strlen(text));
    s2s_buf_add(&e->cuts, "\n", 1);
    free(text);
    json_decref(cut);
}

/* Do all parts of the name have names, of which none goes up? */
static bool stays_inside(const char *id)
{
    for (const char *at = id;; at++) {
        const size_t len = strcspn(at, "/");
        if (len == 0 || (len <= 2 && strspn(at, ".") >= len))
            return false;
        at += len;
        if (!*at)
            return true;
    }
}

/* Ids come from whoever made the samples: as names of members they may leave no folder, and no two
 * may be alike. A sample of WebDataset has what stands before the first dot in common. */
static int check_name(struct exporter *e, const char *id, struct s2s_error *err)
{
    const char *slash = strrchr(id, '/');
    const bool dotted = e->opt->webdataset && strchr(slash ? slash : id, '.');
    if (!stays_inside(id) || dotted)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "id '%s' cannot name a member of a tar%s", id,
                             dotted ? ": WebDataset cuts names at the first dot" : "");
    if (json_object_get(e->names, id)) {
        int rc = s2s_error_set(err, S2S_E_FORMAT, "id '%s' stands twice", id);
        return s2s_error_hint(err, rc, "tars want an id for each utterance");
    }
    json_object_set_new(e->names, id, json_true());
    return 0;
}

static int add_utterance(struct exporter *e, const struct utterance *u, struct s2s_error *err)
{
    int rc = check_name(e, u->id, err);
    if (rc == 0 && u->rc < 0) {
        *err = u->err;
        rc = u->rc;
    }
    if (rc == 0 && !e->tar)
        rc = begin_shard(e, err);
    char *name = s2s_xasprintf("%s.flac", u->id);
    if (rc == 0)
        rc = s2s_tar_writer_add(e->tar, name, u->bytes, u->len_bytes, err);
    free(name);
    if (rc == 0 && e->opt->webdataset)
        rc = add_json(e, u->id,
                      json_pack("{s:s*, s:f}", "text", u->text, "duration",
                                (double)u->n_samples / u->rate_hz),
                      err);
    else if (rc == 0)
        rc = add_json(e, u->id, recording_json(u), err);
    if (rc < 0)
        return rc;
    if (!e->opt->webdataset)
        add_cut(e, u);
    e->n_written++;
    return ++e->n_in_shard == (size_t)e->opt->shard_size ? end_shard(e, err) : 0;
}

static void encode(void *queue, size_t i, int worker)
{
    struct utterance *u = (struct utterance *)queue + i;
    if (!u->bytes)
        u->rc = s2s_audio_encode(&u->bytes, &u->len_bytes, &u->audio, S2S_AUDIO_FILE_FLAC, &u->err);
}

static void release(struct utterance *u)
{
    free(u->id);
    free(u->text);
    free(u->bytes);
    s2s_audio_release(&u->audio);
}

/* Encodes all that are queued on all threads, and writes them in their order. */
static int flush_queue(struct exporter *e, struct s2s_error *err)
{
    int rc = 0;
    s2s_parallel_for(e->n_queued, e->opt->common.jobs, encode, e->queue);
    for (size_t i = 0; i < e->n_queued; i++) {
        struct utterance *u = &e->queue[i];
        if (rc == 0 && (rc = add_utterance(e, u, err)) < 0)
            s2s_error_add(err, rc, "%s: record %lld", u->path, (long long)u->record);
        release(u);
    }
    e->n_queued = 0;
    return rc;
}

/* Takes what u holds. */
static int queue_utterance(struct exporter *e, struct utterance *u, struct s2s_error *err)
{
    s2s_grow(&e->queue, e->n_queued, &e->cap_queue, sizeof *e->queue);
    e->queue[e->n_queued++] = *u;
    return e->n_queued < (size_t)(UTTERANCES_A_THREAD * e->opt->common.jobs) ? 0
                                                                             : flush_queue(e, err);
}

/* The sound of samples begin .. end-1, or of as many bytes. */
static int take_clip(struct utterance *u, const struct exporter *e, const struct s2s_st_tensor *t,
                     bool is_flac, int64_t begin, int64_t end, struct s2s_error *err)
{
    const size_t size = s2s_dtype_size(t->dtype), n = (size_t)(end - begin);
    const char *from = (const char *)t->data + (size_t)begin * size;
    struct s2s_audio_info info;
    u->rate_hz = e->rate_hz;
    u->n_samples = end - begin;
    u->audio = (struct s2s_audio)S2S_AUDIO_INIT;
    if (is_flac) {
        int rc = s2s_audio_info_bytes(&info, from, n, err);
        u->bytes = s2s_xmalloc(n + 1);
        memcpy(u->bytes, from, n);
        u->len_bytes = n;
        u->n_samples = info.n_samples;
        u->rate_hz = info.rate_hz;
        return rc;
    }
    u->audio.data = s2s_xmalloc((n + 1) * sizeof *u->audio.data);
    u->audio.n_samples = n;
    u->audio.rate_hz = e->rate_hz;
    u->audio.int16 = t->dtype == S2S_I16;
    if (t->dtype == S2S_I16) {
        int16_t *aligned = s2s_xmalloc((n + 1) * sizeof *aligned);
        memcpy(aligned, from, n * size);
        s2s_audio_from_s16(u->audio.data, aligned, n);
        free(aligned);
    } else {
        memcpy(u->audio.data, from, n * size);
    }
    return 0;
}

/* The one clip of utterance i of a pack. *next: the first clip behind the utterances before it,
 * and then behind this one; clips are in the order of slots. */
static int clip_of(int64_t *clip, int64_t *next, const struct s2s_record *rec, int64_t i,
                   const char *id, struct s2s_error *err)
{
    const struct s2s_st_tensor *bounds = shard_bounds(&rec->st);
    const struct s2s_st_tensor *slots = s2s_safetensors_find(&rec->st, "audio_slot");
    int64_t n = 0;
    for (; *next < s2s_st_numel(slots) && shard_int(slots, *next) < shard_int(bounds, i + 1); n++)
        *clip = (*next)++;
    return n == 1
               ? 0
               : s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "utterance '%s' has %lld clips, one is expected", id, (long long)n);
}

static json_t *list_of(const struct s2s_record *rec, const char *key)
{
    const char *text = s2s_safetensors_meta(&rec->st, key);
    return text ? json_loads(text, 0, NULL) : NULL;
}

/* Queues u, or where it could not be taken (rc), says where. */
static int end_utterance(struct exporter *e, struct utterance *u, int rc, struct s2s_error *err)
{
    if (rc == 0)
        return queue_utterance(e, u, err);
    struct s2s_error before = S2S_ERROR_INIT;
    s2s_error_add(err, rc, "%s: record %lld", u->path, (long long)u->record);
    release(u);
    /* what stands before it is told first */
    int earlier = flush_queue(e, &before);
    if (earlier < 0)
        *err = before;
    return earlier < 0 ? earlier : rc;
}

static char *text_or_null(const char *text)
{
    return text ? s2s_xstrdup(text) : NULL;
}

static int export_pack(struct exporter *e, const struct s2s_record *rec, const char *path,
                       bool is_flac, struct s2s_error *err)
{
    json_t *ids = list_of(rec, "ids"), *texts = list_of(rec, "texts");
    const struct s2s_st_tensor *t =
        s2s_safetensors_find(&rec->st, is_flac ? "audio_bytes" : "audio_pcm");
    const struct s2s_st_tensor *cu =
        s2s_safetensors_find(&rec->st, is_flac ? "audio_cu_bytes" : "audio_cu_samples");
    int64_t next = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(ids); i++) {
        const char *id = json_string_value(json_array_get(ids, i));
        struct utterance u = {.id = s2s_xstrdup(id ? id : ""),
                              .text = text_or_null(json_string_value(json_array_get(texts, i))),
                              .path = path,
                              .record = rec->idx};
        int64_t k = 0;
        rc = clip_of(&k, &next, rec, (int64_t)i, u.id, err);
        if (rc == 0)
            rc = take_clip(&u, e, t, is_flac, shard_int(cu, k), shard_int(cu, k + 1), err);
        rc = end_utterance(e, &u, rc, err);
    }
    json_decref(ids);
    json_decref(texts);
    return rc;
}

static int export_clip(struct exporter *e, const struct s2s_record *rec, const char *path,
                       bool is_flac, struct s2s_error *err)
{
    const struct s2s_st_tensor *t = s2s_safetensors_find(&rec->st, is_flac ? "bytes" : "pcm");
    struct utterance u = {.id = text_or_null(s2s_safetensors_meta(&rec->st, "id")),
                          .text = text_or_null(s2s_safetensors_meta(&rec->st, "text")),
                          .path = path,
                          .record = rec->idx};
    u.id = u.id ? u.id : s2s_xasprintf("%lld", (long long)rec->idx);
    int rc = take_clip(&u, e, t, is_flac, 0, t->shape[0], err);
    return end_utterance(e, &u, rc, err);
}

static int export_stream(struct exporter *e, const char *path, struct s2s_error *err)
{
    struct s2s_stream *in;
    struct s2s_record rec;
    int rc = s2s_stream_open(&in, path, err);
    if (rc < 0)
        return rc;
    const json_t *header = s2s_stream_header(in);
    const json_t *rate = json_object_get(json_object_get(header, "config"), "sampling_rate");
    const char *form = json_string_value(json_object_get(header, "audio"));
    const bool is_pack = s2s_stream_kind(in) == S2S_KIND_PACK,
               is_flac = form && !strcmp(form, "flac");
    e->rate_hz = json_is_integer(rate) ? (int)json_integer_value(rate) : 16000;
    if ((!is_pack && s2s_stream_kind(in) != S2S_KIND_AUDIO) || !form ||
        (!is_flac && strcmp(form, "pcm") != 0)) {
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: holds no sound of form pcm or flac", path);
        s2s_error_hint(err, rc, "make it with s2s-pack --audio pcm");
    }
    while (rc == 0 && (rc = s2s_stream_next(in, &rec, err)) > 0)
        rc = is_pack ? export_pack(e, &rec, path, is_flac, err)
                     : export_clip(e, &rec, path, is_flac, err);
    if (rc == 0)
        rc = flush_queue(e, err);
    s2s_stream_close(in);
    return rc;
}

/* A failure leaves nothing that looks like a whole corpus. */
static void remove_shards(const struct exporter *e)
{
    const char *out = e->opt->common.out;
    for (size_t i = 0; i < e->n_shards; i++) {
        char *tar =
            s2s_xasprintf(e->opt->webdataset ? "%s/%06zu.tar" : "%s/recording.%06zu.tar", out, i);
        char *cuts = s2s_xasprintf("%s/cuts.%06zu.jsonl.gz", out, i);
        (void)unlink(tar);
        (void)unlink(cuts);
        free(tar);
        free(cuts);
    }
    (void)rmdir(out);
}

int shard_export(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp_option options[] = {
        {"to", SHARD_KEY_TO, "shar|webdataset", 0, "Lhotse's Shar (default), or tars of WebDataset",
         0},
        {"shard-size", SHARD_KEY_SHARD_SIZE, "N", 0, "Utterances a shard (default 1000)", 0},
        {0}};
    struct shard_options opt = SHARD_OPTIONS_DEFAULT;
    shard_parse(
        &opt, options,
        "The clips and texts of streams as shards of FLAC files in a new folder OUT."
        "\vExample: s2s-shard export --to shar -o folder sounds/packs.s2s\nSee also: s2s-pack(1)",
        0, argc, argv);
    struct exporter e = {.opt = &opt, .cuts = S2S_BUF_INIT, .names = json_object()};
    bool made = false;
    int rc = 0;
    if (!opt.common.out || !strcmp(opt.common.out, "-"))
        rc = s2s_error_set(err, S2S_E_ARG, "-o FOLDER is missing");
    else if (mkdir(opt.common.out, 0777) == 0)
        made = true;
    else
        rc = s2s_error_errno(err, S2S_E_OPEN, "%s: cannot make the folder", opt.common.out);
    for (size_t i = 0; rc == 0 && i < opt.n_inputs; i++)
        rc = export_stream(&e, opt.inputs[i], err);
    if (rc == 0)
        rc = end_shard(&e, err);
    s2s_tar_writer_abort(e.tar);
    for (size_t i = 0; i < e.n_queued; i++)
        release(&e.queue[i]);
    free(e.queue);
    if (rc < 0 && made)
        remove_shards(&e);
    s2s_buf_release(&e.cuts);
    json_decref(e.names);
    if (rc == 0 && opt.common.verbosity >= 0)
        fprintf(stderr, "s2s-shard: %lld utterances in %zu shards\n", (long long)e.n_written,
                e.n_shards);
    shard_options_release(&opt);
    return rc;
}
