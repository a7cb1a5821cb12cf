/*
 * The plain line of ids in one pass: an object with keys id, input_ids, loss_mask and text, whole
 * numbers, and texts without escapes or bytes beyond ASCII. Whatever else a line may be, right or
 * wrong, is left to the parser of JSON, so this has no errors of its own.
 */
#include "lib/data/ids_scan.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"

struct scan {
    const char *at, *end;
};

static void skip_space(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

/* Passes over a mark, with white space before it. */
static bool take(struct scan *s, char mark)
{
    skip_space(s);
    if (s->at == s->end || *s->at != mark)
        return false;
    s->at++;
    return true;
}

/* A text, of which *len bytes begin at the result; NULL: another one. */
static const char *take_text(struct scan *s, size_t *len)
{
    if (!take(s, '"'))
        return NULL;
    const char *begin = s->at;
    while (s->at < s->end && *s->at != '"' && *s->at != '\\' && *s->at >= ' ' && *s->at < 0x7f)
        s->at++;
    *len = (size_t)(s->at - begin);
    return s->at < s->end && *s->at++ == '"' ? begin : NULL;
}

static bool take_number(struct scan *s, int32_t *value)
{
    enum { MAX_DIGITS = 10 };
    uint64_t n = 0;
    const char *begin = s->at;
    while (s->at < s->end && (unsigned)(*s->at - '0') < 10 && s->at - begin < MAX_DIGITS)
        n = n * 10 + (unsigned)(*s->at++ - '0');
    const ptrdiff_t n_digits = s->at - begin;
    if (n_digits == 0 || n > INT32_MAX || (n_digits > 1 && *begin == '0'))
        return false;
    *value = (int32_t)n;
    return true;
}

/* Room for all the numbers that the rest of a list may have: a digit and a comma each. */
static size_t most_numbers(const struct scan *s)
{
    const char *close = memchr(s->at, ']', (size_t)(s->end - s->at));
    return close ? (size_t)(close - s->at) / 2 + 1 : 0;
}

static bool take_ids(struct scan *s, struct s2s_ids_row *row)
{
    if (row->ids || !take(s, '['))
        return false;
    const size_t most = most_numbers(s);
    row->ids = s2s_xmalloc((most + 1) * sizeof *row->ids);
    if (take(s, ']'))
        return true;
    do {
        skip_space(s);
        if (row->n_ids == most || !take_number(s, &row->ids[row->n_ids]))
            return false;
        row->n_ids++;
    } while (take(s, ','));
    return take(s, ']');
}

static bool take_mask(struct scan *s, struct s2s_ids_row *row, size_t *n)
{
    if (row->loss_mask || !take(s, '['))
        return false;
    const size_t most = most_numbers(s);
    row->loss_mask = s2s_xmalloc(most + 1);
    if (take(s, ']'))
        return true;
    do {
        int32_t bit = 0;
        skip_space(s);
        if (*n == most || !take_number(s, &bit) || bit > 1)
            return false;
        row->loss_mask[(*n)++] = (uint8_t)bit;
    } while (take(s, ','));
    return take(s, ']');
}

static bool take_string(struct scan *s, char **to)
{
    size_t len;
    const char *text = *to ? NULL : take_text(s, &len);
    if (text)
        *to = s2s_xstrndup(text, len);
    return text;
}

static bool take_member(struct scan *s, struct s2s_ids_row *row, size_t *n_mask)
{
    size_t len;
    const char *key = take_text(s, &len);
    if (!key || !take(s, ':'))
        return false;
#define IS(name) (len == sizeof name - 1 && !memcmp(key, name, len))
    if (IS("input_ids"))
        return take_ids(s, row);
    if (IS("loss_mask"))
        return take_mask(s, row, n_mask);
    if (IS("id"))
        return take_string(s, &row->id);
    return IS("text") && take_string(s, &row->text);
#undef IS
}

bool data_scan_ids(struct s2s_ids_row *row, const struct s2s_line *line)
{
    struct scan s = {line->text, line->text + line->len};
    size_t n_mask = 0;
    *row = (struct s2s_ids_row)S2S_IDS_ROW_INIT;
    bool plain = take(&s, '{');
    while (plain && (plain = take_member(&s, row, &n_mask)) && take(&s, ','))
        ;
    plain = plain && take(&s, '}');
    skip_space(&s);
    if (plain && s.at == s.end && row->ids && (!row->loss_mask || n_mask == row->n_ids)) {
        if (!row->id)
            row->id = s2s_xasprintf("%lld", (long long)line->number);
        return true;
    }
    s2s_ids_row_release(row);
    return false;
}
