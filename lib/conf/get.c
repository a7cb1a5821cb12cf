/* Reads typed values from a tree, with errors that name file, line and key. */
#include "lib/conf/conf_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/distance.h"
#include "lib/base/error.h"
#include "lib/base/mem.h"

const char *s2s_conf_kind_name(enum s2s_conf_kind kind)
{
    static const char *const names[] = {
        [S2S_CONF_NULL] = "null",      [S2S_CONF_BOOL] = "a boolean", [S2S_CONF_INT] = "an integer",
        [S2S_CONF_FLOAT] = "a number", [S2S_CONF_STRING] = "text",    [S2S_CONF_LIST] = "a list",
        [S2S_CONF_MAP] = "a map",
    };
    return names[kind];
}

void s2s_conf_add_place(struct s2s_buf *buf, const struct s2s_conf_place *place)
{
    const struct s2s_conf_source *source = place->source;
    if (!source)
        return;
    s2s_buf_puts(buf, source->name);
    if (source->origin == S2S_CONF_FROM_FILE && place->line)
        s2s_buf_printf(buf, ":%d:%d", place->line, place->column);
}

int conf_error_at(struct s2s_error *err, int code, const struct s2s_conf_source *source, int line,
                  int column, const char *fmt, ...)
{
    struct s2s_buf place = S2S_BUF_INIT;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    s2s_conf_add_place(&place, &(struct s2s_conf_place){source, line, column});
    s2s_error_set(err, code, "%s: %s", place.data ? place.data : "", text);
    s2s_buf_release(&place);
    return code;
}

int s2s_conf_error(struct s2s_error *err, int code, const struct s2s_conf *node, const char *fmt,
                   ...)
{
    struct s2s_buf where = S2S_BUF_INIT;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    s2s_conf_add_place(&where, &node->place);
    if (where.len)
        s2s_buf_puts(&where, ": ");
    size_t before = where.len;
    s2s_conf_add_path(&where, node);
    if (where.len > before)
        s2s_buf_puts(&where, ": ");
    s2s_error_set(err, code, "%s%s", where.data ? where.data : "", text);
    s2s_buf_release(&where);
    return code;
}

const char *s2s_conf_line(const struct s2s_conf_place *place, size_t *len_bytes)
{
    const struct s2s_conf_source *source = place->source;
    if (!source || !source->text || place->line < 1)
        return NULL;
    const char *at = source->text, *end = source->text + source->len_bytes;
    for (int line = 1; line < place->line; line++) {
        at = memchr(at, '\n', (size_t)(end - at));
        if (!at)
            return NULL;
        at++;
    }
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    stop = stop ? stop : end;
    *len_bytes = (size_t)(stop - at);
    if (*len_bytes && at[*len_bytes - 1] == '\r')
        --*len_bytes;
    return at;
}

/* "expected X, found Y", with the value's text where it has one */
static int wrong_kind(const struct s2s_conf *node, const char *wanted, struct s2s_error *err)
{
    if (node->kind == S2S_CONF_STRING && node->text)
        return s2s_conf_error(err, S2S_E_FORMAT, node, "expected %s, found '%.100s'", wanted,
                              node->text);
    if (node->text && node->kind != S2S_CONF_NULL)
        return s2s_conf_error(err, S2S_E_FORMAT, node, "expected %s, found %.100s", wanted,
                              node->text);
    return s2s_conf_error(err, S2S_E_FORMAT, node, "expected %s, found %s", wanted,
                          s2s_conf_kind_name(node->kind));
}

