/*
 * Zip archives of stored (uncompressed) members, as torch.save writes them. An archive may be a
 * file, a range of a file, or bytes in memory. The reader uses the central directory and rejects
 * archives that different readers could interpret differently; the writer streams. Format: PKWARE
 * APPNOTE 6.3.3, with the zip64 records.
 */
#ifndef S2S_IO_ZIP_H
#define S2S_IO_ZIP_H

#include <stddef.h>
#include <stdint.h>

struct s2s_error;

/* ---- reading ---- */

/* Location of an archive: len_bytes bytes from begin of a file or, if bytes is not NULL, of memory.
 */
struct s2s_zip_source {
    int fd;
    const void *bytes;
    int64_t begin, len_bytes;
    uint32_t max_members; /* limit for the number of members; 0: 2^20, the highest possible limit */
};

struct s2s_zip_member {
    const char *name; /* NUL-terminated, without NULs inside */
    int64_t pos;      /* of the data, relative to the archive */
    int64_t len_bytes;
    uint32_t crc;
    uint32_t header_len; /* length of the local header, which ends where the data begins */
};

struct s2s_zip {
    struct s2s_zip_source source;
    struct s2s_zip_member *members; /* sorted by position */
    size_t n_members;
    void *internal;
};

/*
 * Reads the central directory. source's fd or bytes are kept. FORMAT or TRUNCATED, with reason and
 * offset: no end record, compressed or encrypted members, members outside the archive or
 * overlapping, duplicate names (ignoring the first folder), more members than max_members. Nothing
 * to release on failure.
 */
int s2s_zip_open(struct s2s_zip *zip, const struct s2s_zip_source *source, struct s2s_error *err);
void s2s_zip_release(struct s2s_zip *zip);
/* Frees the members and their names, of which there may be a million. Copies of members can still
 * be read, with names of their own. */
void s2s_zip_drop_members(struct s2s_zip *zip);
/* Finds a member by its name without the first folder ("data.pkl" finds "archive/data.pkl"); NULL:
 * none. */
const struct s2s_zip_member *s2s_zip_find(const struct s2s_zip *zip, const char *name);
/* Reads len bytes from pos of the archive (not of a member). TRUNCATED, IO. */
int s2s_zip_read(const struct s2s_zip *zip, void *out, int64_t pos, size_t len,
                 struct s2s_error *err);
/* Reads a whole member and verifies its CRC-32 (unless that is 0: torch can be told not to compute
 * it). Gives: free *bytes, which has a terminating NUL. DIGEST; FORMAT: longer than max_len. */
int s2s_zip_read_member(const struct s2s_zip *zip, const struct s2s_zip_member *member,
                        int64_t max_len, char **bytes, struct s2s_error *err);
/* Verifies a member's CRC-32, unless that is 0. piece: the caller's buffer. DIGEST, IO. */
int s2s_zip_check_member(const struct s2s_zip *zip, const struct s2s_zip_member *member,
                         void *piece, size_t piece_len, struct s2s_error *err);

/* ---- writing ---- */

/* Consumes the archive's bytes in order. */
typedef int s2s_zip_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err);

struct s2s_zip_writer;

/* Members are written one after the other: begin, write..., end. Length and CRC-32 need not be
 * known in advance: both follow the data, and are in the central directory. Equal content gives
 * equal bytes. */
struct s2s_zip_writer *s2s_zip_writer_new(s2s_zip_sink *sink, void *ctx);
/* align: alignment of the member's data, relative to the archive (1: none). */
int s2s_zip_begin(struct s2s_zip_writer *zip, const char *name, int align, struct s2s_error *err);
/* To be called after begin, if the CRC-32 of the member's data is known already: it is neither
 * computed nor verified then. */
void s2s_zip_give_crc(struct s2s_zip_writer *zip, uint32_t crc);
int s2s_zip_write(struct s2s_zip_writer *zip, const void *bytes, size_t len, struct s2s_error *err);
int s2s_zip_end(struct s2s_zip_writer *zip, struct s2s_error *err);
/* Instead of write: counts len bytes of data. For a dry run that determines the archive's length;
 * what the sink gets is then not an archive. */
void s2s_zip_skip(struct s2s_zip_writer *zip, int64_t len);
/* Writes a whole member. */
int s2s_zip_add(struct s2s_zip_writer *zip, const char *name, int align, const void *bytes,
                size_t len, struct s2s_error *err);
/* Writes the central directory; *len_bytes is the archive's length. */
int s2s_zip_finish(struct s2s_zip_writer *zip, int64_t *len_bytes, struct s2s_error *err);
void s2s_zip_writer_free(struct s2s_zip_writer *zip);

#endif
