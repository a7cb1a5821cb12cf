/*
 * Convolutions of packed images in which every output sees all channels, and pooling. A window is
 * gathered tap by tap and multiplied with the weights; so many windows at a time that they stay in
 * the cache, as all of them would be larger than the image by the number of taps. The backward
 * gathers them once more.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/tensor/tensor_internal.h"

int64_t s2s_conv_places(const struct s2s_conv_shape *shape, int axis, int64_t n)
{
    const int64_t all = n + shape->before[axis] + shape->after[axis];
    return n == 0 ? 0 : (all - shape->size[axis]) / shape->stride + 1;
}

/* ---- which pixels a window has ---- */

/* Windows that are multiplied together, and the pixels that stand in them. */
struct chunk {
    int64_t window, n_windows, pixel, n_pixels;
    int64_t place; /* where its part of `places` begins */
};

struct conv_saved {
    int64_t taps, slots; /* of a window; windows that a pixel may stand in */
    int64_t channels, outputs;
    struct chunk *chunks; /* the tape's */
    int64_t n_chunks, most;
};

/* Windows of one clip, tap after tap from `at` on: pixels, or -1 beyond the borders. */
static int32_t *find_pixels(int32_t *at, const struct s2s_conv_shape *shape, int64_t width,
                            int64_t begin, int64_t end, int64_t n_rows)
{
    const int64_t places = s2s_conv_places(shape, 1, width);
    for (int64_t t = 0; t < n_rows; t++)
        for (int64_t f = 0; f < places; f++)
            for (int64_t i = 0; i < shape->size[0]; i++)
                for (int64_t j = 0; j < shape->size[1]; j++) {
                    const int64_t row = begin + t * shape->stride - shape->before[0] + i;
                    const int64_t col = f * shape->stride - shape->before[1] + j;
                    const bool is_there = row >= begin && row < end && col >= 0 && col < width;
                    *at++ = is_there ? (int32_t)(row * width + col) : -1;
                }
    return at;
}

/* The pixels between the first and the last that stand in the windows of a chunk. */
static void find_range(struct chunk *chunk, const int32_t *pixels, int64_t taps)
{
    int64_t first = INT64_MAX, last = -1;
    for (int64_t i = chunk->window * taps; i < (chunk->window + chunk->n_windows) * taps; i++) {
        if (pixels[i] < 0)
            continue;
        first = pixels[i] < first ? pixels[i] : first;
        last = pixels[i] > last ? pixels[i] : last;
    }
    chunk->pixel = last < 0 ? 0 : first;
    chunk->n_pixels = last < 0 ? 0 : last + 1 - first;
}

/* Where each pixel of a chunk stands in its windows: [n_pixels, slots] of taps, or -1. */
static void find_places(int32_t *places, const struct chunk *chunk, const int32_t *pixels,
                        const struct conv_saved *saved)
{
    const int64_t begin = chunk->window * saved->taps;
    for (int64_t i = 0; i < chunk->n_pixels * saved->slots; i++)
        places[i] = -1;
    for (int64_t i = 0; i < chunk->n_windows * saved->taps; i++) {
        if (pixels[begin + i] < 0)
            continue;
        int32_t *slot = places + (pixels[begin + i] - chunk->pixel) * saved->slots;
        while (*slot >= 0)
            slot++;
        *slot = (int32_t)i;
    }
}

static int64_t slots_of(const struct s2s_conv_shape *shape)
{
    int64_t n = 1;
    for (int axis = 0; axis < 2; axis++)
        n *= (shape->size[axis] + shape->stride - 1) / shape->stride;
    return n;
}

/* Windows that a device takes at a time. */
static int64_t windows_at_a_time(const struct s2s_tape *tape, const struct conv_saved *saved)
{
    const size_t bytes = (size_t)(saved->taps * saved->channels) * sizeof(float);
    const int64_t n = (int64_t)(tensor_k(tape)->logits_bytes / bytes);
    return n > 1 ? n : 1;
}

