/*
 * A further checkpoint of a mean. Its names, dtypes and shapes are those of the one that it was
 * opened like, so all that is kept of a tensor is where its bytes are, about ten bytes, and nothing
 * at all where one before has them in the same places, as checkpoints of one run do: a bit. The one
 * that is wanted now is made a tensor again.
 */
#include "lib/ckpt/model.h"

#include "lib/base/base.h"

enum {
    STEP = 8, /* the begin of each eighth record is known, the others are found from there */
    /* flags of a tensor; without IS_THERE nothing follows */
    IS_THERE = 1,
    SAME_BOXES = 2, /* its chunks are cut as those of the other tensor: neither count nor boxes */
    /* flags of a chunk */
    IS_LOCATED = 1,
    HAS_CRC = 2,
    HAS_STRIDE = 4
};

struct places {
    size_t n_users;
    struct s2s_buf records; /* of each tensor of `like`, in their order; numbers 7 bits a byte */
    size_t *starts;         /* of each STEPth in records */
};

struct ckpt_reduced {
    struct places *places;
    unsigned char *checked; /* a bit a tensor: no chunk has a CRC-32 that is still to be compared */
    /* that was asked for last, and what was made for it: `tensor`, or a view of it */
    const struct s2s_ckpt_tensor *wanted, *lent;
    struct s2s_ckpt_tensor tensor;
    struct ckpt_chunk *chunks; /* its */
    size_t cap_chunks, idx;
};

/* ---- records ---- */

static void put(struct s2s_buf *out, uint64_t v)
{
    for (; v > 127; v >>= 7)
        s2s_buf_putc(out, (char)(v | 128));
    s2s_buf_putc(out, (char)v);
}

static uint64_t take(const char **at)
{
    uint64_t v = 0, byte;
    int shift = 0;
    do {
        byte = (unsigned char)*(*at)++;
        v |= (byte & 127) << shift;
        shift += 7;
    } while (byte & 128);
    return v;
}

static void put_ints(struct s2s_buf *out, const int64_t *v, int n)
{
    for (int d = 0; d < n; d++)
        put(out, (uint64_t)v[d]);
}

static const int64_t *take_ints(const char **at, struct s2s_ckpt *ckpt, int n)
{
    int64_t v[S2S_MAX_DIMS];
    for (int d = 0; d < n; d++)
        v[d] = (int64_t)take(at);
    return ckpt_arena_ints(ckpt, v, n);
}

static void put_chunk(struct s2s_buf *out, const struct ckpt_chunk *chunk, int n_dims, bool box)
{
    const struct ckpt_location *place = &chunk->place;
    put(out, (place->located ? IS_LOCATED : 0) | (place->has_crc ? HAS_CRC : 0) |
                 (chunk->stride ? HAS_STRIDE : 0));
    put(out, (uint64_t)place->file);
    put(out, (uint64_t)place->store_pos);
    put(out, (uint64_t)place->store_len);
    if (place->located)
        put(out, (uint64_t)(chunk->data - place->store_pos));
    if (place->has_crc)
        put(out, place->crc);
    put_ints(out, chunk->stride, chunk->stride ? n_dims : 0);
    put_ints(out, chunk->offset, box ? n_dims : 0);
    put_ints(out, chunk->size, box ? n_dims : 0);
}

/* same: NULL, or the chunk whose box it has */
static struct ckpt_chunk take_chunk(const char **at, struct s2s_ckpt *ckpt, int n_dims,
                                    const struct ckpt_chunk *same)
{
    struct ckpt_chunk chunk = {.stride = NULL};
    struct ckpt_location *place = &chunk.place;
    const uint64_t flags = take(at);
    place->located = flags & IS_LOCATED;
    place->has_crc = flags & HAS_CRC;
    place->file = (int)take(at);
    place->store_pos = (int64_t)take(at);
    place->store_len = (int64_t)take(at);
    chunk.data = place->located ? place->store_pos + (int64_t)take(at) : 0;
    place->crc = place->has_crc ? (uint32_t)take(at) : 0;
    chunk.stride = flags & HAS_STRIDE ? take_ints(at, ckpt, n_dims) : NULL;
    chunk.offset = same ? same->offset : take_ints(at, ckpt, n_dims);
    chunk.size = same ? same->size : take_ints(at, ckpt, n_dims);
    return chunk;
}

