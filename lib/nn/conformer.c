/* The Conformer block over packed clips. */
#include "lib/nn/conformer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

static const float NORM_EPS = 1e-5f;

void s2s_nn_conformer_share(struct s2s_nn_conformer_options *o, const struct s2s_nn_ctx *ctx)
{
    struct s2s_param_spec bias = {
        .n_dims = 2, .shape = {o->n_heads, o->width / o->n_heads}, .flags = S2S_PARAM_F32};
    bias = s2s_nn_cut_along(bias, ctx, 0);
    o->u = s2s_nn_add(ctx, "self_attn", "bias_u", bias);
    o->v = s2s_nn_add(ctx, "self_attn", "bias_v", bias);
}

static void add_attention(struct s2s_nn_conformer *layer, const struct s2s_nn_ctx *ctx,
                          const struct s2s_nn_conformer_options *o)
{
    struct s2s_nn_conformer_options own = *o;
    if (!o->absolute && !o->u)
        s2s_nn_conformer_share(&own, ctx);
    layer->u = own.u;
    layer->v = own.v;
    layer->n_heads = o->n_heads / s2s_group_size(ctx->par->tp);
    layer->dim = o->width / o->n_heads;
    s2s_nn_linear_init(&layer->q, ctx, "self_attn.q_proj", o->width, o->width, o->attention_bias,
                       S2S_NN_COLUMN);
    s2s_nn_linear_init(&layer->k, ctx, "self_attn.k_proj", o->width, o->width, o->attention_bias,
                       S2S_NN_COLUMN);
    s2s_nn_linear_init(&layer->value, ctx, "self_attn.v_proj", o->width, o->width,
                       o->attention_bias, S2S_NN_COLUMN);
    s2s_nn_linear_init(&layer->o, ctx, "self_attn.o_proj", o->width, o->width, o->attention_bias,
                       S2S_NN_ROW);
    if (!o->absolute)
        s2s_nn_linear_init(&layer->relative_k, ctx, "self_attn.relative_k_proj", o->width, o->width,
                           false, S2S_NN_COLUMN);
}

/* From the gate over the two halves on each channel is by itself: the first product is cut by
 * columns, the second one by rows. */
static void add_convolution(struct s2s_nn_conformer *layer, const struct s2s_nn_ctx *ctx,
                            const struct s2s_nn_conformer_options *o)
{
    const int64_t d = o->width;
    s2s_nn_filters_init(
        &layer->point1, ctx, "conv.pointwise_conv1",
        (struct s2s_param_spec){.n_dims = 3, .shape = {2 * d, d, 1}, .n_parts = 2, .parts = {d, d}},
        o->convolution_bias, S2S_NN_COLUMN);
    s2s_nn_filters_init(&layer->depth, ctx, "conv.depthwise_conv",
                        (struct s2s_param_spec){
                            .n_dims = 3, .shape = {d, 1, o->kernel_size}, .flags = S2S_PARAM_F32},
                        o->convolution_bias, S2S_NN_COLUMN);
    struct s2s_param_spec zeros =
        s2s_nn_cut_along((struct s2s_param_spec){.n_dims = 1, .shape = {d}}, ctx, 0);
    struct s2s_param_spec ones = zeros;
    ones.init = (struct s2s_init){S2S_INIT_CONSTANT, 1};
    layer->bn_gain = s2s_nn_add(ctx, "conv.norm", "weight", ones);
    layer->bn_bias = s2s_nn_add(ctx, "conv.norm", "bias", zeros);
    ones.flags = zeros.flags = S2S_PARAM_BUFFER;
    layer->bn_mean = o->layer_norm ? NULL : s2s_nn_add(ctx, "conv.norm", "running_mean", zeros);
    layer->bn_var = o->layer_norm ? NULL : s2s_nn_add(ctx, "conv.norm", "running_var", ones);
    s2s_nn_filters_init(&layer->point2, ctx, "conv.pointwise_conv2",
                        (struct s2s_param_spec){.n_dims = 3, .shape = {d, d, 1}},
                        o->convolution_bias, S2S_NN_ROW);
}

