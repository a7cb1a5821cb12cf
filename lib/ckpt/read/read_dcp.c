/*
 * torch.distributed.checkpoint: .metadata maps each box of each tensor to a file and an item in it.
 * An item is only opened when it is read.
 */
#include "lib/ckpt/pickle/torch_dtype.h"

#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

enum {
    MAX_METADATA = 1 << 30,
    MIN_CHUNK = 16 /* a chunk takes at least so many bytes of pickle */
};

static const char META[] = "torch.distributed.checkpoint.metadata";

static int bad_meta(const struct ckpt_node *node, const char *what, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT, "object at byte %u: %s", node ? node->offset : 0, what);
}

/* The dtype of TensorProperties: a tuple whose first element it is; a dict in old versions. */
static const struct ckpt_node *dtype_of(const struct ckpt_node *properties)
{
    if (!properties || properties->kind != CKPT_RECORD || !properties->items[2])
        return NULL;
    const struct ckpt_node *state = properties->items[2];
    return state->kind == CKPT_TUPLE && state->n ? state->items[0] : ckpt_get(state, "dtype");
}

static int bad_dtype(const struct ckpt_node *dtype, const struct ckpt_node *tensor,
                     struct s2s_error *err)
{
    size_t len;
    if (!dtype || dtype->kind != CKPT_GLOBAL)
        return bad_meta(tensor, "tensor of an unknown dtype", err);
    const char *name = ckpt_global_name(dtype, &len);
    return s2s_error_set(err, S2S_E_UNSUPPORTED,
                         "object at byte %u: tensor of an unknown dtype, %.*s, which is not read",
                         tensor->offset, (int)len, name);
}

/* State while the pickle is parsed. Chunks and names are taken out of it as they appear
 * (ckpt_pickle_taker), so that the whole tree is never in memory. */
struct reading {
    struct s2s_ckpt *ckpt;
    size_t len;         /* of .metadata */
    bool sorted;        /* all names are known, and sorted */
    size_t chunks_left; /* limit for more, from the size of .metadata */
    size_t names_left;  /* limit for the bytes of names, which are all in the pickle
                         */
};

enum { BOX = 2 * S2S_MAX_DIMS };

/* Reads offset [n] and size [n] of a chunk; returns n, or -1: not a chunk. */
static int read_box(int64_t box[BOX], const struct ckpt_node *node)
{
    int64_t size[S2S_MAX_DIMS];
    const int n = ckpt_get_ints(ckpt_get(node, "offsets"), box, S2S_MAX_DIMS);
    const int m = ckpt_get_ints(ckpt_get(node, "sizes"), size, S2S_MAX_DIMS);
    if (n < 0 || m < 0 || m > n)
        return -1;
    /* some writers leave out leading axes of extent 1 */
    for (int d = 0; d < n; d++)
        box[n + d] = d < n - m ? 1 : size[d - (n - m)];
    return n;
}

static int copy_boxes(int64_t *boxes, int n, const struct ckpt_node *list, struct s2s_error *err)
{
    int64_t box[BOX];
    for (uint32_t i = 0; i < list->n; i++) {
        if (read_box(box, list->items[i]) != n)
            return bad_meta(list->items[i], "chunk with another number of axes than its tensor",
                            err);
        memcpy(boxes + 2 * (size_t)n * i, box, 2 * (size_t)n * sizeof *box);
    }
    return 0;
}

static int compare_ints(const int64_t *a, const int64_t *b, int n)
{
    for (int d = 0; d < n; d++)
        if (a[d] != b[d])
            return a[d] < b[d] ? -1 : 1;
    return 0;
}

static int by_offset(const void *a, const void *b, void *n_dims)
{
    return compare_ints(a, b, *(int *)n_dims);
}

/* Sorts by offset, for binary search in find_place. */
static void sort_boxes(int64_t *boxes, size_t n_chunks, int n)
{
    const size_t len = 2 * (size_t)n;
    size_t k = 1; /* mostly sorted already; qsort_r would need memory */
    while (k < n_chunks && compare_ints(boxes + (k - 1) * len, boxes + k * len, n) <= 0)
        k++;
    if (k < n_chunks)
        qsort_r(boxes, n_chunks, len * sizeof *boxes, by_offset, &n);
}

