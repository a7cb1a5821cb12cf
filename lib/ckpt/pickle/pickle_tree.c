/* Queries of the tree that the machine built, and its conversion to JSON. */
#include "lib/ckpt/pickle/pickle.h"

#include <math.h>

#include "lib/base/base.h"
#include "lib/ckpt/pickle/view.h"

static const struct ckpt_node *global_of(const struct ckpt_node *node)
{
    if (node && node->kind == CKPT_RECORD)
        node = node->items[0];
    return node && node->kind == CKPT_GLOBAL ? node : NULL;
}

bool ckpt_is_named(const struct ckpt_node *node, const char *name)
{
    size_t len;
    node = global_of(node);
    const char *own = node ? ckpt_global_name(node, &len) : NULL;
    return own && len == strlen(name) && memcmp(own, name, len) == 0;
}

bool ckpt_is_of(const struct ckpt_node *node, const char *module)
{
    const struct ckpt_node *global = global_of(node);
    return global && global->n == strlen(module) && memcmp(global->text, module, global->n) == 0;
}

bool ckpt_is(const struct ckpt_node *node, const char *module, const char *name)
{
    return ckpt_is_of(node, module) && ckpt_is_named(global_of(node), name);
}

bool ckpt_is_float_array(const struct ckpt_node *node)
{
    /* _reconstruct(numpy.ndarray, ..), then (version, shape, dtype, in Fortran's order, bytes) */
    const bool is_array = node && node->kind == CKPT_RECORD &&
                          (ckpt_is(node, "numpy._core.multiarray", "_reconstruct") ||
                           ckpt_is(node, "numpy.core.multiarray", "_reconstruct"));
    const struct ckpt_node *state = is_array ? node->items[2] : NULL;
    if (!state || state->kind != CKPT_TUPLE || state->n < 3 ||
        state->items[1]->kind != CKPT_TUPLE || state->items[1]->n == 0 ||
        state->items[2]->kind != CKPT_RECORD || state->items[2]->items[1]->n == 0)
        return false;
    const struct ckpt_node *code = state->items[2]->items[1]->items[0];
    return (code->kind == CKPT_STR && code->len && code->text[0] == 'f') ||
           ckpt_is_of(code, "ml_dtypes");
}

bool ckpt_str_is(const struct ckpt_node *node, const char *s)
{
    return node && node->kind == CKPT_STR && node->len == strlen(s) &&
           memcmp(node->text, s, node->len) == 0;
}

/* Records of interest have up to ten fields; the limit bounds the time of a search. Of equal keys
 * the last counts, as in Python. */
enum { MAX_FIELDS = 256 };

const struct ckpt_node *ckpt_get(const struct ckpt_node *node, const char *key)
{
    if (node && node->kind == CKPT_RECORD)
        node = node->items[2] ? node->items[2] : node->items[3];
    if (!node || node->kind != CKPT_DICT)
        return NULL;
    const struct ckpt_node *value = NULL;
    for (uint32_t i = 0; i < node->n && i < 2 * MAX_FIELDS; i += 2)
        if (ckpt_str_is(node->items[i], key))
            value = node->items[i + 1];
    return value;
}

bool ckpt_get_int(const struct ckpt_node *node, int64_t *value)
{
    if (!node || node->kind != CKPT_INT)
        return false;
    *value = node->i;
    return true;
}

int ckpt_get_ints(const struct ckpt_node *node, int64_t *values, int max)
{
    if (!node || (node->kind != CKPT_TUPLE && node->kind != CKPT_LIST) || node->n > (uint32_t)max)
        return -1;
    for (uint32_t i = 0; i < node->n; i++)
        if (!ckpt_get_int(node->items[i], &values[i]))
            return -1;
    return (int)node->n;
}

/* ---- JSON ---- */

enum { MAX_DEPTH = 1000 };

