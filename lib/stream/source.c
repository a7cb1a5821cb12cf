/* Where a reader's bytes come from: a mapped file or a pipe; compressed, one frame after the other.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zstd.h>

#include "lib/base/base.h"
#include "lib/io/digest.h"
#include "lib/io/zstdseek.h"
#include "lib/stream/stream_internal.h"

enum { PIPE_BYTES = 1 << 20, FIRST_FRAME_BYTES = 1 << 20 };

/* Of a mapped file so much stays in memory. */
enum { KEEP_MAPPED_BYTES = 32 << 20 };

/* The kernel maps so much around a page that is touched. */
enum { AROUND_BYTES = 64 << 10 };

/* Of a pipe so much is read at once, and hashed while it is in the core's cache. */
enum { READ_BYTES = 256 << 10 };

/* The sanitizers mark each byte of a block, touched or not: a build for them has less. */
#ifndef FIRST_ROOM_BYTES
#define FIRST_ROOM_BYTES (64 << 20)
#endif
enum { HUGE_BYTES = 2 << 20 };

struct stream_source {
    int fd;
    int64_t offset; /* uncompressed bytes taken */
    bool is_file;
    /* a file that is mapped; map_len -1: it is read like a pipe */
    const unsigned char *map;
    int64_t map_len;
    int64_t dropped; /* bytes of the map whose pages were given back */
    uint64_t n_at;   /* bytes mapped for reads here and there since all pages were given back */
    /* a pipe: bytes read and not yet taken are buf[begin, end) */
    unsigned char *buf; /* [room], of which cap are used */
    size_t begin, end, cap, room;
    struct s2s_digest *digest; /* of what is taken; NULL until needed */
    /* compressed: the frame that is decoded holds the uncompressed bytes [frame_begin, + frame_len)
     */
    bool is_zstd;
    struct s2s_zstd_table table; /* of a mapped file: all; of a pipe: those decoded */
    size_t frame_idx;            /* SIZE_MAX: none is decoded */
    unsigned char *frame;
    uint64_t frame_begin, frame_len, frame_cap;
    ZSTD_DCtx *dctx;
};

/* ---- opening ---- */

static int open_fd(const char *path, struct s2s_error *err)
{
    int fd;
    do
        fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC)
                               : fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", strcmp(path, "-") ? path : "stdin");
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
    src->is_zstd = len >= 4 && s2s_zstd_is_frame(map);
    if (!src->is_zstd || s2s_zstd_table_parse(&src->table, map, (size_t)len, NULL) == 0)
        return 0;
    /* cut or damaged: read from the front, so that the fault is named where it is */
    munmap(map, (size_t)len);
    src->map = NULL;
    src->map_len = -1;
    return 0;
}

/* Room for a pipe, of which what is not touched costs nothing. The first huge page's worth comes
 * in small ones: most records fit. */
static unsigned char *alloc_room(size_t len)
{
    unsigned char *room = aligned_alloc(HUGE_BYTES, len);
    if (room)
        s2s_wish_huge(room + HUGE_BYTES, len - HUGE_BYTES);
    return room;
}

static int fill_pipe(struct stream_source *src, uint64_t len, struct s2s_error *err);

int stream_source_open(struct stream_source **result, const char *path, struct s2s_error *err)
{
    struct stat st;
    int fd = open_fd(path, err), rc = 0;
    if (fd < 0)
        return S2S_E_OPEN;
    if (fstat(fd, &st) < 0 || S_ISDIR(st.st_mode)) {
        close(fd);
        return s2s_error_set(err, S2S_E_OPEN, "%s: is a folder", path);
    }
    struct stream_source *src = s2s_xcalloc(1, sizeof *src);
    src->fd = fd;
    src->map_len = -1;
    src->frame_idx = SIZE_MAX;
    /* a file that somebody has read from already is read on from there, like a pipe */
    src->is_file = S_ISREG(st.st_mode) && lseek(fd, 0, SEEK_CUR) == 0;
    if (src->is_file)
        rc = map_file(src, path, st.st_size, err);
    if (rc == 0 && src->map_len < 0) {
        (void)fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES);
        src->cap = PIPE_BYTES;
        src->room = FIRST_ROOM_BYTES;
        src->buf = alloc_room(src->room);
        if (!src->buf)
            s2s_no_memory();
        rc = fill_pipe(src, 4, err);
        src->is_zstd = rc == 0 && src->end >= 4 && s2s_zstd_is_frame(src->buf);
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
    s2s_digest_free(src->digest);
    free(src->frame);
    s2s_zstd_table_release(&src->table);
    ZSTD_freeDCtx(src->dctx);
    free(src);
}

/* Pages of the map that were read are given back now and then, so that a file takes no more memory
 * than a pipe. Whoever still points there reads the same bytes again: the file has them. */
