/* Boxes of tensors, from wherever their chunks lie. */
#include "lib/ckpt/model.h"

#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/io/crc32.h"

/* A box of a chunk on its way to memory: extent, source strides and target strides by axis, in
 * elements. */
struct transfer {
    struct s2s_ckpt *ckpt;
    struct ckpt_chunk *chunk;
    int fd;
    const char *path;
    size_t itemsize;
    int n_dims;
    int64_t n[S2S_MAX_DIMS], from[S2S_MAX_DIMS], to[S2S_MAX_DIMS];
};

/*
 * Reads bytes of the chunk's storage. When storages are read from their begin to their end (whole
 * tensors are), the CRC-32 is computed on the way and compared at the end.
 */
static int read_store(struct transfer *t, int64_t pos, void *out, size_t len, struct s2s_error *err)
{
    struct ckpt_chunk *chunk = t->chunk->is_view ? t->chunk->stored : t->chunk;
    int rc = ckpt_pread(t->fd, out, len, pos, t->path, err);
    if (rc < 0 || !chunk->has_crc || chunk->checked)
        return rc;
    if (pos == chunk->store_pos)
        chunk->crc_pos = chunk->crc_so_far = 0;
    if (pos != chunk->store_pos + chunk->crc_pos)
        return 0;
    chunk->crc_so_far = s2s_crc32(chunk->crc_so_far, out, len);
    chunk->crc_pos += (int64_t)len;
    if (chunk->crc_pos < chunk->store_len)
        return 0;
    if (chunk->crc_so_far != chunk->crc)
        return s2s_error_set(err, S2S_E_DIGEST,
                             "%s: CRC-32 of the %lld bytes at %lld is %08x, the archive says %08x: "
                             "the file is damaged",
                             t->path, (long long)chunk->store_len, (long long)chunk->store_pos,
                             chunk->crc_so_far, chunk->crc);
    chunk->checked = true;
    return 0;
}

int ckpt_at_name(const struct s2s_ckpt *ckpt, const char *name, int rc, struct s2s_error *err)
{
    rc = s2s_error_add(err, rc, "%s", name);
    return ckpt->dir_fd >= 0 ? s2s_error_add(err, rc, "%s", ckpt->path) : rc;
}

/* elements from the first to the last of the box on axes >= d, both included */
static int64_t span_of(const struct transfer *t, int d)
{
    int64_t span = 1;
    for (; d < t->n_dims; d++)
        span += (t->n[d] - 1) * t->from[d];
    return span;
}

static int64_t numel_from(const struct transfer *t, int d)
{
    return ckpt_box_numel(t->n + d, t->n_dims - d);
}

static void scatter(const struct transfer *t, int d, const char *from, char *to)
{
    if (d == t->n_dims) {
        memcpy(to, from, t->itemsize);
        return;
    }
    bool run = d == t->n_dims - 1 && t->from[d] == 1 && t->to[d] == 1;
    if (run) {
        memcpy(to, from, (size_t)t->n[d] * t->itemsize);
        return;
    }
    for (int64_t i = 0; i < t->n[d]; i++)
        scatter(t, d + 1, from + (size_t)(i * t->from[d]) * t->itemsize,
                to + (size_t)(i * t->to[d]) * t->itemsize);
}

/* dense on both sides from axis d on */
static bool is_run(const struct transfer *t, int d)
{
    int64_t step = 1;
    for (int k = t->n_dims - 1; k >= d; k--) {
        if (t->n[k] != 1 && (t->from[k] != step || t->to[k] != step))
            return false;
        step *= t->n[k];
    }
    return true;
}

