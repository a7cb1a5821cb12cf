/* Subsampling and Conformer block over packed clips. */
#include "lib/nn/conformer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

static const float NORM_EPS = 1e-5f;

/* "name.weight" of this shape, cut as that of a linear map, and where asked "name.bias" [shape[0]]
 */
static void add_weight(struct s2s_param **w, struct s2s_param **b, const struct s2s_nn_ctx *ctx,
                       const char *name, struct s2s_param_spec spec, bool bias, enum s2s_nn_cut cut)
{
    int64_t n = 1;
    for (int i = 1; i < spec.n_dims; i++)
        n *= spec.shape[i];
    spec.init = (struct s2s_init){S2S_INIT_UNIFORM, 1.0 / sqrt((double)n)};
    struct s2s_param_spec with = {.n_dims = 1, .shape = {spec.shape[0]}, .init = spec.init};
    with.n_parts = spec.n_parts;
    memcpy(with.parts, spec.parts, sizeof with.parts);
    if (cut != S2S_NN_WHOLE)
        spec = s2s_nn_cut_along(spec, ctx, cut == S2S_NN_ROW);
    if (cut == S2S_NN_COLUMN)
        with = s2s_nn_cut_along(with, ctx, 0);
    *w = s2s_nn_add(ctx, name, "weight", spec);
    *b = bias ? s2s_nn_add(ctx, name, "bias", with) : NULL;
}

static struct s2s_tensor *value_of(const struct s2s_param *param)
{
    return param ? param->tensor : NULL;
}

/* A 1 x 1 convolution is a linear map: its weights as a matrix. */
static struct s2s_tensor *pointwise(struct s2s_tape *tape, struct s2s_tensor *x,
                                    const struct s2s_param *w, const struct s2s_param *b)
{
    int64_t shape[] = {w->local[0], w->local[1]};
    return s2s_op_linear(tape, x, s2s_tape_view(tape, w->tensor, 2, shape), value_of(b));
}

/* As s2s_nn_linear_leave. */
static struct s2s_tensor *pointwise_leave(struct s2s_tape *tape, struct s2s_tensor *x,
                                          const struct s2s_param *w, const struct s2s_param *b,
                                          const struct s2s_nn_tp *tp)
{
    if (s2s_group_size(tp->group) == 1)
        return pointwise(tape, x, w, b);
    struct s2s_tensor *y = s2s_nn_leave(tape, tp, pointwise(tape, x, w, NULL));
    return b ? s2s_op_add_bias(tape, y, b->tensor) : y;
}

/* ---- subsampling ---- */

void s2s_nn_subsampling_init(struct s2s_nn_subsampling *layer, const struct s2s_nn_ctx *ctx,
                             const struct s2s_nn_subsampling *how, int64_t width)
{
    const int64_t channels = how->channels;
    *layer = *how;
    int idx = 0; /* as numbered by torch's list, activations counted */
    char name[32];
    int64_t n_rows = how->n_mels;
    for (int i = 0; i < how->n_stages; i++) {
        const bool full = how->full && i > 0;
        snprintf(name, sizeof name, "layers.%d", idx);
        add_weight(&layer->conv_w[i], &layer->conv_b[i], ctx, name,
                   (struct s2s_param_spec){.n_dims = 4,
                                           .shape = {channels, full ? channels : 1, 3, 3},
                                           .flags = full ? 0 : S2S_PARAM_F32},
                   true, S2S_NN_WHOLE);
        if (i > 0 && !full) {
            snprintf(name, sizeof name, "layers.%d", ++idx);
            add_weight(&layer->point_w[i], &layer->point_b[i], ctx, name,
                       (struct s2s_param_spec){.n_dims = 4, .shape = {channels, channels, 1, 1}},
                       true, S2S_NN_WHOLE);
        }
        idx += 2;
        n_rows = s2s_conv2d_half(n_rows, how->causal);
    }
    s2s_nn_linear_init(&layer->linear, ctx, "linear", width, channels * n_rows, true, S2S_NN_WHOLE);
}

int64_t s2s_nn_subsampling_frames(const struct s2s_nn_subsampling *layer, int64_t n_mel)
{
    if (layer->stacked > 0)
        return (n_mel + layer->stacked - 1) / layer->stacked;
    for (int i = 0; i < layer->n_stages; i++)
        n_mel = s2s_conv2d_half(n_mel, layer->causal);
    return n_mel;
}

void s2s_nn_stacking_init(struct s2s_nn_subsampling *layer, const struct s2s_nn_ctx *ctx,
                          int64_t factor, int64_t n_mels, int64_t width, bool norm)
{
    *layer = (struct s2s_nn_subsampling){.n_mels = n_mels, .stacked = factor};
    if (norm)
        s2s_nn_layernorm_init(&layer->norm, ctx, "pre_norm", n_mels);
    s2s_nn_linear_init(&layer->linear, ctx, "proj_out", width, factor * n_mels, true, S2S_NN_WHOLE);
}