static void drop_behind(struct stream_source *src, int64_t at)
{
    at &= ~(int64_t)(KEEP_MAPPED_BYTES - 1);
    if (at > src->dropped)
        (void)madvise((void *)(src->map + src->dropped), (size_t)(at - src->dropped),
                      MADV_DONTNEED);
    src->dropped = at;
}

/* The same where it is read here and there. */
static void drop_elsewhere(struct stream_source *src, uint64_t len)
{
    if (src->n_at > KEEP_MAPPED_BYTES) {
        (void)madvise((void *)src->map, (size_t)src->map_len, MADV_DONTNEED);
        src->n_at = 0;
    }
    src->n_at += len + AROUND_BYTES;
}

/* ---- pipes ---- */

/* Memory follows the bytes that arrive, never the size that a header claims. */
static int make_room(struct stream_source *src, struct s2s_error *err)
{
    const size_t left = src->end - src->begin;
    if (left == src->room) {
        unsigned char *grown = alloc_room(2 * src->room);
        if (!grown)
            return s2s_error_set(err, S2S_E_NOMEM, "no memory for a member of more than %zu bytes",
                                 src->room);
        memcpy(grown, src->buf, left);
        free(src->buf);
        src->buf = grown;
        src->room *= 2;
    } else if (src->begin > 0) {
        memmove(src->buf, src->buf + src->begin, left);
    }
    src->begin = 0;
    src->end = left;
    src->cap *= left == src->cap ? 2 : 1;
    return 0;
}

