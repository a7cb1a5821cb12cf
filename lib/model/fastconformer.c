/*
 * FastConformer encoders in Hugging Face's form (ParakeetEncoder): mel -> subsampling -> blocks.
 * Clips lie end to end; convolutions and attention stop at their borders.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/keys.h"
#include "lib/model/modality.h"
#include "lib/model/model_internal.h"
#include "lib/nn/conformer.h"
#include "lib/nn/subsampling.h"

struct fastconformer {
    struct s2s_nn_subsampling subsampling;
    struct model_conformer stack;
    struct modality modality;
    size_t adapter_begin; /* its parameters among those of the registry */
};

static const char *const model_types[] = {"parakeet_encoder", NULL};

static void run_subsampling(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                            struct s2s_tensor *const *in, struct s2s_tensor **out);
static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out);

/* ---- config.json ---- */

/* Keys of transformers' class (5.24), and some of NeMo's that it has not. */
static const struct model_key keys[] = {
    {"hidden_size", MODEL_KEY_NEEDED, 1, NULL, NULL},
    {"intermediate_size", MODEL_KEY_NEEDED, 1, NULL, NULL},
    {"num_hidden_layers", MODEL_KEY_NEEDED, 1, NULL, NULL},
    {"num_attention_heads", MODEL_KEY_NEEDED, 1, NULL, NULL},
    {"num_key_value_heads", MODEL_KEY_READ, 1, NULL, NULL},
    {"hidden_act", MODEL_KEY_READ, 1, NULL, NULL},
    {"attention_bias", MODEL_KEY_READ, 1, NULL, NULL},
    {"convolution_bias", MODEL_KEY_READ, 1, NULL, NULL},
    {"conv_kernel_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"conv_norm_type", MODEL_KEY_READ, 1, NULL, NULL},
    {"num_mel_bins", MODEL_KEY_READ, 1, NULL, NULL},
    {"scale_input", MODEL_KEY_READ, 1, NULL, NULL},
    {"subsampling", MODEL_KEY_READ, 1, NULL, NULL},
    {"subsampling_factor", MODEL_KEY_READ, 1, NULL, NULL},
    {"subsampling_conv_channels", MODEL_KEY_READ, 1, NULL, NULL},
    {"subsampling_conv_kernel_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"subsampling_conv_stride", MODEL_KEY_READ, 1, NULL, NULL},
    {"modality_adapter", MODEL_KEY_READ, 1, NULL, NULL},
    {"dropout", MODEL_KEY_READ, 1, NULL, NULL},
    {"activation_dropout", MODEL_KEY_READ, 1, NULL, NULL},
    {"attention_dropout", MODEL_KEY_READ, 1, NULL, NULL},
    {"dropout_positions", MODEL_KEY_READ, 1, NULL, NULL},
    {"dropout_pre_encoder", MODEL_KEY_READ, 1, NULL, NULL},
    {"layerdrop", MODEL_KEY_QUIET, 1, NULL, NULL}, /* layers are never left out */
    {"initializer_range", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"max_position_embeddings", MODEL_KEY_QUIET, 1, NULL, NULL}, /* tables grow */
    {"pad_token_id", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"self_attention_model", MODEL_KEY_READ, 1, NULL, NULL},
    {"global_tokens", MODEL_KEY_OFF, 1, NULL, NULL},
    {"global_tokens_spacing", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"global_attn_separate", MODEL_KEY_OFF, 1, NULL, NULL},
    {"untie_biases", MODEL_KEY_READ, 1, NULL, NULL},
    {"att_context_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"att_context_probs", MODEL_KEY_READ, 1, NULL, NULL},
    {"att_context_style", MODEL_KEY_READ, 1, NULL, NULL},
    {"conv_context_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"causal_downsampling", MODEL_KEY_READ, 1, NULL, NULL},
};

static const struct model_conformer_keys names = {.width = "hidden_size",
                                                  .heads = "num_attention_heads",
                                                  .inner = "intermediate_size",
                                                  .kernel = "conv_kernel_size",
                                                  .norm = "conv_norm_type",
                                                  .positions = "self_attention_model",
                                                  .context = "att_context_size",
                                                  .style = "att_context_style",
                                                  .probs = "att_context_probs",
                                                  .sides = "conv_context_size",
                                                  .untied = "untie_biases",
                                                  .dropout = "dropout",
                                                  .inner_dropout = "activation_dropout",
                                                  .input_dropout = "dropout_pre_encoder",
                                                  .attention_dropout = "attention_dropout",
                                                  .positions_dropout = "dropout_positions"};
enum { BIG = 1 << 24 };

static int read_sizes(struct model_conformer *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    struct s2s_nn_conformer_options *b = &c->block;
    int rc;
    if ((rc = s2s_conf_get_i64(&b->width, conf, "hidden_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&b->inner, conf, "intermediate_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&c->n_layers, conf, "num_hidden_layers", 0, 10000, err)) < 0 ||
        (rc = s2s_conf_get_i64(&b->n_heads, conf, "num_attention_heads", 1, 10000, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&b->kernel_size, conf, "conv_kernel_size", 1, 4095, 9, err)) <
            0 ||
        (rc = s2s_conf_get_bool_or(&b->attention_bias, conf, "attention_bias", true, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&b->convolution_bias, conf, "convolution_bias", true, err)) < 0)
        return rc;
    return s2s_conf_get_bool_or(&c->scale_input, conf, "scale_input", true, err);
}

static int read_subsampling(struct s2s_nn_subsampling_options *sub, int64_t width,
                            const struct s2s_conf *conf, struct s2s_error *err)
{
    int way, rc;
    if ((rc = s2s_conf_get_choice_or(&way, conf, "subsampling", s2s_nn_subsampling_names,
                                     S2S_NN_DW_STRIDING, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&sub->n_mels, conf, "num_mel_bins", 1, 4096, 80, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&sub->channels, conf, "subsampling_conv_channels", 1, BIG, 256,
                                  err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&sub->factor, conf, "subsampling_factor", 1, 256, 8, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&sub->causal, conf, "causal_downsampling", false, err)) < 0)
        return rc;
    sub->width = width;
    /* a factor of 1 is NeMo's way of none */
    sub->way = sub->factor == 1 ? S2S_NN_NO_SUBSAMPLING : (enum s2s_nn_subsampling_way)way;
    return 0;
}

static int check_subsampling(const struct s2s_nn_subsampling_options *sub,
                             const struct s2s_conf *conf, struct s2s_error *err)
{
    const bool is_power = (sub->factor & (sub->factor - 1)) == 0;
    if (!s2s_nn_subsampling_has_stages(sub->way))
        return 0; /* what is causal or not is the same there */
    if (!is_power)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "subsampling_factor"),
                              "%lld is not a power of two up to %d", (long long)sub->factor,
                              1 << S2S_NN_MAX_STAGES);
    if (sub->causal && !s2s_nn_subsampling_may_be_causal(sub->way))
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "causal_downsampling"),
                              "a subsampling of %s sees what follows",
                              s2s_nn_subsampling_names[sub->way]);
    return 0;
}

