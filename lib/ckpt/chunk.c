/* Chunks of tensors, of which the plain ones have none in memory. */
#include "lib/ckpt/model.h"

_Static_assert(sizeof(struct s2s_ckpt_tensor) == 48, "there may be hundreds of thousands");

const int64_t *s2s_ckpt_orig_shape(const struct s2s_ckpt_tensor *tensor)
{
    return tensor->is_plain ? NULL : tensor->orig_shape;
}

const struct s2s_ckpt_tensor *ckpt_stored(const struct s2s_ckpt_tensor *tensor)
{
    return tensor->is_plain ? NULL : tensor->stored;
}

struct ckpt_chunk ckpt_chunk_at(const struct s2s_ckpt_tensor *tensor, size_t k)
{
    return tensor->is_plain ? (struct ckpt_chunk){.offset = ckpt_origin,
                                                  .size = tensor->shape,
                                                  .data = tensor->place.store_pos,
                                                  .place = tensor->place}
                            : tensor->chunks[k];
}

struct ckpt_location *ckpt_place_at(const struct s2s_ckpt_tensor *tensor, size_t k)
{
    return tensor->is_plain ? &((struct s2s_ckpt_tensor *)tensor)->place : &tensor->chunks[k].place;
}

static void keep_chunks(struct s2s_ckpt_tensor *tensor, struct ckpt_chunk *chunks)
{
    tensor->is_plain = false;
    tensor->chunks = chunks;
    tensor->orig_shape = NULL;
    tensor->stored = NULL;
}

static struct ckpt_chunk *copy_chunk(struct s2s_ckpt *ckpt, const struct ckpt_chunk *chunk)
{
    return memcpy(ckpt_arena(ckpt, sizeof *chunk), chunk, sizeof *chunk);
}

struct ckpt_chunk *ckpt_own_chunks(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor)
{
    if (tensor->is_plain) {
        const struct ckpt_chunk one = ckpt_chunk_at(tensor, 0);
        keep_chunks(tensor, copy_chunk(ckpt, &one));
    }
    return tensor->chunks;
}

static bool is_plain(const struct s2s_ckpt_tensor *tensor, const struct ckpt_chunk *chunk)
{
    int64_t contiguous[S2S_MAX_DIMS];
    const int n = tensor->n_dims;
    if (!ckpt_same_shape(chunk->offset, n, ckpt_origin, n) ||
        !ckpt_same_shape(chunk->size, n, tensor->shape, n) ||
        (chunk->place.located && chunk->data != chunk->place.store_pos))
        return false;
    ckpt_box_strides(contiguous, chunk->size, n);
    return !chunk->stride || ckpt_same_shape(chunk->stride, n, contiguous, n);
}

void ckpt_set_chunks(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                     struct ckpt_chunk *chunks, size_t n)
{
    tensor->n_chunks = n;
    if (n == 1 && is_plain(tensor, chunks)) {
        tensor->is_plain = true;
        tensor->place = chunks->place;
    } else {
        keep_chunks(tensor, n == 1 ? copy_chunk(ckpt, chunks) : chunks);
    }
}