static struct s2s_tensor *stack(struct s2s_tape *tape, const struct s2s_nn_subsampling *layer,
                                struct s2s_tensor *mel, const int64_t *cu_mel, int64_t n_clips)
{
    const int64_t n_mels = layer->n_mels, n = s2s_tensor_rows(mel) / n_mels;
    int64_t n_frames = 0, at = 0;
    for (int64_t k = 0; k < n_clips; k++)
        n_frames += s2s_nn_subsampling_frames(layer, cu_mel[k + 1] - cu_mel[k]);
    int32_t *rows = s2s_xmalloc((size_t)(n_frames * layer->stacked + 1) * sizeof *rows);
    for (int64_t k = 0; k < n_clips; k++)
        for (int64_t i = cu_mel[k]; i < cu_mel[k + 1] || at % layer->stacked; i++)
            rows[at++] = i < cu_mel[k + 1] ? (int32_t)(i - cu_mel[0]) : -1;
    struct s2s_tensor *idx = s2s_tape_upload_i32(tape, rows, at),
                      *x = s2s_tape_view(tape, mel, 2, (int64_t[]){n, n_mels});
    free(rows);
    x = s2s_op_gather_rows(tape, x, idx);
    if (layer->norm.gain)
        x = s2s_op_layernorm(tape, x, layer->norm.gain->tensor, layer->norm.bias->tensor, NORM_EPS);
    x = s2s_tape_view(tape, x, 2, (int64_t[]){n_frames, layer->stacked * n_mels});
    return s2s_nn_linear(tape, &layer->linear, x);
}

/* Bounds of the clips after so many stages. */
static struct s2s_seqs stage_seqs(struct s2s_tape *tape, const struct s2s_nn_subsampling *layer,
                                  const int64_t *cu_mel, int64_t n_clips, int stages, int32_t *cu)
{
    cu[0] = 0;
    for (int64_t k = 0; k < n_clips; k++) {
        int64_t n = cu_mel[k + 1] - cu_mel[k];
        for (int i = 0; i < stages; i++)
            n = s2s_conv2d_half(n, layer->causal);
        cu[k + 1] = cu[k] + (int32_t)n;
    }
    return s2s_op_seqs(tape, cu, n_clips);
}

/* A convolution in which all channels see all, and ReLU. */
static struct s2s_tensor *convolve_all(struct s2s_tape *tape,
                                       const struct s2s_nn_subsampling *layer, int i,
                                       struct s2s_tensor *x, const int32_t *cu_in,
                                       const int32_t *cu_out, int64_t n_clips)
{
    enum { TAPS = 9 };
    const int64_t channels = layer->channels, half = s2s_conv2d_half(x->shape[1], layer->causal);
    x = s2s_op_windows(tape, x, cu_in, cu_out, n_clips, layer->causal);
    /* the file's weights are channel by channel */
    x = s2s_tape_view(tape, x, 3, (int64_t[]){s2s_tensor_rows(x), TAPS, channels});
    x = s2s_op_transpose(tape, x);
    struct s2s_tensor *w =
        s2s_tape_view(tape, layer->conv_w[i]->tensor, 2, (int64_t[]){channels, TAPS * channels});
    x = s2s_op_linear(tape, x, w, layer->conv_b[i]->tensor);
    x = s2s_op_glu(tape, x, NULL, S2S_ACT_RELU);
    return s2s_tape_view(tape, x, 3, (int64_t[]){cu_out[n_clips], half, channels});
}

struct s2s_tensor *s2s_nn_subsampling(struct s2s_tape *tape, const struct s2s_nn_subsampling *layer,
                                      struct s2s_tensor *mel, const int64_t *cu_mel,
                                      int64_t n_clips)
{
    if (layer->stacked > 0)
        return stack(tape, layer, mel, cu_mel, n_clips);
    int32_t *cu = s2s_tape_host_alloc(tape, (size_t)(n_clips + 1) * sizeof *cu);
    int32_t *cu_in = s2s_tape_host_alloc(tape, (size_t)(n_clips + 1) * sizeof *cu_in);
    struct s2s_seqs in = stage_seqs(tape, layer, cu_mel, n_clips, 0, cu);
    struct s2s_tensor *x = mel;
    for (int i = 0; i < layer->n_stages; i++) {
        memcpy(cu_in, cu, (size_t)(n_clips + 1) * sizeof *cu);
        struct s2s_seqs out = stage_seqs(tape, layer, cu_mel, n_clips, i + 1, cu);
        if (i > 0 && layer->full) {
            x = convolve_all(tape, layer, i, x, cu_in, cu, n_clips);
            continue;
        }
        x = s2s_op_conv2d(tape, x, value_of(layer->conv_w[i]), value_of(layer->conv_b[i]), &in,
                          &out, i == 0, layer->causal);
        in = out;
        if (i == 0)
            continue;
        int64_t shape[] = {x->shape[0], x->shape[1], x->shape[2]};
        int64_t flat[] = {shape[0] * shape[1], shape[2]};
        x = pointwise(tape, s2s_tape_view(tape, x, 2, flat), layer->point_w[i], layer->point_b[i]);
        x = s2s_op_glu(tape, x, NULL, S2S_ACT_RELU);
        x = s2s_tape_view(tape, x, 3, shape);
    }
    /* the file's linear map reads channel by channel */
    return s2s_nn_linear(tape, &layer->linear, s2s_op_transpose(tape, x));
}

