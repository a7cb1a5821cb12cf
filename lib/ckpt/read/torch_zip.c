/* Archives that torch.save writes: data.pkl and its storages. */
#include "lib/ckpt/pickle/torch_dtype.h"
#include "lib/ckpt/model.h"

#include "lib/base/base.h"

enum { MAX_PICKLE = 1 << 30 };

static enum s2s_dtype dtype_of_global(const struct ckpt_node *node)
{
    if (!node || node->kind != CKPT_GLOBAL || node->n != 5 || memcmp(node->text, "torch", 5) != 0)
        return S2S_DTYPE_NONE;
    return ckpt_dtype_of_torch(node->text + 6, node->len - 6);
}

static int bad_view(const struct ckpt_node *node, const char *what, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT, "tensor at byte %u of its pickle: %s", node->offset,
                         what);
}

static int unknown_dtype(const struct ckpt_node *node, const struct ckpt_node *global,
                         struct s2s_error *err)
{
    if (!global || global->kind != CKPT_GLOBAL)
        return bad_view(node, "it names no dtype", err);
    const size_t len = global->len - global->n - 1;
    return s2s_error_set(err, S2S_E_UNSUPPORTED,
                         "tensor at byte %u of its pickle: its dtype %.*s is not read",
                         node->offset, (int)(len < 40 ? len : 40), global->text + global->n + 1);
}

/* ('storage', class, key, location, numel) */
int ckpt_storage_of(const struct ckpt_node *persid, struct ckpt_view *view, struct s2s_error *err)
{
    const struct ckpt_node *parts = persid->kind == CKPT_PERSID ? persid->items[0] : NULL;
    int64_t count;
    if (!parts || parts->kind != CKPT_TUPLE || parts->n < 5 ||
        !ckpt_str_is(parts->items[0], "storage") || parts->items[1]->kind != CKPT_GLOBAL ||
        parts->items[2]->kind != CKPT_STR || !ckpt_get_int(parts->items[4], &count) || count < 0)
        return bad_view(persid, "it names no storage", err);
    if (parts->n > 5 && parts->items[5]->kind != CKPT_NONE)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "storage that is a view of another (torch before 0.4)");
    const struct ckpt_node *class = parts->items[1];
    view->key = parts->items[2]->text;
    view->key_len = parts->items[2]->len;
    view->store_numel = view->store_len = count;
    view->dtype = S2S_DTYPE_NONE;
    if (ckpt_is(class, "torch.storage", "UntypedStorage"))
        return 0;
    if (class->n == 5 && memcmp(class->text, "torch", 5) == 0)
        view->dtype = ckpt_dtype_of_storage(class->text + 6, class->len - 6);
    const size_t len = class->len - class->n - 1;
    if (!view->dtype) /* those of quantized tensors */
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "tensor at byte %u of its pickle: its storage class %.*s is not read",
                             persid->offset, (int)(len < 40 ? len : 40),
                             class->text + class->n + 1);
    if (__builtin_mul_overflow(count, (int64_t)s2s_dtype_size(view->dtype), &view->store_len))
        return bad_view(persid, "its storage has an absurd size", err);
    return 0;
}

/* offset + sum((size - 1) * stride) must lie in the storage; what is empty lies at its begin */
static int check_bounds(const struct ckpt_node *node, struct ckpt_view *view, struct s2s_error *err)
{
    __int128 last = view->offset;
    int64_t numel = ckpt_box_numel(view->size, view->n_dims);
    if (numel < 0 || view->offset < 0)
        return bad_view(node, "absurd size or offset", err);
    for (int d = 0; d < view->n_dims; d++)
        if (view->stride[d] < 0)
            return bad_view(node, "negative stride", err);
    if (numel == 0) {
        view->offset = 0;
        memset(view->stride, 0, sizeof view->stride);
        return 0;
    }
    /* the product of all sizes fits 63 bits, so this sum fits 127 */
    for (int d = 0; d < view->n_dims; d++)
        last += (__int128)(view->size[d] - 1) * view->stride[d];
    if (last >= view->store_numel)
        return bad_view(node, "it reaches past the end of its storage", err);
    return 0;
}

