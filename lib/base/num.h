/* Strict parsing of numbers: the whole string must be a number in a range, with a known unit. */
#ifndef S2S_BASE_NUM_H
#define S2S_BASE_NUM_H

#include <stddef.h>
#include <stdint.h>

struct s2s_error;

/* Decimal integer in [min, max]. ARG names the text and the range. */
int s2s_parse_i64(int64_t *out, const char *text, int64_t min, int64_t max, struct s2s_error *err);
/* Parses n hexadecimal digits (at most 8, of either case), which need not end the text; returns 0,
 * or -1 without a message. */
int s2s_parse_hex(uint32_t *out, const char *text, size_t n);
/* Finite decimal number in [min, max]. */
int s2s_parse_f64(double *out, const char *text, double min, double max, struct s2s_error *err);
/* Bytes or counts with an optional unit: 512, 8k, 1.5M, 2G, 1T (1000s) or 8Ki, 2Gi (1024s); a
 * trailing B is allowed. */
int s2s_parse_size(int64_t *out, const char *text, struct s2s_error *err);

#endif
