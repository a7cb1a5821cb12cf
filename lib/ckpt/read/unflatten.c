/*
 * Optimizer state that Megatron-Core up to 0.15 stores flattened, in the shape of its parameter.
 * A parameter of shape [g0*l0, g1*l1, ..], cut into the grid [g0, g1, ..], is stored as
 * [g0, g1, .., l0*l1*..], of which the data-parallel ranks have ranges of the last axis. A range is
 * a few boxes of its cell's [l0, l1, ..], so the parameter is a tensor whose chunks are views of
 * what is stored: nothing of it is read here.
 */
#include "lib/ckpt/model.h"

#include "lib/base/base.h"

struct view {
    struct s2s_ckpt *ckpt;
    struct s2s_ckpt_tensor *out;
    size_t cap_chunks;
    int n_dims;                  /* of the parameter */
    int64_t local[S2S_MAX_DIMS]; /* [n_dims], a cell */
};

/* A box of the cell `cell`, whose first element lies at [cell, flat] of the stored tensor. */
static void add_box(struct view *v, struct ckpt_chunk *stored, const int64_t *cell, int64_t flat,
                    const int64_t *begin, const int64_t *size)
{
    int64_t offset[S2S_MAX_DIMS], at[S2S_MAX_DIMS];
    struct s2s_ckpt_tensor *out = v->out;
    for (int d = 0; d < v->n_dims; d++) {
        offset[d] = cell[d] * v->local[d] + begin[d];
        at[d] = cell[d] - stored->offset[d];
    }
    at[v->n_dims] = flat - stored->offset[v->n_dims];
    s2s_grow(&out->chunks, out->n_chunks, &v->cap_chunks, sizeof *out->chunks);
    out->chunks[out->n_chunks++] =
        (struct ckpt_chunk){.offset = ckpt_arena_ints(v->ckpt, offset, v->n_dims),
                            .size = ckpt_arena_ints(v->ckpt, size, v->n_dims),
                            .is_view = true,
                            .stored = stored,
                            .stored_at = ckpt_arena_ints(v->ckpt, at, v->n_dims + 1),
                            .file = stored->file};
}

/* The elements [flat, end) of a cell, in row-major order: at most 2 * n_dims - 1 boxes. */
static void add_range(struct view *v, struct ckpt_chunk *stored, const int64_t *cell, int64_t flat,
                      int64_t end)
{
    if (v->n_dims == 0)
        add_box(v, stored, cell, flat, cell, cell);
    while (flat < end && v->n_dims > 0) {
        int64_t begin[S2S_MAX_DIMS], size[S2S_MAX_DIMS], rest = flat, row = 1;
        for (int d = v->n_dims - 1; d >= 0; d--) {
            begin[d] = rest % v->local[d];
            rest /= v->local[d];
            size[d] = 1;
        }
        /* the first axis of which whole rows begin here and end in time */
        int axis = v->n_dims - 1;
        for (; axis > 0 && begin[axis] == 0 && row * v->local[axis] <= end - flat; axis--) {
            size[axis] = v->local[axis];
            row *= v->local[axis];
        }
        int64_t n = (end - flat) / row, left = v->local[axis] - begin[axis];
        size[axis] = n < left ? n : left;
        add_box(v, stored, cell, flat, begin, size);
        flat += size[axis] * row;
    }
}

static void add_chunk(struct view *v, struct ckpt_chunk *stored)
{
    const int n = v->n_dims;
    int64_t cell[S2S_MAX_DIMS];
    for (int d = 0; d <= n; d++)
        if (stored->size[d] == 0)
            return;
    memcpy(cell, stored->offset, (size_t)n * sizeof *cell);
    for (int d = 0; d >= 0;) {
        add_range(v, stored, cell, stored->offset[n], stored->offset[n] + stored->size[n]);
        for (d = n - 1; d >= 0 && ++cell[d] == stored->offset[d] + stored->size[d]; d--)
            cell[d] = stored->offset[d];
    }
}

static const int64_t *swap_last(struct s2s_ckpt *ckpt, const int64_t *v, int n)
{
    int64_t out[S2S_MAX_DIMS];
    memcpy(out, v, (size_t)n * sizeof *out);
    out[n - 2] = v[n - 1];
    out[n - 1] = v[n - 2];
    return ckpt_arena_ints(ckpt, out, n);
}

