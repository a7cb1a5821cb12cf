/* Dropout: what is left out follows from names of rows, so the backward draws it again. */
#include "lib/tensor/tensor_internal.h"

struct saved {
    struct s2s_draw draw;
    int64_t first;
};

struct s2s_draw tensor_draw(const struct s2s_dropout *drop)
{
    if (!drop || drop->rate <= 0 || !drop->rows)
        return (struct s2s_draw){.rows = NULL};
    return (struct s2s_draw){drop->rows->data, drop->site, drop->rate};
}

static void leave_out(struct s2s_tape *tape, const struct saved *saved, const struct s2s_tensor *x,
                      const struct s2s_tensor *y, bool accumulate)
{
    tensor_k(tape)->dropout(tensor_queue(tape), &(struct s2s_k_dropout){.x = s2s_tensor_mat(x),
                                                                        .y = s2s_tensor_mat(y),
                                                                        .rows = s2s_tensor_rows(x),
                                                                        .cols = s2s_tensor_cols(x),
                                                                        .first = saved->first,
                                                                        .draw = saved->draw,
                                                                        .accumulate = accumulate});
}

static void dropout_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    bool accumulate = false;
    if (s2s_tape_grad_steal(node->in[0], node->out[0])) {
        leave_out(tape, node->saved, dy, dy, false);
        return;
    }
    struct s2s_tensor *dx = s2s_tape_grad(tape, node->in[0], &accumulate);
    leave_out(tape, node->saved, dy, dx, accumulate);
}

struct s2s_tensor *s2s_op_dropout(struct s2s_tape *tape, struct s2s_tensor *x,
                                  const struct s2s_dropout *drop)
{
    struct saved saved = {tensor_draw(drop), drop->first};
    if (!saved.draw.rows)
        return x;
    tensor_check(tape, "dropout", x, s2s_tensor_rows(drop->rows), -1);
    const bool record = s2s_tape_needs(tape, 1, &x);
    struct s2s_tensor *y = tensor_is_free(x) && !drop->keeps
                               ? tensor_take_over(tape, x)
                               : s2s_tape_tensor(tape, x->dtype, x->n_dims, x->shape);
    leave_out(tape, &saved, x, y, false);
    if (record) {
        struct saved *kept = s2s_tape_host_alloc(tape, sizeof *kept);
        *kept = saved;
        s2s_tape_push(tape, "dropout", dropout_backward, 1, &x, 1, &y)->saved = kept;
    }
    return y;
}
