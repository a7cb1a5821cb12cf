/*
 * The seekable zstd format (zstd's contrib/seekable_format): independent frames, then a table of
 * their sizes in a skippable frame, so that any zstd reads all and ours reads any part. In front of
 * the table stands a skippable frame of our own, 0x184D2A50, with the XXH3-64 of each frame's
 * compressed bytes: some bits of a zstd frame change nothing that its checksum sees.
 */
#ifndef S2S_IO_ZSTDSEEK_H
#define S2S_IO_ZSTDSEEK_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/mem.h"

struct s2s_error;
struct s2s_outfile;

struct s2s_zstd_frame {
    uint64_t begin; /* of its content in the uncompressed bytes */
    uint64_t at;    /* of the frame in the compressed bytes */
    uint32_t size;  /* uncompressed */
    uint32_t len;   /* compressed */
    uint64_t xxh3;  /* of the compressed bytes */
};

struct s2s_zstd_table {
    struct s2s_zstd_frame *frames;
    size_t n, cap;
};

/* Appends a frame behind those that are there. */
void s2s_zstd_table_add(struct s2s_zstd_table *table, uint32_t size, uint32_t len, uint64_t xxh3);
void s2s_zstd_table_release(struct s2s_zstd_table *table);
/* What stands behind the frames: digests and seek table. Appends to out. */
void s2s_zstd_table_tail(const struct s2s_zstd_table *table, struct s2s_buf *out);
/* Reads the tail of a whole file of len bytes; FORMAT when it is not there or disagrees with len
 * (the frames themselves are not looked at). Nothing to release on failure. */
int s2s_zstd_table_parse(struct s2s_zstd_table *table, const void *bytes, size_t len,
                         struct s2s_error *err);

/* True for the four bytes that begin a zstd frame. */
int s2s_zstd_is_frame(const void *bytes);

/*
 * Decodes the frame bytes[len] whose content has `size` bytes into out. DIGEST when xxh3 differs,
 * FORMAT when it is not one whole frame of that size.
 */
int s2s_zstd_decode(void *out, const struct s2s_zstd_frame *frame, const void *bytes,
                    struct s2s_error *err);

/* ---- writing ---- */

struct s2s_zstd_writer;

/* Compresses on `jobs` threads; what is written never depends on their number. out is kept until
 * _free. */
struct s2s_zstd_writer *s2s_zstd_writer_new(struct s2s_outfile *out, int level, int jobs);
/* One frame of these bytes; takes them and gives an empty buffer back. RANGE above 4 GiB - 1. */
int s2s_zstd_writer_add(struct s2s_zstd_writer *zstd, struct s2s_buf *bytes, struct s2s_error *err);
/* Waits for all frames and writes the tail. */
int s2s_zstd_writer_finish(struct s2s_zstd_writer *zstd, struct s2s_error *err);
void s2s_zstd_writer_free(struct s2s_zstd_writer *zstd); /* NULL is a no-op */

#endif
