#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/tensor/tensor.h"

struct s2s_tape *s2s_tape_new(struct s2s_device *device, bool recording)
{
    struct s2s_tape *tape = s2s_xcalloc(1, sizeof *tape);
    tape->device = device;
    tape->recording = recording;
    tape->layer = "";
    s2s_arena_init(&tape->arena, device->kernels, 1 << 20);
    s2s_arena_init(&tape->host, NULL, 1 << 16);
    return tape;
}

void s2s_tape_free(struct s2s_tape *tape)
{
    if (!tape)
        return;
    s2s_tape_reset(tape);
    s2s_tape_free(tape->child);
    s2s_arena_release(&tape->arena);
    s2s_arena_release(&tape->host);
    free(tape);
}

/* Gives an activation's gradient back to the pool; a parameter's stays. */
static void drop_grad(struct s2s_tensor *tensor)
{
    if (tensor && tensor->root)
        tensor = tensor->root;
    if (!tensor || tensor->param || !tensor->grad)
        return;
    s2s_pool_put(&tensor->device->pool, tensor->grad->data,
                 (size_t)s2s_tensor_numel(tensor) * sizeof(float));
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
        for (int i = 0; i < node->n_out; i++)
            drop_grad(node->out[i]);
    }
    tape->first = tape->last = NULL;
    tape->layer = "";
    s2s_arena_reset(&tape->arena);
    s2s_arena_reset(&tape->host);
}

size_t s2s_tape_peak_bytes(const struct s2s_tape *tape)
{
    return tape->arena.peak_bytes + (tape->child ? s2s_tape_peak_bytes(tape->child) : 0);
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
    t->data = s2s_arena_alloc(&tape->arena, (size_t)s2s_tensor_numel(t) * s2s_dtype_size(t->dtype));
    return t;
}

struct s2s_tensor *s2s_tape_matrix(struct s2s_tape *tape, int64_t rows, int64_t cols)
{
    return s2s_tape_tensor(tape, S2S_F32, 2, (int64_t[]){rows, cols});
}

struct s2s_tensor *s2s_tape_upload(struct s2s_tape *tape, enum s2s_dtype dtype, int n_dims,
                                   const int64_t *shape, const void *host)
{
    struct s2s_tensor *t = s2s_tape_tensor(tape, dtype, n_dims, shape);
    s2s_tensor_write(t, host);
    return t;
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
        if (in[i] && !in[i]->param)
            node->activations |= 1u << i;
    }
    for (int i = 0; i < n_out; i++) {
        node->out[i] = out[i];
        out[i]->needs_grad = true;
    }
    node->prev = tape->last;
    if (tape->last)
        tape->last->next = node;
    else
        tape->first = node;
    tape->last = node;
    return node;
}

/* A header of `like`'s shape over the gradient of the tensor that owns it. */
static struct s2s_tensor *grad_view(struct s2s_tape *tape, const struct s2s_tensor *like,
                                    const struct s2s_tensor *grad)
{
    struct s2s_tensor *g = new_header(tape, S2S_F32, like->n_dims, like->shape);
    g->data = grad->data;
    return g;
}

struct s2s_tensor *s2s_tape_grad(struct s2s_tape *tape, struct s2s_tensor *tensor, bool *accumulate)
{
    if (!tensor || !tensor->needs_grad)
        return NULL;
    struct s2s_tensor *owner = tensor->root ? tensor->root : tensor;
    if (!owner->grad) {
        struct s2s_tensor *g = new_header(tape, S2S_F32, owner->n_dims, owner->shape);
        g->data =
            s2s_pool_get(&owner->device->pool, (size_t)s2s_tensor_numel(owner) * sizeof(float));
        owner->grad = g;
    }
    *accumulate = owner->grad_written;
    owner->grad_written = true;
    return owner == tensor ? owner->grad : grad_view(tape, tensor, owner->grad);
}

const struct s2s_tensor *s2s_tape_out_grad(const struct s2s_tensor *tensor)
{
    const struct s2s_tensor *owner = tensor->root ? tensor->root : tensor;
    if (!owner->grad || !owner->grad_written)
        return NULL;
    if (owner != tensor)
        S2S_BUG("the output of an operation is a view");
    return owner->grad;
}

bool s2s_tape_grad_steal(struct s2s_tensor *tensor, struct s2s_tensor *output)
{
    if (tensor->root || tensor->param || tensor->grad || output->param || !output->grad ||
        !output->grad_written || s2s_tensor_numel(tensor) != s2s_tensor_numel(output))
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
    return bytes ? s2s_arena_alloc(&tape->device->scratch, bytes) : NULL;
}

void s2s_tape_scratch_end(struct s2s_tape *tape)
{
    s2s_arena_reset(&tape->device->scratch);
}

