/*
 * Decompression of a tar for libarchive. gzip goes through zlib, which verifies the CRC-32 and
 * length in the trailer; libarchive's own filter does not. A few kilobytes can expand to gigabytes
 * of tar headers (decompression bomb), which libarchive would hold in memory before returning an
 * entry: bytes are counted here to stop it.
 */
#ifndef CKPT_INFLATE_H
#define CKPT_INFLATE_H

#include <archive.h>
#include <stdbool.h>
#include <stdint.h>

struct ckpt_inflate;

/* Is this a decompression bomb? Trained weights hardly compress; data that shrinks a hundredfold
 * was made to fill a disk. */
bool ckpt_inflates_too_much(int64_t packed_len, int64_t len_bytes);

/* Opens `in` (an archive_read_new with its formats chosen) on the compressed fd, which stays the
 * caller's and is read from its start. Gives: ckpt_inflate_close, after archive_read_free. NULL:
 * out of memory, or archive_error_string(in) says why. */
struct ckpt_inflate *ckpt_inflate_open(struct archive *in, int fd, bool is_gzip,
                                       int64_t packed_len);
/* To be called before (begins) and after archive_read_next_header, which may consume at most a
 * megabyte. */
void ckpt_inflate_header(struct ckpt_inflate *inflate, bool begins);
/* Reads what follows the archive's last member, up to the checksum; at most 64 MiB. NULL: the
 * checksum is right; otherwise what is wrong, lent until ckpt_inflate_close. */
const char *ckpt_inflate_finish(struct ckpt_inflate *inflate);
void ckpt_inflate_close(struct ckpt_inflate *inflate); /* NULL is a no-op */

#endif
