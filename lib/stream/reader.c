/* Reads the records of a stream in order or by number, and checks each. */
#include "lib/stream/stream.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/io/digest.h"
#include "lib/io/tar.h"
#include "lib/stream/schema.h"
#include "lib/stream/stream_internal.h"

struct s2s_stream {
    char *path;
    struct stream_source *src;
    json_t *header;
    char header_digest[33];
    struct s2s_schema schema;
    struct stream_end end;     /* as stored; files know it from the start */
    struct stream_end seen;    /* as found, where the end comes last */
    struct s2s_safetensors st; /* of the record that is lent */
    int64_t first_offset;      /* of the first member behind the header */
    int64_t next_idx;
    struct s2s_buf header_bytes;
    bool has_end, done, broken;
};

void stream_record_name(char name[STREAM_NAME_BYTES], int64_t idx)
{
    snprintf(name, STREAM_NAME_BYTES, "%08lld.safetensors", (long long)idx);
}

/* ---- one tar member ---- */

struct member {
    bool is_end;
    int64_t offset; /* of its data */
    uint64_t size;
    const unsigned char *bytes; /* lent */
    bool is_hashed;             /* xxh3 is that of a record's bytes, wanted and then known */
    uint64_t xxh3;
};

/* The header must be, byte for byte, what our writer composes for this name and size. */
static int compare_header(const unsigned char *head, size_t head_len, const char *name,
                          uint64_t size, struct s2s_error *err)
{
    unsigned char expected[S2S_TAR_MAX_HEADER];
    if (s2s_tar_header(expected, name, size) != head_len)
        return s2s_error_set(err, S2S_E_FORMAT, "a pax header that the size does not need");
    for (size_t i = 0; i < head_len; i++)
        if (head[i] != expected[i])
            return s2s_error_set(err, S2S_E_FORMAT, "byte %zu of the tar header differs", i);
    return 0;
}

/* Which of the two possible names stands here, and the size; head holds the whole header. */
static int parse_header(struct member *m, const unsigned char *head, size_t head_len,
                        const char *name, struct s2s_error *err)
{
    char found[101];
    if (!s2s_tar_read(head, head_len > S2S_TAR_BLOCK, found, &m->size))
        return s2s_tar_first_nonzero(head, head_len) == head_len
                   ? s2s_error_set(err, S2S_E_TRUNCATED, "the tar ends without " STREAM_END_NAME)
                   : s2s_error_set(err, S2S_E_FORMAT, "no tar header");
    m->is_end = !strcmp(found, STREAM_END_NAME) && strcmp(name, STREAM_HEADER_NAME) != 0;
    if (!m->is_end && strcmp(found, name) != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "member '%s' where '%s' is expected", found, name);
    if (m->size > INT64_MAX / 2)
        return s2s_error_set(err, S2S_E_FORMAT, "member of %llu bytes",
                             (unsigned long long)m->size);
    return compare_header(head, head_len, m->is_end ? STREAM_END_NAME : name, m->size, err);
}

static int check_padding(const struct member *m, struct s2s_error *err)
{
    size_t padding = s2s_tar_padding(m->size);
    size_t at = s2s_tar_first_nonzero(m->bytes + m->size, padding);
    return at == padding
               ? 0
               : s2s_error_set(err, S2S_E_FORMAT, "a byte of the padding at offset %lld is not 0",
                               (long long)(m->offset + (int64_t)(m->size + at)));
}

