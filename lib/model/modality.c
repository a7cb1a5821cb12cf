/* Reads, builds and runs modality adapters. */
#include "lib/model/modality.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/affix.h"
#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/keys.h"
#include "lib/model/model_internal.h"

enum { BIG = 1 << 24 };

/* ---- config ---- */

#define IDENTITY (1u << MODALITY_IDENTITY)
#define LINEAR (1u << MODALITY_LINEAR)
#define CONFORMER (1u << MODALITY_CONFORMER)

/* Keys of NeMo's ConformerEncoder, and of ours. */
static const struct model_key keys[] = {
    {"type", MODEL_KEY_READ, IDENTITY | LINEAR | CONFORMER, NULL, NULL},
    {"_target_", MODEL_KEY_READ, IDENTITY | LINEAR | CONFORMER, NULL, NULL},
    {"feat_in", MODEL_KEY_READ, LINEAR | CONFORMER, NULL, NULL},
    {"hidden_dim", MODEL_KEY_READ, LINEAR, NULL, NULL},
    {"output_dim", MODEL_KEY_NEEDED, LINEAR, NULL, NULL},
    {"activation", MODEL_KEY_READ, LINEAR, NULL, NULL},
    {"bias", MODEL_KEY_READ, LINEAR, NULL, NULL},
    {"d_model", MODEL_KEY_NEEDED, CONFORMER, NULL, NULL},
    {"n_layers", MODEL_KEY_NEEDED, CONFORMER, NULL, NULL},
    {"feat_out", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"n_heads", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"ff_expansion_factor", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"conv_kernel_size", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"conv_norm_type", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"use_bias", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"xscaling", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"dropout", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"dropout_pre_encoder", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"dropout_emb", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"dropout_att", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"subsampling_factor", MODEL_KEY_FIXED, CONFORMER, "1", "expected 1: frames stay as they are"},
    {"self_attention_model", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"untie_biases", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"att_context_size", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"att_context_style", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"att_context_probs", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"conv_context_size", MODEL_KEY_READ, CONFORMER, NULL, NULL},
    {"causal_downsampling", MODEL_KEY_QUIET, CONFORMER, NULL, NULL}, /* there is none */
    {"subsampling", MODEL_KEY_QUIET, CONFORMER, NULL, NULL},
    {"subsampling_conv_channels", MODEL_KEY_QUIET, CONFORMER, NULL, NULL},
    {"subsampling_conv_chunking_factor", MODEL_KEY_QUIET, CONFORMER, NULL, NULL},
    {"pos_emb_max_len", MODEL_KEY_QUIET, CONFORMER, NULL, NULL}, /* tables grow */
    {"use_pytorch_sdpa", MODEL_KEY_QUIET, CONFORMER, NULL, NULL},
    {"use_pytorch_sdpa_backends", MODEL_KEY_QUIET, CONFORMER, NULL, NULL},
    {"sync_max_audio_length", MODEL_KEY_QUIET, CONFORMER, NULL, NULL},
    {"global_tokens", MODEL_KEY_OFF, CONFORMER, NULL, NULL},
    {"reduction", MODEL_KEY_OFF, CONFORMER, NULL, NULL},
    {"stochastic_depth_drop_prob", MODEL_KEY_OFF, CONFORMER, NULL, NULL},
};

/* By `type`, or by the class that NeMo's _target_ names. */
static int read_kind(enum modality_kind *kind, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const types[] = {"identity", "linear", "conformer", NULL};
    static const char *const classes[] = {"IdentityConnector", NULL, "ConformerEncoder"};
    const char *target;
    int type = -1;
    int rc = s2s_conf_get_str_or(&target, conf, "_target_", NULL, err);
    if (rc < 0)
        return rc;
    if (!target || !s2s_conf_is_unset(conf, "type")) {
        rc = s2s_conf_get_choice(&type, conf, "type", types, err);
        *kind = (enum modality_kind)type;
        return rc < 0 ? rc : 0;
    }
    for (int i = 0; i < 3; i++)
        if (classes[i] && s2s_has_tail(target, '.', classes[i]))
            type = i;
    if (type < 0)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "_target_"),
                              "'%s' is not known; known are IdentityConnector and "
                              "ConformerEncoder",
                              target);
    *kind = (enum modality_kind)type;
    return 0;
}

