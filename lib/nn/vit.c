/* The layer of image encoders. */
#include "lib/nn/vit.h"

#include <string.h>

/* ---- parameters ---- */

/* Three maps of x in one matrix: ranks cut each by itself. */
static void add_qkv(struct s2s_nn_linear *qkv, const struct s2s_nn_ctx *ctx, int64_t width,
                    bool bias)
{
    const int64_t parts[] = {width, width, width};
    struct s2s_param_spec w = {.n_dims = 2,
                               .shape = {3 * width, width},
                               .n_parts = 3,
                               .init = {S2S_INIT_NORMAL, ctx->init_std}},
                          b = {.n_dims = 1, .shape = {3 * width}, .n_parts = 3};
    memcpy(w.parts, parts, sizeof parts);
    memcpy(b.parts, parts, sizeof parts);
    *qkv = (struct s2s_nn_linear){.w = NULL};
    qkv->w = s2s_nn_add(ctx, "attn.qkv", "weight", s2s_nn_cut_along(w, ctx, 0));
    if (bias)
        qkv->b = s2s_nn_add(ctx, "attn.qkv", "bias", s2s_nn_cut_along(b, ctx, 0));
}

static struct s2s_param *add_scale(const struct s2s_nn_ctx *ctx, const char *name,
                                   const struct s2s_nn_vit_options *o)
{
    const struct s2s_param_spec spec = {.n_dims = 1,
                                        .shape = {o->width},
                                        .flags = S2S_PARAM_OPTIONAL |
                                                 (o->fixed_scale ? S2S_PARAM_FROZEN : 0),
                                        .init = {S2S_INIT_CONSTANT, o->scale}};
    return s2s_nn_add(ctx, name, "lambda1", spec);
}

void s2s_nn_vit_init(struct s2s_nn_vit *layer, const struct s2s_nn_ctx *ctx,
                     const struct s2s_nn_vit_options *o)
{
    const int64_t n_heads = o->n_heads / s2s_group_size(ctx->par->tp);
    *layer = (struct s2s_nn_vit){.eps = (float)o->eps, .act = o->act};
    layer->shape = (struct s2s_attention_shape){
        .n_heads = n_heads, .n_kv_heads = n_heads, .dim = o->width / o->n_heads};
    s2s_nn_layernorm_init(&layer->norm1, ctx, "norm1", o->width);
    add_qkv(&layer->qkv, ctx, o->width, o->qkv_bias);
    s2s_nn_linear_init(&layer->proj, ctx, "attn.proj", o->width, o->width, true, S2S_NN_ROW);
    layer->scale1 = add_scale(ctx, "layer_scale1", o);
    s2s_nn_layernorm_init(&layer->norm2, ctx, "norm2", o->width);
    s2s_nn_linear_init(&layer->fc1, ctx, "mlp.fc1", o->inner, o->width, true, S2S_NN_COLUMN);
    s2s_nn_linear_init(&layer->fc2, ctx, "mlp.fc2", o->width, o->inner, true, S2S_NN_ROW);
    layer->scale2 = add_scale(ctx, "layer_scale2", o);
}

/* ---- forward ---- */

static struct s2s_tensor *attend(struct s2s_tape *tape, const struct s2s_nn_vit *layer,
                                 struct s2s_tensor *x, const struct s2s_nn_vit_batch *batch)
{
    const struct s2s_nn_linear *map = &layer->qkv;
    const int64_t width = layer->shape.n_heads * layer->shape.dim;
    struct s2s_tensor *all, *qkv[3];
    s2s_nn_linear_enter(tape, &batch->tp, x, 1, &map, &all);
    s2s_tape_split(tape, all, 3, (int64_t[]){width, width, width}, qkv);
    x = s2s_op_attention(tape, qkv[0], qkv[1], qkv[2], &batch->spans, &layer->shape);
    x = s2s_nn_linear_leave(tape, &layer->proj, &batch->tp, x);
    return s2s_op_scale_columns(tape, x, layer->scale1->tensor);
}

static struct s2s_tensor *feed_forward(struct s2s_tape *tape, const struct s2s_nn_vit *layer,
                                       struct s2s_tensor *x, const struct s2s_nn_vit_batch *batch)
{
    const struct s2s_nn_linear *map = &layer->fc1;
    struct s2s_tensor *inner;
    s2s_nn_linear_enter(tape, &batch->tp, x, 1, &map, &inner);
    s2s_tape_lend(tape, true);
    inner = s2s_op_glu(tape, inner, NULL, layer->act);
    s2s_tape_lend(tape, false);
    x = s2s_nn_linear_leave(tape, &layer->fc2, &batch->tp, inner);
    return s2s_op_scale_columns(tape, x, layer->scale2->tensor);
}

struct s2s_tensor *s2s_nn_vit(struct s2s_tape *tape, const struct s2s_nn_vit *layer,
                              struct s2s_tensor *h, const struct s2s_nn_vit_batch *batch)
{
    const char *place = tape->layer;
    s2s_tape_layer(tape, "%s.attn", place);
    s2s_tape_lend(tape, true);
    struct s2s_tensor *x =
        s2s_op_layernorm(tape, h, layer->norm1.gain->tensor, layer->norm1.bias->tensor, layer->eps);
    x = attend(tape, layer, x, batch);
    s2s_tape_layer(tape, "%s.mlp", place);
    s2s_tape_lend(tape, true);
    x = s2s_op_add_layernorm(tape, &h, x, 1, h, layer->norm2.gain->tensor,
                             layer->norm2.bias->tensor, layer->eps);
    x = feed_forward(tape, layer, x, batch);
    tape->layer = place;
    return s2s_op_add_to(tape, x, h);
}
