/* The Mamba2 layer. */
#include "lib/nn/mamba.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

/* ---- parameters ---- */

static int64_t inner_of(const struct s2s_nn_mamba_shape *shape)
{
    return shape->n_heads * shape->dim;
}

static int64_t pairs_of(const struct s2s_nn_mamba_shape *shape) /* columns of B, or of C */
{
    return shape->n_groups * shape->state;
}

static int64_t channels_of(const struct s2s_nn_mamba_shape *shape) /* of x, B and C together */
{
    return inner_of(shape) + 2 * pairs_of(shape);
}

/* "PLACE.name", rows cut part by part */
static struct s2s_param *add_cut(const struct s2s_nn_ctx *ctx, const char *name,
                                 struct s2s_param_spec spec, int n_parts, const int64_t *parts)
{
    char *full = s2s_xasprintf("%s.%s", ctx->place, name);
    spec.name = full;
    spec.n_parts = n_parts;
    if (n_parts > 0)
        memcpy(spec.parts, parts, (size_t)n_parts * sizeof *parts);
    spec = s2s_nn_cut_along(spec, ctx, 0);
    struct s2s_param *param = s2s_params_add(ctx->params, &spec);
    free(full);
    return param;
}

static void add_in_proj(struct s2s_nn_mamba *layer, const struct s2s_nn_ctx *ctx,
                        const struct s2s_nn_mamba_options *o)
{
    const int64_t inner = inner_of(&o->shape), pairs = pairs_of(&o->shape);
    const int64_t parts[] = {inner, inner, pairs, pairs, o->shape.n_heads};
    const int64_t rows = 2 * inner + 2 * pairs + o->shape.n_heads;
    layer->in.w = add_cut(ctx, "in_proj.weight",
                          (struct s2s_param_spec){.n_dims = 2,
                                                  .shape = {rows, o->width},
                                                  .init = {S2S_INIT_NORMAL, ctx->init_std}},
                          5, parts);
    layer->in.b = NULL;
    if (o->bias)
        layer->in.b = add_cut(ctx, "in_proj.bias",
                              (struct s2s_param_spec){.n_dims = 1, .shape = {rows}}, 5, parts);
    s2s_nn_linear_adapt(&layer->in, ctx, "in_proj", S2S_NN_COLUMN);
}

static void add_conv(struct s2s_nn_mamba *layer, const struct s2s_nn_ctx *ctx,
                     const struct s2s_nn_mamba_options *o)
{
    const int64_t channels = channels_of(&o->shape), pairs = pairs_of(&o->shape);
    const int64_t parts[] = {inner_of(&o->shape), pairs, pairs};
    const struct s2s_init init = {S2S_INIT_UNIFORM, 1.0 / sqrt((double)o->shape.kernel)};
    layer->conv_w = add_cut(ctx, "conv1d.weight",
                            (struct s2s_param_spec){.n_dims = 3,
                                                    .shape = {channels, 1, o->shape.kernel},
                                                    .flags = S2S_PARAM_F32,
                                                    .init = init},
                            3, parts);
    layer->conv_b = NULL;
    if (o->conv_bias)
        layer->conv_b = add_cut(
            ctx, "conv1d.bias",
            (struct s2s_param_spec){.n_dims = 1, .shape = {channels}, .init = init}, 3, parts);
}

static struct s2s_param *add_vector(const struct s2s_nn_ctx *ctx, const char *name, int64_t n,
                                    struct s2s_init init)
{
    return add_cut(ctx, name, (struct s2s_param_spec){.n_dims = 1, .shape = {n}, .init = init}, 0,
                   NULL);
}

int s2s_nn_mamba_check(const struct s2s_nn_mamba_shape *shape, const struct s2s_par *par,
                       struct s2s_error *err)
{
    const int tp = s2s_group_size(par->tp), cp = s2s_group_size(par->cp);
    const int64_t groups = shape->n_groups / tp;
    if (shape->n_heads % tp || shape->n_groups % tp)
        return s2s_error_set(err, S2S_E_RANGE,
                             "%lld heads of Mamba layers in %lld groups cannot be shared by %d "
                             "ranks (mesh.tp)",
                             (long long)shape->n_heads, (long long)shape->n_groups, tp);
    if (shape->n_heads / tp % cp || (groups % cp && cp % groups))
        return s2s_error_set(err, S2S_E_RANGE,
                             "%lld heads of Mamba layers in %lld groups cannot be shared by cp %d "
                             "x tp %d ranks",
                             (long long)shape->n_heads, (long long)shape->n_groups, cp, tp);
    return 0;
}

