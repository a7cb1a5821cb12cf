/*
 * Zip archives of stored (uncompressed) members, as torch.save writes them. An archive may be a
 * whole file, a span of a file, or bytes in memory. The reader walks the central directory and
 * refuses whatever could make two readers see two different archives; the writer streams.
 * Format: PKWARE APPNOTE 6.3.3, with the zip64 records.
 */
#ifndef S2S_IO_ZIP_H
#define S2S_IO_ZIP_H

#include <stddef.h>
#include <stdint.h>

struct s2s_error;

/* ---- reading ---- */

/* Where an archive lies: len_bytes bytes from begin of a file, or of memory when bytes is given. */
struct s2s_zip_source {
    int fd;
    const void *bytes;
    int64_t begin, len_bytes;
    uint32_t max_members; /* that it may have; 0: 2^20, as many as are ever read */
};

struct s2s_zip_member {
    const char *name; /* zero-ended; holds no zero itself */
    int64_t pos;      /* of the data, from the begin of the archive */
    int64_t len_bytes;
    uint32_t crc;
    uint32_t header_len; /* bytes of the local header, which ends where the data begins */
};

struct s2s_zip {
    struct s2s_zip_source source;
    struct s2s_zip_member *members; /* in the order of their positions */
    size_t n_members;
    void *internal;
};

/*
 * Reads the directory. source's fd or bytes are kept. FORMAT or TRUNCATED, with the reason and the
 * offset: no end record, compressed or encrypted members, spans outside the archive or over each
 * other, a name twice (the first folder apart), more members than max_members. Nothing to release
 * on failure.
 */
int s2s_zip_open(struct s2s_zip *zip, const struct s2s_zip_source *source, struct s2s_error *err);
void s2s_zip_release(struct s2s_zip *zip);
/* By the name behind the first folder ("data.pkl" finds "archive/data.pkl"), or NULL. */
const struct s2s_zip_member *s2s_zip_find(const struct s2s_zip *zip, const char *name);
/* len bytes from pos of the archive (not of a member). TRUNCATED, IO. */
int s2s_zip_read(const struct s2s_zip *zip, void *out, int64_t pos, size_t len,
                 struct s2s_error *err);
/* The whole member, with its CRC-32 checked (a stored CRC of 0 is not: torch can be told not to
 * compute it). Gives: free *bytes; a zero byte follows. DIGEST; FORMAT above max_len. */
int s2s_zip_read_member(const struct s2s_zip *zip, const struct s2s_zip_member *member,
                        int64_t max_len, char **bytes, struct s2s_error *err);
/* Compares a member's CRC-32, by way of `piece`, memory of the caller's; one of 0 says nothing.
 * DIGEST, IO. */
int s2s_zip_check_member(const struct s2s_zip *zip, const struct s2s_zip_member *member,
                         void *piece, size_t piece_len, struct s2s_error *err);

/* ---- writing ---- */

/* Takes the archive's bytes in order. */
typedef int s2s_zip_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err);

struct s2s_zip_writer;

/* Members are written one after the other: begin, write..., end; nobody needs to know a length or a
 * checksum in advance (both follow the data, and stand in the directory). Equal content gives equal
 * bytes. */
struct s2s_zip_writer *s2s_zip_writer_new(s2s_zip_sink *sink, void *ctx);
/* align: the member's data starts at a multiple of it from the archive's begin (1: anywhere). */
int s2s_zip_begin(struct s2s_zip_writer *zip, const char *name, int align, struct s2s_error *err);
/* After begin: the CRC-32 that the member's data will have, for who knows it from elsewhere. It is
 * not computed then, and not compared. */
void s2s_zip_give_crc(struct s2s_zip_writer *zip, uint32_t crc);
int s2s_zip_write(struct s2s_zip_writer *zip, const void *bytes, size_t len, struct s2s_error *err);
int s2s_zip_end(struct s2s_zip_writer *zip, struct s2s_error *err);
/* Instead of writing: len bytes of data are only counted. For a run that finds out how long an
 * archive will be (what the sink gets is then worth nothing). */
void s2s_zip_skip(struct s2s_zip_writer *zip, int64_t len);
/* A whole member at once. */
int s2s_zip_add(struct s2s_zip_writer *zip, const char *name, int align, const void *bytes,
                size_t len, struct s2s_error *err);
/* The central directory; *len_bytes is the archive's length. */
int s2s_zip_finish(struct s2s_zip_writer *zip, int64_t *len_bytes, struct s2s_error *err);
void s2s_zip_writer_free(struct s2s_zip_writer *zip);

#endif
