#include "lib/ckpt/pickle/torch_dtype.h"
#include "lib/ckpt/pickle/emit.h"
#include "lib/ckpt/write/items.h"

#include "lib/ckpt/ckpt_internal.h"
#include "lib/ckpt/write/manifest.h"

struct ckpt_item *ckpt_items_add(struct ckpt_items *items)
{
    s2s_grow(&items->v, items->n, &items->cap, sizeof *items->v);
    items->v[items->n] = (struct ckpt_item){.n_orig_dims = -1};
    return &items->v[items->n++];
}

void ckpt_items_release(struct ckpt_items *items)
{
    for (size_t i = 0; i < items->n; i++) {
        free(items->v[i].name);
        free(items->v[i].file);
    }
    free(items->v);
    *items = (struct ckpt_items){.n = 0};
}

/* ---- bytes: a count, then per item numbers and length-prefixed strings, all int64 ---- */

static void put(struct s2s_buf *out, int64_t value)
{
    s2s_buf_add(out, &value, sizeof value);
}

static void put_text(struct s2s_buf *out, const char *s)
{
    put(out, (int64_t)strlen(s));
    s2s_buf_puts(out, s);
}

void ckpt_items_pack(const struct ckpt_items *items, struct s2s_buf *out)
{
    put(out, (int64_t)items->n);
    for (size_t i = 0; i < items->n; i++) {
        const struct ckpt_item *item = &items->v[i];
        put_text(out, item->name);
        put_text(out, item->file);
        put(out, item->dtype);
        put(out, item->n_dims);
        put(out, item->n_orig_dims);
        put(out, item->pos);
        put(out, item->len);
        for (int d = 0; d < item->n_dims; d++) {
            put(out, item->shape[d]);
            put(out, item->offset[d]);
            put(out, item->size[d]);
        }
        for (int d = 0; d < item->n_orig_dims; d++)
            put(out, item->orig_shape[d]);
    }
}

struct cursor {
    const char *p, *end;
};

static int get(struct cursor *in, int64_t *value)
{
    if ((size_t)(in->end - in->p) < sizeof *value)
        return -1;
    memcpy(value, in->p, sizeof *value);
    in->p += sizeof *value;
    return 0;
}

static int get_text(struct cursor *in, char **s)
{
    int64_t len;
    if (get(in, &len) < 0 || len < 0 || len > in->end - in->p)
        return -1;
    *s = s2s_xstrndup(in->p, (size_t)len);
    in->p += len;
    return 0;
}

static int get_item(struct cursor *in, struct ckpt_item *item)
{
    int64_t dtype, n_dims, n_orig;
    if (get_text(in, &item->name) < 0 || get_text(in, &item->file) < 0 || get(in, &dtype) < 0 ||
        get(in, &n_dims) < 0 || get(in, &n_orig) < 0 || get(in, &item->pos) < 0 ||
        get(in, &item->len) < 0 || n_dims < 0 || n_dims > S2S_MAX_DIMS || n_orig < -1 ||
        n_orig > S2S_MAX_DIMS || dtype < 0 || (dtype && !s2s_dtype_size((enum s2s_dtype)dtype)))
        return -1;
    item->dtype = (enum s2s_dtype)dtype;
    item->n_dims = (int)n_dims;
    for (int d = 0; d < n_dims; d++)
        if (get(in, &item->shape[d]) < 0 || get(in, &item->offset[d]) < 0 ||
            get(in, &item->size[d]) < 0)
            return -1;
    item->n_orig_dims = (int)n_orig;
    for (int d = 0; d < n_orig; d++)
        if (get(in, &item->orig_shape[d]) < 0)
            return -1;
    return 0;
}

int ckpt_items_unpack(struct ckpt_items *items, const struct s2s_buf *in, struct s2s_error *err)
{
    struct cursor at = {in->data, in->data + in->len};
    while (at.p < at.end) {
        int64_t n;
        if (get(&at, &n) < 0)
            return s2s_error_set(err, S2S_E_FORMAT, "a rank's list of items is cut off");
        for (int64_t i = 0; i < n; i++)
            if (get_item(&at, ckpt_items_add(items)) < 0)
                return s2s_error_set(err, S2S_E_FORMAT, "a rank's list of items is damaged");
    }
    return 0;
}

void ckpt_items_take_digests(struct ckpt_items *items, json_t *manifest)
{
    size_t kept = 0, prefix = strlen(CKPT_ITEM_DIGEST);
    for (size_t i = 0; i < items->n; i++) {
        struct ckpt_item *item = &items->v[i];
        if (strncmp(item->name, CKPT_ITEM_DIGEST, prefix) != 0) {
            items->v[kept++] = *item;
            continue;
        }
        ckpt_manifest_add(manifest, item->file, item->len, item->name + prefix);
        free(item->name);
        free(item->file);
    }
    items->n = kept;
}

/* ---- checks ---- */

static int by_name_offset(const void *a, const void *b)
{
    const struct ckpt_item *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    for (int d = 0; d < x->n_dims && d < y->n_dims && order == 0; d++)
        order = (x->offset[d] > y->offset[d]) - (x->offset[d] < y->offset[d]);
    return order ? order : strcmp(x->file, y->file);
}

