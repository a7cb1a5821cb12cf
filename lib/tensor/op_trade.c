/* Rows that ranks have of sequences, traded for columns of all rows, and back. */
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/tensor/tensor_internal.h"

/* ---- matrices ---- */

struct s2s_mat tensor_scratch_mat(struct s2s_tape *tape, int64_t rows, int64_t cols,
                                  enum s2s_dtype dtype)
{
    void *data = s2s_tape_scratch(tape, (size_t)(rows * cols) * s2s_dtype_size(dtype));
    return (struct s2s_mat){data, cols, dtype};
}

struct s2s_mat tensor_mat_from(struct s2s_mat mat, int64_t row, int64_t col)
{
    if (mat.data)
        mat.data = (char *)mat.data + (size_t)(row * mat.stride + col) * s2s_dtype_size(mat.dtype);
    return mat;
}

void tensor_mat_copy(struct s2s_tape *tape, struct s2s_mat dst, struct s2s_mat src, int64_t rows,
                     int64_t cols)
{
    tensor_k(tape)->copy(tensor_queue(tape),
                         &(struct s2s_k_copy){.src = src, .dst = dst, .rows = rows, .cols = cols});
}

void tensor_mat_add(struct s2s_tape *tape, struct s2s_mat dst, struct s2s_mat src, int64_t rows,
                    int64_t cols)
{
    tensor_k(tape)->axpby(
        tensor_queue(tape),
        &(struct s2s_k_axpby){
            .x = src, .z = dst, .y = dst, .rows = rows, .cols = cols, .alpha = 1, .beta = 1});
}

/* ---- on the way ---- */

void tensor_order_rows(struct s2s_tape *tape, const struct tensor_trade *trade, struct s2s_mat dst,
                       struct s2s_mat src, int64_t cols, bool back)
{
    const struct s2s_k_rows args = {.dst = dst,
                                    .src = src,
                                    .idx = trade->order,
                                    .n = trade->n * trade->group->size,
                                    .cols = cols};
    if (back)
        tensor_k(tape)->scatter_rows(tensor_queue(tape), &args);
    else
        tensor_k(tape)->gather_rows(tensor_queue(tape), &args);
}

/* n elements to and from each rank. */
static void swap(struct s2s_tape *tape, const struct s2s_group *group, struct s2s_mat recv,
                 struct s2s_mat send, int64_t n)
{
    int64_t *counts = s2s_xcalloc((size_t)group->size, sizeof *counts);
    for (int r = 0; r < group->size; r++)
        counts[r] = n;
    group->ops->all_to_all(group, tensor_queue(tape), recv.data, counts, send.data, counts,
                           send.dtype);
    free(counts);
}

void tensor_rows_to_columns(struct s2s_tape *tape, const struct tensor_trade *trade,
                            const struct tensor_part *parts, int n_parts, struct s2s_mat whole)
{
    const int64_t n = trade->n, rows = n * trade->group->size;
    struct s2s_mat send = tensor_scratch_mat(tape, rows, whole.stride, whole.dtype);
    struct s2s_mat recv = tensor_scratch_mat(tape, rows, whole.stride, whole.dtype);
    for (int r = 0; r < trade->group->size; r++)
        for (int i = 0; i < n_parts; i++) {
            const struct tensor_part *p = &parts[i];
            tensor_mat_copy(tape, tensor_mat_from(send, r * n, p->at),
                            tensor_mat_from(p->mat, 0, r / p->sharing * p->width), n, p->width);
        }
    swap(tape, trade->group, recv, send, n * whole.stride);
    tensor_order_rows(tape, trade, whole, recv, whole.stride, false);
}

struct s2s_mat tensor_columns_to_rows(struct s2s_tape *tape, const struct tensor_trade *trade,
                                      struct s2s_mat whole)
{
    const int64_t rows = trade->n * trade->group->size;
    struct s2s_mat send = tensor_scratch_mat(tape, rows, whole.stride, whole.dtype);
    struct s2s_mat recv = tensor_scratch_mat(tape, rows, whole.stride, whole.dtype);
    tensor_order_rows(tape, trade, send, whole, whole.stride, true);
    swap(tape, trade->group, recv, send, trade->n * whole.stride);
    return recv;
}

