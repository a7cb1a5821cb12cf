/* Reads values of JSON objects. */
#include "lib/data/line_json.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/io/there.h"

json_t *data_load_object(const struct s2s_line *line, struct s2s_error *err)
{
    json_error_t at;
    json_t *object = json_loadb(line->text, line->len, JSON_REJECT_DUPLICATES, &at);
    if (!object) {
        s2s_error_set(err, S2S_E_FORMAT, "column %d: %s", at.column, at.text);
    } else if (!json_is_object(object)) {
        s2s_error_set(err, S2S_E_FORMAT, "not a JSON object");
        json_decref(object);
        object = NULL;
    }
    return object;
}

int data_get_string(char **out, const json_t *object, const char *key, struct s2s_error *err)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_string(value))
        return s2s_error_set(err, S2S_E_FORMAT, "'%s' is no string", key);
    free(*out);
    *out = s2s_xstrdup(json_string_value(value));
    return 1;
}

int data_get_number(double *out, const json_t *object, const char *key, double min,
                    struct s2s_error *err)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_number(value) || !(json_number_value(value) >= min) ||
        !isfinite(json_number_value(value)))
        return s2s_error_set(err, S2S_E_FORMAT, "'%s' is no number of at least %g", key, min);
    *out = json_number_value(value);
    return 1;
}

int data_get_int(int *out, const json_t *object, const char *key, int min, struct s2s_error *err)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return 0;
    json_int_t number = json_is_real(value) &&
                                json_real_value(value) == trunc(json_real_value(value)) &&
                                fabs(json_real_value(value)) < 1e9
                            ? (json_int_t)json_real_value(value)
                            : json_integer_value(value);
    if (!json_is_number(value) || (json_is_real(value) && number != json_real_value(value)) ||
        number < min || number > INT32_MAX)
        return s2s_error_set(err, S2S_E_FORMAT, "'%s' is no whole number of at least %d", key, min);
    *out = (int)number;
    return 1;
}

bool data_is_truthy(const json_t *value)
{
    if (!value)
        return false;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return json_object_size(value) > 0;
    case JSON_ARRAY:
        return json_array_size(value) > 0;
    case JSON_STRING:
        return json_string_length(value) > 0;
    case JSON_INTEGER:
        return json_integer_value(value) != 0;
    case JSON_REAL:
        return json_real_value(value) != 0;
    case JSON_TRUE:
        return true;
    default:
        return false;
    }
}

/* Where the manifest's folder ends that a name may be relative to; NULL: it is none. */
static const char *folder_end(const char *source, const char *manifest)
{
    return source[0] != '/' && manifest ? strrchr(manifest, '/') : NULL;
}

bool data_is_resolved(const char *source, const char *manifest)
{
    return !folder_end(source, manifest);
}

char *data_resolve(const char *source, const char *manifest)
{
    const char *slash = folder_end(source, manifest);
    if (slash) {
        char *beside = s2s_xasprintf("%.*s/%s", (int)(slash - manifest), manifest, source);
        if (s2s_is_there(AT_FDCWD, beside))
            return beside;
        free(beside);
    }
    return s2s_xstrdup(source);
}

const char *data_stem_find(const char *path, size_t len, size_t *stem_len)
{
    while (len > 0 && path[len - 1] == '/')
        len--;
    size_t begin = len;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    for (size_t at = len; at-- > begin + 1;)
        if (path[at] == '.' && at + 1 < len) {
            len = at;
            break;
        } else if (path[at] == '.') {
            break;
        }
    *stem_len = len - begin;
    return path + begin;
}

char *data_stem_of(const char *path)
{
    size_t len;
    const char *stem = data_stem_find(path, strlen(path), &len);
    return s2s_xstrndup(stem, len);
}

int data_get_channels(int **channels, int *n_channels, const json_t *value, struct s2s_error *err)
{
    enum { MOST = 1024 };
    const bool is_list = json_is_array(value);
    const size_t n = is_list ? json_array_size(value) : 1;
    if (n < 1 || n > MOST)
        return s2s_error_set(err, S2S_E_FORMAT, "%zu channels", n);
    *channels = s2s_xcalloc(n, sizeof **channels);
    *n_channels = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = is_list ? json_array_get(value, i) : value;
        if (!json_is_integer(one) || json_integer_value(one) < 0 ||
            json_integer_value(one) > INT32_MAX)
            return s2s_error_set(err, S2S_E_FORMAT, "'channel' is no number of a channel");
        (*channels)[i] = (int)json_integer_value(one);
    }
    return 0;
}
