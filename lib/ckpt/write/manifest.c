#include "lib/ckpt/write/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/model.h"
#include "lib/io/digest.h"
#include "lib/io/sha256.h"

enum { PIECE = 1 << 20, MAX_MANIFEST = 64 << 20 };

void ckpt_manifest_add(json_t *files, const char *name, int64_t len_bytes, const char *digest)
{
    json_object_set_new(files, name,
                        json_pack("{s:I, s:s}", "bytes", (json_int_t)len_bytes, "digest", digest));
}

int ckpt_file_make(const char *dir, const char *name, ckpt_file_fill *fill, const void *ctx,
                   json_t *manifest, struct s2s_error *err)
{
    struct ckpt_file file;
    char digest[33], *path = s2s_xasprintf("%s/%s", dir, name);
    int rc = ckpt_file_create(&file, path, err);
    free(path);
    if (rc < 0)
        return rc;
    rc = fill(&file, ctx, err);
    const int64_t len = file.pos;
    if (rc < 0)
        ckpt_file_discard(&file);
    else
        rc = ckpt_file_close(&file, digest, err);
    if (rc == 0 && manifest)
        ckpt_manifest_add(manifest, name, len, digest);
    return rc;
}

struct bytes {
    const void *data;
    size_t len;
};

static int fill_bytes(struct ckpt_file *file, const void *ctx, struct s2s_error *err)
{
    const struct bytes *bytes = ctx;
    return ckpt_file_write(file, bytes->data, bytes->len, err);
}

int ckpt_file_put_noted(const char *dir, const char *name, const void *bytes, size_t len,
                        json_t *manifest, struct s2s_error *err)
{
    return ckpt_file_make(dir, name, fill_bytes, &(struct bytes){bytes, len}, manifest, err);
}

int ckpt_file_put(const char *dir, const char *name, const void *bytes, size_t len,
                  struct s2s_error *err)
{
    return ckpt_file_put_noted(dir, name, bytes, len, NULL, err);
}

int ckpt_manifest_write(const char *dir, json_t *files, struct s2s_error *err)
{
    json_t *root = json_pack("{s:s, s:O}", "algorithm", "xxh3-128", "files", files);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_SORT_KEYS);
    int rc = ckpt_file_put(dir, CKPT_MANIFEST, text, strlen(text), err);
    free(text);
    json_decref(root);
    return rc;
}

/* XXH3-128 or SHA-256 of a file, as hex */
static int digest_file(int fd, const char *name, bool sha256, char hex[65], struct s2s_error *err)
{
    struct s2s_sha256 *sha = sha256 ? s2s_sha256_new(err) : NULL;
    if (sha256 && !sha)
        return S2S_E_NOMEM;
    struct s2s_digest *xxh3 = sha256 ? NULL : s2s_digest_new(128);
    char *piece = s2s_xmalloc(PIECE);
    ssize_t n;
    while ((n = read(fd, piece, PIECE)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0 && sha)
            s2s_sha256_update(sha, piece, (size_t)n);
        else if (n > 0)
            s2s_digest_update(xxh3, piece, (size_t)n);
    int rc = n < 0 ? s2s_error_errno(err, S2S_E_IO, "%s", name) : 0;
    if (sha)
        s2s_sha256_hex(sha, hex);
    else
        s2s_digest_hex(xxh3, hex);
    free(piece);
    s2s_sha256_free(sha);
    s2s_digest_free(xxh3);
    return rc;
}

static int compare(int dir_fd, const char *name, const json_t *entry, bool sha256,
                   struct s2s_error *err)
{
    const char *want = json_is_string(entry) ? json_string_value(entry)
                                             : json_string_value(json_object_get(entry, "digest"));
    const json_t *bytes = json_object_get(entry, "bytes");
    struct stat st;
    char hex[65];
    if (!want || !ckpt_name_is_plain(name, strlen(name)))
        return s2s_error_set(err, S2S_E_FORMAT, "manifest: bad entry for \"%.200s\"", name);
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return s2s_error_set(err, S2S_E_NOTFOUND, "%s is in the manifest and missing", name);
    int rc = 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s is in the manifest and no plain file", name);
    else if (bytes && st.st_size != json_integer_value(bytes))
        rc = s2s_error_set(err, S2S_E_TRUNCATED, "%s has %lld bytes, the manifest says %lld", name,
                           (long long)st.st_size, (long long)json_integer_value(bytes));
    if (rc == 0)
        rc = digest_file(fd, name, sha256, hex, err);
    if (rc == 0 && strcasecmp(hex, want) != 0)
        rc = s2s_error_set(err, S2S_E_DIGEST, "%s: digest %s, the manifest says %s: it is damaged",
                           name, hex, want);
    close(fd);
    return rc;
}

static int verify_one(int dir_fd, const char *manifest, const char *algorithm, size_t *n,
                      struct s2s_error *err)
{
    char *text;
    size_t len;
    json_error_t at;
    const char *name;
    json_t *entry;
    if (faccessat(dir_fd, manifest, F_OK, 0) < 0)
        return 0;
    int rc = ckpt_slurp(dir_fd, manifest, MAX_MANIFEST, &text, &len, err);
    if (rc < 0)
        return rc;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &at);
    free(text);
    const char *said = json_string_value(json_object_get(root, "algorithm"));
    json_t *files = json_object_get(root, "files");
    if (!root || !said || !json_is_object(files))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: not a manifest", manifest);
    else if (strcmp(said, algorithm) != 0)
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: algorithm %.40s", manifest, said);
    json_object_foreach(files, name, entry)
    {
        if (rc < 0)
            break;
        rc = compare(dir_fd, name, entry, strcmp(algorithm, "sha256") == 0, err);
        ++*n;
    }
    json_decref(root);
    return rc;
}

int ckpt_manifest_verify(const char *dir, size_t *n, struct s2s_error *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *n = 0;
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "%s", dir);
    int rc = verify_one(fd, CKPT_MANIFEST, "xxh3-128", n, err);
    if (rc == 0)
        rc = verify_one(fd, "integrity.json", "sha256", n, err);
    close(fd);
    return rc;
}

int s2s_ckpt_verify_manifest(const struct s2s_ckpt *ckpt, size_t *n_files, struct s2s_error *err)
{
    /* parts of a composite have manifests of their own */
    static const char *const folders[] = {"", "/encoder", "/llm"};
    int rc = 0;
    *n_files = 0;
    for (int i = 0; i < 3 && rc == 0 && ckpt->dir_fd >= 0; i++) {
        char *path = s2s_xasprintf("%s%s", ckpt->path, folders[i]);
        size_t n = 0;
        if (i == 0 || access(path, F_OK) == 0)
            rc = ckpt_manifest_verify(path, &n, err);
        if (rc < 0)
            s2s_error_add(err, rc, "%s", path);
        *n_files += n;
        free(path);
    }
    return rc;
}