void s2s_nn_conformer_init(struct s2s_nn_conformer *layer, const struct s2s_nn_ctx *ctx,
                           const struct s2s_nn_conformer_options *o)
{
    const bool bias = o->attention_bias;
    s2s_nn_linear_init(&layer->ff1[0], ctx, "feed_forward1.linear1", o->inner, o->width, bias,
                       S2S_NN_COLUMN);
    s2s_nn_linear_init(&layer->ff1[1], ctx, "feed_forward1.linear2", o->width, o->inner, bias,
                       S2S_NN_ROW);
    add_attention(layer, ctx, o);
    add_convolution(layer, ctx, o);
    layer->shift = o->shift;
    s2s_nn_linear_init(&layer->ff2[0], ctx, "feed_forward2.linear1", o->inner, o->width, bias,
                       S2S_NN_COLUMN);
    s2s_nn_linear_init(&layer->ff2[1], ctx, "feed_forward2.linear2", o->width, o->inner, bias,
                       S2S_NN_ROW);
    layer->probabilities = s2s_nn_dropout_at(ctx, "self_attn.probabilities", o->attention_dropout);
    layer->inside_ff1 = s2s_nn_dropout_at(ctx, "feed_forward1.inner", o->inner_dropout);
    layer->after_ff1 = s2s_nn_dropout_at(ctx, "feed_forward1", o->dropout);
    layer->after_attention = s2s_nn_dropout_at(ctx, "self_attn", o->dropout);
    layer->after_conv = s2s_nn_dropout_at(ctx, "conv", o->dropout);
    layer->inside_ff2 = s2s_nn_dropout_at(ctx, "feed_forward2.inner", o->inner_dropout);
    layer->after_ff2 = s2s_nn_dropout_at(ctx, "feed_forward2", o->dropout);
    s2s_nn_layernorm_init(&layer->norm_ff1, ctx, "norm_feed_forward1", o->width);
    s2s_nn_layernorm_init(&layer->norm_attention, ctx, "norm_self_att", o->width);
    s2s_nn_layernorm_init(&layer->norm_conv, ctx, "norm_conv", o->width);
    s2s_nn_layernorm_init(&layer->norm_ff2, ctx, "norm_feed_forward2", o->width);
    s2s_nn_layernorm_init(&layer->norm_out, ctx, "norm_out", o->width);
}

/* Spans of a clip of n rows from `first` on: itself, or its chunks. Gives how many. */
static int64_t span_clip(struct s2s_span *to, const struct s2s_nn_clips *clips, int32_t first,
                         int32_t n)
{
    const struct s2s_reach *r = &clips->reach;
    int64_t n_spans = 0;
    if (r->chunk <= 1) {
        const bool all = r->chunk == 0 || (r->after >= n && clips->window == 0);
        *to = (struct s2s_span){first, n, first, n, S2S_SPAN_ALL};
        if (!all) /* further than a clip's end is no further than that of the longest */
            to->shift =
                (int32_t)(r->after < clips->seqs.max_seqlen ? r->after : clips->seqs.max_seqlen);
        return 1;
    }
    for (int64_t at = 0; at < n; at += r->chunk) {
        const int64_t begin = s2s_reach_begin(r, at), end = s2s_reach_end(r, at, n);
        const int64_t nq = n - at < r->chunk ? n - at : r->chunk;
        to[n_spans++] = (struct s2s_span){first + (int32_t)at, (int32_t)nq, first + (int32_t)begin,
                                          (int32_t)(end - begin), S2S_SPAN_ALL};
    }
    return n_spans;
}