/* the part from axis d on; pos is where its first element lies in the file */
static int move(struct transfer *t, int d, int64_t pos, char *to, struct s2s_error *err)
{
    if (is_run(t, d))
        return read_store(t, pos, to, (size_t)numel_from(t, d) * t->itemsize, err);
    int64_t span = span_of(t, d);
    if (span <= CKPT_SCRATCH / (int64_t)t->itemsize && span / 8 <= numel_from(t, d)) {
        int rc = read_store(t, pos, t->ckpt->scratch, (size_t)span * t->itemsize, err);
        if (rc == 0)
            scatter(t, d, t->ckpt->scratch, to);
        return rc;
    }
    /* halves of the axis while they are large, its rows one by one in the end */
    int64_t n = t->n[d], rows = n;
    while (rows > 1) {
        t->n[d] = rows;
        span = span_of(t, d);
        if (span <= CKPT_SCRATCH / (int64_t)t->itemsize && span / 8 <= numel_from(t, d))
            break;
        rows = (rows + 1) / 2;
    }
    int rc = 0;
    for (int64_t i = 0; i < n && rc == 0; i += rows) {
        int64_t from = pos + i * t->from[d] * (int64_t)t->itemsize;
        char *at = to + (size_t)(i * t->to[d]) * t->itemsize;
        t->n[d] = n - i < rows ? n - i : rows;
        rc = rows > 1 ? move(t, d, from, at, err) : move(t, d + 1, from, at, err);
    }
    t->n[d] = n;
    return rc;
}

/* Axes in the order in which the source lies, so that the shortest steps come last: a transposed
 * tensor would otherwise be read an element at a time. */
static void sort_axes(struct transfer *t)
{
    for (int d = 1; d < t->n_dims; d++) {
        const int64_t n = t->n[d], from = t->from[d], to = t->to[d];
        int k = d;
        for (; k > 0 && t->from[k - 1] < from; k--) {
            t->n[k] = t->n[k - 1];
            t->from[k] = t->from[k - 1];
            t->to[k] = t->to[k - 1];
        }
        t->n[k] = n;
        t->from[k] = from;
        t->to[k] = to;
    }
}

/* drops axes of extent 1, joins axes that are one run in source and target */
static void simplify(struct transfer *t)
{
    int kept = 0;
    sort_axes(t);
    for (int d = 0; d < t->n_dims; d++) {
        if (t->n[d] == 1)
            continue;
        if (kept && t->from[kept - 1] == t->n[d] * t->from[d] &&
            t->to[kept - 1] == t->n[d] * t->to[d]) {
            t->n[kept - 1] *= t->n[d];
            t->from[kept - 1] = t->from[d];
            t->to[kept - 1] = t->to[d];
            continue;
        }
        t->n[kept] = t->n[d];
        t->from[kept] = t->from[d];
        t->to[kept++] = t->to[d];
    }
    t->n_dims = kept;
}

/* the overlap of a chunk and the wanted box, into its place in out */
static int read_chunk(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                      struct ckpt_chunk *chunk, const int64_t *begin, const int64_t *size,
                      char *out, struct s2s_error *err)
{
    struct transfer t = {.ckpt = ckpt,
                         .chunk = chunk,
                         .path = ckpt->files[chunk->file].name,
                         .itemsize = s2s_dtype_size(tensor->dtype),
                         .n_dims = tensor->n_dims};
    int64_t first[S2S_MAX_DIMS];
    for (int d = 0; d < t.n_dims; d++) {
        int64_t low = begin[d] > chunk->offset[d] ? begin[d] : chunk->offset[d];
        int64_t end = begin[d] + size[d], chunk_end = chunk->offset[d] + chunk->size[d];
        t.n[d] = (end < chunk_end ? end : chunk_end) - low;
        if (t.n[d] <= 0)
            return 0;
        first[d] = low;
    }
    int rc = ckpt_locate(ckpt, tensor, chunk, err);
    if (rc < 0)
        return rc;
    int64_t from = 0, to = 0, from_step = 1, to_step = 1;
    for (int d = t.n_dims - 1; d >= 0; d--) {
        t.from[d] = chunk->stride ? chunk->stride[d] : from_step;
        t.to[d] = to_step;
        from += (first[d] - chunk->offset[d]) * t.from[d];
        to += (first[d] - begin[d]) * to_step;
        from_step *= chunk->size[d];
        to_step *= size[d];
    }
    t.fd = ckpt_file_fd(ckpt, chunk->file, err);
    if (t.fd < 0)
        return t.fd;
    simplify(&t);
    return move(&t, 0, chunk->data + from * (int64_t)t.itemsize, out + (size_t)to * t.itemsize,
                err);
}

