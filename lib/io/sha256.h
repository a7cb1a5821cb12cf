/* Incremental SHA-256, for digests made by or for other programs; our own are XXH3 (digest.h). */
#ifndef S2S_IO_SHA256_H
#define S2S_IO_SHA256_H

#include <stddef.h>

struct s2s_sha256;

struct s2s_sha256 *s2s_sha256_new(void);
void s2s_sha256_update(struct s2s_sha256 *sha, const void *bytes, size_t len);
/* The digest of the bytes since the last call, as 64 hex digits and NUL. */
void s2s_sha256_hex(struct s2s_sha256 *sha, char hex[65]);
void s2s_sha256_free(struct s2s_sha256 *sha); /* NULL is a no-op */

#endif
