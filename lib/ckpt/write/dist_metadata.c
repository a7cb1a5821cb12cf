/* Writes .metadata: the objects of torch.distributed.checkpoint.metadata, in minimal form. */
#include "lib/base/base.h"
#include "lib/ckpt/file.h"
#include "lib/ckpt/pickle/emit.h"
#include "lib/ckpt/pickle/torch_dtype.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/items.h"

static const char META[] = "torch.distributed.checkpoint.metadata";

static void begin_object(struct ckpt_emitter *out, const char *module, const char *name)
{
    ckpt_emit_global(out, module, name);
    ckpt_emit_op(out, ")\x81}(");
}

static void emit_size(struct ckpt_emitter *out, const int64_t *size, int n_dims)
{
    ckpt_emit_global(out, "torch", "Size");
    ckpt_emit_op(out, "(");
    ckpt_emit_ints(out, size, n_dims);
    ckpt_emit_op(out, "tR");
}

/* dtype, layout, requires_grad, memory format, pin_memory; one shared object per dtype */
static void emit_properties(struct ckpt_emitter *out, enum s2s_dtype dtype)
{
    char key[64];
    snprintf(key, sizeof key, "properties %s", s2s_dtype_name(dtype));
    if (ckpt_emit_recall(out, key))
        return;
    ckpt_emit_global(out, META, "TensorProperties");
    ckpt_emit_op(out, ")\x81(");
    ckpt_emit_global(out, "torch", ckpt_torch_dtype(dtype));
    ckpt_emit_global(out, "torch.serialization", "_get_layout");
    ckpt_emit_op(out, "(");
    ckpt_emit_str(out, "torch.strided");
    ckpt_emit_op(out, "tR\x89");
    ckpt_emit_global(out, META, "_MEM_FORMAT_ENCODING");
    ckpt_emit_op(out, "(");
    ckpt_emit_int(out, 0);
    ckpt_emit_op(out, "tR\x89tb");
    ckpt_emit_remember(out, key);
}

static void emit_tensor(struct ckpt_emitter *out, const struct ckpt_item *const *group, size_t n)
{
    const struct ckpt_item *first = group[0];
    begin_object(out, META, "TensorStorageMetadata");
    ckpt_emit_str(out, "properties");
    emit_properties(out, (enum s2s_dtype)first->dtype);
    ckpt_emit_str(out, "size");
    emit_size(out, ckpt_item_shape(first), first->n_dims);
    ckpt_emit_str(out, "chunks");
    ckpt_emit_op(out, "](");
    for (size_t i = 0; i < n; i++) {
        begin_object(out, META, "ChunkStorageMetadata");
        ckpt_emit_str(out, "offsets");
        emit_size(out, ckpt_item_offset(group[i]), group[i]->n_dims);
        ckpt_emit_str(out, "sizes");
        emit_size(out, ckpt_item_size(group[i]), group[i]->n_dims);
        ckpt_emit_op(out, "ub");
    }
    ckpt_emit_op(out, "eub");
}

static void emit_storage(struct ckpt_emitter *out, const struct ckpt_item *item, int64_t index)
{
    char file[CKPT_RANK_FILE];
    begin_object(out, META, "MetadataIndex");
    ckpt_emit_str(out, "fqn");
    ckpt_emit_str(out, ckpt_item_name(item));
    ckpt_emit_str(out, "offset");
    if (item->dtype)
        emit_size(out, ckpt_item_offset(item), item->n_dims);
    else
        ckpt_emit_op(out, "N");
    ckpt_emit_str(out, "index");
    if (item->dtype)
        ckpt_emit_int(out, index);
    else
        ckpt_emit_op(out, "N");
    ckpt_emit_op(out, "ub");
    begin_object(out, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
    ckpt_emit_str(out, "relative_path");
    ckpt_emit_str(out, ckpt_rank_file(file, item->rank));
    ckpt_emit_str(out, "offset");
    ckpt_emit_int(out, item->pos);
    ckpt_emit_str(out, "length");
    ckpt_emit_int(out, item->len);
    ckpt_emit_op(out, "ub");
}

/* Starts a new SETITEMS after every BATCH pairs, like Python's pickler, so that the stack of a
 * reader does not grow with the dict. */
static void end_batch(struct ckpt_emitter *out, size_t i)
{
    enum { BATCH = 1000 };
    if ((i + 1) % BATCH == 0)
        ckpt_emit_op(out, "u(");
}

static int emit_names(struct ckpt_emitter *out, const struct ckpt_items *items,
                      struct s2s_error *err)
{
    int rc = 0;
    size_t n = 0;
    for (size_t i = 0, next; i < items->n && rc == 0; i = next) {
        next = ckpt_items_end_of_name(items, i);
        ckpt_emit_str(out, ckpt_item_name(items->v[i]));
        if (items->v[i]->dtype) {
            emit_tensor(out, &items->v[i], next - i);
        } else {
            ckpt_emit_global(out, META, "BytesStorageMetadata");
            ckpt_emit_op(out, ")\x81");
        }
        end_batch(out, n++);
        rc = ckpt_emit_drain(out, err);
    }
    return rc;
}

static int emit_places(struct ckpt_emitter *out, const struct ckpt_items *items,
                       struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0, next; i < items->n; i = next) {
        next = ckpt_items_end_of_name(items, i);
        for (size_t k = i; k < next && rc == 0; k++) {
            emit_storage(out, items->v[k], (int64_t)(k - i));
            end_batch(out, k);
            rc = ckpt_emit_drain(out, err);
        }
    }
    return rc;
}

