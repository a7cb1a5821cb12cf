#include "lib/data/skim.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"

struct text {
    const char *at, *end;
};

static void skip_space(struct text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t' || *t->at == '\r'))
        t->at++;
}

static bool take_char(struct text *t, char c)
{
    skip_space(t);
    if (t->at == t->end || *t->at != c)
        return false;
    t->at++;
    return true;
}

/* A number as JSON spells it: without a sign, and 0 alone begins with 0. */
static bool take_number(struct text *t, int32_t max, int32_t *number)
{
    int64_t value = 0;
    skip_space(t);
    const char *first = t->at;
    while (t->at < t->end && *t->at >= '0' && *t->at <= '9' && value <= max)
        value = value * 10 + (*t->at++ - '0');
    *number = (int32_t)value;
    return t->at > first && value <= max && (*first != '0' || t->at == first + 1);
}

/* From behind the '[' to the ']', on which t then stands. */
static bool take_numbers(struct data_list *list, struct text *t)
{
    size_t n = 0, cap = 0;
    int32_t *values = s2s_xmalloc(sizeof *values);
    skip_space(t);
    bool ok = t->at < t->end;
    if (ok && *t->at != ']')
        do {
            s2s_grow(&values, n, &cap, sizeof *values);
            ok = take_number(t, list->max, &values[n++]);
        } while (ok && take_char(t, ','));
    if (!ok || t->at == t->end || *t->at != ']') {
        free(values);
        return false;
    }
    list->values = values;
    list->n = n;
    return true;
}

/* From behind the opening quote to behind the closing one; true if there was a backslash. */
static bool skip_string(struct text *t)
{
    bool has_escape = false;
    for (; t->at < t->end && *t->at != '"'; t->at++)
        if (*t->at == '\\') {
            has_escape = true;
            t->at += t->at + 1 < t->end;
        }
    t->at += t->at < t->end;
    return has_escape;
}

static struct data_list *find_list(struct data_list *lists, size_t n_lists, const char *key,
                                   size_t len)
{
    for (size_t i = 0; i < n_lists; i++)
        if (strlen(lists[i].key) == len && !memcmp(lists[i].key, key, len))
            return &lists[i];
    return NULL;
}

/* Where the object's text is walked through, and what is left of it so far. */
struct walk {
    struct text t;
    const char *copied; /* so far */
    char *rest;
    size_t rest_len;
    unsigned seen; /* a bit a list whose key was there */
};

static void copy_up_to_here(struct walk *w)
{
    size_t n = (size_t)(w->t.at - w->copied);
    memcpy(w->rest + w->rest_len, w->copied, n);
    w->rest_len += n;
    w->copied = w->t.at;
}

/* Behind the opening quote of a string of the object itself: a key, or a value. False where the
 * parser may see another key than we do. */
static bool take_member(struct walk *w, struct data_list *lists, size_t n_lists)
{
    const char *key = w->t.at;
    const bool has_escape = skip_string(&w->t);
    const size_t len = (size_t)(w->t.at - key) - 1;
    if (!take_char(&w->t, ':'))
        return true;
    struct data_list *list = find_list(lists, n_lists, key, len);
    const unsigned bit = list ? 1U << (list - lists) : 0;
    if (has_escape || (w->seen & bit))
        return false;
    w->seen |= bit;
    if (!list || !take_char(&w->t, '['))
        return true;
    copy_up_to_here(w);
    if (take_numbers(list, &w->t))
        w->copied = w->t.at++;
    else
        w->t.at = w->copied - 1; /* the '[' is walked over as any other is */
    return true;
}

char *data_skim(struct data_list *lists, size_t n_lists, const struct s2s_line *line,
                size_t *rest_len)
{
    struct walk w = {.t = {line->text, line->text + line->len}, .copied = line->text};
    int64_t depth = 0;
    bool is_simple = true;
    w.rest = s2s_xmalloc(line->len + 1);
    while (is_simple && w.t.at < w.t.end) {
        const char c = *w.t.at++;
        if (c == '"' && depth == 1)
            is_simple = take_member(&w, lists, n_lists);
        else if (c == '"')
            skip_string(&w.t);
        else
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    }
    copy_up_to_here(&w);
    *rest_len = w.rest_len;
    if (is_simple && w.rest_len < line->len)
        return w.rest;
    data_skim_release(lists, n_lists);
    free(w.rest);
    return NULL;
}

void data_skim_release(struct data_list *lists, size_t n_lists)
{
    for (size_t i = 0; i < n_lists; i++) {
        free(lists[i].values);
        lists[i].values = NULL;
        lists[i].n = 0;
    }
}
