/*
 * Compact form of a further checkpoint of an average. Its names, dtypes and shapes are those of the
 * checkpoint that it was opened like, so of each tensor only the place of its bytes is stored, some
 * ten bytes; and if an earlier checkpoint has the same places, as in one training run, both share
 * one table, which leaves a bit a tensor. The tensor asked for is rebuilt on demand.
 */

#include "lib/base/base.h"
#include "lib/ckpt/packed.h"
#include "lib/ckpt/read/read.h"

enum {
    STEP = 8, /* the offset of every eighth record is stored; those between are found by decoding */
    /* flags of a tensor; nothing follows without IS_THERE */
    IS_THERE = 1,
    SAME_BOXES = 2, /* chunked like the tensor of `like`: no boxes stored */
    /* flags of a chunk */
    IS_LOCATED = 1,
    HAS_CRC = 2,
    HAS_STRIDE = 4,
    SAME_STORE = 8 /* as the chunk before has: not stored again */
};

struct places {
    size_t n_users;
    struct s2s_buf records; /* one per tensor of `like`, in their order; integers as in packed.h */
    size_t *starts;         /* offsets of every STEPth record */
};

struct ckpt_reduced {
    struct places *places;
    unsigned char *checked; /* a bit a tensor: no chunk has a CRC-32 left to verify */
    /* the last request, and the result: `tensor`, or a view of it */
    const struct s2s_ckpt_tensor *wanted, *lent;
    struct s2s_ckpt_tensor tensor;
    size_t idx;
};

/* ---- records ---- */

/* Stores a position as its signed distance (zigzag-encoded) from the end of the chunk before,
 * because most chunks of a tensor are adjacent. */
static void put_pos(struct s2s_buf *out, const struct ckpt_location *place,
                    const struct ckpt_location *before)
{
    const uint64_t end = (uint64_t)before->store_pos + (uint64_t)before->store_len;
    const uint64_t far = (uint64_t)place->store_pos - end;
    ckpt_pack(out, far << 1 ^ -(far >> 63));
    ckpt_pack(out, (uint64_t)place->store_len);
}

static void take_pos(const char **at, struct ckpt_location *place,
                     const struct ckpt_location *before)
{
    const uint64_t end = (uint64_t)before->store_pos + (uint64_t)before->store_len;
    const uint64_t far = ckpt_unpack(at);
    place->store_pos = (int64_t)(end + (far >> 1 ^ -(far & 1)));
    place->store_len = (int64_t)ckpt_unpack(at);
}

static bool same_store(const struct ckpt_location *a, const struct ckpt_location *b)
{
    return a->located == b->located && a->file == b->file && a->store_pos == b->store_pos &&
           a->store_len == b->store_len && a->has_crc == b->has_crc && a->crc == b->crc;
}

/* *before: the place of the chunk before, which becomes this one's. */
static void put_chunk(struct s2s_buf *out, const struct ckpt_chunk *chunk, int n_dims,
                      struct ckpt_location *before)
{
    const struct ckpt_location *place = &chunk->place;
    const bool same = same_store(place, before);
    ckpt_pack(out, (place->located ? IS_LOCATED : 0) | (place->has_crc ? HAS_CRC : 0) |
                       (chunk->stride ? HAS_STRIDE : 0) | (same ? SAME_STORE : 0));
    if (!same) {
        ckpt_pack(out, (uint64_t)place->file);
        put_pos(out, place, before);
    }
    if (place->has_crc && !same)
        ckpt_pack(out, place->crc);
    if (place->located)
        ckpt_pack(out, (uint64_t)(chunk->data - place->store_pos));
    ckpt_pack_ints(out, chunk->stride, chunk->stride ? n_dims : 0);
    *before = *place;
}

/* Decodes chunk k of a tensor, except its box. */
static void take_chunk(const char **at, struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                       size_t k, struct ckpt_location *before)
{
    int64_t stride[S2S_MAX_DIMS];
    struct ckpt_chunk chunk = ckpt_chunk_at(tensor, k);
    struct ckpt_location *place = &chunk.place;
    const uint64_t flags = ckpt_unpack(at);
    if (flags & SAME_STORE) {
        *place = *before;
    } else {
        place->located = flags & IS_LOCATED;
        place->has_crc = flags & HAS_CRC;
        place->file = (int)ckpt_unpack(at);
        take_pos(at, place, before);
        place->crc = place->has_crc ? (uint32_t)ckpt_unpack(at) : 0;
    }
    chunk.data = place->located ? place->store_pos + (int64_t)ckpt_unpack(at) : 0;
    chunk.stride = flags & HAS_STRIDE ? stride : NULL;
    ckpt_unpack_ints(at, stride, chunk.stride ? tensor->n_dims : 0);
    ckpt_put_chunk(ckpt, tensor, k, &chunk);
    *before = *place;
}