static int read_linear(struct modality *m, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const names[] = {"gelu", "relu", "silu", NULL};
    static const enum s2s_act acts[] = {S2S_ACT_GELU, S2S_ACT_RELU, S2S_ACT_SILU};
    int act, rc;
    if ((rc = s2s_conf_get_i64(&m->out, conf, "output_dim", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&m->inner, conf, "hidden_dim", 1, BIG, m->out, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&m->bias, conf, "bias", true, err)) < 0 ||
        (rc = s2s_conf_get_choice_or(&act, conf, "activation", names, 0, err)) < 0)
        return rc;
    m->act = acts[act];
    return 0;
}

static const struct model_conformer_keys names = {
    .width = "modality_adapter.d_model",
    .heads = "modality_adapter.n_heads",
    .inner = "modality_adapter.ff_expansion_factor",
    .kernel = "modality_adapter.conv_kernel_size",
    .norm = "modality_adapter.conv_norm_type",
    .positions = "modality_adapter.self_attention_model",
    .context = "modality_adapter.att_context_size",
    .style = "modality_adapter.att_context_style",
    .probs = "modality_adapter.att_context_probs",
    .sides = "modality_adapter.conv_context_size",
    .untied = "modality_adapter.untie_biases",
    .dropout = "modality_adapter.dropout",
    .input_dropout = "modality_adapter.dropout_pre_encoder",
    .attention_dropout = "modality_adapter.dropout_att",
    .positions_dropout = "modality_adapter.dropout_emb"};

static int read_conformer(struct modality *m, const struct s2s_conf *conf, struct s2s_error *err)
{
    struct s2s_nn_conformer_options *b = &m->stack.block;
    const bool no_scale = s2s_conf_find(conf, "xscaling") && s2s_conf_is_unset(conf, "xscaling");
    int64_t factor, out;
    bool bias;
    int rc;
    if ((rc = s2s_conf_get_i64(&b->width, conf, "d_model", 2, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&m->stack.n_layers, conf, "n_layers", 0, 10000, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&b->n_heads, conf, "n_heads", 1, 10000, 4, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&factor, conf, "ff_expansion_factor", 1, 1024, 4, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&b->kernel_size, conf, "conv_kernel_size", 1, 4095, 31, err)) <
            0 ||
        (rc = s2s_conf_get_i64_or(&out, conf, "feat_out", -1, BIG, -1, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&bias, conf, "use_bias", true, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&m->stack.scale_input, conf, "xscaling", !no_scale /* null */,
                                   err)) < 0)
        return rc;
    b->inner = factor * b->width;
    b->attention_bias = b->convolution_bias = bias;
    m->stack.number = 1;
    m->inner = b->width;
    m->out = out > 0 ? out : b->width;
    return 0;
}

int model_modality_read(struct modality *m, struct s2s_model *model, int64_t width,
                        struct s2s_error *err)
{
    const struct s2s_conf *conf;
    int64_t in;
    *m = (struct modality){.kind = MODALITY_IDENTITY, .in = width, .out = width};
    int rc = s2s_conf_get_map(&conf, model->conf, "modality_adapter", err);
    if (rc < 0 || !conf)
        return rc;
    if ((rc = read_kind(&m->kind, conf, err)) < 0)
        return rc;
    const struct model_keys known = {keys, sizeof keys / sizeof *keys, 1u << m->kind,
                                     "modality_adapter"};
    if ((rc = model_check_keys(conf, &known, err)) < 0 || m->kind == MODALITY_IDENTITY ||
        (rc = s2s_conf_get_i64_or(&in, conf, "feat_in", 1, BIG, width, err)) < 0)
        return rc;
    if (in != width)
        return s2s_conf_error(err, S2S_E_SHAPE, s2s_conf_find(conf, "feat_in"),
                              "%lld, but the encoder is %lld wide", (long long)in,
                              (long long)width);
    if (m->kind == MODALITY_LINEAR)
        return read_linear(m, conf, err);
    if ((rc = read_conformer(m, conf, err)) < 0)
        return rc;
    /* NeMo's defaults leave something out (0.1); here what is not said is 0 */
    return model_conformer_read(&m->stack, model, &names, err);
}

