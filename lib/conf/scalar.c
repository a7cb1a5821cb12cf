/*
 * What a plain YAML scalar is: the implicit types of YAML 1.1 as PyYAML 6 resolves them, and the
 * floats that OmegaConf adds (1e-5, 1.5e3). Timestamps stay strings, as OmegaConf has them.
 */
#include "lib/conf/conf_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static bool is_any_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (!strcmp(text, *words))
            return true;
    return false;
}

static const char *skip(const char *s, const char *set)
{
    return s + strspn(s, set);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* [0-9][0-9_]* at s; NULL if it does not start with a digit */
static const char *digits(const char *s)
{
    return is_digit(*s) ? skip(s, "0123456789_") : NULL;
}

/* (:[0-5]?[0-9])+ at s; s itself if there is none */
static const char *sexagesimal(const char *s)
{
    while (s[0] == ':' && is_digit(s[1]))
        s += s[1] <= '5' && is_digit(s[2]) ? 3 : 2;
    return s;
}

/* [eE][-+]?[0-9]+ or nothing; *bare is set when the sign is missing */
static const char *exponent(const char *s, bool *bare)
{
    if (*s != 'e' && *s != 'E')
        return s;
    const char *start = s + 1 + (s[1] == '-' || s[1] == '+');
    const char *end = skip(start, "0123456789");
    if (end == start)
        return s;
    *bare |= start == s + 1;
    return end;
}

/* no digit group is empty or ends in '_' before `end` (what OmegaConf's own float asks for) */
static bool neat_groups(const char *s, const char *end)
{
    for (; s < end; s++)
        if (*s == '_' && (s + 1 == end || s[1] == '_'))
            return false;
    return true;
}

enum float_form { NOT_FLOAT, FLOAT_PLAIN, FLOAT_BARE, FLOAT_SEXAGESIMAL, FLOAT_WORD };

static enum float_form float_form(const char *text)
{
    static const char *const words[] = {".inf",  ".Inf",  ".INF",  "+.inf", "+.Inf",
                                        "+.INF", "-.inf", "-.Inf", "-.INF", ".nan",
                                        ".NaN",  ".NAN",  NULL};
    bool bare = false;
    if (is_any_of(text, words))
        return FLOAT_WORD;
    if (text[0] == '.' && is_digit(text[1])) { /* .5, without a sign */
        const char *end = exponent(digits(text + 1), &bare);
        return *end || bare ? NOT_FLOAT : FLOAT_PLAIN;
    }
    const char *start = text + (*text == '-' || *text == '+');
    const char *s = digits(start);
    if (!s)
        return NOT_FLOAT;
    if (*s == '.') {
        const char *fraction = skip(s + 1, "0123456789_");
        const char *end = exponent(fraction, &bare);
        if (*end)
            return NOT_FLOAT;
        return !bare ? FLOAT_PLAIN : neat_groups(start, s) ? FLOAT_BARE : NOT_FLOAT;
    }
    if (*s == ':') {
        const char *end = sexagesimal(s);
        return end > s && *end == '.' && !*skip(end + 1, "0123456789_") ? FLOAT_SEXAGESIMAL
                                                                        : NOT_FLOAT;
    }
    const char *end = exponent(s, &bare);
    return end > s && !*end && neat_groups(start, s) ? FLOAT_BARE : NOT_FLOAT;
}

/* base 60 of "1:30:00.5" without sign and underscores */
static double sexagesimal_value(const char *s)
{
    double value = 0;
    for (;;) {
        char *end;
        value = value * 60 + strtod(s, &end);
        if (*end != ':')
            return value;
        s = end + 1;
    }
}

/* text without underscores; the caller frees */
static char *without_underscores(const char *text)
{
    char *clean = s2s_xstrdup(text), *w = clean;
    for (const char *r = text; *r; r++)
        if (*r != '_')
            *w++ = *r;
    *w = 0;
    return clean;
}

static double float_value(const char *text, enum float_form form)
{
    if (form == FLOAT_WORD)
        return strchr("nN", text[1]) ? NAN : text[0] == '-' ? -INFINITY : INFINITY;
    char *clean = without_underscores(text);
    bool negative = clean[0] == '-';
    const char *start = clean + (clean[0] == '-' || clean[0] == '+');
    double value = form == FLOAT_SEXAGESIMAL ? sexagesimal_value(start) : strtod(start, NULL);
    free(clean);
    return negative ? -value : value;
}

/* The base of an integer's text (60 for 1:30), 0 if it is none; *start is where its digits are. */
static int int_base(const char *text, const char **start)
{
    const char *s = text + (*text == '-' || *text == '+');
    *start = s;
    if (s[0] == '0' && (s[1] == 'b' || s[1] == 'x')) {
        int base = s[1] == 'b' ? 2 : 16;
        const char *set = base == 2 ? "01_" : "0123456789abcdefABCDEF_";
        *start = s + 2;
        /* PyYAML takes 0x_ for an integer and then fails to read it: a string here */
        return s[2] && !*skip(s + 2, set) && *skip(s + 2, "_") ? base : 0;
    }
    if (s[0] == '0' && s[1])
        return *skip(s + 1, "01234567_") ? 0 : 8;
    const char *end = digits(s);
    if (!end)
        return 0;
    if (!*end)
        return 10;
    return s[0] != '0' && *end == ':' && !*sexagesimal(end) ? 60 : 0;
}

static void set_int(struct s2s_conf *node, const char *start, int base)
{
    bool negative = node->text[0] == '-';
    char *clean = without_underscores(start);
    double wide = 0;
    errno = 0;
    uint64_t value = 0;
    if (base == 60) {
        wide = sexagesimal_value(clean);
        value = wide < 9e15 ? (uint64_t)wide : 0;
        errno = wide < 9e15 ? 0 : ERANGE;
    } else {
        value = strtoull(clean, NULL, base);
        wide = base == 10 ? strtod(clean, NULL) : (double)value;
    }
    free(clean);
    if (errno || value > (uint64_t)INT64_MAX + negative) {
        node->kind = S2S_CONF_FLOAT;
        node->as_float = negative ? -wide : wide;
        return;
    }
    node->kind = S2S_CONF_INT;
    node->as_int = negative ? (int64_t)(0 - value) : (int64_t)value;
}

void conf_resolve_scalar(struct s2s_conf *node)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const truths[] = {"yes",  "Yes", "YES", "true", "True",
                                         "TRUE", "on",  "On",  "ON",   NULL};
    static const char *const falsehoods[] = {"no",    "No",  "NO",  "false", "False",
                                             "FALSE", "off", "Off", "OFF",   NULL};
    const char *text = node->text, *start = NULL;
    node->kind = S2S_CONF_STRING;
    if (is_any_of(text, nulls)) {
        node->kind = S2S_CONF_NULL;
        return;
    }
    bool truth = is_any_of(text, truths);
    if (truth || is_any_of(text, falsehoods)) {
        node->kind = S2S_CONF_BOOL;
        node->as_bool = truth;
        return;
    }
    if (!strchr("-+.0123456789", *text))
        return;
    enum float_form form = float_form(text);
    if (form != NOT_FLOAT) {
        node->kind = S2S_CONF_FLOAT;
        node->bare_float = form == FLOAT_BARE;
        node->as_float = float_value(text, form);
        return;
    }
    int base = int_base(text, &start);
    if (base)
        set_int(node, start, base);
}

bool conf_plain_is_string(const char *text)
{
    struct s2s_conf probe = {.text = text};
    conf_resolve_scalar(&probe);
    return probe.kind == S2S_CONF_STRING && strcmp(text, "<<") != 0 && strcmp(text, "=") != 0;
}
