/*
 * The seekable zstd format (zstd's contrib/seekable_format): independent frames, then a table of
 * their sizes in a skippable frame. Any zstd can decompress the file, and this reader any frame.
 * Before the table there is another skippable frame, 0x184D2A50, with the XXH3-64 of each frame's
 * compressed bytes, as zstd's own checksum misses some flipped bits of a frame.
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

/* Appends a frame. */
void s2s_zstd_table_add(struct s2s_zstd_table *table, uint32_t size, uint32_t len, uint64_t xxh3);
void s2s_zstd_table_release(struct s2s_zstd_table *table);
/* Appends what follows the frames to out: digests and seek table. */
void s2s_zstd_table_tail(const struct s2s_zstd_table *table, struct s2s_buf *out);
/* Reads the tail of a file of len bytes. FORMAT: there is none, or it does not match len (the
 * frames themselves are not read). Nothing to release on failure. */
int s2s_zstd_table_parse(struct s2s_zstd_table *table, const void *bytes, size_t len,
                         struct s2s_error *err);

/* Do these four bytes begin a zstd frame? */
int s2s_zstd_is_frame(const void *bytes);

/*
 * Decompresses a frame (bytes: [frame->len]) into out [frame->size]. DIGEST: its XXH3-64 differs;
 * FORMAT: not one whole frame of that size.
 */
int s2s_zstd_decode(void *out, const struct s2s_zstd_frame *frame, const void *bytes,
                    struct s2s_error *err);

/* ---- writing ---- */

struct s2s_zstd_writer;

/* Compresses on `jobs` threads, whose number does not change the output. out is kept until _free.
 */
struct s2s_zstd_writer *s2s_zstd_writer_new(struct s2s_outfile *out, int level, int jobs);
/* Adds a frame of these bytes, and returns an empty buffer in *bytes. RANGE: more than 4 GiB - 1.
 */
int s2s_zstd_writer_add(struct s2s_zstd_writer *zstd, struct s2s_buf *bytes, struct s2s_error *err);
/* Waits for all frames and writes the tail. */
int s2s_zstd_writer_finish(struct s2s_zstd_writer *zstd, struct s2s_error *err);
void s2s_zstd_writer_free(struct s2s_zstd_writer *zstd); /* NULL is a no-op */

#endif
