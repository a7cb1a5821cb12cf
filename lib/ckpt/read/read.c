/* Reads boxes of tensors from the chunks that they overlap. */

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"
#include "lib/io/crc32.h"
#include "lib/io/digest.h"

/* Copy of a part of a chunk into memory: extent, source strides and target strides of each axis, in
 * elements. */
struct transfer {
    struct s2s_ckpt *ckpt;
    struct ckpt_store store;
    size_t itemsize;
    int n_dims;
    int64_t n[S2S_MAX_DIMS], from[S2S_MAX_DIMS], to[S2S_MAX_DIMS];
};

/* An entry of a hash table of storages being read, in runs of bytes that follow one another. Of
 * several with the same hash the last stays; few are read at a time. */
struct ckpt_crc {
    int64_t store_pos;
    int64_t begin, end; /* the run being read */
    uint32_t crc;       /* its CRC-32 */
    uint32_t before;    /* what the runs before it contribute to the CRC-32 of the whole storage */
    uint64_t bounds;    /* of the runs before it: the sum of bounds_of */
    bool scattered;     /* of those, one was short: before and bounds are not kept */
    int file;
};

/* The sum over several runs is that of [begin, end) if, and but for an accident of hashing only if,
 * each byte of it is in one of them: where one ends and another begins, the terms cancel. */
static uint64_t bounds_of(int64_t begin, int64_t end)
{
    return s2s_xxh3_64(&end, sizeof end) - s2s_xxh3_64(&begin, sizeof begin);
}

static struct ckpt_crc *crc_of(struct s2s_ckpt *ckpt, const struct ckpt_location *place)
{
    enum { N = 4093 };
    if (!ckpt->crcs)
        ckpt->crcs = s2s_xcalloc(N, sizeof *ckpt->crcs);
    return &ckpt->crcs[((size_t)place->store_pos / 8 + (size_t)place->file * 31) % N];
}

/* Adds bytes at pos of a storage that ends at `end`. */
static void add_bytes(struct ckpt_crc *so_far, int64_t pos, const void *bytes, size_t len,
                      int64_t end)
{
    enum { SHORT_RUN = 4096 }; /* to shift its CRC-32 takes longer than to read it again */
    if (pos != so_far->end) {  /* another run */
        so_far->scattered |= so_far->end - so_far->begin < SHORT_RUN;
        if (!so_far->scattered) {
            so_far->before ^= s2s_crc32_shift(so_far->crc, end - so_far->end);
            so_far->bounds += bounds_of(so_far->begin, so_far->end);
        }
        so_far->begin = so_far->end = pos;
        so_far->crc = 0;
    }
    so_far->crc = s2s_crc32(so_far->crc, bytes, len);
    so_far->end += (int64_t)len;
}

/* Is the storage read, in order or in runs of which each byte is in one? *crc: its CRC-32 */
static bool is_read(const struct ckpt_crc *so_far, int64_t end, uint32_t *crc)
{
    const bool in_order = so_far->begin == so_far->store_pos && so_far->end == end;
    if (in_order)
        *crc = so_far->crc;
    else if (!so_far->scattered && so_far->bounds + bounds_of(so_far->begin, so_far->end) ==
                                       bounds_of(so_far->store_pos, end))
        *crc = so_far->before ^ s2s_crc32_shift(so_far->crc, end - so_far->end);
    else
        return false;
    return true;
}