static bool same_boxes(const struct s2s_ckpt_tensor *a, const struct s2s_ckpt_tensor *b)
{
    bool same = a->n_chunks == b->n_chunks;
    for (size_t i = 0; same && i < a->n_chunks; i++) {
        const struct ckpt_chunk x = ckpt_chunk_at(a, i), y = ckpt_chunk_at(b, i);
        same = ckpt_same_shape(x.offset, a->n_dims, y.offset, a->n_dims) &&
               ckpt_same_shape(x.size, a->n_dims, y.size, a->n_dims);
    }
    return same;
}

static bool is_checked(const struct s2s_ckpt_tensor *tensor)
{
    bool checked = true;
    for (size_t i = 0; i < tensor->n_chunks; i++) {
        const struct ckpt_location *place = ckpt_place_at(tensor, i);
        checked &= place->checked || (place->located && !place->has_crc);
    }
    return checked;
}

/* tensor: NULL, or that which is of the name, dtype and shape of `like` */
static void put_tensor(struct s2s_buf *out, const struct s2s_ckpt_tensor *tensor,
                       const struct s2s_ckpt_tensor *like)
{
    if (!tensor) {
        put(out, 0);
        return;
    }
    const bool same = same_boxes(tensor, like);
    put(out, IS_THERE | (same ? SAME_BOXES : 0));
    if (!same)
        put(out, tensor->n_chunks);
    for (size_t i = 0; i < tensor->n_chunks; i++) {
        const struct ckpt_chunk chunk = ckpt_chunk_at(tensor, i);
        put_chunk(out, &chunk, tensor->n_dims, !same);
    }
}

/* Into reduced->tensor; false: it is not there. */
static bool take_tensor(const char **at, struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *like)
{
    struct ckpt_reduced *reduced = ckpt->reduced;
    const uint64_t flags = take(at);
    if (!(flags & IS_THERE))
        return false;
    const bool same = flags & SAME_BOXES;
    const size_t n = same ? like->n_chunks : (size_t)take(at);
    if (n > reduced->cap_chunks) {
        reduced->chunks = s2s_xrealloc(reduced->chunks, n, sizeof *reduced->chunks);
        reduced->cap_chunks = n;
    }
    for (size_t i = 0; i < n; i++) {
        struct ckpt_chunk theirs;
        if (same)
            theirs = ckpt_chunk_at(like, i);
        reduced->chunks[i] = take_chunk(at, ckpt, like->n_dims, same ? &theirs : NULL);
    }
    reduced->tensor = (struct s2s_ckpt_tensor){.name = like->name,
                                               .dtype = like->dtype,
                                               .n_dims = like->n_dims,
                                               .shape = like->shape,
                                               .n_chunks = n,
                                               .chunks = reduced->chunks,
                                               .orig_shape = s2s_ckpt_orig_shape(like)};
    return true;
}

/* ---- the checkpoint ---- */

/* What of `left` sorted tensors is the weight `like`; NULL: none. Those before it are passed. */
static const struct s2s_ckpt_tensor *find_next(const struct s2s_ckpt_tensor **tensors, size_t *left,
                                               const struct s2s_ckpt_tensor *like)
{
    int order = -1;
    for (; *left && (order = strcmp((*tensors)->name, like->name)) < 0; ++*tensors)
        --*left;
    const struct s2s_ckpt_tensor *found = *tensors;
    return order == 0 && !s2s_ckpt_is_state(like->name) && found->dtype == like->dtype &&
                   ckpt_same_shape(found->shape, found->n_dims, like->shape, like->n_dims)
               ? found
               : NULL;
}

static void set_checked(struct ckpt_reduced *reduced, size_t idx)
{
    reduced->checked[idx / 8] |= (unsigned char)(1 << idx % 8);
}

