/* What speech encoders are made of, over packed clips. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/tensor/running.h"
#include "lib/tensor/tensor_internal.h"

/* Where a kernel adds the gradient of a parameter: zeroed if nothing was written. NULL: no gradient
 * wanted. */
static float *added_grad(struct s2s_tape *tape, struct s2s_tensor *tensor)
{
    bool accumulate;
    struct s2s_tensor *grad = s2s_tape_grad(tape, tensor, &accumulate);
    if (!grad)
        return NULL;
    if (!accumulate)
        tensor_k(tape)->zero(tensor_queue(tape), grad->data,
                             (size_t)s2s_tensor_numel(grad) * sizeof(float));
    return grad->data;
}

static void *data_of(const struct s2s_tensor *tensor)
{
    return tensor ? tensor->data : NULL;
}

/* ---- convolutions ---- */

/* node: in x, w, b; saved the arguments of the forward */
static void conv2d_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_k_conv2d_backward args = {.forward = *(struct s2s_k_conv2d *)node->saved,
                                         .dy = s2s_tensor_mat(s2s_tape_out_grad(node->out[0]))};
    args.dx = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate_dx));
    args.dx.stride *= args.forward.in_width; /* a tensor's rows are its pixels */
    args.dy.stride *= s2s_conv2d_half(args.forward.in_width, args.forward.causal);
    args.dw = added_grad(tape, node->in[1]);
    args.dbias = added_grad(tape, node->in[2]);
    args.workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->conv2d_backward_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->conv2d_backward(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_conv2d(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                                 struct s2s_tensor *b, const struct s2s_seqs *in,
                                 const struct s2s_seqs *out, bool relu, bool causal)
{
    int64_t channels = w->shape[0], width = x->shape[1], n_out = out->n_rows;
    const int64_t half = s2s_conv2d_half(width, causal);
    if (x->n_dims != 3 || s2s_tensor_numel(w) != 9 * channels || x->shape[0] != in->n_rows ||
        (x->shape[2] != 1 && x->shape[2] != channels) || x->row_stride != x->shape[2])
        S2S_BUG("%s: conv2d of [%lld, %lld, %lld] with %lld filters", tape->layer,
                (long long)x->shape[0], (long long)width, (long long)x->shape[2],
                (long long)channels);
    struct s2s_tensor *y = s2s_tape_tensor(tape, x->dtype, 3, (int64_t[]){n_out, half, channels});
    struct s2s_k_conv2d *args = s2s_tape_host_alloc(tape, sizeof *args);
    *args = (struct s2s_k_conv2d){.x = {x->data, width * x->shape[2], x->dtype},
                                  .y = {y->data, half * channels, y->dtype},
                                  .w = w->data,
                                  .bias = data_of(b),
                                  .cu_in = in->cu_seqlens->data,
                                  .cu_out = out->cu_seqlens->data,
                                  .n_seqs = in->n_seqs,
                                  .n_in = in->n_rows,
                                  .n_out = n_out,
                                  .in_width = width,
                                  .channels = channels,
                                  .one_input = x->shape[2] == 1 && channels > 1,
                                  .relu = relu,
                                  .causal = causal};
    args->workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->conv2d_workspace(tensor_queue(tape), args));
    tensor_k(tape)->conv2d(tensor_queue(tape), args);
    s2s_tape_scratch_end(tape);
    struct s2s_tensor *ins[] = {x, w, b};
    y->kept = relu;
    if (s2s_tape_needs(tape, 3, ins))
        s2s_tape_push(tape, "conv2d", conv2d_backward, 3, ins, 1, &y)->saved = args;
    return y;
}

