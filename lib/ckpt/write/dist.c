/* A rank's file of a torch_dist checkpoint, and the metadata of all files. */
#include "lib/ckpt/write/dist.h"

#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/file.h"
#include "lib/ckpt/folder.h"
#include "lib/ckpt/pickle/emit.h"
#include "lib/ckpt/plan.h"
#include "lib/ckpt/write/common.h"
#include "lib/ckpt/write/dist_internal.h"
#include "lib/ckpt/write/items.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/io/digest.h"
#include "lib/io/zip.h"

/* data is checksummed and written in pieces that stay in the cache */
enum { PIECE = 256 << 10 };

struct s2s_dist_writer {
    struct ckpt_file file;
    struct s2s_buf items;       /* of the file so far */
    size_t item;                /* position of the current one in the list */
    int rank;                   /* of this file */
    struct s2s_zip_writer *zip; /* of the current tensor; NULL: none, or a byte object */
    int64_t left;               /* remaining bytes of the tensor */
};

int s2s_dist_open_dir(struct s2s_dist_writer **out, const char *dir, int rank,
                      struct s2s_error *err)
{
    struct s2s_dist_writer *writer = s2s_xcalloc(1, sizeof *writer);
    char name[CKPT_RANK_FILE];
    writer->rank = rank;
    char *path = s2s_xasprintf("%s/%s", dir, ckpt_rank_file(name, rank));
    int rc = ckpt_file_create(&writer->file, path, err);
    free(path);
    if (rc < 0) {
        s2s_dist_discard(writer);
        return rc;
    }
    *out = writer;
    return 0;
}

static int file_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    struct s2s_dist_writer *writer = ctx;
    return ckpt_file_write(&writer->file, bytes, len, err);
}

/* The pickle of a contiguous tensor that fills storage data/0. */
static void tensor_pickle(struct s2s_buf *pickle, const struct s2s_dist_chunk *chunk)
{
    struct ckpt_emitter out;
    ckpt_emit_begin(&out);
    ckpt_emit_tensor(&out, "0", chunk->dtype, chunk->n_dims,
                     chunk->size ? chunk->size : chunk->shape);
    ckpt_emit_end(&out);
    s2s_buf_add(pickle, out.buf.data, out.buf.len);
    ckpt_emit_release(&out);
}

static int check_chunk(const struct s2s_dist_chunk *chunk, struct s2s_error *err)
{
    char a[200];
    if (!s2s_dtype_size(chunk->dtype) || chunk->n_dims < 0 || chunk->n_dims > S2S_MAX_DIMS)
        return s2s_error_set(err, S2S_E_SHAPE, "%s: %d axes of %s", chunk->name, chunk->n_dims,
                             s2s_dtype_name(chunk->dtype));
    for (int d = 0; d < chunk->n_dims; d++) {
        int64_t offset = chunk->offset ? chunk->offset[d] : 0;
        int64_t size = chunk->size ? chunk->size[d] : chunk->shape[d];
        if (chunk->shape[d] < 0 || offset < 0 || size < 0 || offset > chunk->shape[d] - size)
            return s2s_error_set(err, S2S_E_SHAPE, "%s: box of %lld at %lld on axis %d of %s",
                                 chunk->name, (long long)size, (long long)offset, d,
                                 ckpt_shape_text(a, chunk->shape, chunk->n_dims));
    }
    return 0;
}

static struct ckpt_item *item_of(const struct s2s_dist_writer *writer)
{
    return (struct ckpt_item *)(void *)(writer->items.data + writer->item);
}

/* Begins an item of the file: of a chunk, or (NULL) of a byte object. */
static void add_item(struct s2s_dist_writer *writer, const char *name,
                     const struct s2s_dist_chunk *chunk)
{
    writer->item = writer->items.len;
    ckpt_item_add(&writer->items, writer->rank, writer->file.pos, name, chunk);
}

