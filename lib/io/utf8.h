/* UTF-8 as RFC 3629 has it: shortest form, no surrogates, at most U+10FFFF. */
#ifndef S2S_IO_UTF8_H
#define S2S_IO_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool s2s_utf8_valid(const char *text, size_t len);
/* Appends code point cp (a Unicode scalar value) at out; returns the bytes written, 1 to 4. */
size_t s2s_utf8_put(char *out, uint32_t cp);

#endif
