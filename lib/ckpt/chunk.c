/*
 * Chunks of tensors in compact form, as there may be a million. The boxes of a tensor are one
 * array, shared by all tensors with the same boxes; otherwise a chunk is only its place. A plain
 * tensor, or a part of a storage, has no boxes: its only box is its shape.
 */
#include "lib/ckpt/model.h"

_Static_assert(sizeof(struct s2s_ckpt_tensor) == 48, "there may be hundreds of thousands");
_Static_assert(sizeof(struct ckpt_location) == 24, "there may be a million");

/* Layout of a chunk in its storage, if not row-major from the start. */
struct layout {
    const int64_t *stride; /* [n_dims], in elements; NULL: contiguous */
    int64_t data;          /* offset of element 0 in the storage; of a view, which has none, in the
                            * file */
};

/* Members that few tensors need. */
struct ckpt_odd {
    struct layout *layouts; /* NULL, or [n_chunks] */
    const int64_t *orig_shape;
    const struct s2s_ckpt_tensor *stored;
};

static bool has_no_boxes(const struct s2s_ckpt_tensor *tensor)
{
    return tensor->is_plain || tensor->is_part;
}

const int64_t *s2s_ckpt_orig_shape(const struct s2s_ckpt_tensor *tensor)
{
    return has_no_boxes(tensor) || !tensor->odd ? NULL : tensor->odd->orig_shape;
}

const struct s2s_ckpt_tensor *ckpt_stored(const struct s2s_ckpt_tensor *tensor)
{
    return has_no_boxes(tensor) || !tensor->odd ? NULL : tensor->odd->stored;
}

static int64_t store_of(const struct ckpt_location *place)
{
    return place->is_view ? 0 : place->store_pos;
}

struct ckpt_chunk ckpt_chunk_at(const struct s2s_ckpt_tensor *tensor, size_t k)
{
    const int n = tensor->n_dims;
    if (tensor->is_plain)
        return (struct ckpt_chunk){.offset = ckpt_origin,
                                   .size = tensor->shape,
                                   .data = tensor->place.store_pos,
                                   .place = tensor->place};
    if (tensor->is_part)
        return (struct ckpt_chunk){.offset = ckpt_origin,
                                   .size = tensor->shape,
                                   .stride = tensor->part.stride,
                                   .data = tensor->part.store->store_pos + tensor->part.data,
                                   .place = *tensor->part.store};
    const int64_t *box = tensor->boxes + 2 * (size_t)n * k;
    struct ckpt_chunk chunk = {.offset = box, .size = box + n, .place = tensor->places[k]};
    chunk.data = store_of(&chunk.place);
    if (tensor->odd && tensor->odd->layouts) {
        chunk.stride = tensor->odd->layouts[k].stride;
        chunk.data += tensor->odd->layouts[k].data;
    }
    return chunk;
}

const struct ckpt_location *ckpt_place_at(const struct s2s_ckpt_tensor *tensor, size_t k)
{
    return tensor->is_plain  ? &tensor->place
           : tensor->is_part ? tensor->part.store
                             : &tensor->places[k];
}

struct ckpt_location *ckpt_edit_place(struct s2s_ckpt_tensor *tensor, size_t k)
{
    return (struct ckpt_location *)ckpt_place_at(tensor, k);
}

struct s2s_ckpt_tensor *ckpt_own_tensor(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor)
{
    return (struct s2s_ckpt_tensor *)tensor;
}

void ckpt_set_boxes(struct s2s_ckpt_tensor *tensor, const int64_t *boxes, size_t n_chunks)
{
    const int n = tensor->n_dims;
    tensor->n_chunks = n_chunks;
    tensor->is_part = false;
    tensor->is_plain = n_chunks == 1 && ckpt_same_shape(boxes, n, ckpt_origin, n) &&
                       ckpt_same_shape(boxes + n, n, tensor->shape, n);
    if (tensor->is_plain) {
        tensor->place = (struct ckpt_location){.file = -1};
    } else {
        tensor->boxes = boxes;
        tensor->places = NULL;
        tensor->odd = NULL;
    }
}

void ckpt_make_places(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor)
{
    if (has_no_boxes(tensor) || tensor->places)
        return;
    tensor->places = ckpt_arena(ckpt, tensor->n_chunks * sizeof *tensor->places);
    for (size_t k = 0; k < tensor->n_chunks; k++)
        tensor->places[k].file = -1;
}

