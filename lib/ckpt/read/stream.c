/*
 * Streams tensors and objects as bytes, in pieces. Data passes through user space even if it is not
 * changed: verifying CRC-32s and computing digests needs every byte, so copy_file_range would only
 * add a second read (1.5 GB on ext4, Linux 6.18: reading, digest and pwrite take 0.43 s, with
 * copy_file_range in its place 0.57 s; cp takes 0.41 s). A piece stays in the core's cache between
 * these steps; writing, which is half of the work, is done by another thread (lib/io/behind.h).
 * Measured at 2 GB: since writeback is started early (lib/io/outfile.c), the final fsync takes 5 to
 * 15 ms.
 */

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

enum { N_WIDE = 64 }; /* pieces of a transposed tensor read at once */

char *ckpt_piece(struct s2s_ckpt *ckpt)
{
    if (!ckpt->piece)
        ckpt->piece = s2s_xalloc_aligned(CKPT_SCRATCH);
    return ckpt->piece;
}

void s2s_ckpt_walk_begin(struct s2s_ckpt_walk *walk, const int64_t *size, int n_dims,
                         size_t itemsize)
{
    *walk = (struct s2s_ckpt_walk){.n_dims = n_dims, .rows = 1};
    for (int d = 0; d < n_dims; d++) {
        walk->size[d] = size[d];
        walk->done |= size[d] == 0;
    }
    /* the outermost axis of which a whole row fits into a piece */
    for (; walk->axis < n_dims; walk->axis++) {
        int d = walk->axis + 1;
        int64_t row = ckpt_box_numel(size + d, n_dims - d) * (int64_t)itemsize;
        if (row <= S2S_CKPT_PIECE) {
            walk->rows = S2S_CKPT_PIECE / (row > 0 ? row : 1);
            break;
        }
    }
}

bool s2s_ckpt_walk_next(struct s2s_ckpt_walk *walk)
{
    int axis = walk->axis, n = walk->n_dims, d = axis < n ? axis : n - 1;
    if (walk->started && d >= 0) {
        walk->begin[d] += walk->box[d];
        while (d > 0 && walk->begin[d] == walk->size[d]) {
            walk->begin[d] = 0;
            walk->begin[--d]++;
        }
        walk->done |= walk->begin[d] == walk->size[d];
    }
    walk->done |= walk->started && n == 0;
    walk->started = true;
    for (int k = 0; k < n; k++)
        walk->box[k] = k < axis ? 1 : walk->size[k];
    if (axis < n && walk->size[axis] - walk->begin[axis] < walk->rows)
        walk->box[axis] = walk->size[axis] - walk->begin[axis];
    else if (axis < n)
        walk->box[axis] = walk->rows;
    return !walk->done;
}

/* ---- pieces of a tensor ---- */

struct source {
    struct s2s_ckpt *ckpt;
    const struct s2s_ckpt_tensor *tensor;
    const int64_t *begin; /* NULL: zeros */
    struct s2s_ckpt_walk walk;
    char *wide; /* NULL, or a buffer of N_WIDE pieces: bytes read into it, and bytes passed on */
    size_t wide_len, wide_at;
};

/*
 * Is the tensor a transposed view? Its rows are stored as columns, so reading few rows at a time
 * means runs of a few elements. 268 MB of [16384, 8192], one piece at a time: 8.4 million reads of
 * 32 bytes, 7.2 s; N_WIDE pieces at a time: 131 thousand reads, 1 s.
 */
static bool is_transposed(const struct s2s_ckpt_tensor *tensor)
{
    const int last = tensor->n_dims - 1;
    if (tensor->n_chunks == 0)
        return false;
    const struct ckpt_chunk chunk = ckpt_chunk_at(tensor, 0);
    /* a ckpt_transposed view, whose strides are known only once it is located */
    if (chunk.place.is_view && !chunk.place.stored_at)
        return true;
    return tensor->n_chunks == 1 && chunk.stride && last > 0 && tensor->shape[last] > 1 &&
           chunk.stride[last] > 1;
}