int s2s_conf_as_i64(int64_t *out, const struct s2s_conf *node, int64_t min, int64_t max,
                    struct s2s_error *err)
{
    int64_t value;
    if (node->kind == S2S_CONF_INT) {
        value = node->as_int;
    } else if (node->kind == S2S_CONF_FLOAT && node->as_float == floor(node->as_float)) {
        if (!(fabs(node->as_float) < 9.2e18))
            return s2s_conf_error(err, S2S_E_RANGE, node, "%s does not fit 64 bits", node->text);
        value = (int64_t)node->as_float;
    } else {
        return wrong_kind(node, "an integer", err);
    }
    if (value < min && max == INT64_MAX)
        return s2s_conf_error(err, S2S_E_RANGE, node, "expected at least %lld, found %lld",
                              (long long)min, (long long)value);
    if (value < min || value > max)
        return s2s_conf_error(err, S2S_E_RANGE, node, "expected %lld to %lld, found %lld",
                              (long long)min, (long long)max, (long long)value);
    *out = value;
    return 0;
}

int s2s_conf_as_f64(double *out, const struct s2s_conf *node, struct s2s_error *err)
{
    if (node->kind == S2S_CONF_INT)
        *out = (double)node->as_int;
    else if (node->kind == S2S_CONF_FLOAT)
        *out = node->as_float;
    else
        return wrong_kind(node, "a number", err);
    return 0;
}

int s2s_conf_as_bool(bool *out, const struct s2s_conf *node, struct s2s_error *err)
{
    if (node->kind != S2S_CONF_BOOL)
        return wrong_kind(node, "true or false", err);
    *out = node->as_bool;
    return 0;
}

int s2s_conf_as_str(const char **out, const struct s2s_conf *node, struct s2s_error *err)
{
    if (!node->text || node->kind == S2S_CONF_NULL)
        return wrong_kind(node, "text", err);
    *out = node->text;
    return 0;
}

int s2s_conf_as_choice(int *out, const struct s2s_conf *node, const char *const *choices,
                       struct s2s_error *err)
{
    const char *text = NULL;
    int rc = s2s_conf_as_str(&text, node, err);
    if (rc < 0)
        return rc;
    struct s2s_buf all = S2S_BUF_INIT;
    for (int i = 0; choices[i]; i++) {
        if (!strcmp(choices[i], text)) {
            s2s_buf_release(&all);
            *out = i;
            return 0;
        }
        s2s_buf_printf(&all, "%s%s", i ? ", " : "", choices[i]);
    }
    const char *nearest = s2s_conf_nearest(text, choices);
    s2s_conf_error(err, S2S_E_RANGE, node, "expected one of %s, found '%.100s'", all.data, text);
    s2s_buf_release(&all);
    return nearest ? s2s_error_hint(err, S2S_E_RANGE, "did you mean '%s'?", nearest) : S2S_E_RANGE;
}

static int missing(const struct s2s_conf *conf, const char *path, struct s2s_error *err)
{
    const struct s2s_conf *node = s2s_conf_find(conf, path);
    if (node)
        return s2s_conf_error(err, S2S_E_NOTFOUND, node, "a value is needed, found null");
    return s2s_conf_error(err, S2S_E_NOTFOUND, conf, "'%s' is missing", path);
}

/* The node at path if it is set, else NULL. */
static const struct s2s_conf *given(const struct s2s_conf *conf, const char *path)
{
    const struct s2s_conf *node = s2s_conf_find(conf, path);
    return node && node->kind != S2S_CONF_NULL ? node : NULL;
}

int s2s_conf_get_i64(int64_t *out, const struct s2s_conf *conf, const char *path, int64_t min,
                     int64_t max, struct s2s_error *err)
{
    const struct s2s_conf *node = given(conf, path);
    return node ? s2s_conf_as_i64(out, node, min, max, err) : missing(conf, path, err);
}

int s2s_conf_get_f64(double *out, const struct s2s_conf *conf, const char *path,
                     struct s2s_error *err)
{
    const struct s2s_conf *node = given(conf, path);
    return node ? s2s_conf_as_f64(out, node, err) : missing(conf, path, err);
}

int s2s_conf_get_bool(bool *out, const struct s2s_conf *conf, const char *path,
                      struct s2s_error *err)
{
    const struct s2s_conf *node = given(conf, path);
    return node ? s2s_conf_as_bool(out, node, err) : missing(conf, path, err);
}