/* The next member, which must be `name` or, where one may stand, the end. */
static int take_member(struct s2s_stream *in, struct member *m, const char *name,
                       struct s2s_error *err)
{
    unsigned char head[S2S_TAR_MAX_HEADER];
    const unsigned char *block;
    size_t head_len = S2S_TAR_BLOCK;
    int rc = stream_source_take_or_end(in->src, S2S_TAR_BLOCK, &block, err);
    if (rc == 0 && stream_source_offset(in->src) == 0)
        return s2s_error_set(err, S2S_E_TRUNCATED, "the stream is empty");
    if (rc == 0)
        return s2s_error_set(err, S2S_E_TRUNCATED, "the stream ends without " STREAM_END_NAME);
    if (rc < 0)
        return rc;
    memcpy(head, block, S2S_TAR_BLOCK);
    if (s2s_tar_is_pax(head)) {
        if ((rc = stream_source_take(in->src, 2 * S2S_TAR_BLOCK, &block, err)) < 0)
            return rc;
        memcpy(head + S2S_TAR_BLOCK, block, 2 * S2S_TAR_BLOCK);
        head_len = S2S_TAR_MAX_HEADER;
    }
    if ((rc = parse_header(m, head, head_len, name, err)) < 0)
        return rc;
    m->offset = stream_source_offset(in->src);
    if ((m->is_end && (rc = stream_source_need_border(in->src, -(int64_t)head_len, err)) < 0))
        return rc;
    const uint64_t whole = m->size + s2s_tar_padding(m->size);
    rc = m->is_hashed && !m->is_end
             ? stream_source_take_hashed(in->src, whole, m->size, &m->bytes, &m->xxh3, err)
             : stream_source_take(in->src, whole, &m->bytes, err);
    return rc < 0 ? rc : check_padding(m, err);
}

/* ---- the header ---- */

static int read_header(struct s2s_stream *in, struct s2s_error *err)
{
    struct member m = {0};
    json_error_t at;
    int rc = take_member(in, &m, STREAM_HEADER_NAME, err);
    if (rc < 0)
        return rc;
    if (m.size > STREAM_MAX_HEADER_BYTES)
        return s2s_error_set(err, S2S_E_FORMAT, "it has %llu bytes", (unsigned long long)m.size);
    in->header = json_loadb((const char *)m.bytes, m.size, JSON_REJECT_DUPLICATES, &at);
    if (!in->header)
        return s2s_error_set(err, S2S_E_FORMAT, "line %d, column %d: %s", at.line, at.column,
                             at.text);
    s2s_xxh3_128_hex(in->header_digest, m.bytes, m.size);
    s2s_buf_add(&in->header_bytes, m.bytes, m.size);
    in->first_offset = stream_source_offset(in->src);
    if ((rc = s2s_schema_compile(&in->schema, in->header, err)) < 0)
        return rc;
    return stream_source_need_border(in->src, 0, err);
}

/* ---- the end ---- */

/* Records lie one behind the other from the header to the end, whose tar header is at end_at. */
static int check_layout(const struct s2s_stream *in, const struct stream_end *end, int64_t end_at,
                        struct s2s_error *err)
{
    uint64_t at = (uint64_t)in->first_offset;
    for (int64_t i = 0; i < end->n_records; i++) {
        uint64_t size = end->size[i];
        if (size > INT64_MAX / 2 || end->offset[i] != at + s2s_tar_header_len(size))
            return s2s_error_set(
                err, S2S_E_FORMAT,
                "record %lld of %llu bytes is listed at offset %llu, %llu expected", (long long)i,
                (unsigned long long)size, (unsigned long long)end->offset[i],
                (unsigned long long)(at + s2s_tar_header_len(size)));
        at = end->offset[i] + size + s2s_tar_padding(size);
    }
    if (at != (uint64_t)end_at)
        return s2s_error_set(err, S2S_E_FORMAT, "the records end at %llu, the end is at %lld",
                             (unsigned long long)at, (long long)end_at);
    return 0;
}

static int check_end(const struct s2s_stream *in, const struct stream_end *end, int64_t end_at,
                     struct s2s_error *err)
{
    size_t n_steps = json_array_size(json_object_get(in->header, "provenance"));
    if (strcmp(end->header_digest, in->header_digest) != 0)
        return s2s_error_set(err, S2S_E_DIGEST,
                             STREAM_HEADER_NAME " has digest %s, the end says %s",
                             in->header_digest, end->header_digest);
    if (json_array_size(end->inputs) != n_steps)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "'inputs' has %zu entries, the provenance %zu steps",
                             json_array_size(end->inputs), n_steps);
    return check_layout(in, end, end_at, err);
}

