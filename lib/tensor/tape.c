/* Recording operations and walking them back. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/tensor/tensor_internal.h"

struct s2s_tape *s2s_tape_new(struct s2s_device *device, bool recording)
{
    struct s2s_tape *tape = s2s_xcalloc(1, sizeof *tape);
    tape->device = device;
    tape->recording = recording;
    tape->layer = "";
    s2s_arena_init(&tape->arena, device, 1 << 20);
    s2s_arena_init(&tape->host, NULL, 1 << 16);
    return tape;
}

void s2s_tape_free(struct s2s_tape *tape)
{
    if (!tape)
        return;
    s2s_tape_reset(tape);
    s2s_arena_release(&tape->arena);
    s2s_arena_release(&tape->host);
    free(tape);
}

static struct s2s_tensor *owner_of(struct s2s_tensor *tensor)
{
    return tensor->root ? tensor->root : tensor;
}

/* Gradients of parameters are sums over many rows and ranks. */
static enum s2s_dtype grad_dtype(const struct s2s_tensor *owner)
{
    return owner->param ? S2S_F32 : owner->dtype;
}

static size_t grad_bytes(const struct s2s_tensor *owner)
{
    return (size_t)s2s_tensor_numel(owner) * s2s_dtype_size(grad_dtype(owner));
}

/* Gives an activation's gradient back to the pool; a parameter's stays. */
static void drop_grad(struct s2s_tensor *tensor)
{
    if (!tensor)
        return;
    tensor = owner_of(tensor);
    if (tensor->param || !tensor->grad)
        return;
    s2s_pool_put(&tensor->device->pool, tensor->grad->data, grad_bytes(tensor));
    tensor->grad = NULL;
    tensor->grad_written = false;
}

void s2s_tape_reset(struct s2s_tape *tape)
{
    /* after a backward only leaves still hold one; without a backward (an error) any may */
    for (struct s2s_node *node = tape->last; node; node = node->prev) {
        for (int i = 0; i < node->n_in; i++)
            if (node->activations & 1u << i)
                drop_grad(node->in[i]);
        for (int i = 0; i < node->n_out; i++) {
            drop_grad(node->out[i]);
            tensor_give_back(node->out[i]);
        }
    }
    tensor_tape_forget(tape);
}

void tensor_tape_forget(struct s2s_tape *tape)
{
    tape->first = tape->last = NULL;
    tape->layer = "";
    tape->device->queue.layer = NULL; /* it may be of this tape */
    tape->device->queue.layer = NULL; /* it may be of this tape */
    s2s_arena_reset(&tape->arena);
    s2s_arena_reset(&tape->host);
}

size_t s2s_tape_peak_bytes(const struct s2s_tape *tape)
{
    return tape->arena.peak_bytes;
}

void *s2s_tape_host_alloc(struct s2s_tape *tape, size_t bytes)
{
    void *ptr = s2s_arena_alloc(&tape->host, bytes);
    memset(ptr, 0, bytes);
    return ptr;
}

const char *s2s_tape_layer(struct s2s_tape *tape, const char *fmt, ...)
{
    const char *before = tape->layer;
    char name[256];
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    if (len >= (int)sizeof name)
        len = sizeof name - 1;
    char *copy = s2s_tape_host_alloc(tape, (size_t)len + 1);
    memcpy(copy, name, (size_t)len);
    tape->layer = copy;
    return before;
}

static struct s2s_tensor *new_header(struct s2s_tape *tape, enum s2s_dtype dtype, int n_dims,
                                     const int64_t *shape)
{
    if (n_dims < 0 || n_dims > S2S_TENSOR_DIMS)
        S2S_BUG("%s: a tensor of %d dimensions", tape->layer, n_dims);
    struct s2s_tensor *t = s2s_tape_host_alloc(tape, sizeof *t);
    t->dtype = dtype;
    t->n_dims = n_dims;
    for (int i = 0; i < n_dims; i++)
        t->shape[i] = shape[i];
    t->row_stride = s2s_tensor_cols(t);
    t->device = tape->device;
    return t;
}

struct s2s_tensor *s2s_tape_tensor(struct s2s_tape *tape, enum s2s_dtype dtype, int n_dims,
                                   const int64_t *shape)
{
    struct s2s_tensor *t = new_header(tape, dtype, n_dims, shape);
    tensor_queue(tape); /* knows the layer, if there is no memory left */
    t->data = s2s_arena_alloc(&tape->arena, (size_t)s2s_tensor_numel(t) * s2s_dtype_size(t->dtype));
    return t;
}

struct s2s_tensor *s2s_tape_matrix(struct s2s_tape *tape, int64_t rows, int64_t cols)
{
    return s2s_tape_tensor(tape, tape->device->dtype, 2, (int64_t[]){rows, cols});
}