int s2s_dist_begin_tensor(struct s2s_dist_writer *writer, const struct s2s_dist_chunk *chunk,
                          struct s2s_error *err)
{
    int rc = check_chunk(chunk, err);
    if (rc < 0)
        return rc;
    add_item(writer, chunk->name, chunk);
    writer->left = ckpt_box_numel(chunk->size ? chunk->size : chunk->shape, chunk->n_dims) *
                   (int64_t)s2s_dtype_size(chunk->dtype);
    writer->zip = s2s_zip_writer_new(file_sink, writer);
    struct s2s_buf pickle = S2S_BUF_INIT;
    tensor_pickle(&pickle, chunk);
    rc = ckpt_torch_begin(writer->zip, &pickle, err);
    if (rc == 0)
        rc = ckpt_torch_begin_storage(writer->zip, 0, err);
    if (rc == 0 && chunk->crc)
        s2s_zip_give_crc(writer->zip, *chunk->crc);
    s2s_buf_release(&pickle);
    return rc < 0 ? s2s_error_add(err, rc, "%s", chunk->name) : 0;
}

void s2s_dist_begin_bytes(struct s2s_dist_writer *writer, const char *name)
{
    add_item(writer, name, NULL);
}

int s2s_dist_data(struct s2s_dist_writer *writer, const void *bytes, size_t len,
                  struct s2s_error *err)
{
    if (!writer->zip)
        return ckpt_file_write(&writer->file, bytes, len, err);
    writer->left -= (int64_t)len;
    return s2s_zip_write(writer->zip, bytes, len, err);
}

int s2s_dist_end(struct s2s_dist_writer *writer, struct s2s_error *err)
{
    struct ckpt_item *item = item_of(writer);
    if (!writer->zip) {
        item->len = writer->file.pos - item->pos;
        return 0;
    }
    int rc = 0;
    if (writer->left)
        rc = s2s_error_set(err, S2S_E_SHAPE, "%s: %lld bytes %s than its box has",
                           ckpt_item_name(item), (long long)llabs((long long)writer->left),
                           writer->left > 0 ? "less" : "more");
    if (rc == 0)
        rc = s2s_zip_end(writer->zip, err);
    if (rc == 0)
        rc = ckpt_torch_end(writer->zip, &item->len, err);
    s2s_zip_writer_free(writer->zip);
    writer->zip = NULL;
    return rc;
}

int s2s_dist_write_tensor(struct s2s_dist_writer *writer, const struct s2s_dist_chunk *chunk,
                          const void *data, struct s2s_error *err)
{
    int rc = s2s_dist_begin_tensor(writer, chunk, err);
    if (rc < 0)
        return rc;
    for (int64_t done = 0, len = writer->left; rc == 0 && done < len; done += PIECE) {
        size_t n = len - done < PIECE ? (size_t)(len - done) : PIECE;
        rc = s2s_dist_data(writer, (const char *)data + done, n, err);
    }
    if (rc == 0)
        rc = s2s_dist_end(writer, err);
    return rc < 0 ? s2s_error_add(err, rc, "%s", chunk->name) : 0;
}

/* Writes opcodes or, if NULL, value. */
static int write_object(struct s2s_dist_writer *writer, const char *name, const char *opcodes,
                        size_t len, const json_t *value, struct s2s_error *err)
{
    const bool listed = s2s_ckpt_is_sharded(name);
    struct ckpt_emitter out;
    add_item(writer, name, NULL);
    ckpt_emit_begin(&out);
    if (listed)
        ckpt_emit_op(&out, "](");
    if (opcodes)
        s2s_buf_add(&out.buf, opcodes, len);
    else
        ckpt_emit_json(&out, value);
    if (listed)
        ckpt_emit_op(&out, "e");
    ckpt_emit_end(&out);
    int rc = ckpt_pickle_archive(file_sink, writer, &out.buf, &item_of(writer)->len, err);
    ckpt_emit_release(&out);
    return rc < 0 ? s2s_error_add(err, rc, "%s", name) : 0;
}

int s2s_dist_write_object(struct s2s_dist_writer *writer, const char *name, const json_t *value,
                          struct s2s_error *err)
{
    return write_object(writer, name, NULL, 0, value, err);
}

int s2s_dist_write_pickle(struct s2s_dist_writer *writer, const char *name, const char *opcodes,
                          size_t len, struct s2s_error *err)
{
    return write_object(writer, name, opcodes, len, NULL, err);
}

void s2s_dist_discard(struct s2s_dist_writer *writer)
{
    if (!writer)
        return;
    ckpt_file_discard(&writer->file);
    s2s_buf_release(&writer->items);
    s2s_zip_writer_free(writer->zip);
    free(writer);
}

