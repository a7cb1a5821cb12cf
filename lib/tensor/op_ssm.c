/* What Mamba2 layers are made of, over packed sequences. */
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
        tensor_zero(tape, grad);
    return grad->data;
}

static void *data_of(const struct s2s_tensor *tensor)
{
    return tensor ? tensor->data : NULL;
}

/* Where the final states of sequences go: nowhere, to memory of the caller's, or to a new tensor.
 */
static struct s2s_tensor *final_of(struct s2s_tape *tape, struct s2s_tensor **final,
                                   enum s2s_dtype dtype, int n_dims, const int64_t *shape)
{
    if (!final)
        return NULL;
    if (*final && tape->recording)
        S2S_BUG("%s: a final state in memory of the caller's on a tape that records", tape->layer);
    if (!*final)
        *final = s2s_tape_tensor(tape, dtype, n_dims, shape);
    return *final;
}

/* ---- convolution ---- */

/* node: in x, w, b, initial; out y, final (or not) */
static void conv1d_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_tensor *dfinal = node->n_out > 1 ? s2s_tape_out_grad(node->out[1]) : NULL;
    struct s2s_k_conv1d_backward args = {.forward = *(struct s2s_k_conv1d *)node->saved,
                                         .dy = s2s_tensor_mat(s2s_tape_out_grad(node->out[0])),
                                         .dfinal = s2s_tensor_mat(dfinal)};
    args.dx = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate_dx));
    args.dinitial = s2s_tensor_mat(s2s_tape_grad(tape, node->in[3], &args.accumulate_dinitial));
    args.dw = added_grad(tape, node->in[1]);
    args.dbias = added_grad(tape, node->in[2]);
    args.workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->conv1d_backward_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->conv1d_backward(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_conv1d(struct s2s_tape *tape, struct s2s_tensor *x, struct s2s_tensor *w,
                                 struct s2s_tensor *b, const struct s2s_seqs *seqs, bool silu,
                                 struct s2s_tensor *initial, struct s2s_tensor **final)
{
    const int64_t n = s2s_tensor_rows(x), channels = s2s_tensor_cols(x);
    const int64_t width = s2s_tensor_cols(w), ends = seqs->n_seqs * (width - 1);
    tensor_check(tape, "conv1d", w, channels, -1);
    if (initial)
        tensor_check(tape, "conv1d", initial, ends, channels);
    struct s2s_tensor *out[2] = {s2s_tape_tensor(tape, x->dtype, 2, (int64_t[]){n, channels})};
    out[1] = final_of(tape, final, x->dtype, 2, (int64_t[]){ends, channels});
    struct s2s_k_conv1d *args = s2s_tape_host_alloc(tape, sizeof *args);
    *args = (struct s2s_k_conv1d){.x = s2s_tensor_mat(x),
                                  .y = s2s_tensor_mat(out[0]),
                                  .initial = s2s_tensor_mat(initial),
                                  .final = s2s_tensor_mat(out[1]),
                                  .w = w->data,
                                  .bias = data_of(b),
                                  .cu = seqs->cu_seqlens->data,
                                  .n_seqs = seqs->n_seqs,
                                  .n = n,
                                  .channels = channels,
                                  .width = width,
                                  .silu = silu};
    args->workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->conv1d_workspace(tensor_queue(tape), args));
    tensor_k(tape)->conv1d(tensor_queue(tape), args);
    s2s_tape_scratch_end(tape);
    struct s2s_tensor *ins[] = {x, w, b, initial};
    if (s2s_tape_needs(tape, 4, ins))
        s2s_tape_push(tape, "conv1d", conv1d_backward, 4, ins, final ? 2 : 1, out)->saved = args;
    return out[0];
}

/* ---- scan ---- */