int s2s_ckpt_read(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, const int64_t *begin,
                  const int64_t *size, void *out, struct s2s_error *err)
{
    int64_t zeros[S2S_MAX_DIMS] = {0}, rest[S2S_MAX_DIMS];
    begin = begin ? begin : zeros;
    for (int d = 0; d < tensor->n_dims; d++) {
        rest[d] = size ? size[d] : tensor->shape[d] - begin[d];
        if (begin[d] < 0 || rest[d] < 0 || begin[d] > tensor->shape[d] - rest[d])
            return s2s_error_set(err, S2S_E_RANGE, "%s: box of %lld at %lld on axis %d of %lld",
                                 tensor->name, (long long)rest[d], (long long)begin[d], d,
                                 (long long)tensor->shape[d]);
    }
    if (!ckpt->scratch)
        ckpt->scratch = s2s_xalloc_aligned(CKPT_SCRATCH);
    if (ckpt_box_numel(rest, tensor->n_dims) == 0)
        return 0;
    for (size_t i = 0; i < tensor->n_chunks; i++) {
        int rc = read_chunk(ckpt, tensor, &tensor->chunks[i], begin, rest, out, err);
        if (rc < 0)
            return ckpt_at_name(ckpt, tensor->name, rc, err);
    }
    return 0;
}

static int verify_chunk(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                        struct ckpt_chunk *chunk, struct s2s_error *err)
{
    int rc = ckpt_locate(ckpt, tensor, chunk, err);
    int fd = rc < 0 ? rc : ckpt_file_fd(ckpt, chunk->file, err);
    if (fd < 0 || chunk->checked || !chunk->has_crc)
        return fd < 0 ? fd : 0;
    struct transfer t = {
        .ckpt = ckpt, .chunk = chunk, .fd = fd, .path = ckpt->files[chunk->file].name};
    for (int64_t done = 0; rc == 0 && done < chunk->store_len;) {
        int64_t left = chunk->store_len - done;
        size_t n = left < CKPT_SCRATCH ? (size_t)left : CKPT_SCRATCH;
        rc = read_store(&t, chunk->store_pos + done, ckpt_piece(ckpt), n, err);
        done += (int64_t)n;
    }
    return rc;
}

int s2s_ckpt_verify_tensor(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                           struct s2s_error *err)
{
    tensor = tensor->stored ? tensor->stored : tensor;
    for (size_t i = 0; i < tensor->n_chunks; i++) {
        int rc = verify_chunk(ckpt, tensor, &tensor->chunks[i], err);
        if (rc < 0)
            return ckpt_at_name(ckpt, tensor->name, rc, err);
    }
    return 0;
}

bool s2s_ckpt_has_crc(const struct s2s_ckpt_tensor *tensor)
{
    tensor = tensor->stored ? tensor->stored : tensor;
    for (size_t i = 0; i < tensor->n_chunks; i++)
        if (!tensor->chunks[i].has_crc && tensor->chunks[i].store_len > 0)
            return false;
    return true;
}