/* Until len bytes wait to be taken, or the pipe ends. */
static int fill_pipe(struct stream_source *src, uint64_t len, struct s2s_error *err)
{
    while (src->end - src->begin < len) {
        if (src->begin + len > src->cap || src->end == src->cap) {
            int rc = make_room(src, err);
            if (rc < 0)
                return rc;
        }
        const size_t room = src->cap - src->end;
        ssize_t n = read(src->fd, src->buf + src->end, room < READ_BYTES ? room : READ_BYTES);
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

/* ---- compressed ---- */

static int frame_room(struct stream_source *src, uint64_t len, struct s2s_error *err)
{
    if (len <= src->frame_cap)
        return 0;
    unsigned char *grown = realloc(src->frame, len);
    if (!grown)
        return s2s_error_set(err, S2S_E_NOMEM, "no memory for a zstd frame of %llu bytes",
                             (unsigned long long)len);
    src->frame = grown;
    src->frame_cap = len;
    return 0;
}

/* Frame i of a mapped file. */
static int load_frame(struct stream_source *src, size_t i, struct s2s_error *err)
{
    const struct s2s_zstd_frame *f = &src->table.frames[i];
    if (src->frame_idx == i)
        return 0;
    src->frame_idx = SIZE_MAX;
    /* a frame says its own size: a table that claims more gets no memory for it */
    if (ZSTD_getFrameContentSize(src->map + f->at, f->len) != f->size)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "the zstd frame at compressed offset %llu does not hold %u bytes",
                             (unsigned long long)f->at, f->size);
    int rc = frame_room(src, f->size, err);
    if (rc == 0)
        rc = s2s_zstd_decode(src->frame, f, src->map + f->at, err);
    if (rc < 0)
        return rc;
    drop_behind(src, (int64_t)f->at);
    src->frame_idx = i;
    src->frame_begin = f->begin;
    src->frame_len = f->size;
    return 0;
}

/* Index of the frame that holds an uncompressed offset, or n. */
static size_t frame_of(const struct stream_source *src, uint64_t offset)
{
    size_t low = 0, high = src->table.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct s2s_zstd_frame *f = &src->table.frames[mid];
        if (f->begin + f->size <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Decodes what waits in the pipe's buffer; sets *done at the end of the frame. */
static int decode_some(struct stream_source *src, struct s2s_digest *digest, uint64_t *len,
                       bool *done, struct s2s_error *err)
{
    ZSTD_inBuffer in = {src->buf + src->begin, src->end - src->begin, 0};
    ZSTD_outBuffer out = {src->frame, src->frame_cap, src->frame_len};
    size_t rc = ZSTD_decompressStream(src->dctx, &out, &in);
    if (ZSTD_isError(rc))
        return s2s_error_set(err, S2S_E_FORMAT, "zstd frame %zu: %s", src->table.n,
                             ZSTD_getErrorName(rc));
    s2s_digest_update(digest, in.src, in.pos);
    src->begin += in.pos;
    src->frame_len = out.pos;
    *len += in.pos;
    *done = rc == 0;
    if (src->frame_len > UINT32_MAX || *len > UINT32_MAX || (*done && src->frame_len == 0))
        return s2s_error_set(err, S2S_E_FORMAT, "zstd frame %zu is empty or larger than 4 GiB",
                             src->table.n);
    return *done || out.pos < out.size ? 0 : frame_room(src, 2 * src->frame_cap, err);
}

/* The next frame of a pipe: 1, or 0 when something else than a frame comes or nothing. */
static int next_frame(struct stream_source *src, struct s2s_error *err)
{
    uint64_t len = 0, begin = src->frame_begin + src->frame_len;
    bool done = false;
    int rc = fill_pipe(src, 4, err);
    if (rc < 0 || src->end - src->begin < 4 || !s2s_zstd_is_frame(src->buf + src->begin))
        return rc;
    if (!src->dctx)
        src->dctx = ZSTD_createDCtx();
    if ((rc = frame_room(src, FIRST_FRAME_BYTES, err)) < 0)
        return rc;
    ZSTD_DCtx_reset(src->dctx, ZSTD_reset_session_only);
    struct s2s_digest *digest = s2s_digest_new(64);
    src->frame_begin = begin;
    src->frame_len = 0;
    while (rc == 0 && !done) {
        if ((rc = fill_pipe(src, 1, err)) < 0)
            break;
        if (src->begin == src->end)
            rc = s2s_error_set(err, S2S_E_TRUNCATED, "the stream is cut within zstd frame %zu",
                               src->table.n);
        else
            rc = decode_some(src, digest, &len, &done, err);
    }
    if (rc == 0)
        s2s_zstd_table_add(&src->table, (uint32_t)src->frame_len, (uint32_t)len,
                           s2s_digest_value(digest));
    s2s_digest_free(digest);
    return rc < 0 ? rc : 1;
}

/* Makes the frame at the present offset the decoded one: 1, or 0 at the end. */
static int frame_here(struct stream_source *src, struct s2s_error *err)
{
    if (src->map_len >= 0) {
        size_t i = frame_of(src, (uint64_t)src->offset);
        int rc = i < src->table.n ? load_frame(src, i, err) : 0;
        return rc < 0 ? rc : i < src->table.n;
    }
    return (uint64_t)src->offset < src->frame_begin + src->frame_len ? 1 : next_frame(src, err);
}

/* ---- taking ---- */

static int too_short(const struct stream_source *src, uint64_t len, uint64_t left,
                     struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_TRUNCATED,
                         "the stream is cut: %llu bytes expected at offset %lld, %llu are there",
                         (unsigned long long)len, (long long)src->offset, (unsigned long long)left);
}

static int crosses(const struct stream_source *src, uint64_t len, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT,
                         "%llu bytes at offset %lld do not lie within one zstd frame",
                         (unsigned long long)len, (long long)src->offset);
}

/* Uncompressed bytes that are at hand without going past a frame; tries to have len of them. */
static int have(struct stream_source *src, uint64_t len, const unsigned char **bytes,
                uint64_t *left, struct s2s_error *err)
{
    if (src->is_zstd) {
        int rc = frame_here(src, err);
        if (rc < 0)
            return rc;
        uint64_t at = (uint64_t)src->offset - src->frame_begin;
        *left = rc ? src->frame_len - at : 0;
        *bytes = rc ? src->frame + at : NULL;
    } else if (src->map_len >= 0) {
        drop_behind(src, src->offset);
        *left = (uint64_t)(src->map_len - src->offset);
        *bytes = src->map ? src->map + src->offset : NULL;
    } else {
        int rc = fill_pipe(src, len, err);
        if (rc < 0)
            return rc;
        *left = src->end - src->begin;
        *bytes = src->buf + src->begin;
    }
    return 0;
}

int stream_source_take_or_end(struct stream_source *src, uint64_t len, const unsigned char **bytes,
                              struct s2s_error *err)
{
    uint64_t left;
    int rc = have(src, len, bytes, &left, err);
    if (rc < 0 || left == 0)
        return rc;
    if (left < len)
        return src->is_zstd ? crosses(src, len, err) : too_short(src, len, left, err);
    if (src->map_len < 0 && !src->is_zstd)
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

/* Hashes the first len bytes that come out of the pipe as they come. */
static int hash_pipe(struct stream_source *src, uint64_t len, struct s2s_error *err)
{
    uint64_t done = 0, want = 0;
    int rc = src->begin + len > src->cap ? make_room(src, err) : 0;
    if (!src->digest)
        src->digest = s2s_digest_new(64);
    s2s_digest_reset(src->digest);
    while (rc == 0 && done == want && done < len) {
        want = len - done < READ_BYTES ? len : done + READ_BYTES;
        rc = fill_pipe(src, want, err);
        const uint64_t here = src->end - src->begin, n = here < want ? here : want;
        s2s_digest_update(src->digest, src->buf + src->begin + done, n - done);
        done = n;
    }
    return rc;
}

int stream_source_take_hashed(struct stream_source *src, uint64_t len, uint64_t n_hashed,
                              const unsigned char **bytes, uint64_t *xxh3, struct s2s_error *err)
{
    const bool is_pipe = src->map_len < 0 && !src->is_zstd;
    int rc = is_pipe ? hash_pipe(src, n_hashed, err) : 0;
    if (rc == 0)
        rc = stream_source_take(src, len, bytes, err);
    if (rc == 0)
        *xxh3 = is_pipe ? s2s_digest_value(src->digest) : s2s_xxh3_64(*bytes, n_hashed);
    return rc;
}

int64_t stream_source_offset(const struct stream_source *src)
{
    return src->offset;
}

/* ---- random access ---- */

bool stream_source_is_file(const struct stream_source *src)
{
    return src->is_file;
}

bool stream_source_is_zstd(const struct stream_source *src)
{
    return src->is_zstd;
}

int64_t stream_source_size(const struct stream_source *src)
{
    if (!src->is_zstd || src->map_len < 0 || src->table.n == 0)
        return src->map_len;
    const struct s2s_zstd_frame *last = &src->table.frames[src->table.n - 1];
    return (int64_t)(last->begin + last->size);
}

int stream_source_at(struct stream_source *src, int64_t offset, uint64_t len,
                     const unsigned char **bytes, struct s2s_error *err)
{
    int64_t size = stream_source_size(src);
    if (offset < 0 || offset > size || len > (uint64_t)(size - offset))
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "%llu bytes expected at offset %lld, the stream has %lld",
                             (unsigned long long)len, (long long)offset, (long long)size);
    if (!src->is_zstd) {
        drop_elsewhere(src, len);
        *bytes = src->map ? src->map + offset : NULL;
        return 0;
    }
    size_t i = frame_of(src, (uint64_t)offset);
    int rc = i < src->table.n ? load_frame(src, i, err) : 0;
    if (rc < 0)
        return rc;
    if (i == src->table.n || len > src->frame_begin + src->frame_len - (uint64_t)offset)
        return crosses(src, len, err);
    *bytes = src->frame + ((uint64_t)offset - src->frame_begin);
    return 0;
}

void stream_source_seek(struct stream_source *src, int64_t offset)
{
    src->offset = offset;
}

int64_t stream_source_last_frame(const struct stream_source *src)
{
    if (!src->is_zstd || src->table.n == 0)
        return -1;
    return (int64_t)src->table.frames[src->table.n - 1].begin;
}

/* ---- frames hold whole members ---- */

int stream_source_need_border(struct stream_source *src, int64_t delta, struct s2s_error *err)
{
    uint64_t at = (uint64_t)(src->offset + delta);
    if (!src->is_zstd || at == src->frame_begin || at == src->frame_begin + src->frame_len)
        return 0;
    int rc = s2s_error_set(err, S2S_E_FORMAT, "no zstd frame begins at offset %lld", (long long)at);
    return s2s_error_hint(err, rc, "what zstd itself compressed is read through zstd -dc");
}

/* A pipe's tail must be the one that its frames give. */
static int compare_tail(struct stream_source *src, struct s2s_error *err)
{
    struct s2s_buf tail = S2S_BUF_INIT;
    s2s_zstd_table_tail(&src->table, &tail);
    int rc = fill_pipe(src, tail.len + 1, err);
    const unsigned char *found = src->buf + src->begin;
    size_t left = src->end - src->begin;
    for (size_t i = 0; rc == 0 && i < left && i < tail.len; i++)
        if (found[i] != (unsigned char)tail.data[i])
            rc = i >= 8 && (i - 8) / 8 < src->table.n
                     ? s2s_error_set(err, S2S_E_DIGEST, "zstd frame %zu differs from its digest",
                                     (i - 8) / 8)
                     : s2s_error_set(err, S2S_E_FORMAT,
                                     "byte %zu behind the zstd frames is not as it must be", i);
    if (rc == 0 && left < tail.len)
        rc = s2s_error_set(err, S2S_E_TRUNCATED,
                           "the digests and the seek table behind the zstd frames are cut");
    if (rc == 0 && left > tail.len)
        rc = s2s_error_set(err, S2S_E_FORMAT, "something follows the zstd seek table");
    s2s_buf_release(&tail);
    return rc;
}

int stream_source_finish(struct stream_source *src, struct s2s_error *err)
{
    const unsigned char *bytes;
    uint64_t left;
    int rc = have(src, 1, &bytes, &left, err);
    if (rc == 0 && left > 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "something follows the end at offset %lld",
                           (long long)src->offset);
    return rc < 0 || !src->is_zstd || src->map_len >= 0 ? rc : compare_tail(src, err);
}