/* Cuts n windows into chunks; *places (or NULL: not wanted) is allocated. Gives how long it is. */
static int64_t make_chunks(struct s2s_tape *tape, struct conv_saved *saved, const int32_t *pixels,
                           int64_t n, int32_t **places)
{
    int64_t size = 0;
    const int64_t each = windows_at_a_time(tape, saved);
    saved->n_chunks = (n + each - 1) / each;
    saved->most = n < each ? n : each;
    saved->chunks = s2s_tape_host_alloc(tape, (size_t)(saved->n_chunks + 1) * sizeof(struct chunk));
    for (int64_t c = 0; c < saved->n_chunks; c++) {
        struct chunk *chunk = &saved->chunks[c];
        chunk->window = c * each;
        chunk->n_windows = n - chunk->window < each ? n - chunk->window : each;
        chunk->place = size;
        find_range(chunk, pixels, saved->taps);
        size += chunk->n_pixels * saved->slots;
    }
    if (!places)
        return 0;
    *places = s2s_xmalloc((size_t)(size + 1) * sizeof **places);
    for (int64_t c = 0; c < saved->n_chunks; c++)
        find_places(*places + saved->chunks[c].place, &saved->chunks[c], pixels, saved);
    return size;
}

/* ---- products of chunks ---- */

/* Pieces of scratch for one chunk after the other. */
struct room {
    struct s2s_mat weights; /* [outputs, taps * channels], tap after tap */
    struct s2s_mat windows; /* [most, taps * channels] */
    struct s2s_mat made;    /* [most, outputs]: before the ReLU, or the gradient there */
};

static struct room make_room(struct s2s_tape *tape, const struct conv_saved *saved,
                             const struct s2s_tensor *w)
{
    const int64_t cols = saved->taps * saved->channels;
    const struct room room = {.weights = tensor_scratch_mat(tape, saved->outputs, cols, w->dtype),
                              .windows = tensor_scratch_mat(tape, saved->most, cols, w->dtype),
                              .made =
                                  tensor_scratch_mat(tape, saved->most, saved->outputs, w->dtype)};
    tensor_k(tape)->transpose(tensor_queue(tape),
                              &(struct s2s_k_transpose){.x = {w->data, cols, w->dtype},
                                                        .y = room.weights,
                                                        .rows = saved->outputs,
                                                        .a = saved->channels,
                                                        .b = saved->taps});
    return room;
}

/* Rows of so many columns each, from `row` on, of a matrix that has no gaps. */
static struct s2s_mat rows_from(struct s2s_mat mat, int64_t row, int64_t cols)
{
    mat.stride = cols;
    return mat.data ? tensor_mat_from(mat, row, 0) : mat;
}

static struct s2s_mat flat(const struct s2s_tensor *tensor, int64_t cols)
{
    return tensor ? (struct s2s_mat){tensor->data, cols, tensor->dtype} : (struct s2s_mat){0};
}

static void gather_windows(struct s2s_tape *tape, const struct conv_saved *saved,
                           const struct chunk *chunk, const struct s2s_tensor *x,
                           const struct s2s_tensor *pixels, const struct room *room)
{
    const struct s2s_k_rows args = {.dst = rows_from(room->windows, 0, saved->channels),
                                    .src = flat(x, saved->channels),
                                    .idx =
                                        (const int32_t *)pixels->data + chunk->window * saved->taps,
                                    .n = chunk->n_windows * saved->taps,
                                    .cols = saved->channels};
    tensor_k(tape)->gather_rows(tensor_queue(tape), &args);
}

/* y = relu(windows weights^T + b) */
static void forward_chunk(struct s2s_tape *tape, const struct conv_saved *saved,
                          const struct chunk *chunk, const struct room *room,
                          const struct s2s_tensor *b, const struct s2s_tensor *y)
{
    tensor_k(tape)->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = room->windows,
                                                                  .b = room->weights,
                                                                  .c = room->made,
                                                                  .bias = s2s_tensor_mat(b),
                                                                  .m = chunk->n_windows,
                                                                  .n = saved->outputs,
                                                                  .k = room->weights.stride,
                                                                  .trans_b = true,
                                                                  .alpha = 1});
    tensor_k(tape)->glu(
        tensor_queue(tape),
        &(struct s2s_k_glu){.gate = room->made,
                            .y = rows_from(flat(y, saved->outputs), chunk->window, saved->outputs),
                            .rows = chunk->n_windows,
                            .cols = saved->outputs,
                            .act = S2S_ACT_RELU});
}

/* ---- backward ---- */