struct printer {
    struct ckpt_json_left *left;
    bool in_key; /* inside of a key: dicts are not nested there, as escaping would double the text
                  * at each level */
};

static json_t *to_json(struct printer *p, const struct ckpt_node *node, int depth);

static json_t *text_json(struct printer *p, const char *text, size_t len)
{
    if (len > p->left->text_bytes) {
        p->left->cut = true;
        return json_string("...");
    }
    p->left->text_bytes -= len;
    json_t *value = json_stringn(text, len);
    return value ? value : json_string("(text that is not UTF-8)");
}

/* Decimal digits of a little-endian two's complement number. */
static json_t *bigint_json(const struct ckpt_node *node)
{
    enum { MAX = 64 };
    unsigned char value[MAX];
    char digits[3 * MAX], text[3 * MAX + 2];
    size_t n = node->len, n_digits = 0, at = 0;
    if (n > MAX)
        return json_sprintf("(integer of %zu bytes)", n);
    bool negative = node->text[n - 1] & 0x80;
    unsigned carry = 1;
    for (size_t i = 0; i < n; i++) {
        value[i] = (unsigned char)node->text[i];
        if (negative) {
            unsigned sum = (unsigned char)~value[i] + carry;
            value[i] = (unsigned char)sum;
            carry = sum >> 8;
        }
    }
    for (bool more = true; more;) {
        unsigned rest = 0;
        more = false;
        for (size_t i = n; i-- > 0;) {
            unsigned now = rest << 8 | value[i];
            value[i] = (unsigned char)(now / 10);
            rest = now % 10;
            more |= value[i] != 0;
        }
        digits[n_digits++] = (char)('0' + rest);
    }
    if (negative)
        text[at++] = '-';
    while (n_digits)
        text[at++] = digits[--n_digits];
    return json_stringn(text, at);
}

static json_t *global_json(struct printer *p, const struct ckpt_node *node)
{
    struct s2s_buf text = S2S_BUF_INIT;
    size_t len;
    const char *name = ckpt_global_name(node, &len);
    s2s_buf_add(&text, node->text, node->n);
    s2s_buf_putc(&text, '.');
    s2s_buf_add(&text, name, len);
    json_t *value = text_json(p, text.data, text.len);
    s2s_buf_release(&text);
    return value;
}

static json_t *list_json(struct printer *p, const struct ckpt_node *node, int depth)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < node->n; i++)
        json_array_append_new(list, to_json(p, node->items[i], depth));
    return list;
}

/* Keys that are not strings are converted to strings, and so are strings with a zero byte. */
static json_t *dict_json(struct printer *p, const struct ckpt_node *node, int depth)
{
    json_t *dict = json_object();
    for (uint32_t i = 0; i < node->n; i += 2) {
        const bool in_key = p->in_key;
        p->in_key = true;
        json_t *key = to_json(p, node->items[i], depth);
        p->in_key = in_key;
        json_t *value = to_json(p, node->items[i + 1], depth);
        const char *text = json_string_value(key);
        const bool whole = text && strlen(text) == json_string_length(key);
        char *dumped = whole ? NULL : json_dumps(key, JSON_ENCODE_ANY | JSON_COMPACT);
        const char *name = dumped ? dumped : text;
        if (!name || json_object_set_new(dict, name, value) < 0)
            json_object_set_new(dict, "(key that is not text)", json_null());
        free(dumped);
        json_decref(key);
    }
    return dict;
}

/* Short for dtypes, sizes, paths and enums, which have only a class and arguments. */
static json_t *record_json(struct printer *p, const struct ckpt_node *node, int depth)
{
    const struct ckpt_node *state = node->items[2], *contents = node->items[3];
    if (ckpt_is(node, "argparse", "Namespace") && state && state->kind == CKPT_DICT)
        return dict_json(p, state, depth);
    json_t *value = json_object();
    json_object_set_new(value, "class", global_json(p, node->items[0]));
    if (node->items[1]->n)
        json_object_set_new(value, "args", to_json(p, node->items[1], depth));
    /* what a tensor wraps is no value, and it may have its mesh in common with all others */
    if (state && !ckpt_is(node, "torch._utils", "_rebuild_wrapper_subclass"))
        json_object_set_new(value, "state", to_json(p, state, depth));
    if (contents)
        json_object_set_new(value, "contents", to_json(p, contents, depth));
    return value;
}

