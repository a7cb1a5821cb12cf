/* RMS norm, attention and MLP of decoders. */
#include "lib/nn/decoder.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

/* ---- norm ---- */

void s2s_nn_rmsnorm_init(struct s2s_nn_rmsnorm *layer, const struct s2s_nn_ctx *ctx,
                         const char *name, int64_t size, double eps, double offset, unsigned flags)
{
    layer->gain = s2s_nn_add(
        ctx, name, "weight",
        (struct s2s_param_spec){
            .n_dims = 1, .shape = {size}, .flags = flags, .init = {S2S_INIT_CONSTANT, 1 - offset}});
    layer->eps = (float)eps;
    layer->offset = (float)offset;
}

struct s2s_tensor *s2s_nn_rmsnorm(struct s2s_tape *tape, const struct s2s_nn_rmsnorm *layer,
                                  struct s2s_tensor *x)
{
    return s2s_op_rmsnorm(tape, x, layer->gain->tensor, layer->eps, layer->offset);
}

struct s2s_tensor *s2s_nn_add_rmsnorm(struct s2s_tape *tape, const struct s2s_nn_rmsnorm *layer,
                                      struct s2s_tensor **h, struct s2s_tensor *x)
{
    return s2s_op_add_rmsnorm(tape, h, x, *h, layer->gain->tensor, layer->eps, layer->offset);
}

/* ---- cache ---- */

static int64_t kv_width(const struct s2s_nn_attention *layer)
{
    return layer->shape.n_kv_heads * layer->shape.dim;
}

size_t s2s_kv_cache_bytes(const struct s2s_nn_attention *layer, int64_t cap)
{
    /* those of the next sequence are the next rows of one matrix */
    return (size_t)(cap * kv_width(layer)) * s2s_dtype_size(layer->k.w->tensor->device->dtype);
}

/* Puts the rows of x into their rows of the cache; gives a tensor over all of it. */
static struct s2s_tensor *extend(struct s2s_tape *tape, void *memory,
                                 const struct s2s_nn_batch *batch, const struct s2s_tensor *x)
{
    const int64_t width = s2s_tensor_cols(x);
    struct s2s_tensor *all = s2s_tape_host_alloc(tape, sizeof *all);
    *all = (struct s2s_tensor){.dtype = x->dtype,
                               .n_dims = 2,
                               .shape = {batch->spans.n_k, width},
                               .row_stride = width,
                               .data = memory,
                               .device = tape->device};
    tape->device->kernels->scatter_rows(&tape->device->queue,
                                        &(struct s2s_k_rows){.dst = s2s_tensor_mat(all),
                                                             .src = s2s_tensor_mat(x),
                                                             .idx = batch->cache_rows->data,
                                                             .n = s2s_tensor_rows(x),
                                                             .cols = width});
    return all;
}

/* ---- attention ---- */

void s2s_nn_attention_init(struct s2s_nn_attention *layer, const struct s2s_nn_ctx *ctx,
                           const struct s2s_nn_attention_options *options)
{
    const struct s2s_attention_shape *shape = &options->shape;
    int64_t q_size = shape->n_heads * shape->dim, kv_size = shape->n_kv_heads * shape->dim;
    const int ranks = s2s_group_size(ctx->par->tp), n_kv = (int)shape->n_kv_heads;
    /* each rank sees heads of its own: a part of the gradient of what all heads share */
    const unsigned flags = ranks > 1 ? S2S_PARAM_SP_SUM : 0;
    *layer = (struct s2s_nn_attention){
        .shape = *shape, .qk_norm = options->qk_norm, .n_sharing = ranks > n_kv ? ranks / n_kv : 1};
    const struct s2s_nn_dropout drop = s2s_nn_dropout_at(ctx, "probabilities", options->dropout);
    layer->shape.dropout = drop.rate;
    layer->shape.site = drop.site;
    layer->shape.n_heads /= ranks;
    layer->shape.first_head = s2s_group_rank(ctx->par->tp) * layer->shape.n_heads;
    layer->shape.n_kv_heads = ranks > n_kv ? 1 : n_kv / ranks;
    s2s_nn_linear_init(&layer->q, ctx, "q_proj", q_size, options->width, options->qkv_bias,
                       S2S_NN_COLUMN);
    s2s_nn_linear_init(&layer->k, ctx, "k_proj", kv_size, options->width, options->qkv_bias,
                       S2S_NN_COLUMN);
    s2s_nn_linear_init(&layer->v, ctx, "v_proj", kv_size, options->width, options->qkv_bias,
                       S2S_NN_COLUMN);
    s2s_nn_linear_init(&layer->o, ctx, "o_proj", options->width, q_size, options->o_bias,
                       S2S_NN_ROW);
    if (!options->qk_norm)
        return;
    s2s_nn_rmsnorm_init(&layer->q_norm, ctx, "q_norm", shape->dim, options->eps, 0, flags);
    s2s_nn_rmsnorm_init(&layer->k_norm, ctx, "k_norm", shape->dim, options->eps, 0, flags);
}