void s2s_nn_clips_span(struct s2s_tape *tape, struct s2s_nn_clips *clips, const int32_t *cu)
{
    const struct s2s_reach *r = &clips->reach;
    const int64_t n_rows = clips->seqs.n_rows, most = clips->seqs.max_seqlen;
    struct s2s_span *spans = s2s_xmalloc((size_t)(n_rows + clips->seqs.n_seqs + 1) * sizeof *spans);
    int64_t n = 0;
    clips->window = 0;
    if (r->chunk == 1 && r->before < most)
        clips->window = r->before + (r->after < most ? r->after : most) + 1;
    for (int64_t k = 0; k < clips->seqs.n_seqs; k++)
        n += span_clip(spans + n, clips, cu[k], cu[k + 1] - cu[k]);
    clips->spans = s2s_op_spans_of(tape, spans, n, n_rows, n_rows);
    free(spans);
}

void s2s_nn_clips_pad(struct s2s_tape *tape, struct s2s_nn_clips *clips, const int32_t *cu_frames,
                      int64_t padded_frames)
{
    const int64_t n_clips = clips->seqs.n_seqs, n = n_clips * padded_frames;
    const int64_t n_rows = clips->seqs.n_rows;
    int32_t *to = s2s_xmalloc((size_t)(n + 1) * sizeof *to);
    int32_t *from = s2s_xmalloc((size_t)(n_rows + 1) * sizeof *from);
    int32_t *cu = s2s_xmalloc((size_t)(n_clips + 1) * sizeof *cu);
    for (int64_t k = 0; k <= n_clips; k++)
        cu[k] = (int32_t)(k * padded_frames);
    for (int64_t i = 0; i < n; i++)
        to[i] = -1;
    for (int64_t k = 0; k < n_clips; k++)
        for (int32_t row = cu_frames[k]; row < cu_frames[k + 1]; row++) {
            from[row] = cu[k] + row - cu_frames[k];
            to[from[row]] = row;
        }
    clips->to_padded = s2s_tape_upload_i32(tape, to, n);
    clips->from_padded = s2s_tape_upload_i32(tape, from, n_rows);
    clips->padded = s2s_op_seqs(tape, cu, n_clips);
    free(to);
    free(from);
    free(cu);
}

static struct s2s_tensor *feed_forward(struct s2s_tape *tape, const struct s2s_nn_linear ff[2],
                                       const struct s2s_nn_dropout *inside, struct s2s_tensor *x,
                                       const struct s2s_nn_tp *tp)
{
    const bool drops = inside->rate > 0 && tp->inside; /* then the map reads another tensor */
    struct s2s_tensor *inner = s2s_nn_linear(tape, &ff[0], s2s_nn_enter(tape, tp, x));
    s2s_tape_discard(tape, x);
    s2s_tape_lend(tape, !drops);
    inner = s2s_op_glu(tape, inner, NULL, S2S_ACT_SILU);
    s2s_tape_lend(tape, false);
    inner = s2s_nn_drop_inside(tape, inside, tp, inner);
    return s2s_nn_linear_leave(tape, &ff[1], tp, inner);
}

/* Attention that does not look at positions. */
static struct s2s_tensor *attend_plainly(struct s2s_tape *tape,
                                         const struct s2s_nn_conformer *layer, struct s2s_tensor *q,
                                         struct s2s_tensor *k, struct s2s_tensor *value,
                                         const struct s2s_nn_clips *clips)
{
    const struct s2s_attention_shape shape = {.n_heads = layer->n_heads,
                                              .n_kv_heads = layer->n_heads,
                                              .dim = layer->dim,
                                              .window = clips->window,
                                              .dropout = layer->probabilities.rate,
                                              .site = layer->probabilities.site,
                                              .first_head =
                                                  s2s_group_rank(clips->tp.group) * layer->n_heads};
    return s2s_op_attention(tape, q, k, value, &clips->spans, &shape);
}

