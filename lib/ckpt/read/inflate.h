/*
 * What inflates a compressed tar on its way to libarchive. gzip goes through zlib, which compares
 * the CRC-32 and length at its end; libarchive's own filter does not. A few kilobytes can be made
 * to be gigabytes of headers, which libarchive takes into memory before it says what is in them:
 * both are counted here.
 */
#ifndef CKPT_INFLATE_H
#define CKPT_INFLATE_H

#include <archive.h>
#include <stdbool.h>
#include <stdint.h>

struct ckpt_inflate;

/* Is it more than was ever compressed? Weights that were trained hardly get smaller; what gets a
 * hundred times as small is made to fill a disk. */
bool ckpt_inflates_too_much(int64_t packed_len, int64_t len_bytes);

/* Opens `in` (an archive_read_new with its formats chosen) on the compressed fd, which stays the
 * caller's and is read from its start. Gives: ckpt_inflate_close, after archive_read_free. NULL: no
 * memory, or archive_error_string(in) says why. */
struct ckpt_inflate *ckpt_inflate_open(struct archive *in, int fd, bool is_gzip,
                                       int64_t packed_len);
/* archive_read_next_header is called next, or was: a megabyte is enough for it. */
void ckpt_inflate_header(struct ckpt_inflate *inflate, bool begins);
/* Reads what is behind the archive's last member, where the checksum is. NULL: it is right; else
 * what is wrong, lent until ckpt_inflate_close. More than 64 MiB there is not looked at. */
const char *ckpt_inflate_finish(struct ckpt_inflate *inflate);
void ckpt_inflate_close(struct ckpt_inflate *inflate); /* NULL is a no-op */

#endif