struct s2s_tensor *s2s_tape_upload(struct s2s_tape *tape, enum s2s_dtype dtype, int n_dims,
                                   const int64_t *shape, const void *host)
{
    struct s2s_tensor *t = s2s_tape_tensor(tape, dtype, n_dims, shape);
    s2s_tensor_write(t, host);
    return t;
}

struct s2s_tensor *s2s_tape_upload_floats(struct s2s_tape *tape, int n_dims, const int64_t *shape,
                                          const float *host)
{
    struct s2s_tensor *given = s2s_tape_upload(tape, S2S_F32, n_dims, shape, host);
    return tensor_in_working(tape, given);
}

struct s2s_tensor *tensor_in_working(struct s2s_tape *tape, struct s2s_tensor *floats)
{
    const enum s2s_dtype dtype = tape->device->dtype;
    if (dtype == S2S_F32)
        return floats;
    struct s2s_tensor *t = s2s_tape_tensor(tape, dtype, floats->n_dims, floats->shape);
    s2s_tensor_copy(t, floats);
    return t;
}

float *tensor_floats(struct s2s_tape *tape, int64_t rows, int64_t cols)
{
    return s2s_tape_tensor(tape, S2S_F32, 2, (int64_t[]){rows, cols})->data;
}

struct s2s_tensor *s2s_tape_upload_i32(struct s2s_tape *tape, const int32_t *host, int64_t n)
{
    return s2s_tape_upload(tape, S2S_I32, 1, &n, host);
}

struct s2s_tensor *s2s_tape_view(struct s2s_tape *tape, struct s2s_tensor *tensor, int n_dims,
                                 const int64_t *shape)
{
    struct s2s_tensor *t = new_header(tape, tensor->dtype, n_dims, shape);
    if (s2s_tensor_numel(t) != s2s_tensor_numel(tensor) ||
        tensor->row_stride != s2s_tensor_cols(tensor) || tensor->consumed)
        S2S_BUG("%s: a view that does not fit its tensor", tape->layer);
    t->data = tensor->data;
    t->needs_grad = tensor->needs_grad;
    t->param = tensor->param;
    t->root = tensor->root ? tensor->root : tensor;
    return t;
}

void s2s_tape_split(struct s2s_tape *tape, struct s2s_tensor *x, int n, const int64_t *widths,
                    struct s2s_tensor **out)
{
    struct s2s_tensor *owner = owner_of(x);
    int64_t rows = s2s_tensor_rows(x), at = 0;
    const bool linked = tape->recording && x->needs_grad && !owner->param;
    if (linked && owner->parts)
        S2S_BUG("%s: a tensor that is split already", tape->layer);
    for (int i = 0; i < n; i++) {
        struct s2s_tensor *t = new_header(tape, x->dtype, 2, (int64_t[]){rows, widths[i]});
        t->row_stride = x->row_stride;
        t->data = (char *)x->data + (size_t)at * s2s_dtype_size(x->dtype);
        t->needs_grad = x->needs_grad;
        t->param = x->param;
        t->root = owner;
        if (linked) {
            t->next_part = owner->parts;
            owner->parts = t;
        }
        out[i] = t;
        at += widths[i];
    }
    if (at != s2s_tensor_cols(x) || x->row_stride != at || x->consumed)
        S2S_BUG("%s: parts of %lld columns of a tensor that has %lld", tape->layer, (long long)at,
                (long long)s2s_tensor_cols(x));
}

void s2s_tape_want_grad(struct s2s_tensor *tensor)
{
    tensor->needs_grad = true;
}

bool s2s_tape_needs(const struct s2s_tape *tape, int n, struct s2s_tensor *const *in)
{
    bool needs = false;
    for (int i = 0; i < n; i++) {
        if (!in[i])
            continue;
        if (in[i]->consumed)
            S2S_BUG("%s: input %d was taken over by another operation", tape->layer, i);
        needs |= in[i]->needs_grad;
    }
    return tape->recording && needs;
}

struct s2s_node *s2s_tape_push(struct s2s_tape *tape, const char *op,
                               void (*backward)(struct s2s_tape *, struct s2s_node *), int n_in,
                               struct s2s_tensor *const *in, int n_out,
                               struct s2s_tensor *const *out)
{
    if (n_in > S2S_NODE_INPUTS || n_out > S2S_NODE_OUTPUTS)
        S2S_BUG("%s: %s has %d inputs and %d outputs", tape->layer, op, n_in, n_out);
    struct s2s_node *node = s2s_tape_host_alloc(tape, sizeof *node);
    node->op = op;
    node->layer = tape->layer;
    node->backward = backward;
    node->n_in = n_in;
    node->n_out = n_out;
    for (int i = 0; i < n_in; i++) {
        node->in[i] = in[i];
        if (!in[i] || in[i]->param)
            continue;
        node->activations |= 1u << i;
        owner_of(in[i])->kept = true; /* the backward may read it again */
    }
    for (int i = 0; i < n_out; i++) {
        node->out[i] = out[i];
        out[i]->needs_grad = true;
        out[i]->maker = out[i]->lent ? node : NULL;
    }
    node->prev = tape->last;
    if (tape->last)
        tape->last->next = node;
    else
        tape->first = node;
    tape->last = node;
    return node;
}

