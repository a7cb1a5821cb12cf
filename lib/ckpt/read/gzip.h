/*
 * gzip in front of libarchive: zlib inflates it, which compares the CRC-32 and length at its end;
 * libarchive's own filter does not.
 */
#ifndef CKPT_GZIP_H
#define CKPT_GZIP_H

#include <archive.h>

struct ckpt_gzip;

/* Opens `in` (an archive_read_new with its formats chosen) on the gzip in fd, which stays the
 * caller's and is read from its start. Gives: ckpt_gzip_close, after archive_read_free. NULL: no
 * memory, or archive_error_string(in) says why. */
struct ckpt_gzip *ckpt_gzip_open(struct archive *in, int fd);
/* Reads what is behind the archive's last member, where the checksum is. NULL: it is right; else
 * what is wrong, lent until ckpt_gzip_close. More than 64 MiB there is not looked at. */
const char *ckpt_gzip_finish(struct ckpt_gzip *gzip);
void ckpt_gzip_close(struct ckpt_gzip *gzip); /* NULL is a no-op */

#endif