static int read_chunks(struct reading *r, struct s2s_ckpt_tensor *tensor,
                       const struct ckpt_node *list, struct s2s_error *err)
{
    if (!list || list->kind != CKPT_LIST)
        return bad_meta(list, "tensor without a list of chunks", err);
    const int n = tensor->n_dims;
    const size_t n_chunks = list->n;
    if (n_chunks > r->chunks_left)
        return bad_meta(list, "more chunks than the metadata has bytes for: a bomb", err);
    r->chunks_left -= n_chunks;
    const size_t n_ints = 2 * (size_t)n * n_chunks;
    int64_t *boxes = s2s_try_calloc(n_ints, sizeof *boxes, "boxes", err);
    int rc = boxes ? copy_boxes(boxes, n, list, err) : S2S_E_NOMEM;
    if (rc == 0) {
        sort_boxes(boxes, n_chunks, n);
        ckpt_set_boxes(r->ckpt, tensor, ckpt_arena_ints(r->ckpt, boxes, n_ints), n_chunks);
    }
    free(boxes);
    return rc;
}

static int read_tensor(struct reading *r, const struct ckpt_node *name,
                       const struct ckpt_node *node, struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = r->ckpt;
    struct s2s_ckpt_tensor *tensor;
    int64_t shape[S2S_MAX_DIMS];
    int rc = ckpt_add_tensor(ckpt, &tensor, name->text, name->len, err);
    if (rc < 0)
        return rc;
    const struct ckpt_node *dtype = dtype_of(ckpt_get(node, "properties"));
    tensor->dtype = ckpt_dtype_of_global(dtype);
    if (!tensor->dtype)
        return bad_dtype(dtype, node, err);
    tensor->n_dims = ckpt_get_ints(ckpt_get(node, "size"), shape, S2S_MAX_DIMS);
    if (tensor->n_dims < 0)
        return bad_meta(node, "tensor without a size (at most 8 axes are read)", err);
    tensor->shape = ckpt_arena_ints(ckpt, shape, tensor->n_dims);
    return read_chunks(r, tensor, ckpt_get(node, "chunks"), err);
}

static bool is_stored(const struct ckpt_node *node)
{
    return ckpt_is(node, META, "TensorStorageMetadata") ||
           ckpt_is(node, META, "BytesStorageMetadata");
}

static int read_name(struct reading *r, const struct ckpt_node *name, const struct ckpt_node *node,
                     struct s2s_error *err)
{
    struct s2s_ckpt_object *object;
    int rc;
    if (name->kind != CKPT_STR)
        return bad_meta(name, "name that is not a string", err);
    if (name->len > r->names_left)
        return bad_meta(name, "names longer than the metadata itself: a bomb", err);
    r->names_left -= name->len;
    if (ckpt_is(node, META, "TensorStorageMetadata"))
        rc = read_tensor(r, name, node, err);
    else if (is_stored(node))
        rc = ckpt_add_object(r->ckpt, &object, name->text, name->len, err);
    else
        rc = bad_meta(node, "neither tensor nor byte object", err);
    return rc < 0 ? s2s_error_add(err, rc, "%.*s", ckpt_shown_len(name->len, 300), name->text) : 0;
}

static int read_names(struct reading *r, const struct ckpt_node *dict, struct s2s_error *err)
{
    int rc = 0;
    if (!dict || dict->kind != CKPT_DICT)
        return bad_meta(dict, "no dict state_dict_metadata", err);
    for (uint32_t i = 0; i < dict->n && rc == 0; i += 2)
        rc = read_name(r, dict->items[i], dict->items[i + 1], err);
    return rc;
}

