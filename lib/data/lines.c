/* Maps a file and finds its lines. */
#include "lib/data/lines.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>

#include "lib/base/base.h"
#include "lib/data/spool.h"
#include "lib/io/pread.h"

enum { COPY_BYTES = 1 << 16 };

/* A copy of what a gzip file holds; returns its descriptor. Closes `from`. zlib checks sums and
 * lengths. */
static int gunzip(int from, const char *path, struct s2s_error *err)
{
    int fd = s2s_spool_temporary(path, err), rc = 0, n = 0, code = 0;
    gzFile in = fd < 0 || lseek(from, 0, SEEK_SET) < 0 ? NULL : gzdopen(from, "rb");
    if (!in) {
        close(from);
        if (fd >= 0)
            close(fd);
        return fd < 0 ? fd : s2s_error_set(err, S2S_E_NOMEM, "%s: no memory for gzip", path);
    }
    char *block = s2s_xmalloc(COPY_BYTES);
    while (rc == 0 && (n = gzread(in, block, COPY_BYTES)) > 0)
        rc = s2s_spool_write(fd, block, (size_t)n, path, err);
    free(block);
    (void)gzerror(in, &code);
    if (rc == 0 && code != Z_OK && code != Z_STREAM_END)
        rc = code == Z_BUF_ERROR
                 ? s2s_error_set(err, S2S_E_TRUNCATED, "%s: the gzip file is cut", path)
                 : s2s_error_set(err, S2S_E_FORMAT, "%s: the gzip file is damaged", path);
    gzclose_r(in);
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

/* 1: fd is a gzip file, 0: it is none. */
static int is_gzip(int fd, const char *path, struct s2s_error *err)
{
    static const unsigned char magic[] = {0x1f, 0x8b, 8};
    unsigned char head[sizeof magic];
    int rc = s2s_pread(fd, head, sizeof head, 0, err);
    if (rc == S2S_E_TRUNCATED)
        return 0;
    return rc < 0 ? s2s_error_add(err, rc, "%s", path) : memcmp(head, magic, sizeof head) == 0;
}

static int map(struct s2s_lines *lines, int fd, struct s2s_error *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s", lines->path);
    if (st.st_size == 0)
        return 0;
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot map", lines->path);
    lines->data = data;
    lines->len = (size_t)st.st_size;
    return 0;
}

int s2s_lines_open(struct s2s_lines *lines, const char *path, struct s2s_error *err)
{
    *lines = (struct s2s_lines)S2S_LINES_INIT;
    int fd = s2s_spool_open(path, err);
    if (fd < 0)
        return fd;
    lines->path = s2s_xstrdup(s2s_spool_name(path));
    int rc = is_gzip(fd, lines->path, err);
    if (rc > 0)
        rc = fd = gunzip(fd, lines->path, err);
    if (rc >= 0)
        rc = map(lines, fd, err);
    if (fd >= 0)
        close(fd);
    if (rc < 0)
        s2s_lines_close(lines);
    return rc;
}

void s2s_lines_close(struct s2s_lines *lines)
{
    if (lines->data)
        munmap((void *)lines->data, lines->len);
    free(lines->path);
    *lines = (struct s2s_lines)S2S_LINES_INIT;
}

size_t s2s_lines_count(const struct s2s_lines *lines)
{
    struct s2s_line line = {.number = 0};
    size_t n = 0;
    while (s2s_lines_next(lines, &line))
        n++;
    return n;
}

struct s2s_line s2s_lines_at(const struct s2s_lines *lines, size_t begin, int64_t number)
{
    const char *text = lines->data + begin, *end = memchr(text, '\n', lines->len - begin);
    size_t len = end ? (size_t)(end - text) : lines->len - begin;
    if (len > 0 && text[len - 1] == '\r')
        len--;
    return (struct s2s_line){.text = text, .len = len, .begin = begin, .number = number};
}

static bool is_blank(const struct s2s_line *line)
{
    size_t i = 0;
    while (i < line->len &&
           (line->text[i] == ' ' || (line->text[i] >= '\t' && line->text[i] <= '\r')))
        i++;
    return i == line->len;
}

/* Bytes of the mark that some editors put before UTF-8. */
static size_t mark_len(const struct s2s_lines *lines)
{
    return lines->len >= 3 && !memcmp(lines->data, "\xef\xbb\xbf", 3) ? 3 : 0;
}

bool s2s_lines_next_any(const struct s2s_lines *lines, struct s2s_line *line)
{
    size_t at = mark_len(lines);
    if (line->number > 0) {
        const char *from = line->text + line->len;
        const char *end = memchr(from, '\n', lines->len - (size_t)(from - lines->data));
        if (!end)
            return false;
        at = (size_t)(end - lines->data) + 1;
    }
    if (at >= lines->len)
        return false;
    *line = s2s_lines_at(lines, at, line->number + 1);
    return true;
}

bool s2s_lines_next(const struct s2s_lines *lines, struct s2s_line *line)
{
    do {
        if (!s2s_lines_next_any(lines, line))
            return false;
    } while (is_blank(line));
    return true;
}