/* node: in x, dt, b, c, a_log, dt_bias, skip, initial; out y, final (or not) */
static void ssd_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_tensor *dfinal = node->n_out > 1 ? s2s_tape_out_grad(node->out[1]) : NULL;
    struct s2s_k_ssd_backward args = {.forward = *(struct s2s_k_ssd *)node->saved,
                                      .dy = s2s_tensor_mat(s2s_tape_out_grad(node->out[0])),
                                      .dfinal = data_of(dfinal)};
    args.dx = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate_dx));
    args.ddt = s2s_tensor_mat(s2s_tape_grad(tape, node->in[1], &args.accumulate_ddt));
    args.db = s2s_tensor_mat(s2s_tape_grad(tape, node->in[2], &args.accumulate_db));
    args.dc = s2s_tensor_mat(s2s_tape_grad(tape, node->in[3], &args.accumulate_dc));
    args.da_log = added_grad(tape, node->in[4]);
    args.ddt_bias = added_grad(tape, node->in[5]);
    args.dskip = added_grad(tape, node->in[6]);
    args.dinitial = data_of(s2s_tape_grad(tape, node->in[7], &args.accumulate_dinitial));
    args.workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->ssd_backward_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->ssd_backward(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

static void check_ssd(struct s2s_tape *tape, const struct s2s_ssd_inputs *in,
                      const struct s2s_ssd_shape *shape, const struct s2s_seqs *seqs)
{
    const int64_t n = s2s_tensor_rows(in->x), heads = shape->n_heads;
    const int64_t width = shape->n_groups * shape->state;
    tensor_check(tape, "ssd", in->x, n, heads * shape->dim);
    tensor_check(tape, "ssd", in->dt, n, heads);
    tensor_check(tape, "ssd", in->b, n, width);
    tensor_check(tape, "ssd", in->c, n, width);
    tensor_check(tape, "ssd", in->a_log, 1, heads);
    if (in->dt_bias)
        tensor_check(tape, "ssd", in->dt_bias, 1, heads);
    if (in->skip)
        tensor_check(tape, "ssd", in->skip, 1, heads);
    if (n < seqs->n_rows || shape->n_groups < 1 || heads % shape->n_groups)
        S2S_BUG("%s: ssd of %lld rows, %lld heads in %lld groups", tape->layer, (long long)n,
                (long long)heads, (long long)shape->n_groups);
    if (in->initial &&
        (in->initial->dtype != S2S_F32 ||
         s2s_tensor_numel(in->initial) != seqs->n_seqs * heads * shape->dim * shape->state))
        S2S_BUG("%s: ssd with initial states of another shape or type", tape->layer);
}

struct s2s_tensor *s2s_op_ssd(struct s2s_tape *tape, const struct s2s_ssd_inputs *in,
                              const struct s2s_ssd_shape *shape, const struct s2s_seqs *seqs,
                              struct s2s_tensor **final)
{
    check_ssd(tape, in, shape, seqs);
    const int64_t n = s2s_tensor_rows(in->x);
    struct s2s_tensor *out[2] = {
        s2s_tape_tensor(tape, in->x->dtype, 2, (int64_t[]){n, shape->n_heads * shape->dim})};
    out[1] = final_of(tape, final, S2S_F32, 4,
                      (int64_t[]){seqs->n_seqs, shape->n_heads, shape->dim, shape->state});
    struct s2s_k_ssd *args = s2s_tape_host_alloc(tape, sizeof *args);
    *args = (struct s2s_k_ssd){.x = s2s_tensor_mat(in->x),
                               .y = s2s_tensor_mat(out[0]),
                               .dt = s2s_tensor_mat(in->dt),
                               .b = s2s_tensor_mat(in->b),
                               .c = s2s_tensor_mat(in->c),
                               .a_log = in->a_log->data,
                               .dt_bias = data_of(in->dt_bias),
                               .skip = data_of(in->skip),
                               .initial = data_of(in->initial),
                               .final = data_of(out[1]),
                               .cu = seqs->cu_seqlens->data,
                               .n_seqs = seqs->n_seqs,
                               .n = n,
                               .n_heads = shape->n_heads,
                               .n_groups = shape->n_groups,
                               .dim = shape->dim,
                               .state = shape->state,
                               .max_seqlen = seqs->max_seqlen,
                               .dt_min = shape->dt_min};
    args->workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->ssd_workspace(tensor_queue(tape), args));
    tensor_k(tape)->ssd(tensor_queue(tape), args);
    s2s_tape_scratch_end(tape);
    struct s2s_tensor *ins[] = {in->x,     in->dt,      in->b,    in->c,
                                in->a_log, in->dt_bias, in->skip, in->initial};
    if (s2s_tape_needs(tape, 8, ins))
        s2s_tape_push(tape, "ssd", ssd_backward, 8, ins, final ? 2 : 1, out)->saved = args;
    return out[0];
}

/* ---- gated norm ---- */

struct gatednorm_saved {
    float *rstd;
    int64_t n_groups;
};

/* node: in x, z, gain; out y */
static void gatednorm_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct gatednorm_saved *saved = node->saved;
    struct s2s_tensor *x = node->in[0], *z = node->in[1], *gain = node->in[2];
    struct s2s_k_gatednorm_backward args = {.x = s2s_tensor_mat(x),
                                            .z = s2s_tensor_mat(z),
                                            .dy = s2s_tensor_mat(s2s_tape_out_grad(node->out[0])),
                                            .gain = gain->data,
                                            .rstd = saved->rstd,
                                            .rows = s2s_tensor_rows(x),
                                            .cols = s2s_tensor_cols(x),
                                            .n_groups = saved->n_groups};
    args.dgain = added_grad(tape, gain);
    args.dz = s2s_tensor_mat(s2s_tape_grad(tape, z, &args.accumulate_dz));
    if (x->needs_grad && s2s_tape_grad_steal(x, node->out[0]))
        args.dx = args.dy;
    else
        args.dx = s2s_tensor_mat(s2s_tape_grad(tape, x, &args.accumulate_dx));
    args.workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->gatednorm_backward_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->gatednorm_backward(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_gatednorm(struct s2s_tape *tape, struct s2s_tensor *x,
                                    struct s2s_tensor *z, struct s2s_tensor *gain, int64_t n_groups,
                                    float eps)
{
    const int64_t rows = s2s_tensor_rows(x), cols = s2s_tensor_cols(x);
    tensor_check(tape, "gatednorm", x, -1, -1);
    tensor_check(tape, "gatednorm", z, rows, cols);
    tensor_check(tape, "gatednorm", gain, 1, cols);
    if (n_groups < 1 || cols % n_groups)
        S2S_BUG("%s: gatednorm of %lld columns in %lld groups", tape->layer, (long long)cols,
                (long long)n_groups);
    struct s2s_tensor *y = s2s_tape_tensor(tape, x->dtype, 2, (int64_t[]){rows, cols});
    struct s2s_tensor *ins[] = {x, z, gain};
    const bool record = s2s_tape_needs(tape, 3, ins);
    struct s2s_k_gatednorm args = {.x = s2s_tensor_mat(x),
                                   .z = s2s_tensor_mat(z),
                                   .y = s2s_tensor_mat(y),
                                   .gain = gain->data,
                                   .rstd = record ? tensor_floats(tape, rows, n_groups) : NULL,
                                   .rows = rows,
                                   .cols = cols,
                                   .n_groups = n_groups,
                                   .eps = eps};
    tensor_k(tape)->gatednorm(tensor_queue(tape), &args);
    if (!record)
        return y;
    struct gatednorm_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
    *saved = (struct gatednorm_saved){args.rstd, n_groups};
    s2s_tape_push(tape, "gatednorm", gatednorm_backward, 3, ins, 1, &y)->saved = saved;
    return y;
}