void s2s_nn_mamba_init(struct s2s_nn_mamba *layer, const struct s2s_nn_ctx *ctx,
                       const struct s2s_nn_mamba_options *o)
{
    const int ranks = s2s_group_size(ctx->par->tp);
    const int64_t n = o->shape.n_heads, inner = inner_of(&o->shape);
    *layer = (struct s2s_nn_mamba){
        .shape = o->shape, .eps = (float)o->eps, .step_min = (float)o->step_min};
    layer->shape.n_heads /= ranks;
    layer->shape.n_groups /= ranks;
    add_in_proj(layer, ctx, o);
    add_conv(layer, ctx, o);
    layer->step_bias =
        add_vector(ctx, "dt_bias", n, (struct s2s_init){S2S_INIT_STEP, o->first_step_max});
    layer->a_log = add_vector(ctx, "A_log", n, (struct s2s_init){S2S_INIT_LOG_NUMBER, 0});
    layer->skip = add_vector(ctx, "D", n, (struct s2s_init){S2S_INIT_CONSTANT, 1});
    layer->gain = add_vector(ctx, "norm.weight", inner, (struct s2s_init){S2S_INIT_CONSTANT, 1});
    struct s2s_nn_ctx plain = *ctx;
    plain.lora = NULL; /* PEFT refuses folders with an adapter of it */
    s2s_nn_linear_init(&layer->out, &plain, "out_proj", o->width, inner, o->bias, S2S_NN_ROW);
    if (o->out_init > 0)
        layer->out.w->init = (struct s2s_init){S2S_INIT_UNIFORM, o->out_init};
}

/* ---- forward ---- */

size_t s2s_nn_mamba_state_bytes(const struct s2s_nn_mamba *layer, int part)
{
    const struct s2s_nn_mamba_shape *s = &layer->shape;
    const size_t size = s2s_dtype_size(layer->in.w->tensor->device->dtype);
    return part == 0 ? (size_t)(inner_of(s) * s->state) * sizeof(float)
                     : (size_t)((s->kernel - 1) * channels_of(s)) * size;
}

static struct s2s_tensor *value_of(const struct s2s_param *param)
{
    return param ? param->tensor : NULL;
}

/* Memory that outlives the tape, as a tensor. */
static struct s2s_tensor *wrap(struct s2s_tape *tape, void *data, enum s2s_dtype dtype,
                               int64_t rows, int64_t cols)
{
    struct s2s_tensor *t = s2s_tape_host_alloc(tape, sizeof *t);
    *t = (struct s2s_tensor){.dtype = dtype,
                             .n_dims = 2,
                             .shape = {rows, cols},
                             .row_stride = cols,
                             .data = data,
                             .device = tape->device};
    return t;
}

/* What sequences that go on have seen: the states of the heads, and the last inputs of the
 * convolution. */
struct seen {
    struct s2s_tensor *states, *inputs; /* NULL: they begin */
};

static struct seen open_memory(struct s2s_tape *tape, const struct s2s_nn_mamba *layer,
                               int64_t n_seqs, void *const memory[2])
{
    const struct s2s_nn_mamba_shape *s = &layer->shape;
    if (!memory)
        return (struct seen){NULL, NULL};
    return (struct seen){
        wrap(tape, memory[0], S2S_F32, n_seqs * inner_of(s), s->state),
        wrap(tape, memory[1], tape->device->dtype, n_seqs * (s->kernel - 1), channels_of(s))};
}

/* What a rank of several computes with: some heads of the layer. */
struct heads {
    struct s2s_nn_mamba_shape shape;
    struct s2s_tensor *conv_w, *conv_b, *a_log, *skip, *step_bias;
};

static struct heads all_heads(const struct s2s_nn_mamba *layer)
{
    return (struct heads){layer->shape,         layer->conv_w->tensor, value_of(layer->conv_b),
                          layer->a_log->tensor, layer->skip->tensor,   layer->step_bias->tensor};
}

/* Ranks that use the same group. */
static int n_sharing(const struct s2s_nn_mamba_shape *shape, const struct s2s_group *cp)
{
    const int64_t ranks = cp->size;
    return ranks > shape->n_groups ? (int)(ranks / shape->n_groups) : 1;
}

/* Of this rank of cp: its heads, their groups, and the parts of parameters that go with them. */
static struct heads own_heads(struct s2s_tape *tape, const struct s2s_nn_mamba *layer,
                              const struct s2s_group *cp)
{
    struct heads h = all_heads(layer);
    const struct s2s_nn_mamba_shape *all = &layer->shape;
    const int sharing = n_sharing(all, cp);
    h.shape.n_heads /= cp->size;
    h.shape.n_groups = sharing > 1 ? 1 : all->n_groups / cp->size;
    const int64_t inner = inner_of(&h.shape), pairs = pairs_of(&h.shape), b = inner_of(all),
                  group = cp->rank / sharing * pairs;
    const struct s2s_range heads = {cp->rank * h.shape.n_heads, h.shape.n_heads};
    const struct s2s_range channels[] = {
        {cp->rank * inner, inner}, {b + group, pairs}, {b + pairs_of(all) + group, pairs}};
    h.conv_w = s2s_op_ranges(tape, h.conv_w, channels, 3);
    h.conv_b = h.conv_b ? s2s_op_ranges(tape, h.conv_b, channels, 3) : NULL;
    h.a_log = s2s_op_ranges(tape, h.a_log, &heads, 1);
    h.skip = s2s_op_ranges(tape, h.skip, &heads, 1);
    h.step_bias = s2s_op_ranges(tape, h.step_bias, &heads, 1);
    return h;
}

