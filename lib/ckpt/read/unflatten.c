/*
 * Optimizer state that Megatron-Core up to 0.15 stores flattened, presented in the shape of its
 * parameter. A parameter of shape [g0*l0, g1*l1, ..], sharded in a grid [g0, g1, ..], is stored as
 * [g0, g1, .., l0*l1*..], and each data-parallel rank stores a range of the last axis. Such a range
 * is a few boxes of its cell [l0, l1, ..]. So the parameter becomes a tensor whose chunks are views
 * of the stored one; no data is read here.
 */

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

enum { MAX_CELLS = 4 << 20 /* layers * experts * tensor-parallel ranks */ };

int ckpt_set_orig_shape(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor, const int64_t *shape,
                        int n, struct s2s_error *err)
{
    if (s2s_ckpt_orig_shape(tensor))
        return s2s_error_set(err, S2S_E_FORMAT, "mcore_data: %s is there twice", tensor->name);
    if (n < 0 || n + 1 != tensor->n_dims || ckpt_box_numel(shape, n) != s2s_ckpt_numel(tensor))
        return s2s_error_set(err, S2S_E_SHAPE, "%s: flattened from an impossible shape",
                             tensor->name);
    /* each cell becomes boxes, so the number of cells is limited by the bytes in the files */
    if ((__int128)s2s_ckpt_numel(tensor) * (int)s2s_dtype_size(tensor->dtype) >
        s2s_ckpt_files_bytes(ckpt))
        return s2s_error_set(err, S2S_E_TRUNCATED, "%s: is larger than all files together",
                             tensor->name);
    int64_t n_cells = ckpt_box_numel(tensor->shape, n);
    for (int d = 0; d < n; d++)
        if (tensor->shape[d] <= 0 || shape[d] % tensor->shape[d] || n_cells > MAX_CELLS)
            return s2s_error_set(err, S2S_E_SHAPE, "%s: flattened from an impossible grid",
                                 tensor->name);
    tensor->orig_shape = ckpt_arena_ints(ckpt, shape, (size_t)n);
    return 0;
}

struct view {
    struct s2s_ckpt *ckpt;
    struct ckpt_chunk *chunks; /* result, so far */
    size_t n_chunks, cap_chunks;
    struct ckpt_chunk stored; /* chunk number idx of the stored tensor */
    size_t idx;
    int n_dims;                  /* of the parameter */
    int64_t local[S2S_MAX_DIMS]; /* shape of a cell */
};

/* Adds a box of a cell, whose first element is stored at [cell, flat]. */
static void add_box(struct view *v, const int64_t *cell, int64_t flat, const int64_t *begin,
                    const int64_t *size)
{
    int64_t offset[S2S_MAX_DIMS], at[S2S_MAX_DIMS];
    for (int d = 0; d < v->n_dims; d++) {
        offset[d] = cell[d] * v->local[d] + begin[d];
        at[d] = cell[d] - v->stored.offset[d];
    }
    at[v->n_dims] = flat - v->stored.offset[v->n_dims];
    s2s_grow(&v->chunks, v->n_chunks, &v->cap_chunks, sizeof *v->chunks);
    v->chunks[v->n_chunks++] =
        (struct ckpt_chunk){.offset = ckpt_arena_ints(v->ckpt, offset, v->n_dims),
                            .size = ckpt_arena_ints(v->ckpt, size, v->n_dims),
                            .place = {.is_view = true,
                                      .stored_idx = v->idx,
                                      .stored_at = ckpt_arena_ints(v->ckpt, at, v->n_dims + 1),
                                      .file = v->stored.place.file}};
}

/* Adds the elements [flat, end) of a cell, in row-major order, as at most 2 * n_dims - 1 boxes. */
static void add_range(struct view *v, const int64_t *cell, int64_t flat, int64_t end)
{
    if (v->n_dims == 0)
        add_box(v, cell, flat, cell, cell);
    while (flat < end && v->n_dims > 0) {
        int64_t begin[S2S_MAX_DIMS], size[S2S_MAX_DIMS], rest = flat, row = 1;
        for (int d = v->n_dims - 1; d >= 0; d--) {
            begin[d] = rest % v->local[d];
            rest /= v->local[d];
            size[d] = 1;
        }
        /* the outermost axis along which whole rows start at flat and end before `end` */
        int axis = v->n_dims - 1;
        for (; axis > 0 && begin[axis] == 0 && row * v->local[axis] <= end - flat; axis--) {
            size[axis] = v->local[axis];
            row *= v->local[axis];
        }
        int64_t n = (end - flat) / row, left = v->local[axis] - begin[axis];
        size[axis] = n < left ? n : left;
        add_box(v, cell, flat, begin, size);
        flat += size[axis] * row;
    }
}

