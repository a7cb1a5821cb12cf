/* SHA-256 by OpenSSL's libcrypto. */
#include "lib/io/sha256.h"

/* The EVP interface that replaces these functions allocates memory, reads configuration files, and
 * aborts when out of memory. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include "lib/base/base.h"

struct s2s_sha256 {
    SHA256_CTX state;
};

struct s2s_sha256 *s2s_sha256_new(void)
{
    struct s2s_sha256 *sha = s2s_xmalloc(sizeof *sha);
    SHA256_Init(&sha->state);
    return sha;
}

void s2s_sha256_update(struct s2s_sha256 *sha, const void *bytes, size_t len)
{
    SHA256_Update(&sha->state, bytes, len);
}

void s2s_sha256_hex(struct s2s_sha256 *sha, char hex[65])
{
    unsigned char sum[SHA256_DIGEST_LENGTH];
    SHA256_Final(sum, &sha->state);
    SHA256_Init(&sha->state);
    for (size_t i = 0; i < sizeof sum; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
}

void s2s_sha256_free(struct s2s_sha256 *sha)
{
    free(sha);
}