int ckpt_read_store(const struct ckpt_store *store, int64_t pos, void *out, size_t len,
                    struct s2s_error *err)
{
    struct ckpt_location *place = store->place;
    const int64_t end = place->store_pos + place->store_len;
    uint32_t crc;
    int rc = ckpt_pread(store->fd, out, len, pos, store->path, err);
    if (rc < 0 || !place->has_crc || place->checked || end - pos < (int64_t)len)
        return rc;
    struct ckpt_crc *so_far = crc_of(store->ckpt, place);
    if (so_far->file != place->file || so_far->store_pos != place->store_pos)
        *so_far = (struct ckpt_crc){
            .file = place->file, .store_pos = place->store_pos, .begin = pos, .end = pos};
    add_bytes(so_far, pos, out, len, end);
    if (!is_read(so_far, end, &crc))
        return 0;
    if (crc != place->crc)
        return s2s_error_set(err, S2S_E_DIGEST,
                             "%s: CRC-32 of the %lld bytes at %lld is %08x, the archive says %08x: "
                             "the file is damaged",
                             store->path, (long long)place->store_len, (long long)place->store_pos,
                             crc, place->crc);
    ckpt_mark_verified(store->ckpt, place);
    return 0;
}

int ckpt_at_name(const struct s2s_ckpt *ckpt, const char *name, int rc, struct s2s_error *err)
{
    rc = s2s_error_add(err, rc, "%s", name);
    return ckpt->dir_fd >= 0 ? s2s_error_add(err, rc, "%s", ckpt->path) : rc;
}

/* Elements between the first and the last of the box on axes >= d, both included. */
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

/* Copies the last two axes in square tiles, so that the cache lines written stay in the cache: 1.3
 * GB of transposed BF16 take 1.7 s of CPU time; element by element, 2.6 s. */
static inline void scatter_squares(const struct transfer *t, const char *from, char *to,
                                   size_t itemsize)
{
    enum { SIDE = 32 };
    const int a = t->n_dims - 2, b = t->n_dims - 1;
    const size_t from_a = (size_t)t->from[a] * itemsize, from_b = (size_t)t->from[b] * itemsize;
    const size_t to_a = (size_t)t->to[a] * itemsize, to_b = (size_t)t->to[b] * itemsize;
    for (int64_t i = 0; i < t->n[a]; i += SIDE)
        for (int64_t k = 0; k < t->n[b]; k += SIDE)
            for (int64_t row = i; row < i + SIDE && row < t->n[a]; row++) {
                const char *at = from + (size_t)row * from_a + (size_t)k * from_b;
                char *out = to + (size_t)row * to_a + (size_t)k * to_b;
                const int64_t end = t->n[b] - k < SIDE ? t->n[b] - k : SIDE;
                for (int64_t n = 0; n < end; n++, at += from_b, out += to_b)
                    memcpy(out, at, itemsize);
            }
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
    if (d == t->n_dims - 2 && t->to[d + 1] != 1) {
        switch (t->itemsize) { /* with a constant size memcpy is inlined */
        case 1:
            return scatter_squares(t, from, to, 1);
        case 2:
            return scatter_squares(t, from, to, 2);
        case 4:
            return scatter_squares(t, from, to, 4);
        default:
            return scatter_squares(t, from, to, t->itemsize);
        }
    }
    for (int64_t i = 0; i < t->n[d]; i++)
        scatter(t, d + 1, from + (size_t)(i * t->from[d]) * t->itemsize,
                to + (size_t)(i * t->to[d]) * t->itemsize);
}

/* Are axes d and following contiguous in source and target? */
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