/* ---- planner_data: positions of names in nested dicts and lists ---- */

static void emit_path(struct ckpt_emitter *out, const char *name, const uint16_t *path)
{
    const int n_parts = path ? path[0] : 0;
    ckpt_emit_str(out, name);
    ckpt_emit_op(out, "(");
    if (!path)
        ckpt_emit_str(out, name);
    for (int i = 0; i < n_parts; i++) {
        const size_t len = i + 1 < n_parts ? path[1 + i] / 2 : strlen(name);
        if (path[1 + i] % 2)
            ckpt_emit_int(out, strtoll(name, NULL, 10));
        else
            ckpt_emit_strn(out, name, len);
        name += len + 1;
    }
    ckpt_emit_op(out, "t");
}

static int emit_paths(struct ckpt_emitter *out, const struct ckpt_items *items,
                      const struct s2s_ckpt *names, struct s2s_error *err)
{
    bool any = false;
    size_t n = 0;
    int rc = 0;
    for (size_t i = 0; names && i < items->n && !any; i++)
        any = ckpt_path_of(names, ckpt_item_name(items->v[i])) != NULL;
    if (!any) { /* no paths, or only those of names that are not written */
        ckpt_emit_op(out, "N");
        return 0;
    }
    ckpt_emit_op(out, "}(");
    for (size_t i = 0; i < items->n && rc == 0; i = ckpt_items_end_of_name(items, i)) {
        const char *name = ckpt_item_name(items->v[i]);
        emit_path(out, name, ckpt_path_of(names, name));
        end_batch(out, n++);
        rc = ckpt_emit_drain(out, err);
    }
    ckpt_emit_op(out, "u");
    return rc;
}

/* ---- mcore_data: original shapes of flattened tensors, for Megatron-Core up to 0.15 ---- */

static int emit_mcore_data(struct ckpt_emitter *out, const struct ckpt_items *items,
                           struct s2s_error *err)
{
    size_t n = 0;
    int rc = 0;
    for (size_t i = 0; i < items->n && rc == 0; i = ckpt_items_end_of_name(items, i)) {
        const struct ckpt_item *item = items->v[i];
        if (!item->is_flattened)
            continue;
        if (n == 0) {
            ckpt_emit_str(out, "mcore_data");
            ckpt_emit_op(out, "}(");
        }
        ckpt_emit_str(out, ckpt_item_name(item));
        ckpt_emit_op(out, "}(");
        ckpt_emit_str(out, "nd_reformulated_orig_global_shape");
        ckpt_emit_ints(out, ckpt_item_orig_shape(item), item->n_dims - 1);
        ckpt_emit_op(out, "u");
        end_batch(out, n++);
        rc = ckpt_emit_drain(out, err);
    }
    if (n)
        ckpt_emit_op(out, "u");
    return rc;
}

int ckpt_items_metadata(const struct ckpt_items *items, const struct s2s_ckpt *names,
                        struct ckpt_file *file, struct s2s_error *err)
{
    struct ckpt_emitter out;
    ckpt_emit_begin(&out);
    out.file = file;
    begin_object(&out, META, "Metadata");
    ckpt_emit_str(&out, "state_dict_metadata");
    ckpt_emit_op(&out, "}(");
    int rc = emit_names(&out, items, err);
    ckpt_emit_op(&out, "u");
    ckpt_emit_str(&out, "planner_data");
    if (rc == 0)
        rc = emit_paths(&out, items, names, err);
    ckpt_emit_str(&out, "storage_data");
    ckpt_emit_op(&out, "}(");
    if (rc == 0)
        rc = emit_places(&out, items, err);
    ckpt_emit_op(&out, "u");
    ckpt_emit_str(&out, "storage_meta");
    ckpt_emit_op(&out, "N");
    if (rc == 0)
        rc = emit_mcore_data(&out, items, err);
    ckpt_emit_op(&out, "ub");
    ckpt_emit_end(&out);
    if (rc == 0)
        rc = ckpt_file_write(file, out.buf.data, out.buf.len, err);
    ckpt_emit_release(&out);
    return rc;
}
