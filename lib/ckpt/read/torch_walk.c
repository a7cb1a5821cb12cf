/* Walks the object tree of a torch.save file and adds its tensors and objects by name. */
#include "lib/ckpt/read/torch_walk.h"

#include <math.h>

#include "lib/base/utf8.h"
#include "lib/ckpt/pickle/emit.h"
#include "lib/ckpt/pickle/dtensor.h"
#include "lib/ckpt/read/fsdp_place.h"

enum {
    MAX_DEPTH = 1000,
    MAX_SHOWN = 200,
    LOOKS = 16, /* key comparisons per value, on average */
    NAMES = 16  /* bytes of names per byte of pickle: in a list of bools each takes one byte, and
                 * its name is that of the list and its index */
};

/* ---- keys as parts of names ---- */

/* As Python's repr: the fewest digits that identify the number, with an exponent below 1e-4 and
 * from 1e16 on. */
static void put_float(struct s2s_buf *name, double value)
{
    char text[40];
    /* Normal numbers that 15 digits identify: start there, and strip trailing zeros below. */
    int n_digits = isnormal(value) ? 14 : 0, exponent = 0;
    do
        snprintf(text, sizeof text, "%.*e", n_digits++, value);
    while (n_digits < 17 && strtod(text, NULL) != value);
    const char *e = strchr(text, 'e');
    for (const char *at = e; at && n_digits > 1 && at[-1] == '0'; at--)
        n_digits--;
    if (e)
        exponent = (int)strtol(e + 1, NULL, 10);
    if (!e || exponent < -4 || exponent >= 16)
        s2s_buf_printf(name, "%.*e", n_digits - 1, value);
    else
        s2s_buf_printf(name, "%.*f", n_digits - 1 > exponent + 1 ? n_digits - 1 - exponent : 1,
                       value);
}

/* Appends a dict's key to a name as Python prints it; depth: of the tuples around it. Tuples of
 * keys work too; with `objects` also bytes, and objects (an enum's, a device) as the call that
 * constructs them. false: the key cannot be part of a name; something may have been appended. */
static bool put_key(struct s2s_buf *name, const struct ckpt_node *key, int depth, bool objects);

/* Stops once the name is too long: a tuple may refer to one long string a million times. */
static bool put_keys(struct s2s_buf *name, const struct ckpt_node *keys, int depth, bool objects)
{
    s2s_buf_putc(name, '(');
    for (uint32_t i = 0; i < keys->n && name->len <= CKPT_MAX_NAME; i++) {
        s2s_buf_puts(name, i ? ", " : "");
        if (depth > 3 || !put_key(name, keys->items[i], depth + 1, objects))
            return false;
    }
    return true;
}

static void put_bytes(struct s2s_buf *name, const struct ckpt_node *key)
{
    static const char hex[] = "0123456789abcdef";
    s2s_buf_puts(name, "b'");
    for (uint32_t i = 0; i < key->len && name->len <= CKPT_MAX_NAME; i++) {
        const unsigned char c = (unsigned char)key->text[i];
        if (c < ' ' || c > '~' || c == '\'' || c == '\\')
            s2s_buf_add(name, (char[]){'\\', 'x', hex[c >> 4], hex[c & 15]}, 4);
        else
            s2s_buf_putc(name, (char)c);
    }
    s2s_buf_putc(name, '\'');
}

static bool put_key(struct s2s_buf *name, const struct ckpt_node *key, int depth, bool objects)
{
    switch (key->kind) {
    case CKPT_STR:
        if (depth)
            s2s_buf_putc(name, '\'');
        s2s_buf_add(name, key->text, key->len);
        if (depth)
            s2s_buf_putc(name, '\'');
        return true;
    case CKPT_INT:
        s2s_buf_printf(name, "%lld", (long long)key->i);
        return true;
    case CKPT_BOOL:
        s2s_buf_puts(name, key->i ? "True" : "False");
        return true;
    case CKPT_NONE:
        s2s_buf_puts(name, "None");
        return true;
    case CKPT_FLOAT:
        put_float(name, key->f);
        return true;
    case CKPT_GLOBAL: /* a dtype */
        s2s_buf_printf(name, "%.*s.%.*s", (int)key->n, key->text, (int)(key->len - key->n - 1),
                       key->text + key->n + 1);
        return true;
    case CKPT_TUPLE:
        if (!put_keys(name, key, depth, objects))
            return false;
        s2s_buf_puts(name, key->n == 1 ? ",)" : ")");
        return true;
    case CKPT_BYTES:
        if (!objects || !key->text)
            return false;
        put_bytes(name, key);
        return true;
    case CKPT_RECORD:
        if (!objects || key->items[2] || key->items[3] ||
            !put_key(name, key->items[0], depth, objects) ||
            !put_keys(name, key->items[1], depth, objects))
            return false;
        s2s_buf_putc(name, ')');
        return true;
    default:
        return false;
    }
}

