/* What several ranks saved as copies of one tensor, or of one part, must be equal. */

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

int ckpt_same_bytes(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *a,
                    const struct s2s_ckpt_tensor *b, bool *same, struct s2s_error *err)
{
    const size_t itemsize = s2s_dtype_size(a->dtype);
    struct s2s_ckpt_walk walk;
    char *bytes = s2s_xmalloc(2 * S2S_CKPT_PIECE);
    int rc = 0;
    *same = true;
    s2s_ckpt_walk_begin(&walk, a->shape, a->n_dims, itemsize);
    while (rc == 0 && *same && s2s_ckpt_walk_next(&walk)) {
        const size_t len = (size_t)ckpt_box_numel(walk.box, a->n_dims) * itemsize;
        rc = s2s_ckpt_read(ckpt, a, walk.begin, walk.box, bytes, err);
        if (rc == 0)
            rc = s2s_ckpt_read(ckpt, b, walk.begin, walk.box, bytes + S2S_CKPT_PIECE, err);
        *same = rc < 0 || memcmp(bytes, bytes + S2S_CKPT_PIECE, len) == 0;
    }
    free(bytes);
    return rc;
}

static const char *file_of(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor)
{
    return ckpt->files[ckpt_place_at(tensor, 0)->file].name;
}

/* A chunk of a tensor, as one of its own. */
static struct s2s_ckpt_tensor alone(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *whole,
                                    size_t k)
{
    struct s2s_ckpt_tensor tensor = *whole;
    struct ckpt_chunk chunk = ckpt_chunk_at(whole, k);
    chunk.offset = ckpt_origin;
    tensor.shape = ckpt_arena_ints(ckpt, chunk.size, (size_t)whole->n_dims);
    ckpt_set_chunks(ckpt, &tensor, &chunk, 1);
    return tensor;
}

/* Is the copy the same as its chunk of `whole`, and undamaged? */
static int verify_copy(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *whole,
                       const struct ckpt_copy *of, struct s2s_error *err)
{
    const struct s2s_ckpt_tensor first = alone(ckpt, whole, of->chunk);
    bool same = true;
    int rc = ckpt_same_bytes(ckpt, &first, &of->copy, &same, err);
    if (rc == 0 && !same)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s and %s have copies of it that differ",
                           file_of(ckpt, &first), file_of(ckpt, &of->copy));
    return rc < 0 ? ckpt_at_name(ckpt, whole->name, rc, err) : 0;
}

int s2s_ckpt_verify_copies(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ckpt->n_copies; i++) {
        const struct ckpt_copy *of = &ckpt->copies[i];
        const struct s2s_ckpt_tensor *whole = s2s_ckpt_find(ckpt, of->copy.name);
        rc = s2s_ckpt_verify_tensor(ckpt, &of->copy, err);
        if (rc == 0 && whole)
            rc = verify_copy(ckpt, whole, of, err);
    }
    return rc;
}
