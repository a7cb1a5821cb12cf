/* Objects of strangers: what the fast reader takes is what jansson reads of it, key by key. */
#include <stdint.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/data/flat_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_same(const struct data_flat *v, const json_t *value)
{
    switch (v->kind) {
    case DATA_FLAT_NULL:
        return json_is_null(value);
    case DATA_FLAT_BOOL:
        return json_is_boolean(value) && json_is_true(value) == (v->whole != 0);
    case DATA_FLAT_INT:
        return json_is_integer(value) && json_integer_value(value) == v->whole &&
               v->real == (double)v->whole;
    case DATA_FLAT_REAL:
        return json_is_real(value) && json_real_value(value) == v->real;
    case DATA_FLAT_STRING:
        return json_is_string(value) && json_string_length(value) == v->text_len &&
               !memcmp(json_string_value(value), v->text, v->text_len + 1);
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct data_flat values[16];
    json_error_t at;
    const int n = data_flat_parse(values, 16, (const char *)data, size);
    if (n < 0)
        return 0;
    json_t *object = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, &at);
    if (!object || json_object_size(object) != (size_t)n)
        S2S_BUG("%d values, where jansson has %zu: %s", n, json_object_size(object), at.text);
    for (int i = 0; i < n; i++)
        if (strlen(values[i].key) != values[i].key_len ||
            !is_same(&values[i], json_object_get(object, values[i].key)))
            S2S_BUG("'%s' is not the same", values[i].key);
    json_decref(object);
    return 0;
}
