/* Shared inside lib/stream: where a reader's bytes come from, and the end member. */
#ifndef S2S_STREAM_INTERNAL_H
#define S2S_STREAM_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <jansson.h>

#include "lib/base/mem.h"

struct s2s_error;

#define STREAM_HEADER_NAME "header.json"
#define STREAM_END_NAME "end.safetensors"

/* A header or an end larger than this is no honest one; read before it could be checked. */
#define STREAM_MAX_HEADER_BYTES ((uint64_t)64 << 20)

enum { STREAM_NAME_BYTES = 64 };
/* A tree that is cut short for lack of memory must not pass for a whole one: from here on jansson's
 * memory ends the program as our own does. */
static inline void stream_init_json(void)
{
    json_set_alloc_funcs(s2s_xmalloc, free);
}

/* "00000017.safetensors" */
void stream_record_name(char name[STREAM_NAME_BYTES], int64_t idx);

/*
 * The bytes of the uncompressed tar, from a mapped file, a pipe, or either of them compressed.
 * Offsets count uncompressed bytes.
 */
struct stream_source;

/* "-" is stdin; a regular file is mapped, also as stdin. OPEN, IO, FORMAT. */
int stream_source_open(struct stream_source **src, const char *path, struct s2s_error *err);
void stream_source_close(struct stream_source *src); /* NULL is a no-op */
/* The next len bytes; lent until the next call. TRUNCATED when fewer are there, IO, FORMAT. */
int stream_source_take(struct stream_source *src, uint64_t len, const unsigned char **bytes,
                       struct s2s_error *err);
/* As take, with the XXH3 of the first n_hashed of them. */
int stream_source_take_hashed(struct stream_source *src, uint64_t len, uint64_t n_hashed,
                              const unsigned char **bytes, uint64_t *xxh3, struct s2s_error *err);
/* As take, 1; but 0 when there is nothing more at all. */
int stream_source_take_or_end(struct stream_source *src, uint64_t len, const unsigned char **bytes,
                              struct s2s_error *err);
int64_t stream_source_offset(const struct stream_source *src); /* bytes taken */

bool stream_source_is_file(const struct stream_source *src);
bool stream_source_is_zstd(const struct stream_source *src);
/* Random access: only where stream_source_size is not negative. Does not move the offset. */
int64_t stream_source_size(const struct stream_source *src);
int stream_source_at(struct stream_source *src, int64_t offset, uint64_t len,
                     const unsigned char **bytes, struct s2s_error *err);
void stream_source_seek(struct stream_source *src, int64_t offset);
/* Where the last frame begins; -1 when nothing is compressed. */
int64_t stream_source_last_frame(const struct stream_source *src);

/* In compressed streams a frame must begin `delta` bytes from here (behind the header, before the
 * end); FORMAT otherwise. Always 0 for plain ones. */
int stream_source_need_border(struct stream_source *src, int64_t delta, struct s2s_error *err);
/* After the tar's two zero blocks: nothing follows but what belongs to a compressed stream, and
 * that agrees with the frames. */
int stream_source_finish(struct stream_source *src, struct s2s_error *err);

/* The end member (doc/FORMAT.md). */
struct stream_end {
    int64_t n_records;
    uint64_t *offset, *size, *xxh3; /* [n_records] */
    size_t cap;
    char header_digest[33];
    char digest[33]; /* of the member's own bytes */
    json_t *inputs;
};

void stream_end_release(struct stream_end *end);
void stream_end_add(struct stream_end *end, uint64_t offset, uint64_t size, uint64_t xxh3);
/* Fills end from the member's bytes; checks `self` and the counts. */
int stream_end_parse(struct stream_end *end, const void *bytes, size_t len, struct s2s_error *err);
/* Composes the member's bytes; gives: free *bytes. Fills end->digest. */
int stream_end_build(char **bytes, size_t *len, struct stream_end *end, struct s2s_error *err);

#endif