/* ---- keys that are there twice ---- */

/* Is it a record or a container? */
static bool has_parts(const struct ckpt_node *node)
{
    return node->kind == CKPT_RECORD || node->kind == CKPT_DICT || node->kind == CKPT_LIST ||
           node->kind == CKPT_TUPLE || node->kind == CKPT_SET;
}

static int compare_keys(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

static int by_key(const void *a, const void *b)
{
    const struct ckpt_node *x = *(struct ckpt_node *const *)a, *y = *(struct ckpt_node *const *)b;
    if (x->kind != y->kind)
        return x->kind - y->kind;
    if (x->kind == CKPT_STR)
        return compare_keys(x->text, x->len, y->text, y->len);
    if (x->kind == CKPT_INT)
        return (x->i > y->i) - (x->i < y->i);
    return (x > y) - (x < y);
}

static int there_twice(const struct ckpt_node *key, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT,
                         "dict key at byte %u of the pickle is there twice: %.*s", key->offset,
                         key->kind != CKPT_STR ? 0 : ckpt_shown_len(key->len, 200), key->text);
}

/* FORMAT if a dict has the key of a value with parts twice. Python would keep the last value; of
 * two nested dicts or lists parts of both would be read, under names that do not collide. (Two
 * tensors or objects of one name are refused elsewhere.) */
static int check_keys(const struct ckpt_node *dict, struct s2s_error *err)
{
    size_t n = 0;
    int rc = 0;
    for (uint32_t i = 0; i < dict->n; i += 2)
        n += has_parts(dict->items[i + 1]);
    if (n == 0 || dict->n < 4)
        return 0;
    const struct ckpt_node **keys = s2s_xmalloc(n * sizeof *keys);
    n = 0;
    for (uint32_t i = 0; i < dict->n; i += 2)
        if (has_parts(dict->items[i + 1]))
            keys[n++] = dict->items[i];
    qsort(keys, n, sizeof *keys, by_key);
    for (size_t i = 1; i < n && rc == 0; i++)
        if (by_key(&keys[i - 1], &keys[i]) == 0)
            rc = there_twice(keys[i], err);
    for (uint32_t i = 0; rc == 0 && i < dict->n; i += 2)
        if (!has_parts(dict->items[i + 1]) &&
            bsearch(&dict->items[i], keys, n, sizeof *keys, by_key))
            rc = there_twice(dict->items[i], err);
    free(keys);
    return rc;
}

/* ---- values ---- */

static const char *shown_name(const struct ckpt_torch_walk *w)
{
    return w->name.len ? w->name.data : "tensor";
}

/* Is it a sparse, quantized or nested tensor, or one without data? torch rebuilds them with
 * functions of such names. */
static bool is_odd_tensor(const struct ckpt_node *node)
{
    static const char first[] = "_rebuild_";
    size_t len = 0;
    const char *name = node->kind == CKPT_RECORD && ckpt_is_of(node, "torch._utils")
                           ? ckpt_global_name(node->items[0], &len)
                           : NULL;
    return len > strlen(first) && memcmp(name, first, strlen(first)) == 0;
}

static int bad_tree(struct ckpt_torch_walk *w, const struct ckpt_node *node, int depth)
{
    return s2s_error_set(w->err, S2S_E_FORMAT, "object at byte %u of the pickle: %s", node->offset,
                         depth > MAX_DEPTH ? "more than 1000 levels down"
                                           : "its values repeat without end");
}

/* Gives a reference; FORMAT: too large to convert. */
static int make_json(struct ckpt_torch_walk *w, json_t **value, const struct ckpt_node *node)
{
    const bool had = w->left.cut;
    *value = ckpt_node_json(node, &w->left);
    if (w->left.cut && !had)
        s2s_warn("ckpt", "%s: its texts repeat without end: not all are kept", shown_name(w));
    return w->left.nodes ? 0 : bad_tree(w, node, 0);
}

