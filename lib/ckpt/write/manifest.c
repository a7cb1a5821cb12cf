/* Writes s2s-manifest.json while files are written, and compares files with it. */
#include "lib/ckpt/write/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/base/utf8.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/write/share.h"
#include "lib/io/digest.h"
#include "lib/io/outfile.h"
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

/* Gives: free. */
static char *manifest_text(json_t *files)
{
    json_t *root = json_pack("{s:s, s:O}", "algorithm", "xxh3-128", "files", files);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_SORT_KEYS);
    json_decref(root);
    return text;
}

int ckpt_manifest_write(const char *dir, json_t *files, struct s2s_error *err)
{
    char *text = manifest_text(files);
    int rc = ckpt_file_put(dir, CKPT_MANIFEST, text, strlen(text), err);
    free(text);
    return rc;
}

int ckpt_manifest_check(const char *dir, json_t *files, struct s2s_error *err)
{
    const char *name;
    json_t *entry;
    int rc = 0;
    json_object_foreach(files, name, entry)
    {
        const json_int_t len = json_integer_value(json_object_get(entry, "bytes"));
        char *path = s2s_xasprintf("%s/%s", dir, name);
        struct stat st;
        if (rc == 0 && lstat(path, &st) < 0)
            rc = s2s_error_errno(err, S2S_E_IO, "%s: was written, and is lost", path);
        else if (rc == 0 && (!S_ISREG(st.st_mode) || st.st_size != len))
            rc = s2s_error_set(err, S2S_E_IO, "%s: is not what was written", path);
        free(path);
    }
    return rc;
}

/* ---- the manifest of a single file ---- */

/* Its path; NULL: stdout, a pipe or a device has none. Gives: free. */
static char *manifest_beside(const char *path)
{
    struct stat st;
    if (strcmp(path, "-") == 0 || (stat(path, &st) == 0 && !S_ISREG(st.st_mode)))
        return NULL;
    char *whole = realpath(path, NULL); /* the target of a link is what is read and written */
    char *beside = s2s_xasprintf("%s." CKPT_MANIFEST, whole ? whole : path);
    free(whole);
    return beside;
}

int ckpt_manifest_open(struct s2s_outfile **manifest, const char *path, struct s2s_error *err)
{
    struct stat st;
    char *beside = manifest_beside(path);
    int rc = 0;
    *manifest = NULL;
    const bool there = beside && lstat(beside, &st) == 0;
    if (beside && !there && errno == ENAMETOOLONG)
        s2s_warn("ckpt", "%s: no manifest beside it: its name would be too long", path);
    else if (there && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) /* not the user's choice */
        rc = s2s_error_set(err, S2S_E_ARG, "%s: is %s, where the manifest of %s would be", beside,
                           S_ISLNK(st.st_mode) ? "a link" : "not a plain file", path);
    else if (beside)
        rc = s2s_outfile_open(manifest, beside, err);
    free(beside);
    return rc;
}

/* Locks the folder of path, so that two processes that write the same file cannot leave the file of
 * one beside the manifest of the other. Waits a few seconds only, as the lock may belong to another
 * program, such as flock(1) around this one. Closing the result unlocks. -1: no such folder; on
 * file systems without locks nothing is locked. */
static int lock_folder_of(const char *path)
{
    const double patience_s = 5, begin_s = s2s_now_s();
    const struct timespec moment = {.tv_nsec = 2000000};
    char *copy = s2s_xstrdup(path);
    const int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(copy);
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK &&
           s2s_now_s() - begin_s < patience_s)
        (void)nanosleep(&moment, NULL);
    return fd;
}

/* Commits a file, then its manifest. Takes both. */
static int commit_both(struct s2s_outfile *out, struct s2s_outfile *manifest, const char *path,
                       const char *digest, struct s2s_error *err)
{
    const char *slash = strrchr(path, '/');
    const int64_t len = s2s_outfile_offset(out);
    int rc = s2s_outfile_commit(out, err);
    if (rc < 0 || !manifest) {
        s2s_outfile_abort(manifest);
        return rc;
    }
    json_t *files = json_object();
    char *name = s2s_utf8_mend(slash ? slash + 1 : path); /* informative: no reader compares it */
    ckpt_manifest_add(files, name, len, digest);
    free(name);
    char *text = manifest_text(files);
    json_decref(files);
    rc = s2s_outfile_write(manifest, text, strlen(text), err);
    free(text);
    if (rc == 0)
        rc = s2s_outfile_commit(manifest, err);
    else
        s2s_outfile_abort(manifest);
    return rc < 0 ? s2s_error_hint(err, rc, "%s is there, whole", path) : 0;
}