static void put_boxes(struct s2s_buf *out, const struct s2s_ckpt_tensor *tensor)
{
    ckpt_pack(out, tensor->n_chunks);
    for (size_t k = 0; k < tensor->n_chunks; k++) {
        const struct ckpt_chunk chunk = ckpt_chunk_at(tensor, k);
        ckpt_pack_ints(out, chunk.offset, tensor->n_dims);
        ckpt_pack_ints(out, chunk.size, tensor->n_dims);
    }
}

static void take_boxes(const char **at, struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor)
{
    const size_t n_chunks = ckpt_unpack(at), n = 2 * n_chunks * (size_t)tensor->n_dims;
    int64_t *boxes = s2s_xmalloc((n + 1) * sizeof *boxes);
    for (size_t i = 0; i < n; i++)
        boxes[i] = (int64_t)ckpt_unpack(at);
    ckpt_set_boxes(tensor, ckpt_arena_ints(ckpt, boxes, n), n_chunks);
    free(boxes);
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

/* tensor: the counterpart of `like`; NULL: there is none */
static void put_tensor(struct s2s_buf *out, const struct s2s_ckpt_tensor *tensor,
                       const struct s2s_ckpt_tensor *like, struct ckpt_location *before)
{
    if (!tensor) {
        ckpt_pack(out, 0);
        return;
    }
    const bool same = same_boxes(tensor, like);
    ckpt_pack(out, IS_THERE | (same ? SAME_BOXES : 0));
    if (!same)
        put_boxes(out, tensor);
    for (size_t k = 0; k < tensor->n_chunks; k++) {
        const struct ckpt_chunk chunk = ckpt_chunk_at(tensor, k);
        put_chunk(out, &chunk, tensor->n_dims, before);
    }
}

/* Decodes into reduced->tensor; false: there is none. */
static bool take_tensor(const char **at, struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *like,
                        struct ckpt_location *before)
{
    struct s2s_ckpt_tensor *tensor = &ckpt->reduced->tensor;
    const uint64_t flags = ckpt_unpack(at);
    if (!(flags & IS_THERE))
        return false;
    *tensor = ckpt_cut_like(like);
    if (!(flags & SAME_BOXES))
        take_boxes(at, ckpt, tensor);
    ckpt_make_places(ckpt, tensor);
    for (size_t k = 0; k < tensor->n_chunks; k++)
        take_chunk(at, ckpt, tensor, k, before);
    ckpt_keep_orig_shape(ckpt, tensor, s2s_ckpt_orig_shape(like));
    return true;
}

/* ---- the checkpoint ---- */

/* Of the *left sorted tensors from *tensors on, the counterpart of the weight `like`; NULL: none.
 * Skips those that sort before it. */
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
    struct ckpt_location before = {.file = 0};
    for (size_t i = 0; i < like->n_tensors; i++) {
        const struct s2s_ckpt_tensor *theirs = &like->tensors[i];
        if (i % STEP == 0) {
            places->starts[i / STEP] = places->records.len;
            before = (struct ckpt_location){.file = 0};
        }
        const struct s2s_ckpt_tensor *found = find_next(&own, &left, theirs);
        put_tensor(&places->records, found, theirs, &before);
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

/* Replaces own by the equal table of an earlier checkpoint, if there is one. */
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

/* Remembers that the tensor lent last was verified, so that it is not verified again. */
static void put_back(struct s2s_ckpt *ckpt)
{
    struct ckpt_reduced *reduced = ckpt->reduced;
    if (reduced->lent && is_checked(&reduced->tensor))
        set_checked(reduced, reduced->idx);
    reduced->wanted = reduced->lent = NULL;
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
    struct ckpt_location before = {.file = 0};
    bool is_there = false;
    for (size_t i = idx / STEP * STEP; i <= idx; i++) {
        ckpt_arena_release(ckpt); /* it holds only the tensor before */
        is_there = take_tensor(&at, ckpt, &like->tensors[i], &before);
    }
    for (size_t k = 0; is_there && k < reduced->tensor.n_chunks; k++)
        ckpt_edit_place(&reduced->tensor, k)->checked = reduced->checked[idx / 8] >> idx % 8 & 1;
    reduced->wanted = tensor;
    if (is_there)
        reduced->lent = !ckpt_stored(tensor) ? &reduced->tensor
                        : tensor->n_dims == ckpt_stored(tensor)->n_dims
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
    free(reduced);
}
