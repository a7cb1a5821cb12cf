/* Parses integers, numbers and sizes with units, strictly. */
#include "lib/base/num.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"

int s2s_parse_i64(int64_t *out, const char *text, int64_t min, int64_t max, struct s2s_error *err)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)text[0]) &&
        !((text[0] == '-' || text[0] == '+') && isdigit((unsigned char)text[1])))
        return s2s_error_set(err, S2S_E_ARG, "'%s' is not an integer", text);
    long long value = strtoll(text, &end, 10);
    if (*end)
        return s2s_error_set(err, S2S_E_ARG, "'%s' is not an integer", text);
    if (errno == ERANGE || value < min || value > max)
        return s2s_error_set(err, S2S_E_ARG, "%s is not in [%lld, %lld]", text, (long long)min,
                             (long long)max);
    *out = value;
    return 0;
}

int s2s_parse_hex(uint32_t *out, const char *text, size_t n)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)text[i];
        if (!isxdigit(c))
            return -1;
        *out = *out << 4 | (uint32_t)(isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
    }
    return 0;
}

/* Parses a finite decimal number at the start of text and sets *end to the rest. Hexadecimal, inf
 * and nan are rejected. */
static int parse_prefix(double *out, const char *text, const char **end, struct s2s_error *err)
{
    const char *digits = text + (text[0] == '-' || text[0] == '+');
    int leads = isdigit((unsigned char)digits[0]) ||
                (digits[0] == '.' && isdigit((unsigned char)digits[1]));
    char *stop = NULL;
    if (!leads || (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X')))
        return s2s_error_set(err, S2S_E_ARG, "'%s' is not a number", text);
    *out = strtod(text, &stop);
    if (!isfinite(*out))
        return s2s_error_set(err, S2S_E_ARG, "'%s' is too large", text);
    *end = stop;
    return 0;
}

int s2s_parse_f64(double *out, const char *text, double min, double max, struct s2s_error *err)
{
    const char *end = text;
    double value = 0;
    int rc = parse_prefix(&value, text, &end, err);
    if (rc < 0)
        return rc;
    if (*end)
        return s2s_error_set(err, S2S_E_ARG, "'%s' is not a number", text);
    if (value < min || value > max)
        return s2s_error_set(err, S2S_E_ARG, "%s is not in [%g, %g]", text, min, max);
    *out = value;
    return 0;
}

int s2s_parse_size(int64_t *out, const char *text, struct s2s_error *err)
{
    static const char units[] = "kMGT";
    const char *end = text;
    double value = 0, factor = 1;
    int rc = parse_prefix(&value, text, &end, err);
    if (rc < 0)
        return rc;
    const char *unit = *end ? strchr(units, *end == 'K' ? 'k' : *end) : NULL;
    if (unit) {
        end++;
        double base = *end == 'i' ? 1024 : 1000;
        end += *end == 'i';
        factor = pow(base, (double)(unit - units + 1));
    }
    end += *end == 'B';
    value *= factor;
    if (*end)
        return s2s_error_set(err, S2S_E_ARG, "'%s' is not a size (such as 512, 8k, 1.5M, 2Gi)",
                             text);
    if (value > 9e18)
        return s2s_error_set(err, S2S_E_ARG, "'%s' is too large", text);
    if (value < 0 || value != floor(value))
        return s2s_error_set(err, S2S_E_ARG, "%s is not a whole number of at least 0", text);
    *out = (int64_t)value;
    return 0;
}
