/*
 * FastConformer encoders in Hugging Face's form (ParakeetEncoder): mel -> subsampling -> blocks.
 * Clips lie end to end; convolutions and attention stop at their borders.
 */
#include <math.h>
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/model_internal.h"
#include "lib/nn/conformer.h"

struct config {
    int64_t n_layers, n_mels, channels, factor;
    int n_stages;
    bool scale_input;
    struct s2s_nn_conformer_options block;
};

struct fastconformer {
    struct config config;
    struct s2s_nn_subsampling subsampling;
    struct s2s_nn_conformer *layers;
};

static const char *const model_types[] = {"parakeet_encoder", NULL};

/* ---- config.json ---- */

static int read_sizes(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    enum { BIG = 1 << 24 };
    struct s2s_nn_conformer_options *b = &c->block;
    int rc;
    if ((rc = s2s_conf_get_i64(&b->width, conf, "hidden_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&b->inner, conf, "intermediate_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&c->n_layers, conf, "num_hidden_layers", 0, 10000, err)) < 0 ||
        (rc = s2s_conf_get_i64(&b->n_heads, conf, "num_attention_heads", 1, 10000, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&b->kernel_size, conf, "conv_kernel_size", 1, 4095, 9, err)) <
            0 ||
        (rc = s2s_conf_get_i64_or(&c->n_mels, conf, "num_mel_bins", 1, 4096, 80, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->channels, conf, "subsampling_conv_channels", 1, BIG, 256,
                                  err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->factor, conf, "subsampling_factor", 2, 256, 8, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&b->attention_bias, conf, "attention_bias", true, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&b->convolution_bias, conf, "convolution_bias", true, err)) <
            0 ||
        (rc = s2s_conf_get_bool_or(&c->scale_input, conf, "scale_input", true, err)) < 0)
        return rc;
    return 0;
}

/* What the equations here assume. */
static int check_assumed(const struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const acts[] = {"silu", "swish", NULL};
    const struct {
        const char *key;
        int64_t value;
    } fixed[] = {{"subsampling_conv_kernel_size", 3},
                 {"subsampling_conv_stride", 2},
                 {"num_key_value_heads", c->block.n_heads}};
    int64_t value;
    int act, rc;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        if ((rc = s2s_conf_get_i64_or(&value, conf, fixed[i].key, 1, 1 << 24, fixed[i].value,
                                      err)) < 0)
            return rc;
        if (value != fixed[i].value)
            return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, fixed[i].key),
                                  "%lld where only %lld is implemented", (long long)value,
                                  (long long)fixed[i].value);
    }
    return s2s_conf_get_choice_or(&act, conf, "hidden_act", acts, 0, err);
}

static int read_config(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    int rc = read_sizes(c, conf, err);
    if (rc < 0 || (rc = check_assumed(c, conf, err)) < 0)
        return rc;
    while ((1 << c->n_stages) < c->factor)
        c->n_stages++;
    if ((1 << c->n_stages) != c->factor || c->n_stages > S2S_NN_MAX_STAGES)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "subsampling_factor"),
                              "%lld is not a power of two up to %d", (long long)c->factor,
                              1 << S2S_NN_MAX_STAGES);
    if (c->block.width % c->block.n_heads || c->block.width % 2)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "hidden_size"),
                              "%lld does not divide into %lld heads of even sum",
                              (long long)c->block.width, (long long)c->block.n_heads);
    if (c->block.kernel_size % 2 == 0)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "conv_kernel_size"),
                              "%lld is even: such a kernel has no middle",
                              (long long)c->block.kernel_size);
    if (c->n_mels % c->factor)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "num_mel_bins"),
                              "%lld is no multiple of subsampling_factor %lld",
                              (long long)c->n_mels, (long long)c->factor);
    return 0;
}

/* ---- parameters ---- */

static int fastconformer_build(struct s2s_model *model, struct s2s_error *err)
{
    struct fastconformer *m = model->impl = s2s_xcalloc(1, sizeof *m);
    struct config *c = &m->config;
    int rc = read_config(c, model->conf, err);
    if (rc < 0)
        return rc;
    model->hidden_size = c->block.width;
    model->n_mels = c->n_mels;
    char *place = s2s_xasprintf("%ssubsampling", model->prefix);
    struct s2s_nn_ctx ctx = {.params = model->params, .par = model->par, .place = place};
    s2s_nn_subsampling_init(&m->subsampling, &ctx, c->n_stages, c->n_mels, c->channels,
                            c->block.width);
    free(place);
    m->layers = s2s_xcalloc((size_t)c->n_layers + 1, sizeof *m->layers);
    for (int i = 0; i < c->n_layers; i++) {
        ctx.place = place = s2s_xasprintf("%slayers.%d", model->prefix, i);
        s2s_nn_conformer_init(&m->layers[i], &ctx, &c->block);
        free(place);
    }
    return 0;
}

static void fastconformer_free(void *impl)
{
    struct fastconformer *m = impl;
    free(m->layers);
    free(m);
}

static int64_t fastconformer_frames(const struct s2s_model *model, int64_t n_mel)
{
    const struct fastconformer *m = model->impl;
    return s2s_nn_subsampling_frames(&m->subsampling, n_mel);
}

