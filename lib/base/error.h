/*
 * Errors with external causes (input bytes, options, disk, network, another rank). A function that
 * can fail returns 0 or more on success, otherwise a negative enum s2s_errc after filling the
 * caller's struct s2s_error. The library never prints. A message is one line, whatever it quotes:
 * control characters are escaped as \n, \x1b (lib/base/utf8.h); only s2s_error_line adds a line.
 */
#ifndef S2S_BASE_ERROR_H
#define S2S_BASE_ERROR_H

#include <stdarg.h>

/* name, exit status of a tool that fails with it, meaning */
#define S2S_ERRC_MAP(X) \
    X(ARG, 2, "bad argument") \
    X(OPEN, 2, "cannot open") \
    X(IO, 1, "read or write failed") \
    X(FORMAT, 1, "bad format") \
    X(TRUNCATED, 1, "truncated") \
    X(DIGEST, 1, "digest differs") \
    X(VERSION, 1, "unknown version") \
    X(RANGE, 1, "value out of range") \
    X(SHAPE, 1, "wrong shape") \
    X(DTYPE, 1, "wrong dtype") \
    X(UNSUPPORTED, 1, "not supported") \
    X(NOTFOUND, 1, "not found") \
    X(COMM, 1, "communication failed") \
    X(NOMEM, 1, "out of memory") \
    X(RULE, 1, "refused by a rule") \
    X(INTERRUPTED, 1, "interrupted") \
    X(NONFINITE, 1, "not finite") \
    X(EMPTY, 1, "empty") \
    X(SILENT, 1, "silent")

enum s2s_errc_index {
    S2S_ERRC_NONE_ = 0,
#define X(name, status, text) S2S_ERRC_##name##_,
    S2S_ERRC_MAP(X)
#undef X
};

enum s2s_errc {
#define X(name, status, text) S2S_E_##name = -S2S_ERRC_##name##_,
    S2S_ERRC_MAP(X)
#undef X
};

/* A failure: what happened (text), where (contexts prepended by the callers) and how to mend it. */
struct s2s_error {
    int code;        /* 0 or an enum s2s_errc */
    char text[1400]; /* "path: record 17: cu_seqlens[3] = 512 is less than cu_seqlens[2] = 768" */
    char hint[500];  /* what the user can do; may be empty */
};

#define S2S_ERROR_INIT \
    { \
        0, "", "" \
    }

/* Sets code and text of err (which may be NULL), discarding what it held; returns code, for `return
 * s2s_error_set(...)`. */
int s2s_error_set(struct s2s_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* As s2s_error_set, with ": " and strerror(errno) appended. */
int s2s_error_errno(struct s2s_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Prepends "context: " to the text; returns rc unchanged. Each layer adds once what it knows (path,
 * rank, step). */
int s2s_error_add(struct s2s_error *err, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Sets the hint, unless there is one, which is nearer to the cause; returns rc unchanged. */
int s2s_error_hint(struct s2s_error *err, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Appends a line to the text, such as an indented name of a list; returns rc unchanged. */
int s2s_error_line(struct s2s_error *err, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

void s2s_error_clear(struct s2s_error *err);

/* Name ("TRUNCATED"), meaning and exit status of a code; unknown codes are "UNKNOWN" and 1. */
const char *s2s_errc_name(int code);
const char *s2s_errc_text(int code);
int s2s_errc_exit_status(int code);

/* For failures that only our own code can cause: prints file:line and the message, then aborts. */
#define S2S_BUG(...) s2s_bug(__FILE__, __LINE__, __VA_ARGS__)
_Noreturn void s2s_bug(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