/* Of a conjugated or negated view the storage holds other numbers than the tensor has. */
static int check_bits(const struct ckpt_node *node, const struct ckpt_node *args, uint32_t at,
                      struct s2s_error *err)
{
    static const char *const bits[] = {"conj", "neg"};
    const struct ckpt_node *metadata = args->n > at ? args->items[at] : NULL;
    for (size_t i = 0; i < 2 && metadata && metadata->kind == CKPT_DICT; i++) {
        const struct ckpt_node *set = ckpt_get(metadata, bits[i]);
        if (set && !(set->kind == CKPT_BOOL && !set->i)) {
            int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                                   "tensor at byte %u of its pickle: a %s view, whose numbers are "
                                   "not those of its storage",
                                   node->offset, i ? "negated" : "conjugated");
            return s2s_error_hint(err, rc, "save it after resolve_%s()", bits[i]);
        }
    }
    return 0;
}

int ckpt_view_of(const struct ckpt_node *node, struct ckpt_view *view, struct s2s_error *err)
{
    if (!node || node->kind != CKPT_RECORD)
        return 0;
    bool v3 = ckpt_is(node, "torch._utils", "_rebuild_tensor_v3");
    if (!v3 && !ckpt_is(node, "torch._utils", "_rebuild_tensor_v2") &&
        !ckpt_is(node, "torch._utils", "_rebuild_tensor"))
        return 0;
    const struct ckpt_node *args = node->items[1];
    *view = (struct ckpt_view){.n_dims = 0};
    if (args->n < 4 || (v3 && args->n < 7))
        return bad_view(node, "too few arguments", err);
    enum s2s_dtype dtype = v3 ? dtype_of_global(args->items[6]) : S2S_DTYPE_NONE;
    if (v3 && !dtype)
        return unknown_dtype(node, args->items[6], err);
    int rc = check_bits(node, args, v3 ? 7 : 6, err);
    if (rc == 0)
        rc = ckpt_storage_of(args->items[0], view, err);
    if (rc < 0)
        return rc;
    if (!view->dtype) { /* untyped: the count is of bytes */
        view->dtype = dtype;
        view->store_numel = dtype ? view->store_len / (int64_t)s2s_dtype_size(dtype) : 0;
    } else if (dtype && dtype != view->dtype) {
        return bad_view(node, "dtype and storage class disagree", err);
    }
    if (!view->dtype)
        return bad_view(node, "its storage has no dtype", err);
    view->n_dims = ckpt_get_ints(args->items[2], view->size, S2S_MAX_DIMS);
    if (view->n_dims < 0 ||
        ckpt_get_ints(args->items[3], view->stride, S2S_MAX_DIMS) != view->n_dims ||
        !ckpt_get_int(args->items[1], &view->offset))
        return bad_view(node, "bad size, stride or offset (at most 8 axes are read)", err);
    rc = check_bounds(node, view, err);
    return rc < 0 ? rc : 1;
}

/* torch reads 1 to 10 (kMaxSupportedFileFormatVersion), and has written no other */
static int check_version(const struct s2s_zip *zip, const struct s2s_zip_member *member,
                         struct s2s_error *err)
{
    char *text = NULL;
    int64_t version;
    int rc = s2s_zip_read_member(zip, member, 64, &text, err);
    if (rc < 0)
        return rc;
    text[strcspn(text, "\r\n")] = 0;
    if (s2s_parse_i64(&version, text, 1, 10, NULL) < 0)
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "archive of version \"%.16s\"; 1 to 10 are known", text);
    free(text);
    return rc;
}