/* y [rows, inner] of the heads: convolution and scan of xbc and dt. */
static struct s2s_tensor *scan(struct s2s_tape *tape, const struct s2s_nn_mamba *layer,
                               const struct heads *h, struct s2s_tensor *xbc, struct s2s_tensor *dt,
                               const struct s2s_seqs *seqs, void *const memory[2])
{
    const struct s2s_nn_mamba_shape *s = &h->shape;
    const int64_t inner = inner_of(s), pairs = pairs_of(s);
    struct seen seen = open_memory(tape, layer, seqs->n_seqs, memory);
    struct s2s_tensor *parts[3];
    xbc = s2s_op_conv1d(tape, xbc, h->conv_w, h->conv_b, seqs, true, seen.inputs,
                        memory ? &seen.inputs : NULL);
    s2s_tape_split(tape, xbc, 3, (int64_t[]){inner, pairs, pairs}, parts);
    const struct s2s_ssd_inputs in = {.x = parts[0],
                                      .dt = dt,
                                      .b = parts[1],
                                      .c = parts[2],
                                      .a_log = h->a_log,
                                      .dt_bias = h->step_bias,
                                      .skip = h->skip,
                                      .initial = seen.states};
    const struct s2s_ssd_shape shape = {.n_heads = s->n_heads,
                                        .n_groups = s->n_groups,
                                        .dim = s->dim,
                                        .state = s->state,
                                        .dt_min = layer->step_min};
    return s2s_op_ssd(tape, &in, &shape, seqs, memory ? &seen.states : NULL);
}

/* The same of sequences that are cut over ranks: each has all rows of its heads. */
static struct s2s_tensor *scan_cp(struct s2s_tape *tape, const struct s2s_nn_mamba *layer,
                                  struct s2s_tensor *xbcdt, const struct s2s_nn_mamba_batch *batch)
{
    const struct s2s_trade *trade = batch->trade;
    const struct heads h = own_heads(tape, layer, trade->group);
    const int64_t inner = inner_of(&h.shape), pairs = pairs_of(&h.shape);
    const int sharing = n_sharing(&layer->shape, trade->group);
    const struct s2s_trade_part parts[] = {
        {inner, 1}, {pairs, sharing}, {pairs, sharing}, {h.shape.n_heads, 1}};
    struct s2s_tensor *own[2];
    struct s2s_tensor *whole = s2s_op_rows_to_columns(tape, xbcdt, trade, parts, 4);
    s2s_tape_split(tape, whole, 2, (int64_t[]){channels_of(&h.shape), h.shape.n_heads}, own);
    struct s2s_tensor *y = scan(tape, layer, &h, own[0], own[1], &batch->seqs, NULL);
    return s2s_op_columns_to_rows(tape, y, trade);
}

struct s2s_tensor *s2s_nn_mamba(struct s2s_tape *tape, const struct s2s_nn_mamba *layer,
                                struct s2s_tensor *x, const struct s2s_nn_mamba_batch *batch,
                                void *const memory[2])
{
    const struct s2s_nn_mamba_shape *s = &layer->shape;
    const struct s2s_nn_linear *in = &layer->in;
    const int64_t channels = channels_of(s), inner = inner_of(s);
    struct s2s_tensor *zxbcdt, *parts[3], *y;
    s2s_nn_linear_enter(tape, &batch->tp, x, 1, &in, &zxbcdt);
    if (batch->trade) {
        s2s_tape_split(tape, zxbcdt, 2, (int64_t[]){inner, channels + s->n_heads}, parts);
        y = scan_cp(tape, layer, parts[1], batch);
    } else {
        const struct heads h = all_heads(layer);
        s2s_tape_split(tape, zxbcdt, 3, (int64_t[]){inner, channels, s->n_heads}, parts);
        y = scan(tape, layer, &h, parts[1], parts[2], &batch->seqs, memory);
    }
    /* the norm's groups may be wider than what a rank of cp had */
    y = s2s_op_gatednorm(tape, y, parts[0], layer->gain->tensor, s->n_groups, layer->eps);
    return s2s_nn_linear_leave(tape, &layer->out, &batch->tp, y);
}
