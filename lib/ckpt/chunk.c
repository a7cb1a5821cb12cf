/*
 * Chunks of tensors in compact form, as there may be a million. The boxes of a tensor are one
 * array, shared by all tensors with the same boxes; otherwise a chunk is only its place. A plain
 * tensor has no boxes: its only box is its shape.
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

const int64_t *s2s_ckpt_orig_shape(const struct s2s_ckpt_tensor *tensor)
{
    return tensor->is_plain || !tensor->odd ? NULL : tensor->odd->orig_shape;
}

const struct s2s_ckpt_tensor *ckpt_stored(const struct s2s_ckpt_tensor *tensor)
{
    return tensor->is_plain || !tensor->odd ? NULL : tensor->odd->stored;
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
    return tensor->is_plain ? &tensor->place : &tensor->places[k];
}

struct ckpt_location *ckpt_edit_place(struct s2s_ckpt_tensor *tensor, size_t k)
{
    return tensor->is_plain ? &tensor->place : &tensor->places[k];
}

struct s2s_ckpt_tensor *ckpt_own_tensor(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor)
{
    return (struct s2s_ckpt_tensor *)tensor;
}

void ckpt_set_boxes(struct s2s_ckpt_tensor *tensor, const int64_t *boxes, size_t n_chunks)
{
    const int n = tensor->n_dims;
    tensor->n_chunks = n_chunks;
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

struct s2s_ckpt_tensor ckpt_cut_like(const struct s2s_ckpt_tensor *like)
{
    struct s2s_ckpt_tensor tensor = *like;
    if (like->is_plain)
        tensor.place = (struct ckpt_location){.file = -1};
    else
        ckpt_set_boxes(&tensor, like->boxes, like->n_chunks);
    return tensor;
}

void ckpt_make_places(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor)
{
    if (tensor->is_plain || tensor->places)
        return;
    tensor->places = ckpt_arena(ckpt, tensor->n_chunks * sizeof *tensor->places);
    for (size_t k = 0; k < tensor->n_chunks; k++)
        tensor->places[k].file = -1;
}

static struct ckpt_odd *odd_of(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor)
{
    const int n = tensor->n_dims;
    int64_t box[2 * S2S_MAX_DIMS] = {0};
    if (tensor->is_plain) {
        const struct ckpt_location place = tensor->place;
        memcpy(box + n, tensor->shape, (size_t)n * sizeof *box);
        tensor->is_plain = false;
        tensor->boxes = ckpt_arena_ints(ckpt, box, 2 * (size_t)n);
        tensor->places = memcpy(ckpt_arena(ckpt, sizeof place), &place, sizeof place);
        tensor->odd = NULL;
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
    if (layout.stride || layout.data) {
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