static struct ckpt_location *find_place(const struct s2s_ckpt_tensor *tensor, const int64_t *offset)
{
    size_t low = 0, high = tensor->n_chunks;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const int order =
            compare_ints(offset, ckpt_chunk_at(tensor, middle).offset, tensor->n_dims);
        if (order == 0)
            return ckpt_place_at(tensor, middle);
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* ---- paths ---- */

/* planner_data has the path of each name in the nested dicts and lists of the saved state, such as
 * ("optim", "param_groups", 0, "lr") for "optim.param_groups.0.lr". dcp_to_torch_save rebuilds the
 * nesting from it. */
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

/* Is this entry of planner_data a name and its path, a tuple? */
static bool is_path(const struct ckpt_node *name, const struct ckpt_node *parts)
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

/* Stores such a path (ckpt_path_of) if the checkpoint has something of this name. After ckpt_seal.
 * FORMAT: the name has a path already. */
static int keep_path(struct s2s_ckpt *ckpt, const struct ckpt_node *name,
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

/* ---- places ---- */

/* where an item is stored */
struct item {
    int file;
    int64_t pos, len;
};

/* Reports the extension's name, such as "stream.zstd/1". */
static int bad_transform(const struct ckpt_node *transforms, struct s2s_error *err)
{
    const struct ckpt_node *first = transforms->kind == CKPT_LIST || transforms->kind == CKPT_TUPLE
                                        ? transforms->items[0]
                                        : transforms;
    const bool named = first->kind == CKPT_STR;
    return s2s_error_set(err, S2S_E_UNSUPPORTED,
                         "item is transformed (compressed or encrypted) on its way to the file: "
                         "transform_descriptors %.*s",
                         named ? ckpt_shown_len(first->len, 100) : 0, named ? first->text : "");
}

static int read_item(struct s2s_ckpt *ckpt, const struct ckpt_node *info, struct item *item,
                     struct s2s_error *err)
{
    const struct ckpt_node *path = ckpt_get(info, "relative_path");
    const struct ckpt_node *transforms = ckpt_get(info, "transform_descriptors");
    char name[256];
    if (!path || path->kind != CKPT_STR || !ckpt_get_int(ckpt_get(info, "offset"), &item->pos) ||
        !ckpt_get_int(ckpt_get(info, "length"), &item->len))
        return bad_meta(info, "storage without file, offset or length", err);
    if (!ckpt_name_is_plain(path->text, path->len))
        return s2s_error_set(err, S2S_E_FORMAT,
                             "relative_path \"%.*s\" is not a plain file name: refused",
                             ckpt_shown_len(path->len, 200), path->text);
    if (transforms && transforms->kind != CKPT_NONE &&
        !((transforms->kind == CKPT_LIST || transforms->kind == CKPT_TUPLE) && transforms->n == 0))
        return bad_transform(transforms, err);
    snprintf(name, sizeof name, "%.*s", (int)path->len, path->text);
    struct ckpt_span span;
    int rc = ckpt_find_span(ckpt, name, &span, err);
    if (rc < 0)
        return rc;
    int64_t file_len = span.len_bytes;
    item->file = span.file;
    if (item->pos < 0 || item->len < 0)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: an item of %lld bytes at %lld cannot be", name,
                             (long long)item->len, (long long)item->pos);
    if (item->pos > file_len || item->len > file_len - item->pos)
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "%s has %lld bytes, an item of %lld bytes at %lld is expected: the "
                             "file is truncated",
                             name, (long long)file_len, (long long)item->len, (long long)item->pos);
    item->pos += span.begin;
    return 0;
}

static int place_object(struct s2s_ckpt *ckpt, struct s2s_ckpt_object *object,
                        const struct item *item, struct s2s_error *err)
{
    if (object->file)
        return s2s_error_set(err, S2S_E_FORMAT, "stored twice");
    object->file = ckpt->files[item->file].name;
    object->pos = item->pos;
    object->len_bytes = item->len;
    return 0;
}

static int place_chunk(const struct s2s_ckpt_tensor *tensor, const struct ckpt_node *index,
                       const struct item *item, struct s2s_error *err)
{
    int64_t offset[S2S_MAX_DIMS];
    const struct ckpt_node *at = ckpt_get(index, "offset");
    int n = ckpt_get_ints(at, offset, S2S_MAX_DIMS);
    struct ckpt_location *place = n == tensor->n_dims ? find_place(tensor, offset) : NULL;
    /* a tensor of one chunk may be stored without an offset */
    if ((!at || at->kind == CKPT_NONE) && tensor->n_chunks == 1)
        place = ckpt_place_at(tensor, 0);
    if (!place)
        return s2s_error_set(err, S2S_E_FORMAT, "stored chunk that the tensor does not have");
    if (place->file >= 0)
        return s2s_error_set(err, S2S_E_FORMAT, "chunk stored twice");
    place->file = item->file;
    place->store_pos = item->pos;
    place->store_len = item->len;
    return 0;
}

static int place_item(struct s2s_ckpt *ckpt, const struct ckpt_node *index,
                      const struct ckpt_node *info, struct s2s_error *err)
{
    const struct ckpt_node *fqn = ckpt_get(index, "fqn");
    struct item item;
    if (!fqn || fqn->kind != CKPT_STR)
        return bad_meta(index, "storage without a name", err);
    char *name = s2s_xstrndup(fqn->text, fqn->len);
    const struct s2s_ckpt_tensor *tensor = s2s_ckpt_find(ckpt, name);
    struct s2s_ckpt_object *object = tensor ? NULL : ckpt_find_object(ckpt, name);
    int rc = read_item(ckpt, info, &item, err);
    if (rc == 0 && tensor)
        rc = place_chunk(tensor, index, &item, err);
    else if (rc == 0 && object)
        rc = place_object(ckpt, object, &item, err);
    else if (rc == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "stored, but not among the names");
    if (rc < 0)
        s2s_error_add(err, rc, "%.300s", name);
    free(name);
    return rc;
}

