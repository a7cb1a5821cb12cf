/* Linear maps, sums, rows. */
#include <stddef.h>

#include "lib/tensor/tensor_internal.h"

void tensor_check(const struct s2s_tape *tape, const char *op, const struct s2s_tensor *tensor,
                  int64_t rows, int64_t cols)
{
    int64_t r = s2s_tensor_rows(tensor), c = s2s_tensor_cols(tensor);
    if (tensor->dtype != S2S_F32 && tensor->dtype != tape->device->dtype)
        S2S_BUG("%s: %s: a %s tensor on a device that works in %s", tape->layer, op,
                s2s_dtype_name(tensor->dtype), s2s_dtype_name(tape->device->dtype));
    if ((rows >= 0 && r != rows) || (cols >= 0 && c != cols))
        S2S_BUG("%s: %s: a tensor of [%lld, %lld] where [%lld, %lld] belongs", tape->layer, op,
                (long long)r, (long long)c, (long long)rows, (long long)cols);
}

void tensor_axpby(struct s2s_tape *tape, float alpha, const struct s2s_tensor *x, float beta,
                  const struct s2s_tensor *y)
{
    tensor_k(tape)->axpby(tensor_queue(tape),
                          &(struct s2s_k_axpby){.x = s2s_tensor_mat(x),
                                                .z = s2s_tensor_mat(beta != 0 ? y : NULL),
                                                .y = s2s_tensor_mat(y),
                                                .rows = s2s_tensor_rows(x),
                                                .cols = s2s_tensor_cols(x),
                                                .alpha = alpha,
                                                .beta = beta});
}

void tensor_zero(struct s2s_tape *tape, struct s2s_tensor *tensor)
{
    tensor_k(tape)->fill(tensor_queue(tape), &(struct s2s_k_fill){.dst = s2s_tensor_mat(tensor),
                                                                  .rows = s2s_tensor_rows(tensor),
                                                                  .cols = s2s_tensor_cols(tensor)});
}

bool tensor_is_free(const struct s2s_tensor *x)
{
    return !x->kept && !x->consumed && !x->param && !x->root && !x->lent &&
           x->row_stride == s2s_tensor_cols(x);
}

struct s2s_tensor *tensor_alias(struct s2s_tape *tape, const struct s2s_tensor *x)
{
    struct s2s_tensor *y = s2s_tape_host_alloc(tape, sizeof *y);
    *y = (struct s2s_tensor){.dtype = x->dtype,
                             .n_dims = x->n_dims,
                             .row_stride = x->row_stride,
                             .data = x->data,
                             .device = x->device};
    for (int i = 0; i < x->n_dims; i++)
        y->shape[i] = x->shape[i];
    return y;
}

struct s2s_tensor *tensor_share(struct s2s_tape *tape, struct s2s_tensor *x)
{
    struct s2s_tensor *y = tensor_alias(tape, x);
    if (x->lent) {
        y->next_alias = x->next_alias;
        x->next_alias = y;
    }
    return y;
}

struct s2s_tensor *tensor_take_over(struct s2s_tape *tape, struct s2s_tensor *x)
{
    if (x->kept || (x->root && x->root->kept) || x->consumed || x->param || x->lent)
        S2S_BUG("%s: the memory of a tensor that is still read is taken over", tape->layer);
    struct s2s_tensor *y = tensor_alias(tape, x);
    x->consumed = true;
    if (x->root)
        x->root->consumed = true;
    return y;
}

void tensor_sum(struct s2s_tape *tape, struct s2s_tensor *scalar, const float *x, int64_t n)
{
    struct s2s_k_reduce args = {.x = {(float *)x, n, S2S_F32},
                                .out = scalar->data,
                                .rows = 1,
                                .cols = n,
                                .what = S2S_REDUCE_SUM};
    args.workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->reduce_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->reduce(tensor_queue(tape), &args);
}

/* ---- linear ---- */

void tensor_linear(struct s2s_tape *tape, const struct s2s_tensor *x, const struct s2s_tensor *w,
                   const struct s2s_tensor *b, const struct s2s_tensor *y)
{
    tensor_check(tape, "linear", x, -1, -1);
    tensor_check(tape, "linear", w, -1, s2s_tensor_cols(x));
    if (b)
        tensor_check(tape, "linear", b, 1, s2s_tensor_rows(w));
    tensor_k(tape)->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = s2s_tensor_mat(x),
                                                                  .b = s2s_tensor_mat(w),
                                                                  .c = s2s_tensor_mat(y),
                                                                  .bias = s2s_tensor_mat(b),
                                                                  .m = s2s_tensor_rows(x),
                                                                  .n = s2s_tensor_rows(w),
                                                                  .k = s2s_tensor_cols(x),
                                                                  .trans_b = true,
                                                                  .alpha = 1});
}