/* As its record would be converted. */
static json_t *tensor_json(struct printer *p, const struct ckpt_node *node)
{
    json_t *args = ckpt_view_args(node->view);
    const size_t n = 1 + json_array_size(args) + 2 * json_array_size(json_array_get(args, 2));
    if (n > p->left->nodes) {
        json_decref(args);
        return json_string("...");
    }
    p->left->nodes -= n;
    return json_pack("{s:s, s:o}", "class", "torch._utils._rebuild_tensor_v2", "args", args);
}

static json_t *value_json(struct printer *p, const struct ckpt_node *node, int depth)
{
    switch ((enum ckpt_kind)node->kind) {
    case CKPT_LONG:
        s2s_warn("ckpt", "a text of %u bytes (byte %u of the pickle) is too large to be kept",
                 node->len, node->offset);
        return json_sprintf("(%u bytes of text)", node->len);
    case CKPT_TENSOR:
        return tensor_json(p, node);
    case CKPT_DTENSOR: /* they are in files of which no value is shown */
    case CKPT_FORGOTTEN:
    case CKPT_NONE:
        return json_null();
    case CKPT_BOOL:
        return json_boolean(node->i);
    case CKPT_INT:
        return json_integer(node->i);
    case CKPT_BIGINT:
        return bigint_json(node);
    case CKPT_FLOAT:
        return isfinite(node->f) ? json_real(node->f)
                                 : json_string(isnan(node->f) ? "nan"
                                               : node->f > 0  ? "inf"
                                                              : "-inf");
    case CKPT_STR:
        return text_json(p, node->text, node->len);
    case CKPT_BYTES:
        p->left->n_bytes++;
        return json_sprintf("(%u bytes)", node->len);
    case CKPT_LIST:
    case CKPT_TUPLE:
    case CKPT_SET:
        return list_json(p, node, depth + 1);
    case CKPT_DICT:
        return dict_json(p, node, depth + 1);
    case CKPT_GLOBAL:
        return global_json(p, node);
    case CKPT_RECORD:
        return record_json(p, node, depth + 1);
    case CKPT_PERSID:
        return json_string("(storage)");
    }
    return json_null();
}

/* Units of memory: an empty JSON object takes 240 bytes, an array 120, a number 30. */
static size_t weight(const struct ckpt_node *node)
{
    return node->kind == CKPT_DICT || node->kind == CKPT_RECORD ? 8
           : node->kind == CKPT_LIST                            ? 4
                                                                : 1;
}

static json_t *to_json(struct printer *p, const struct ckpt_node *node, int depth)
{
    if (p->left->nodes == 0 || depth > MAX_DEPTH || node->shown ||
        (p->in_key && node->kind == CKPT_DICT))
        return json_string("...");
    p->left->nodes -= weight(node) < p->left->nodes ? weight(node) : p->left->nodes;
    ((struct ckpt_node *)node)->shown = true;
    json_t *value = value_json(p, node, depth);
    ((struct ckpt_node *)node)->shown = false;
    return value;
}

struct ckpt_json_left ckpt_json_limit(size_t pickle_len)
{
    return (struct ckpt_json_left){.nodes = (256 << 10) + 2 * pickle_len,
                                   .text_bytes = (1 << 20) + 4 * pickle_len};
}

json_t *ckpt_node_json(const struct ckpt_node *node, struct ckpt_json_left *left)
{
    struct printer p = {.left = left};
    return to_json(&p, node, 0);
}