/* ---- gradients ---- */

/* A header of `like`'s shape over its columns of the gradient of the tensor that owns it. */
static struct s2s_tensor *grad_view(struct s2s_tape *tape, const struct s2s_tensor *like,
                                    const struct s2s_tensor *owner)
{
    const struct s2s_tensor *grad = owner->grad;
    struct s2s_tensor *g = new_header(tape, grad->dtype, like->n_dims, like->shape);
    size_t elements =
        (size_t)((char *)like->data - (char *)owner->data) / s2s_dtype_size(like->dtype);
    g->data = (char *)grad->data + elements * s2s_dtype_size(grad->dtype);
    g->row_stride = like->row_stride;
    return g;
}

static void alloc_grad(struct s2s_tape *tape, struct s2s_tensor *owner)
{
    struct s2s_tensor *g = new_header(tape, grad_dtype(owner), owner->n_dims, owner->shape);
    g->data = s2s_pool_get(&owner->device->pool, grad_bytes(owner));
    owner->grad = g;
}

/* Is this one of the parts of a split tensor, whose gradient is written by itself? */
static bool is_part(const struct s2s_tensor *tensor)
{
    return tensor->root && tensor->row_stride != s2s_tensor_cols(tensor) && !tensor->param;
}

/* Parts that nobody wrote hold zeros from here on, and the gradient is one whole. */
void tensor_settle_grad(struct s2s_tape *tape, struct s2s_tensor *owner)
{
    if (!owner->grad || owner->grad_written)
        return;
    for (struct s2s_tensor *part = owner->parts; part; part = part->next_part)
        if (!part->grad_written)
            tensor_zero(tape, grad_view(tape, part, owner));
    owner->grad_written = true;
}

struct s2s_tensor *s2s_tape_grad(struct s2s_tape *tape, struct s2s_tensor *tensor, bool *accumulate)
{
    if (!tensor || !tensor->needs_grad)
        return NULL;
    struct s2s_tensor *owner = owner_of(tensor);
    bool *written = &owner->grad_written;
    if (is_part(tensor) && !owner->grad_written)
        written = &tensor->grad_written;
    else if (owner->grad)
        tensor_settle_grad(tape, owner);
    if (!owner->grad)
        alloc_grad(tape, owner);
    *accumulate = *written;
    *written = true;
    return owner == tensor ? owner->grad : grad_view(tape, tensor, owner);
}

const struct s2s_tensor *s2s_tape_out_grad(const struct s2s_tensor *tensor)
{
    if (tensor->root)
        S2S_BUG("the output of an operation is a view");
    return tensor->grad_written ? tensor->grad : NULL;
}

void s2s_tape_seed_grad(struct s2s_tape *tape, struct s2s_tensor *out, const struct s2s_tensor *src)
{
    bool accumulate;
    struct s2s_tensor *g = s2s_tape_grad(tape, out, &accumulate);
    if (!g || s2s_tensor_rows(src) != s2s_tensor_rows(g) ||
        s2s_tensor_cols(src) != s2s_tensor_cols(g))
        S2S_BUG("%s: a gradient that does not fit its tensor", tape->layer);
    tensor_axpby(tape, 1, src, accumulate ? 1 : 0, g);
}

struct s2s_tensor *s2s_tape_take_grad(struct s2s_tape *tape, struct s2s_tensor *leaf)
{
    bool accumulate;
    struct s2s_tensor *g = s2s_tape_grad(tape, leaf, &accumulate);
    if (!g)
        S2S_BUG("%s: the gradient of a tensor that wants none", tape->layer);
    if (!accumulate)
        tensor_zero(tape, g);
    return g;
}

void *s2s_tape_detach_grad(struct s2s_tape *tape, struct s2s_tensor *leaf, size_t *bytes)
{
    if (leaf->root || leaf->param)
        S2S_BUG("%s: the gradient of a part cannot be detached", tape->layer);
    void *data = s2s_tape_take_grad(tape, leaf)->data;
    *bytes = grad_bytes(leaf);
    leaf->grad = NULL;
    leaf->grad_written = false;
    return data;
}