/* Gives the tensor a box and a place of its own, for what a plain one or a part has no room for. */
static struct ckpt_odd *odd_of(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor)
{
    const int n = tensor->n_dims;
    int64_t box[2 * S2S_MAX_DIMS] = {0};
    if (has_no_boxes(tensor)) {
        const struct ckpt_location place = *ckpt_place_at(tensor, 0);
        const struct layout layout = {.stride = tensor->part.stride, .data = tensor->part.data};
        const bool was_part = tensor->is_part;
        memcpy(box + n, tensor->shape, (size_t)n * sizeof *box);
        tensor->is_plain = tensor->is_part = false;
        tensor->boxes = ckpt_arena_ints(ckpt, box, 2 * (size_t)n);
        tensor->places = memcpy(ckpt_arena(ckpt, sizeof place), &place, sizeof place);
        tensor->odd = was_part ? ckpt_arena(ckpt, sizeof *tensor->odd) : NULL;
        if (was_part)
            tensor->odd->layouts = memcpy(ckpt_arena(ckpt, sizeof layout), &layout, sizeof layout);
    }
    if (!tensor->odd)
        tensor->odd = ckpt_arena(ckpt, sizeof *tensor->odd);
    return tensor->odd;
}

void ckpt_keep_orig_shape(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                          const int64_t *shape)
{
    if (shape)
        odd_of(ckpt, tensor)->orig_shape = ckpt_arena_ints(ckpt, shape, tensor->n_dims - 1);
}

void ckpt_keep_stored(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                      const struct s2s_ckpt_tensor *stored)
{
    odd_of(ckpt, tensor)->stored = stored;
}

/* The location of a storage, of which many tensors that follow each other may be parts. */
static struct ckpt_location *share_store(struct s2s_ckpt *ckpt, const struct ckpt_location *place)
{
    struct ckpt_location *last = ckpt->last_store;
    if (!last || last->file != place->file || last->store_pos != place->store_pos ||
        last->store_len != place->store_len || last->has_crc != place->has_crc ||
        last->crc != place->crc || last->checked != place->checked)
        last = memcpy(ckpt_arena(ckpt, sizeof *last), place, sizeof *last);
    return ckpt->last_store = last;
}

void ckpt_put_chunk(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor, size_t k,
                    const struct ckpt_chunk *chunk)
{
    const int n = tensor->n_dims;
    int64_t contiguous[S2S_MAX_DIMS];
    struct layout layout = {.stride = NULL};
    ckpt_box_strides(contiguous, chunk->size, n);
    if (chunk->stride && !ckpt_same_shape(chunk->stride, n, contiguous, n))
        layout.stride = ckpt_arena_ints(ckpt, chunk->stride, n);
    if (chunk->place.located)
        layout.data = chunk->data - store_of(&chunk->place);
    const bool is_odd = layout.stride || layout.data;
    if (has_no_boxes(tensor) && !chunk->place.is_view) {
        tensor->is_part = is_odd;
        tensor->is_plain = !is_odd;
    }
    if (tensor->is_part) {
        tensor->part.store = share_store(ckpt, &chunk->place);
        tensor->part.stride = layout.stride;
        tensor->part.data = layout.data;
        return;
    }
    if (is_odd || (!has_no_boxes(tensor) && tensor->odd && tensor->odd->layouts)) {
        struct ckpt_odd *odd = odd_of(ckpt, tensor);
        if (!odd->layouts)
            odd->layouts = ckpt_arena(ckpt, tensor->n_chunks * sizeof *odd->layouts);
        odd->layouts[k] = layout;
    }
    *ckpt_edit_place(tensor, k) = chunk->place;
}

void ckpt_set_chunks(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                     const struct ckpt_chunk *chunks, size_t n_chunks)
{
    const size_t n = tensor->n_dims;
    int64_t *boxes = s2s_xmalloc((2 * n * n_chunks + 1) * sizeof *boxes), *at = boxes;
    for (size_t k = 0; k < n_chunks; k++, at += 2 * n) {
        memcpy(at, chunks[k].offset, n * sizeof *at);
        memcpy(at + n, chunks[k].size, n * sizeof *at);
    }
    ckpt_set_boxes(tensor, ckpt_arena_ints(ckpt, boxes, 2 * n * n_chunks), n_chunks);
    free(boxes);
    ckpt_make_places(ckpt, tensor);
    for (size_t k = 0; k < n_chunks; k++)
        ckpt_put_chunk(ckpt, tensor, k, &chunks[k]);
}
