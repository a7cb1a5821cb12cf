/*
 * planner_data of torch.distributed.checkpoint: where a name stands in the nested dicts and lists
 * of the state that was saved, "optim.param_groups.0.lr" at ("optim", "param_groups", 0, "lr"). By
 * it dcp_to_torch_save puts them together again.
 */
#include "lib/ckpt/pickle/emit.h"
#include "lib/ckpt/write/items.h"
#include "lib/ckpt/model.h"

/* The parts, if they joined by dots are the name, so that no pickle can make more of them than it
 * spells out; NULL: they are not. Gives a reference. */
static json_t *read_path(const struct ckpt_node *name, const struct ckpt_node *parts)
{
    struct s2s_buf joined = S2S_BUF_INIT;
    json_t *path = json_array();
    bool plain = parts->kind == CKPT_TUPLE && parts->n > 0 && parts->n <= name->len + 1;
    for (uint32_t i = 0; plain && i < parts->n && joined.len <= name->len; i++) {
        const struct ckpt_node *part = parts->items[i];
        if (i)
            s2s_buf_putc(&joined, '.');
        if (part->kind == CKPT_INT) {
            s2s_buf_printf(&joined, "%lld", (long long)part->i);
            json_array_append_new(path, json_integer(part->i));
        } else if (part->kind == CKPT_STR) {
            json_t *text = json_stringn(part->text, part->len);
            s2s_buf_add(&joined, part->text, part->len);
            plain = text && json_array_append_new(path, text) == 0;
        } else {
            plain = false;
        }
    }
    plain = plain && joined.len == name->len && memcmp(joined.data, name->text, name->len) == 0;
    s2s_buf_release(&joined);
    if (plain)
        return path;
    json_decref(path);
    return NULL;
}

void ckpt_read_paths(struct s2s_ckpt *ckpt, const struct ckpt_node *planner_data)
{
    if (!planner_data || planner_data->kind != CKPT_DICT || planner_data->n == 0)
        return;
    ckpt->paths = json_object();
    for (uint32_t i = 0; i < planner_data->n; i += 2) {
        const struct ckpt_node *name = planner_data->items[i];
        json_t *path = name->kind == CKPT_STR && name->len && !memchr(name->text, 0, name->len)
                           ? read_path(name, planner_data->items[i + 1])
                           : NULL;
        if (path)
            json_object_setn_new(ckpt->paths, name->text, name->len, path);
    }
}

static void emit_path(struct ckpt_emitter *out, const char *name, const json_t *path)
{
    json_t *part;
    size_t i;
    ckpt_emit_str(out, name);
    ckpt_emit_op(out, "(");
    if (!path)
        ckpt_emit_str(out, name);
    json_array_foreach(path, i, part)
    {
        if (json_is_integer(part))
            ckpt_emit_int(out, json_integer_value(part));
        else
            ckpt_emit_str(out, json_string_value(part));
    }
    ckpt_emit_op(out, "t");
}

int ckpt_emit_paths(struct ckpt_emitter *out, const struct ckpt_items *items, const json_t *paths,
                    struct s2s_error *err)
{
    bool any = false;
    int rc = 0;
    for (size_t i = 0; i < items->n && !any; i++)
        any = json_object_get(paths, ckpt_items_name(items, i)) != NULL;
    if (!any) { /* none, or of other names than are written */
        ckpt_emit_op(out, "N");
        return 0;
    }
    ckpt_emit_op(out, "}(");
    for (size_t i = 0; i < items->n && rc == 0; i++) {
        const char *name = ckpt_items_name(items, i);
        if (ckpt_items_starts_name(items, i))
            emit_path(out, name, json_object_get(paths, name));
        rc = ckpt_emit_drain(out, err);
    }
    ckpt_emit_op(out, "u");
    return rc;
}