/* Warns if bytes were dropped since the counter was `had`. */
static void warn_of_bytes(const struct ckpt_torch_walk *w, const char *prefix, const char *name,
                          size_t had)
{
    if (w->left.n_bytes > had)
        s2s_warn("ckpt", "%s%s: its bytes are not kept, only their number", prefix, name);
}

static int keep_value(struct ckpt_torch_walk *w, struct s2s_ckpt_object *object,
                      const struct ckpt_node *node)
{
    struct ckpt_emitter exact = {.buf = S2S_BUF_INIT};
    const size_t had = w->left.n_bytes;
    const bool is_small = node->kind != CKPT_BYTES && node->kind != CKPT_RECORD;
    const bool kept = (is_small || w->exact_left) && ckpt_emit_node(&exact, node);
    int rc = make_json(w, &object->value, node);
    w->exact_left -= exact.buf.len < w->exact_left ? exact.buf.len : w->exact_left;
    if (kept) {
        object->pickle = ckpt_arena_text(w->ckpt, exact.buf.data, exact.buf.len);
        object->pickle_len = exact.buf.len;
    } else if (rc == 0) {
        warn_of_bytes(w, "", object->name, had);
    }
    ckpt_emit_release(&exact);
    return rc;
}

/* A storage by itself, or a tensor of a kind that is not read. */
static bool is_lost(const struct ckpt_node *node)
{
    return node->kind == CKPT_PERSID || is_odd_tensor(node);
}

static int add_value(struct ckpt_torch_walk *w, const struct ckpt_node *node)
{
    struct s2s_ckpt_object *object;
    int rc = ckpt_torch_take_name(w, w->name.len);
    if (rc == 0 && w->fsdp && is_lost(node))
        rc = s2s_error_set(w->err, S2S_E_UNSUPPORTED,
                           "%s: a tensor that is not a dense array (byte %u of the pickle) is not "
                           "read",
                           shown_name(w), node->offset);
    if (rc == 0)
        rc = ckpt_add_object(w->ckpt, &object, w->name.len ? w->name.data : "value",
                             w->name.len ? w->name.len : 5, w->err);
    if (rc < 0)
        return rc;
    rc = keep_value(w, object, node);
    const bool is_array = ckpt_is_float_array(node);
    if (rc < 0 || !(is_lost(node) || is_array))
        return rc;
    /* otherwise its values would be lost silently */
    const struct ckpt_node *class = node->kind == CKPT_RECORD ? node->items[0] : NULL;
    if ((is_array || ckpt_is_wrapped(node)) && node->items[1]->n &&
        node->items[1]->items[0]->kind == CKPT_GLOBAL)
        class = node->items[1]->items[0];
    size_t len = 0;
    const char *own = class ? ckpt_global_name(class, &len) : NULL;
    char *name = class ? s2s_xasprintf("%.*s.%.*s", (int)class->n, class->text,
                                       ckpt_shown_len(len, MAX_SHOWN), own)
                       : s2s_xstrdup("storage");
    object->lost = ckpt_arena_text(w->ckpt, name, strlen(name));
    s2s_warn("ckpt", "%s: a %s, of which no tensor is read", object->name, name);
    free(name);
    return 0;
}

static int walk_node(struct ckpt_torch_walk *w, const struct ckpt_node *node, int depth);

static void put_dot(struct s2s_buf *name)
{
    if (name->len && name->data[name->len - 1] != '/')
        s2s_buf_putc(name, '.');
}

/* key: of a dict; NULL: it is the item of this index in a list. */
static int walk_below(struct ckpt_torch_walk *w, const struct ckpt_node *key, int64_t index,
                      const struct ckpt_node *node, int depth)
{
    size_t len = w->name.len;
    put_dot(&w->name);
    if (!key) {
        s2s_buf_printf(&w->name, "%lld", (long long)index);
    } else if (!put_key(&w->name, key, 0, true)) {
        w->name.len = len;
        int rc = s2s_error_set(w->err, S2S_E_UNSUPPORTED,
                               "dict key at byte %u: no name can be made of it", key->offset);
        return len ? s2s_error_add(w->err, rc, "%.*s", (int)len, w->name.data) : rc;
    }
    int rc = ckpt_check_name_len(w->name.data, w->name.len, w->err);
    if (rc == 0 && key && key->kind != CKPT_STR) /* printing the key takes time even if nothing is
                                                  * below it */
        rc = ckpt_torch_take_name(w, w->name.len - len);
    if (rc == 0)
        rc = walk_node(w, node, depth + 1);
    w->name.len = len;
    w->name.data[len] = 0;
    return rc;
}

