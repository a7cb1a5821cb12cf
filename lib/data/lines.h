/*
 * A text file whose lines can be read in any order and more than once: a file is mapped, a pipe is
 * copied and a gzip file (known by its first bytes) unpacked to a temporary file without a name
 * first.
 */
#ifndef S2S_DATA_LINES_H
#define S2S_DATA_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_error;

struct s2s_lines {
    char *path;       /* as given; "stdin" for "-" */
    const char *data; /* [len] */
    size_t len;
};

#define S2S_LINES_INIT \
    { \
        NULL, NULL, 0 \
    }

/* A line without its end (LF or CRLF); text is lent until s2s_lines_close and not NUL-ended. */
struct s2s_line {
    const char *text;
    size_t len;
    size_t begin;   /* offset in the file: what s2s_lines_at wants */
    int64_t number; /* from 1 */
};

/* "-" is stdin. OPEN, IO; TRUNCATED and FORMAT of a gzip file. */
int s2s_lines_open(struct s2s_lines *lines, const char *path, struct s2s_error *err);
void s2s_lines_close(struct s2s_lines *lines);

/* The line behind `line` (all zero: the first one); false at the end. Lines of white space are
 * passed over, but counted; a byte order mark in front of the first one is none of it. */
bool s2s_lines_next(const struct s2s_lines *lines, struct s2s_line *line);
/* The line that begins at an offset that s2s_lines_next gave. */
struct s2s_line s2s_lines_at(const struct s2s_lines *lines, size_t begin, int64_t number);

#endif
