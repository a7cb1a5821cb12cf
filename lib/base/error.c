/* Fills, extends and escapes the messages of errors. */
#include "lib/base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/utf8.h"

struct errc {
    const char *name, *text;
    int exit_status;
};

static const struct errc *errc_of(int code)
{
    static const struct errc unknown = {"UNKNOWN", "unknown error", 1};
    static const struct errc table[] = {{"OK", "no error", 0},
#define X(name, status, text) {#name, text, status},
                                        S2S_ERRC_MAP(X)
#undef X
    };
    const size_t idx = code > 0 ? 0 : (size_t) - (long)code;
    return idx < sizeof table / sizeof *table ? &table[idx] : &unknown;
}

const char *s2s_errc_name(int code)
{
    return errc_of(code)->name;
}

const char *s2s_errc_text(int code)
{
    return errc_of(code)->text;
}

int s2s_errc_exit_status(int code)
{
    return errc_of(code)->exit_status;
}

/* Formats text with untrusted content escaped, so that it stays on one line. */
static void put_text(char *out, size_t cap, const char *fmt, va_list ap)
{
    char raw[sizeof((struct s2s_error *)NULL)->text];
    vsnprintf(raw, sizeof raw, fmt, ap);
    s2s_utf8_show_text(out, cap, raw);
}

static void set(struct s2s_error *err, int code, const char *fmt, va_list ap)
{
    if (!err)
        return;
    err->code = code;
    err->hint[0] = 0;
    put_text(err->text, sizeof err->text, fmt, ap);
}

int s2s_error_set(struct s2s_error *err, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(err, code, fmt, ap);
    va_end(ap);
    return code;
}

int s2s_error_errno(struct s2s_error *err, int code, const char *fmt, ...)
{
    const int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    set(err, code, fmt, ap);
    va_end(ap);
    if (!err)
        return code;
    size_t len = strlen(err->text);
    snprintf(err->text + len, sizeof err->text - len, ": %s", strerror(saved));
    return code;
}

int s2s_error_add(struct s2s_error *err, int rc, const char *fmt, ...)
{
    if (!err)
        return rc;
    char context[sizeof err->text];
    va_list ap;
    va_start(ap, fmt);
    put_text(context, sizeof context - 2, fmt, ap);
    va_end(ap);
    size_t context_len = strlen(context);
    context[context_len++] = ':';
    context[context_len++] = ' ';
    /* if both do not fit, the end of the old text is lost */
    size_t room = sizeof err->text - 1 - context_len;
    size_t len = strnlen(err->text, room);
    memmove(err->text + context_len, err->text, len);
    memcpy(err->text, context, context_len);
    err->text[context_len + len] = 0;
    return rc;
}

int s2s_error_line(struct s2s_error *err, int rc, const char *fmt, ...)
{
    if (!err)
        return rc;
    const size_t len = strlen(err->text);
    va_list ap;
    if (len + 8 > sizeof err->text)
        return rc;
    err->text[len] = '\n';
    va_start(ap, fmt);
    put_text(err->text + len + 1, sizeof err->text - len - 1, fmt, ap);
    va_end(ap);
    return rc;
}

int s2s_error_hint(struct s2s_error *err, int rc, const char *fmt, ...)
{
    if (!err || err->hint[0])
        return rc;
    va_list ap;
    va_start(ap, fmt);
    put_text(err->hint, sizeof err->hint, fmt, ap);
    va_end(ap);
    return rc;
}

void s2s_error_clear(struct s2s_error *err)
{
    if (!err)
        return;
    err->code = 0;
    err->text[0] = err->hint[0] = 0;
}

void s2s_bug(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "BUG at %s:%d: ", file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}
