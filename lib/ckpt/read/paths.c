/*
 * planner_data of torch.distributed.checkpoint: the path of each name in the nested dicts and lists
 * of the saved state, such as ("optim", "param_groups", 0, "lr") for "optim.param_groups.0.lr".
 * dcp_to_torch_save rebuilds the nesting from it.
 */
#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

enum { MAX_PARTS = 64 };
/* the path of every name that is not nested: one part, a string */
static const uint16_t flat[] = {1, 0};

/* Encodes a path as ckpt_path_of describes. false: not a path of this name. */
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

/* Where the path of the tensor or object called name is stored; NULL: there is neither. */
static const uint16_t **place_of(const struct s2s_ckpt *ckpt, const char *name)
{
    const struct s2s_ckpt_tensor *tensor = s2s_ckpt_find(ckpt, name);
    struct s2s_ckpt_object *object = tensor ? NULL : ckpt_find_object(ckpt, name);
    return tensor && ckpt->paths ? &ckpt->paths[tensor - ckpt->tensors]
           : object              ? &object->path
                                 : NULL;
}

int ckpt_keep_path(struct s2s_ckpt *ckpt, const struct ckpt_node *name,
                   const struct ckpt_node *parts, struct s2s_error *err)
{
    uint16_t packed[1 + MAX_PARTS];
    if (!pack_path(packed, name, parts))
        return 0;
    if (!ckpt->paths)
        ckpt->paths = s2s_xcalloc(ckpt->n_tensors, sizeof *ckpt->paths);
    char *text = s2s_xstrndup(name->text, name->len);
    const uint16_t **path = place_of(ckpt, text);
    free(text);
    if (!path)
        return 0;
    if (*path)
        return s2s_error_set(err, S2S_E_FORMAT, "planner_data: %.*s is there twice",
                             ckpt_shown_len(name->len, 200), name->text);
    if (packed[0] == 1 && packed[1] % 2 == 0) {
        *path = flat;
        return 0;
    }
    const size_t len = (1 + (size_t)packed[0]) * sizeof *packed;
    *path = memcpy(ckpt_arena(ckpt, len), packed, len);
    return 0;
}

const uint16_t *ckpt_path_of(const struct s2s_ckpt *ckpt, const char *name)
{
    const uint16_t **path = place_of(ckpt, name);
    return path ? *path : NULL;
}