/* ---- rows to columns ---- */

struct traded {
    struct tensor_trade trade;
    int64_t width; /* of y, or of each rank's columns */
    int n_parts;
    struct tensor_part parts[S2S_TRADE_PARTS];
};

static struct traded *remember(struct s2s_tape *tape, const struct s2s_trade *trade)
{
    struct traded *t = s2s_tape_host_alloc(tape, sizeof *t);
    t->trade = (struct tensor_trade){trade->group, trade->n, trade->order->data};
    return t;
}

/* Columns that several ranks had get the sum of what these have for them. */
static void rows_to_columns_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct traded *t = node->saved;
    const int64_t n = t->trade.n;
    const struct s2s_mat recv =
        tensor_columns_to_rows(tape, &t->trade, s2s_tensor_mat(s2s_tape_out_grad(node->out[0])));
    bool accumulate;
    const struct s2s_tensor *dx = s2s_tape_grad(tape, node->in[0], &accumulate);
    int64_t begin = 0; /* of a part's columns in x */
    for (int i = 0; i < t->n_parts; i++) {
        const struct tensor_part *p = &t->parts[i];
        for (int r = 0; dx && r < t->trade.group->size; r++) {
            struct s2s_mat dst =
                tensor_mat_from(s2s_tensor_mat(dx), 0, begin + r / p->sharing * p->width);
            struct s2s_mat src = tensor_mat_from(recv, r * n, p->at);
            if (accumulate || r % p->sharing)
                tensor_mat_add(tape, dst, src, n, p->width);
            else
                tensor_mat_copy(tape, dst, src, n, p->width);
        }
        begin += t->trade.group->size / p->sharing * p->width;
    }
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_rows_to_columns(struct s2s_tape *tape, struct s2s_tensor *x,
                                          const struct s2s_trade *trade,
                                          const struct s2s_trade_part *parts, int n_parts)
{
    const int size = trade->group->size;
    struct traded *t = remember(tape, trade);
    int64_t begin = 0;
    for (int i = 0; i < n_parts; i++) {
        t->parts[i] = (struct tensor_part){tensor_mat_from(s2s_tensor_mat(x), 0, begin),
                                           parts[i].width, t->width, parts[i].sharing};
        begin += size / parts[i].sharing * parts[i].width;
        t->width += parts[i].width;
    }
    t->n_parts = n_parts;
    if (begin != s2s_tensor_cols(x) || s2s_tensor_rows(x) != trade->n)
        S2S_BUG("%s: [%lld, %lld] traded between ranks that have [%lld, %lld]", tape->layer,
                (long long)s2s_tensor_rows(x), (long long)s2s_tensor_cols(x), (long long)trade->n,
                (long long)begin);
    struct s2s_tensor *y =
        s2s_tape_tensor(tape, x->dtype, 2, (int64_t[]){trade->n * size, t->width});
    tensor_rows_to_columns(tape, &t->trade, t->parts, n_parts, s2s_tensor_mat(y));
    s2s_tape_scratch_end(tape);
    tape->device->n_collectives++;
    if (s2s_tape_needs(tape, 1, &x)) {
        struct s2s_node *node =
            s2s_tape_push(tape, "rows_to_columns", rows_to_columns_backward, 1, &x, 1, &y);
        node->saved = t;
        node->always = true;
    }
    return y;
}

/* ---- columns to rows ---- */

