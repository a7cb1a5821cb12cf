/* Parts of a model that are run again in the backward instead of being remembered. */
#include "lib/base/mem.h"
#include "lib/tensor/tensor_internal.h"

struct segment {
    s2s_tape_fn *fn;
    void *ctx;
};

/* An empty tape of the device for one level of nesting; given back by leave. All tapes of a device
 * share them, since only one segment runs at a time. */
static struct s2s_tape *enter(struct s2s_tape *tape, bool recording)
{
    struct s2s_device *device = tape->device;
    if (device->depth == device->n_children) {
        device->children = s2s_xrealloc(device->children, (size_t)device->n_children + 1,
                                        sizeof *device->children);
        device->children[device->n_children++] = s2s_tape_new(device, recording);
    }
    struct s2s_tape *child = device->children[device->depth++];
    child->recording = recording;
    child->running = tape->running;
    s2s_tape_layer(child, "%s", tape->layer);
    return child;
}

/* Gradients of the inputs, which the child knows too, stay. */
static void leave(struct s2s_tape *child)
{
    tensor_tape_forget(child);
    child->device->depth--;
}

static struct s2s_tensor *owner_of_input(const struct s2s_node *node, int i)
{
    struct s2s_tensor *in = node->in[i];
    struct s2s_tensor *owner = in && in->root ? in->root : in;
    return owner && !owner->param ? owner : NULL;
}

/* The child may split an input anew: what parts it had become one whole first. */
static void set_parts_aside(struct s2s_tape *tape, struct s2s_node *node, struct s2s_tensor **parts)
{
    for (int i = 0; i < node->n_in; i++) {
        struct s2s_tensor *owner = owner_of_input(node, i);
        if (!owner || !owner->parts)
            continue;
        parts[i] = owner->parts;
        tensor_settle_grad(tape, owner);
        owner->parts = NULL;
    }
}

/* The inputs belong to the parent: what the child wrote to them must outlive its headers. */
static void adopt_gradients(struct s2s_tape *tape, struct s2s_tape *child, struct s2s_node *node,
                            struct s2s_tensor *const *parts)
{
    for (int i = 0; i < node->n_in; i++) {
        struct s2s_tensor *owner = owner_of_input(node, i);
        if (!owner)
            continue;
        tensor_settle_grad(child, owner);
        owner->parts = NULL;
        if (!owner->grad)
            continue;
        struct s2s_tensor *g = s2s_tape_host_alloc(tape, sizeof *g);
        *g = *owner->grad;
        owner->grad = g;
    }
    for (int i = 0; i < node->n_in; i++)
        if (parts[i])
            owner_of_input(node, i)->parts = parts[i];
}

static void segment_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct segment *seg = node->saved;
    struct s2s_tape *child = enter(tape, true);
    struct s2s_tensor *again[S2S_NODE_OUTPUTS] = {0}, *parts[S2S_NODE_INPUTS] = {0};
    set_parts_aside(tape, node, parts);
    seg->fn(child, seg->ctx, node->in, again);
    for (int i = 0; i < node->n_out; i++) {
        struct s2s_tensor *out = node->out[i];
        const struct s2s_tensor *grad = out->is_loss ? NULL : s2s_tape_out_grad(out);
        if (grad && again[i]->needs_grad && !s2s_tape_grad_steal(again[i], out))
            s2s_tape_seed_grad(child, again[i], grad);
    }
    s2s_tape_backward(child);
    adopt_gradients(tape, child, node, parts);
    leave(child);
}

void s2s_tape_segment(struct s2s_tape *tape, s2s_tape_fn *fn, void *ctx, int n_in,
                      struct s2s_tensor *const *in, int n_out, struct s2s_tensor **out,
                      bool trained)
{
    const bool record = s2s_tape_needs(tape, n_in, in) || (trained && tape->recording);
    struct s2s_tape *child = enter(tape, false);
    const int64_t n_collectives = tape->device->n_collectives;
    struct s2s_tensor *result[S2S_NODE_OUTPUTS] = {0}, *read[S2S_NODE_INPUTS];
    bool has_loss = false;
    for (int i = 0; i < n_in; i++)
        read[i] = in[i]; /* out may be in */
    fn(child, ctx, in, result);
    for (int i = 0; i < n_out; i++) {
        const struct s2s_tensor *y = result[i];
        out[i] = s2s_tape_tensor(tape, y->dtype, y->n_dims, y->shape);
        out[i]->is_loss = y->is_loss;
        has_loss |= y->is_loss;
        s2s_tensor_copy(out[i], y);
    }
    leave(child);
    if (!record)
        return;
    struct segment *seg = s2s_tape_host_alloc(tape, sizeof *seg);
    *seg = (struct segment){fn, ctx};
    struct s2s_node *node =
        s2s_tape_push(tape, "segment", segment_backward, n_in, read, n_out, out);
    node->saved = seg;
    node->always = has_loss || tape->device->n_collectives > n_collectives;
}