bool s2s_ckpt_stored_crc(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, uint32_t *crc)
{
    struct ckpt_chunk *chunk = tensor->n_chunks == 1 ? tensor->chunks : NULL;
    struct s2s_error ignored = S2S_ERROR_INIT; /* who reads it meets the same */
    if (!chunk || ckpt_locate(ckpt, tensor, chunk, &ignored) < 0 || chunk->is_view ||
        chunk->stride || !chunk->has_crc || chunk->data != chunk->store_pos ||
        chunk->store_len !=
            ckpt_box_numel(tensor->shape, tensor->n_dims) * (int64_t)s2s_dtype_size(tensor->dtype))
        return false;
    *crc = chunk->crc;
    return true;
}

/* an archive that wants no more than data, and is undamaged */
static int verify_archive(struct s2s_ckpt *ckpt, const char *file_name, int64_t begin, int64_t len,
                          struct s2s_error *err)
{
    struct ckpt_archive archive;
    int file = ckpt_add_file(ckpt, file_name, err);
    int fd = file < 0 ? file : ckpt_file_fd(ckpt, file, err);
    if (fd < 0)
        return fd;
    struct s2s_zip_source source = {
        .fd = fd, .begin = begin, .len_bytes = len < 0 ? ckpt->files[file].len_bytes : len};
    int rc = ckpt_archive_open(&archive, &source, CKPT_OPEN, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < archive.zip.n_members && rc == 0; i++)
        rc = s2s_zip_check_member(&archive.zip, &archive.zip.members[i], ckpt_piece(ckpt),
                                  CKPT_SCRATCH, err);
    ckpt_archive_release(&archive);
    return rc;
}

int s2s_ckpt_verify_object(struct s2s_ckpt *ckpt, const struct s2s_ckpt_object *object,
                           struct s2s_error *err)
{
    if (!object->file)
        return 0;
    int rc = verify_archive(ckpt, object->file, object->pos, object->len_bytes, err);
    return rc < 0 ? ckpt_at_name(ckpt, object->name, rc, err) : 0;
}

/* what the sizes of a Hugging Face model are read from */
static int verify_config(const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    json_t *config = NULL;
    int rc = ckpt_read_json(&config, ckpt, "config.json", err);
    json_decref(config);
    return rc;
}

int ckpt_verify_common_file(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    if (ckpt->dir_fd < 0 || !ckpt->no_links || faccessat(ckpt->dir_fd, "common.pt", F_OK, 0) < 0)
        return 0;
    int rc = verify_archive(ckpt, "common.pt", 0, -1, err);
    return rc < 0 ? ckpt_at_name(ckpt, "common.pt", rc, err) : 0;
}

int s2s_ckpt_verify_common(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    if (strncmp(ckpt->format, "hf", 2) == 0)
        return verify_config(ckpt, err);
    if (ckpt->unfinished)
        return s2s_error_set(
            err, S2S_E_TRUNCATED,
            "%s: metadata.json, which Megatron-Core writes last, is missing or names no "
            "backend: an unfinished save, or a damaged one",
            ckpt->path);
    if (strcmp(ckpt->format, "torch_dist") == 0 && !ckpt_has(ckpt, "common.pt") &&
        !ckpt_find_object(ckpt, CKPT_COMMON_OBJECT))
        return s2s_error_set(err, S2S_E_NOTFOUND,
                             "%s: common.pt is missing, without which Megatron-Core loads nothing",
                             ckpt->path);
    return ckpt_verify_common_file(ckpt, err);
}

int s2s_ckpt_verify_manifest(const struct s2s_ckpt *ckpt, size_t *n_files, struct s2s_error *err)
{
    /* parts of a composite have manifests of their own */
    static const char *const folders[] = {"", "/encoder", "/llm"};
    int rc = 0;
    *n_files = 0;
    for (int i = 0; i < 3 && rc == 0 && ckpt->dir_fd >= 0; i++) {
        char *path = s2s_xasprintf("%s%s", ckpt->path, folders[i]);
        size_t n = 0;
        if (i == 0 || access(path, F_OK) == 0)
            rc = ckpt_manifest_verify(path, &n, err);
        *n_files += n;
        free(path);
    }
    return rc;
}