bool s2s_tape_grad_steal(struct s2s_tensor *tensor, struct s2s_tensor *output)
{
    if (tensor->root || tensor->param || tensor->grad || output->param || !output->grad ||
        !output->grad_written || tensor->dtype != output->dtype ||
        s2s_tensor_numel(tensor) != s2s_tensor_numel(output))
        return false;
    tensor->grad = output->grad;
    tensor->grad_written = true;
    output->grad = NULL;
    output->grad_written = false;
    for (int i = 0; i < tensor->n_dims; i++)
        tensor->grad->shape[i] = tensor->shape[i];
    tensor->grad->n_dims = tensor->n_dims;
    tensor->grad->row_stride = s2s_tensor_cols(tensor);
    return true;
}

void *s2s_tape_scratch(struct s2s_tape *tape, size_t bytes)
{
    tensor_queue(tape);
    return bytes ? s2s_arena_alloc(&tape->device->scratch, bytes) : NULL;
}

void s2s_tape_scratch_end(struct s2s_tape *tape)
{
    struct s2s_device *device = tape->device;
    if (device->scratch_held.used_bytes == 0)
        s2s_arena_reset(&device->scratch);
    else
        s2s_arena_rewind(&device->scratch, device->scratch_held);
}

struct s2s_arena_mark s2s_tape_scratch_hold(struct s2s_tape *tape)
{
    struct s2s_device *device = tape->device;
    struct s2s_arena_mark before = device->scratch_held;
    device->scratch_held = s2s_arena_mark(&device->scratch);
    return before;
}

void s2s_tape_scratch_release(struct s2s_tape *tape, struct s2s_arena_mark before)
{
    tape->device->scratch_held = before;
    s2s_tape_scratch_end(tape);
}

/* ---- backward ---- */

/* Makes the gradients of a node's outputs ready to be read. Does it have to run? */
static bool reached(struct s2s_tape *tape, const struct s2s_node *node)
{
    bool any = node->always;
    for (int i = 0; i < node->n_out; i++) {
        tensor_settle_grad(tape, node->out[i]);
        if (node->always && !node->out[i]->is_loss)
            s2s_tape_take_grad(tape, node->out[i]);
        any |= s2s_tape_out_grad(node->out[i]) != NULL;
    }
    return any;
}

void s2s_tape_backward(struct s2s_tape *tape)
{
    for (struct s2s_node *node = tape->last; node; node = node->prev) {
        tape->layer = node->layer;
        if (reached(tape, node))
            node->backward(tape, node);
        for (int i = 0; i < node->n_out; i++) {
            drop_grad(node->out[i]);
            tensor_give_back(node->out[i]);
        }
    }
}

struct mark {
    s2s_tape_passed *passed;
    void *ctx;
    int at;
};

static void mark_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct mark *mark = node->saved;
    (void)tape;
    mark->passed(mark->ctx, mark->at);
}

void s2s_tape_mark(struct s2s_tape *tape, s2s_tape_passed *passed, void *ctx, int at)
{
    if (!tape->recording)
        return;
    struct mark *mark = s2s_tape_host_alloc(tape, sizeof *mark);
    *mark = (struct mark){passed, ctx, at};
    struct s2s_node *node = s2s_tape_push(tape, "mark", mark_backward, 0, NULL, 0, NULL);
    node->saved = mark;
    node->always = true;
}

bool s2s_tape_find_nonfinite(struct s2s_tape *tape, struct s2s_nonfinite *where)
{
    const struct s2s_kernels *k = tape->device->kernels;
    int64_t nth = 0;
    for (struct s2s_node *node = tape->first; node; node = node->next, nth++)
        for (int i = 0; i < node->n_out; i++) {
            struct s2s_tensor *t = node->out[i];
            if ((t->dtype != S2S_F32 && t->dtype != S2S_BF16) || !t->data)
                continue; /* what was discarded shows in its readers */
            struct s2s_k_reduce args = {.x = s2s_tensor_mat(t),
                                        .rows = s2s_tensor_rows(t),
                                        .cols = s2s_tensor_cols(t),
                                        .what = S2S_REDUCE_NONFINITE};
            args.out = s2s_tape_scratch(tape, sizeof(double));
            args.workspace =
                s2s_tape_scratch(tape, k->reduce_workspace(&tape->device->queue, &args));
            k->reduce(&tape->device->queue, &args);
            double count;
            k->copy_out(&tape->device->queue, &count, args.out, sizeof count);
            s2s_tape_scratch_end(tape);
            if (count > 0) {
                *where = (struct s2s_nonfinite){node->layer, node->op, i, nth, (int64_t)count};
                return true;
            }
        }
    return false;
}