/* True where a whole end member begins at offset and the stream ends behind it. */
static bool end_begins_at(struct s2s_stream *in, int64_t offset, struct member *m)
{
    const unsigned char *head;
    int64_t size = stream_source_size(in->src);
    if (stream_source_at(in->src, offset, S2S_TAR_BLOCK, &head, NULL) < 0 ||
        memcmp(head, STREAM_END_NAME, sizeof STREAM_END_NAME) != 0 ||
        parse_header(m, head, S2S_TAR_BLOCK, STREAM_END_NAME, NULL) < 0)
        return false;
    m->offset = offset + S2S_TAR_BLOCK;
    uint64_t whole = m->size + s2s_tar_padding(m->size);
    return whole + S2S_TAR_TAIL == (uint64_t)(size - m->offset) &&
           stream_source_at(in->src, m->offset, whole, &m->bytes, NULL) == 0 &&
           check_padding(m, NULL) == 0;
}

/*
 * Walks back from the end of a file. An end needs 24 bytes a record and a record at least 1,024, so
 * that a damaged file is not searched to its beginning. What is wrong with an end that is not found
 * or not good is said by reading up to it.
 */
static void find_end(struct s2s_stream *in)
{
    struct member m = {0};
    int64_t size = stream_source_size(in->src), last = stream_source_last_frame(in->src);
    int64_t at = last >= 0 ? last : size - S2S_TAR_TAIL - 2 * S2S_TAR_BLOCK;
    int64_t lowest = last >= 0 ? last : size - size / 32 - (16 << 20);
    const unsigned char *tail;
    if (size % S2S_TAR_BLOCK != 0 ||
        stream_source_at(in->src, size - S2S_TAR_TAIL, S2S_TAR_TAIL, &tail, NULL) < 0 ||
        s2s_tar_first_nonzero(tail, S2S_TAR_TAIL) != S2S_TAR_TAIL)
        return; /* cut: no need to search */
    lowest = lowest > in->first_offset ? lowest : in->first_offset;
    for (; at >= lowest; at -= S2S_TAR_BLOCK) {
        if (!end_begins_at(in, at, &m))
            continue;
        if (stream_end_parse(&in->end, m.bytes, m.size, NULL) < 0)
            return;
        in->has_end = check_end(in, &in->end, at, NULL) == 0;
        if (!in->has_end)
            stream_end_release(&in->end);
        return;
    }
}

/* The end where it comes in its turn: agrees with all that was read before it. */
static int take_end(struct s2s_stream *in, const struct member *m, struct s2s_error *err)
{
    const unsigned char *tail;
    int64_t end_at = m->offset - (int64_t)s2s_tar_header_len(m->size);
    if (!in->has_end) {
        int rc = stream_end_parse(&in->end, m->bytes, m->size, err);
        if (rc == 0 && in->end.n_records != in->next_idx)
            rc = s2s_error_set(err, S2S_E_FORMAT, "it lists %lld records, %lld are there",
                               (long long)in->end.n_records, (long long)in->next_idx);
        if (rc == 0)
            rc = check_end(in, &in->end, end_at, err);
        for (int64_t i = 0; rc == 0 && i < in->seen.n_records; i++)
            if (in->end.xxh3[i] != in->seen.xxh3[i])
                rc = s2s_error_set(err, S2S_E_DIGEST,
                                   "record %lld at offset %lld has digest %016llx, the end says "
                                   "%016llx",
                                   (long long)i, (long long)in->seen.offset[i],
                                   (unsigned long long)in->seen.xxh3[i],
                                   (unsigned long long)in->end.xxh3[i]);
        if (rc < 0)
            return rc;
    } else if (in->next_idx != in->end.n_records) {
        return s2s_error_set(err, S2S_E_FORMAT, "it comes after %lld of %lld records",
                             (long long)in->next_idx, (long long)in->end.n_records);
    }
    int rc = stream_source_take(in->src, S2S_TAR_TAIL, &tail, err);
    if (rc == 0 && s2s_tar_first_nonzero(tail, S2S_TAR_TAIL) != S2S_TAR_TAIL)
        rc = s2s_error_set(err, S2S_E_FORMAT, "the zero blocks behind it are not zero");
    if (rc == 0)
        rc = stream_source_finish(in->src, err);
    if (rc == 0)
        in->has_end = in->done = true;
    return rc;
}

