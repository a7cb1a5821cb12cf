/* Subsampling of packed clips, stage by stage. */
#include "lib/nn/subsampling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

static const float NORM_EPS = 1e-5f;

const char *const s2s_nn_subsampling_names[] = {
    "dw_striding",   "striding", "vggnet", "striding_conv1d", "dw_striding_conv1d", "stacking",
    "stacking_norm", "none",     NULL};

bool s2s_nn_subsampling_has_stages(enum s2s_nn_subsampling_way way)
{
    return way <= S2S_NN_DW_STRIDING_CONV1D;
}

bool s2s_nn_subsampling_may_be_causal(enum s2s_nn_subsampling_way way)
{
    return way == S2S_NN_DW_STRIDING || way == S2S_NN_STRIDING || way == S2S_NN_STRIDING_CONV1D;
}

static bool is_conv1d(enum s2s_nn_subsampling_way way)
{
    return way == S2S_NN_STRIDING_CONV1D || way == S2S_NN_DW_STRIDING_CONV1D;
}

static int64_t after_stages(const struct s2s_nn_subsampling *layer, int64_t n, int stages)
{
    for (int i = 0; i < stages; i++)
        n = s2s_conv2d_half(n, layer->how.causal);
    return n;
}

int64_t s2s_nn_subsampling_frames(const struct s2s_nn_subsampling *layer, int64_t n_mel)
{
    if (layer->how.way == S2S_NN_NO_SUBSAMPLING)
        return n_mel;
    if (!s2s_nn_subsampling_has_stages(layer->how.way))
        return (n_mel + layer->how.factor - 1) / layer->how.factor;
    return after_stages(layer, n_mel, layer->n_stages);
}

/* ---- parameters ---- */

/* The next layer of the list: filters [out, in, rows, columns], or without the columns. */
static void add_filters(struct s2s_nn_filters *filters, const struct s2s_nn_ctx *ctx, int number,
                        const int64_t shape[4], unsigned flags)
{
    char name[32];
    snprintf(name, sizeof name, "layers.%d", number);
    struct s2s_param_spec spec = {.n_dims = shape[3] > 0 ? 4 : 3, .flags = flags};
    memcpy(spec.shape, shape, 4 * sizeof *shape);
    s2s_nn_filters_init(filters, ctx, name, spec, true, S2S_NN_WHOLE);
}

/* A stage whose first layer has this number, of so many channels; gives the number after it,
 * activations counted. */
static int add_stage(struct s2s_nn_subsampling *layer, const struct s2s_nn_ctx *ctx, int i, int at,
                     int64_t in, int64_t out)
{
    struct s2s_nn_filters *first = &layer->first[i], *second = &layer->second[i];
    switch (layer->how.way) {
    case S2S_NN_STRIDING:
        add_filters(first, ctx, at, (int64_t[]){out, in, 3, 3}, i > 0 ? 0 : S2S_PARAM_F32);
        return at + 2;
    case S2S_NN_VGGNET:
        add_filters(first, ctx, at, (int64_t[]){out, in, 3, 3}, 0);
        add_filters(second, ctx, at + 2, (int64_t[]){out, out, 3, 3}, 0);
        return at + 5;
    case S2S_NN_STRIDING_CONV1D:
        add_filters(first, ctx, at, (int64_t[]){out, in, 5, 0}, 0);
        return at + 2;
    case S2S_NN_DW_STRIDING_CONV1D:
        add_filters(first, ctx, at, (int64_t[]){in, 1, 5, 0}, S2S_PARAM_F32);
        add_filters(second, ctx, at + 1, (int64_t[]){out, in, 1, 0}, 0);
        return at + 3;
    default:
        add_filters(first, ctx, at, (int64_t[]){out, 1, 3, 3}, S2S_PARAM_F32);
        if (i == 0)
            return at + 2;
        add_filters(second, ctx, at + 1, (int64_t[]){out, out, 1, 1}, 0);
        return at + 3;
    }
}

static void add_stages(struct s2s_nn_subsampling *layer, const struct s2s_nn_ctx *ctx)
{
    const struct s2s_nn_subsampling_options *o = &layer->how;
    const bool flat = is_conv1d(o->way);
    int64_t in = flat ? o->n_mels : 1;
    int at = 0;
    while ((1 << layer->n_stages) < o->factor)
        layer->n_stages++;
    for (int i = 0; i < layer->n_stages; i++) {
        const bool last = flat && i + 1 == layer->n_stages;
        at = add_stage(layer, ctx, i, at, in, last ? o->width : o->channels);
        in = o->channels;
    }
    if (!flat)
        s2s_nn_linear_init(&layer->linear, ctx, "linear", o->width,
                           in * after_stages(layer, o->n_mels, layer->n_stages), true,
                           S2S_NN_WHOLE);
}

