/*
 * planner_data of torch.distributed.checkpoint: where a name stands in the nested dicts and lists
 * of the state that was saved, "optim.param_groups.0.lr" at ("optim", "param_groups", 0, "lr"). By
 * it dcp_to_torch_save puts them together again.
 */
#include "lib/ckpt/pickle/emit.h"
#include "lib/ckpt/write/items.h"
#include "lib/ckpt/model.h"

/*
 * A path as it is kept: how many parts, then the length of each, doubled, and odd where the part is
 * an int. Joined by dots the parts are the name, so that no pickle can make more of them than it
 * spells out.
 */
enum { MAX_PARTS = 64 };
static const uint16_t flat[] = {1, 0};

/* false: they are not */
static bool pack_path(uint16_t path[1 + MAX_PARTS], const struct ckpt_node *name,
                      const struct ckpt_node *parts)
{
    size_t at = 0;
    if (name->kind != CKPT_STR || name->len > INT16_MAX || parts->kind != CKPT_TUPLE ||
        parts->n < 1 || parts->n > MAX_PARTS)
        return false;
    path[0] = (uint16_t)parts->n;
    for (uint32_t i = 0; i < parts->n; i++) {
        const struct ckpt_node *part = parts->items[i];
        char number[24];
        const bool is_int = part->kind == CKPT_INT;
        const char *text = is_int ? number : part->text;
        if (!is_int && part->kind != CKPT_STR)
            return false;
        snprintf(number, sizeof number, "%lld", is_int ? (long long)part->i : 0LL);
        size_t len = is_int ? strlen(number) : part->len;
        if (i && (at == name->len || name->text[at++] != '.'))
            return false;
        if (len > name->len - at || memcmp(name->text + at, text, len) != 0)
            return false;
        at += len;
        path[1 + i] = (uint16_t)(2 * len + is_int);
    }
    return at == name->len;
}

bool ckpt_is_path(const struct ckpt_node *name, const struct ckpt_node *parts)
{
    uint16_t path[1 + MAX_PARTS];
    return pack_path(path, name, parts);
}

/* where the path of that name is kept; NULL: there is no such name */
static const uint16_t **path_of(const struct s2s_ckpt *ckpt, const char *name)
{
    struct s2s_ckpt_tensor *tensor = (struct s2s_ckpt_tensor *)s2s_ckpt_find(ckpt, name);
    struct s2s_ckpt_object *object = tensor ? NULL : ckpt_find_object(ckpt, name);
    return tensor ? &tensor->path : object ? &object->path : NULL;
}

void ckpt_keep_path(struct s2s_ckpt *ckpt, const struct ckpt_node *name,
                    const struct ckpt_node *parts)
{
    uint16_t packed[1 + MAX_PARTS];
    if (!pack_path(packed, name, parts))
        return;
    char *text = s2s_xstrndup(name->text, name->len);
    const uint16_t **path = path_of(ckpt, text);
    free(text);
    if (!path || *path)
        return;
    if (packed[0] == 1 && packed[1] % 2 == 0) {
        *path = flat;
        return;
    }
    const size_t len = (1 + (size_t)packed[0]) * sizeof *packed;
    *path = memcpy(ckpt_arena(ckpt, len), packed, len);
}

static void emit_path(struct ckpt_emitter *out, const char *name, const uint16_t *path)
{
    ckpt_emit_str(out, name);
    ckpt_emit_op(out, "(");
    if (!path || path == flat)
        ckpt_emit_str(out, name);
    for (int i = 0; path && path != flat && i < path[0]; i++) {
        const size_t len = path[1 + i] / 2;
        if (path[1 + i] % 2)
            ckpt_emit_int(out, strtoll(name, NULL, 10));
        else
            ckpt_emit_strn(out, name, len);
        name += len + 1;
    }
    ckpt_emit_op(out, "t");
}

int ckpt_emit_paths(struct ckpt_emitter *out, const struct ckpt_items *items,
                    const struct s2s_ckpt *names, struct s2s_error *err)
{
    bool any = false;
    int rc = 0;
    for (size_t i = 0; names && i < items->n && !any; i++) {
        const uint16_t **path = path_of(names, ckpt_items_name(items, i));
        any = path && *path;
    }
    if (!any) { /* none, or of other names than are written */
        ckpt_emit_op(out, "N");
        return 0;
    }
    ckpt_emit_op(out, "}(");
    for (size_t i = 0; i < items->n && rc == 0; i++) {
        const char *name = ckpt_items_name(items, i);
        const uint16_t **path = ckpt_items_starts_name(items, i) ? path_of(names, name) : NULL;
        if (ckpt_items_starts_name(items, i))
            emit_path(out, name, path ? *path : NULL);
        rc = ckpt_emit_drain(out, err);
    }
    ckpt_emit_op(out, "u");
    return rc;
}