/* What the equations here assume. */
static int check_assumed(int64_t n_heads, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const acts[] = {"silu", "swish", NULL};
    const struct {
        const char *key;
        int64_t value;
    } fixed[] = {{"subsampling_conv_kernel_size", 3},
                 {"subsampling_conv_stride", 2},
                 {"num_key_value_heads", n_heads}};
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

static int read_config(struct fastconformer *m, struct s2s_nn_subsampling_options *sub,
                       struct s2s_model *model, struct s2s_error *err)
{
    const struct model_keys known = {keys, sizeof keys / sizeof *keys, 1, "parakeet_encoder"};
    struct model_conformer *c = &m->stack;
    int rc;
    if ((rc = model_check_keys(model->conf, &known, err)) < 0 ||
        (rc = read_sizes(c, model->conf, err)) < 0 ||
        (rc = read_subsampling(sub, c->block.width, model->conf, err)) < 0 ||
        (rc = check_subsampling(sub, model->conf, err)) < 0 ||
        (rc = check_assumed(c->block.n_heads, model->conf, err)) < 0 ||
        (rc = model_conformer_read(c, model, &names, err)) < 0)
        return rc;
    return model_modality_read(&m->modality, model, c->block.width, err);
}

/* ---- parameters ---- */

static int build_blocks(struct s2s_model *model, struct fastconformer *m,
                        const struct s2s_nn_subsampling_options *sub, struct s2s_error *err)
{
    const size_t begin = model->params->n;
    char *place = s2s_xasprintf("%ssubsampling", model->prefix);
    const struct s2s_nn_ctx ctx = {
        .params = model->params, .par = model->par, .place = place, .fan_in = true};
    s2s_nn_subsampling_init(&m->subsampling, &ctx, sub);
    int rc = model_conformer_begin(&m->stack, model, &ctx, "layers", err);
    free(place);
    if (rc < 0)
        return rc;
    model_add_block(model,
                    &(struct s2s_block){.run = run_subsampling, .n_out = 1, .param_begin = begin},
                    "subsampling");
    for (int i = 0; i < m->stack.n_layers; i++) {
        struct s2s_block block = {.run = run_layer, .hidden = i + 1};
        model_conformer_add_layer(&m->stack, model, i, "layers", &block);
        model_add_block(model, &block, "layers.%d", i);
    }
    m->adapter_begin = model->params->n;
    if ((rc = model_modality_build(model, &m->modality, err)) < 0)
        return rc;
    model_add_encoder_loss(model);
    return 0;
}

static int fastconformer_build(struct s2s_model *model, struct s2s_error *err)
{
    struct fastconformer *m = model->impl = s2s_xcalloc(1, sizeof *m);
    struct s2s_nn_subsampling_options sub;
    int rc = read_config(m, &sub, model, err);
    if (rc < 0)
        return rc;
    model->hidden_size = m->modality.out;
    model->n_mels = sub.n_mels;
    return build_blocks(model, m, &sub, err);
}

static bool fastconformer_is_copy(const struct s2s_model *model, const char *name)
{
    const struct fastconformer *m = model->impl;
    return model_conformer_is_copy(&m->stack, "layers", name) ||
           model_conformer_is_copy(&m->modality.stack, MODALITY_LAYERS, name);
}

static void fastconformer_free(void *impl)
{
    struct fastconformer *m = impl;
    model_modality_release(&m->modality);
    model_conformer_release(&m->stack);
    free(m);
}

static int64_t fastconformer_frames(const struct s2s_model *model, int64_t n_mel)
{
    const struct fastconformer *m = model->impl;
    return s2s_nn_subsampling_frames(&m->subsampling, n_mel);
}

/* ---- forward ---- */

/* Whether something is trained of the encoder itself, or of what follows it: else it is as in
 * evaluation. */
static bool is_trained(const struct s2s_model *model, bool adapter)
{
    const struct fastconformer *m = model->impl;
    const size_t begin = model->blocks[0].param_begin,
                 end = model->blocks[model->n_blocks - 1].param_end;
    for (size_t p = adapter ? m->adapter_begin : begin; p < (adapter ? end : m->adapter_begin); p++)
        if (model->params->list[p]->trained)
            return true;
    return false;
}

static void *fastconformer_prepare(const struct s2s_model *model, const struct s2s_pass *pass)
{
    const struct fastconformer *m = model->impl;
    struct s2s_tape *tape = pass->tape;
    struct model_encoder_shared *shared = s2s_tape_host_alloc(tape, sizeof *shared);
    struct s2s_nn_clips *clips = &shared->clips;
    const struct s2s_media mel = model_own_media(model, pass, S2S_MEDIA_AUDIO);
    int32_t *cu = s2s_tape_host_alloc(tape, (size_t)(mel.n + 1) * sizeof *cu);
    for (int64_t k = 0; k < mel.n; k++)
        cu[k + 1] = cu[k] + (int32_t)fastconformer_frames(model, mel.cu[k + 1] - mel.cu[k]);
    clips->tp = (struct s2s_nn_tp){.group = model->par->tp};
    clips->seqs = s2s_op_seqs(tape, cu, mel.n);
    /* statistics of a batch are for training: a frozen encoder keeps its own; and nothing has none
     */
    clips->batch_stats = model->options.batch_norm_batch && tape->recording && cu[mel.n] > 0;
    if (clips->batch_stats && mel.padded)
        s2s_nn_clips_pad(tape, clips, cu, fastconformer_frames(model, mel.padded));
    struct s2s_tensor *rows = model->draws ? model_name_clips(tape, &mel, cu) : NULL;
    model_modality_prepare(&m->modality, pass, shared, cu, is_trained(model, true) ? rows : NULL);
    model_conformer_prepare(&m->stack, pass, clips, cu, is_trained(model, false) ? rows : NULL);
    shared->trace = pass->fwd->trace;
    if (shared->trace)
        shared->trace->positions = clips->positions;
    return shared;
}

static void run_subsampling(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                            struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct s2s_model *model = ctx->block->model;
    const struct fastconformer *m = model->impl;
    const struct s2s_media clips = model_own_media(model, ctx->pass, S2S_MEDIA_AUDIO);
    const struct model_encoder_shared *shared = ctx->shared;
    const int64_t shape[] = {clips.cu[clips.n] - clips.cu[0], model->n_mels, 1};
    struct s2s_tensor *mel = s2s_tape_upload_floats(
        tape, 3, shape, clips.n ? clips.data + clips.cu[0] * clips.width : NULL);
    if (shared->trace) {
        s2s_tape_want_grad(mel);
        shared->trace->mel = mel;
    }
    out[0] = s2s_nn_subsampling(tape, &m->subsampling, mel, clips.cu, clips.n);
    if (shared->trace)
        shared->trace->subsampling = out[0];
    out[0] = model_conformer_enter(tape, &m->stack, &shared->clips, out[0]);
}

static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct fastconformer *m = ctx->block->model->impl;
    const struct model_encoder_shared *shared = ctx->shared;
    struct s2s_encoder_trace *trace = shared->trace;
    struct s2s_nn_conformer_parts parts;
    const bool looked_at = trace && ctx->block->impl == m->stack.layers;
    out[0] =
        s2s_nn_conformer(tape, ctx->block->impl, in[0], &shared->clips, looked_at ? &parts : NULL);
    if (!looked_at)
        return;
    trace->ff1 = parts.ff1;
    trace->attention = parts.attention;
    trace->conv = parts.conv;
    trace->ff2 = parts.ff2;
}

/* ---- what a batch must have ---- */

static int fastconformer_check(const struct s2s_model *model, const struct s2s_batch *batch,
                               struct s2s_error *err)
{
    const struct s2s_media *mel = model_media(batch, S2S_MEDIA_AUDIO);
    if (!model_has_features(mel))
        return s2s_error_set(err, S2S_E_ARG, "an encoder needs mel features");
    if (mel->width != model->n_mels)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "features have %lld mel bins; the encoder expects %lld",
                             (long long)mel->width, (long long)model->n_mels);
    if (mel->cu[mel->n] - mel->cu[0] > INT32_MAX / 2)
        return s2s_error_set(err, S2S_E_RANGE, "%lld mel frames in one batch",
                             (long long)(mel->cu[mel->n] - mel->cu[0]));
    return 0;
}

const struct s2s_model_kind s2s_model_fastconformer = {
    .model_types = model_types,
    .build = fastconformer_build,
    .check = fastconformer_check,
    .prepare = fastconformer_prepare,
    .frames = fastconformer_frames,
    .is_copy = fastconformer_is_copy,
    .free_impl = fastconformer_free,
};