static void dwconv_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_k_dwconv_backward args = {.forward = *(struct s2s_k_dwconv *)node->saved,
                                         .dy = s2s_tensor_mat(s2s_tape_out_grad(node->out[0]))};
    args.dx = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate_dx));
    args.dw = added_grad(tape, node->in[1]);
    args.dbias = added_grad(tape, node->in[2]);
    args.workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->dwconv_backward_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->dwconv_backward(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_dwconv(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                                 struct s2s_tensor *b, const struct s2s_seqs *seqs, int64_t shift)
{
    int64_t n = s2s_tensor_rows(x), channels = s2s_tensor_cols(x), width = s2s_tensor_cols(w);
    tensor_check(tape, "dwconv", x, seqs->n_rows, -1);
    tensor_check(tape, "dwconv", w, channels, -1);
    struct s2s_tensor *y = s2s_tape_matrix(tape, n, channels);
    struct s2s_k_dwconv *args = s2s_tape_host_alloc(tape, sizeof *args);
    *args = (struct s2s_k_dwconv){.x = s2s_tensor_mat(x),
                                  .y = s2s_tensor_mat(y),
                                  .w = w->data,
                                  .bias = data_of(b),
                                  .cu = seqs->cu_seqlens->data,
                                  .n_seqs = seqs->n_seqs,
                                  .n = n,
                                  .channels = channels,
                                  .width = width,
                                  .shift = shift};
    args->workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->dwconv_workspace(tensor_queue(tape), args));
    tensor_k(tape)->dwconv(tensor_queue(tape), args);
    s2s_tape_scratch_end(tape);
    struct s2s_tensor *ins[] = {x, w, b};
    if (s2s_tape_needs(tape, 3, ins))
        s2s_tape_push(tape, "dwconv", dwconv_backward, 3, ins, 1, &y)->saved = args;
    return y;
}

/* ---- layer norm ---- */

struct layernorm_saved {
    float *stats, alpha, eps;
};

/* y from the sum, which is kept */
static void layernorm_again(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct layernorm_saved *saved = node->saved;
    const struct s2s_tensor *h = node->in[1] ? node->out[1] : node->in[0];
    tensor_k(tape)->layernorm(tensor_queue(tape),
                              &(struct s2s_k_layernorm){.x = s2s_tensor_mat(h),
                                                        .y = s2s_tensor_mat(node->out[0]),
                                                        .gain = node->in[2]->data,
                                                        .bias = node->in[3]->data,
                                                        .rows = s2s_tensor_rows(h),
                                                        .cols = s2s_tensor_cols(h),
                                                        .alpha = 1,
                                                        .eps = saved->eps});
}