/* ---- Conformer block ---- */

static void add_attention(struct s2s_nn_conformer *layer, const struct s2s_nn_ctx *ctx,
                          const struct s2s_nn_conformer_options *o)
{
    struct s2s_param_spec bias = {
        .n_dims = 2, .shape = {o->n_heads, o->width / o->n_heads}, .flags = S2S_PARAM_F32};
    bias = s2s_nn_cut_along(bias, ctx, 0);
    layer->u = o->absolute ? NULL : s2s_nn_add(ctx, "self_attn", "bias_u", bias);
    layer->v = o->absolute ? NULL : s2s_nn_add(ctx, "self_attn", "bias_v", bias);
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
    add_weight(
        &layer->point1_w, &layer->point1_b, ctx, "conv.pointwise_conv1",
        (struct s2s_param_spec){.n_dims = 3, .shape = {2 * d, d, 1}, .n_parts = 2, .parts = {d, d}},
        o->convolution_bias, S2S_NN_COLUMN);
    add_weight(&layer->depth_w, &layer->depth_b, ctx, "conv.depthwise_conv",
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
    add_weight(&layer->point2_w, &layer->point2_b, ctx, "conv.pointwise_conv2",
               (struct s2s_param_spec){.n_dims = 3, .shape = {d, d, 1}}, o->convolution_bias,
               S2S_NN_ROW);
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

static struct s2s_tensor *attend(struct s2s_tape *tape, const struct s2s_nn_conformer *layer,
                                 struct s2s_tensor *x, const struct s2s_nn_clips *clips)
{
    struct s2s_tensor *inside = s2s_nn_enter(tape, &clips->tp, x);
    struct s2s_relattention_inputs in = {
        .q = s2s_nn_linear(tape, &layer->q, inside),
        .k = s2s_nn_linear(tape, &layer->k, inside),
        .value = s2s_nn_linear(tape, &layer->value, inside),
        .p = layer->u ? s2s_nn_linear(tape, &layer->relative_k, clips->positions)
                      : clips->no_positions,
        .u = layer->u ? layer->u->tensor : clips->no_bias,
        .v = layer->v ? layer->v->tensor : clips->no_bias,
        .dropout = {.rate = layer->probabilities.rate,
                    .site = layer->probabilities.site,
                    .rows = clips->tp.inside},
        .reach = clips->reach,
    };
    in.dropout.first = s2s_group_rank(clips->tp.group) * s2s_tensor_rows(in.u);
    s2s_tape_discard(tape, x);
    x = s2s_op_relattention(tape, &in, &clips->seqs);
    return s2s_nn_linear_leave(tape, &layer->o, &clips->tp, x);
}

static struct s2s_tensor *convolve(struct s2s_tape *tape, const struct s2s_nn_conformer *layer,
                                   struct s2s_tensor *x, const struct s2s_nn_clips *clips)
{
    struct s2s_batchnorm norm = {.gain = layer->bn_gain->tensor,
                                 .bias = layer->bn_bias->tensor,
                                 .running_mean = value_of(layer->bn_mean),
                                 .running_var = value_of(layer->bn_var),
                                 .eps = NORM_EPS,
                                 .momentum = S2S_NN_BATCH_MOMENTUM,
                                 .batch = clips->batch_stats};
    struct s2s_tensor *both =
        pointwise(tape, s2s_nn_enter(tape, &clips->tp, x), layer->point1_w, layer->point1_b);
    s2s_tape_discard(tape, x);
    x = s2s_op_glu_halves(tape, both);
    if (clips->to_padded)
        x = s2s_op_gather_rows(tape, x, clips->to_padded);
    x = s2s_op_dwconv(tape, x, layer->depth_w->tensor, value_of(layer->depth_b),
                      clips->to_padded ? &clips->padded : &clips->seqs, layer->shift);
    if (layer->bn_mean)
        x = s2s_op_batchnorm_silu(tape, x, &norm);
    else
        x = s2s_op_glu(tape, s2s_op_layernorm(tape, x, norm.gain, norm.bias, NORM_EPS), NULL,
                       S2S_ACT_SILU);
    if (clips->to_padded)
        x = s2s_op_gather_rows(tape, x, clips->from_padded);
    return pointwise_leave(tape, x, layer->point2_w, layer->point2_b, &clips->tp);
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