/* ---- records ---- */

/* Digest, parse, schema; fills rec. */
static int lend_record(struct s2s_stream *in, struct s2s_record *rec, const struct member *m,
                       int64_t idx, struct s2s_error *err)
{
    *rec = (struct s2s_record){.idx = idx,
                               .offset = m->offset,
                               .len_bytes = m->size,
                               .bytes = m->bytes,
                               .xxh3 = m->is_hashed ? m->xxh3 : s2s_xxh3_64(m->bytes, m->size)};
    if (in->has_end && (idx >= in->end.n_records || in->end.xxh3[idx] != rec->xxh3))
        return s2s_error_set(err, S2S_E_DIGEST, "it has digest %016llx, the end says otherwise",
                             (unsigned long long)rec->xxh3);
    int rc = s2s_safetensors_parse(&in->st, m->bytes, m->size, err);
    if (rc == 0)
        rc = s2s_schema_check(&in->schema, &in->st, err);
    rec->st = in->st;
    return rc;
}

int s2s_stream_next(struct s2s_stream *in, struct s2s_record *rec, struct s2s_error *err)
{
    struct member m = {.is_hashed = true};
    char name[STREAM_NAME_BYTES];
    s2s_safetensors_release(&in->st);
    if (in->done)
        return 0;
    int64_t at = stream_source_offset(in->src);
    if (in->broken)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: cannot be read on at offset %lld", in->path,
                             (long long)at);
    stream_record_name(name, in->next_idx);
    in->broken = true; /* unless a whole member is there */
    int rc = take_member(in, &m, name, err);
    if (m.is_end) {
        rc = rc < 0 ? rc : take_end(in, &m, err);
        return rc < 0 ? s2s_error_add(err, rc, "%s: " STREAM_END_NAME " at offset %lld", in->path,
                                      (long long)at)
                      : 0;
    }
    int64_t idx = in->next_idx;
    if (rc == 0) {
        in->broken = false;
        in->next_idx++;
        rc = lend_record(in, rec, &m, idx, err);
        if (!in->has_end)
            stream_end_add(&in->seen, (uint64_t)m.offset, m.size, rec->xxh3);
    }
    return rc < 0 ? s2s_error_add(err, rc, "%s: record %lld at offset %lld", in->path,
                                  (long long)idx, (long long)at)
                  : 1;
}

bool s2s_stream_is_broken(const struct s2s_stream *in)
{
    return in->broken;
}

/* Without a good end: reading on to the fault says where it is. Returns the number of records if
 * there is none after all (an end too large to be looked for). */
static int64_t count_records(struct s2s_stream *in, struct s2s_error *err)
{
    struct member m = {0};
    char name[STREAM_NAME_BYTES];
    for (;;) {
        int64_t at = stream_source_offset(in->src);
        stream_record_name(name, in->next_idx);
        int rc = take_member(in, &m, name, err);
        if (rc < 0 && !m.is_end)
            return s2s_error_add(err, rc, "%s: record %lld at offset %lld", in->path,
                                 (long long)in->next_idx, (long long)at);
        if (m.is_end) {
            rc = rc < 0 ? rc : take_end(in, &m, err);
            return rc < 0 ? s2s_error_add(err, rc, "%s: " STREAM_END_NAME " at offset %lld",
                                          in->path, (long long)at)
                          : in->end.n_records;
        }
        in->next_idx++; /* from header to header: digests are not needed to find a cut */
    }
}