/* Reads the next box. 1: *len bytes are in out; 0: end */
static int read_box(struct source *s, char *out, size_t *len, struct s2s_error *err)
{
    int64_t at[S2S_MAX_DIMS];
    const int n = s->tensor->n_dims;
    if (!s2s_ckpt_walk_next(&s->walk))
        return 0;
    for (int d = 0; d < n; d++)
        at[d] = s->walk.begin[d] + (s->begin ? s->begin[d] : 0);
    int rc = s2s_ckpt_read(s->ckpt, s->tensor, at, s->walk.box, out, err);
    *len = (size_t)ckpt_box_numel(s->walk.box, n) * s2s_dtype_size(s->tensor->dtype);
    return rc < 0 ? rc : 1;
}

/* The same, but at most one piece. */
static int read_piece(struct source *s, char *out, size_t *len, struct s2s_error *err)
{
    int rc = 1;
    if (!s->wide)
        return read_box(s, out, len, err);
    if (s->wide_at == s->wide_len) {
        rc = read_box(s, s->wide, &s->wide_len, err);
        s->wide_at = 0;
    }
    if (rc <= 0)
        return rc;
    *len = s->wide_len - s->wide_at;
    *len = *len < CKPT_SCRATCH ? *len : CKPT_SCRATCH;
    memcpy(out, s->wide + s->wide_at, *len);
    s->wide_at += *len;
    return 1;
}

int s2s_ckpt_stream(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                    const int64_t *begin, const int64_t *size, s2s_ckpt_sink *sink, void *ctx,
                    struct s2s_error *err)
{
    struct source s = {.ckpt = ckpt, .tensor = tensor, .begin = begin};
    int64_t rest[S2S_MAX_DIMS];
    size_t itemsize = s2s_dtype_size(tensor->dtype), len;
    char *piece = ckpt_piece(ckpt);
    for (int d = 0; d < tensor->n_dims; d++)
        rest[d] = size ? size[d] : tensor->shape[d] - (begin ? begin[d] : 0);
    s2s_ckpt_walk_begin(&s.walk, rest, tensor->n_dims, itemsize);
    const int64_t bytes = ckpt_box_numel(rest, tensor->n_dims) * (int64_t)itemsize;
    if (bytes > CKPT_SCRATCH && is_transposed(tensor)) {
        const int64_t n_pieces = bytes / CKPT_SCRATCH + 1;
        const int64_t n_wide = n_pieces < N_WIDE ? n_pieces : N_WIDE;
        s.wide = s2s_xalloc_aligned((size_t)n_wide * CKPT_SCRATCH);
        s.walk.rows *= n_wide;
    }
    int rc;
    while ((rc = read_piece(&s, piece, &len, err)) > 0)
        if ((rc = sink(ctx, piece, len, err)) < 0)
            break;
    free(s.wide);
    return rc;
}

int s2s_ckpt_stream_object(struct s2s_ckpt *ckpt, const struct s2s_ckpt_object *object,
                           s2s_ckpt_sink *sink, void *ctx, struct s2s_error *err)
{
    int file = ckpt_add_file(ckpt, object->file, err);
    int fd = ckpt_file_fd(ckpt, file, err);
    int rc = fd < 0 ? fd : 0;
    for (int64_t done = 0; rc == 0 && done < object->len_bytes;) {
        int64_t left = object->len_bytes - done;
        size_t n = left < CKPT_SCRATCH ? (size_t)left : CKPT_SCRATCH;
        rc = ckpt_pread(fd, ckpt_piece(ckpt), n, object->pos + done, object->file, err);
        rc = rc < 0 ? ckpt_at_name(ckpt, object->name, rc, err) : sink(ctx, ckpt->piece, n, err);
        done += (int64_t)n;
    }
    return rc;
}
