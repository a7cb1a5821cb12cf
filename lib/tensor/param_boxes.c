/* Which boxes of its global tensor a rank holds of a parameter, and where they stand in its own. */
#include <string.h>

#include "lib/base/error.h"
#include "lib/tensor/param.h"
#include "lib/tensor/param_internal.h"

static int position(const struct s2s_cut *cut, const int *at)
{
    if (s2s_group_size(cut->group) == 1)
        return 0;
    return at ? at[cut->axis] : cut->group->rank;
}

int s2s_param_boxes(struct s2s_box *out, const struct s2s_param *p, const int at[S2S_AXES])
{
    const int n = p->n_parts ? p->n_parts : 1;
    int64_t part_begin = 0, local_begin = 0;
    for (int k = 0; k < n; k++) {
        struct s2s_box *box = &out[k];
        *box = (struct s2s_box){{0}, {0}, {0}};
        memcpy(box->size, p->shape, sizeof box->size);
        for (int c = 0; c < S2S_PARAM_CUTS; c++) {
            const int dim = p->cuts[c].dim, ranks = s2s_group_size(p->cuts[c].group);
            if (ranks == 1)
                continue;
            const bool parted = c == 0 && p->n_parts > 0;
            const int64_t part = parted ? p->parts[k] : p->shape[dim];
            const int rank = position(&p->cuts[c], at);
            const int64_t begin = s2s_cut_begin(part, rank, ranks),
                          piece = s2s_cut_begin(part, rank + 1, ranks) - begin;
            box->offset[dim] = (parted ? part_begin : 0) + begin;
            box->size[dim] = piece;
            box->local_offset[dim] = parted ? local_begin : 0;
            if (parted) {
                part_begin += part;
                local_begin += piece;
            }
        }
    }
    return n;
}

/* ---- a range of local elements ---- */

/* Boxes of the local tensor that make up [begin, end) of what lies below index at[0..dim). */
static int split_range(struct s2s_box *out, int n, const struct s2s_param *p, int dim, int64_t *at,
                       int64_t begin, int64_t end)
{
    int64_t inner = 1;
    for (int d = dim + 1; d < p->n_dims; d++)
        inner *= p->local[d];
    if (begin >= end)
        return n;
    int64_t first = begin / inner, last = end / inner;
    const int64_t head = begin % inner, tail = end % inner;
    if (head > 0) {
        at[dim] = first;
        n = split_range(out, n, p, dim + 1, at, head, first == last ? tail : inner);
        first++;
    }
    if (first < last) {
        struct s2s_box *box = &out[n++];
        *box = (struct s2s_box){{0}, {0}, {0}};
        for (int d = 0; d < p->n_dims; d++) {
            box->local_offset[d] = d < dim ? at[d] : d == dim ? first : 0;
            box->size[d] = d < dim ? 1 : d == dim ? last - first : p->local[d];
        }
    }
    if (tail > 0 && last >= first) {
        at[dim] = last;
        n = split_range(out, n, p, dim + 1, at, 0, tail);
    }
    return n;
}

/* What two boxes of the local tensor share; false: nothing. */
static bool intersect(struct s2s_box *out, const struct s2s_box *range, const struct s2s_box *held,
                      int n_dims)
{
    *out = (struct s2s_box){{0}, {0}, {0}};
    for (int d = 0; d < n_dims; d++) {
        const int64_t a = range->local_offset[d], b = held->local_offset[d];
        const int64_t end_a = a + range->size[d], end_b = b + held->size[d];
        const int64_t begin = a > b ? a : b, end = end_a < end_b ? end_a : end_b;
        if (begin >= end)
            return false;
        out->local_offset[d] = begin;
        out->size[d] = end - begin;
        out->offset[d] = held->offset[d] + (begin - b);
    }
    return true;
}

int s2s_param_range_boxes(struct s2s_box *out, const struct s2s_param *p, int64_t begin,
                          int64_t end)
{
    struct s2s_box held[S2S_PARAM_PARTS], pieces[2 * S2S_TENSOR_DIMS - 1];
    int64_t at[S2S_TENSOR_DIMS + 1] = {0};
    const int n_held = s2s_param_boxes(held, p, NULL);
    const int n_pieces = split_range(pieces, 0, p, 0, at, begin, end);
    int n = 0;
    for (int i = 0; i < n_pieces; i++)
        for (int k = 0; k < n_held; k++)
            n += intersect(&out[n], &pieces[i], &held[k], p->n_dims);
    return n;
}

