/* What attention blocks are made of: norms, rotary positions, attention of packed sequences. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/spans.h"
#include "lib/base/mem.h"
#include "lib/tensor/tensor_internal.h"

/* ---- rms norm ---- */

struct rmsnorm_saved {
    float *rstd;
    float eps, gain_offset;
};

/* y from the sum, which is kept */
static void rmsnorm_again(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct rmsnorm_saved *saved = node->saved;
    const struct s2s_tensor *h = node->in[1] ? node->out[1] : node->in[0];
    tensor_k(tape)->rmsnorm(tensor_queue(tape),
                            &(struct s2s_k_rmsnorm){.x = s2s_tensor_mat(h),
                                                    .y = s2s_tensor_mat(node->out[0]),
                                                    .gain = node->in[2]->data,
                                                    .rows = s2s_tensor_rows(h),
                                                    .cols = s2s_tensor_cols(h),
                                                    .eps = saved->eps,
                                                    .gain_offset = saved->gain_offset});
}

/* node: in x, residual (or NULL), gain; out y, sum (only with a residual) */
static void rmsnorm_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct rmsnorm_saved *saved = node->saved;
    struct s2s_tensor *x = node->in[0], *residual = node->in[1], *gain = node->in[2];
    struct s2s_tensor *h = residual ? node->out[1] : x;
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    const struct s2s_tensor *dsum = residual ? s2s_tape_out_grad(h) : NULL;
    struct s2s_k_rmsnorm_backward args = {.h = s2s_tensor_mat(h),
                                          .dy = s2s_tensor_mat(dy),
                                          .dsum = s2s_tensor_mat(dsum),
                                          .gain = gain->data,
                                          .rstd = saved->rstd,
                                          .rows = s2s_tensor_rows(h),
                                          .cols = s2s_tensor_cols(h),
                                          .gain_offset = saved->gain_offset};
    if (dsum && residual->needs_grad && s2s_tape_grad_steal(residual, h)) {
        /* the residual's gradient is that of the sum plus the norm's: in place */
        args.dx = args.dsum;
        args.dresidual = s2s_tensor_mat(s2s_tape_grad(tape, x, &args.accumulate_dresidual));
    } else {
        args.dx = s2s_tensor_mat(s2s_tape_grad(tape, x, &args.accumulate_dx));
        args.dresidual = s2s_tensor_mat(s2s_tape_grad(tape, residual, &args.accumulate_dresidual));
    }
    bool accumulate = true;
    struct s2s_tensor *dgain = s2s_tape_grad(tape, gain, &accumulate);
    if (dgain) {
        args.dgain = dgain->data;
        if (!accumulate)
            tensor_k(tape)->zero(tensor_queue(tape), dgain->data,
                                 (size_t)args.cols * sizeof(float));
    }
    args.workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->rmsnorm_backward_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->rmsnorm_backward(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

static struct s2s_tensor *norm_rows(struct s2s_tape *tape, struct s2s_tensor **sum,
                                    struct s2s_tensor *x, struct s2s_tensor *residual,
                                    struct s2s_tensor *gain, float eps, float gain_offset)
{
    int64_t rows = s2s_tensor_rows(x), cols = s2s_tensor_cols(x);
    tensor_check(tape, "rmsnorm", x, -1, -1);
    tensor_check(tape, "rmsnorm", gain, 1, cols);
    struct s2s_tensor *ins[] = {x, residual, gain};
    bool record = s2s_tape_needs(tape, 3, ins);
    struct s2s_tensor *out[2] = {tensor_output(tape, x, record)};
    if (residual) {
        tensor_check(tape, "rmsnorm", residual, rows, cols);
        out[1] = tensor_is_free(x) ? tensor_take_over(tape, x)
                                   : s2s_tape_tensor(tape, x->dtype, x->n_dims, x->shape);
        out[1]->kept = true;
    }
    struct s2s_k_rmsnorm args = {.x = s2s_tensor_mat(x),
                                 .residual = s2s_tensor_mat(residual),
                                 .sum = s2s_tensor_mat(out[1]),
                                 .y = s2s_tensor_mat(out[0]),
                                 .gain = gain->data,
                                 .rows = rows,
                                 .cols = cols,
                                 .eps = eps,
                                 .gain_offset = gain_offset};
    if (record)
        args.rstd = s2s_tape_tensor(tape, S2S_F32, 1, &rows)->data;
    tensor_k(tape)->rmsnorm(tensor_queue(tape), &args);
    if (record) {
        struct rmsnorm_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
        struct s2s_node *node =
            s2s_tape_push(tape, "rmsnorm", rmsnorm_backward, 3, ins, residual ? 2 : 1, out);
        *saved = (struct rmsnorm_saved){args.rstd, eps, gain_offset};
        node->saved = saved;
        node->again = rmsnorm_again;
    }
    if (sum)
        *sum = out[1];
    return out[0];
}

struct s2s_tensor *s2s_op_rmsnorm(struct s2s_tape *tape, struct s2s_tensor *x,
                                  struct s2s_tensor *gain, float eps, float gain_offset)
{
    return norm_rows(tape, NULL, x, NULL, gain, eps, gain_offset);
}

struct s2s_tensor *s2s_op_add_rmsnorm(struct s2s_tape *tape, struct s2s_tensor **sum,
                                      struct s2s_tensor *x, struct s2s_tensor *residual,
                                      struct s2s_tensor *gain, float eps, float gain_offset)
{
    return norm_rows(tape, sum, x, residual, gain, eps, gain_offset);
}

/* ---- rotary positions ---- */

struct s2s_tensor *s2s_op_rope_table(struct s2s_tape *tape, struct s2s_tensor *positions,
                                     const double *inv_freq, int64_t dim, double factor)
{
    int64_t n = s2s_tensor_numel(positions);
    struct s2s_tensor *table = s2s_tape_tensor(tape, S2S_F32, 2, (int64_t[]){n, dim});
    s2s_op_rope_rows(tape, table, positions, 0, n, inv_freq, factor);
    return table;
}

void s2s_op_rope_rows(struct s2s_tape *tape, struct s2s_tensor *table,
                      const struct s2s_tensor *positions, int64_t begin, int64_t n,
                      const double *inv_freq, double factor)
{
    const int64_t dim = s2s_tensor_cols(table), half = dim / 2;
    struct s2s_tensor *freq = s2s_tape_upload(tape, S2S_F64, 1, &half, inv_freq);
    tensor_k(tape)->rope_table(
        tensor_queue(tape),
        &(struct s2s_k_rope_table){.positions = (const int32_t *)positions->data + begin,
                                   .inv_freq = freq->data,
                                   .table = (float *)table->data + begin * dim,
                                   .n = n,
                                   .dim = dim,
                                   .factor = factor});
}

struct rope_saved {
    const float *table;
    int64_t n_heads, dim, rotary_dim;
};

static struct s2s_k_rope rope_args(const struct rope_saved *saved, struct s2s_mat x,
                                   struct s2s_mat y, int64_t n)
{
    return (struct s2s_k_rope){.x = x,
                               .y = y,
                               .table = saved->table,
                               .n = n,
                               .n_heads = saved->n_heads,
                               .dim = saved->dim,
                               .rotary_dim = saved->rotary_dim};
}

static void rope_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_tensor *x = node->in[0];
    struct s2s_mat dy = s2s_tensor_mat(s2s_tape_out_grad(node->out[0])), dx = dy;
    bool accumulate = false;
    if (!s2s_tape_grad_steal(x, node->out[0])) {
        dx = s2s_tensor_mat(s2s_tape_grad(tape, x, &accumulate));
        dx.stride = dy.stride; /* of x as [n, n_heads * dim], whatever its view */
    }
    struct s2s_k_rope args = rope_args(node->saved, dy, dx, s2s_tensor_rows(node->out[0]));
    args.transposed = true;
    args.accumulate = accumulate;
    tensor_k(tape)->rope(tensor_queue(tape), &args);
}