/* Keys or values of this rank's heads, of its part of them. */
static struct s2s_tensor *whole_heads(struct s2s_tape *tape, const struct s2s_nn_attention *layer,
                                      struct s2s_tensor *y, const struct s2s_nn_batch *batch)
{
    const int n = layer->n_sharing;
    if (n == 1)
        return y;
    int64_t *widths = s2s_tape_host_alloc(tape, (size_t)n * sizeof *widths);
    for (int k = 0; k < n; k++)
        widths[k] = s2s_tensor_cols(y);
    const struct s2s_group *group = batch->tp.group;
    return s2s_op_gather_columns(tape, y,
                                 &(struct s2s_columns_of){group, group->rank / n * n, n, widths});
}

/* Norm of each head, rotation: of one of q and k. */
static struct s2s_tensor *place(struct s2s_tape *tape, const struct s2s_nn_attention *layer,
                                const struct s2s_nn_rmsnorm *norm, int64_t n_heads,
                                struct s2s_tensor *y, const struct s2s_nn_batch *batch)
{
    int64_t t = s2s_tensor_rows(y), dim = layer->shape.dim;
    if (layer->qk_norm) {
        y = s2s_tape_view(tape, y, 2, (int64_t[]){t * n_heads, dim});
        y = s2s_nn_rmsnorm(tape, norm, y);
        y = batch->rope ? y : s2s_tape_view(tape, y, 2, (int64_t[]){t, n_heads * dim});
    }
    return batch->rope ? s2s_op_rope(tape, y, batch->rope, n_heads) : y;
}

struct s2s_tensor *s2s_nn_attention(struct s2s_tape *tape, const struct s2s_nn_attention *layer,
                                    struct s2s_tensor *x, const struct s2s_nn_batch *batch,
                                    const struct s2s_kv_cache *cache)
{
    const struct s2s_attention_shape *shape = &layer->shape;
    const struct s2s_nn_linear *maps[] = {&layer->q, &layer->k, &layer->v};
    struct s2s_tensor *qkv[3];
    s2s_nn_linear_enter(tape, &batch->tp, x, 3, maps, qkv);
    struct s2s_tensor *k = whole_heads(tape, layer, qkv[1], batch),
                      *v = whole_heads(tape, layer, qkv[2], batch),
                      *q = place(tape, layer, &layer->q_norm, shape->n_heads, qkv[0], batch);
    k = place(tape, layer, &layer->k_norm, shape->n_kv_heads, k, batch);
    if (cache->keys) {
        k = extend(tape, cache->keys, batch, k);
        v = extend(tape, cache->values, batch, v);
    }
    struct s2s_tensor *o = batch->cp ? s2s_op_attention_cp(tape, q, k, v, batch->cp, shape)
                                     : s2s_op_attention(tape, q, k, v, &batch->spans, shape);
    return s2s_nn_linear_leave(tape, &layer->o, &batch->tp, o);
}

/* ---- mlp ---- */

void s2s_nn_mlp_init(struct s2s_nn_mlp *layer, const struct s2s_nn_ctx *ctx, int64_t width,
                     int64_t inner, enum s2s_act act, bool bias)
{
    struct s2s_nn_linear gate;
    s2s_nn_linear_init(&gate, ctx, "gate_proj", inner, width, bias, S2S_NN_COLUMN);
    s2s_nn_plain_mlp_init(layer, ctx, width, inner, act, bias);
    layer->gate = gate;
}

void s2s_nn_plain_mlp_init(struct s2s_nn_mlp *layer, const struct s2s_nn_ctx *ctx, int64_t width,
                           int64_t inner, enum s2s_act act, bool bias)
{
    layer->gate = (struct s2s_nn_linear){.w = NULL};
    s2s_nn_linear_init(&layer->up, ctx, "up_proj", inner, width, bias, S2S_NN_COLUMN);
    s2s_nn_linear_init(&layer->down, ctx, "down_proj", width, inner, bias, S2S_NN_ROW);
    layer->act = act;
}

struct s2s_tensor *s2s_nn_mlp(struct s2s_tape *tape, const struct s2s_nn_mlp *layer,
                              const struct s2s_nn_tp *tp, struct s2s_tensor *x)
{
    const struct s2s_nn_linear *maps[] = {&layer->gate, &layer->up};
    const int skip = layer->gate.w ? 0 : 1;
    struct s2s_tensor *in[2] = {NULL, NULL};
    s2s_nn_linear_enter(tape, tp, x, 2 - skip, maps + skip, in);
    s2s_tape_lend(tape, true);
    x = s2s_op_glu(tape, in[0], in[1], layer->act);
    s2s_tape_lend(tape, false);
    return s2s_nn_linear_leave(tape, &layer->down, tp, x);
}
