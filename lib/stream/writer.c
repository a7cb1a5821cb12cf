/* Writes a stream record by record, and commits it whole. */
#include "lib/stream/stream.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/base/tool.h"
#include "lib/io/behind.h"
#include "lib/io/digest.h"
#include "lib/io/outfile.h"
#include "lib/io/tar.h"
#include "lib/io/zstdseek.h"
#include "lib/stream/schema.h"
#include "lib/stream/stream_internal.h"

/* A block is hashed and written while it is in the cache, and not copied. */
enum { BLOCK_BYTES = S2S_BEHIND_PIECE };

/* A frame is ended by the member that fills it: a reader of one record decodes little more. */
enum { FRAME_BYTES = 2 << 20, DEFAULT_LEVEL = 3 };

/* A record waits for the next one no longer than this. */
#define FLUSH_SECONDS 0.010

struct s2s_stream_writer {
    char *path;
    struct s2s_outfile *out;
    struct s2s_zstd_writer *zstd; /* NULL: plain */
    struct s2s_buf frame;         /* members of the frame that is being filled */
    int64_t offset;               /* bytes of the tar so far */
    struct s2s_schema schema;
    struct stream_end end;
    struct s2s_digest *digest; /* of the record that is being written */
    uint64_t last_digest;
    size_t n_steps; /* of the provenance */
    double flushed_s;
};

/* ---- members ---- */

static int put(struct s2s_stream_writer *w, const void *bytes, size_t len, struct s2s_error *err)
{
    w->offset += (int64_t)len;
    if (!w->zstd)
        return s2s_outfile_write(w->out, bytes, len, err);
    s2s_buf_add(&w->frame, bytes, len);
    return 0;
}

/* Ends the frame. Where frames end depends on sizes alone, never on time or threads. */
static int end_frame(struct s2s_stream_writer *w, struct s2s_error *err)
{
    return w->zstd && w->frame.len ? s2s_zstd_writer_add(w->zstd, &w->frame, err) : 0;
}

static int begin_member(struct s2s_stream_writer *w, const char *name, uint64_t size,
                        struct s2s_error *err)
{
    unsigned char head[S2S_TAR_MAX_HEADER];
    return put(w, head, s2s_tar_header(head, name, size), err);
}

static int end_member(struct s2s_stream_writer *w, uint64_t size, struct s2s_error *err)
{
    static const char zeros[S2S_TAR_BLOCK];
    return put(w, zeros, s2s_tar_padding(size), err);
}

static int put_member(struct s2s_stream_writer *w, const char *name, const void *bytes, size_t len,
                      struct s2s_error *err)
{
    int rc = begin_member(w, name, len, err);
    if (rc == 0)
        rc = put(w, bytes, len, err);
    return rc < 0 ? rc : end_member(w, len, err);
}

static int put_hashed(struct s2s_stream_writer *w, const char *bytes, size_t len,
                      struct s2s_error *err)
{
    for (size_t at = 0; at < len;) {
        size_t n = len - at < BLOCK_BYTES ? len - at : BLOCK_BYTES;
        s2s_digest_update(w->digest, bytes + at, n);
        int rc = put(w, bytes + at, n, err);
        if (rc < 0)
            return rc;
        at += n;
    }
    return 0;
}

/* ---- the header ---- */

static json_t *provenance_of(const json_t *parent, char *const *args, size_t n_args)
{
    const json_t *older = json_object_get(parent, "provenance");
    json_t *chain = older ? json_deep_copy(older) : json_array(), *list = json_array();
    for (size_t i = 0; i < n_args; i++)
        json_array_append_new(list, json_string(args[i]));
    json_array_append_new(chain, json_pack("{s:s, s:s, s:o}", "program", s2s_log_program(),
                                           "version", S2S_VERSION, "args", list));
    return chain;
}

/* Complete header.json, checked as a reader would. Gives a new reference. */
static json_t *make_header(struct s2s_stream_writer *w, const json_t *header, const json_t *parent,
                           char *const *args, size_t n_args, struct s2s_error *err)
{
    json_t *full = json_deep_copy(header);
    json_t *schema = s2s_schema_default(header, err);
    if (!schema) {
        json_decref(full);
        return NULL;
    }
    json_object_set_new(full, "schema", schema);
    json_object_set_new(full, "format", json_string("s2s"));
    json_object_set_new(full, "version", json_integer(S2S_STREAM_VERSION));
    json_object_set_new(full, "provenance", provenance_of(parent, args, n_args));
    if (!json_object_get(full, "config"))
        json_object_set_new(full, "config", json_object());
    w->n_steps = json_array_size(json_object_get(full, "provenance"));
    if (s2s_schema_compile(&w->schema, full, err) < 0) {
        json_decref(full);
        return NULL;
    }
    return full;
}

static int put_header(struct s2s_stream_writer *w, const void *bytes, size_t len,
                      struct s2s_error *err)
{
    s2s_xxh3_128_hex(w->end.header_digest, bytes, len);
    int rc = put_member(w, STREAM_HEADER_NAME, bytes, len, err);
    if (rc == 0)
        rc = end_frame(w, err);
    w->flushed_s = s2s_now_s();
    return rc < 0 ? rc : s2s_outfile_flush(w->out, err); /* readers down a pipe can begin */
}