/* Of a large one only what is needed stays in memory, and the archive's bytes do not. */
static int read_pickle(struct ckpt_archive *archive, const struct s2s_zip_member *member,
                       enum ckpt_pickle_mode mode, struct s2s_error *err)
{
    enum { PIECE = 64 << 10 };
    const struct s2s_zip *zip = &archive->zip;
    const size_t len = (size_t)member->len_bytes;
    if (zip->source.bytes || !ckpt_pickle_is_large(len) || member->len_bytes > MAX_PICKLE) {
        int rc = s2s_zip_read_member(zip, member, MAX_PICKLE, &archive->bytes, err);
        return rc < 0 ? rc : ckpt_pickle_parse(&archive->pickle, archive->bytes, len, mode, err);
    }
    char *piece = s2s_xmalloc(PIECE);
    int rc = s2s_zip_check_member(zip, member, piece, PIECE, err);
    free(piece);
    return rc < 0 ? rc
                  : ckpt_pickle_parse_file(&archive->pickle, zip->source.fd,
                                           zip->source.begin + member->pos, len, mode, NULL, err);
}

int ckpt_archive_open(struct ckpt_archive *archive, const struct s2s_zip_source *source,
                      enum ckpt_pickle_mode mode, struct s2s_error *err)
{
    *archive = (struct ckpt_archive){.bytes = NULL};
    int rc = s2s_zip_open(&archive->zip, source, err);
    if (rc == S2S_E_UNSUPPORTED && strstr(err->text, "/code/__torch__"))
        return s2s_error_set(err, rc, "TorchScript archive: it holds a program");
    if (rc == S2S_E_UNSUPPORTED)
        return s2s_error_hint(err, rc,
                              "torch.save compresses nothing; TorchScript (torch.jit.save) "
                              "is a program and is not read");
    if (rc < 0)
        return rc;
    const struct s2s_zip *zip = &archive->zip;
    const struct s2s_zip_member *pickle = s2s_zip_find(zip, "data.pkl");
    const struct s2s_zip_member *order = s2s_zip_find(zip, "byteorder");
    const struct s2s_zip_member *version = s2s_zip_find(zip, "version");
    char *text = NULL;
    if (!pickle)
        rc = s2s_error_set(err, S2S_E_FORMAT, "zip archive without data.pkl: not of torch.save");
    else if (s2s_zip_find(zip, "constants.pkl"))
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "TorchScript archive: it holds a program");
    if (rc == 0 && order)
        rc = s2s_zip_read_member(zip, order, 64, &text, err);
    if (rc == 0 && text && strcmp(text, "little") != 0)
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "archive of byte order \"%.16s\"", text);
    free(text);
    if (rc == 0 && version)
        rc = check_version(zip, version, err);
    if (rc == 0)
        rc = read_pickle(archive, pickle, mode, err);
    if (rc == 0 && archive->pickle.len != (size_t)pickle->len_bytes)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%zu bytes behind the pickle's end",
                           (size_t)pickle->len_bytes - archive->pickle.len);
    if (rc < 0)
        ckpt_archive_release(archive);
    return rc;
}

int ckpt_archive_check_notes(const struct s2s_zip *zip, struct s2s_error *err)
{
    char piece[512];
    int rc = 0;
    for (size_t i = 0; i < zip->n_members && rc == 0; i++) {
        const char *slash = strchr(zip->members[i].name, '/');
        if (!slash || strncmp(slash, "/data/", 6) != 0)
            rc = s2s_zip_check_member(zip, &zip->members[i], piece, sizeof piece, err);
    }
    return rc;
}

void ckpt_archive_release(struct ckpt_archive *archive)
{
    s2s_zip_release(&archive->zip);
    ckpt_pickle_release(&archive->pickle);
    free(archive->bytes);
    archive->bytes = NULL;
}