/* ---- memory ---- */

int64_t s2s_box_numel(const struct s2s_box *box, int n_dims)
{
    int64_t n = 1;
    for (int d = 0; d < n_dims; d++)
        n *= box->size[d];
    return n;
}

static int64_t local_index(const struct s2s_param *p, const int64_t *at)
{
    int64_t i = 0;
    for (int d = 0; d < p->n_dims; d++)
        i = i * p->local[d] + at[d];
    return i;
}

int64_t s2s_box_begin(const struct s2s_box *box, const struct s2s_param *p)
{
    int d = 0;
    while (d < p->n_dims && box->size[d] == 1)
        d++;
    for (d++; d < p->n_dims; d++) /* the first dimension with several indices may be a part */
        if (box->size[d] != p->local[d])
            return -1;
    return local_index(p, box->local_offset);
}

/* Row by row: a row of the box is contiguous on both sides. */
static void copy_rows(const struct s2s_box *box, const struct s2s_param *p, const float *from,
                      float *to, bool pack)
{
    const int last = p->n_dims - 1;
    const int64_t width = p->n_dims ? box->size[last] : 1;
    const int64_t n = s2s_box_numel(box, p->n_dims);
    int64_t at[S2S_TENSOR_DIMS];
    for (int64_t packed = 0; packed < n; packed += width) {
        int64_t rest = width > 0 ? packed / width : 0;
        memcpy(at, box->local_offset, sizeof at);
        for (int d = last - 1; d >= 0; d--) {
            at[d] += rest % box->size[d];
            rest /= box->size[d];
        }
        const int64_t local = local_index(p, at);
        memcpy(to + (pack ? packed : local), from + (pack ? local : packed),
               (size_t)width * sizeof *to);
    }
}

void s2s_box_pack(const struct s2s_box *box, const struct s2s_param *p, const float *local,
                  float *packed)
{
    copy_rows(box, p, local, packed, true);
}

void s2s_box_unpack(const struct s2s_box *box, const struct s2s_param *p, const float *packed,
                    float *local)
{
    copy_rows(box, p, packed, local, false);
}

int64_t tensor_param_run(const struct s2s_param *p, const struct s2s_box *boxes, int n_boxes,
                         int64_t i, int64_t *global)
{
    int64_t at[S2S_TENSOR_DIMS] = {0};
    for (int d = p->n_dims - 1; d >= 0; d--) {
        at[d] = i % p->local[d];
        i /= p->local[d];
    }
    const struct s2s_box *box = NULL;
    for (int k = 0; k < n_boxes && !box; k++) {
        box = &boxes[k];
        for (int d = 0; d < p->n_dims && box; d++)
            if (at[d] < box->local_offset[d] || at[d] >= box->local_offset[d] + box->size[d])
                box = NULL;
    }
    if (!box)
        S2S_BUG("%s: no box holds an element", p->name);
    int64_t n = 1, inner = 1;
    bool whole = true; /* dimensions further in are not cut */
    *global = 0;
    for (int d = p->n_dims - 1; d >= 0; d--) {
        const int64_t in_box = at[d] - box->local_offset[d];
        *global += (box->offset[d] + in_box) * inner;
        if (whole)
            n += (box->size[d] - 1 - in_box) * inner;
        whole = whole && box->size[d] == p->shape[d];
        inner *= p->shape[d];
    }
    return n;
}

int s2s_param_copy(const struct s2s_param *p, const struct s2s_group *const axes[S2S_AXES],
                   int *n_copies)
{
    int number = 0;
    *n_copies = 1;
    for (int axis = 0; axis < S2S_AXES; axis++) {
        bool cut = false;
        for (int c = 0; c < S2S_PARAM_CUTS; c++)
            cut |= s2s_group_size(p->cuts[c].group) > 1 && (int)p->cuts[c].axis == axis;
        if (cut || s2s_group_size(axes[axis]) == 1)
            continue;
        number = number * axes[axis]->size + axes[axis]->rank;
        *n_copies *= axes[axis]->size;
    }
    return number;
}