/* node: in x, residual (or NULL), gain, bias; out y, sum (only with a residual) */
static void layernorm_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct layernorm_saved *saved = node->saved;
    struct s2s_tensor *x = node->in[0], *residual = node->in[1];
    struct s2s_tensor *h = residual ? node->out[1] : x;
    struct s2s_k_layernorm_backward args = {
        .h = s2s_tensor_mat(h),
        .dy = s2s_tensor_mat(s2s_tape_out_grad(node->out[0])),
        .dsum = s2s_tensor_mat(residual ? s2s_tape_out_grad(node->out[1]) : NULL),
        .gain = node->in[2]->data,
        .stats = saved->stats,
        .rows = s2s_tensor_rows(h),
        .cols = s2s_tensor_cols(h),
        .alpha = saved->alpha};
    args.dx = s2s_tensor_mat(s2s_tape_grad(tape, x, &args.accumulate_dx));
    /* the residual's gradient is that of the sum plus the norm's: in place where it can be */
    if (args.dsum.data && residual->needs_grad && s2s_tape_grad_steal(residual, node->out[1]))
        args.dresidual = args.dsum;
    else
        args.dresidual = s2s_tensor_mat(s2s_tape_grad(tape, residual, &args.accumulate_dresidual));
    args.dgain = added_grad(tape, node->in[2]);
    args.dbias = added_grad(tape, node->in[3]);
    args.workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->layernorm_backward_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->layernorm_backward(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_add_layernorm(struct s2s_tape *tape, struct s2s_tensor **sum,
                                        struct s2s_tensor *x, float alpha,
                                        struct s2s_tensor *residual, struct s2s_tensor *gain,
                                        struct s2s_tensor *bias, float eps)
{
    int64_t rows = s2s_tensor_rows(x), cols = s2s_tensor_cols(x);
    tensor_check(tape, "layernorm", x, -1, -1);
    tensor_check(tape, "layernorm", gain, 1, cols);
    tensor_check(tape, "layernorm", bias, 1, cols);
    struct s2s_tensor *ins[] = {x, residual, gain, bias};
    bool record = s2s_tape_needs(tape, 4, ins);
    struct s2s_tensor *out[2] = {tensor_output(tape, x, record)};
    if (residual) {
        tensor_check(tape, "layernorm", residual, rows, cols);
        out[1] = tensor_is_free(x) ? tensor_take_over(tape, x)
                                   : s2s_tape_tensor(tape, x->dtype, x->n_dims, x->shape);
        out[1]->kept = true;
    }
    struct s2s_k_layernorm args = {.x = s2s_tensor_mat(x),
                                   .residual = s2s_tensor_mat(residual),
                                   .sum = s2s_tensor_mat(out[1]),
                                   .y = s2s_tensor_mat(out[0]),
                                   .gain = gain->data,
                                   .bias = bias->data,
                                   .rows = rows,
                                   .cols = cols,
                                   .alpha = alpha,
                                   .eps = eps};
    if (record)
        args.stats = tensor_floats(tape, rows, 2);
    tensor_k(tape)->layernorm(tensor_queue(tape), &args);
    if (record) {
        struct layernorm_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
        struct s2s_node *node =
            s2s_tape_push(tape, "layernorm", layernorm_backward, 4, ins, residual ? 2 : 1, out);
        *saved = (struct layernorm_saved){args.stats, alpha, eps};
        node->saved = saved;
        node->again = layernorm_again;
    }
    if (sum)
        *sum = out[1];
    return out[0];
}

struct s2s_tensor *s2s_op_layernorm(struct s2s_tape *tape, struct s2s_tensor *x,
                                    struct s2s_tensor *gain, struct s2s_tensor *bias, float eps)
{
    return s2s_op_add_layernorm(tape, NULL, x, 1, NULL, gain, bias, eps);
}

/* ---- batch norm ---- */

struct batchnorm_saved {
    struct s2s_k_batchnorm args;
    struct s2s_batchnorm norm;
};

/* running = (1 - momentum) running + momentum * factor * now, at the end of the step or at once */
static void move_running(struct s2s_tape *tape, struct s2s_tensor *running, const float *now,
                         float momentum, float factor)
{
    int64_t cols = s2s_tensor_numel(running);
    struct s2s_running_factor f = {.take = momentum * factor, .keep = 1 - momentum};
    if (tape->running)
        s2s_running_see(tape->running, running->param, now, f);
    else
        tensor_k(tape)->axpby(tensor_queue(tape),
                              &(struct s2s_k_axpby){.x = {(float *)now, cols, S2S_F32},
                                                    .z = s2s_tensor_mat(running),
                                                    .y = {running->data, cols, S2S_F32},
                                                    .rows = 1,
                                                    .cols = cols,
                                                    .alpha = f.take,
                                                    .beta = f.keep});
}

/* node: in x, gain, bias */
static void batchnorm_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct batchnorm_saved *saved = node->saved;
    const struct s2s_batchnorm *norm = &saved->norm;
    struct s2s_k_batchnorm_backward args = {.forward = saved->args,
                                            .dy = s2s_tensor_mat(s2s_tape_out_grad(node->out[0])),
                                            .from_batch = norm->batch};
    args.dx = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate_dx));
    args.dgain = added_grad(tape, node->in[1]);
    args.dbias = added_grad(tape, node->in[2]);
    args.workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->batchnorm_backward_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->batchnorm_backward(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
    if (!norm->batch)
        return;
    float n = (float)args.forward.rows;
    move_running(tape, norm->running_mean, args.forward.mean, norm->momentum, 1);
    move_running(tape, norm->running_var, args.forward.var, norm->momentum,
                 n > 1 ? n / (n - 1) : 1);
}

