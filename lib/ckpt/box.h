/* Boxes: shapes of tensors, and rectangular parts of them. */
#ifndef CKPT_BOX_H
#define CKPT_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/io/safetensors.h"

struct s2s_error;

/* Zeros: the offset of a box that starts at the tensor's first element. */
extern const int64_t ckpt_origin[S2S_MAX_DIMS];
/* Are the shapes a [a_dims] and b [b_dims] equal? */
bool ckpt_same_shape(const int64_t *a, int a_dims, const int64_t *b, int b_dims);
/* Elements of a box of this size [n_dims]; -1 on overflow or a negative size. */
int64_t ckpt_box_numel(const int64_t *size, int n_dims);
/* Sets stride [n_dims], in elements, to that of a contiguous row-major box of this size. */
void ckpt_box_strides(int64_t *stride, const int64_t *size, int n_dims);

/* A part of a tensor; both are [n_dims], in elements. */
struct ckpt_box {
    const int64_t *offset, *size;
};
/* Do the n boxes cover a tensor of this shape, each element exactly once? Sorts boxes. name is for
 * messages. SHAPE: a hole, an overlap, a box that exceeds the tensor, or an impossible shape;
 * UNSUPPORTED: so many boxes in no regular grid that comparing them would take too long. */
int ckpt_boxes_tile(const char *name, const int64_t *shape, int n_dims, struct ckpt_box *boxes,
                    size_t n, struct s2s_error *err);
/* Writes "[2, 3]" into text, and returns text. */
const char *ckpt_shape_text(char text[200], const int64_t *shape, int n_dims);

#endif