/* Each item is an archive that is opened for its chunk. */
static int check_items(const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    __int128 told = 0;
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        for (size_t k = 0; k < ckpt->tensors[i].n_chunks; k++)
            told += ckpt_place_at(&ckpt->tensors[i], k)->store_len;
    return ckpt_check_told(ckpt, "items", told, 16, err);
}

static int by_place(const void *a, const void *b)
{
    const struct ckpt_chunk *x = *(struct ckpt_chunk *const *)a,
                            *y = *(struct ckpt_chunk *const *)b;
    if (x->place.file != y->place.file)
        return x->place.file < y->place.file ? -1 : 1;
    if (x->place.store_pos != y->place.store_pos)
        return x->place.store_pos < y->place.store_pos ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Checks that no two chunks of a tensor share bytes: one of them would have wrong data, which is
 * not detected elsewhere, as they have the same shape. */
static int check_apart(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *t,
                       struct s2s_error *err)
{
    const struct ckpt_chunk **sorted = s2s_xmalloc(t->n_chunks * sizeof(void *));
    char a[200], b[200];
    size_t n = 0;
    int rc = 0;
    for (size_t k = 0; k < t->n_chunks; k++)
        if (ckpt_box_numel(t->chunks[k].size, t->n_dims) > 0)
            sorted[n++] = &t->chunks[k];
    qsort(sorted, n, sizeof *sorted, by_place);
    for (size_t k = 1; k < n && rc == 0; k++) {
        const struct ckpt_location *place = &sorted[k]->place, *before = &sorted[k - 1]->place;
        if (place->file == before->file && place->store_pos < before->store_pos + before->store_len)
            rc = s2s_error_set(
                err, S2S_E_FORMAT, "%s: chunks at %s and %s lie in the same bytes of %s", t->name,
                ckpt_shape_text(a, sorted[k - 1]->offset, t->n_dims),
                ckpt_shape_text(b, sorted[k]->offset, t->n_dims), ckpt->files[place->file].name);
    }
    free(sorted);
    return rc;
}

static int check_placed(const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    char a[200];
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const struct s2s_ckpt_tensor *t = &ckpt->tensors[i];
        for (size_t k = 0; k < t->n_chunks; k++)
            if (ckpt_place_at(t, k)->file < 0)
                return s2s_error_set(err, S2S_E_FORMAT, "%s: chunk at %s is in no file", t->name,
                                     ckpt_shape_text(a, ckpt_chunk_at(t, k).offset, t->n_dims));
    }
    for (size_t i = 0; i < ckpt->n_objects; i++)
        if (!ckpt->objects[i].file)
            return s2s_error_set(err, S2S_E_FORMAT, "%s: in no file", ckpt->objects[i].name);
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        int rc = ckpt->tensors[i].n_chunks > 1 ? check_apart(ckpt, &ckpt->tensors[i], err) : 0;
        if (rc < 0)
            return rc;
    }
    return check_items(ckpt, err);
}

