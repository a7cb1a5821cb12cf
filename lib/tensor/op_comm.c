/*
 * Collectives on the tape, in conjugate pairs: what is summed on the way there is copied on the way
 * back, what is gathered is scattered. Source: Megatron-LM's mappings of tensor-parallel regions.
 */
#include "lib/tensor/tensor_internal.h"

/* Is there nobody to talk to? Else checks that x is something to send, and counts: a segment that
 * holds a collective runs again whatever flowed in. */
static bool alone(const struct s2s_tape *tape, const struct s2s_tensor *x,
                  const struct s2s_group *group)
{
    if (s2s_group_size(group) == 1)
        return true;
    if (x->row_stride != s2s_tensor_cols(x) || x->consumed)
        S2S_BUG("%s: a collective over %s of a tensor with gaps", tape->layer, group->axis);
    tape->device->n_collectives++;
    return false;
}

/* Ranks of a group record the same nodes: whether something is trained is everybody's. */
static struct s2s_node *record(struct s2s_tape *tape, const char *op,
                               void (*backward)(struct s2s_tape *, struct s2s_node *),
                               struct s2s_tensor *x, struct s2s_tensor *y, const void *saved)
{
    struct s2s_node *node = s2s_tape_push(tape, op, backward, 1, &x, 1, &y);
    node->always = true;
    node->saved = (void *)saved;
    return node;
}

/* dx (+)= g, where the gradient of the node's output, which g stands in, may become dx itself */
static void pass_back(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_tensor *x = node->in[0], *y = node->out[0];
    if (s2s_tape_grad_steal(x, y))
        return;
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate);
    tensor_axpby(tape, 1, s2s_tape_out_grad(y), accumulate ? 1 : 0, dx);
}

/* Where a collective of the backward writes: dx itself, or scratch to be added to it. */
struct home {
    struct s2s_tensor *dx, sum;
    bool accumulate;
};

static struct home home_of(struct s2s_tape *tape, struct s2s_tensor *x)
{
    struct home home = {.accumulate = false};
    home.dx = s2s_tape_grad(tape, x, &home.accumulate);
    home.sum = *home.dx;
    if (home.accumulate)
        home.sum.data = s2s_tape_scratch(tape, (size_t)s2s_tensor_numel(home.dx) *
                                                   s2s_dtype_size(home.dx->dtype));
    return home;
}

static void leave_home(struct s2s_tape *tape, const struct home *home)
{
    if (home->accumulate)
        tensor_axpby(tape, 1, &home->sum, 1, home->dx);
    s2s_tape_scratch_end(tape);
}

/* ---- copy | all-reduce ---- */

static void all_reduce(struct s2s_tape *tape, const struct s2s_group *group,
                       const struct s2s_tensor *t)
{
    group->ops->all_reduce(group, tensor_queue(tape), t->data, s2s_tensor_numel(t), t->dtype,
                           S2S_GROUP_SUM);
}

static void copy_to_group_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    all_reduce(tape, node->saved, s2s_tape_out_grad(node->out[0]));
    pass_back(tape, node);
}

struct s2s_tensor *s2s_op_copy_to_group(struct s2s_tape *tape, struct s2s_tensor *x,
                                        const struct s2s_group *group)
{
    if (alone(tape, x, group) || !s2s_tape_needs(tape, 1, &x))
        return x;
    /* the same values, but a gradient of its own */
    struct s2s_tensor *y = tensor_share(tape, x);
    y->kept = true;
    record(tape, "copy_to_group", copy_to_group_backward, x, y, group);
    return y;
}

/* ---- all-reduce | copy ---- */

static void all_reduce_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    pass_back(tape, node);
}

struct s2s_tensor *s2s_op_all_reduce(struct s2s_tape *tape, struct s2s_tensor *x,
                                     const struct s2s_group *group)
{
    if (alone(tape, x, group))
        return x;
    const bool needs = s2s_tape_needs(tape, 1, &x);
    struct s2s_tensor *y = NULL;
    if (tensor_is_free(x)) {
        y = tensor_take_over(tape, x);
    } else {
        y = s2s_tape_tensor(tape, x->dtype, x->n_dims, x->shape);
        s2s_tensor_copy(y, x);
    }
    all_reduce(tape, group, y);
    if (needs)
        record(tape, "all_reduce", all_reduce_backward, x, y, group)->always = false;
    return y;
}

/* ---- all-gather | reduce-scatter of rows ---- */

static void all_gather_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_group *group = node->saved;
    struct home home = home_of(tape, node->in[0]);
    group->ops->reduce_scatter(group, tensor_queue(tape), home.sum.data,
                               s2s_tape_out_grad(node->out[0])->data, s2s_tensor_numel(home.dx),
                               home.dx->dtype);
    leave_home(tape, &home);
}

/* The rows of `all` that rank has. */
static struct s2s_tensor rows_of_rank(const struct s2s_tensor *all, int rank, int64_t rows)
{
    struct s2s_tensor part = *all;
    part.n_dims = 2;
    part.shape[0] = rows;
    part.shape[1] = s2s_tensor_cols(all);
    part.data =
        (char *)all->data + (size_t)(rank * rows * part.shape[1]) * s2s_dtype_size(all->dtype);
    return part;
}