int s2s_conf_get_str(const char **out, const struct s2s_conf *conf, const char *path,
                     struct s2s_error *err)
{
    const struct s2s_conf *node = given(conf, path);
    return node ? s2s_conf_as_str(out, node, err) : missing(conf, path, err);
}

int s2s_conf_get_choice(int *out, const struct s2s_conf *conf, const char *path,
                        const char *const *choices, struct s2s_error *err)
{
    const struct s2s_conf *node = given(conf, path);
    return node ? s2s_conf_as_choice(out, node, choices, err) : missing(conf, path, err);
}

int s2s_conf_get_i64_or(int64_t *out, const struct s2s_conf *conf, const char *path, int64_t min,
                        int64_t max, int64_t other, struct s2s_error *err)
{
    const struct s2s_conf *node = given(conf, path);
    *out = other;
    return node ? s2s_conf_as_i64(out, node, min, max, err) : 0;
}

int s2s_conf_get_f64_or(double *out, const struct s2s_conf *conf, const char *path, double other,
                        struct s2s_error *err)
{
    const struct s2s_conf *node = given(conf, path);
    *out = other;
    return node ? s2s_conf_as_f64(out, node, err) : 0;
}

int s2s_conf_get_bool_or(bool *out, const struct s2s_conf *conf, const char *path, bool other,
                         struct s2s_error *err)
{
    const struct s2s_conf *node = given(conf, path);
    *out = other;
    return node ? s2s_conf_as_bool(out, node, err) : 0;
}

int s2s_conf_get_str_or(const char **out, const struct s2s_conf *conf, const char *path,
                        const char *other, struct s2s_error *err)
{
    const struct s2s_conf *node = given(conf, path);
    *out = other;
    return node ? s2s_conf_as_str(out, node, err) : 0;
}

int s2s_conf_get_choice_or(int *out, const struct s2s_conf *conf, const char *path,
                           const char *const *choices, int other, struct s2s_error *err)
{
    const struct s2s_conf *node = given(conf, path);
    *out = other;
    return node ? s2s_conf_as_choice(out, node, choices, err) : 0;
}

int s2s_conf_get_map(const struct s2s_conf **out, const struct s2s_conf *conf, const char *path,
                     struct s2s_error *err)
{
    *out = given(conf, path);
    return *out && (*out)->kind != S2S_CONF_MAP ? wrong_kind(*out, "a map", err) : 0;
}

int s2s_conf_get_list(const struct s2s_conf **out, const struct s2s_conf *conf, const char *path,
                      struct s2s_error *err)
{
    *out = given(conf, path);
    return *out && (*out)->kind != S2S_CONF_LIST ? wrong_kind(*out, "a list", err) : 0;
}

int s2s_conf_check_keys(const struct s2s_conf *conf, const char *path, const char *const *known,
                        struct s2s_error *err)
{
    const struct s2s_conf *map = NULL;
    int rc = s2s_conf_get_map(&map, conf, path, err);
    for (size_t i = 0; rc >= 0 && map && i < map->n_items; i++) {
        const char *key = map->items[i]->key;
        int k = 0;
        while (known[k] && strcmp(known[k], key))
            k++;
        if (known[k])
            continue;
        struct s2s_conf at_key = *map->items[i];
        at_key.place.line = at_key.key_line;
        at_key.place.column = at_key.key_column;
        const char *nearest = s2s_conf_nearest(key, known);
        rc = nearest ? s2s_conf_error(err, S2S_E_FORMAT, &at_key,
                                      "unknown key '%.100s'; did you mean '%s'?", key, nearest)
                     : s2s_conf_error(err, S2S_E_FORMAT, &at_key, "unknown key '%.100s'", key);
    }
    return rc;
}

const char *s2s_conf_nearest(const char *text, const char *const *names)
{
    const size_t third = strlen(text) / 3;
    int best = (third < 1 ? 1 : third > 3 ? 3 : (int)third) + 1;
    const char *nearest = NULL;
    for (; *names; names++) {
        const int d = s2s_name_distance(text, *names, best - 1);
        if (d < best) {
            best = d;
            nearest = *names;
        }
    }
    return nearest;
}
