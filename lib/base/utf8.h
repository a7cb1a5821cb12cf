/* UTF-8 as RFC 3629 has it: shortest form, no surrogates, at most U+10FFFF. */
#ifndef S2S_BASE_UTF8_H
#define S2S_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool s2s_utf8_valid(const char *text, size_t len);
/* A copy with U+FFFD for each byte that is no UTF-8, for JSON, which holds nothing else. Gives:
 * free. */
char *s2s_utf8_mend(const char *text);
/* Writes code point cp (a Unicode scalar value) at out; returns the bytes written, 1 to 4. */
size_t s2s_utf8_put(char *out, uint32_t cp);

/* Bytes of the character at `at`, 1 to 4; 0 if no well-formed one starts there before
 * `end`. at < end. */
int s2s_utf8_len(const char *at, const char *end);

/* Columns that a terminal gives the well-formed character of len bytes at `at`: 2 for those of East
 * Asian scripts and pictures, 0 for marks that join the one before, else 1. */
int s2s_utf8_columns(const char *at, int len);

/*
 * Names out of files reach terminals, which obey control characters, and readers, who take a new
 * line for another message. s2s_utf8_show writes the character at `at` as text that does neither,
 * zero-ended: as it is, or as \n, \r, \t or \xNN for each byte of control characters, of those that
 * turn the direction of text or end a line, and of what is not UTF-8. Returns the bytes read. at <
 * end.
 */
enum { S2S_UTF8_SHOWN = 17 };
int s2s_utf8_show(char out[S2S_UTF8_SHOWN], const char *at, const char *end);
/* The same of a whole zero-ended text: as many whole characters as fit into cap bytes, the zero
 * included. */
void s2s_utf8_show_text(char *out, size_t cap, const char *text);

#endif