int ckpt_manifest_commit(struct s2s_outfile *out, struct s2s_outfile *manifest, const char *path,
                         const char *digest, struct s2s_error *err)
{
    char *before = manifest_beside(path);
    const int lock = before ? lock_folder_of(before) : -1;
    if (before) /* there must never be a manifest of other bytes */
        unlink(before);
    free(before);
    int rc = commit_both(out, manifest, path, digest, err);
    if (lock >= 0)
        close(lock);
    return rc;
}

/* What to verify against a manifest. */
struct comparison {
    int dir_fd;
    bool links; /* follow links, as the format does: those of the Hugging Face hub's cache */
    const struct s2s_ckpt *ckpt;      /* NULL, or all its files must be listed */
    const struct s2s_ckpt_write *how; /* NULL, or for progress, stop and ranks */
    const char *alone; /* NULL, or the single file, whatever name the manifest has for it */
    bool names_only;   /* do not compare digests */
    const struct s2s_ckpt *read_by; /* NULL, or only files that it reads are compared, */
    const char *read_in;            /* in this folder of it: "", "llm/" */
    bool sha256;
    size_t n; /* number of files verified by this rank */
};

static void hash(struct s2s_sha256 *sha, struct s2s_digest *xxh3, const char *piece, size_t len)
{
    if (sha)
        s2s_sha256_update(sha, piece, len);
    else
        s2s_digest_update(xxh3, piece, len);
}