int64_t s2s_stream_n_records(struct s2s_stream *in, struct s2s_error *err)
{
    if (in->has_end)
        return in->end.n_records;
    if (!stream_source_is_file(in->src)) {
        int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "%s: a pipe has no random access: its end comes last", in->path);
        return s2s_error_hint(err, rc, "save it to a file first");
    }
    int64_t offset = stream_source_offset(in->src), idx = in->next_idx;
    int64_t n_records = count_records(in, err);
    if (n_records < 0)
        return n_records;
    stream_source_seek(in->src, offset);
    in->next_idx = idx;
    in->done = false;
    return n_records;
}

uint64_t s2s_stream_packed_size(const struct s2s_stream *in, int64_t idx)
{
    return in->has_end && stream_source_is_zstd(in->src) ? in->end.size[idx] : 0;
}

int s2s_stream_read_at(struct s2s_stream *in, int64_t idx, struct s2s_record *rec,
                       struct s2s_error *err)
{
    const unsigned char *head;
    char name[STREAM_NAME_BYTES];
    s2s_safetensors_release(&in->st);
    int64_t n_records = s2s_stream_n_records(in, err);
    if (n_records < 0)
        return (int)n_records;
    if (idx < 0 || idx >= n_records)
        return s2s_error_set(err, S2S_E_RANGE, "%s: no record %lld: there are %lld", in->path,
                             (long long)idx, (long long)n_records);
    struct member m = {.size = in->end.size[idx], .offset = (int64_t)in->end.offset[idx]};
    size_t head_len = s2s_tar_header_len(m.size);
    int64_t at = m.offset - (int64_t)head_len;
    stream_record_name(name, idx);
    uint64_t whole = head_len + m.size + s2s_tar_padding(m.size);
    int rc = stream_source_at(in->src, at, whole, &head, err);
    if (rc == 0)
        rc = compare_header(head, head_len, name, m.size, err);
    if (rc == 0) {
        m.bytes = head + head_len;
        rc = check_padding(&m, err);
    }
    if (rc == 0)
        rc = lend_record(in, rec, &m, idx, err);
    return rc < 0 ? s2s_error_add(err, rc, "%s: record %lld at offset %lld", in->path,
                                  (long long)idx, (long long)at)
                  : 0;
}

/* ---- open and close ---- */

int s2s_stream_open(struct s2s_stream **result, const char *path, struct s2s_error *err)
{
    stream_init_json();
    struct s2s_stream *in = s2s_xcalloc(1, sizeof *in);
    in->path = s2s_xstrdup(strcmp(path, "-") ? path : "stdin");
    int rc = stream_source_open(&in->src, path, err);
    if (rc == 0 && (rc = read_header(in, err)) < 0)
        s2s_error_add(err, rc, "%s: " STREAM_HEADER_NAME, in->path);
    if (rc < 0) {
        s2s_stream_close(in);
        return rc;
    }
    if (stream_source_size(in->src) >= 0)
        find_end(in);
    *result = in;
    return 0;
}

void s2s_stream_close(struct s2s_stream *in)
{
    if (!in)
        return;
    s2s_safetensors_release(&in->st);
    s2s_schema_release(&in->schema);
    stream_end_release(&in->end);
    stream_end_release(&in->seen);
    stream_source_close(in->src);
    s2s_buf_release(&in->header_bytes);
    json_decref(in->header);
    free(in->path);
    free(in);
}

const json_t *s2s_stream_header(const struct s2s_stream *in)
{
    return in->header;
}

const char *s2s_stream_header_bytes(const struct s2s_stream *in, size_t *len)
{
    *len = in->header_bytes.len;
    return in->header_bytes.data;
}

enum s2s_kind s2s_stream_kind(const struct s2s_stream *in)
{
    return in->schema.kind;
}

const char *s2s_stream_header_digest(const struct s2s_stream *in)
{
    return in->header_digest;
}

int s2s_stream_end_digest(struct s2s_stream *in, char hex[33], struct s2s_error *err)
{
    if (!in->has_end)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: its end was not read yet", in->path);
    memcpy(hex, in->end.digest, 33);
    return 0;
}

const json_t *s2s_stream_inputs(const struct s2s_stream *in)
{
    return in->has_end ? in->end.inputs : NULL;
}
