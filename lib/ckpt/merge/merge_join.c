/* Joins the boxes of all ranks to whole tensors; copies in several ranks must be equal. */
#include "lib/ckpt/merge/merge_internal.h"

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"

static int compare_ints(const int64_t *a, const int64_t *b, int n)
{
    for (int d = 0; d < n; d++)
        if (a[d] != b[d])
            return a[d] < b[d] ? -1 : 1;
    return 0;
}

/* By name, then by offset; copies in the order of their ranks. */
static int by_place(const void *a, const void *b)
{
    const struct merge_part *x = a, *y = b;
    int order = strcmp(x->tensor.name, y->tensor.name);
    if (order == 0)
        order = (x->tensor.n_dims > y->tensor.n_dims) - (x->tensor.n_dims < y->tensor.n_dims);
    if (order == 0)
        order = compare_ints(x->chunk.offset, y->chunk.offset, x->tensor.n_dims);
    return order ? order : strcmp(x->from, y->from);
}

static struct s2s_ckpt_tensor alone(const struct merge *m, const struct merge_part *part)
{
    struct s2s_ckpt_tensor tensor = part->tensor;
    struct ckpt_chunk chunk = part->chunk;
    chunk.offset = ckpt_origin;
    tensor.shape = chunk.size;
    ckpt_set_chunks(m->ckpt, &tensor, &chunk, 1);
    return tensor;
}

/* Compares two ranks' copies of the same box. */
static int check_equal(struct merge *m, const struct merge_part *a, const struct merge_part *b)
{
    struct s2s_ckpt_tensor left = alone(m, a), right = alone(m, b);
    bool equal = true;
    int rc = ckpt_same_bytes(m->ckpt, &left, &right, &equal, m->err);
    if (rc == 0 && !equal)
        rc = s2s_error_set(m->err, S2S_E_FORMAT,
                           "%s and %s should be copies of one tensor and differ", a->from, b->from);
    return rc;
}

/* Joins parts [begin, end) to one tensor; chunks is scratch space for theirs. */
static int join(struct merge *m, struct s2s_ckpt_tensor *tensor, size_t begin, size_t end,
                struct ckpt_chunk *chunks)
{
    const struct merge_part *first = &m->parts[begin];
    size_t n_chunks = 0;
    *tensor = first->tensor;
    for (size_t i = begin; i < end; i++) {
        const struct merge_part *part = &m->parts[i], *before = i > begin ? part - 1 : NULL;
        const int n = first->tensor.n_dims;
        const bool copy = before && n == part->tensor.n_dims &&
                          compare_ints(part->chunk.offset, before->chunk.offset, n) == 0;
        if (part->tensor.n_dims != n || compare_ints(part->tensor.shape, first->tensor.shape, n) ||
            part->tensor.dtype != first->tensor.dtype ||
            (copy && compare_ints(part->chunk.size, before->chunk.size, n)))
            return s2s_error_set(m->err, S2S_E_SHAPE, "%s and %s have other shapes or dtypes",
                                 first->from, part->from);
        if (copy) {
            int rc = check_equal(m, before, part);
            if (rc < 0)
                return rc;
            continue;
        }
        chunks[n_chunks++] = part->chunk;
    }
    ckpt_set_chunks(m->ckpt, tensor, chunks, n_chunks);
    return 0;
}

int ckpt_merge_join(struct merge *m)
{
    struct s2s_ckpt *ckpt = m->ckpt;
    struct s2s_ckpt_tensor *tensors = s2s_xcalloc(m->n_parts + 1, sizeof *tensors);
    struct ckpt_chunk *chunks = s2s_xmalloc((m->n_parts + 1) * sizeof *chunks);
    size_t n = 0;
    int rc = 0;
    if (m->n_parts)
        qsort(m->parts, m->n_parts, sizeof *m->parts, by_place);
    for (size_t begin = 0, end; rc == 0 && begin < m->n_parts; begin = end) {
        for (end = begin + 1; end < m->n_parts &&
                              strcmp(m->parts[end].tensor.name, m->parts[begin].tensor.name) == 0;)
            end++;
        rc = join(m, &tensors[n++], begin, end, chunks);
    }
    free(chunks);
    if (rc < 0) {
        free(tensors);
        return rc;
    }
    free(ckpt->tensors);
    ckpt->tensors = tensors;
    ckpt->n_tensors = n;
    ckpt->cap_tensors = m->n_parts + 1;
    return 0;
}
