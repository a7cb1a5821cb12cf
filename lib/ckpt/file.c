/* Creates files, writes and reads them whole, with errors that name them. */
#include "lib/ckpt/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/io/behind.h"
#include "lib/io/digest.h"
#include "lib/io/durable.h"
#include "lib/io/pread.h"

enum { WRITEBACK_BYTES = 16 << 20 };

/* Starts writeback early, so that little is left for the sync at the end. */
static void start_writeback(struct ckpt_file *file)
{
    if (file->written - file->started < WRITEBACK_BYTES)
        return;
    s2s_durable_begin(file->fd, file->started, file->written);
    file->started = file->written;
}

static int write_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    struct ckpt_file *file = ctx;
    const char *from = bytes;
    file->written += (int64_t)len;
    while (len) {
        ssize_t n = write(file->fd, from, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return s2s_error_errno(err, S2S_E_IO, "%s: write of %zu bytes", file->path, len);
        from += n;
        len -= (size_t)n;
    }
    start_writeback(file);
    return 0;
}

int ckpt_file_create(struct ckpt_file *file, const char *path, struct s2s_error *err)
{
    *file = (struct ckpt_file){.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)};
    if (file->fd < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot create", path);
    file->path = s2s_xstrdup(path);
    file->behind = s2s_behind_new(write_sink, file, true);
    file->digest = s2s_digest_new(128);
    return 0;
}

int ckpt_file_write(struct ckpt_file *file, const void *bytes, size_t len, struct s2s_error *err)
{
    file->pos += (int64_t)len;
    s2s_digest_update(file->digest, bytes, len);
    return s2s_behind_add(file->behind, bytes, len, err);
}

int ckpt_file_close(struct ckpt_file *file, char digest[33], struct s2s_error *err)
{
    int rc = s2s_behind_flush(file->behind, err);
    if (rc == 0 && s2s_durable_sync(file->fd) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: sync", file->path);
    s2s_behind_free(file->behind);
    file->behind = NULL;
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
    s2s_behind_free(file->behind); /* ends the thread, which uses fd */
    if (file->path && file->fd >= 0)
        close(file->fd);
    free(file->path);
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
    /* O_NONBLOCK: do not wait for the other end of a pipe */
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
