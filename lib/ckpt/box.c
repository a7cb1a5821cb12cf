/* Strides, sizes and tilings of boxes. */
#include "lib/ckpt/box.h"

#include "lib/base/base.h"

const int64_t ckpt_origin[S2S_MAX_DIMS];

bool ckpt_same_shape(const int64_t *a, int a_dims, const int64_t *b, int b_dims)
{
    return a_dims == b_dims && (a_dims == 0 || memcmp(a, b, (size_t)a_dims * sizeof *a) == 0);
}

int64_t ckpt_box_numel(const int64_t *size, int n_dims)
{
    int64_t numel = 1;
    bool empty = false;
    for (int d = 0; d < n_dims; d++) {
        if (size[d] < 0)
            return -1;
        empty |= size[d] == 0;
    }
    for (int d = 0; d < n_dims && !empty; d++)
        if (__builtin_mul_overflow(numel, size[d], &numel))
            return -1;
    return empty ? 0 : numel;
}

void ckpt_box_strides(int64_t *stride, const int64_t *size, int n_dims)
{
    int64_t step = 1;
    for (int d = n_dims; d-- > 0;) {
        stride[d] = step;
        /* the box is empty, or impossibly large, which is refused elsewhere */
        if (size[d] > 1 && __builtin_mul_overflow(step, size[d], &step))
            step = INT64_MAX;
    }
}

const char *ckpt_shape_text(char text[200], const int64_t *shape, int n_dims)
{
    int at = snprintf(text, 200, "[");
    for (int d = 0; d < n_dims && at < 190; d++)
        at += snprintf(text + at, (size_t)(200 - at), "%s%lld", d ? ", " : "", (long long)shape[d]);
    if (at < 199)
        snprintf(text + at, (size_t)(200 - at), "]");
    return text;
}

static bool boxes_meet(const struct ckpt_box *a, const struct ckpt_box *b, int n_dims)
{
    for (int d = 0; d < n_dims; d++)
        if (a->offset[d] >= b->offset[d] + b->size[d] || b->offset[d] >= a->offset[d] + a->size[d])
            return false;
    return true;
}

static int by_axis(const void *a, const void *b, void *axis)
{
    int d = *(int *)axis;
    int64_t x = ((const struct ckpt_box *)a)->offset[d];
    int64_t y = ((const struct ckpt_box *)b)->offset[d];
    return (x > y) - (x < y);
}

/* The axis with the most distinct offsets, on which fewest boxes are neighbours. */
static int sweep_axis(struct ckpt_box *boxes, size_t n, int n_dims)
{
    int best = 0;
    size_t most = 0;
    for (int d = 0; d < n_dims; d++) {
        size_t distinct = 1;
        qsort_r(boxes, n, sizeof *boxes, by_axis, &d);
        for (size_t i = 1; i < n; i++)
            distinct += boxes[i].offset[d] != boxes[i - 1].offset[d];
        if (distinct > most) {
            most = distinct;
            best = d;
        }
    }
    return best;
}

static int find_overlap(const char *name, struct ckpt_box *boxes, size_t n, int n_dims,
                        struct s2s_error *err)
{
    /* real tensors are split in grids, where few boxes are neighbours on the best axis */
    enum { MAX_PAIRS = 1 << 28 };
    size_t n_pairs = 0;
    int axis = n_dims > 1 ? sweep_axis(boxes, n, n_dims) : 0;
    qsort_r(boxes, n, sizeof *boxes, by_axis, &axis);
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++) {
            if (boxes[j].offset[axis] >= boxes[i].offset[axis] + boxes[i].size[axis])
                break;
            if (++n_pairs > MAX_PAIRS)
                return s2s_error_set(err, S2S_E_UNSUPPORTED,
                                     "%s: %zu chunks that lie in no order: too many to compare",
                                     name, n);
            if (boxes_meet(&boxes[i], &boxes[j], n_dims)) {
                char a[200], b[200];
                return s2s_error_set(err, S2S_E_SHAPE, "%s: chunks at %s and %s overlap", name,
                                     ckpt_shape_text(a, boxes[i].offset, n_dims),
                                     ckpt_shape_text(b, boxes[j].offset, n_dims));
            }
        }
    return 0;
}

int ckpt_boxes_tile(const char *name, const int64_t *shape, int n_dims, struct ckpt_box *boxes,
                    size_t n, struct s2s_error *err)
{
    char a[200], b[200], c[200];
    int64_t numel = ckpt_box_numel(shape, n_dims), step = 1;
    uint64_t covered = 0; /* may only wrap if boxes overlap, which is found first */
    size_t kept = 0;
    /* even if another axis is 0, as strides and sums of extents are computed later */
    bool absurd = numel < 0;
    for (int d = 0; d < n_dims; d++)
        absurd |= shape[d] > (int64_t)1 << 48 ||
                  __builtin_mul_overflow(step, shape[d] > 1 ? shape[d] : 1, &step);
    if (absurd)
        return s2s_error_set(err, S2S_E_SHAPE, "%s: absurd shape %s", name,
                             ckpt_shape_text(a, shape, n_dims));
    for (size_t i = 0; i < n; i++) {
        const struct ckpt_box box = boxes[i];
        int64_t part = ckpt_box_numel(box.size, n_dims);
        bool outside = part < 0;
        for (int d = 0; d < n_dims && !outside; d++)
            outside = box.offset[d] < 0 || box.offset[d] > shape[d] ||
                      box.size[d] > shape[d] - box.offset[d];
        if (outside)
            return s2s_error_set(err, S2S_E_SHAPE, "%s: chunk %s at %s leaves the tensor %s", name,
                                 ckpt_shape_text(a, box.size, n_dims),
                                 ckpt_shape_text(b, box.offset, n_dims),
                                 ckpt_shape_text(c, shape, n_dims));
        if (part)
            boxes[kept++] = box;
        covered += (uint64_t)part;
    }
    if (n_dims == 0 && kept > 1)
        return s2s_error_set(err, S2S_E_SHAPE, "%s: a scalar stored %zu times", name, kept);
    int rc = n_dims ? find_overlap(name, boxes, kept, n_dims, err) : 0;
    if (rc == 0 && covered != (uint64_t)numel)
        rc = s2s_error_set(err, S2S_E_SHAPE,
                           "%s: chunks cover %lld of %lld elements of %s: parts of the tensor are "
                           "missing",
                           name, (long long)covered, (long long)numel,
                           ckpt_shape_text(a, shape, n_dims));
    return rc;
}