static void slice_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_group *group = node->saved;
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, node->in[0], &accumulate);
    struct s2s_tensor mine =
        rows_of_rank(s2s_tape_out_grad(node->out[0]), group->rank, s2s_tensor_rows(dx));
    tensor_axpby(tape, 1, &mine, accumulate ? 1 : 0, dx);
}

static struct s2s_tensor *gathered(struct s2s_tape *tape, const struct s2s_tensor *x,
                                   const struct s2s_group *group)
{
    int64_t shape[] = {s2s_tensor_rows(x) * group->size, s2s_tensor_cols(x)};
    struct s2s_tensor *y = s2s_tape_tensor(tape, x->dtype, 2, shape);
    group->ops->all_gather(group, tensor_queue(tape), y->data, x->data, s2s_tensor_numel(x),
                           x->dtype);
    return y;
}

struct s2s_tensor *s2s_op_all_gather(struct s2s_tape *tape, struct s2s_tensor *x,
                                     const struct s2s_group *group, bool same)
{
    if (alone(tape, x, group))
        return x;
    struct s2s_tensor *y = gathered(tape, x, group);
    if (!s2s_tape_needs(tape, 1, &x))
        return y;
    if (same)
        record(tape, "all_gather", slice_backward, x, y, group)->always = false;
    else
        record(tape, "all_gather", all_gather_backward, x, y, group);
    return y;
}

/* ---- reduce-scatter | all-gather of rows ---- */

static void reduce_scatter_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_group *group = node->saved;
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    struct home home = home_of(tape, node->in[0]);
    group->ops->all_gather(group, tensor_queue(tape), home.sum.data, dy->data, s2s_tensor_numel(dy),
                           dy->dtype);
    leave_home(tape, &home);
}

struct s2s_tensor *s2s_op_reduce_scatter(struct s2s_tape *tape, struct s2s_tensor *x,
                                         const struct s2s_group *group)
{
    if (alone(tape, x, group))
        return x;
    int64_t rows = s2s_tensor_rows(x), cols = s2s_tensor_cols(x);
    if (rows % group->size)
        S2S_BUG("%s: %lld rows over %d ranks", tape->layer, (long long)rows, group->size);
    struct s2s_tensor *y =
        s2s_tape_tensor(tape, x->dtype, 2, (int64_t[]){rows / group->size, cols});
    group->ops->reduce_scatter(group, tensor_queue(tape), y->data, x->data, s2s_tensor_numel(y),
                               x->dtype);
    if (s2s_tape_needs(tape, 1, &x))
        record(tape, "reduce_scatter", reduce_scatter_backward, x, y, group);
    return y;
}

/* ---- all-to-all, both ways ---- */

struct exchange {
    const struct s2s_group *group;
    int64_t *send, *recv; /* elements, [size] */
};

static void all_to_all(struct s2s_tape *tape, const struct exchange *e, void *recv,
                       const void *send, bool back, enum s2s_dtype dtype)
{
    e->group->ops->all_to_all(e->group, tensor_queue(tape), recv, back ? e->send : e->recv, send,
                              back ? e->recv : e->send, dtype);
}

static void all_to_all_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct home home = home_of(tape, node->in[0]);
    all_to_all(tape, node->saved, home.sum.data, s2s_tape_out_grad(node->out[0])->data, true,
               home.dx->dtype);
    leave_home(tape, &home);
}

struct s2s_tensor *s2s_op_all_to_all(struct s2s_tape *tape, struct s2s_tensor *x,
                                     const struct s2s_group *group, const int64_t *send,
                                     const int64_t *recv)
{
    if (alone(tape, x, group))
        return x;
    const int64_t cols = s2s_tensor_cols(x);
    const size_t bytes = (size_t)group->size * sizeof(int64_t);
    struct exchange *e = s2s_tape_host_alloc(tape, sizeof *e);
    *e = (struct exchange){group, s2s_tape_host_alloc(tape, bytes),
                           s2s_tape_host_alloc(tape, bytes)};
    int64_t sent = 0, received = 0;
    for (int i = 0; i < group->size; i++) {
        e->send[i] = send[i] * cols;
        e->recv[i] = recv[i] * cols;
        sent += send[i];
        received += recv[i];
    }
    if (sent != s2s_tensor_rows(x))
        S2S_BUG("%s: %lld rows for the ranks of %s, of %lld", tape->layer, (long long)sent,
                group->axis, (long long)s2s_tensor_rows(x));
    struct s2s_tensor *y = s2s_tape_tensor(tape, x->dtype, 2, (int64_t[]){received, cols});
    all_to_all(tape, e, y->data, x->data, false, x->dtype);
    if (s2s_tape_needs(tape, 1, &x))
        record(tape, "all_to_all", all_to_all_backward, x, y, e);
    return y;
}