/* Copies the part from axis d on; pos is the file offset of its first element. */
static int move(struct transfer *t, int d, int64_t pos, char *to, struct s2s_error *err)
{
    if (is_run(t, d))
        return ckpt_read_store(&t->store, pos, to, (size_t)numel_from(t, d) * t->itemsize, err);
    int64_t span = span_of(t, d);
    if (span <= CKPT_SCRATCH / (int64_t)t->itemsize && span / 8 <= numel_from(t, d)) {
        int rc = ckpt_read_store(&t->store, pos, t->ckpt->scratch, (size_t)span * t->itemsize, err);
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

/* Sorts axes by descending source stride: a transposed tensor would otherwise be read element by
 * element. */
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

/* Drops axes of extent 1 and merges axes that are contiguous in both source and target. */
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

/* The storage of chunk k, once that is located. */
static struct ckpt_location *storage_of(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                                        size_t k)
{
    const struct ckpt_location *place = ckpt_place_at(tensor, k);
    if (place->is_view) {
        k = place->stored_idx;
        tensor = ckpt_stored(tensor);
    }
    return ckpt_place_at(tensor, k);
}

/* Reads the overlap of a chunk and the requested box to its place in out; *numel: its elements. */
static int read_chunk(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                      const int64_t *begin, const int64_t *size, char *out, int64_t *numel,
                      struct s2s_error *err)
{
    struct ckpt_chunk chunk = ckpt_chunk_at(tensor, k);
    struct transfer t = {
        .ckpt = ckpt, .itemsize = s2s_dtype_size(tensor->dtype), .n_dims = tensor->n_dims};
    int64_t first[S2S_MAX_DIMS];
    *numel = 0;
    for (int d = 0; d < t.n_dims; d++) {
        int64_t low = begin[d] > chunk.offset[d] ? begin[d] : chunk.offset[d];
        int64_t end = begin[d] + size[d], chunk_end = chunk.offset[d] + chunk.size[d];
        t.n[d] = (end < chunk_end ? end : chunk_end) - low;
        if (t.n[d] <= 0)
            return 0;
        first[d] = low;
    }
    *numel = numel_from(&t, 0);
    int rc = ckpt_locate(ckpt, tensor, k, err);
    if (rc < 0)
        return rc;
    chunk = ckpt_chunk_at(tensor, k);
    int64_t from = 0, to = 0, from_step = 1, to_step = 1;
    for (int d = t.n_dims - 1; d >= 0; d--) {
        t.from[d] = chunk.stride ? chunk.stride[d] : from_step;
        t.to[d] = to_step;
        from += (first[d] - chunk.offset[d]) * t.from[d];
        to += (first[d] - begin[d]) * to_step;
        from_step *= chunk.size[d];
        to_step *= size[d];
    }
    const int file = chunk.place.file, fd = ckpt_file_fd(ckpt, file, err);
    if (fd < 0)
        return fd;
    t.store = (struct ckpt_store){ckpt, storage_of(ckpt, tensor, k), fd, ckpt->files[file].name};
    simplify(&t);
    return move(&t, 0, chunk.data + from * (int64_t)t.itemsize, out + (size_t)to * t.itemsize, err);
}

int s2s_ckpt_read(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, const int64_t *begin,
                  const int64_t *size, void *out, struct s2s_error *err)
{
    int64_t rest[S2S_MAX_DIMS];
    begin = begin ? begin : ckpt_origin;
    for (int d = 0; d < tensor->n_dims; d++) {
        rest[d] = size ? size[d] : tensor->shape[d] - begin[d];
        if (begin[d] < 0 || rest[d] < 0 || begin[d] > tensor->shape[d] - rest[d])
            return s2s_error_set(err, S2S_E_RANGE, "%s: box of %lld at %lld on axis %d of %lld",
                                 tensor->name, (long long)rest[d], (long long)begin[d], d,
                                 (long long)tensor->shape[d]);
    }
    if (!ckpt->scratch)
        ckpt->scratch = s2s_xalloc_aligned(CKPT_SCRATCH);
    /* A tensor may have a hundred thousand chunks and be read in as many boxes. The next box mostly
     * begins in the chunk where the last one did, so the search starts there and ends when all
     * elements are found. */
    int64_t left = ckpt_box_numel(rest, tensor->n_dims), numel = 0;
    const size_t n = tensor->n_chunks, first = ckpt->chunk_idx < n ? ckpt->chunk_idx : 0;
    bool found = false;
    for (size_t i = 0; i < n && left > 0; i++, left -= numel) {
        const size_t at = i < n - first ? first + i : first + i - n;
        int rc = read_chunk(ckpt, tensor, at, begin, rest, out, &numel, err);
        if (rc < 0)
            return ckpt_at_name(ckpt, tensor->name, rc, err);
        if (numel && !found)
            ckpt->chunk_idx = at;
        found |= numel > 0;
    }
    return 0;
}