void tensor_linear_dx(struct s2s_tape *tape, struct s2s_mat dy, const struct s2s_tensor *w,
                      const struct s2s_tensor *dx, bool accumulate)
{
    tensor_k(tape)->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = dy,
                                                                  .b = s2s_tensor_mat(w),
                                                                  .c = s2s_tensor_mat(dx),
                                                                  .m = s2s_tensor_rows(dx),
                                                                  .n = s2s_tensor_cols(dx),
                                                                  .k = s2s_tensor_rows(w),
                                                                  .alpha = 1,
                                                                  .accumulate = accumulate});
}

void tensor_linear_dw(struct s2s_tape *tape, struct s2s_mat dy, const struct s2s_tensor *x,
                      struct s2s_tensor *w)
{
    bool accumulate;
    struct s2s_tensor *dw = s2s_tape_grad(tape, w, &accumulate);
    if (!dw)
        return;
    tensor_k(tape)->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = dy,
                                                                  .b = s2s_tensor_mat(x),
                                                                  .c = s2s_tensor_mat(dw),
                                                                  .m = s2s_tensor_rows(w),
                                                                  .n = s2s_tensor_cols(x),
                                                                  .k = s2s_tensor_rows(x),
                                                                  .trans_a = true,
                                                                  .alpha = 1,
                                                                  .accumulate = accumulate});
}

void tensor_bias_grad(struct s2s_tape *tape, struct s2s_tensor *b, const struct s2s_tensor *dy)
{
    bool accumulate;
    struct s2s_tensor *db = s2s_tape_grad(tape, b, &accumulate);
    if (!db)
        return;
    struct s2s_k_colsum args = {.x = s2s_tensor_mat(dy),
                                .out = db->data,
                                .rows = s2s_tensor_rows(dy),
                                .cols = s2s_tensor_cols(dy),
                                .accumulate = accumulate};
    args.workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->colsum_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->colsum(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

/* The gradient of an output in the type of a matrix that it is multiplied with (those of logits are
 * F32), until s2s_tape_scratch_end. */
static struct s2s_mat as_factor(struct s2s_tape *tape, const struct s2s_tensor *dy,
                                enum s2s_dtype dtype)
{
    if (dy->dtype == dtype)
        return s2s_tensor_mat(dy);
    struct s2s_tensor copy = *dy;
    copy.dtype = dtype;
    copy.row_stride = s2s_tensor_cols(dy);
    copy.data = s2s_tape_scratch(tape, (size_t)s2s_tensor_numel(dy) * s2s_dtype_size(dtype));
    s2s_tensor_copy(&copy, dy);
    return s2s_tensor_mat(&copy);
}

static void linear_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_tensor *x = node->in[0], *w = node->in[1], *b = node->in[2];
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    const struct s2s_mat factor = as_factor(tape, dy, w->dtype);
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate);
    if (dx)
        tensor_linear_dx(tape, factor, w, dx, accumulate);
    tensor_linear_dw(tape, factor, x, w);
    s2s_tape_scratch_end(tape);
    tensor_bias_grad(tape, b, dy);
}

/* y of the given type */
static struct s2s_tensor *linear(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                                 struct s2s_tensor *b, enum s2s_dtype dtype)
{
    struct s2s_tensor *ins[] = {x, w, b};
    struct s2s_tensor *y =
        s2s_tape_tensor(tape, dtype, 2, (int64_t[]){s2s_tensor_rows(x), s2s_tensor_rows(w)});
    tensor_linear(tape, x, w, b, y);
    if (s2s_tape_needs(tape, 3, ins))
        s2s_tape_push(tape, "linear", linear_backward, 3, ins, 1, &y);
    return y;
}

struct s2s_tensor *s2s_op_linear(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                                 struct s2s_tensor *b)
{
    return linear(tape, x, w, b, tape->device->dtype);
}

struct s2s_tensor *s2s_op_logits(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w)
{
    return linear(tape, x, w, NULL, S2S_F32);
}

/* ---- what is added to a linear map ---- */

