/*
 * A text file whose lines can be read in any order and repeatedly: a file is mapped; a pipe is
 * copied, and a gzip file (detected by its first bytes) decompressed, to an unnamed temporary file
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

/* A line without its end (LF or CRLF); text is lent until s2s_lines_close and not NUL-terminated.
 */
struct s2s_line {
    const char *text;
    size_t len;
    size_t begin;   /* offset in the file, for s2s_lines_at */
    int64_t number; /* from 1 */
};

/* "-" is stdin, "pipe:COMMAND" what a shell command writes (lib/data/spool.h). OPEN, IO; TRUNCATED
 * and FORMAT of a gzip file. */
int s2s_lines_open(struct s2s_lines *lines, const char *path, struct s2s_error *err);
void s2s_lines_close(struct s2s_lines *lines);

/* Advances `line` to the next line (all zero: to the first); false at the end. Lines of white space
 * are skipped, but counted. A byte order mark at the start of the file is skipped. */
bool s2s_lines_next(const struct s2s_lines *lines, struct s2s_line *line);
/* The same, but lines of white space are not skipped. */
bool s2s_lines_next_any(const struct s2s_lines *lines, struct s2s_line *line);
/* How many lines there are. */
size_t s2s_lines_count(const struct s2s_lines *lines);
/* The line at an offset from s2s_lines_next. */
struct s2s_line s2s_lines_at(const struct s2s_lines *lines, size_t begin, int64_t number);

#endif