static int check_group(const struct ckpt_item *first, size_t n, struct s2s_error *err)
{
    if (first->dtype == S2S_DTYPE_NONE && n > 1)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: object written %zu times", first->name, n);
    if (first->dtype == S2S_DTYPE_NONE)
        return 0;
    struct ckpt_box *boxes = s2s_xmalloc(n * sizeof *boxes);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct ckpt_item *item = &first[i];
        boxes[i] = (struct ckpt_box){item->offset, item->size};
        if (item->dtype != first->dtype)
            rc = s2s_error_set(err, S2S_E_DTYPE, "%s: %s in %s, %s in %s", item->name,
                               s2s_dtype_name(first->dtype), first->file,
                               s2s_dtype_name(item->dtype), item->file);
        else if (item->n_dims != first->n_dims ||
                 memcmp(item->shape, first->shape, (size_t)item->n_dims * sizeof(int64_t)) != 0)
            rc = s2s_error_set(err, S2S_E_SHAPE, "%s: %s and %s disagree about its shape",
                               item->name, first->file, item->file);
    }
    if (rc == 0)
        rc = ckpt_boxes_tile(first->name, first->shape, first->n_dims, boxes, n, err);
    free(boxes);
    return rc;
}

int ckpt_items_check(struct ckpt_items *items, struct s2s_error *err)
{
    if (items->n)
        qsort(items->v, items->n, sizeof *items->v, by_name_offset);
    for (size_t i = 0, next; i < items->n; i = next) {
        for (next = i + 1; next < items->n; next++)
            if (strcmp(items->v[next].name, items->v[i].name) != 0)
                break;
        int rc = check_group(&items->v[i], next - i, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- .metadata: the objects of torch.distributed.checkpoint.metadata, smallest form ---- */

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

/* dtype, layout, requires_grad, memory format, pin_memory; one object for all tensors of a dtype */
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

static void emit_tensor(struct ckpt_emitter *out, const struct ckpt_item *items, size_t n)
{
    begin_object(out, META, "TensorStorageMetadata");
    ckpt_emit_str(out, "properties");
    emit_properties(out, items->dtype);
    ckpt_emit_str(out, "size");
    emit_size(out, items->shape, items->n_dims);
    ckpt_emit_str(out, "chunks");
    ckpt_emit_op(out, "](");
    for (size_t i = 0; i < n; i++) {
        begin_object(out, META, "ChunkStorageMetadata");
        ckpt_emit_str(out, "offsets");
        emit_size(out, items[i].offset, items[i].n_dims);
        ckpt_emit_str(out, "sizes");
        emit_size(out, items[i].size, items[i].n_dims);
        ckpt_emit_op(out, "ub");
    }
    ckpt_emit_op(out, "eub");
}

static void emit_storage(struct ckpt_emitter *out, const struct ckpt_item *item, int64_t index)
{
    begin_object(out, META, "MetadataIndex");
    ckpt_emit_str(out, "fqn");
    ckpt_emit_str(out, item->name);
    ckpt_emit_str(out, "offset");
    if (item->dtype)
        emit_size(out, item->offset, item->n_dims);
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
    ckpt_emit_str(out, item->file);
    ckpt_emit_str(out, "offset");
    ckpt_emit_int(out, item->pos);
    ckpt_emit_str(out, "length");
    ckpt_emit_int(out, item->len);
    ckpt_emit_op(out, "ub");
}

/* an attribute that Megatron-Core (to 0.15) looks for: shapes of tensors that it stored flattened
 */
static void emit_mcore_data(struct ckpt_emitter *out, const struct ckpt_items *items)
{
    bool any = false;
    for (size_t i = 0; i < items->n; i++) {
        const struct ckpt_item *item = &items->v[i];
        if (item->n_orig_dims < 0 || (i && strcmp(items->v[i - 1].name, item->name) == 0))
            continue;
        if (!any) {
            ckpt_emit_str(out, "mcore_data");
            ckpt_emit_op(out, "}(");
        }
        any = true;
        ckpt_emit_str(out, item->name);
        ckpt_emit_op(out, "}(");
        ckpt_emit_str(out, "nd_reformulated_orig_global_shape");
        ckpt_emit_ints(out, item->orig_shape, item->n_orig_dims);
        ckpt_emit_op(out, "u");
    }
    if (any)
        ckpt_emit_op(out, "u");
}

void ckpt_items_metadata(const struct ckpt_items *items, const json_t *paths,
                         struct s2s_buf *pickle)
{
    struct ckpt_emitter out;
    ckpt_emit_begin(&out);
    begin_object(&out, META, "Metadata");
    ckpt_emit_str(&out, "state_dict_metadata");
    ckpt_emit_op(&out, "}(");
    for (size_t i = 0, next; i < items->n; i = next) {
        for (next = i + 1; next < items->n; next++)
            if (strcmp(items->v[next].name, items->v[i].name) != 0)
                break;
        ckpt_emit_str(&out, items->v[i].name);
        if (items->v[i].dtype) {
            emit_tensor(&out, &items->v[i], next - i);
        } else {
            ckpt_emit_global(&out, META, "BytesStorageMetadata");
            ckpt_emit_op(&out, ")\x81");
        }
    }
    ckpt_emit_op(&out, "u");
    ckpt_emit_str(&out, "planner_data");
    ckpt_emit_paths(&out, items, paths);
    ckpt_emit_str(&out, "storage_data");
    ckpt_emit_op(&out, "}(");
    int64_t index = 0;
    for (size_t i = 0; i < items->n; i++) {
        index = i && strcmp(items->v[i].name, items->v[i - 1].name) == 0 ? index + 1 : 0;
        emit_storage(&out, &items->v[i], index);
    }
    ckpt_emit_op(&out, "u");
    ckpt_emit_str(&out, "storage_meta");
    ckpt_emit_op(&out, "N");
    emit_mcore_data(&out, items);
    ckpt_emit_op(&out, "ub");
    ckpt_emit_end(&out);
    s2s_buf_add(pickle, out.buf.data, out.buf.len);
    ckpt_emit_release(&out);
}