struct s2s_tensor *s2s_op_rope(struct s2s_tape *tape, struct s2s_tensor *x,
                               struct s2s_tensor *table, int64_t n_heads)
{
    int64_t rotary_dim = s2s_tensor_cols(table), n = s2s_tensor_rows(table),
            cols = s2s_tensor_cols(x);
    int64_t dim = n > 0 ? s2s_tensor_numel(x) / (n * n_heads) : rotary_dim;
    /* heads may be rows of their own, if those follow each other */
    if (s2s_tensor_numel(x) != n * n_heads * dim || dim < rotary_dim ||
        (cols != n_heads * dim && x->row_stride != cols))
        S2S_BUG("%s: rope of a tensor that is not [%lld, %lld * %lld]", tape->layer, (long long)n,
                (long long)n_heads, (long long)dim);
    bool record = s2s_tape_needs(tape, 1, &x);
    struct rope_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
    *saved = (struct rope_saved){table->data, n_heads, dim, rotary_dim};
    struct s2s_tensor *y = tensor_take_over(tape, x);
    y->n_dims = 2;
    y->shape[0] = n;
    y->shape[1] = n_heads * dim;
    y->row_stride = cols == n_heads * dim ? x->row_stride : n_heads * dim;
    struct s2s_k_rope args = rope_args(saved, s2s_tensor_mat(y), s2s_tensor_mat(y), n);
    tensor_k(tape)->rope(tensor_queue(tape), &args);
    if (record)
        s2s_tape_push(tape, "rope", rope_backward, 1, &x, 1, &y)->saved = saved;
    return y;
}

/* ---- attention ---- */

struct s2s_seqs s2s_op_seqs(struct s2s_tape *tape, const int32_t *cu_seqlens, int64_t n_seqs)
{
    struct s2s_seqs seqs = {.n_seqs = n_seqs, .n_rows = cu_seqlens[n_seqs]};
    for (int64_t i = 0; i < n_seqs; i++) {
        int64_t len = cu_seqlens[i + 1] - cu_seqlens[i];
        if (len > seqs.max_seqlen)
            seqs.max_seqlen = len;
    }
    seqs.cu_seqlens = s2s_tape_upload_i32(tape, cu_seqlens, n_seqs + 1);
    return seqs;
}

