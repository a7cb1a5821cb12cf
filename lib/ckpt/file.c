#include "lib/ckpt/ckpt_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/io/digest.h"
#include "lib/io/durable.h"
#include "lib/io/pread.h"

enum { FILE_BUFFER = 256 << 10, WRITEBACK_BYTES = 16 << 20 };

int ckpt_file_create(struct ckpt_file *file, const char *path, struct s2s_error *err)
{
    *file = (struct ckpt_file){.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
    if (file->fd < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot create", path);
    file->path = s2s_xstrdup(path);
    file->digest = s2s_digest_new(128);
    return 0;
}

/* Asks for the disk's work early, so that the sync at the end finds little left. */
static void start_writeback(struct ckpt_file *file)
{
    if (file->written - file->started < WRITEBACK_BYTES)
        return;
    s2s_durable_begin(file->fd, file->started, file->written);
    file->started = file->written;
}

static int write_all(struct ckpt_file *file, const char *bytes, size_t len, struct s2s_error *err)
{
    file->written += (int64_t)len;
    while (len) {
        ssize_t n = write(file->fd, bytes, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return s2s_error_errno(err, S2S_E_IO, "%s: write of %zu bytes", file->path, len);
        bytes += n;
        len -= (size_t)n;
    }
    start_writeback(file);
    return 0;
}

static int flush(struct ckpt_file *file, struct s2s_error *err)
{
    int rc = write_all(file, file->buf.data, file->buf.len, err);
    s2s_buf_clear(&file->buf);
    return rc;
}

int ckpt_file_write(struct ckpt_file *file, const void *bytes, size_t len, struct s2s_error *err)
{
    int rc = 0;
    file->pos += (int64_t)len;
    if (!file->is_summed_apart)
        s2s_digest_update(file->digest, bytes, len);
    /* what goes past the buffer must find it empty, or it would overtake what came before */
    bool past = len > FILE_BUFFER / 2;
    if ((past || file->buf.len + len > FILE_BUFFER) && (rc = flush(file, err)) < 0)
        return rc;
    if (past)
        return write_all(file, bytes, len, err);
    s2s_buf_add(&file->buf, bytes, len);
    return 0;
}

int ckpt_file_close(struct ckpt_file *file, char digest[33], struct s2s_error *err)
{
    int rc = flush(file, err);
    if (rc == 0 && s2s_durable_sync(file->fd) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: sync", file->path);
    if (close(file->fd) < 0 && errno != EINTR && rc == 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: close", file->path);
    file->fd = -1;
    if (digest)
        s2s_digest_hex(file->digest, digest);
    ckpt_file_discard(file);
    return rc;
}

void ckpt_file_discard(struct ckpt_file *file)
{
    if (file->path && file->fd >= 0)
        close(file->fd);
    free(file->path);
    s2s_buf_release(&file->buf);
    s2s_digest_free(file->digest);
    *file = (struct ckpt_file){.fd = -1};
}

int ckpt_pread(int fd, void *out, size_t len, int64_t pos, const char *path, struct s2s_error *err)
{
    int rc = s2s_pread(fd, out, len, pos, err);
    return rc < 0 ? s2s_error_add(err, rc, "%s", path) : 0;
}

int ckpt_slurp(int dir_fd, const char *name, int64_t max_len, char **bytes, size_t *len,
               struct s2s_error *err)
{
    struct stat st;
    *bytes = NULL;
    /* not to wait for the other end of a pipe */
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return s2s_error_errno(
            err, dir_fd == AT_FDCWD || errno == EACCES || errno == EPERM ? S2S_E_OPEN : S2S_E_IO,
            "%s", name);
    int rc = 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: not a plain file", name);
    else if (st.st_size > max_len)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: has %lld bytes, at most %lld are expected", name,
                           (long long)st.st_size, (long long)max_len);
    else if (!(*bytes = s2s_try_calloc((size_t)st.st_size + 1, 1, name, err)))
        rc = S2S_E_NOMEM;
    else
        rc = ckpt_pread(fd, *bytes, (size_t)st.st_size, 0, name, err);
    close(fd);
    if (rc < 0) {
        free(*bytes);
        *bytes = NULL;
        return rc;
    }
    *len = (size_t)st.st_size;
    return 0;
}

int ckpt_sync_dir(const char *dir, struct s2s_error *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = 0;
    if (fd < 0 || s2s_durable_sync(fd) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: sync of the folder", dir);
    if (fd >= 0)
        close(fd);
    return rc;
}

DIR *ckpt_open_dir(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && !dir)
        close(fd);
    return dir;
}

struct dirent *s2s_ckpt_next_entry(DIR *dir, const char *path, int *rc, struct s2s_error *err)
{
    struct dirent *entry;
    do {
        errno = 0;
        entry = readdir(dir);
    } while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    if (!entry && errno)
        *rc = s2s_error_errno(err, S2S_E_IO, "%s: list folder", path);
    return entry;
}

static int remove_entries(int fd, const char *path, struct s2s_error *err)
{
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return s2s_error_errno(err, S2S_E_IO, "%s: list folder", path);
    }
    int rc = 0;
    struct dirent *entry;
    while (rc == 0 && (entry = s2s_ckpt_next_entry(dir, path, &rc, err))) {
        if (unlinkat(dirfd(dir), entry->d_name, 0) == 0)
            continue;
        char *below = s2s_xasprintf("%s/%s", path, entry->d_name);
        int sub =
            openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (sub >= 0)
            rc = remove_entries(sub, below, err);
        if (rc == 0 && unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR) < 0)
            rc = s2s_error_errno(err, S2S_E_IO, "%s: remove", below);
        free(below);
    }
    closedir(dir);
    return rc;
}

int s2s_ckpt_remove_tree(const char *path, struct s2s_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    int rc =
        fd < 0 ? s2s_error_errno(err, S2S_E_IO, "%s: open", path) : remove_entries(fd, path, err);
    if (rc == 0 && rmdir(path) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: remove", path);
    return rc;
}

int s2s_ckpt_rename_tree(const char *from, const char *to, struct s2s_error *err)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) < 0 &&
        (errno != EINVAL || rename(from, to) < 0))
        return s2s_error_errno(err, S2S_E_IO, "%s: rename to %s", from, to);
    return s2s_durable_sync_name(to, err);
}