static struct s2s_tensor *attend(struct s2s_tape *tape, const struct s2s_nn_conformer *layer,
                                 struct s2s_tensor *x, const struct s2s_nn_clips *clips)
{
    struct s2s_tensor *inside = s2s_nn_enter(tape, &clips->tp, x);
    struct s2s_tensor *q = s2s_nn_linear(tape, &layer->q, inside),
                      *k = s2s_nn_linear(tape, &layer->k, inside),
                      *value = s2s_nn_linear(tape, &layer->value, inside);
    if (!layer->u) {
        s2s_tape_discard(tape, x);
        x = attend_plainly(tape, layer, q, k, value, clips);
        return s2s_nn_linear_leave(tape, &layer->o, &clips->tp, x);
    }
    struct s2s_relattention_inputs in = {
        .q = q,
        .k = k,
        .value = value,
        .p = s2s_nn_linear(tape, &layer->relative_k, clips->positions),
        .u = layer->u->tensor,
        .v = layer->v->tensor,
        .dropout = {.rate = layer->probabilities.rate,
                    .site = layer->probabilities.site,
                    .rows = clips->tp.inside,
                    .first = s2s_group_rank(clips->tp.group) * layer->n_heads},
        .reach = clips->reach,
    };
    s2s_tape_discard(tape, x);
    x = s2s_op_relattention(tape, &in, &clips->seqs);
    return s2s_nn_linear_leave(tape, &layer->o, &clips->tp, x);
}

/*
 * Layer norm over the channels of all ranks, of which each has some: it sees all of them, norms
 * without gain, and goes on with its own.
 */
static struct s2s_tensor *norm_shared(struct s2s_tape *tape, const struct s2s_nn_conformer *layer,
                                      struct s2s_tensor *x, const struct s2s_group *group)
{
    const int64_t own = s2s_tensor_cols(x), n = own * s2s_group_size(group);
    const int64_t before = own * s2s_group_rank(group), after = n - before - own;
    const int64_t pieces[] = {before, own, after};
    int64_t *widths = s2s_xmalloc((size_t)s2s_group_size(group) * sizeof *widths);
    float *numbers = s2s_xcalloc((size_t)(2 * n), sizeof *numbers);
    for (int i = 0; i < s2s_group_size(group); i++)
        widths[i] = own;
    for (int64_t i = 0; i < n; i++)
        numbers[i] = 1;
    x = s2s_op_gather_columns(tape, x,
                              &(struct s2s_columns_of){group, 0, s2s_group_size(group), widths});
    x = s2s_op_layernorm(tape, x, s2s_tape_upload(tape, S2S_F32, 1, &n, numbers),
                         s2s_tape_upload(tape, S2S_F32, 1, &n, numbers + n), NORM_EPS);
    free(widths);
    free(numbers);
    struct s2s_tensor *parts[3];
    const int first = before == 0; /* no part is empty */
    s2s_tape_split(tape, x, 3 - first - (after == 0), pieces + first, parts);
    x = s2s_op_scale_columns(tape, parts[before > 0], layer->bn_gain->tensor);
    return s2s_op_add_bias(tape, x, layer->bn_bias->tensor);
}

static struct s2s_tensor *norm_channels(struct s2s_tape *tape, const struct s2s_nn_conformer *layer,
                                        struct s2s_tensor *x, const struct s2s_group *group)
{
    if (s2s_group_size(group) > 1)
        x = norm_shared(tape, layer, x, group);
    else
        x = s2s_op_layernorm(tape, x, layer->bn_gain->tensor, layer->bn_bias->tensor, NORM_EPS);
    return s2s_op_glu(tape, x, NULL, S2S_ACT_SILU);
}