/* the storage of a view: its member; checks the length */
static int find_storage(const struct ckpt_archive *archive, const struct ckpt_view *view,
                        const struct s2s_zip_member **member, struct s2s_error *err)
{
    char name[80];
    if (view->key_len > 60 || !ckpt_name_is_plain(view->key, view->key_len))
        return s2s_error_set(err, S2S_E_FORMAT, "storage of an odd name");
    snprintf(name, sizeof name, "data/%.*s", (int)view->key_len, view->key);
    *member = s2s_zip_find(&archive->zip, name);
    if (!*member)
        return s2s_error_set(err, S2S_E_FORMAT, "storage %s is not in the archive", name);
    if ((*member)->len_bytes != view->store_len)
        return s2s_error_set(err, S2S_E_FORMAT, "storage %s has %lld bytes, its tensor says %lld",
                             name, (long long)(*member)->len_bytes, (long long)view->store_len);
    return 0;
}

/* the item of a .distcp file: an archive of one tensor, the chunk */
static int locate_item(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                       struct ckpt_chunk *chunk, const struct ckpt_archive *archive,
                       struct s2s_error *err)
{
    struct ckpt_view view = {.n_dims = 0};
    const struct s2s_zip_member *member = NULL;
    int rc = ckpt_view_of(archive->pickle.root, &view, err);
    if (rc == 0)
        return s2s_error_set(err, S2S_E_FORMAT, "item holds no tensor");
    if (rc < 0 || (rc = find_storage(archive, &view, &member, err)) < 0)
        return rc;
    if (view.dtype != tensor->dtype)
        return s2s_error_set(err, S2S_E_DTYPE, "item is %s, the metadata says %s",
                             s2s_dtype_name(view.dtype), s2s_dtype_name(tensor->dtype));
    /* the item may lack leading axes of extent 1 */
    int lead = tensor->n_dims - view.n_dims;
    int64_t stride[S2S_MAX_DIMS] = {0}, contiguous[S2S_MAX_DIMS] = {0};
    bool same = lead >= 0;
    for (int d = 0; d < tensor->n_dims && same; d++) {
        same = chunk->size[d] == (d < lead ? 1 : view.size[d - lead]);
        stride[d] = d < lead ? 0 : view.stride[d - lead];
    }
    if (!same) {
        char a[200], b[200];
        return s2s_error_set(err, S2S_E_SHAPE, "item has shape %s, the metadata says %s",
                             ckpt_shape_text(a, view.size, view.n_dims),
                             ckpt_shape_text(b, chunk->size, tensor->n_dims));
    }
    uint64_t step = 1; /* wraps where an axis is empty */
    for (int d = tensor->n_dims; d-- > 0; step *= (uint64_t)chunk->size[d])
        contiguous[d] = (int64_t)step;
    const int64_t *kept = ckpt_arena_box(ckpt, stride, tensor->n_dims, contiguous);
    chunk->stride = kept == contiguous ? NULL : kept;
    chunk->store_pos += member->pos;
    chunk->store_len = view.store_len;
    chunk->data = chunk->store_pos + view.offset * (int64_t)s2s_dtype_size(view.dtype);
    chunk->crc = member->crc;
    chunk->has_crc = member->crc != 0;
    chunk->located = true;
    return 0;
}

int ckpt_locate(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                struct ckpt_chunk *chunk, struct s2s_error *err)
{
    struct ckpt_archive archive;
    if (chunk->located)
        return 0;
    if (chunk->is_view)
        return ckpt_locate_view(ckpt, tensor, chunk, err);
    int fd = ckpt_file_fd(ckpt, chunk->file, err);
    if (fd < 0)
        return fd;
    struct s2s_zip_source source = {
        .fd = fd, .begin = chunk->store_pos, .len_bytes = chunk->store_len};
    int rc = ckpt_archive_open(&archive, &source, CKPT_STRICT, err);
    if (rc == 0) {
        rc = locate_item(ckpt, tensor, chunk, &archive, err);
        ckpt_archive_release(&archive);
    }
    return rc < 0 ? s2s_error_add(err, rc, "%s: item at %lld", ckpt->files[chunk->file].name,
                                  (long long)chunk->store_pos)
                  : 0;
}