int ckpt_by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void ckpt_free_list(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

bool ckpt_has_word(const char *words, const char *word)
{
    size_t len;
    for (const char *at = words; *at; at += len + (at[len] == ' ')) {
        len = strcspn(at, " ");
        if (len == strlen(word) && memcmp(at, word, len) == 0)
            return true;
    }
    return false;
}

bool ckpt_name_is_plain(const char *name, size_t len)
{
    if (len == 0 || len > 255 || (len == 1 && name[0] == '.') ||
        (len == 2 && name[0] == '.' && name[1] == '.'))
        return false;
    for (size_t i = 0; i < len; i++)
        if (name[i] == '/' || name[i] == '\\' || (unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return false;
    return true;
}

bool ckpt_name_layer(const char *name, size_t *prefix_len, int64_t *layer, const char **rest)
{
    const char *at = strstr(name, "layers.");
    while (at && at > name && at[-1] != '.')
        at = strstr(at + 1, "layers.");
    if (!at)
        return false;
    at += strlen("layers.");
    const size_t digits = strspn(at, "0123456789");
    const bool number = digits && at[digits] == '.';
    *prefix_len = (size_t)(at - name);
    *layer = number ? strtol(at, NULL, 10) : -1;
    *rest = number ? at + digits + 1 : at;
    return *layer < CKPT_MAX_LAYERS;
}

/* Where a link leads; false: it is none. */
static bool read_link(int fd, const char *name, char to[PATH_MAX])
{
    ssize_t len = readlinkat(fd, name, to, PATH_MAX - 1);
    to[len < 0 ? 0 : len] = 0;
    return len >= 0;
}

/* (../)*blobs/NAME */
static bool is_of_hub(const char *to)
{
    static const char blobs[] = "blobs/";
    const char *at = to;
    while (s2s_starts_with(at, "../"))
        at += 3;
    return at > to && s2s_starts_with(at, blobs) && !strchr(at + strlen(blobs), '/');
}

bool ckpt_is_strange_link(int fd, const char *name)
{
    char to[PATH_MAX];
    return read_link(fd, name, to) && strchr(to, '/') && !is_of_hub(to);
}

const char *ckpt_in_hub(int fd, const char *name, char to[PATH_MAX])
{
    return read_link(fd, name, to) && is_of_hub(to) ? to : name;
}