/* XXH3-128 or SHA-256 of a file, in hex. */
static int digest_file(const struct comparison *c, int fd, const char *name, char hex[65],
                       struct s2s_error *err)
{
    struct s2s_sha256 *sha = c->sha256 ? s2s_sha256_new() : NULL;
    struct s2s_digest *xxh3 = c->sha256 ? NULL : s2s_digest_new(128);
    char *piece = s2s_xmalloc(PIECE);
    ssize_t n;
    int rc = 0;
    while (rc == 0 && ((n = read(fd, piece, PIECE)) > 0 || (n < 0 && errno == EINTR))) {
        if (c->how && c->how->stop && *c->how->stop)
            rc = s2s_error_set(err, S2S_E_INTERRUPTED, "interrupted");
        if (n > 0)
            hash(sha, xxh3, piece, (size_t)n);
        if (n > 0 && c->how && c->how->progress)
            c->how->progress(c->how->ctx, n);
    }
    if (rc == 0 && n < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s", name);
    if (sha)
        s2s_sha256_hex(sha, hex);
    else
        s2s_digest_hex(xxh3, hex);
    free(piece);
    s2s_sha256_free(sha);
    s2s_digest_free(xxh3);
    return rc;
}

static int open_named(const struct comparison *c, const char *name, struct s2s_error *err)
{
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (c->links ? 0 : O_NOFOLLOW);
    char to[PATH_MAX];
    const int fd = openat(c->dir_fd, c->links ? name : ckpt_in_hub(c->dir_fd, name, to), flags);
    if (fd >= 0)
        return fd;
    if (errno == ENOENT)
        return s2s_error_set(err, S2S_E_NOTFOUND, "%s is in the manifest and missing", name);
    if (errno == ELOOP && !c->links)
        return s2s_error_set(err, S2S_E_FORMAT, "%s is in the manifest and a link", name);
    return s2s_error_errno(err, S2S_E_IO, "%s", name);
}

static int compare(const struct comparison *c, const char *name, const json_t *entry,
                   struct s2s_error *err)
{
    const char *want = json_is_string(entry) ? json_string_value(entry)
                                             : json_string_value(json_object_get(entry, "digest"));
    const json_t *bytes = json_object_get(entry, "bytes");
    struct stat st;
    char hex[65];
    if (!want || (!c->alone && !ckpt_name_is_plain(name, strlen(name))))
        return s2s_error_set(err, S2S_E_FORMAT, "manifest: bad entry for \"%.200s\"", name);
    int fd = open_named(c, name, err);
    if (fd < 0)
        return fd;
    int rc = 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s is in the manifest and not a plain file", name);
    else if (bytes && st.st_size != json_integer_value(bytes))
        rc = s2s_error_set(err, S2S_E_TRUNCATED, "%s has %lld bytes, the manifest says %lld", name,
                           (long long)st.st_size, (long long)json_integer_value(bytes));
    if (rc == 0)
        rc = digest_file(c, fd, name, hex, err);
    if (rc == 0 && strcasecmp(hex, want) != 0)
        rc = s2s_error_set(err, S2S_E_DIGEST, "%s: digest %s, the manifest says %s: it is damaged",
                           name, hex, want);
    close(fd);
    return rc;
}

/* Is it to be compared? common.pt is an archive whose checksums are compared when it is opened. */
static bool is_read(const struct comparison *c, const char *name)
{
    if (!c->read_in)
        return true;
    char *path = s2s_xasprintf("%s%s", c->read_in, name);
    const bool found =
        json_object_get(c->read_by->file_idx, path) && strcmp(name, "common.pt") != 0;
    free(path);
    return found;
}

/* Verifies each file on one of the ranks. */
static int compare_all(struct comparison *c, const json_t *files, struct s2s_error *err)
{
    const char *name;
    const json_t *entry;
    size_t i = 0;
    int rc = 0;
    const size_t rank = c->how ? (size_t)ckpt_share_rank(c->how) : 0;
    const size_t size = c->how ? (size_t)ckpt_share_size(c->how) : 1;
    json_object_foreach((json_t *)files, name, entry)
    {
        if (rc < 0)
            break;
        if (i++ % size != rank || !is_read(c, name))
            continue;
        rc = compare(c, name, entry, err);
        c->n++;
    }
    return rc;
}

/* Checks that all files that are read are listed: one that is not was added later. */
static int find_all(const struct s2s_ckpt *ckpt, const char *manifest, const json_t *files,
                    struct s2s_error *err)
{
    for (size_t i = 0; ckpt && i < ckpt->n_files; i++)
        if (!strchr(ckpt->files[i].name, '/') && !json_object_get(files, ckpt->files[i].name))
            return s2s_error_set(err, S2S_E_FORMAT, "%s is read, and %s does not name it",
                                 ckpt->files[i].name, manifest);
    return 0;
}

static int verify_one(struct comparison *c, const char *manifest, const char *algorithm,
                      struct s2s_error *err)
{
    char *text;
    size_t len;
    json_error_t at;
    if (!s2s_is_there(c->dir_fd, manifest))
        return 0;
    int rc = ckpt_slurp(c->dir_fd, manifest, MAX_MANIFEST, &text, &len, err);
    if (rc < 0)
        return rc;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &at);
    free(text);
    const char *said = json_string_value(json_object_get(root, "algorithm"));
    const json_t *files = json_object_get(root, "files");
    c->sha256 = strcmp(algorithm, "sha256") == 0;
    if (!root || !said || !json_is_object(files))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: not a manifest", manifest);
    else if (strcmp(said, algorithm) != 0)
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: algorithm %.40s", manifest, said);
    else if (c->alone && json_object_size(files) != 1)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: not a manifest of one file", manifest);
    if (rc == 0 && c->alone && !c->names_only)
        rc = compare(c, c->alone, json_object_iter_value(json_object_iter((json_t *)files)), err);
    else if (rc == 0 && !c->names_only)
        rc = compare_all(c, files, err);
    if (rc == 0)
        rc = find_all(c->ckpt, manifest, files, err);
    c->n += c->alone != NULL;
    json_decref(root);
    return rc;
}

enum { OURS = 1, INTEGRITY = 2 }; /* s2s-manifest.json, integrity.json */

/* Verifies a folder against those of these that it has. */
static int verify_folder(const char *dir, struct comparison *c, int against, struct s2s_error *err)
{
    c->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->dir_fd < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "open");
    int rc = against & OURS ? verify_one(c, CKPT_MANIFEST, "xxh3-128", err) : 0;
    if (rc == 0 && against & INTEGRITY)
        rc = verify_one(c, "integrity.json", "sha256", err);
    close(c->dir_fd);
    return rc;
}