/* The gradient in front of the ReLU, and what it adds to that of the bias. */
static void unmake_chunk(struct s2s_tape *tape, const struct conv_saved *saved,
                         const struct chunk *chunk, const struct s2s_tensor *y, float *db,
                         const struct room *room)
{
    const int64_t o = saved->outputs;
    tensor_k(tape)->glu_backward(
        tensor_queue(tape), &(struct s2s_k_glu_backward){
                                .gate = rows_from(flat(y, o), chunk->window, o),
                                .dy = rows_from(flat(s2s_tape_out_grad(y), o), chunk->window, o),
                                .dgate = room->made,
                                .rows = chunk->n_windows,
                                .cols = o,
                                .act = S2S_ACT_RELU});
    if (!db)
        return;
    struct s2s_k_colsum args = {
        .x = room->made, .out = db, .rows = chunk->n_windows, .cols = o, .accumulate = true};
    args.workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->colsum_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->colsum(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

/* What the windows of a chunk get, added up by pixels. */
static void add_pixels(struct s2s_tape *tape, const struct conv_saved *saved,
                       const struct chunk *chunk, const struct room *room,
                       const struct s2s_tensor *places, const struct s2s_tensor *dx)
{
    tensor_k(tape)->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = room->made,
                                                                  .b = room->weights,
                                                                  .c = room->windows,
                                                                  .m = chunk->n_windows,
                                                                  .n = room->weights.stride,
                                                                  .k = saved->outputs,
                                                                  .alpha = 1});
    tensor_k(tape)->rows_sum(
        tensor_queue(tape),
        &(struct s2s_k_rows_sum){
            .dst = rows_from(flat(dx, saved->channels), chunk->pixel, saved->channels),
            .src = rows_from(room->windows, 0, saved->channels),
            .idx = (const int32_t *)places->data + chunk->place,
            .n = chunk->n_pixels,
            .n_sources = saved->slots,
            .cols = saved->channels,
            .accumulate = true});
}

/* Gradient of a parameter or an input: zeroed if nothing was written, as chunks add to it. */
static struct s2s_tensor *begun_grad(struct s2s_tape *tape, struct s2s_tensor *tensor)
{
    bool accumulate;
    struct s2s_tensor *grad = s2s_tape_grad(tape, tensor, &accumulate);
    if (grad && !accumulate)
        tensor_zero(tape, grad);
    return grad;
}

/* node: in x, w, b, pixels, places */
static void conv_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct conv_saved *saved = node->saved;
    const int64_t cols = saved->taps * saved->channels;
    struct s2s_tensor *w = node->in[1];
    struct s2s_tensor *dx = begun_grad(tape, node->in[0]), *dw = begun_grad(tape, w),
                      *db = begun_grad(tape, node->in[2]);
    const struct room room = make_room(tape, saved, w);
    const struct s2s_mat sum =
        dw ? tensor_scratch_mat(tape, saved->outputs, cols, dw->dtype) : (struct s2s_mat){0};
    const struct s2s_arena_mark held = s2s_tape_scratch_hold(tape);
    for (int64_t c = 0; c < saved->n_chunks; c++) {
        const struct chunk *chunk = &saved->chunks[c];
        unmake_chunk(tape, saved, chunk, node->out[0], db ? db->data : NULL, &room);
        if (dw) {
            gather_windows(tape, saved, chunk, node->in[0], node->in[3], &room);
            tensor_k(tape)->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = room.made,
                                                                          .b = room.windows,
                                                                          .c = sum,
                                                                          .m = saved->outputs,
                                                                          .n = cols,
                                                                          .k = chunk->n_windows,
                                                                          .trans_a = true,
                                                                          .alpha = 1,
                                                                          .accumulate = c > 0});
        }
        if (dx)
            add_pixels(tape, saved, chunk, &room, node->in[4], dx);
    }
    if (dw && saved->n_chunks > 0) /* the parameter's has the channels first */
        tensor_k(tape)->transpose(tensor_queue(tape),
                                  &(struct s2s_k_transpose){.x = sum,
                                                            .y = flat(dw, cols),
                                                            .rows = saved->outputs,
                                                            .a = saved->taps,
                                                            .b = saved->channels,
                                                            .accumulate = true});
    s2s_tape_scratch_release(tape, held);
}