int s2s_dist_close(struct s2s_dist_writer *writer, struct s2s_buf *items, struct s2s_error *err)
{
    int rc = 0;
    int64_t len = writer->file.pos;
    char digest[33];
    if (writer->items.len == 0 && unlink(writer->file.path) < 0) {
        rc = s2s_error_errno(err, S2S_E_IO, "%s: remove", writer->file.path);
    } else if (writer->items.len && (rc = ckpt_file_close(&writer->file, digest, err)) == 0) {
        char *name = s2s_xasprintf("%s%s", CKPT_ITEM_DIGEST, digest);
        ckpt_item_add(&writer->items, writer->rank, 0, name, NULL)->len = len;
        free(name);
    }
    if (rc == 0 && items->len == 0) { /* do not copy the list, which is long for a large model */
        const struct s2s_buf empty = *items;
        *items = writer->items;
        writer->items = empty;
    } else if (rc == 0) {
        s2s_buf_add(items, writer->items.data, writer->items.len);
    }
    s2s_dist_discard(writer);
    return rc;
}

/* ---- metadata, written by rank 0 ---- */

static const char METADATA_JSON[] =
    "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
    "\"common_backend\": \"torch\", \"common_backend_version\": 1}";

struct metadata {
    const struct ckpt_items *items;
    const struct s2s_ckpt *names;
};

static int fill_metadata(struct ckpt_file *file, const void *ctx, struct s2s_error *err)
{
    const struct metadata *metadata = ctx;
    return ckpt_items_metadata(metadata->items, metadata->names, file, err);
}

int ckpt_dist_finish(const char *dir, const struct s2s_buf *items, size_t n_ranks,
                     const struct ckpt_dist_common *common, const struct ckpt_side_files *beside,
                     const struct s2s_ckpt *names, struct s2s_error *err)
{
    struct ckpt_items all = {.n = 0};
    json_t *manifest = json_object();
    int rc = 0;
    for (size_t i = 0; i < n_ranks && rc == 0; i++)
        rc = ckpt_items_add(&all, &items[i], err);
    if (rc == 0) {
        ckpt_items_take_digests(&all, manifest);
        rc = ckpt_items_check(&all, err);
    }
    if (rc == 0 && common)
        rc = ckpt_file_make(dir, "common.pt", common->fill, common->ctx, manifest, err);
    if (rc == 0)
        rc = ckpt_file_make(dir, ".metadata", fill_metadata, &(struct metadata){&all, names},
                            manifest, err);
    if (rc == 0)
        rc = ckpt_dist_write_beside(dir, beside, manifest, err);
    if (rc == 0 && common) {
        char digest[33];
        s2s_xxh3_128_hex(digest, METADATA_JSON, strlen(METADATA_JSON));
        ckpt_manifest_add(manifest, "metadata.json", (int64_t)strlen(METADATA_JSON), digest);
    }
    if (rc == 0)
        rc = ckpt_manifest_write(dir, manifest, err);
    /* marks the checkpoint as complete, so it is written last */
    if (rc == 0 && common && (rc = ckpt_sync_dir(dir, err)) == 0)
        rc = ckpt_file_put(dir, "metadata.json", METADATA_JSON, strlen(METADATA_JSON), err);
    if (rc == 0)
        rc = ckpt_sync_dir(dir, err);
    if (rc == 0)
        rc = ckpt_manifest_check(dir, manifest, err);
    json_decref(manifest);
    ckpt_items_release(&all);
    return rc;
}

static int fill_buf(struct ckpt_file *file, const void *ctx, struct s2s_error *err)
{
    const struct s2s_buf *buf = ctx;
    return ckpt_file_write(file, buf->data, buf->len, err);
}

int s2s_dist_finish(const char *dir, const struct s2s_buf *items, size_t n_ranks,
                    const json_t *common, struct s2s_error *err)
{
    struct s2s_buf file = S2S_BUF_INIT;
    const struct ckpt_side_files none = {.n = 0};
    ckpt_common_make(&file, common);
    int rc = ckpt_dist_finish(dir, items, n_ranks, &(struct ckpt_dist_common){fill_buf, &file},
                              &none, NULL, err);
    s2s_buf_release(&file);
    return rc;
}