/* Megatron-Core up to 0.15: original shapes of tensors that it stored flattened. */
static int read_mcore_data(struct s2s_ckpt *ckpt, const struct ckpt_node *dict,
                           struct s2s_error *err)
{
    int64_t shape[S2S_MAX_DIMS];
    if (!dict || dict->kind != CKPT_DICT)
        return 0;
    for (uint32_t i = 0; i < dict->n; i += 2) {
        const struct ckpt_node *key = dict->items[i];
        const struct ckpt_node *orig =
            ckpt_get(dict->items[i + 1], "nd_reformulated_orig_global_shape");
        if (!orig || key->kind != CKPT_STR)
            continue;
        char *name = s2s_xstrndup(key->text, key->len);
        const struct s2s_ckpt_tensor *tensor = s2s_ckpt_find(ckpt, name);
        free(name);
        int n = ckpt_get_ints(orig, shape, S2S_MAX_DIMS);
        if (!tensor)
            continue;
        int rc = ckpt_set_orig_shape(ckpt, (struct s2s_ckpt_tensor *)tensor, shape, n, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Sorts tensors and objects by name. */
static int sort_all(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    free(ckpt->paths); /* indexed by the old order */
    ckpt->paths = NULL;
    return ckpt_seal(ckpt, err);
}

/* To be called when all names have been read. */
static int end_names(struct reading *r, struct s2s_error *err)
{
    int rc = r->sorted ? 0 : sort_all(r->ckpt, err);
    r->sorted = true;
    return rc;
}

static int take_item(void *ctx, struct ckpt_node *key, struct ckpt_node *value,
                     struct s2s_error *err)
{
    struct reading *r = ctx;
    if (!key) /* dropped: Megatron-Core repeats everything in them */
        return ckpt_is_named(value, "WriteItem") || ckpt_is_named(value, "SavePlan") ||
               ckpt_is_named(value, "MCoreSavePlan");
    if (key->kind == CKPT_STR && is_stored(value)) {
        int rc = r->sorted ? 0 : read_name(r, key, value, err);
        return rc < 0 ? rc : !r->sorted;
    }
    const bool path = is_path(key, value);
    const bool place = ckpt_is(key, META, "MetadataIndex");
    if ((!path && !place) || r->ckpt->n_tensors + r->ckpt->n_objects == 0)
        return 0;
    int rc = end_names(r, err);
    if (rc == 0 && path)
        rc = keep_path(r->ckpt, key, value, err);
    else if (rc == 0)
        rc = place_item(r->ckpt, key, value, err);
    return rc < 0 ? rc : 1;
}

static void take_again(void *ctx)
{
    struct reading *r = ctx;
    r->ckpt->n_tensors = r->ckpt->n_objects = r->ckpt->name_bytes = 0;
    r->chunks_left = r->len / MIN_CHUNK;
    r->names_left = r->len;
    r->sorted = false;
}

/* Reads what was not taken while parsing, because the pickle has another order than torch's. */
static int read_tree(struct reading *r, const struct ckpt_node *root, struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = r->ckpt;
    if (!ckpt_is(root, META, "Metadata") && !ckpt_is_named(root, "MCoreMetadata"))
        return bad_meta(root, "not the Metadata of torch.distributed.checkpoint", err);
    const struct ckpt_node *names = ckpt_get(root, "state_dict_metadata");
    int rc = read_names(r, names, err);
    if (rc == 0 && (!r->sorted || names->n))
        rc = sort_all(ckpt, err);
    const struct ckpt_node *paths = ckpt_get(root, "planner_data");
    for (uint32_t i = 0; rc == 0 && paths && paths->kind == CKPT_DICT && i < paths->n; i += 2)
        rc = keep_path(ckpt, paths->items[i], paths->items[i + 1], err);
    const struct ckpt_node *storage = ckpt_get(root, "storage_data");
    if (rc == 0 && (!storage || storage->kind != CKPT_DICT))
        rc = bad_meta(root, "no dict storage_data", err);
    for (uint32_t i = 0; rc == 0 && i < storage->n; i += 2)
        rc = place_item(ckpt, storage->items[i], storage->items[i + 1], err);
    if (rc == 0)
        rc = check_placed(ckpt, err);
    return rc < 0 ? rc : read_mcore_data(ckpt, ckpt_get(root, "mcore_data"), err);
}

int ckpt_read_dcp(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct ckpt_pickle pickle;
    struct ckpt_span span;
    int rc = ckpt_find_span(ckpt, ".metadata", &span, err);
    int fd = rc < 0 ? rc : ckpt_file_fd(ckpt, span.file, err);
    if (fd >= 0 && span.len_bytes > MAX_METADATA)
        fd = s2s_error_set(err, S2S_E_FORMAT, "has %lld bytes, at most %d are expected",
                           (long long)span.len_bytes, MAX_METADATA);
    if (fd < 0)
        return s2s_error_add(err, fd, ".metadata");
    struct reading reading = {.ckpt = ckpt, .len = (size_t)span.len_bytes};
    const struct ckpt_pickle_taker taker = {
        .ctx = &reading, .item = take_item, .again = take_again};
    take_again(&reading);
    fd = dup(fd); /* ckpt_file_fd may close it when others are opened */
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_IO, ".metadata");
    rc = ckpt_pickle_parse_file(&pickle, fd, span.begin, reading.len, CKPT_STRICT, &taker, err);
    close(fd);
    if (rc == 0) {
        if (pickle.len != reading.len)
            rc = s2s_error_set(err, S2S_E_FORMAT, "%zu bytes after the end of the pickle",
                               reading.len - pickle.len);
        else
            rc = read_tree(&reading, pickle.root, err);
        ckpt_pickle_release(&pickle);
    }
    return rc < 0 ? s2s_error_add(err, rc, ".metadata") : 0;
}
