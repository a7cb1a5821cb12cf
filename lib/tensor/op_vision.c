/* What image encoders have beside other ones: positions that are resized, scales of channels. */
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/tensor/tensor_internal.h"

/* dx (+)= dy, in place where it can be. */
static void pass_gradient(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_tensor *x = node->in[0];
    bool accumulate;
    if (!x->needs_grad || s2s_tape_grad_steal(x, node->out[0]))
        return;
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate);
    tensor_axpby(tape, 1, s2s_tape_out_grad(node->out[0]), accumulate ? 1 : 0, dx);
}

/* ---- rows of a table, mixed ---- */

/* The transpose of a mix, on the tape: for each row of the table the rows of y that it went to,
 * with gaps of -1 up to the most that any has. */
struct mix_saved {
    struct s2s_tensor *idx, *weights;
    int64_t n_rows, n_sources;
};

/* How often each row of the table is named; gives the most. */
static int64_t count_uses(int32_t *counts, const struct s2s_row_mix *mix)
{
    int32_t most = 0;
    for (int64_t i = 0; i < mix->n * mix->n_sources; i++)
        if (mix->idx[i] >= 0 && ++counts[mix->idx[i]] > most)
            most = counts[mix->idx[i]];
    return most;
}

static struct mix_saved transpose_mix(struct s2s_tape *tape, const struct s2s_row_mix *mix,
                                      int64_t n_rows)
{
    int32_t *counts = s2s_xcalloc((size_t)n_rows + 1, sizeof *counts);
    const int64_t most = count_uses(counts, mix), n = n_rows * most;
    int32_t *idx = s2s_xmalloc((size_t)(n + 1) * sizeof *idx);
    float *weights = s2s_xcalloc((size_t)n + 1, sizeof *weights);
    for (int64_t i = 0; i < n; i++)
        idx[i] = -1;
    for (int64_t i = mix->n * mix->n_sources - 1; i >= 0; i--) {
        if (mix->idx[i] < 0)
            continue;
        const int64_t at = mix->idx[i] * most + --counts[mix->idx[i]];
        idx[at] = (int32_t)(i / mix->n_sources);
        weights[at] = mix->weights[i];
    }
    struct mix_saved saved = {.idx = s2s_tape_upload_i32(tape, idx, n),
                              .weights = s2s_tape_upload(tape, S2S_F32, 1, &n, weights),
                              .n_rows = n_rows,
                              .n_sources = most};
    free(counts);
    free(idx);
    free(weights);
    return saved;
}

/* node: in x, table */
static void mix_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct mix_saved *saved = node->saved;
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    bool accumulate;
    struct s2s_tensor *dtable = s2s_tape_grad(tape, node->in[1], &accumulate);
    struct s2s_tensor src = *dy;
    if (dtable && dy->dtype != dtable->dtype) {
        src.dtype = dtable->dtype;
        src.row_stride = s2s_tensor_cols(dy);
        src.data = s2s_tape_scratch(tape, (size_t)s2s_tensor_numel(dy) * s2s_dtype_size(src.dtype));
        s2s_tensor_copy(&src, dy);
    }
    if (dtable)
        tensor_k(tape)->rows_sum(tensor_queue(tape),
                                 &(struct s2s_k_rows_sum){.dst = s2s_tensor_mat(dtable),
                                                          .src = s2s_tensor_mat(&src),
                                                          .idx = saved->idx->data,
                                                          .weights = saved->weights->data,
                                                          .n = saved->n_rows,
                                                          .n_sources = saved->n_sources,
                                                          .cols = s2s_tensor_cols(dy),
                                                          .accumulate = accumulate});
    s2s_tape_scratch_end(tape);
    pass_gradient(tape, node);
}