void s2s_nn_subsampling_init(struct s2s_nn_subsampling *layer, const struct s2s_nn_ctx *ctx,
                             const struct s2s_nn_subsampling_options *how)
{
    *layer = (struct s2s_nn_subsampling){.how = *how};
    if (s2s_nn_subsampling_has_stages(how->way)) {
        add_stages(layer, ctx);
        return;
    }
    if (how->way == S2S_NN_NO_SUBSAMPLING) {
        s2s_nn_linear_init(&layer->linear, ctx, "linear", how->width, how->n_mels, true,
                           S2S_NN_WHOLE);
        return;
    }
    if (how->way == S2S_NN_STACKING_NORM)
        s2s_nn_layernorm_init(&layer->norm, ctx, "pre_norm", how->n_mels);
    s2s_nn_linear_init(&layer->linear, ctx, "proj_out", how->width, how->factor * how->n_mels, true,
                       S2S_NN_WHOLE);
}

/* ---- stages ---- */

/* The clips of one stage, and of the one after it. */
struct bounds {
    int32_t *in, *out; /* host [n_clips + 1] */
    int64_t n_clips;
};

static void fill_bounds(const struct s2s_nn_subsampling *layer, const int64_t *cu_mel,
                        int64_t n_clips, int stages, int32_t *cu)
{
    cu[0] = 0;
    for (int64_t k = 0; k < n_clips; k++)
        cu[k + 1] = cu[k] + (int32_t)after_stages(layer, cu_mel[k + 1] - cu_mel[k], stages);
}

static struct s2s_tensor *relu(struct s2s_tape *tape, struct s2s_tensor *x)
{
    return s2s_op_glu(tape, x, NULL, S2S_ACT_RELU);
}

/* A convolution over each channel and ReLU, or, from the second stage on, over each channel and
 * then over all. */
static struct s2s_tensor *run_depthwise(struct s2s_tape *tape,
                                        const struct s2s_nn_subsampling *layer, int i,
                                        struct s2s_tensor *x, const struct bounds *cu)
{
    const struct s2s_seqs in = s2s_op_seqs(tape, cu->in, cu->n_clips),
                          out = s2s_op_seqs(tape, cu->out, cu->n_clips);
    x = s2s_op_conv2d(tape, x, layer->first[i].w->tensor, s2s_nn_value(layer->first[i].b), &in,
                      &out, i == 0, layer->how.causal);
    if (i == 0)
        return x;
    const int64_t shape[] = {x->shape[0], x->shape[1], x->shape[2]};
    x = s2s_tape_view(tape, x, 2, (int64_t[]){shape[0] * shape[1], shape[2]});
    x = relu(tape, s2s_nn_pointwise(tape, &layer->second[i], x));
    return s2s_tape_view(tape, x, 3, shape);
}

static struct s2s_tensor *run_conv(struct s2s_tape *tape, const struct s2s_nn_filters *filters,
                                   struct s2s_tensor *x, const struct s2s_conv_shape *shape,
                                   const int32_t *in, const int32_t *out, int64_t n_clips)
{
    return s2s_op_conv(tape, x, filters->w->tensor, filters->b->tensor, shape, in, out, n_clips);
}

/* Every second row of a convolution over rows, and then over all channels. */
static struct s2s_tensor *run_rows(struct s2s_tape *tape, const struct s2s_nn_subsampling *layer,
                                   int i, struct s2s_tensor *x, const struct bounds *cu)
{
    const struct s2s_seqs in = s2s_op_seqs(tape, cu->in, cu->n_clips);
    const int64_t n = cu->out[cu->n_clips];
    int32_t *rows = s2s_xmalloc((size_t)(n + 1) * sizeof *rows), *at = rows;
    for (int64_t k = 0; k < cu->n_clips; k++)
        for (int32_t row = cu->in[k]; row < cu->in[k + 1]; row += 2)
            *at++ = row;
    struct s2s_tensor *idx = s2s_tape_upload_i32(tape, rows, n);
    free(rows);
    x = s2s_tape_view(tape, x, 2, (int64_t[]){x->shape[0], x->shape[1] * x->shape[2]});
    x = s2s_op_dwconv(tape, x, layer->first[i].w->tensor, layer->first[i].b->tensor, &in, 0);
    x = relu(tape, s2s_nn_pointwise(tape, &layer->second[i], s2s_op_gather_rows(tape, x, idx)));
    return s2s_tape_view(tape, x, 3, (int64_t[]){n, 1, s2s_tensor_cols(x)});
}

