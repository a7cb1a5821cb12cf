/* Bytes that claim to be UTF-8, a character at a time. */
#ifndef S2S_BASE_UTF8_H
#define S2S_BASE_UTF8_H

#include <stddef.h>

/* Bytes of the character at `at`, 1 to 4; 0 if no well-formed one starts there before `end`
 * (overlong forms and surrogates are none). at < end. */
int s2s_utf8_len(const char *at, const char *end);

/* Columns that a terminal gives the well-formed character of len bytes at `at`: 2 for those of East
 * Asian scripts and pictures, 0 for marks that join the one before, else 1. */
int s2s_utf8_columns(const char *at, int len);

/* Makes control characters of the len bytes at text (newline and tab aside) question marks: names
 * out of files reach terminals, which obey them. */
void s2s_utf8_calm(char *text, int len);

#endif
