#pragma once
#include <archive.h>

/*
 * What libarchive reads is inflated by zlib, which compares a gzip's CRC-32 and length:
 * libarchive's own filter does not.
 */
struct ckpt_gzip;

/* Opens `in` on the gzip of `fd` (an archive_read_new() with its formats chosen; fd stays the
 * caller's, read from its start). Gives: ckpt_gzip_close(), after archive_read_free(). NULL: no
 * memory, or archive_error_string(in) says why. */
struct ckpt_gzip *ckpt_gzip_open(struct archive *in, int fd);
/* Reads what is behind the archive's last member, where the checksum is. NULL: it is right; else
 * what is wrong (until ckpt_gzip_close()). More than 64 MiB there is not looked at. */
const char *ckpt_gzip_finish(struct ckpt_gzip *gzip);
void ckpt_gzip_close(struct ckpt_gzip *gzip); /* NULL is allowed */
