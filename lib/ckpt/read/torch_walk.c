/* Walks the object tree of a torch.save file and adds its tensors and objects by name. */
#include "lib/ckpt/read/torch_walk.h"

#include "lib/base/utf8.h"
#include "lib/ckpt/pickle/emit.h"
#include "lib/ckpt/pickle/pairs.h"
#include "lib/ckpt/read/fsdp_place.h"

enum {
    MAX_DEPTH = 1000,
    MAX_SHOWN = 200,
    LOOKS = 16, /* key comparisons per value, on average */
    NAMES = 16  /* bytes of names per byte of pickle: in a list of bools each takes one byte, and
                 * its name is that of the list and its index */
};

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

/* The text of the pickle that is the name of a pair's value, where w->name is what is before its
 * key; NULL: there is none. */
static const char *whole_name(const struct ckpt_torch_walk *w, const struct ckpt_pairs *pair)
{
    const size_t len = w->name.len;
    const struct ckpt_node *key = pair->key;
    if (pair->name)
        return len == pair->prefix_len && (!len || memcmp(pair->name, w->name.data, len) == 0)
                   ? pair->name
                   : NULL;
    return !len && !w->ckpt->like && key->kind == CKPT_STR && key->opaque ? key->text : NULL;
}

/* pair: NULL, or of a dict; else it is the item of this index in a list. */
static int walk_below(struct ckpt_torch_walk *w, const struct ckpt_pairs *pair, int64_t index,
                      const struct ckpt_node *node, int depth)
{
    size_t len = w->name.len;
    const struct ckpt_node *key = pair ? pair->key : NULL;
    put_dot(&w->name);
    w->whole = pair ? whole_name(w, pair) : NULL;
    if (!key) {
        s2s_buf_printf(&w->name, "%lld", (long long)index);
    } else if (!ckpt_torch_put_key(&w->name, key, true)) {
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
    w->whole = NULL;
    w->name.len = len;
    w->name.data[len] = 0;
    return rc;
}

static int walk_pair(struct ckpt_torch_walk *w, const struct ckpt_pairs *pair, int depth)
{
    return walk_below(w, pair, 0, pair->value, depth);
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
    if (node->kind == CKPT_PERSID || node->kind == CKPT_TENSOR || node->kind == CKPT_PAIRS ||
        is_odd_tensor(node))
        return 1;
    if (!ckpt_torch_has_parts(node) || node->mark)
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
    const bool put = ckpt_torch_put_key(&w->name, key, false);
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
    struct ckpt_pairs pairs = {.dict = dict};
    int rc = 1;
    for (uint32_t i = 0; i < dict->n && rc > 0; i += 2) {
        const uint8_t kind = dict->items[i + 1]->kind;
        rc = kind == CKPT_TENSOR || kind == CKPT_PAIRS ? 1 : can_name(w, dict->items[i]);
    }
    if (rc == 0)
        rc = holds_tensor(w, dict, depth);
    if (rc <= 0)
        return rc < 0 ? s2s_error_add(w->err, rc, "%s", shown_name(w)) : add_value(w, dict);
    rc = ckpt_torch_check_keys(dict, w->err);
    while (rc == 0 && ckpt_pairs_next(&pairs))
        rc = walk_pair(w, &pairs, depth);
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
        struct ckpt_pairs pairs = {.dict = part};
        rc = ckpt_torch_check_keys(part, w->err);
        while (rc == 0 && ckpt_pairs_next(&pairs)) {
            const int skip = p == BUFFERS ? has_key(w, transient, pairs.key) : 0;
            if (skip < 0)
                return skip;
            if (pairs.value->kind != CKPT_NONE && !skip)
                rc = walk_pair(w, &pairs, depth);
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
    struct ckpt_pairs pairs = {.dict = root};
    json_t *rest = json_object();
    bool has_model = false;
    int rc;
    if (root->kind != CKPT_DICT)
        rc = s2s_error_set(w->err, S2S_E_FORMAT, "a Megatron rank file is a dict, this is not");
    else
        rc = ckpt_torch_check_keys(root, w->err);
    while (rc == 0 && ckpt_pairs_next(&pairs)) {
        const struct ckpt_node *key = pairs.key, *value = pairs.value;
        if (key->kind != CKPT_STR)
            continue;
        char *name = s2s_xstrndup(key->text, key->len);
        const bool whole = strcmp(name, "model") == 0, stage = is_stage(name);
        has_model |= whole || stage;
        if (whole)
            rc = walk_node(w, value, 0);
        else if (stage)
            rc = walk_pair(w, &pairs, 0);
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

/* ---- names, while the pickle is parsed ---- */

void ckpt_torch_prefix(struct s2s_buf *prefix, const struct ckpt_torch_source *source,
                       const struct ckpt_node *const *keys, int n)
{
    s2s_buf_puts(prefix, source->prefix);
    for (int i = source->model_only && n && ckpt_str_is(keys[0], "model"); i < n; i++) {
        put_dot(prefix);
        s2s_buf_add(prefix, keys[i]->text, keys[i]->len);
    }
    put_dot(prefix);
}

int ckpt_torch_walk(struct ckpt_torch_walk *w, const struct ckpt_pickle *pickle,
                    const struct ckpt_torch_source *source)
{
    const struct ckpt_node *root = pickle->root;
    w->pickle = pickle;
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