void s2s_tape_backward(struct s2s_tape *tape)
{
    for (struct s2s_node *node = tape->last; node; node = node->prev) {
        bool reached = false;
        for (int i = 0; i < node->n_out; i++)
            reached |= s2s_tape_out_grad(node->out[i]) != NULL;
        if (reached)
            node->backward(tape, node);
        for (int i = 0; i < node->n_out; i++)
            drop_grad(node->out[i]);
    }
}

bool s2s_tape_find_nonfinite(struct s2s_tape *tape, struct s2s_nonfinite *where)
{
    const struct s2s_kernels *k = tape->device->kernels;
    for (struct s2s_node *node = tape->first; node; node = node->next)
        for (int i = 0; i < node->n_out; i++) {
            struct s2s_tensor *t = node->out[i];
            if (t->dtype != S2S_F32 || t->row_stride != s2s_tensor_cols(t))
                continue;
            struct s2s_k_reduce args = {
                .x = t->data, .n = s2s_tensor_numel(t), .what = S2S_REDUCE_NONFINITE};
            args.out = s2s_tape_scratch(tape, sizeof(double));
            args.workspace = s2s_tape_scratch(tape, k->reduce_workspace(&args));
            k->reduce(&tape->device->queue, &args);
            double count;
            k->copy_out(&tape->device->queue, &count, args.out, sizeof count);
            s2s_tape_scratch_end(tape);
            if (count > 0) {
                *where = (struct s2s_nonfinite){node->layer, node->op, i, (int64_t)count};
                return true;
            }
        }
    return false;
}

/* ---- segments ---- */

struct segment {
    struct s2s_tensor *(*fn)(struct s2s_tape *, void *, struct s2s_tensor *const *);
    void *ctx;
};

/* The child tape, empty; one level a nesting depth. */
static struct s2s_tape *child_tape(struct s2s_tape *tape, bool recording)
{
    if (!tape->child)
        tape->child = s2s_tape_new(tape->device, recording);
    s2s_tape_reset(tape->child);
    tape->child->recording = recording;
    return tape->child;
}

static void copy_tensor(struct s2s_tape *tape, const struct s2s_tensor *src, struct s2s_mat dst,
                        bool accumulate)
{
    tape->device->kernels->axpby(&tape->device->queue,
                                 &(struct s2s_k_axpby){.x = s2s_tensor_mat(src),
                                                       .y = dst,
                                                       .rows = s2s_tensor_rows(src),
                                                       .cols = s2s_tensor_cols(src),
                                                       .alpha = 1,
                                                       .beta = accumulate ? 1 : 0});
}

static void segment_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct segment *seg = node->saved;
    struct s2s_tape *child = child_tape(tape, true);
    s2s_tape_layer(child, "%s", node->layer);
    struct s2s_tensor *again = seg->fn(child, seg->ctx, node->in);
    if (again->needs_grad && !s2s_tape_grad_steal(again, node->out[0])) {
        bool accumulate;
        struct s2s_tensor *g = s2s_tape_grad(child, again, &accumulate);
        copy_tensor(child, s2s_tape_out_grad(node->out[0]), s2s_tensor_mat(g), accumulate);
    }
    s2s_tape_backward(child);
    /* the inputs belong to the parent: what the child wrote to them must outlive its headers */
    for (int i = 0; i < node->n_in; i++) {
        struct s2s_tensor *in = node->in[i];
        struct s2s_tensor *owner = in && in->root ? in->root : in;
        if (!owner || owner->param || !owner->grad)
            continue;
        struct s2s_tensor *g = s2s_tape_host_alloc(tape, sizeof *g);
        *g = *owner->grad;
        owner->grad = g;
    }
    child->first = child->last = NULL;
    s2s_tape_reset(child);
}

struct s2s_tensor *s2s_tape_segment(struct s2s_tape *tape,
                                    struct s2s_tensor *(*fn)(struct s2s_tape *, void *,
                                                             struct s2s_tensor *const *),
                                    void *ctx, int n_in, struct s2s_tensor *const *in)
{
    /* the child records what the parent would, only to learn whether a backward is needed:
     * parameters that fn uses are not among its inputs */
    struct s2s_tape *child = child_tape(tape, tape->recording);
    s2s_tape_layer(child, "%s", tape->layer);
    struct s2s_tensor *y = fn(child, ctx, in);
    bool needed = y->needs_grad;
    struct s2s_tensor *out = s2s_tape_tensor(tape, y->dtype, y->n_dims, y->shape);
    copy_tensor(tape, y, s2s_tensor_mat(out), false);
    child->first = child->last = NULL;
    s2s_tape_reset(child);
    if (needed) {
        struct segment *seg = s2s_tape_host_alloc(tape, sizeof *seg);
        *seg = (struct segment){fn, ctx};
        s2s_tape_push(tape, "segment", segment_backward, n_in, in, 1, &out)->saved = seg;
    }
    return out;
}
