/*
 * Linear maps between rows that are cut over ranks and columns that are: what all ranks' rows are
 * stands in scratch, and is gathered again for the gradients, so that the tape keeps only each
 * rank's own. Source: Megatron-LM's linear layers under sequence parallelism.
 */
#include "lib/tensor/tensor_internal.h"

enum { MAX_MAPS = 3 };

/* Scratch for `size` times the rows of t. */
static struct s2s_tensor all_rows(struct s2s_tape *tape, const struct s2s_tensor *t, int size)
{
    struct s2s_tensor all = {.dtype = t->dtype,
                             .n_dims = 2,
                             .shape = {s2s_tensor_rows(t) * size, s2s_tensor_cols(t)},
                             .row_stride = s2s_tensor_cols(t),
                             .device = t->device};
    all.data = s2s_tape_scratch(tape, (size_t)s2s_tensor_numel(&all) * s2s_dtype_size(all.dtype));
    return all;
}

static struct s2s_tensor gather(struct s2s_tape *tape, const struct s2s_tensor *t,
                                const struct s2s_group *group)
{
    struct s2s_tensor all = all_rows(tape, t, group->size);
    if (t->row_stride != s2s_tensor_cols(t) || t->consumed)
        S2S_BUG("%s: rows with gaps are gathered over %s", tape->layer, group->axis);
    group->ops->all_gather(group, tensor_queue(tape), all.data, t->data, s2s_tensor_numel(t),
                           t->dtype);
    return all;
}

/* ---- every rank's rows in ---- */

/* dx (+)= this rank's part of the sum of `all` over the ranks. */
static void scatter(struct s2s_tape *tape, const struct s2s_tensor *all, struct s2s_tensor *dx,
                    bool accumulate, const struct s2s_group *group)
{
    struct s2s_tensor sum = *dx;
    if (accumulate)
        sum.data = s2s_tape_scratch(tape, (size_t)s2s_tensor_numel(dx) * s2s_dtype_size(dx->dtype));
    group->ops->reduce_scatter(group, tensor_queue(tape), sum.data, all->data, s2s_tensor_numel(dx),
                               dx->dtype);
    if (accumulate)
        tensor_axpby(tape, 1, &sum, 1, dx);
}

/* node: in x, then w and b of each map; the last map's gradient comes first, as if each were an
 * operation of its own */
static void gather_linear_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_group *group = node->saved;
    struct s2s_tensor *x = node->in[0];
    bool wanted = false, accumulate = false;
    for (int i = 0; i < node->n_out; i++)
        wanted |= node->in[1 + 2 * i]->needs_grad;
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate), all_dx;
    if (dx) {
        all_dx = all_rows(tape, dx, group->size);
        for (int i = node->n_out - 1; i >= 0; i--)
            tensor_linear_dx(tape, s2s_tensor_mat(s2s_tape_out_grad(node->out[i])),
                             node->in[1 + 2 * i], &all_dx, i < node->n_out - 1);
        scatter(tape, &all_dx, dx, accumulate, group);
        s2s_tape_scratch_end(tape);
    }
    if (wanted) {
        const struct s2s_tensor all = gather(tape, x, group);
        for (int i = node->n_out - 1; i >= 0; i--)
            tensor_linear_dw(tape, s2s_tensor_mat(s2s_tape_out_grad(node->out[i])), &all,
                             node->in[1 + 2 * i]);
        s2s_tape_scratch_end(tape);
    }
    for (int i = node->n_out - 1; i >= 0; i--)
        tensor_bias_grad(tape, node->in[2 + 2 * i], s2s_tape_out_grad(node->out[i]));
}

void s2s_op_gather_linear(struct s2s_tape *tape, struct s2s_tensor *x,
                          const struct s2s_group *group, int n, struct s2s_tensor *const *w,
                          struct s2s_tensor *const *b, struct s2s_tensor **out)
{
    struct s2s_tensor *ins[1 + 2 * MAX_MAPS] = {x};
    if (n > MAX_MAPS)
        S2S_BUG("%s: %d maps of one tensor", tape->layer, n);
    tape->device->n_collectives++;
    const struct s2s_tensor all = gather(tape, x, group);
    for (int i = 0; i < n; i++) {
        ins[1 + 2 * i] = w[i];
        ins[2 + 2 * i] = b[i];
        out[i] = s2s_tape_matrix(tape, s2s_tensor_rows(&all), s2s_tensor_rows(w[i]));
        tensor_linear(tape, &all, w[i], b[i], out[i]);
    }
    s2s_tape_scratch_end(tape);
    if (!s2s_tape_needs(tape, 1 + 2 * n, ins))
        return;
    struct s2s_node *node =
        s2s_tape_push(tape, "gather_linear", gather_linear_backward, 1 + 2 * n, ins, n, out);
    node->saved = (void *)group;
    node->always = true;
}

/* ---- this rank's rows out ---- */

/* node: in x, w */
static void linear_scatter_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_tensor *x = node->in[0], *w = node->in[1];
    const struct s2s_tensor all = gather(tape, s2s_tape_out_grad(node->out[0]), node->saved);
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate);
    if (dx)
        tensor_linear_dx(tape, s2s_tensor_mat(&all), w, dx, accumulate);
    tensor_linear_dw(tape, s2s_tensor_mat(&all), x, w);
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_linear_scatter(struct s2s_tape *tape, struct s2s_tensor *x,
                                         struct s2s_tensor *w, const struct s2s_group *group)
{
    const int64_t rows = s2s_tensor_rows(x), out = s2s_tensor_rows(w);
    struct s2s_tensor *ins[] = {x, w};
    if (rows % group->size)
        S2S_BUG("%s: %lld rows over %d ranks", tape->layer, (long long)rows, group->size);
    tape->device->n_collectives++;
    struct s2s_tensor *y = s2s_tape_matrix(tape, rows / group->size, out);
    const struct s2s_tensor all = all_rows(tape, y, group->size);
    tensor_linear(tape, x, w, NULL, &all);
    group->ops->reduce_scatter(group, tensor_queue(tape), y->data, all.data, s2s_tensor_numel(y),
                               y->dtype);
    s2s_tape_scratch_end(tape);
    if (s2s_tape_needs(tape, 2, ins)) {
        struct s2s_node *node =
            s2s_tape_push(tape, "linear_scatter", linear_scatter_backward, 2, ins, 1, &y);
        node->saved = (void *)group;
        node->always = true;
    }
    return y;
}