struct s2s_tensor *s2s_op_add_mixed_rows(struct s2s_tape *tape, struct s2s_tensor *x,
                                         struct s2s_tensor *table, const struct s2s_row_mix *mix)
{
    const int64_t cols = s2s_tensor_cols(x), n = mix->n * mix->n_sources;
    struct s2s_tensor *ins[] = {x, table};
    tensor_check(tape, "mixed rows", x, mix->n, -1);
    tensor_check(tape, "mixed rows", table, -1, cols);
    const bool record = s2s_tape_needs(tape, 2, ins);
    struct s2s_tensor *y = tensor_take_over(tape, x);
    tensor_k(tape)->rows_sum(
        tensor_queue(tape),
        &(struct s2s_k_rows_sum){.dst = s2s_tensor_mat(y),
                                 .src = s2s_tensor_mat(table),
                                 .idx = s2s_tape_upload_i32(tape, mix->idx, n)->data,
                                 .weights =
                                     s2s_tape_upload(tape, S2S_F32, 1, &n, mix->weights)->data,
                                 .n = mix->n,
                                 .n_sources = mix->n_sources,
                                 .cols = cols,
                                 .accumulate = true});
    if (!record)
        return y;
    struct mix_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
    if (table->needs_grad)
        *saved = transpose_mix(tape, mix, s2s_tensor_rows(table));
    s2s_tape_push(tape, "mixed_rows", mix_backward, 2, ins, 1, &y)->saved = saved;
    return y;
}

/* ---- a factor for each column ---- */

/* node: in x, gain; saved the arguments of the forward */
static void scale_columns_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_k_batchnorm_backward args = {.forward = *(struct s2s_k_batchnorm *)node->saved,
                                            .dy = s2s_tensor_mat(s2s_tape_out_grad(node->out[0]))};
    args.dx = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate_dx));
    bool accumulate;
    struct s2s_tensor *dgain = s2s_tape_grad(tape, node->in[1], &accumulate);
    if (dgain && !accumulate)
        tensor_zero(tape, dgain);
    args.dgain = dgain ? dgain->data : NULL;
    args.workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->batchnorm_backward_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->batchnorm_backward(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

/* A batch norm of mean 0 and variance 1, which has the kernels for it: products with 1 and sums
 * with 0 change nothing. */
struct s2s_tensor *s2s_op_scale_columns(struct s2s_tape *tape, struct s2s_tensor *x,
                                        struct s2s_tensor *gain)
{
    const int64_t rows = s2s_tensor_rows(x), cols = s2s_tensor_cols(x);
    struct s2s_tensor *ins[] = {x, gain};
    tensor_check(tape, "scale", x, -1, -1);
    tensor_check(tape, "scale", gain, 1, cols);
    const bool record = s2s_tape_needs(tape, 2, ins);
    float *zeros = tensor_floats(tape, 2, cols), *ones = zeros + cols;
    tensor_k(tape)->zero(tensor_queue(tape), zeros, (size_t)cols * sizeof *zeros);
    tensor_k(tape)->fill(
        tensor_queue(tape),
        &(struct s2s_k_fill){.dst = {ones, cols, S2S_F32}, .rows = 1, .cols = cols, .value = 1});
    /* the gradient of the gain reads x */
    struct s2s_tensor *y = !gain->needs_grad && tensor_is_free(x)
                               ? tensor_take_over(tape, x)
                               : s2s_tape_matrix(tape, rows, cols);
    struct s2s_k_batchnorm *args = s2s_tape_host_alloc(tape, sizeof *args);
    *args = (struct s2s_k_batchnorm){.x = s2s_tensor_mat(x),
                                     .y = s2s_tensor_mat(y),
                                     .mean = zeros,
                                     .var = ones,
                                     .gain = gain->data,
                                     .bias = zeros,
                                     .rows = rows,
                                     .cols = cols};
    tensor_k(tape)->batchnorm(tensor_queue(tape), args);
    if (record)
        s2s_tape_push(tape, "scale", scale_columns_backward, 2, ins, 1, &y)->saved = args;
    return y;
}