static int level_by_name(const char *path)
{
    size_t len = path ? strlen(path) : 0;
    return len > 4 && !strcmp(path + len - 4, ".zst") ? DEFAULT_LEVEL : 0;
}

static struct s2s_stream_writer *writer_new(const char *path)
{
    stream_init_json();
    struct s2s_stream_writer *w = s2s_xcalloc(1, sizeof *w);
    w->path = s2s_xstrdup(path && strcmp(path, "-") ? path : "stdout");
    w->digest = s2s_digest_new(64);
    return w;
}

static int open_output(struct s2s_stream_writer *w, const char *path,
                       const struct s2s_stream_options *options, struct s2s_error *err)
{
    int rc = s2s_outfile_open(&w->out, path, err);
    int level = options && options->zstd_level ? options->zstd_level : level_by_name(path);
    if (rc == 0 && level > 0)
        w->zstd =
            s2s_zstd_writer_new(w->out, level, options && options->jobs > 1 ? options->jobs : 1);
    return rc;
}

/* Opens the output and writes a complete header (taken; NULL: err says why there is none). */
static int begin_stream(struct s2s_stream_writer **result, struct s2s_stream_writer *w,
                        const char *path, json_t *full, const struct s2s_stream_options *options,
                        struct s2s_error *err)
{
    char *text = full ? json_dumps(full, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    int rc;
    if (!full)
        rc = s2s_error_add(err, err->code, "%s", w->path);
    else if (!text)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: header.json cannot be written as JSON", w->path);
    else
        rc = open_output(w, path, options, err);
    if (rc == 0) {
        struct s2s_buf json = S2S_BUF_INIT;
        s2s_buf_puts(&json, text);
        s2s_buf_putc(&json, '\n');
        rc = put_header(w, json.data, json.len, err);
        s2s_buf_release(&json);
    }
    free(text);
    json_decref(full);
    if (rc < 0)
        s2s_stream_abort(w);
    else
        *result = w;
    return rc;
}

int s2s_stream_create(struct s2s_stream_writer **result, const char *path, const json_t *header,
                      const json_t *parent, char *const *args, size_t n_args,
                      const struct s2s_stream_options *options, struct s2s_error *err)
{
    struct s2s_error own = S2S_ERROR_INIT;
    struct s2s_stream_writer *w = writer_new(path);
    err = err ? err : &own;
    json_t *full = make_header(w, header, parent, args, n_args, err);
    return begin_stream(result, w, path, full, options, err);
}

int s2s_stream_create_exact(struct s2s_stream_writer **result, const char *path,
                            const json_t *header, const struct s2s_stream_options *options,
                            struct s2s_error *err)
{
    struct s2s_error own = S2S_ERROR_INIT;
    struct s2s_stream_writer *w = writer_new(path);
    err = err ? err : &own;
    w->n_steps = json_array_size(json_object_get(header, "provenance"));
    json_t *full = s2s_schema_compile(&w->schema, header, err) < 0 ? NULL : json_deep_copy(header);
    return begin_stream(result, w, path, full, options, err);
}

const char *s2s_stream_writer_header_digest(const struct s2s_stream_writer *w)
{
    return w->end.header_digest;
}

int s2s_stream_create_copy(struct s2s_stream_writer **result, const char *path,
                           const struct s2s_stream *from, const struct s2s_stream_options *options,
                           struct s2s_error *err)
{
    struct s2s_stream_writer *w = writer_new(path);
    size_t len;
    const char *bytes = s2s_stream_header_bytes(from, &len);
    int rc = s2s_schema_compile(&w->schema, s2s_stream_header(from), err);
    if (rc == 0)
        rc = open_output(w, path, options, err);
    if (rc == 0)
        rc = put_header(w, bytes, len, err);
    if (rc < 0)
        s2s_stream_abort(w);
    else
        *result = w;
    return rc;
}

/* ---- records ---- */

static int record_error(const struct s2s_stream_writer *w, int rc, struct s2s_error *err)
{
    return s2s_error_add(err, rc, "%s: record %lld", w->path, (long long)w->end.n_records);
}

/* Behind the data: padding, the list for the end, and the flush that a waiting reader needs. Many
 * small records in a row go out together. */
static int end_record(struct s2s_stream_writer *w, int64_t offset, uint64_t size, uint64_t xxh3,
                      struct s2s_error *err)
{
    w->last_digest = xxh3;
    stream_end_add(&w->end, (uint64_t)offset, size, w->last_digest);
    int rc = end_member(w, size, err);
    if (w->zstd)
        return rc == 0 && w->frame.len >= FRAME_BYTES ? end_frame(w, err) : rc;
    double now_s = s2s_now_s();
    if (rc == 0 && now_s - w->flushed_s > FLUSH_SECONDS) {
        rc = s2s_outfile_flush(w->out, err);
        w->flushed_s = now_s;
    }
    return rc;
}

int s2s_stream_write(struct s2s_stream_writer *w, struct s2s_st_tensor *tensors, size_t n_tensors,
                     struct s2s_st_meta *meta, size_t n_meta, struct s2s_error *err)
{
    char *header = NULL, name[STREAM_NAME_BYTES];
    size_t header_len = 0;
    uint64_t size;
    int rc = s2s_safetensors_header(&header, &header_len, tensors, n_tensors, meta, n_meta, err);
    if (rc < 0)
        return record_error(w, rc, err);
    /* tensors and metadata are sorted now, as a parsed file's are */
    const struct s2s_safetensors st = {
        .tensors = tensors, .n_tensors = n_tensors, .meta = meta, .n_meta = n_meta};
    if ((rc = s2s_schema_check(&w->schema, &st, err)) < 0) {
        free(header);
        return record_error(w, rc, err);
    }
    size = header_len;
    for (size_t i = 0; i < n_tensors; i++)
        size += tensors[i].len_bytes;
    stream_record_name(name, w->end.n_records);
    s2s_digest_reset(w->digest);
    rc = begin_member(w, name, size, err);
    int64_t offset = w->offset;
    if (rc == 0)
        rc = put_hashed(w, header, header_len, err);
    for (size_t i = 0; rc == 0 && i < n_tensors; i++)
        rc = put_hashed(w, tensors[i].data, tensors[i].len_bytes, err);
    free(header);
    return rc < 0 ? rc : end_record(w, offset, size, s2s_digest_value(w->digest), err);
}

int s2s_stream_write_record(struct s2s_stream_writer *w, const struct s2s_record *rec,
                            struct s2s_error *err)
{
    char name[STREAM_NAME_BYTES];
    stream_record_name(name, w->end.n_records);
    int rc = begin_member(w, name, rec->len_bytes, err);
    int64_t offset = w->offset;
    if (rc == 0)
        rc = put(w, rec->bytes, rec->len_bytes, err);
    return rc < 0 ? rc : end_record(w, offset, rec->len_bytes, rec->xxh3, err);
}

uint64_t s2s_stream_last_digest(const struct s2s_stream_writer *w)
{
    return w->last_digest;
}

/* ---- the end ---- */

static void writer_free(struct s2s_stream_writer *w)
{
    s2s_zstd_writer_free(w->zstd);
    s2s_buf_release(&w->frame);
    s2s_schema_release(&w->schema);
    stream_end_release(&w->end);
    s2s_digest_free(w->digest);
    free(w->path);
    free(w);
}

static int put_end(struct s2s_stream_writer *w, struct s2s_error *err)
{
    static const char zeros[S2S_TAR_TAIL];
    char *bytes = NULL;
    size_t len = 0;
    int rc = end_frame(w, err);
    if (rc == 0)
        rc = stream_end_build(&bytes, &len, &w->end, err);
    if (rc == 0)
        rc = put_member(w, STREAM_END_NAME, bytes, len, err);
    if (rc == 0)
        rc = put(w, zeros, S2S_TAR_TAIL, err);
    if (rc == 0)
        rc = end_frame(w, err);
    if (rc == 0 && w->zstd)
        rc = s2s_zstd_writer_finish(w->zstd, err);
    free(bytes);
    return rc;
}

static int commit(struct s2s_stream_writer *w, struct s2s_error *err)
{
    int rc = put_end(w, err);
    struct s2s_outfile *out = w->out;
    w->out = NULL;
    if (rc == 0)
        rc = s2s_outfile_commit(out, err);
    else
        s2s_outfile_abort(out);
    writer_free(w);
    return rc;
}

int s2s_stream_commit(struct s2s_stream_writer *w, const json_t *parent_inputs,
                      char *const *input_digests, size_t n_inputs, struct s2s_error *err)
{
    json_t *step = json_array();
    for (size_t i = 0; i < n_inputs; i++)
        json_array_append_new(step, json_string(input_digests[i]));
    w->end.inputs = parent_inputs ? json_deep_copy(parent_inputs) : json_array();
    json_array_append_new(w->end.inputs, step);
    if (json_array_size(w->end.inputs) != w->n_steps)
        S2S_BUG("%zu steps have %zu entries of inputs", w->n_steps, json_array_size(w->end.inputs));
    return commit(w, err);
}

int s2s_stream_commit_exact(struct s2s_stream_writer *w, const json_t *inputs,
                            struct s2s_error *err)
{
    w->end.inputs = json_deep_copy(inputs);
    if (json_array_size(w->end.inputs) != w->n_steps)
        S2S_BUG("%zu steps have %zu entries of inputs", w->n_steps, json_array_size(w->end.inputs));
    return commit(w, err);
}

int s2s_stream_commit_copy(struct s2s_stream_writer *w, const struct s2s_stream *from,
                           struct s2s_error *err)
{
    const json_t *inputs = s2s_stream_inputs(from);
    if (!inputs)
        S2S_BUG("a copy is ended before its source");
    w->end.inputs = json_deep_copy(inputs);
    return commit(w, err);
}

void s2s_stream_abort(struct s2s_stream_writer *w)
{
    if (!w)
        return;
    s2s_outfile_abort(w->out);
    writer_free(w);
}