struct s2s_tensor *s2s_op_batchnorm_silu(struct s2s_tape *tape, struct s2s_tensor *x,
                                         const struct s2s_batchnorm *norm)
{
    int64_t rows = s2s_tensor_rows(x), cols = s2s_tensor_cols(x);
    tensor_check(tape, "batchnorm", x, -1, -1);
    tensor_check(tape, "batchnorm", norm->gain, 1, cols);
    struct s2s_tensor *y = s2s_tape_matrix(tape, rows, cols);
    struct batchnorm_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
    saved->norm = *norm;
    saved->args = (struct s2s_k_batchnorm){.x = s2s_tensor_mat(x),
                                           .y = s2s_tensor_mat(y),
                                           .mean = norm->running_mean->data,
                                           .var = norm->running_var->data,
                                           .gain = norm->gain->data,
                                           .bias = norm->bias->data,
                                           .rows = rows,
                                           .cols = cols,
                                           .eps = norm->eps,
                                           .silu = true};
    if (norm->batch) {
        float *stats = tensor_floats(tape, 2, cols);
        struct s2s_k_column_stats args = {
            .x = s2s_tensor_mat(x), .mean = stats, .var = stats + cols, .rows = rows, .cols = cols};
        args.workspace = s2s_tape_scratch(
            tape, tensor_k(tape)->column_stats_workspace(tensor_queue(tape), &args));
        tensor_k(tape)->column_stats(tensor_queue(tape), &args);
        s2s_tape_scratch_end(tape);
        saved->args.mean = args.mean;
        saved->args.var = args.var;
    }
    tensor_k(tape)->batchnorm(tensor_queue(tape), &saved->args);
    struct s2s_tensor *ins[] = {x, norm->gain, norm->bias};
    if (s2s_tape_needs(tape, 3, ins))
        s2s_tape_push(tape, "batchnorm", batchnorm_backward, 3, ins, 1, &y)->saved = saved;
    return y;
}

/* ---- gate over halves, transposition ---- */

static struct s2s_mat right_half(const struct s2s_tensor *x)
{
    struct s2s_mat mat = s2s_tensor_mat(x);
    if (mat.data)
        mat.data = (char *)mat.data + (size_t)s2s_tensor_cols(x) / 2 * s2s_dtype_size(mat.dtype);
    return mat;
}

static void glu_halves_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_tensor *x = node->in[0];
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate);
    struct s2s_k_glu_backward args = {.gate = right_half(x),
                                      .up = s2s_tensor_mat(x),
                                      .dy = s2s_tensor_mat(s2s_tape_out_grad(node->out[0])),
                                      .dgate = right_half(dx),
                                      .dup = s2s_tensor_mat(dx),
                                      .rows = s2s_tensor_rows(x),
                                      .cols = s2s_tensor_cols(x) / 2,
                                      .act = S2S_ACT_SIGMOID,
                                      .accumulate_dgate = accumulate,
                                      .accumulate_dup = accumulate};
    tensor_k(tape)->glu_backward(tensor_queue(tape), &args);
}

struct s2s_tensor *s2s_op_glu_halves(struct s2s_tape *tape, struct s2s_tensor *x)
{
    tensor_check(tape, "glu", x, -1, -1);
    struct s2s_tensor *y = s2s_tape_matrix(tape, s2s_tensor_rows(x), s2s_tensor_cols(x) / 2);
    tensor_k(tape)->glu(tensor_queue(tape), &(struct s2s_k_glu){.gate = right_half(x),
                                                                .up = s2s_tensor_mat(x),
                                                                .y = s2s_tensor_mat(y),
                                                                .rows = s2s_tensor_rows(x),
                                                                .cols = s2s_tensor_cols(y),
                                                                .act = S2S_ACT_SIGMOID});
    if (s2s_tape_needs(tape, 1, &x))
        s2s_tape_push(tape, "glu", glu_halves_backward, 1, &x, 1, &y);
    return y;
}

static void transpose_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_tensor *x = node->in[0];
    struct s2s_k_transpose args = {.x = s2s_tensor_mat(s2s_tape_out_grad(node->out[0])),
                                   .rows = x->shape[0],
                                   .a = x->shape[2],
                                   .b = x->shape[1]};
    args.y = s2s_tensor_mat(s2s_tape_grad(tape, x, &args.accumulate));
    args.y.stride *= x->shape[1]; /* its rows are the a of [T, a, b] */
    tensor_k(tape)->transpose(tensor_queue(tape), &args);
}

struct s2s_tensor *s2s_op_transpose(struct s2s_tape *tape, struct s2s_tensor *x)
{
    if (x->n_dims != 3 || x->row_stride != x->shape[2])
        S2S_BUG("%s: transpose of a tensor that is not [T, a, b]", tape->layer);
    struct s2s_tensor *y = s2s_tape_matrix(tape, x->shape[0], x->shape[1] * x->shape[2]);
    tensor_k(tape)->transpose(
        tensor_queue(tape), &(struct s2s_k_transpose){.x = {x->data, s2s_tensor_cols(y), x->dtype},
                                                      .y = s2s_tensor_mat(y),
                                                      .rows = x->shape[0],
                                                      .a = x->shape[1],
                                                      .b = x->shape[2]});
    if (s2s_tape_needs(tape, 1, &x))
        s2s_tape_push(tape, "transpose", transpose_backward, 1, &x, 1, &y);
    return y;
}