/* Unwraps OmegaConf's containers and values (NeMo's settings in Lightning's files), which all refer
 * back to their parents. */
static const struct ckpt_node *plain_conf(const struct ckpt_node *node)
{
    static const char module[] = "omegaconf.";
    for (int i = 0; i < 3 && node->kind == CKPT_RECORD; i++) {
        const struct ckpt_node *class = node->items[0], *state = node->items[2], *inner;
        if (class->n < sizeof module - 1 || memcmp(class->text, module, sizeof module - 1) != 0)
            break;
        inner = state ? ckpt_get(state, "_content") : NULL;
        if (!inner)
            inner = state ? ckpt_get(state, "_val") : NULL;
        if (!inner)
            break;
        node = inner;
    }
    return node;
}

/* Marks of a node. VISITED is also set while a node is being searched: what refers back to it
 * contains nothing that this search will not find. */
enum { VISITED = 1, HOLDS };

static uint8_t *mark_of(const struct ckpt_node *node)
{
    return &((struct ckpt_node *)node)->mark;
}

/* 1: node is, or contains, a tensor; 0: it does not; negative: cannot be determined. Visits each
 * node once. */
static int holds_tensor(struct ckpt_torch_walk *w, const struct ckpt_node *node, int depth)
{
    node = plain_conf(node);
    struct ckpt_view view;
    if (node->kind == CKPT_PERSID || node->kind == CKPT_TENSOR || node->kind == CKPT_DTENSOR ||
        is_odd_tensor(node))
        return 1;
    if (!has_parts(node) || node->mark)
        return node->mark == HOLDS;
    if (depth > MAX_DEPTH)
        return bad_tree(w, node, depth);
    *mark_of(node) = VISITED;
    int rc = ckpt_view_of(node, &view, w->err);
    for (uint32_t i = 0; rc == 0 && i < node->n; i++)
        if (node->items[i]) /* parts of a record may be NULL */
            rc = holds_tensor(w, node->items[i], depth + 1);
    if (rc > 0)
        *mark_of(node) = HOLDS;
    return rc;
}

/* 1: the key can be part of a readable name; 0: it cannot; negative: keys that are a bomb */
static int can_name(struct ckpt_torch_walk *w, const struct ckpt_node *key)
{
    const size_t len = w->name.len;
    if (key->kind == CKPT_INT || key->kind == CKPT_FLOAT)
        return 1;
    const bool put = put_key(&w->name, key, 0, false);
    const size_t n = w->name.len - len;
    const char *text = n ? w->name.data + len : "";
    const bool can = put && !memchr(text, 0, n) && s2s_utf8_valid(text, n);
    const int rc =
        key->kind == CKPT_STR ? 0 : ckpt_torch_take_name(w, n); /* a tuple may print long each time
                                                                 */
    w->name.len = len;
    if (n)
        w->name.data[len] = 0;
    return rc < 0 ? rc : can;
}

/* A dict with keys that make no name (enums, bytes, control characters), such as settings, becomes
 * one object, unless it contains tensors. */
static int walk_dict(struct ckpt_torch_walk *w, const struct ckpt_node *dict, int depth)
{
    int rc = 1;
    for (uint32_t i = 0; i < dict->n && rc > 0; i += 2) {
        const uint8_t kind = dict->items[i + 1]->kind;
        rc = kind == CKPT_TENSOR || kind == CKPT_DTENSOR ? 1 : can_name(w, dict->items[i]);
    }
    if (rc == 0)
        rc = holds_tensor(w, dict, depth);
    if (rc <= 0)
        return rc < 0 ? s2s_error_add(w->err, rc, "%s", shown_name(w)) : add_value(w, dict);
    rc = check_keys(dict, w->err);
    for (uint32_t i = 0; rc == 0 && i < dict->n; i += 2)
        rc = walk_below(w, dict->items[i], 0, dict->items[i + 1], depth);
    return rc;
}

static int walk_list(struct ckpt_torch_walk *w, const struct ckpt_node *list, int depth)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < list->n; i++)
        rc = walk_below(w, NULL, i, list->items[i], depth);
    return rc;
}

/* ---- objects of classes ---- */