/* node: in y, x, w; saved alpha */
static void add_linear_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_tensor *y = node->in[0], *x = node->in[1], *w = node->in[2];
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    struct s2s_k_gemm args = {
        .a = s2s_tensor_mat(dy), .b = s2s_tensor_mat(w), .alpha = *(float *)node->saved};
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &args.accumulate);
    args.c = s2s_tensor_mat(dx);
    args.m = s2s_tensor_rows(x);
    args.n = s2s_tensor_cols(x);
    args.k = s2s_tensor_rows(w);
    if (dx)
        tensor_k(tape)->gemm(tensor_queue(tape), &args);
    struct s2s_tensor *dw = s2s_tape_grad(tape, w, &args.accumulate);
    args.b = s2s_tensor_mat(x);
    args.c = s2s_tensor_mat(dw);
    args.trans_a = true;
    args.k = args.m;
    args.m = s2s_tensor_rows(w);
    if (dw)
        tensor_k(tape)->gemm(tensor_queue(tape), &args);
    if (!y->needs_grad || s2s_tape_grad_steal(y, node->out[0]))
        return;
    bool accumulate;
    struct s2s_tensor *to = s2s_tape_grad(tape, y, &accumulate);
    tensor_axpby(tape, 1, dy, accumulate ? 1 : 0, to);
}

struct s2s_tensor *s2s_op_add_linear(struct s2s_tape *tape, struct s2s_tensor *y,
                                     struct s2s_tensor *x, struct s2s_tensor *w, float alpha)
{
    struct s2s_tensor *ins[] = {y, x, w};
    tensor_check(tape, "add_linear", x, s2s_tensor_rows(y), -1);
    tensor_check(tape, "add_linear", w, s2s_tensor_cols(y), s2s_tensor_cols(x));
    const bool record = s2s_tape_needs(tape, 3, ins);
    struct s2s_tensor *sum = tensor_take_over(tape, y);
    tensor_k(tape)->gemm(tensor_queue(tape), &(struct s2s_k_gemm){.a = s2s_tensor_mat(x),
                                                                  .b = s2s_tensor_mat(w),
                                                                  .c = s2s_tensor_mat(sum),
                                                                  .m = s2s_tensor_rows(x),
                                                                  .n = s2s_tensor_rows(w),
                                                                  .k = s2s_tensor_cols(x),
                                                                  .trans_b = true,
                                                                  .alpha = alpha,
                                                                  .accumulate = true});
    if (record) {
        float *saved = s2s_tape_host_alloc(tape, sizeof *saved);
        *saved = alpha;
        s2s_tape_push(tape, "add_linear", add_linear_backward, 3, ins, 1, &sum)->saved = saved;
    }
    return sum;
}

/* ---- bias ---- */

/* node: in x, b */
static void add_bias_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_tensor *x = node->in[0];
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    bool accumulate;
    tensor_bias_grad(tape, node->in[1], dy);
    if (!x->needs_grad || s2s_tape_grad_steal(x, node->out[0]))
        return;
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate);
    tensor_axpby(tape, 1, dy, accumulate ? 1 : 0, dx);
}

struct s2s_tensor *s2s_op_add_bias(struct s2s_tape *tape, struct s2s_tensor *x,
                                   struct s2s_tensor *b)
{
    const int64_t rows = s2s_tensor_rows(x), cols = s2s_tensor_cols(x);
    struct s2s_tensor *ins[] = {x, b};
    tensor_check(tape, "bias", x, -1, -1);
    tensor_check(tape, "bias", b, 1, cols);
    const bool record = s2s_tape_needs(tape, 2, ins);
    struct s2s_tensor *y = tensor_take_over(tape, x);
    struct s2s_mat every_row = s2s_tensor_mat(b);
    every_row.stride = 0;
    tensor_k(tape)->axpby(tensor_queue(tape), &(struct s2s_k_axpby){.x = every_row,
                                                                    .z = s2s_tensor_mat(y),
                                                                    .y = s2s_tensor_mat(y),
                                                                    .rows = rows,
                                                                    .cols = cols,
                                                                    .alpha = 1,
                                                                    .beta = 1});
    if (record)
        s2s_tape_push(tape, "add_bias", add_bias_backward, 2, ins, 1, &y);
    return y;
}

/* ---- sums ---- */

struct sum_saved {
    float alpha, beta;
};

static void sum_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct sum_saved *saved = node->saved;
    const float factor[2] = {saved->alpha, saved->beta};
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    for (int i = 0; i < node->n_in; i++) {
        struct s2s_tensor *x = node->in[i];
        /* the last reader of dy may keep it as it is */
        if (i == node->n_in - 1 && factor[i] == 1 && x->needs_grad &&
            s2s_tape_grad_steal(x, node->out[0]))
            return;
        bool accumulate;
        struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate);
        if (dx)
            tensor_axpby(tape, factor[i], dy, accumulate ? 1 : 0, dx);
    }
}

static void push_sum(struct s2s_tape *tape, struct s2s_tensor *const *ins, int n, float alpha,
                     float beta, struct s2s_tensor *y)
{
    struct sum_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
    *saved = (struct sum_saved){alpha, beta};
    s2s_tape_push(tape, "sum", sum_backward, n, ins, 1, &y)->saved = saved;
}