/* ---- attention with relative positions ---- */

struct s2s_tensor *s2s_op_relpos_table(struct s2s_tape *tape, int64_t n, int64_t dim)
{
    const int64_t shape[] = {n > 0 ? 2 * n - 1 : 0, dim};
    struct s2s_tensor *table = s2s_tape_tensor(tape, S2S_F32, 2, shape);
    if (n > 0)
        tensor_k(tape)->relpos_table(
            tensor_queue(tape),
            &(struct s2s_k_relpos_table){.table = table->data, .n = n, .dim = dim});
    return tensor_in_working(tape, table);
}

/* node: in q, k, value, p, u, v; saved the arguments of the forward */
static void relattention_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_k_relattention_backward args = {.forward =
                                                   *(struct s2s_k_relattention *)node->saved};
    args.d_o = s2s_tensor_mat(s2s_tape_out_grad(node->out[0]));
    args.dq = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate_dq));
    args.dk = s2s_tensor_mat(s2s_tape_grad(tape, node->in[1], &args.accumulate_dk));
    args.dvalue = s2s_tensor_mat(s2s_tape_grad(tape, node->in[2], &args.accumulate_dvalue));
    args.dp = s2s_tensor_mat(s2s_tape_grad(tape, node->in[3], &args.accumulate_dp));
    args.du = added_grad(tape, node->in[4]);
    args.dv = added_grad(tape, node->in[5]);
    args.workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->relattention_backward_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->relattention_backward(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_relattention(struct s2s_tape *tape,
                                       const struct s2s_relattention_inputs *in,
                                       const struct s2s_seqs *seqs)
{
    int64_t n_heads = s2s_tensor_rows(in->u), dim = s2s_tensor_cols(in->u), width = n_heads * dim;
    int64_t n = s2s_tensor_rows(in->q);
    tensor_check(tape, "attention", in->q, seqs->n_rows, width);
    tensor_check(tape, "attention", in->k, n, width);
    tensor_check(tape, "attention", in->value, n, width);
    tensor_check(tape, "attention", in->p, n ? 2 * seqs->max_seqlen - 1 : 0, width);
    tensor_check(tape, "attention", in->v, n_heads, dim);
    struct s2s_tensor *o = s2s_tape_matrix(tape, n, width);
    struct s2s_tensor *ins[] = {in->q, in->k, in->value, in->p, in->u, in->v};
    bool record = s2s_tape_needs(tape, 6, ins);
    struct s2s_k_relattention *args = s2s_tape_host_alloc(tape, sizeof *args);
    *args = (struct s2s_k_relattention){.q = s2s_tensor_mat(in->q),
                                        .k = s2s_tensor_mat(in->k),
                                        .value = s2s_tensor_mat(in->value),
                                        .o = s2s_tensor_mat(o),
                                        .p = s2s_tensor_mat(in->p),
                                        .u = in->u->data,
                                        .v = in->v->data,
                                        .cu = seqs->cu_seqlens->data,
                                        .n_seqs = seqs->n_seqs,
                                        .n_heads = n_heads,
                                        .dim = dim,
                                        .max_seqlen = seqs->max_seqlen,
                                        .scale = 1.0f / sqrtf((float)dim),
                                        .draw = tensor_draw(&in->dropout),
                                        .first_head = in->dropout.first,
                                        .reach = in->reach};
    if (record)
        args->lse = tensor_floats(tape, n, n_heads);
    args->workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->relattention_workspace(tensor_queue(tape), args));
    if (n > 0)
        tensor_k(tape)->relattention(tensor_queue(tape), args);
    s2s_tape_scratch_end(tape);
    o->kept = record;
    if (record)
        s2s_tape_push(tape, "attention", relattention_backward, 6, ins, 1, &o)->saved = args;
    return o;
}
