/* Rows chosen by number: embeddings, gather, and audio put into the slots of a text. */
#include "lib/tensor/tensor_internal.h"

struct embedding_saved {
    float scale;
    int32_t skip_id;
};

static struct s2s_k_embedding embedding_args(struct s2s_mat table, struct s2s_mat y,
                                             const struct s2s_tensor *ids, int64_t cols,
                                             float scale, int32_t skip_id)
{
    return (struct s2s_k_embedding){.table = table,
                                    .y = y,
                                    .ids = ids->data,
                                    .n = s2s_tensor_numel(ids),
                                    .cols = cols,
                                    .skip_id = skip_id,
                                    .scale = scale};
}

static void embedding_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct embedding_saved *saved = node->saved;
    bool accumulate;
    struct s2s_tensor *table = node->in[0];
    struct s2s_tensor *dtable = s2s_tape_grad(tape, table, &accumulate);
    if (!accumulate)
        tensor_k(tape)->zero(tensor_queue(tape), dtable->data,
                             (size_t)s2s_tensor_numel(dtable) * sizeof(float));
    struct s2s_k_embedding args =
        embedding_args(s2s_tensor_mat(dtable), s2s_tensor_mat(s2s_tape_out_grad(node->out[0])),
                       node->in[1], s2s_tensor_cols(table), saved->scale, saved->skip_id);
    tensor_k(tape)->embedding_backward(tensor_queue(tape), &args);
}

struct s2s_tensor *s2s_op_embedding(struct s2s_tape *tape, struct s2s_tensor *table,
                                    struct s2s_tensor *ids, float scale, int32_t skip_id)
{
    tensor_check(tape, "embedding", table, -1, -1);
    struct s2s_tensor *y = s2s_tape_matrix(tape, s2s_tensor_numel(ids), s2s_tensor_cols(table));
    struct s2s_k_embedding args = embedding_args(s2s_tensor_mat(table), s2s_tensor_mat(y), ids,
                                                 s2s_tensor_cols(table), scale, skip_id);
    tensor_k(tape)->embedding(tensor_queue(tape), &args);
    struct s2s_tensor *ins[] = {table, ids};
    if (s2s_tape_needs(tape, 2, ins)) {
        struct embedding_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
        *saved = (struct embedding_saved){scale, skip_id};
        s2s_tape_push(tape, "embedding", embedding_backward, 2, ins, 1, &y)->saved = saved;
    }
    return y;
}

static struct s2s_k_rows rows_args(const struct s2s_tensor *dst, const struct s2s_tensor *src,
                                   const struct s2s_tensor *idx, bool accumulate)
{
    return (struct s2s_k_rows){.dst = s2s_tensor_mat(dst),
                               .src = s2s_tensor_mat(src),
                               .idx = idx->data,
                               .n = s2s_tensor_numel(idx),
                               .cols = s2s_tensor_cols(src),
                               .accumulate = accumulate};
}

static void gather_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, node->in[0], &accumulate);
    if (!accumulate)
        tensor_k(tape)->zero(tensor_queue(tape), dx->data,
                             (size_t)s2s_tensor_numel(dx) * sizeof(float));
    struct s2s_k_rows args = rows_args(dx, s2s_tape_out_grad(node->out[0]), node->in[1], true);
    tensor_k(tape)->scatter_rows(tensor_queue(tape), &args);
}

struct s2s_tensor *s2s_op_gather_rows(struct s2s_tape *tape, struct s2s_tensor *x,
                                      struct s2s_tensor *idx)
{
    tensor_check(tape, "gather", x, -1, -1);
    struct s2s_tensor *y = s2s_tape_matrix(tape, s2s_tensor_numel(idx), s2s_tensor_cols(x));
    struct s2s_k_rows args = rows_args(y, x, idx, false);
    tensor_k(tape)->gather_rows(tensor_queue(tape), &args);
    struct s2s_tensor *ins[] = {x, idx};
    if (s2s_tape_needs(tape, 2, ins))
        s2s_tape_push(tape, "gather", gather_backward, 2, ins, 1, &y);
    return y;
}

static void splice_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_tensor *x = node->in[0], *rows = node->in[1], *idx = node->in[2];
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    bool accumulate;
    struct s2s_tensor *drows = s2s_tape_grad(tape, rows, &accumulate);
    if (drows) {
        struct s2s_k_rows args = rows_args(drows, dy, idx, accumulate);
        tensor_k(tape)->gather_rows(tensor_queue(tape), &args);
    }
    if (!x->needs_grad)
        return;
    /* replaced rows get nothing: zero them in the gradient that passes through */
    int64_t n = s2s_tensor_numel(idx), cols = s2s_tensor_cols(x);
    struct s2s_tensor zeros = *rows;
    zeros.data = s2s_tape_scratch(tape, (size_t)(n * cols) * sizeof(float));
    zeros.row_stride = cols;
    tensor_k(tape)->zero(tensor_queue(tape), zeros.data, (size_t)(n * cols) * sizeof(float));
    struct s2s_k_rows args = rows_args(dy, &zeros, idx, false);
    tensor_k(tape)->scatter_rows(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
    if (!s2s_tape_grad_steal(x, node->out[0])) {
        struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate);
        tensor_axpby(tape, 1, dy, accumulate ? 1 : 0, dx);
    }
}

struct s2s_tensor *s2s_op_splice_rows(struct s2s_tape *tape, struct s2s_tensor *x,
                                      struct s2s_tensor *rows, struct s2s_tensor *idx)
{
    tensor_check(tape, "splice", x, -1, -1);
    tensor_check(tape, "splice", rows, s2s_tensor_numel(idx), s2s_tensor_cols(x));
    struct s2s_tensor *ins[] = {x, rows, idx};
    bool record = s2s_tape_needs(tape, 3, ins);
    struct s2s_tensor *y = tensor_take_over(tape, x);
    struct s2s_k_rows args = rows_args(y, rows, idx, false);
    tensor_k(tape)->scatter_rows(tensor_queue(tape), &args);
    if (record)
        s2s_tape_push(tape, "splice", splice_backward, 3, ins, 1, &y);
    return y;
}
