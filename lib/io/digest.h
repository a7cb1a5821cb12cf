/*
 * XXH3, the digest of the stream format: 64 bits for a record; 128 bits (32 hex digits, high half
 * first) for headers, ends and input files. Compiled for the machine's CPU, it is as fast as memory
 * can be read.
 */
#ifndef S2S_IO_DIGEST_H
#define S2S_IO_DIGEST_H

#include <stddef.h>
#include <stdint.h>

struct s2s_error;
struct s2s_digest;

uint64_t s2s_xxh3_64(const void *bytes, size_t len);
void s2s_xxh3_128_hex(char hex[33], const void *bytes, size_t len);
void s2s_u64_hex(char hex[17], uint64_t value);

/* Incremental digests. bits: 64 or 128. */
struct s2s_digest *s2s_digest_new(int bits);
void s2s_digest_reset(struct s2s_digest *digest);
void s2s_digest_update(struct s2s_digest *digest, const void *bytes, size_t len);
uint64_t s2s_digest_value(const struct s2s_digest *digest);         /* of a 64-bit digest */
void s2s_digest_hex(const struct s2s_digest *digest, char hex[33]); /* 16 or 32 digits and NUL */
void s2s_digest_free(struct s2s_digest *digest);

/* XXH3-128 of a file. OPEN, IO. */
int s2s_digest_file(char hex[33], const char *path, struct s2s_error *err);

#endif
