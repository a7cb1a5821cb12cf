/* Compares two tensors of a checkpoint bit for bit. */
#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/ckpt.h"

int s2s_ckpt_is_copy(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *a,
                     const struct s2s_ckpt_tensor *b, struct s2s_error *err)
{
    const size_t itemsize = s2s_dtype_size(a->dtype);
    struct s2s_ckpt_walk walk;
    int rc = 0;
    bool same = true;
    if (a->dtype != b->dtype || !ckpt_same_shape(a->shape, a->n_dims, b->shape, b->n_dims))
        return 0;
    char *x = s2s_xmalloc(S2S_CKPT_PIECE), *y = s2s_xmalloc(S2S_CKPT_PIECE);
    s2s_ckpt_walk_begin(&walk, a->shape, a->n_dims, itemsize);
    while (rc == 0 && same && s2s_ckpt_walk_next(&walk)) {
        rc = s2s_ckpt_read(ckpt, a, walk.begin, walk.box, x, err);
        if (rc == 0)
            rc = s2s_ckpt_read(ckpt, b, walk.begin, walk.box, y, err);
        if (rc == 0)
            same = memcmp(x, y, (size_t)ckpt_box_numel(walk.box, a->n_dims) * itemsize) == 0;
    }
    free(x);
    free(y);
    return rc < 0 ? rc : same;
}