static struct s2s_tensor *run_stage(struct s2s_tape *tape, const struct s2s_nn_subsampling *layer,
                                    int i, struct s2s_tensor *x, const struct bounds *cu)
{
    static const struct s2s_conv_shape dense = {1, {3, 3}, {1, 1}, {1, 1}},
                                       square[] = {{2, {3, 3}, {1, 1}, {1, 1}},
                                                   {2, {3, 3}, {2, 2}, {1, 1}}},
                                       line[] = {{2, {5, 1}, {2, 0}, {2, 0}},
                                                 {2, {5, 1}, {4, 0}, {1, 0}}};
    switch (layer->how.way) {
    case S2S_NN_VGGNET:
        x = run_conv(tape, &layer->first[i], x, &dense, cu->in, cu->in, cu->n_clips);
        x = run_conv(tape, &layer->second[i], x, &dense, cu->in, cu->in, cu->n_clips);
        return s2s_op_max_pool(tape, x, cu->in, cu->out, cu->n_clips);
    case S2S_NN_STRIDING_CONV1D:
        return run_conv(tape, &layer->first[i], x, &line[layer->how.causal], cu->in, cu->out,
                        cu->n_clips);
    case S2S_NN_DW_STRIDING_CONV1D:
        return run_rows(tape, layer, i, x, cu);
    case S2S_NN_STRIDING:
        if (i > 0)
            return run_conv(tape, &layer->first[i], x, &square[layer->how.causal], cu->in, cu->out,
                            cu->n_clips);
    /* fall through */
    default:
        return run_depthwise(tape, layer, i, x, cu);
    }
}

static struct s2s_tensor *run_stages(struct s2s_tape *tape, const struct s2s_nn_subsampling *layer,
                                     struct s2s_tensor *x, const int64_t *cu_mel, int64_t n_clips)
{
    const size_t bytes = (size_t)(n_clips + 1) * sizeof(int32_t);
    struct bounds cu = {s2s_xmalloc(bytes), s2s_xmalloc(bytes), n_clips};
    fill_bounds(layer, cu_mel, n_clips, 0, cu.in);
    if (is_conv1d(layer->how.way))
        x = s2s_tape_view(tape, x, 3, (int64_t[]){cu.in[n_clips], 1, layer->how.n_mels});
    for (int i = 0; i < layer->n_stages; i++) {
        fill_bounds(layer, cu_mel, n_clips, i + 1, cu.out);
        x = run_stage(tape, layer, i, x, &cu);
        memcpy(cu.in, cu.out, bytes);
    }
    free(cu.in);
    free(cu.out);
    if (is_conv1d(layer->how.way))
        return s2s_tape_view(tape, x, 2, (int64_t[]){s2s_tensor_rows(x), s2s_tensor_cols(x)});
    /* the file's linear map reads channel by channel */
    return s2s_nn_linear(tape, &layer->linear, s2s_op_transpose(tape, x));
}

/* ---- frames side by side ---- */

static struct s2s_tensor *stack(struct s2s_tape *tape, const struct s2s_nn_subsampling *layer,
                                struct s2s_tensor *x, const int64_t *cu_mel, int64_t n_clips)
{
    const int64_t n_mels = layer->how.n_mels, factor = layer->how.factor;
    int64_t n_frames = 0, at = 0;
    for (int64_t k = 0; k < n_clips; k++)
        n_frames += s2s_nn_subsampling_frames(layer, cu_mel[k + 1] - cu_mel[k]);
    int32_t *rows = s2s_xmalloc((size_t)(n_frames * factor + 1) * sizeof *rows);
    for (int64_t k = 0; k < n_clips; k++)
        for (int64_t i = cu_mel[k]; i < cu_mel[k + 1] || at % factor; i++)
            rows[at++] = i < cu_mel[k + 1] ? (int32_t)(i - cu_mel[0]) : -1;
    struct s2s_tensor *idx = s2s_tape_upload_i32(tape, rows, at);
    free(rows);
    x = s2s_op_gather_rows(tape, x, idx);
    if (layer->norm.gain)
        x = s2s_op_layernorm(tape, x, layer->norm.gain->tensor, layer->norm.bias->tensor, NORM_EPS);
    x = s2s_tape_view(tape, x, 2, (int64_t[]){n_frames, factor * n_mels});
    return s2s_nn_linear(tape, &layer->linear, x);
}

struct s2s_tensor *s2s_nn_subsampling(struct s2s_tape *tape, const struct s2s_nn_subsampling *layer,
                                      struct s2s_tensor *mel, const int64_t *cu_mel,
                                      int64_t n_clips)
{
    if (s2s_nn_subsampling_has_stages(layer->how.way))
        return run_stages(tape, layer, mel, cu_mel, n_clips);
    const int64_t shape[] = {s2s_tensor_rows(mel) / layer->how.n_mels, layer->how.n_mels};
    struct s2s_tensor *x = s2s_tape_view(tape, mel, 2, shape);
    return layer->how.way == S2S_NN_NO_SUBSAMPLING ? s2s_nn_linear(tape, &layer->linear, x)
                                                   : stack(tape, layer, x, cu_mel, n_clips);
}