static void columns_to_rows_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct traded *t = node->saved;
    const int64_t rows = t->trade.n * t->trade.group->size;
    const struct tensor_part part = {s2s_tensor_mat(s2s_tape_out_grad(node->out[0])), t->width, 0,
                                     1};
    bool accumulate;
    const struct s2s_tensor *dx = s2s_tape_grad(tape, node->in[0], &accumulate);
    /* all ranks trade, whoever wants the gradient */
    struct s2s_mat whole = tensor_scratch_mat(tape, rows, t->width, part.mat.dtype);
    tensor_rows_to_columns(tape, &t->trade, &part, 1, whole);
    if (dx && accumulate)
        tensor_mat_add(tape, s2s_tensor_mat(dx), whole, rows, t->width);
    else if (dx)
        tensor_mat_copy(tape, s2s_tensor_mat(dx), whole, rows, t->width);
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_columns_to_rows(struct s2s_tape *tape, struct s2s_tensor *x,
                                          const struct s2s_trade *trade)
{
    const int size = trade->group->size;
    struct traded *t = remember(tape, trade);
    t->width = s2s_tensor_cols(x);
    if (s2s_tensor_rows(x) != trade->n * size || x->row_stride != t->width)
        S2S_BUG("%s: %lld rows come back to %d ranks of %lld", tape->layer,
                (long long)s2s_tensor_rows(x), size, (long long)trade->n);
    struct s2s_tensor *y =
        s2s_tape_tensor(tape, x->dtype, 2, (int64_t[]){trade->n, size * t->width});
    const struct s2s_mat recv = tensor_columns_to_rows(tape, &t->trade, s2s_tensor_mat(x));
    for (int r = 0; r < size; r++)
        tensor_mat_copy(tape, tensor_mat_from(s2s_tensor_mat(y), 0, r * t->width),
                        tensor_mat_from(recv, r * trade->n, 0), trade->n, t->width);
    s2s_tape_scratch_end(tape);
    tape->device->n_collectives++;
    if (s2s_tape_needs(tape, 1, &x)) {
        struct s2s_node *node =
            s2s_tape_push(tape, "columns_to_rows", columns_to_rows_backward, 1, &x, 1, &y);
        node->saved = t;
        node->always = true;
    }
    return y;
}

/* ---- parts of parameters ---- */

struct ranges {
    int n;
    struct s2s_range list[S2S_TRADE_PARTS];
};

/* A tensor as a matrix with a row for each of its first dimension. */
static struct s2s_mat by_first(const struct s2s_tensor *t)
{
    return (struct s2s_mat){t->data, t->shape[0] ? s2s_tensor_numel(t) / t->shape[0] : 0, t->dtype};
}

static void ranges_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct ranges *r = node->saved;
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, node->in[0], &accumulate);
    const struct s2s_mat dy = by_first(s2s_tape_out_grad(node->out[0]));
    int64_t at = 0;
    if (!accumulate)
        tensor_zero(tape, dx);
    for (int i = 0; i < r->n; at += r->list[i++].n)
        tensor_mat_add(tape, tensor_mat_from(by_first(dx), r->list[i].begin, 0),
                       tensor_mat_from(dy, at, 0), r->list[i].n, dy.stride);
}

struct s2s_tensor *s2s_op_ranges(struct s2s_tape *tape, struct s2s_tensor *x,
                                 const struct s2s_range *ranges, int n)
{
    struct ranges *r = s2s_tape_host_alloc(tape, sizeof *r);
    struct s2s_tensor shape = *x;
    int64_t at = 0;
    shape.shape[0] = 0;
    r->n = n;
    for (int i = 0; i < n; i++) {
        r->list[i] = ranges[i];
        shape.shape[0] += ranges[i].n;
    }
    struct s2s_tensor *y = s2s_tape_tensor(tape, x->dtype, x->n_dims, shape.shape);
    const struct s2s_mat src = by_first(x);
    for (int i = 0; i < n; at += ranges[i++].n)
        tensor_mat_copy(tape, tensor_mat_from(by_first(y), at, 0),
                        tensor_mat_from(src, ranges[i].begin, 0), ranges[i].n, src.stride);
    if (s2s_tape_needs(tape, 1, &x))
        s2s_tape_push(tape, "ranges", ranges_backward, 1, &x, 1, &y)->saved = r;
    return y;
}