/* 1: the key is in the set; 0: it is not; negative: too many comparisons */
static int has_key(struct ckpt_torch_walk *w, const struct ckpt_node *set,
                   const struct ckpt_node *key)
{
    if (!set || set->kind != CKPT_SET)
        return 0;
    if (w->looks_left < set->n)
        return bad_tree(w, set, 0);
    w->looks_left -= set->n;
    for (uint32_t i = 0; i < set->n; i++)
        if (set->items[i]->kind == CKPT_STR && key->kind == CKPT_STR &&
            set->items[i]->len == key->len && memcmp(set->items[i]->text, key->text, key->len) == 0)
            return 1;
    return 0;
}

enum { BUFFERS = 1, MODULE_PARTS = 3 };
static const char *const module_parts[MODULE_PARTS] = {"_parameters", "_buffers", "_modules"};

static bool is_module(const struct ckpt_node *node)
{
    for (int i = 0; i < MODULE_PARTS; i++) {
        const struct ckpt_node *part = ckpt_get(node, module_parts[i]);
        if (!part || part->kind != CKPT_DICT)
            return false;
    }
    return true;
}

/* Adds what torch.nn.Module.state_dict would return: parameters, persistent buffers, submodules;
 * None values are left out. */
static int walk_module(struct ckpt_torch_walk *w, const struct ckpt_node *module, int depth)
{
    const struct ckpt_node *transient = ckpt_get(module, "_non_persistent_buffers_set");
    int rc = 0;
    for (int p = 0; p < MODULE_PARTS && rc == 0; p++) {
        const struct ckpt_node *part = ckpt_get(module, module_parts[p]);
        rc = check_keys(part, w->err);
        for (uint32_t i = 0; rc == 0 && i < part->n; i += 2) {
            const struct ckpt_node *key = part->items[i], *value = part->items[i + 1];
            const int skip = p == BUFFERS ? has_key(w, transient, key) : 0;
            if (skip < 0)
                return skip;
            if (value->kind != CKPT_NONE && !skip)
                rc = walk_below(w, key, 0, value, depth);
        }
    }
    return rc;
}

/* Walks the parts of a record that contain tensors: contents, state, arguments. References back to
 * the record are not followed: each of a thousand parts may refer to the whole. */
static int walk_record(struct ckpt_torch_walk *w, const struct ckpt_node *node, int depth)
{
    int rc = 0;
    *mark_of(node) = VISITED;
    ((struct ckpt_node *)node)->shown = true;
    for (int p = 3; rc == 0 && p > 0; p--) {
        const struct ckpt_node *part = node->items[p];
        int holds = part ? holds_tensor(w, part, depth) : 0;
        if (holds < 0)
            return holds;
        if (holds && (part->kind == CKPT_DICT || p == 3 || part->kind == CKPT_TUPLE))
            rc = part->kind == CKPT_DICT ? walk_dict(w, part, depth) : walk_list(w, part, depth);
        else if (holds)
            rc = walk_node(w, part, depth + 1);
    }
    ((struct ckpt_node *)node)->shown = false;
    *mark_of(node) = HOLDS;
    return rc;
}

/* A value that is neither a tensor nor a Python list, tuple or dict. */
static int walk_other(struct ckpt_torch_walk *w, const struct ckpt_node *node, int depth)
{
    if (node->kind == CKPT_RECORD && is_module(node))
        return walk_module(w, node, depth);
    if ((node->kind != CKPT_RECORD && node->kind != CKPT_SET) || is_odd_tensor(node))
        return add_value(w, node);
    int rc = holds_tensor(w, node, depth);
    if (rc <= 0)
        return rc < 0 ? s2s_error_add(w->err, rc, "%s", shown_name(w)) : add_value(w, node);
    return node->kind == CKPT_SET ? walk_list(w, node, depth) : walk_record(w, node, depth);
}

static int walk_node(struct ckpt_torch_walk *w, const struct ckpt_node *node, int depth)
{
    struct ckpt_view view;
    node = plain_conf(node);
    if (w->left.nodes == 0 || depth > MAX_DEPTH)
        return bad_tree(w, node, depth);
    w->left.nodes--;
    if (w->fsdp && ckpt_is_wrapped(node))
        return ckpt_torch_add_dtensor(w, node);
    int rc = ckpt_view_of(node, &view, w->err);
    if (rc)
        return rc < 0 ? s2s_error_add(w->err, rc, "%s", shown_name(w)) : ckpt_torch_add(w, &view);
    if (node->kind == CKPT_RECORD && ckpt_is(node, "argparse", "Namespace") && node->items[2] &&
        node->items[2]->kind == CKPT_DICT)
        node = node->items[2];
    if (node->kind == CKPT_DICT)
        return walk_dict(w, node, depth);
    if (node->kind == CKPT_LIST || node->kind == CKPT_TUPLE)
        return walk_list(w, node, depth);
    return walk_other(w, node, depth);
}