void model_modality_release(struct modality *m)
{
    model_conformer_release(&m->stack);
    *m = (struct modality){.kind = MODALITY_IDENTITY};
}

/* ---- blocks ---- */

static void run_first(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct modality *m = ctx->block->impl;
    const struct model_encoder_shared *shared = ctx->shared;
    struct s2s_tensor *x = s2s_nn_linear(tape, &m->first, in[0]);
    if (m->kind == MODALITY_LINEAR) {
        out[0] = s2s_nn_linear(tape, &m->last, s2s_op_glu(tape, x, NULL, m->act));
        return;
    }
    out[0] = model_conformer_enter(tape, &m->stack, &shared->adapted, x);
}

static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct model_encoder_shared *shared = ctx->shared;
    out[0] = s2s_nn_conformer(tape, ctx->block->impl, in[0], &shared->adapted, NULL);
}

static void run_last(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                     struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    out[0] = s2s_nn_linear(tape, ctx->block->impl, in[0]);
}

static void add_block(struct s2s_model *model, const struct s2s_block *block, const char *name,
                      int idx)
{
    for (size_t i = block->param_begin; i < model->params->n; i++)
        model->params->list[i]->flags |= S2S_PARAM_OPTIONAL;
    if (idx < 0)
        model_add_block(model, block, "modality_adapter.%s", name);
    else
        model_add_block(model, block, "modality_adapter.%s.%d", name, idx);
}

int model_modality_build(struct s2s_model *model, struct modality *m, struct s2s_error *err)
{
    struct s2s_block block = {.run = run_first,
                              .impl = m,
                              .n_in = 1,
                              .n_out = 1,
                              .param_begin = model->params->n,
                              .hidden = -1,
                              .pure = true};
    if (m->kind == MODALITY_IDENTITY)
        return 0;
    char *place = s2s_xasprintf("%smodality_adapter", model->prefix);
    const struct s2s_nn_ctx ctx = {
        .params = model->params, .par = model->par, .place = place, .fan_in = true};
    const bool linear = m->kind == MODALITY_LINEAR;
    s2s_nn_linear_init(&m->first, &ctx, linear ? "linear1" : "pre_encode", m->inner, m->in,
                       !linear || m->bias, S2S_NN_WHOLE);
    if (linear)
        s2s_nn_linear_init(&m->last, &ctx, "linear2", m->out, m->inner, m->bias, S2S_NN_WHOLE);
    int rc = linear ? 0 : model_conformer_begin(&m->stack, model, &ctx, MODALITY_LAYERS, err);
    if (rc < 0)
        goto out;
    add_block(model, &block, linear ? "linear" : "pre_encode", -1);
    for (int i = 0; i < m->stack.n_layers; i++) {
        struct s2s_block layer = {.run = run_layer, .hidden = -1};
        model_conformer_add_layer(&m->stack, model, i, MODALITY_LAYERS, &layer);
        add_block(model, &layer, "layers", i);
    }
    if (!linear && m->out != m->inner) {
        block.run = run_last;
        block.impl = &m->last;
        block.param_begin = model->params->n;
        s2s_nn_linear_init(&m->last, &ctx, "out_proj", m->out, m->inner, true, S2S_NN_WHOLE);
        add_block(model, &block, "out_proj", -1);
    }
out:
    free(place);
    return rc;
}

void model_modality_prepare(const struct modality *m, const struct s2s_pass *pass,
                            struct model_encoder_shared *shared, const int32_t *cu,
                            struct s2s_tensor *rows)
{
    if (m->kind != MODALITY_CONFORMER)
        return;
    shared->adapted = shared->clips;
    model_conformer_prepare(&m->stack, pass, &shared->adapted, cu, rows);
}