struct s2s_tensor *s2s_op_conv(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                               struct s2s_tensor *b, const struct s2s_conv_shape *shape,
                               const int32_t *cu_in, const int32_t *cu_out, int64_t n_clips)
{
    struct conv_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
    *saved = (struct conv_saved){.taps = shape->size[0] * shape->size[1],
                                 .slots = slots_of(shape),
                                 .channels = x->shape[2],
                                 .outputs = w->shape[0]};
    if (x->n_dims != 3 || x->row_stride != x->shape[2] || w->dtype != x->dtype ||
        s2s_tensor_numel(w) != saved->outputs * saved->channels * saved->taps)
        S2S_BUG("%s: a convolution of %lld channels with weights of %lld numbers", tape->layer,
                (long long)x->shape[2], (long long)s2s_tensor_numel(w));
    const int64_t width = s2s_conv_places(shape, 1, x->shape[1]), n = cu_out[n_clips] * width;
    int32_t *pixels = s2s_xmalloc((size_t)(n * saved->taps + 1) * sizeof *pixels), *places = NULL;
    int32_t *at = pixels;
    for (int64_t k = 0; k < n_clips; k++)
        at = find_pixels(at, shape, x->shape[1], cu_in[k], cu_in[k + 1], cu_out[k + 1] - cu_out[k]);
    const int64_t n_places =
        make_chunks(tape, saved, pixels, n, x->needs_grad && tape->recording ? &places : NULL);
    struct s2s_tensor *y =
        s2s_tape_tensor(tape, x->dtype, 3, (int64_t[]){cu_out[n_clips], width, saved->outputs});
    struct s2s_tensor *ins[] = {x, w, b, s2s_tape_upload_i32(tape, pixels, n * saved->taps),
                                s2s_tape_upload_i32(tape, places, n_places)};
    free(pixels);
    free(places);
    const struct room room = make_room(tape, saved, w);
    for (int64_t c = 0; c < saved->n_chunks; c++) {
        gather_windows(tape, saved, &saved->chunks[c], x, ins[3], &room);
        forward_chunk(tape, saved, &saved->chunks[c], &room, b, y);
    }
    s2s_tape_scratch_end(tape);
    y->kept = true;
    if (s2s_tape_needs(tape, 3, ins))
        s2s_tape_push(tape, "conv", conv_backward, 5, ins, 1, &y)->saved = saved;
    return y;
}

/* ---- pooling ---- */

enum { POOLED = 4 };

/* node: in x, pixels */
static void max_pool_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_k_rows_max *args = node->saved;
    struct s2s_k_rows_max_backward back = {.forward = *args};
    back.ddst = s2s_tensor_mat(s2s_tape_out_grad(node->out[0]));
    back.dsrc = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &back.accumulate));
    tensor_k(tape)->rows_max_backward(tensor_queue(tape), &back);
}

struct s2s_tensor *s2s_op_max_pool(struct s2s_tape *tape, struct s2s_tensor *x,
                                   const int32_t *cu_in, const int32_t *cu_out, int64_t n_clips)
{
    /* a place behind the last pixel of an odd number: there the square is smaller */
    static const struct s2s_conv_shape square = {.stride = 2, .size = {2, 2}, .after = {1, 1}};
    const int64_t width = s2s_conv_places(&square, 1, x->shape[1]), n = cu_out[n_clips] * width;
    int32_t *pixels = s2s_xmalloc((size_t)(n * POOLED + 1) * sizeof *pixels), *at = pixels;
    for (int64_t k = 0; k < n_clips; k++)
        at = find_pixels(at, &square, x->shape[1], cu_in[k], cu_in[k + 1],
                         cu_out[k + 1] - cu_out[k]);
    struct s2s_tensor *ins[] = {x, s2s_tape_upload_i32(tape, pixels, n * POOLED)};
    free(pixels);
    struct s2s_tensor *y =
        s2s_tape_tensor(tape, x->dtype, 3, (int64_t[]){cu_out[n_clips], width, x->shape[2]});
    struct s2s_k_rows_max *args = s2s_tape_host_alloc(tape, sizeof *args);
    *args = (struct s2s_k_rows_max){.dst = s2s_tensor_mat(y),
                                    .src = s2s_tensor_mat(x),
                                    .idx = ins[1]->data,
                                    .n = n,
                                    .n_sources = POOLED,
                                    .cols = x->shape[2]};
    tensor_k(tape)->rows_max(tensor_queue(tape), args);
    if (s2s_tape_needs(tape, 2, ins))
        s2s_tape_push(tape, "max_pool", max_pool_backward, 2, ins, 1, &y)->saved = args;
    return y;
}