/* The rank's folder: "mp_rank_00/" without the slash. Gives: free. */
static char *folder_of(const struct ckpt_torch_walk *w)
{
    size_t len = w->name.len;
    return s2s_xstrndup(w->name.data ? w->name.data : "",
                        len && w->name.data[len - 1] == '/' ? len - 1 : len);
}

/* Warns of the user's own tensors beside the model (averages, ..); states of random generators are
 * none. */
static int warn_of_tensors(struct ckpt_torch_walk *w, const struct ckpt_node *value,
                           const char *name)
{
    int rc = strstr(name, "rng") ? 0 : holds_tensor(w, value, 0);
    if (rc > 0)
        s2s_warn("ckpt", "%s%s: tensors beside the model, left out",
                 w->name.data ? w->name.data : "", name);
    w->ckpt->n_left_values += rc > 0;
    return rc < 0 ? s2s_error_add(w->err, rc, "%s", name) : 0;
}

/* Stores what is neither model nor optimizer in `rest`, the state of the run. */
static int keep_rest(struct ckpt_torch_walk *w, const struct ckpt_node *value, const char *name,
                     json_t *rest)
{
    const size_t had = w->left.n_bytes;
    json_t *json;
    int rc = warn_of_tensors(w, value, name);
    if (rc < 0)
        return rc;
    rc = make_json(w, &json, value);
    if (!strstr(name, "rng"))
        warn_of_bytes(w, w->name.data ? w->name.data : "", name, had);
    json_object_set_new(rest, name, json);
    return rc;
}

/* "model0", ..: the model of a virtual pipeline stage */
static bool is_stage(const char *name)
{
    return s2s_starts_with(name, "model") && name[5] &&
           name[5 + strspn(name + 5, "0123456789")] == 0;
}

/* A Megatron rank file: `model`, `model0`, .. are tensors, the rest is state of the run. */
static int walk_rank(struct ckpt_torch_walk *w, const struct ckpt_node *root)
{
    json_t *rest = json_object();
    bool has_model = false;
    int rc;
    if (root->kind != CKPT_DICT)
        rc = s2s_error_set(w->err, S2S_E_FORMAT, "a Megatron rank file is a dict, this is not");
    else
        rc = check_keys(root, w->err);
    for (uint32_t i = 0; rc == 0 && i < root->n; i += 2) {
        const struct ckpt_node *key = root->items[i], *value = root->items[i + 1];
        if (key->kind != CKPT_STR)
            continue;
        char *name = s2s_xstrndup(key->text, key->len);
        const bool whole = strcmp(name, "model") == 0, stage = is_stage(name);
        has_model |= whole || stage;
        if (whole)
            rc = walk_node(w, value, 0);
        else if (stage)
            rc = walk_below(w, key, 0, value, 0);
        else if (strcmp(name, "optimizer") == 0)
            w->ckpt->n_left_states += value->kind != CKPT_NONE;
        else
            rc = keep_rest(w, value, name, rest);
        free(name);
    }
    if (rc == 0 && !has_model)
        rc = s2s_error_set(w->err, S2S_E_NOTFOUND, "a Megatron rank file without its model");
    if (!w->ckpt->common)
        w->ckpt->common = json_object();
    char *folder = folder_of(w);
    json_object_set_new(w->ckpt->common, folder, rest);
    free(folder);
    return rc;
}

int ckpt_torch_walk(struct ckpt_torch_walk *w, const struct ckpt_pickle *pickle,
                    const struct ckpt_torch_source *source)
{
    const struct ckpt_node *root = pickle->root;
    s2s_buf_puts(&w->name, source->prefix);
    w->exact_left = w->left.text_bytes;
    w->names_left = NAMES * w->left.text_bytes;
    w->looks_left = w->left.nodes > SIZE_MAX / LOOKS ? SIZE_MAX : w->left.nodes * LOOKS;
    if (source->model_only)
        return walk_rank(w, root);
    w->fsdp = source->fsdp;
    struct ckpt_view view;
    int rc = ckpt_view_of(root, &view, w->err);
    if (rc > 0 || (w->fsdp && ckpt_is_wrapped(root)))
        s2s_buf_puts(&w->name, "tensor"); /* the file is a single tensor */
    return rc < 0 ? rc : walk_node(w, root, 0);
}