static struct places *make_places(struct s2s_ckpt *ckpt, struct ckpt_reduced *reduced)
{
    const struct s2s_ckpt *like = ckpt->like;
    struct places *places = s2s_xcalloc(1, sizeof *places);
    places->n_users = 1;
    places->starts = s2s_xmalloc((like->n_tensors / STEP + 1) * sizeof *places->starts);
    size_t left;
    const struct s2s_ckpt_tensor *own = s2s_ckpt_tensors(ckpt, &left);
    for (size_t i = 0; i < like->n_tensors; i++) {
        const struct s2s_ckpt_tensor *theirs = &like->tensors[i];
        if (i % STEP == 0)
            places->starts[i / STEP] = places->records.len;
        const struct s2s_ckpt_tensor *found = find_next(&own, &left, theirs);
        put_tensor(&places->records, found, theirs);
        if (found && is_checked(found))
            set_checked(reduced, i);
    }
    return places;
}

static void release_places(struct places *places)
{
    if (--places->n_users > 0)
        return;
    s2s_buf_release(&places->records);
    free(places->starts);
    free(places);
}

/* Equal ones of a checkpoint before, in place of one's own. */
static struct places *share_places(struct places *own, struct s2s_ckpt *const *others, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct places *theirs = others[i]->reduced->places;
        if (theirs->records.len == own->records.len && own->records.len &&
            memcmp(theirs->records.data, own->records.data, own->records.len) == 0) {
            release_places(own);
            theirs->n_users++;
            return theirs;
        }
    }
    return own;
}

void s2s_ckpt_reduce(struct s2s_ckpt *ckpt, struct s2s_ckpt *const *others, size_t n_others)
{
    struct ckpt_reduced *reduced = s2s_xcalloc(1, sizeof *reduced);
    reduced->checked = s2s_xcalloc(ckpt->like->n_tensors / 8 + 1, 1);
    reduced->places = make_places(ckpt, reduced);
    ckpt_drop_tables(ckpt);
    reduced->places = share_places(reduced->places, others, n_others);
    ckpt->reduced = reduced;
}

/* What was compared with a CRC-32 is not compared again. */
static void put_back(struct s2s_ckpt *ckpt)
{
    struct ckpt_reduced *reduced = ckpt->reduced;
    if (reduced->lent && is_checked(&reduced->tensor))
        set_checked(reduced, reduced->idx);
    reduced->wanted = reduced->lent = NULL;
    s2s_blocks_release(&ckpt->arena); /* it has only what belonged to that tensor */
    ckpt->n_shapes = 0;
}

const struct s2s_ckpt_tensor *s2s_ckpt_counterpart(struct s2s_ckpt *ckpt,
                                                   const struct s2s_ckpt_tensor *tensor)
{
    struct ckpt_reduced *reduced = ckpt->reduced;
    if (reduced->wanted == tensor)
        return reduced->lent;
    put_back(ckpt);
    const struct s2s_ckpt *like = ckpt->like;
    const size_t idx = reduced->idx = ckpt_tensor_index(like, tensor);
    const char *at = reduced->places->records.data + reduced->places->starts[idx / STEP];
    bool is_there = false;
    for (size_t i = idx / STEP * STEP; i <= idx; i++)
        is_there = take_tensor(&at, ckpt, &like->tensors[i]);
    for (size_t i = 0; is_there && i < reduced->tensor.n_chunks; i++)
        reduced->chunks[i].place.checked = reduced->checked[idx / 8] >> idx % 8 & 1;
    reduced->wanted = tensor;
    if (is_there)
        reduced->lent = !ckpt_stored(tensor) ? &reduced->tensor
                        : tensor->n_dims == tensor->stored->n_dims
                            ? ckpt_transposed(ckpt, &reduced->tensor)
                            : s2s_ckpt_unflattened(ckpt, &reduced->tensor);
    return reduced->lent;
}

void ckpt_reduced_free(struct ckpt_reduced *reduced)
{
    if (!reduced)
        return;
    release_places(reduced->places);
    free(reduced->checked);
    free(reduced->chunks);
    free(reduced);
}
