/* Digests of files and of bytes that pass by, by XXH3. */

/* the shared library is built for SSE2; inlined, the code uses what -march allows */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/io/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/base/base.h"

struct s2s_digest {
    XXH3_state_t state; /* first, as it needs an alignment of 64 bytes */
    int bits;
};

uint64_t s2s_xxh3_64(const void *bytes, size_t len)
{
    return XXH3_64bits(bytes, len);
}

void s2s_u64_hex(char hex[17], uint64_t value)
{
    snprintf(hex, 17, "%016llx", (unsigned long long)value);
}

static void u128_hex(char hex[33], XXH128_hash_t value)
{
    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)value.high64,
             (unsigned long long)value.low64);
}

void s2s_xxh3_128_hex(char hex[33], const void *bytes, size_t len)
{
    u128_hex(hex, XXH3_128bits(bytes, len));
}

struct s2s_digest *s2s_digest_new(int bits)
{
    struct s2s_digest *digest = s2s_xalloc_aligned(sizeof *digest);
    if (bits != 64 && bits != 128)
        S2S_BUG("a digest of %d bits", bits);
    digest->bits = bits;
    XXH3_INITSTATE(&digest->state);
    s2s_digest_reset(digest);
    return digest;
}

void s2s_digest_reset(struct s2s_digest *digest)
{
    if (digest->bits == 64)
        XXH3_64bits_reset(&digest->state);
    else
        XXH3_128bits_reset(&digest->state);
}

void s2s_digest_update(struct s2s_digest *digest, const void *bytes, size_t len)
{
    if (digest->bits == 64)
        XXH3_64bits_update(&digest->state, bytes, len);
    else
        XXH3_128bits_update(&digest->state, bytes, len);
}

uint64_t s2s_digest_value(const struct s2s_digest *digest)
{
    return XXH3_64bits_digest(&digest->state);
}

void s2s_digest_hex(const struct s2s_digest *digest, char hex[33])
{
    if (digest->bits == 64)
        s2s_u64_hex(hex, XXH3_64bits_digest(&digest->state));
    else
        u128_hex(hex, XXH3_128bits_digest(&digest->state));
}

void s2s_digest_free(struct s2s_digest *digest)
{
    free(digest);
}

int s2s_digest_file(char hex[33], const char *path, struct s2s_error *err)
{
    enum { BLOCK = 256 * 1024 };
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", path);
    struct s2s_digest *digest = s2s_digest_new(128);
    char *block = s2s_xalloc_aligned(BLOCK);
    for (;;) {
        ssize_t n = read(fd, block, BLOCK);
        if (n == 0)
            break;
        if (n > 0)
            s2s_digest_update(digest, block, (size_t)n);
        else if (errno != EINTR) {
            rc = s2s_error_errno(err, S2S_E_IO, "%s: cannot read", path);
            break;
        }
    }
    s2s_digest_hex(digest, hex);
    s2s_digest_free(digest);
    free(block);
    close(fd);
    return rc;
}
