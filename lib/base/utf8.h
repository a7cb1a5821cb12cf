/* UTF-8 as in RFC 3629: shortest form, no surrogates, at most U+10FFFF. */
#ifndef S2S_BASE_UTF8_H
#define S2S_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool s2s_utf8_valid(const char *text, size_t len);
/* A copy with each byte that is not valid UTF-8 replaced by U+FFFD, for JSON. Gives: free. */
char *s2s_utf8_mend(const char *text);
/* Writes code point cp (a Unicode scalar value) to out; returns its number of bytes, 1 to 4. */
size_t s2s_utf8_put(char *out, uint32_t cp);

/* Number of bytes of the character at `at`, 1 to 4; 0 if there is no well-formed one before `end`.
 * at < end. */
int s2s_utf8_len(const char *at, const char *end);

/* Columns on a terminal of the well-formed character of len bytes at `at`: 2 for East Asian scripts
 * and pictographs, 0 for combining marks, otherwise 1. */
int s2s_utf8_columns(const char *at, int len);

/*
 * Untrusted names reach terminals, which obey control characters, and log readers, for which a
 * newline starts another message. s2s_utf8_show writes the character at `at` as safe,
 * NUL-terminated text: unchanged, or as \n, \r, \t or \xNN for each byte of a control character, of
 * one that changes text direction or ends a line, and of invalid UTF-8. Returns the number of bytes
 * read. at < end.
 */
enum { S2S_UTF8_SHOWN = 17 };
int s2s_utf8_show(char out[S2S_UTF8_SHOWN], const char *at, const char *end);
/* The same for a whole NUL-terminated text: as many complete characters as fit into cap bytes,
 * including the NUL. */
void s2s_utf8_show_text(char *out, size_t cap, const char *text);

#endif