struct s2s_tensor *s2s_op_axpby(struct s2s_tape *tape, float alpha, struct s2s_tensor *a,
                                float beta, struct s2s_tensor *b)
{
    tensor_check(tape, "sum", a, -1, -1);
    struct s2s_tensor *y = s2s_tape_tensor(tape, a->dtype, a->n_dims, a->shape);
    struct s2s_tensor *ins[] = {a, b};
    struct s2s_k_axpby args = {.x = s2s_tensor_mat(a),
                               .y = s2s_tensor_mat(y),
                               .rows = s2s_tensor_rows(a),
                               .cols = s2s_tensor_cols(a),
                               .alpha = alpha};
    if (b) {
        tensor_check(tape, "sum", b, args.rows, args.cols);
        args.z = args.x;
        args.beta = alpha;
        args.x = s2s_tensor_mat(b);
        args.alpha = beta;
    }
    tensor_k(tape)->axpby(tensor_queue(tape), &args);
    if (s2s_tape_needs(tape, 2, ins))
        push_sum(tape, ins, b ? 2 : 1, alpha, beta, y);
    return y;
}

struct s2s_tensor *s2s_op_add_to(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *h)
{
    if (!tensor_is_free(x))
        return s2s_op_add(tape, h, x);
    tensor_check(tape, "sum", x, s2s_tensor_rows(h), s2s_tensor_cols(h));
    struct s2s_tensor *ins[] = {h, x};
    const bool record = s2s_tape_needs(tape, 2, ins);
    struct s2s_tensor *y = tensor_take_over(tape, x);
    tensor_axpby(tape, 1, h, 1, y);
    if (record)
        push_sum(tape, ins, 2, 1, 1, y);
    return y;
}

struct s2s_tensor *s2s_op_add(struct s2s_tape *tape, struct s2s_tensor *a, struct s2s_tensor *b)
{
    return s2s_op_axpby(tape, 1, a, 1, b);
}

struct s2s_tensor *s2s_op_scale(struct s2s_tape *tape, float alpha, struct s2s_tensor *x)
{
    return s2s_op_axpby(tape, alpha, x, 0, NULL);
}

/* ---- act(gate) up ---- */

static void glu_forward(struct s2s_tape *tape, const struct s2s_tensor *gate,
                        const struct s2s_tensor *up, const struct s2s_tensor *y, enum s2s_act act)
{
    tensor_k(tape)->glu(tensor_queue(tape), &(struct s2s_k_glu){.gate = s2s_tensor_mat(gate),
                                                                .up = s2s_tensor_mat(up),
                                                                .y = s2s_tensor_mat(y),
                                                                .rows = s2s_tensor_rows(gate),
                                                                .cols = s2s_tensor_cols(gate),
                                                                .act = act});
}

static void glu_again(struct s2s_tape *tape, struct s2s_node *node)
{
    glu_forward(tape, node->in[0], node->in[1], node->out[0], *(enum s2s_act *)node->saved);
}

static void glu_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_k_glu_backward args = {.gate = s2s_tensor_mat(node->in[0]),
                                      .up = s2s_tensor_mat(node->in[1]),
                                      .dy = s2s_tensor_mat(s2s_tape_out_grad(node->out[0])),
                                      .rows = s2s_tensor_rows(node->in[0]),
                                      .cols = s2s_tensor_cols(node->in[0]),
                                      .act = *(enum s2s_act *)node->saved};
    args.dgate = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate_dgate));
    args.dup = s2s_tensor_mat(s2s_tape_grad(tape, node->in[1], &args.accumulate_dup));
    tensor_k(tape)->glu_backward(tensor_queue(tape), &args);
}

struct s2s_tensor *s2s_op_glu(struct s2s_tape *tape, struct s2s_tensor *gate, struct s2s_tensor *up,
                              enum s2s_act act)
{
    int64_t rows = s2s_tensor_rows(gate), cols = s2s_tensor_cols(gate);
    tensor_check(tape, "glu", gate, -1, -1);
    if (up)
        tensor_check(tape, "glu", up, rows, cols);
    struct s2s_tensor *ins[] = {gate, up};
    const bool record = s2s_tape_needs(tape, 2, ins);
    struct s2s_tensor *y = tensor_output(tape, gate, record);
    glu_forward(tape, gate, up, y, act);
    if (record) {
        enum s2s_act *saved = s2s_tape_host_alloc(tape, sizeof *saved);
        struct s2s_node *node = s2s_tape_push(tape, "glu", glu_backward, 2, ins, 1, &y);
        *saved = act;
        node->saved = saved;
        node->again = glu_again;
    }
    return y;
}