static struct s2s_tensor *convolve(struct s2s_tape *tape, const struct s2s_nn_conformer *layer,
                                   struct s2s_tensor *x, const struct s2s_nn_clips *clips)
{
    struct s2s_batchnorm norm = {.gain = layer->bn_gain->tensor,
                                 .bias = layer->bn_bias->tensor,
                                 .running_mean = s2s_nn_value(layer->bn_mean),
                                 .running_var = s2s_nn_value(layer->bn_var),
                                 .eps = NORM_EPS,
                                 .momentum = S2S_NN_BATCH_MOMENTUM,
                                 .batch = clips->batch_stats};
    struct s2s_tensor *both =
        s2s_nn_pointwise(tape, &layer->point1, s2s_nn_enter(tape, &clips->tp, x));
    s2s_tape_discard(tape, x);
    x = s2s_op_glu_halves(tape, both);
    if (clips->to_padded)
        x = s2s_op_gather_rows(tape, x, clips->to_padded);
    x = s2s_op_dwconv(tape, x, layer->depth.w->tensor, s2s_nn_value(layer->depth.b),
                      clips->to_padded ? &clips->padded : &clips->seqs, layer->shift);
    if (layer->bn_mean)
        x = s2s_op_batchnorm_silu(tape, x, &norm);
    else
        x = norm_channels(tape, layer, x, clips->tp.group);
    if (clips->to_padded)
        x = s2s_op_gather_rows(tape, x, clips->from_padded);
    return s2s_nn_pointwise_leave(tape, &layer->point2, &clips->tp, x);
}

/* *h += alpha x, normed */
static struct s2s_tensor *add_norm(struct s2s_tape *tape, const struct s2s_nn_layernorm *norm,
                                   struct s2s_tensor **h, float alpha, struct s2s_tensor *x)
{
    return s2s_op_add_layernorm(tape, h, x, alpha, *h, norm->gain->tensor, norm->bias->tensor,
                                NORM_EPS);
}

struct s2s_tensor *s2s_nn_conformer(struct s2s_tape *tape, const struct s2s_nn_conformer *layer,
                                    struct s2s_tensor *h, const struct s2s_nn_clips *clips,
                                    struct s2s_nn_conformer_parts *parts)
{
    struct s2s_nn_conformer_parts out;
    const char *place = tape->layer;
    const struct s2s_nn_tp *tp = &clips->tp;
    s2s_tape_layer(tape, "%s.feed_forward1", place);
    s2s_tape_lend(tape, true);
    struct s2s_tensor *x = s2s_op_layernorm(tape, h, layer->norm_ff1.gain->tensor,
                                            layer->norm_ff1.bias->tensor, NORM_EPS);
    out.ff1 = feed_forward(tape, layer->ff1, &layer->inside_ff1, x, tp);
    out.ff1->kept |= parts != NULL;
    s2s_tape_lend(tape, true);
    x = add_norm(tape, &layer->norm_attention, &h, 0.5f,
                 s2s_nn_drop(tape, &layer->after_ff1, tp, out.ff1));
    s2s_tape_layer(tape, "%s.self_attn", place);
    out.attention = attend(tape, layer, x, clips);
    out.attention->kept |= parts != NULL;
    s2s_tape_lend(tape, true);
    x = add_norm(tape, &layer->norm_conv, &h, 1,
                 s2s_nn_drop(tape, &layer->after_attention, tp, out.attention));
    s2s_tape_layer(tape, "%s.conv", place);
    out.conv = convolve(tape, layer, x, clips);
    out.conv->kept |= parts != NULL;
    s2s_tape_lend(tape, true);
    x = add_norm(tape, &layer->norm_ff2, &h, 1,
                 s2s_nn_drop(tape, &layer->after_conv, tp, out.conv));
    s2s_tape_layer(tape, "%s.feed_forward2", place);
    out.ff2 = feed_forward(tape, layer->ff2, &layer->inside_ff2, x, tp);
    out.ff2->kept |= parts != NULL;
    x = add_norm(tape, &layer->norm_out, &h, 0.5f,
                 s2s_nn_drop(tape, &layer->after_ff2, tp, out.ff2));
    tape->layer = place;
    if (parts)
        *parts = out;
    return x;
}
