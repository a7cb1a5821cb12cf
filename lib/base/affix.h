/* Prefixes and suffixes of strings. */
#ifndef S2S_BASE_AFFIX_H
#define S2S_BASE_AFFIX_H

#include <stdbool.h>
#include <string.h>

static inline bool s2s_starts_with(const char *text, const char *prefix)
{
    /* most texts differ in the first character, which needs no call */
    return (*text == *prefix || !*prefix) && strncmp(text, prefix, strlen(prefix)) == 0;
}

static inline bool s2s_ends_with(const char *text, const char *suffix)
{
    const size_t len = strlen(text), n = strlen(suffix);
    return len >= n && memcmp(text + len - n, suffix, n) == 0;
}

/* Is the text equal to tail, or does it end with separator and tail? */
static inline bool s2s_has_tail(const char *text, char separator, const char *tail)
{
    const size_t len = strlen(text), n = strlen(tail);
    return s2s_ends_with(text, tail) && (len == n || text[len - n - 1] == separator);
}

#endif
