/* Archives that torch.save writes: data.pkl and its storages. */

#include "lib/base/base.h"
#include "lib/ckpt/pickle/view.h"
#include "lib/ckpt/read/read_internal.h"
#include "lib/ckpt/read/torch_zip.h"
#include "lib/io/pread.h"

enum { MAX_PICKLE = 1 << 30 };

/* torch accepts 1 to 10 (kMaxSupportedFileFormatVersion), and has never written another */
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

/* Parses data.pkl. A large one is parsed from the file, so that its bytes need not stay in memory.
 */
static int read_pickle(struct ckpt_archive *archive, enum ckpt_pickle_mode mode,
                       const struct ckpt_pickle_taker *taker, struct s2s_error *err)
{
    enum { PIECE = 64 << 10 };
    const struct s2s_zip *zip = &archive->zip;
    const struct s2s_zip_member *member = &archive->data_pkl;
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
                                           zip->source.begin + member->pos, len, mode, taker, err);
}

int ckpt_archive_begin(struct ckpt_archive *archive, const struct s2s_zip_source *source,
                       struct s2s_error *err)
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
    if (rc < 0)
        ckpt_archive_release(archive);
    if (rc < 0)
        return rc;
    archive->data_pkl = *pickle;
    archive->data_pkl.name = archive->name = s2s_xstrdup(pickle->name);
    return 0;
}

int ckpt_archive_parse(struct ckpt_archive *archive, enum ckpt_pickle_mode mode,
                       const struct ckpt_pickle_taker *taker, struct s2s_error *err)
{
    const size_t len = (size_t)archive->data_pkl.len_bytes;
    int rc = read_pickle(archive, mode, taker, err);
    if (rc == 0 && archive->pickle.len != len)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%zu bytes after the end of the pickle",
                           len - archive->pickle.len);
    if (rc < 0)
        ckpt_archive_release(archive);
    return rc;
}

int ckpt_archive_open(struct ckpt_archive *archive, const struct s2s_zip_source *source,
                      enum ckpt_pickle_mode mode, struct s2s_error *err)
{
    const int rc = ckpt_archive_begin(archive, source, err);
    return rc < 0 ? rc : ckpt_archive_parse(archive, mode, NULL, err);
}

int ckpt_archive_check_notes(const struct s2s_zip *zip, struct s2s_error *err)
{
    char piece[512];
    int rc = 0;
    for (size_t i = 0; i < zip->n_members && rc == 0; i++) {
        const char *slash = strchr(zip->members[i].name, '/');
        if (!slash || !s2s_starts_with(slash, "/data/"))
            rc = s2s_zip_check_member(zip, &zip->members[i], piece, sizeof piece, err);
    }
    return rc;
}

void ckpt_warn_no_crc(struct s2s_ckpt *ckpt, const struct s2s_zip_member *member)
{
    if (member->crc || member->len_bytes == 0 || ckpt->warned_no_crc)
        return;
    ckpt->warned_no_crc = true;
    s2s_warn("ckpt", "%s: saved without checksums: corruption cannot be detected", ckpt->path);
}

void ckpt_warn_opaque(struct s2s_ckpt *ckpt, const struct ckpt_pickle *pickle, const char *name)
{
    const char *classes = pickle->opaque.data;
    if (!pickle->opaque.len || (ckpt->warned_opaque && strcmp(ckpt->warned_opaque, classes) == 0))
        return;
    free(ckpt->warned_opaque);
    ckpt->warned_opaque = s2s_xstrdup(classes);
    s2s_warn("ckpt", "%s: classes that are not data are kept as names: %s", name, classes);
}

void ckpt_archive_release(struct ckpt_archive *archive)
{
    s2s_zip_release(&archive->zip);
    ckpt_pickle_release(&archive->pickle);
    free(archive->bytes);
    free(archive->name);
    archive->bytes = archive->name = NULL;
}

