#include "lib/io/sha256.h"

#include <openssl/evp.h>

#include "lib/base/base.h"

struct s2s_sha256 {
    EVP_MD_CTX *md;
};

struct s2s_sha256 *s2s_sha256_new(struct s2s_error *err)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    if (!md || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(md);
        (void)s2s_error_set(err, S2S_E_NOMEM, "libcrypto gives no SHA-256");
        return NULL;
    }
    struct s2s_sha256 *sha = s2s_xmalloc(sizeof *sha);
    sha->md = md;
    return sha;
}

void s2s_sha256_update(struct s2s_sha256 *sha, const void *bytes, size_t len)
{
    if (EVP_DigestUpdate(sha->md, bytes, len) != 1)
        S2S_BUG("SHA-256 takes no bytes");
}

void s2s_sha256_hex(struct s2s_sha256 *sha, char hex[65])
{
    unsigned char sum[32];
    if (EVP_DigestFinal_ex(sha->md, sum, NULL) != 1 ||
        EVP_DigestInit_ex(sha->md, EVP_sha256(), NULL) != 1)
        S2S_BUG("SHA-256 does not end");
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
}

void s2s_sha256_free(struct s2s_sha256 *sha)
{
    if (sha)
        EVP_MD_CTX_free(sha->md);
    free(sha);
}
