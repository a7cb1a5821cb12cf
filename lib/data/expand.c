/* Expands patterns of names. */
#include "lib/data/expand.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/io/there.h"

enum { MAX_NAMES = 1000000, MAX_DEPTH = 32 };

struct names {
    char **items;
    size_t n, cap;
};

static void add_name(struct names *names, char *name)
{
    s2s_grow(&names->items, names->n, &names->cap, sizeof *names->items);
    names->items[names->n++] = name;
}

static void release(struct names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->items[i]);
    free(names->items);
    *names = (struct names){.n = 0};
}

/* Length of a mark that opens (or closes) a group at `at`; 0: there is none. */
static size_t mark(const char *at, bool opens)
{
    if (!strncmp(at, opens ? "_OP_" : "_CL_", 4))
        return 4;
    return *at && strchr(opens ? "{[(<" : "}])>", *at) ? 1 : 0;
}

/* The mark that closes the group whose inside begins at `at`, or NULL. */
static const char *find_close(const char *at)
{
    int depth = 1;
    while (*at) {
        size_t opens = mark(at, true), closes = mark(at, false);
        depth += (opens > 0) - (closes > 0);
        if (depth == 0)
            return at;
        at += opens + closes > 0 ? opens + closes : 1;
    }
    return NULL;
}

/* ---- one group ---- */

static bool is_number(const char *text, size_t len)
{
    size_t i = len > 1 && text[0] == '-';
    if (i == len || len > 10)
        return false;
    for (; i < len; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return true;
}

static int64_t number_of(const char *text, size_t len)
{
    int64_t value = 0;
    const bool negative = text[0] == '-';
    for (size_t i = negative; i < len; i++)
        value = 10 * value + (text[i] - '0');
    return negative ? -value : value;
}

/* Width that the numbers of a range keep: where one of the ends begins with a zero. */
static int width_of(const char *text, size_t len)
{
    return len > 1 && (text[0] == '0' || (text[0] == '-' && text[1] == '0')) ? (int)len : 0;
}

struct range {
    int64_t first, last, step;
    int width;
    bool letters;
};

/* a..b or a..b..step */
static bool parse_range(struct range *r, const char *text, size_t len)
{
    const char *dots = memmem(text, len, "..", 2);
    if (!dots)
        return false;
    const char *second = dots + 2;
    const size_t len_first = (size_t)(dots - text);
    size_t len_second = len - len_first - 2;
    const char *more = memmem(second, len_second, "..", 2);
    *r = (struct range){.step = 1};
    if (more) {
        const size_t len_step = len_second - (size_t)(more - second) - 2;
        len_second = (size_t)(more - second);
        if (!is_number(more + 2, len_step))
            return false;
        r->step = number_of(more + 2, len_step);
        r->step = r->step < 0 ? -r->step : r->step;
        r->step = r->step == 0 ? 1 : r->step;
    }
    if (is_number(text, len_first) && is_number(second, len_second)) {
        const int a = width_of(text, len_first), b = width_of(second, len_second);
        r->first = number_of(text, len_first);
        r->last = number_of(second, len_second);
        r->width = a > 0 || b > 0 ? (int)(len_first > len_second ? len_first : len_second) : 0;
        return true;
    }
    r->letters = len_first == 1 && len_second == 1 &&
                 ((text[0] | 32) >= 'a' && (text[0] | 32) <= 'z') &&
                 ((second[0] | 32) >= 'a' && (second[0] | 32) <= 'z');
    r->first = text[0];
    r->last = second[0];
    return r->letters;
}

static bool add_range(struct names *words, const struct range *r)
{
    const int64_t sign = r->first <= r->last ? 1 : -1;
    const int64_t n = (r->last - r->first) * sign / r->step + 1;
    if (n > MAX_NAMES)
        return false;
    for (int64_t i = 0; i < n; i++) {
        const int64_t value = r->first + i * sign * r->step;
        add_name(words, r->letters ? s2s_xasprintf("%c", (char)value)
                                   : s2s_xasprintf("%0*lld", r->width, (long long)value));
    }
    return true;
}

static bool expand(struct names *out, const char *prefix, const char *text, size_t len, int depth);

/* Words with commas, each of which may hold groups; commas inside those do not count. */
static bool add_words(struct names *words, const char *text, size_t len, int depth)
{
    size_t begin = 0;
    int inside = 0;
    for (size_t i = 0; i <= len; i++) {
        if (i < len) {
            inside += (mark(text + i, true) > 0) - (mark(text + i, false) > 0);
            if (text[i] != ',' || inside > 0)
                continue;
        }
        if (!expand(words, "", text + begin, i - begin, depth + 1))
            return false;
        begin = i + 1;
    }
    return true;
}

static bool has_comma(const char *text, size_t len)
{
    int inside = 0;
    for (size_t i = 0; i < len; i++) {
        inside += (mark(text + i, true) > 0) - (mark(text + i, false) > 0);
        if (text[i] == ',' && inside == 0)
            return true;
    }
    return false;
}

/* ---- all groups ---- */

/* prefix and what text [len] stands for. False: too many, or too deep. */
static bool expand(struct names *out, const char *prefix, const char *text, size_t len, int depth)
{
    char *copy = s2s_xstrndup(text, len);
    bool ok = depth < MAX_DEPTH;
    for (const char *at = copy; ok && *at; at++) {
        const size_t opens = mark(at, true);
        const char *close = opens ? find_close(at + opens) : NULL;
        if (!close)
            continue;
        const char *inside = at + opens;
        const size_t len_inside = (size_t)(close - inside);
        struct names words = {.n = 0};
        struct range range;
        if (parse_range(&range, inside, len_inside))
            ok = add_range(&words, &range);
        else if (has_comma(inside, len_inside))
            ok = add_words(&words, inside, len_inside, depth);
        else
            continue;
        const char *rest = close + mark(close, false);
        for (size_t i = 0; ok && i < words.n; i++) {
            char *begin = s2s_xasprintf("%s%.*s%s", prefix, (int)(at - copy), copy, words.items[i]);
            ok = expand(out, begin, rest, strlen(rest), depth) && out->n <= MAX_NAMES;
            free(begin);
        }
        release(&words);
        free(copy);
        return ok;
    }
    add_name(out, s2s_xasprintf("%s%s", prefix, copy));
    free(copy);
    return ok;
}

int s2s_data_expand(char ***paths, size_t *n_paths, const char *pattern, struct s2s_error *err)
{
    struct names names = {.n = 0};
    bool ok = true;
    if (s2s_is_there(AT_FDCWD, pattern))
        add_name(&names, s2s_xstrdup(pattern));
    else
        ok = expand(&names, "", pattern, strlen(pattern), 0);
    if (!ok) {
        release(&names);
        return s2s_error_set(err, S2S_E_RANGE,
                             "%s: stands for more than %d names, or is nested too "
                             "deep",
                             pattern, MAX_NAMES);
    }
    *paths = s2s_xrealloc(*paths, *n_paths + names.n + 1, sizeof **paths);
    memcpy(*paths + *n_paths, names.items, names.n * sizeof *names.items);
    *n_paths += names.n;
    free(names.items);
    return 0;
}
