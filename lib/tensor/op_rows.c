/* Rows chosen by number: embeddings, gather, and audio put into the slots of a text. */
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/tensor/tensor_internal.h"

/* Tokens sorted by their ids, on the tape: rows [n_ids], starts [n_ids + 1], order. */
struct embedding_saved {
    const int32_t *rows, *starts, *order;
    int64_t n_ids;
    float scale;
};

static void embedding_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct embedding_saved *saved = node->saved;
    bool accumulate;
    struct s2s_tensor *dtable = s2s_tape_grad(tape, node->in[0], &accumulate);
    if (!accumulate)
        tensor_zero(tape, dtable);
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    tensor_k(tape)->embedding_backward(
        tensor_queue(tape), &(struct s2s_k_embedding_backward){.dtable = s2s_tensor_mat(dtable),
                                                               .dy = s2s_tensor_mat(dy),
                                                               .rows = saved->rows,
                                                               .starts = saved->starts,
                                                               .order = saved->order,
                                                               .n_ids = saved->n_ids,
                                                               .cols = s2s_tensor_cols(dy),
                                                               .scale = saved->scale});
}

struct token {
    int32_t id, place;
};

static int compare_tokens(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* All but negative ids and skip_id. */
static struct embedding_saved sort_tokens(struct s2s_tape *tape, const int32_t *ids, int64_t n,
                                          int32_t skip_id)
{
    struct token *tokens = s2s_xmalloc((size_t)n * sizeof *tokens);
    int32_t *host = s2s_xmalloc((size_t)(3 * n + 1) * sizeof *host), *starts, *order;
    int64_t n_tokens = 0, n_ids = 0;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] != skip_id)
            tokens[n_tokens++] = (struct token){ids[i], (int32_t)i};
    qsort(tokens, (size_t)n_tokens, sizeof *tokens, compare_tokens);
    for (int64_t i = 0; i < n_tokens; i++)
        n_ids += i == 0 || tokens[i].id != tokens[i - 1].id;
    starts = host + n_ids;
    order = starts + n_ids + 1;
    int64_t r = 0;
    for (int64_t i = 0; i < n_tokens; i++) {
        if (i == 0 || tokens[i].id != tokens[i - 1].id) {
            host[r] = tokens[i].id;
            starts[r++] = (int32_t)i;
        }
        order[i] = tokens[i].place;
    }
    starts[n_ids] = (int32_t)n_tokens;
    const int32_t *all = s2s_tape_upload_i32(tape, host, 2 * n_ids + 1 + n_tokens)->data;
    free(tokens);
    free(host);
    return (struct embedding_saved){
        .rows = all, .starts = all + n_ids, .order = all + 2 * n_ids + 1, .n_ids = n_ids};
}

struct s2s_tensor *s2s_op_embedding(struct s2s_tape *tape, struct s2s_tensor *table,
                                    const int32_t *ids, int64_t n, float scale, int32_t skip_id)
{
    tensor_check(tape, "embedding", table, -1, -1);
    int64_t cols = s2s_tensor_cols(table);
    struct s2s_tensor *y = s2s_tape_matrix(tape, n, cols);
    struct s2s_tensor *on_device = s2s_tape_upload_i32(tape, ids, n);
    tensor_k(tape)->embedding(tensor_queue(tape),
                              &(struct s2s_k_embedding){.table = s2s_tensor_mat(table),
                                                        .y = s2s_tensor_mat(y),
                                                        .ids = on_device->data,
                                                        .n = n,
                                                        .cols = cols,
                                                        .scale = scale});
    if (s2s_tape_needs(tape, 1, &table)) {
        struct embedding_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
        *saved = sort_tokens(tape, ids, n, skip_id);
        saved->scale = scale;
        s2s_tape_push(tape, "embedding", embedding_backward, 1, &table, 1, &y)->saved = saved;
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
        tensor_zero(tape, dx);
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
    const size_t bytes = (size_t)(n * cols) * s2s_dtype_size(rows->dtype);
    zeros.data = s2s_tape_scratch(tape, bytes);
    zeros.row_stride = cols;
    tensor_k(tape)->zero(tensor_queue(tape), zeros.data, bytes);
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