static void add_chunk(struct view *v)
{
    const struct ckpt_chunk *stored = &v->stored;
    const int n = v->n_dims;
    int64_t cell[S2S_MAX_DIMS];
    for (int d = 0; d <= n; d++)
        if (stored->size[d] == 0)
            return;
    memcpy(cell, stored->offset, (size_t)n * sizeof *cell);
    for (int d = 0; d >= 0;) {
        add_range(v, cell, stored->offset[n], stored->offset[n] + stored->size[n]);
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
    if (!s2s_ckpt_orig_shape(tensor))
        return tensor;
    struct s2s_ckpt_tensor *out = ckpt_arena(ckpt, sizeof *out);
    *out = (struct s2s_ckpt_tensor){.name = tensor->name,
                                    .dtype = tensor->dtype,
                                    .n_dims = tensor->n_dims - 1,
                                    .shape = s2s_ckpt_orig_shape(tensor)};
    struct view v = {.ckpt = ckpt, .n_dims = out->n_dims};
    for (int d = 0; d < v.n_dims; d++)
        v.local[d] = out->shape[d] / tensor->shape[d];
    for (; v.idx < tensor->n_chunks; v.idx++) {
        v.stored = ckpt_chunk_at(tensor, v.idx);
        add_chunk(&v);
    }
    ckpt_set_chunks(ckpt, out, v.chunks, v.n_chunks);
    out->stored = tensor;
    free(v.chunks);
    return out;
}

const struct s2s_ckpt_tensor *ckpt_transposed(struct s2s_ckpt *ckpt,
                                              const struct s2s_ckpt_tensor *tensor)
{
    const int n = tensor->n_dims;
    if (n < 2)
        return tensor;
    struct s2s_ckpt_tensor *out = ckpt_arena(ckpt, sizeof *out);
    struct ckpt_chunk *chunks = s2s_xcalloc(tensor->n_chunks + 1, sizeof *chunks);
    *out = (struct s2s_ckpt_tensor){.name = tensor->name,
                                    .dtype = tensor->dtype,
                                    .n_dims = n,
                                    .shape = swap_last(ckpt, tensor->shape, n)};
    for (size_t i = 0; i < tensor->n_chunks; i++) {
        const struct ckpt_chunk stored = ckpt_chunk_at(tensor, i);
        chunks[i] = (struct ckpt_chunk){
            .offset = swap_last(ckpt, stored.offset, n),
            .size = swap_last(ckpt, stored.size, n),
            .place = {.is_view = true, .stored_idx = i, .file = stored.place.file}};
    }
    ckpt_set_chunks(ckpt, out, chunks, tensor->n_chunks);
    out->orig_shape = tensor->orig_shape;
    out->stored = tensor;
    free(chunks);
    return out;
}

const struct s2s_ckpt_tensor *s2s_ckpt_counterpart(struct s2s_ckpt *other,
                                                   const struct s2s_ckpt_tensor *tensor)
{
    const struct s2s_ckpt_tensor *stored = ckpt_stored(tensor), *like = stored ? stored : tensor;
    const struct s2s_ckpt_tensor *found = s2s_ckpt_find(other, like->name);
    if (!found || found->dtype != like->dtype ||
        !ckpt_same_shape(found->shape, found->n_dims, like->shape, like->n_dims))
        return NULL;
    if (stored)
        found = tensor->n_dims == stored->n_dims ? ckpt_transposed(other, found)
                                                 : s2s_ckpt_unflattened(other, found);
    return found->n_dims == tensor->n_dims ? found : NULL;
}

/* Of ckpt_transposed: the stored strides, with the last two exchanged. */
static void locate_transposed(struct s2s_ckpt *ckpt, struct ckpt_chunk *chunk,
                              const struct ckpt_chunk *stored, int n_dims)
{
    int64_t contiguous[S2S_MAX_DIMS];
    ckpt_box_strides(contiguous, stored->size, n_dims);
    chunk->stride = swap_last(ckpt, stored->stride ? stored->stride : contiguous, n_dims);
    chunk->data = stored->data;
}

static void locate_unflattened(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                               struct ckpt_chunk *chunk, const struct ckpt_chunk *stored)
{
    const int n = tensor->n_dims;
    int64_t stride[S2S_MAX_DIMS], contiguous[S2S_MAX_DIMS], at = 0;
    ckpt_box_strides(contiguous, stored->size, n + 1);
    const int64_t *steps = stored->stride ? stored->stride : contiguous;
    for (int d = 0; d <= n; d++)
        at += chunk->place.stored_at[d] * steps[d];
    int64_t step = steps[n];
    for (int d = n - 1; d >= 0; d--) {
        stride[d] = step;
        step *= tensor->shape[d] / ckpt_stored(tensor)->shape[d];
    }
    chunk->stride = ckpt_arena_ints(ckpt, stride, n);
    chunk->data = stored->data + at * (int64_t)s2s_dtype_size(tensor->dtype);
}

int ckpt_locate_view(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                     struct s2s_error *err)
{
    struct ckpt_chunk chunk = ckpt_chunk_at(tensor, k);
    const size_t idx = chunk.place.stored_idx;
    int rc = ckpt_locate(ckpt, ckpt_stored(tensor), idx, err);
    if (rc < 0)
        return rc;
    const struct ckpt_chunk stored = ckpt_chunk_at(ckpt_stored(tensor), idx);
    if (chunk.place.stored_at)
        locate_unflattened(ckpt, tensor, &chunk, &stored);
    else
        locate_transposed(ckpt, &chunk, &stored, tensor->n_dims);
    chunk.place.located = true;
    ckpt_put_chunk(ckpt, tensor, k, &chunk);
    return 0;
}
