/*
 * Streams tensors and objects as bytes, in pieces. Data passes through user space even if it is not
 * changed: verifying CRC-32s and computing digests needs every byte, so copy_file_range would only
 * add a second read. A piece stays in the core's cache between these steps. Measured at 2 GB: since
 * writeback is started early (lib/io/outfile.c), the final fsync takes 5 to 15 ms, and starting
 * writeback on a thread of its own gains nothing. Computing the digest on the reading thread
 * instead of the writing one: 0.58 s instead of 0.66, where cp takes 0.53.
 */

#include <pthread.h>
#include <sched.h>

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

enum {
    N_PIECES = 3,
    AHEAD_BYTES = 16 * CKPT_SCRATCH, /* smaller streams use no second thread */
    N_WIDE = 64                      /* pieces of a transposed tensor read at once */
};

char *ckpt_piece(struct s2s_ckpt *ckpt)
{
    if (!ckpt->piece)
        ckpt->piece = s2s_xalloc_aligned((size_t)N_PIECES * CKPT_SCRATCH);
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

/* State of a stream: one thread reads ahead while the other passes pieces to the sink. */
struct ahead {
    struct s2s_ckpt *ckpt;
    const struct s2s_ckpt_tensor *tensor;
    const int64_t *begin; /* NULL: zeros */
    s2s_ckpt_tap *tap;
    s2s_ckpt_sink *sink;
    void *ctx; /* of both */
    struct s2s_ckpt_walk walk;
    char *wide; /* NULL, or a buffer of N_WIDE pieces: bytes read into it, and bytes passed on */
    size_t wide_len, wide_at;
    pthread_mutex_t lock;
    pthread_cond_t change;
    size_t len[N_PIECES];    /* bytes in piece i % N_PIECES */
    uint64_t n_read, n_used; /* pieces */
    bool end, stop;
    int rc;
    struct s2s_error err;
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
static int read_box(struct ahead *a, char *out, size_t *len, struct s2s_error *err)
{
    int64_t at[S2S_MAX_DIMS];
    const int n = a->tensor->n_dims;
    if (!s2s_ckpt_walk_next(&a->walk))
        return 0;
    for (int d = 0; d < n; d++)
        at[d] = a->walk.begin[d] + (a->begin ? a->begin[d] : 0);
    int rc = s2s_ckpt_read(a->ckpt, a->tensor, at, a->walk.box, out, err);
    *len = (size_t)ckpt_box_numel(a->walk.box, n) * s2s_dtype_size(a->tensor->dtype);
    return rc < 0 ? rc : 1;
}

/* The same, but at most one piece. */
static int read_piece(struct ahead *a, char *out, size_t *len, struct s2s_error *err)
{
    int rc = 1;
    if (!a->wide)
        return read_box(a, out, len, err);
    if (a->wide_at == a->wide_len) {
        rc = read_box(a, a->wide, &a->wide_len, err);
        a->wide_at = 0;
    }
    if (rc <= 0)
        return rc;
    *len = a->wide_len - a->wide_at;
    *len = *len < CKPT_SCRATCH ? *len : CKPT_SCRATCH;
    memcpy(out, a->wide + a->wide_at, *len);
    a->wide_at += *len;
    return 1;
}

static int read_next(struct ahead *a, char *out, size_t *len, struct s2s_error *err)
{
    int rc = read_piece(a, out, len, err);
    if (rc > 0 && a->tap)
        a->tap(a->ctx, out, *len);
    return rc;
}

static void *read_ahead(void *arg)
{
    struct ahead *a = arg;
    int rc = 1;
    pthread_mutex_lock(&a->lock);
    while (rc > 0) {
        while (a->n_read - a->n_used == N_PIECES && !a->stop)
            pthread_cond_wait(&a->change, &a->lock);
        if (a->stop)
            break;
        size_t slot = a->n_read % N_PIECES;
        pthread_mutex_unlock(&a->lock);
        rc = read_next(a, ckpt_piece(a->ckpt) + slot * CKPT_SCRATCH, &a->len[slot], &a->err);
        pthread_mutex_lock(&a->lock);
        a->n_read += rc > 0;
        pthread_cond_signal(&a->change);
    }
    a->rc = rc < 0 ? rc : 0;
    a->end = true;
    pthread_cond_signal(&a->change);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static int use_pieces(struct ahead *a, struct s2s_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (a->n_read == a->n_used && !a->end)
            pthread_cond_wait(&a->change, &a->lock);
        if (a->n_read == a->n_used || rc < 0)
            break;
        size_t slot = a->n_used % N_PIECES;
        pthread_mutex_unlock(&a->lock);
        rc = a->sink(a->ctx, a->ckpt->piece + slot * CKPT_SCRATCH, a->len[slot], err);
        pthread_mutex_lock(&a->lock);
        a->n_used++;
        a->stop = rc < 0;
        pthread_cond_signal(&a->change);
    }
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static int stream_threaded(struct ahead *a, pthread_t *thread, struct s2s_error *err)
{
    int rc = use_pieces(a, err);
    pthread_join(*thread, NULL);
    if (rc == 0 && a->rc < 0 && err)
        *err = a->err;
    return rc < 0 ? rc : a->rc;
}

static bool has_second_core(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) > 1;
}

int s2s_ckpt_stream(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                    const int64_t *begin, const int64_t *size, s2s_ckpt_tap *tap,
                    s2s_ckpt_sink *sink, void *ctx, struct s2s_error *err)
{
    struct ahead a = {.ckpt = ckpt,
                      .tensor = tensor,
                      .begin = begin,
                      .tap = tap,
                      .sink = sink,
                      .ctx = ctx,
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .change = PTHREAD_COND_INITIALIZER,
                      .err = S2S_ERROR_INIT};
    int64_t rest[S2S_MAX_DIMS];
    size_t itemsize = s2s_dtype_size(tensor->dtype), len;
    pthread_t thread;
    char *piece = ckpt_piece(ckpt);
    for (int d = 0; d < tensor->n_dims; d++)
        rest[d] = size ? size[d] : tensor->shape[d] - (begin ? begin[d] : 0);
    s2s_ckpt_walk_begin(&a.walk, rest, tensor->n_dims, itemsize);
    const int64_t bytes = ckpt_box_numel(rest, tensor->n_dims) * (int64_t)itemsize;
    const bool large = bytes >= AHEAD_BYTES;
    if (bytes > CKPT_SCRATCH && is_transposed(tensor)) {
        const int64_t n_pieces = bytes / CKPT_SCRATCH + 1;
        const int64_t n_wide = n_pieces < N_WIDE ? n_pieces : N_WIDE;
        a.wide = s2s_xalloc_aligned((size_t)n_wide * CKPT_SCRATCH);
        a.walk.rows *= n_wide;
    }
    int rc;
    if (large && has_second_core() && pthread_create(&thread, NULL, read_ahead, &a) == 0)
        rc = stream_threaded(&a, &thread, err);
    else
        while ((rc = read_next(&a, piece, &len, err)) > 0)
            if ((rc = sink(ctx, piece, len, err)) < 0)
                break;
    free(a.wide);
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