struct s2s_spans s2s_op_spans_of(struct s2s_tape *tape, struct s2s_span *spans, int64_t n_spans,
                                 int64_t n_q, int64_t n_k)
{
    enum { WIDTH = sizeof *spans / sizeof(int32_t) };
    struct s2s_spans out = {.n_spans = n_spans, .n_q = n_q, .n_k = n_k};
    int32_t *host = s2s_xmalloc((size_t)((WIDTH + 1) * n_spans + 1) * sizeof *host);
    out.n_groups = s2s_spans_group(host + WIDTH * n_spans, spans, n_spans);
    if (n_spans > 0)
        memcpy(host, spans, (size_t)n_spans * sizeof *spans);
    for (int64_t i = 0; i < n_spans; i++) {
        out.max_q = spans[i].nq > out.max_q ? spans[i].nq : out.max_q;
        out.max_k = spans[i].nk > out.max_k ? spans[i].nk : out.max_k;
    }
    out.table = s2s_tape_upload_i32(tape, host, WIDTH * n_spans + out.n_groups + 1);
    free(host);
    return out;
}

struct s2s_spans s2s_op_spans(struct s2s_tape *tape, const int32_t *cu_q, const int32_t *cu_k,
                              int64_t n_seqs, bool causal)
{
    struct s2s_span *host = s2s_xmalloc((size_t)(n_seqs + 1) * sizeof *host);
    s2s_spans_packed(host, cu_q, cu_k, n_seqs, causal);
    const struct s2s_spans spans = s2s_op_spans_of(tape, host, n_seqs, cu_q[n_seqs], cu_k[n_seqs]);
    free(host);
    return spans;
}

struct s2s_k_attention tensor_attention(const struct s2s_spans *spans,
                                        const struct s2s_attention_shape *shape)
{
    const struct s2s_span *table = spans->table->data;
    const struct s2s_dropout drop = {
        .rate = shape->dropout, .site = shape->site, .rows = spans->names};
    return (struct s2s_k_attention){.spans = table,
                                    .groups = (const int32_t *)(table + spans->n_spans),
                                    .n_spans = spans->n_spans,
                                    .n_groups = spans->n_groups,
                                    .n_q = spans->n_q,
                                    .n_k = spans->n_k,
                                    .n_heads = shape->n_heads,
                                    .n_kv_heads = shape->n_kv_heads,
                                    .dim = shape->dim,
                                    .max_q = spans->max_q,
                                    .max_k = spans->max_k,
                                    .window = shape->window,
                                    .scale = shape->scale != 0 ? shape->scale
                                                               : 1.0f / sqrtf((float)shape->dim),
                                    .draw = tensor_draw(&drop),
                                    .k_at = spans->k_at ? spans->k_at->data : NULL,
                                    .first_head = shape->first_head};
}

/* node: in q, k, v; saved the arguments of the forward */
static void attention_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    struct s2s_k_attention_backward args = {.forward = *(struct s2s_k_attention *)node->saved};
    args.d_o = s2s_tensor_mat(s2s_tape_out_grad(node->out[0]));
    args.dq = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate_dq));
    args.dk = s2s_tensor_mat(s2s_tape_grad(tape, node->in[1], &args.accumulate_dk));
    args.dv = s2s_tensor_mat(s2s_tape_grad(tape, node->in[2], &args.accumulate_dv));
    args.workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->attention_backward_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->attention_backward(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

struct s2s_tensor *s2s_op_attention(struct s2s_tape *tape, struct s2s_tensor *q,
                                    struct s2s_tensor *k, struct s2s_tensor *v,
                                    const struct s2s_spans *spans,
                                    const struct s2s_attention_shape *shape)
{
    int64_t width = shape->n_heads * shape->dim, kv_width = shape->n_kv_heads * shape->dim;
    tensor_check(tape, "attention", q, spans->n_q, width);
    tensor_check(tape, "attention", k, spans->n_k, kv_width);
    tensor_check(tape, "attention", v, spans->n_k, kv_width);
    struct s2s_tensor *o = s2s_tape_matrix(tape, spans->n_q, width);
    struct s2s_tensor *ins[] = {q, k, v};
    bool record = s2s_tape_needs(tape, 3, ins);
    struct s2s_k_attention *args = s2s_tape_host_alloc(tape, sizeof *args);
    *args = tensor_attention(spans, shape);
    args->q = s2s_tensor_mat(q);
    args->k = s2s_tensor_mat(k);
    args->v = s2s_tensor_mat(v);
    args->o = s2s_tensor_mat(o);
    if (record)
        args->lse = tensor_floats(tape, spans->n_q, shape->n_heads);
    args->workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->attention_workspace(tensor_queue(tape), args));
    tensor_k(tape)->attention(tensor_queue(tape), args);
    s2s_tape_scratch_end(tape);
    o->kept = record;
    if (record)
        s2s_tape_push(tape, "attention", attention_backward, 3, ins, 1, &o)->saved = args;
    return o;
}
