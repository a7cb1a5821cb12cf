/* Where a reader's bytes come from. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/stream/stream_internal.h"

enum { PIPE_BYTES = 1 << 20 };

struct stream_source {
    int fd;
    int64_t offset;
    /* a file */
    const unsigned char *map;
    int64_t map_len; /* -1: a pipe */
    /* a pipe: bytes read and not yet taken are buf[begin, end) */
    unsigned char *buf;
    size_t begin, end, cap;
};

static int open_fd(const char *path, struct s2s_error *err)
{
    int fd;
    if (!strcmp(path, "-"))
        return fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    do
        fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", path);
    return fd;
}

static int map_file(struct stream_source *src, const char *path, int64_t len, struct s2s_error *err)
{
    src->map_len = len;
    if (len == 0)
        return 0;
    void *map = mmap(NULL, (size_t)len, PROT_READ, MAP_SHARED, src->fd, 0);
    if (map == MAP_FAILED)
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot map", path);
    src->map = map;
    return 0;
}

int stream_source_open(struct stream_source **result, const char *path, struct s2s_error *err)
{
    struct stat st;
    int fd = open_fd(path, err), rc = 0;
    if (fd < 0)
        return strcmp(path, "-") ? S2S_E_OPEN
                                 : s2s_error_errno(err, S2S_E_OPEN, "stdin: cannot open");
    if (fstat(fd, &st) < 0 || S_ISDIR(st.st_mode)) {
        close(fd);
        return s2s_error_set(err, S2S_E_OPEN, "%s: is a folder", path);
    }
    struct stream_source *src = s2s_xcalloc(1, sizeof *src);
    src->fd = fd;
    src->map_len = -1;
    /* a file that somebody has read from already is read on from there, like a pipe */
    if (S_ISREG(st.st_mode) && lseek(fd, 0, SEEK_CUR) == 0) {
        rc = map_file(src, path, st.st_size, err);
    } else {
        (void)fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES);
        src->cap = PIPE_BYTES;
        src->buf = s2s_xalloc_aligned(src->cap);
    }
    if (rc < 0) {
        stream_source_close(src);
        return rc;
    }
    *result = src;
    return 0;
}

void stream_source_close(struct stream_source *src)
{
    if (!src)
        return;
    if (src->map)
        munmap((void *)src->map, (size_t)src->map_len);
    close(src->fd);
    free(src->buf);
    free(src);
}

/* ---- pipes ---- */

/* Memory follows the bytes that arrive, never the size that a header claims. */
static int make_room(struct stream_source *src, struct s2s_error *err)
{
    if (src->begin > 0) {
        memmove(src->buf, src->buf + src->begin, src->end - src->begin);
        src->end -= src->begin;
        src->begin = 0;
    }
    if (src->end < src->cap)
        return 0;
    unsigned char *grown = realloc(src->buf, src->cap * 2);
    if (!grown)
        return s2s_error_set(err, S2S_E_NOMEM, "no memory for a member of more than %zu bytes",
                             src->cap);
    src->buf = grown;
    src->cap *= 2;
    return 0;
}

/* Until len bytes are there or the pipe ends. */
static int fill_pipe(struct stream_source *src, uint64_t len, struct s2s_error *err)
{
    while (src->end - src->begin < len) {
        if (src->begin + len > src->cap || src->end == src->cap) {
            int rc = make_room(src, err);
            if (rc < 0)
                return rc;
        }
        ssize_t n = read(src->fd, src->buf + src->end, src->cap - src->end);
        if (n == 0)
            return 0;
        if (n > 0)
            src->end += (size_t)n;
        else if (errno != EINTR)
            return s2s_error_errno(err, S2S_E_IO, "cannot read at offset %lld",
                                   (long long)src->offset);
    }
    return 0;
}

/* ---- taking ---- */

static int too_short(const struct stream_source *src, uint64_t len, uint64_t left,
                     struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_TRUNCATED,
                         "the stream is cut: %llu bytes expected at offset %lld, %llu are there",
                         (unsigned long long)len, (long long)src->offset, (unsigned long long)left);
}

int stream_source_take_or_end(struct stream_source *src, uint64_t len, const unsigned char **bytes,
                              struct s2s_error *err)
{
    uint64_t left;
    if (src->map_len >= 0) {
        left = (uint64_t)(src->map_len - src->offset);
        *bytes = src->map + src->offset;
    } else {
        int rc = fill_pipe(src, len, err);
        if (rc < 0)
            return rc;
        left = src->end - src->begin;
        *bytes = src->buf + src->begin;
    }
    if (left == 0)
        return 0;
    if (left < len)
        return too_short(src, len, left, err);
    if (src->map_len < 0)
        src->begin += len;
    src->offset += (int64_t)len;
    return 1;
}

int stream_source_take(struct stream_source *src, uint64_t len, const unsigned char **bytes,
                       struct s2s_error *err)
{
    if (len == 0) {
        *bytes = (const unsigned char *)"";
        return 0;
    }
    int rc = stream_source_take_or_end(src, len, bytes, err);
    return rc < 0 ? rc : rc == 0 ? too_short(src, len, 0, err) : 0;
}

int64_t stream_source_offset(const struct stream_source *src)
{
    return src->offset;
}

int64_t stream_source_size(const struct stream_source *src)
{
    return src->map_len;
}

int stream_source_at(struct stream_source *src, int64_t offset, uint64_t len,
                     const unsigned char **bytes, struct s2s_error *err)
{
    if (offset < 0 || offset > src->map_len || len > (uint64_t)(src->map_len - offset))
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "%llu bytes expected at offset %lld, the stream has %lld",
                             (unsigned long long)len, (long long)offset, (long long)src->map_len);
    *bytes = src->map + offset;
    return 0;
}

void stream_source_seek(struct stream_source *src, int64_t offset)
{
    src->offset = offset;
}

int64_t stream_source_last_frame(const struct stream_source *src)
{
    (void)src;
    return -1;
}

int stream_source_need_border(struct stream_source *src, struct s2s_error *err)
{
    (void)src;
    (void)err;
    return 0;
}

int stream_source_finish(struct stream_source *src, struct s2s_error *err)
{
    const unsigned char *bytes;
    int rc = stream_source_take_or_end(src, 1, &bytes, err);
    return rc <= 0 ? rc
                   : s2s_error_set(err, S2S_E_FORMAT, "something follows the end at offset %lld",
                                   (long long)src->offset - 1);
}