/* ---- forward ---- */

struct layer_ctx {
    const struct s2s_nn_conformer *layer;
    const struct s2s_nn_clips *clips;
};

static void run_layer(struct s2s_tape *tape, void *ctx, struct s2s_tensor *const *in,
                      struct s2s_tensor **out)
{
    const struct layer_ctx *c = ctx;
    *out = s2s_nn_conformer(tape, c->layer, in[0], c->clips, NULL);
}

static struct s2s_tensor *run_layers(struct s2s_model *model, struct s2s_tape *tape,
                                     struct s2s_tensor *h, const struct s2s_nn_clips *clips,
                                     struct s2s_forward *fwd)
{
    const struct fastconformer *m = model->impl;
    const int n = (int)m->config.n_layers;
    fwd->hidden = s2s_tape_host_alloc(tape, (size_t)(n + 1) * sizeof *fwd->hidden);
    fwd->n_hidden = n + 1;
    fwd->hidden[0] = h;
    for (int i = 0; i < n; i++) {
        s2s_tape_layer(tape, "%slayers.%d", model->prefix, i);
        if (fwd->trace && i == 0) {
            struct s2s_nn_conformer_parts parts;
            h = s2s_nn_conformer(tape, &m->layers[i], h, clips, &parts);
            fwd->trace->ff1 = parts.ff1;
            fwd->trace->attention = parts.attention;
            fwd->trace->conv = parts.conv;
            fwd->trace->ff2 = parts.ff2;
        } else {
            struct layer_ctx *ctx = s2s_tape_host_alloc(tape, sizeof *ctx);
            *ctx = (struct layer_ctx){&m->layers[i], clips};
            /* without recording a segment gives the layer's memory back */
            if (fwd->recompute || !tape->recording)
                s2s_tape_segment(tape, run_layer, ctx, 1, &h, 1, &h, model->params->n_trained > 0);
            else
                run_layer(tape, ctx, &h, &h);
        }
        fwd->hidden[i + 1] = h;
    }
    return h;
}

static int fastconformer_check(const struct s2s_model *model, const struct s2s_batch *batch,
                               struct s2s_error *err)
{
    if (!batch->mel || !batch->cu_mel)
        return s2s_error_set(err, S2S_E_ARG, "an encoder needs mel features");
    if (batch->n_mels != model->n_mels)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "features have %lld mel bins; the encoder expects %lld",
                             (long long)batch->n_mels, (long long)model->n_mels);
    if (batch->cu_mel[batch->n_clips] - batch->cu_mel[0] > INT32_MAX / 2)
        return s2s_error_set(err, S2S_E_RANGE, "%lld mel frames in one batch",
                             (long long)(batch->cu_mel[batch->n_clips] - batch->cu_mel[0]));
    return 0;
}

static void fastconformer_forward(struct s2s_model *model, struct s2s_tape *tape,
                                  const struct s2s_batch *batch, struct s2s_forward *fwd)
{
    const struct fastconformer *m = model->impl;
    int64_t shape[] = {batch->cu_mel[batch->n_clips] - batch->cu_mel[0], batch->n_mels, 1};
    struct s2s_tensor *mel =
        s2s_tape_upload(tape, S2S_F32, 3, shape, batch->mel + batch->cu_mel[0] * batch->n_mels);
    if (fwd->trace) {
        s2s_tape_want_grad(mel);
        fwd->trace->mel = mel;
    }
    s2s_tape_layer(tape, "%ssubsampling", model->prefix);
    struct s2s_tensor *h = s2s_nn_subsampling(tape, &m->subsampling, mel, batch->cu_mel,
                                              batch->n_clips, &fwd->cu_frames);
    struct s2s_nn_clips *clips = s2s_tape_host_alloc(tape, sizeof *clips);
    clips->seqs = s2s_op_seqs(tape, fwd->cu_frames, batch->n_clips);
    clips->positions = s2s_op_relpos_table(tape, clips->seqs.max_seqlen, m->config.block.width);
    /* statistics of a batch are for training: a frozen encoder keeps its own */
    clips->batch_stats = model->options.batch_norm_batch && tape->recording;
    if (clips->batch_stats && batch->padded_mel)
        s2s_nn_clips_pad(tape, clips, fwd->cu_frames,
                         fastconformer_frames(model, batch->padded_mel));
    if (fwd->trace) {
        fwd->trace->subsampling = h;
        fwd->trace->positions = clips->positions;
    }
    if (m->config.scale_input)
        h = s2s_op_scale(tape, sqrtf((float)m->config.block.width), h);
    fwd->output = run_layers(model, tape, h, clips, fwd);
    if (batch->target) {
        struct s2s_tensor *target =
            s2s_tape_upload(tape, S2S_F32, 2, fwd->output->shape, batch->target);
        fwd->loss = s2s_op_sqdist(tape, fwd->output, target, fwd->seed);
    }
}

const struct s2s_model_kind s2s_model_fastconformer = {
    .model_types = model_types,
    .build = fastconformer_build,
    .check = fastconformer_check,
    .forward = fastconformer_forward,
    .frames = fastconformer_frames,
    .free_impl = fastconformer_free,
};