/* Finds the zip member of a view's storage and checks its length. */
static int find_storage(const struct ckpt_archive *archive, const struct ckpt_view *view,
                        const struct s2s_zip_member **member, struct s2s_error *err)
{
    char name[80];
    if (view->key_len > 60 || !ckpt_name_is_plain(view->key, view->key_len))
        return s2s_error_set(err, S2S_E_FORMAT, "storage with an unexpected name");
    snprintf(name, sizeof name, "data/%.*s", (int)view->key_len, view->key);
    *member = s2s_zip_find(&archive->zip, name);
    if (!*member)
        return s2s_error_set(err, S2S_E_FORMAT, "storage %s is not in the archive", name);
    if ((*member)->len_bytes != view->store_len)
        return s2s_error_set(err, S2S_E_FORMAT, "storage %s has %lld bytes, its tensor says %lld",
                             name, (long long)(*member)->len_bytes, (long long)view->store_len);
    return 0;
}

/* Locates a chunk in its item of a .distcp file, which is an archive of that one tensor. */
static int locate_item(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                       const struct ckpt_archive *archive, struct s2s_error *err)
{
    struct ckpt_chunk chunk = ckpt_chunk_at(tensor, k);
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
    int64_t stride[S2S_MAX_DIMS] = {0};
    bool same = lead >= 0;
    for (int d = 0; d < tensor->n_dims && same; d++) {
        same = chunk.size[d] == (d < lead ? 1 : view.size[d - lead]);
        stride[d] = d < lead ? 0 : view.stride[d - lead];
    }
    if (!same) {
        char a[200], b[200];
        return s2s_error_set(err, S2S_E_SHAPE, "item has shape %s, the metadata says %s",
                             ckpt_shape_text(a, view.size, view.n_dims),
                             ckpt_shape_text(b, chunk.size, tensor->n_dims));
    }
    const int64_t pos = chunk.place.store_pos + member->pos;
    chunk.stride = stride;
    chunk.data = pos + view.offset * (int64_t)s2s_dtype_size(view.dtype);
    chunk.place = (struct ckpt_location){.file = chunk.place.file,
                                         .located = true,
                                         .has_crc = member->crc != 0,
                                         .crc = member->crc,
                                         .store_pos = pos,
                                         .store_len = view.store_len};
    ckpt_put_chunk(ckpt, tensor, k, &chunk);
    ckpt_warn_no_crc(ckpt, member);
    return 0;
}

/* A checkpoint may have a million items, most of them small, of which a dozen parts are read: items
 * up to this size are read with one call. */
enum { SMALL_ITEM = 8 << 10 };

static int locate(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k, bool notes,
                  struct s2s_error *err)
{
    struct ckpt_archive archive;
    char small[SMALL_ITEM];
    const struct ckpt_location item = *ckpt_place_at(tensor, k);
    if (item.located)
        return 0;
    if (item.is_view)
        return ckpt_locate_view(ckpt, tensor, k, err);
    const int fd = ckpt_file_fd(ckpt, item.file, err);
    if (fd < 0)
        return fd;
    struct s2s_zip_source source = {.fd = fd,
                                    .begin = item.store_pos,
                                    .len_bytes = item.store_len,
                                    .max_members = CKPT_ITEM_MEMBERS};
    int rc = 0;
    if (item.store_len <= SMALL_ITEM) {
        rc = s2s_pread(fd, small, (size_t)item.store_len, item.store_pos, err);
        source.bytes = small;
        source.begin = 0;
    }
    if (rc == 0)
        rc = ckpt_archive_open(&archive, &source, CKPT_STRICT, err);
    if (rc == 0) {
        rc = locate_item(ckpt, tensor, k, &archive, err);
        if (rc == 0 && notes)
            rc = ckpt_archive_check_notes(&archive.zip, err);
        ckpt_archive_release(&archive);
    }
    return rc < 0 ? s2s_error_add(err, rc, "%s: item at %lld", ckpt->files[item.file].name,
                                  (long long)item.store_pos)
                  : 0;
}

int ckpt_locate(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                struct s2s_error *err)
{
    return locate(ckpt, tensor, k, false, err);
}

int ckpt_locate_whole(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                      struct s2s_error *err)
{
    return locate(ckpt, tensor, k, true, err);
}