static int verify_alone(const char *path, const struct s2s_ckpt_write *how, size_t *n_files,
                        struct s2s_error *err)
{
    char *manifest = manifest_beside(path), *slash = manifest ? strrchr(manifest, '/') : NULL;
    struct comparison c = {.dir_fd = -1, .how = how};
    int rc = 0;
    if (slash) {
        char *name = s2s_xstrndup(slash + 1, strlen(slash + 1) - strlen("." CKPT_MANIFEST));
        *slash = 0;
        c.alone = name;
        c.dir_fd = open(*manifest ? manifest : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        rc = c.dir_fd < 0 ? s2s_error_errno(err, S2S_E_OPEN, "%s", manifest)
                          : verify_one(&c, slash + 1, "xxh3-128", err);
        close(c.dir_fd);
        if (rc == S2S_E_DIGEST || rc == S2S_E_TRUNCATED)
            s2s_error_hint(err, rc, "or another program wrote it since: then remove %s", slash + 1);
        free(name);
    }
    free(manifest);
    *n_files = c.n;
    return rc;
}

/* Verifies a folder and the parts of a composite model, which have manifests of their own. c->ckpt
 * is about the top folder only. */
static int verify_folders(const struct s2s_ckpt *ckpt, struct comparison *c, int against,
                          struct s2s_error *err)
{
    static const char *const folders[] = {"", "encoder/", "llm/", "vision/"};
    int rc = 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders && rc == 0; i++) {
        char *path = s2s_xasprintf("%s/%s", ckpt->path, folders[i]);
        path[strlen(path) - 1] = 0;
        c->read_in = c->read_by ? folders[i] : NULL;
        if (i == 0 || s2s_is_there(AT_FDCWD, path))
            rc = verify_folder(path, c, against, err);
        if (rc < 0)
            s2s_error_add(err, rc, "%s", path);
        c->ckpt = NULL;
        free(path);
    }
    return rc;
}

int s2s_ckpt_verify_manifest(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                             size_t *n_files, struct s2s_error *err)
{
    if (ckpt->dir_fd < 0)
        return verify_alone(ckpt->path, how, n_files, err);
    struct comparison c = {.links = !ckpt->no_links, .how = how};
    int rc = verify_folders(ckpt, &c, OURS | INTEGRITY, err);
    *n_files = c.n;
    return rc;
}

int s2s_ckpt_verify_read(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                         struct s2s_error *err)
{
    size_t n;
    struct comparison c = {.links = !ckpt->no_links, .how = how, .read_by = ckpt};
    int rc = ckpt->dir_fd < 0 ? verify_alone(ckpt->path, how, &n, err)
                              : verify_folders(ckpt, &c, OURS, err);
    if (ckpt->dir_fd >= 0 && (rc == S2S_E_DIGEST || rc == S2S_E_TRUNCATED))
        s2s_error_hint(err, rc, "or another program wrote it since: then remove " CKPT_MANIFEST);
    return rc;
}

int s2s_ckpt_verify_named(const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct comparison c = {.ckpt = ckpt, .names_only = true};
    return ckpt->dir_fd < 0 ? 0 : verify_folders(ckpt, &c, OURS | INTEGRITY, err);
}

int s2s_ckpt_verify_integrity(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                              struct s2s_error *err)
{
    struct comparison c = {.links = !ckpt->no_links, .ckpt = ckpt, .how = how};
    if (ckpt->dir_fd < 0)
        return 0;
    int rc = verify_folder(ckpt->path, &c, INTEGRITY, err);
    if (rc == S2S_E_UNSUPPORTED) { /* of a later release; the archives' checksums remain */
        s2s_warn("ckpt", "%s: %s: nothing is compared with it", ckpt->path, err->text);
        s2s_error_clear(err);
        return 0;
    }
    if (rc == 0 || rc == S2S_E_INTERRUPTED)
        return rc;
    s2s_error_add(err, rc, "%s", ckpt->path);
    if (rc == S2S_E_OPEN || rc == S2S_E_IO)
        return rc;
    return s2s_error_hint(err, rc, "without integrity.json no file is compared with it");
}
