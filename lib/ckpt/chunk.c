/* Chunks of tensors, and the memory of a checkpoint that these, shapes and names are in. */
#include "lib/ckpt/model.h"

void *ckpt_arena(struct s2s_ckpt *ckpt, size_t len)
{
    return s2s_blocks_alloc(&ckpt->arena, len);
}

char *ckpt_arena_text(struct s2s_ckpt *ckpt, const char *s, size_t len)
{
    return s2s_blocks_text(&ckpt->arena, s, len);
}

const int64_t *ckpt_arena_ints(struct s2s_ckpt *ckpt, const int64_t *v, size_t n)
{
    int64_t *kept = ckpt_arena(ckpt, n * sizeof *v);
    if (n)
        memcpy(kept, v, n * sizeof *v);
    return kept;
}

const int64_t *s2s_ckpt_orig_shape(const struct s2s_ckpt_tensor *tensor)
{
    return tensor->orig_shape;
}

void ckpt_set_boxes(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor, const int64_t *boxes,
                    size_t n_chunks)
{
    const int n = tensor->n_dims;
    tensor->n_chunks = (uint32_t)n_chunks;
    tensor->chunks = ckpt_arena(ckpt, n_chunks * sizeof *tensor->chunks);
    for (size_t k = 0; k < n_chunks; k++, boxes += 2 * (size_t)n)
        tensor->chunks[k] =
            (struct ckpt_chunk){.offset = boxes, .size = boxes + n, .place = {.file = -1}};
}

void ckpt_put_chunk(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                    const struct ckpt_chunk *chunk)
{
    const int n = tensor->n_dims;
    struct ckpt_chunk *own = &tensor->chunks[k];
    int64_t contiguous[S2S_MAX_DIMS];
    const int64_t *stride = chunk->stride;
    ckpt_box_strides(contiguous, chunk->size, n);
    if (stride && ckpt_same_shape(stride, n, contiguous, n))
        stride = NULL;
    own->stride = stride ? ckpt_arena_ints(ckpt, stride, (size_t)n) : NULL;
    own->data = chunk->data;
    own->place = chunk->place;
}

void ckpt_set_chunks(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                     const struct ckpt_chunk *chunks, size_t n_chunks)
{
    const size_t n = (size_t)tensor->n_dims;
    struct ckpt_chunk *own = ckpt_arena(ckpt, n_chunks * sizeof *own);
    for (size_t k = 0; k < n_chunks; k++) {
        const struct ckpt_chunk *chunk = &chunks[k];
        own[k].offset =
            chunk->offset == ckpt_origin ? ckpt_origin : ckpt_arena_ints(ckpt, chunk->offset, n);
        own[k].size =
            chunk->size == tensor->shape ? tensor->shape : ckpt_arena_ints(ckpt, chunk->size, n);
    }
    tensor->n_chunks = (uint32_t)n_chunks;
    tensor->chunks = own;
    for (size_t k = 0; k < n_chunks; k++)
        ckpt_put_chunk(ckpt, tensor, k, &chunks[k]);
}