const struct s2s_ckpt_tensor *s2s_ckpt_unflattened(struct s2s_ckpt *ckpt,
                                                   const struct s2s_ckpt_tensor *tensor)
{
    if (!tensor->orig_shape)
        return tensor;
    struct s2s_ckpt_tensor *out = ckpt_arena(ckpt, sizeof *out);
    *out = *tensor;
    out->n_dims = tensor->n_dims - 1;
    out->shape = tensor->orig_shape;
    out->stored = tensor;
    out->orig_shape = NULL;
    out->chunks = NULL;
    out->n_chunks = 0;
    struct view v = {.ckpt = ckpt, .out = out, .n_dims = out->n_dims};
    for (int d = 0; d < v.n_dims; d++)
        v.local[d] = out->shape[d] / tensor->shape[d];
    for (size_t i = 0; i < tensor->n_chunks; i++)
        add_chunk(&v, &tensor->chunks[i]);
    /* in the arena like those of the readers, so that nobody has to free them */
    struct ckpt_chunk *chunks = ckpt_arena(ckpt, out->n_chunks * sizeof *chunks);
    if (out->n_chunks)
        memcpy(chunks, out->chunks, out->n_chunks * sizeof *chunks);
    free(out->chunks);
    out->chunks = chunks;
    return out;
}

const struct s2s_ckpt_tensor *ckpt_transposed(struct s2s_ckpt *ckpt,
                                              const struct s2s_ckpt_tensor *tensor)
{
    const int n = tensor->n_dims;
    if (n < 2)
        return tensor;
    struct s2s_ckpt_tensor *out = ckpt_arena(ckpt, sizeof *out);
    struct ckpt_chunk *chunks = ckpt_arena(ckpt, tensor->n_chunks * sizeof *chunks);
    *out = *tensor;
    out->shape = swap_last(ckpt, tensor->shape, n);
    out->stored = tensor;
    out->chunks = chunks;
    for (size_t i = 0; i < tensor->n_chunks; i++)
        chunks[i] = (struct ckpt_chunk){.offset = swap_last(ckpt, tensor->chunks[i].offset, n),
                                        .size = swap_last(ckpt, tensor->chunks[i].size, n),
                                        .is_view = true,
                                        .stored = &tensor->chunks[i],
                                        .file = tensor->chunks[i].file};
    return out;
}

/* of ckpt_transposed: the strides of what is stored, the last two exchanged */
static int locate_transposed(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                             struct ckpt_chunk *chunk, struct s2s_error *err)
{
    struct ckpt_chunk *stored = chunk->stored;
    int64_t contiguous[S2S_MAX_DIMS];
    int rc = ckpt_locate(ckpt, tensor->stored, stored, err);
    if (rc < 0)
        return rc;
    ckpt_box_strides(contiguous, stored->size, tensor->n_dims);
    chunk->stride = swap_last(ckpt, stored->stride ? stored->stride : contiguous, tensor->n_dims);
    chunk->data = stored->data;
    chunk->located = true;
    return 0;
}

int ckpt_locate_view(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                     struct ckpt_chunk *chunk, struct s2s_error *err)
{
    struct ckpt_chunk *stored = chunk->stored;
    const int n = tensor->n_dims;
    int64_t stride[S2S_MAX_DIMS], contiguous[S2S_MAX_DIMS], at = 0;
    if (!chunk->stored_at)
        return locate_transposed(ckpt, tensor, chunk, err);
    int rc = ckpt_locate(ckpt, tensor->stored, stored, err);
    if (rc < 0)
        return rc;
    ckpt_box_strides(contiguous, stored->size, n + 1);
    const int64_t *steps = stored->stride ? stored->stride : contiguous;
    for (int d = 0; d <= n; d++)
        at += chunk->stored_at[d] * steps[d];
    int64_t step = steps[n];
    for (int d = n - 1; d >= 0; d--) {
        stride[d] = step;
        step *= tensor->shape[d] / tensor->stored->shape[d];
    }
    chunk->stride = ckpt_arena_ints(ckpt, stride, n);
    chunk->data = stored->data + at * (int64_t)s2s_dtype_size(tensor->dtype);
    chunk->located = true;
    return 0;
}
