/*
 * The .s2s stream: a POSIX tar of header.json, one safetensors file a record, and end.safetensors
 * with every record's offset, size and XXH3. doc/FORMAT.md is its specification. Readers check
 * everything they read; a stream without its end is TRUNCATED, with the record's number, never
 * silently short.
 */
#ifndef S2S_STREAM_H
#define S2S_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/io/safetensors.h"

struct s2s_error;
struct s2s_stream;
struct s2s_stream_writer;

/* The newest version of the format that is read, and the one that is written. */
enum { S2S_STREAM_VERSION = 1 };

enum s2s_kind { S2S_KIND_AUDIO, S2S_KIND_PACK, S2S_KIND_EMBED, S2S_KIND_CPSHARD, S2S_KIND_DUPLEX };
const char *s2s_kind_name(enum s2s_kind kind);

/* ---- reading ---- */

struct s2s_record {
    int64_t idx;    /* from 0 */
    int64_t offset; /* of the record's bytes in the uncompressed tar */
    size_t len_bytes;
    uint64_t xxh3;     /* XXH3-64 of its bytes */
    const void *bytes; /* the safetensors file itself; lent until the next call on the stream,
                          mapped if possible */
    struct s2s_safetensors st; /* parsed; lent likewise */
};

/* "-" is stdin. Plain or .zst is detected from the bytes. Reads and checks the header. */
int s2s_stream_open(struct s2s_stream **in, const char *path, struct s2s_error *err);
/*
 * 1: rec is the next record (checked against the schema); 0: the end was there and agrees with all
 * that came before it. A file's record is held against its digest at once, a pipe's at the end.
 * After a failure the next call goes on behind the bad record if that can be found, else it fails
 * again (s2s_stream_is_broken).
 */
int s2s_stream_next(struct s2s_stream *in, struct s2s_record *rec, struct s2s_error *err);
bool s2s_stream_is_broken(const struct s2s_stream *in);
/* Random access (files only): the number of records, from the end; and one record by its number.
 * UNSUPPORTED on a pipe. */
int64_t s2s_stream_n_records(struct s2s_stream *in, struct s2s_error *err);
int s2s_stream_read_at(struct s2s_stream *in, int64_t idx, struct s2s_record *rec,
                       struct s2s_error *err);
/* Of a file whose number of records was asked for: the bytes of record idx, where a whole frame is
 * decoded to reach it; 0 where it lies in the file as it is. */
uint64_t s2s_stream_packed_size(const struct s2s_stream *in, int64_t idx);
void s2s_stream_close(struct s2s_stream *in);

const json_t *s2s_stream_header(const struct s2s_stream *in); /* lent */
/* header.json as it stands in the stream; lent until _close. */
const char *s2s_stream_header_bytes(const struct s2s_stream *in, size_t *len);
enum s2s_kind s2s_stream_kind(const struct s2s_stream *in);
/* XXH3-128 of header.json, 32 hex digits. */
const char *s2s_stream_header_digest(const struct s2s_stream *in);
/* After the end was read (files: at any time): XXH3-128 of the end member, 32 hex digits; what a
 * program downstream puts into `inputs`. */
int s2s_stream_end_digest(struct s2s_stream *in, char hex[33], struct s2s_error *err);
/* The `inputs` list of the end; NULL before the end was read. Lent. */
const json_t *s2s_stream_inputs(const struct s2s_stream *in);

/* ---- writing ---- */

struct s2s_stream_options {
    int zstd_level; /* 0: plain tar; else compressed, frames cut at member borders. By default taken
                       from the name (.zst: 3) */
    int jobs;       /* threads that compress; output never depends on it */
};

/*
 * Opens path ("-" or NULL: stdout) and writes header.json. `header` holds kind, layout, config,
 * audio, embed, cp, parent, schema as doc/FORMAT.md says (borrowed; format, version and provenance
 * are added here, schema from the kind's table unless given). The provenance is that of `parent`
 * (the header of the stream this one was made from; NULL for a source) plus this program:
 * s2s_log_program(), S2S_VERSION, args.
 */
int s2s_stream_create(struct s2s_stream_writer **out, const char *path, const json_t *header,
                      const json_t *parent, char *const *args, size_t n_args,
                      const struct s2s_stream_options *options, struct s2s_error *err);
/* As s2s_stream_create, for an exact copy of `from` (a checked, perhaps recompressed cat): its
 * header as it is, no step of provenance added. Ends with s2s_stream_commit_copy. */
int s2s_stream_create_copy(struct s2s_stream_writer **out, const char *path,
                           const struct s2s_stream *from, const struct s2s_stream_options *options,
                           struct s2s_error *err);
/* As s2s_stream_commit, once `from` was read to its end. */
int s2s_stream_commit_copy(struct s2s_stream_writer *out, const struct s2s_stream *from,
                           struct s2s_error *err);
/* As s2s_stream_create, for a stream that undoes a step: `header` is complete (borrowed) and
 * written as it is. Ends with s2s_stream_commit_exact. */
int s2s_stream_create_exact(struct s2s_stream_writer **out, const char *path, const json_t *header,
                            const struct s2s_stream_options *options, struct s2s_error *err);
/* As s2s_stream_commit; `inputs` is the whole list (borrowed), an entry a step of provenance. */
int s2s_stream_commit_exact(struct s2s_stream_writer *out, const json_t *inputs,
                            struct s2s_error *err);
/* XXH3-128 of the header.json that was written, 32 hex digits; lent. */
const char *s2s_stream_writer_header_digest(const struct s2s_stream_writer *out);
/* Appends a record; tensors and meta are sorted in place, borrowed. Checked against the schema: a
 * wrong record is our bug or bad input. */
int s2s_stream_write(struct s2s_stream_writer *out, struct s2s_st_tensor *tensors, size_t n_tensors,
                     struct s2s_st_meta *meta, size_t n_meta, struct s2s_error *err);
/* Appends a record as it was read from a stream of the same schema, whose reader has checked it and
 * knows its digest: for filters that only move records. Of rec, bytes, len_bytes and xxh3 are used.
 */
int s2s_stream_write_record(struct s2s_stream_writer *out, const struct s2s_record *rec,
                            struct s2s_error *err);
/* XXH3-64 of the record written last. */
uint64_t s2s_stream_last_digest(const struct s2s_stream_writer *out);
/*
 * Writes the end and makes the file appear. `parent_inputs` is the list of the parent's end (NULL
 * for a source), to which one entry is added for this step: the digests of this program's inputs,
 * hex (32 digits each). Frees out, also on failure.
 */
int s2s_stream_commit(struct s2s_stream_writer *out, const json_t *parent_inputs,
                      char *const *input_digests, size_t n_inputs, struct s2s_error *err);
void s2s_stream_abort(
    struct s2s_stream_writer *out); /* removes what was written; NULL is a no-op */

#endif
