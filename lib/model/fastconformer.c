/*
 * FastConformer encoders in Hugging Face's form (ParakeetEncoder): mel -> subsampling -> blocks.
 * Clips lie end to end; convolutions and attention stop at their borders.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/conf/conf.h"
#include "lib/model/keys.h"
#include "lib/model/modality.h"
#include "lib/model/model_internal.h"
#include "lib/nn/conformer.h"
#include "lib/nn/subsampling.h"

/* What frames attend to; of several one is drawn for each step of training. */
struct context {
    struct s2s_reach reach;
    double probability;
};

struct config {
    int64_t n_layers;
    bool scale_input;
    double input_dropout, positions_dropout; /* of what goes into the layers, of their positions */
    struct s2s_nn_subsampling_options subsampling;
    struct context *contexts; /* [n_contexts], the first one for evaluation; none: all of a clip */
    int64_t n_contexts;
    struct s2s_nn_conformer_options block;
};

struct fastconformer {
    struct config config;
    struct s2s_nn_subsampling subsampling;
    struct s2s_nn_conformer *layers;
    struct s2s_nn_dropout on_input, on_positions;
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

static int read_sizes(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    enum { BIG = 1 << 24 };
    static const char *const norms[] = {"batch_norm", "layer_norm", NULL};
    const struct model_keys known = {keys, sizeof keys / sizeof *keys, 1, "parakeet_encoder"};
    struct s2s_nn_conformer_options *b = &c->block;
    struct s2s_nn_subsampling_options *sub = &c->subsampling;
    int norm, way, rc;
    if ((rc = model_check_keys(conf, &known, err)) < 0 ||
        (rc = s2s_conf_get_choice_or(&norm, conf, "conv_norm_type", norms, 0, err)) < 0 ||
        (rc = s2s_conf_get_choice_or(&way, conf, "subsampling", s2s_nn_subsampling_names,
                                     S2S_NN_DW_STRIDING, err)) < 0)
        return rc;
    b->layer_norm = norm == 1;
    if ((rc = s2s_conf_get_i64(&b->width, conf, "hidden_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&b->inner, conf, "intermediate_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&c->n_layers, conf, "num_hidden_layers", 0, 10000, err)) < 0 ||
        (rc = s2s_conf_get_i64(&b->n_heads, conf, "num_attention_heads", 1, 10000, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&b->kernel_size, conf, "conv_kernel_size", 1, 4095, 9, err)) <
            0 ||
        (rc = s2s_conf_get_i64_or(&sub->n_mels, conf, "num_mel_bins", 1, 4096, 80, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&sub->channels, conf, "subsampling_conv_channels", 1, BIG, 256,
                                  err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&sub->factor, conf, "subsampling_factor", 1, 256, 8, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&b->attention_bias, conf, "attention_bias", true, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&b->convolution_bias, conf, "convolution_bias", true, err)) <
            0 ||
        (rc = s2s_conf_get_bool_or(&sub->causal, conf, "causal_downsampling", false, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&c->scale_input, conf, "scale_input", true, err)) < 0)
        return rc;
    sub->width = b->width;
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

/* ---- what frames see of their clip: NeMo's keys and meanings ---- */

enum attention { REL_POS, LOCAL, ABSOLUTE };

/* [left, right], frames on each side; -1: all of them. */
static int read_context(struct s2s_reach *reach, const struct s2s_conf *pair, bool in_chunks,
                        struct s2s_error *err)
{
    int64_t side[2];
    int rc;
    if (pair->n_items != 2)
        return s2s_conf_error(err, S2S_E_SHAPE, pair, "expected [left, right]");
    for (int i = 0; i < 2; i++)
        if ((rc = s2s_conf_as_i64(&side[i], pair->items[i], -1, 1 << 24, err)) < 0)
            return rc;
    *reach = (struct s2s_reach){.chunk = 1,
                                .before = side[0] < 0 ? S2S_REACH_ALL : side[0],
                                .after = side[1] < 0 ? S2S_REACH_ALL : side[1]};
    if (side[0] < 0 && side[1] < 0)
        reach->chunk = 0;
    if (!in_chunks || side[1] < 0)
        return 0;
    if (side[0] > 0 && side[0] % (side[1] + 1))
        return s2s_conf_error(err, S2S_E_RANGE, pair,
                              "%lld frames before are no whole number of chunks of %lld",
                              (long long)side[0], (long long)side[1] + 1);
    reach->chunk = side[1] + 1;
    reach->after = 0;
    return 0;
}

static int read_probabilities(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    const struct s2s_conf *list;
    double sum = 0;
    int rc = s2s_conf_get_list(&list, conf, "att_context_probs", err);
    if (rc < 0)
        return rc;
    if (list && (int64_t)list->n_items != c->n_contexts)
        return s2s_conf_error(err, S2S_E_SHAPE, list, "%zu probabilities of %lld contexts",
                              list->n_items, (long long)c->n_contexts);
    for (int64_t i = 0; i < c->n_contexts; i++) {
        double *p = &c->contexts[i].probability;
        *p = 1.0 / (double)c->n_contexts;
        if (list && (rc = s2s_conf_as_f64(p, list->items[i], err)) < 0)
            return rc;
        if (!(*p >= 0))
            return s2s_conf_error(err, S2S_E_RANGE, list->items[i], "%g is no probability", *p);
        sum += *p;
    }
    if (c->n_contexts > 0 && !(fabs(sum - 1) < 1e-6))
        return s2s_conf_error(err, S2S_E_RANGE, list, "these add up to %g, expected 1", sum);
    return 0;
}

/* att_context_size: absent, a pair, or a list of such. */
static int read_contexts(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const styles[] = {"regular", "chunked_limited", NULL};
    static const char *const models[] = {"rel_pos", "rel_pos_local_attn", "abs_pos", NULL};
    const struct s2s_conf *list;
    int style, model, rc;
    if ((rc = s2s_conf_get_choice_or(&style, conf, "att_context_style", styles, 0, err)) < 0 ||
        (rc = s2s_conf_get_choice_or(&model, conf, "self_attention_model", models, REL_POS, err)) <
            0 ||
        (rc = s2s_conf_get_list(&list, conf, "att_context_size", err)) < 0)
        return rc;
    const bool several = list && list->n_items > 0 && list->items[0]->kind == S2S_CONF_LIST;
    c->n_contexts = several ? (int64_t)list->n_items : list && list->n_items > 0;
    c->contexts = s2s_xcalloc((size_t)c->n_contexts + 1, sizeof *c->contexts);
    for (int64_t i = 0; i < c->n_contexts; i++)
        if ((rc = read_context(&c->contexts[i].reach, several ? list->items[i] : list,
                               style == 1 && model != LOCAL, err)) < 0)
            return rc;
    c->block.absolute = model == ABSOLUTE;
    const struct s2s_reach *one = &c->contexts[0].reach;
    /* where the sides differ NeMo's class gives keys the positions of others */
    if (model == LOCAL && (c->n_contexts != 1 || one->before != one->after || one->before < 1 ||
                           one->before == S2S_REACH_ALL))
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, list ? list : conf,
                              "rel_pos_local_attn: expected as many frames on both sides");
    return read_probabilities(c, conf, err);
}

/* "causal", or [left, right] of the convolution in every layer. */
static int read_shift(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    const struct s2s_conf *node = s2s_conf_find(conf, "conv_context_size");
    const int64_t width = c->block.kernel_size;
    int64_t left, right;
    int rc;
    if (!node || s2s_conf_is_unset(conf, "conv_context_size"))
        return 0;
    if (node->text && strcmp(node->text, "causal") == 0) {
        c->block.shift = (width - 1) / 2;
        return 0;
    }
    if (node->kind != S2S_CONF_LIST || node->n_items != 2)
        return s2s_conf_error(err, S2S_E_RANGE, node, "expected causal or [left, right]");
    if ((rc = s2s_conf_as_i64(&left, node->items[0], 0, width, err)) < 0 ||
        (rc = s2s_conf_as_i64(&right, node->items[1], 0, width, err)) < 0)
        return rc;
    if (left + right + 1 != width)
        return s2s_conf_error(err, S2S_E_RANGE, node,
                              "expected two numbers that add up to %lld (conv_kernel_size - 1)",
                              (long long)width - 1);
    c->block.shift = left - (width - 1) / 2;
    return 0;
}

/* What the equations here assume. */
static int check_assumed(const struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const acts[] = {"silu", "swish", NULL};
    bool untied;
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
    if ((rc = s2s_conf_get_bool_or(&untied, conf, "untie_biases", true, err)) < 0)
        return rc;
    if (!untied && !c->block.absolute)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "untie_biases"),
                              "expected true: layers do not share bias_u and bias_v");
    return s2s_conf_get_choice_or(&act, conf, "hidden_act", acts, 0, err);
}

static int read_config(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    int rc = read_sizes(c, conf, err);
    if (rc < 0 || (rc = read_contexts(c, conf, err)) < 0 ||
        (rc = check_assumed(c, conf, err)) < 0 || (rc = read_shift(c, conf, err)) < 0)
        return rc;
    if ((rc = check_subsampling(&c->subsampling, conf, err)) < 0)
        return rc;
    if (c->block.width % c->block.n_heads || c->block.width % 2)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "hidden_size"),
                              "%lld does not divide into %lld heads of even sum",
                              (long long)c->block.width, (long long)c->block.n_heads);
    if (c->block.kernel_size % 2 == 0)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "conv_kernel_size"),
                              "%lld is even: such a kernel has no middle",
                              (long long)c->block.kernel_size);
    return 0;
}

/* NeMo's dropout and dropout_pre_encoder are one here unless the latter is said. */
static int read_dropout(struct config *c, struct s2s_model *model, struct s2s_error *err)
{
    const struct s2s_dropout_rates said = model_said_dropout(model);
    const bool has_inner = !s2s_conf_is_unset(model->conf, "activation_dropout"),
               has_input = !s2s_conf_is_unset(model->conf, "dropout_pre_encoder");
    int rc;
    if ((rc = model_read_dropout(&c->block.dropout, model, "dropout", said.encoder, err)) < 0 ||
        (rc = model_read_dropout(&c->block.inner_dropout, model,
                                 has_inner ? "activation_dropout" : "dropout", said.encoder, err)) <
            0 ||
        (rc = model_read_dropout(&c->input_dropout, model,
                                 has_input ? "dropout_pre_encoder" : "dropout", said.input, err)) <
            0)
        return rc;
    if ((rc = model_read_dropout(&c->block.attention_dropout, model, "attention_dropout",
                                 said.encoder_attention, err)) < 0)
        return rc;
    return model_read_dropout(&c->positions_dropout, model, "dropout_positions", said.positions,
                              err);
}

/* ---- parameters ---- */

static void build_layer(struct s2s_model *model, struct fastconformer *m, int idx)
{
    const size_t begin = model->params->n;
    char *place = s2s_xasprintf("%slayers.%d", model->prefix, idx);
    struct s2s_nn_ctx ctx = {
        .params = model->params, .par = model->par, .place = place, .fan_in = true};
    s2s_nn_conformer_init(&m->layers[idx], &ctx, &m->config.block);
    free(place);
    model_add_block(model,
                    &(struct s2s_block){.run = run_layer,
                                        .impl = &m->layers[idx],
                                        .n_in = 1,
                                        .n_out = 1,
                                        .param_begin = begin,
                                        .hidden = idx + 1,
                                        .pure = true},
                    "layers.%d", idx);
}

/* Ranks of tp have heads, and columns of feed-forward and convolution. */
static int check_ranks(const struct s2s_model *model, const struct s2s_nn_conformer_options *b,
                       struct s2s_error *err)
{
    const int ranks = s2s_group_size(model->par->tp);
    const struct model_cut cuts[] = {
        {"num_attention_heads", "attention heads", b->n_heads, b->n_heads % ranks == 0},
        {"hidden_size", "channels", b->width, b->width % ranks == 0},
        {"intermediate_size", "columns of a feed-forward", b->inner, b->inner % ranks == 0},
        {"conv_norm_type", "channels that layer_norm needs together", b->width,
         !b->layer_norm || ranks == 1},
    };
    return model_check_cuts(model, cuts, sizeof cuts / sizeof *cuts, err);
}

static int fastconformer_build(struct s2s_model *model, struct s2s_error *err)
{
    struct fastconformer *m = model->impl = s2s_xcalloc(1, sizeof *m);
    struct config *c = &m->config;
    int rc = read_config(c, model->conf, err);
    if (rc < 0 || (rc = read_dropout(c, model, err)) < 0 ||
        (rc = check_ranks(model, &c->block, err)) < 0)
        return rc;
    model->draws |= c->n_contexts > 1;
    if ((rc = model_modality_read(&m->modality, model, c->block.width, err)) < 0)
        return rc;
    model->hidden_size = m->modality.out;
    model->n_mels = c->subsampling.n_mels;
    const size_t begin = model->params->n;
    char *place = s2s_xasprintf("%ssubsampling", model->prefix);
    struct s2s_nn_ctx ctx = {
        .params = model->params, .par = model->par, .place = place, .fan_in = true};
    s2s_nn_subsampling_init(&m->subsampling, &ctx, &c->subsampling);
    m->on_input = s2s_nn_dropout_at(&ctx, "dropout", c->input_dropout);
    m->on_positions = s2s_nn_dropout_at(&ctx, "positions", c->positions_dropout);
    free(place);
    model_add_block(model,
                    &(struct s2s_block){.run = run_subsampling, .n_out = 1, .param_begin = begin},
                    "subsampling");
    m->layers = s2s_xcalloc((size_t)c->n_layers + 1, sizeof *m->layers);
    for (int i = 0; i < c->n_layers; i++)
        build_layer(model, m, i);
    m->adapter_begin = model->params->n;
    model_modality_build(model, &m->modality);
    model_add_encoder_loss(model);
    return 0;
}

static void fastconformer_free(void *impl)
{
    struct fastconformer *m = impl;
    model_modality_release(&m->modality);
    free(m->config.contexts);
    free(m->layers);
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

static void name_frames(const struct s2s_model *model, const struct s2s_pass *pass,
                        const struct s2s_media *mel, const int32_t *cu,
                        struct model_encoder_shared *shared)
{
    const struct fastconformer *m = model->impl;
    struct s2s_nn_clips *clips = &shared->clips;
    const bool draws = model->draws && mel->draws;
    struct s2s_tensor *names = draws ? model_name_clips(pass->tape, mel, cu) : NULL;
    model_modality_prepare(&m->modality, pass, shared, is_trained(model, true) ? names : NULL);
    if (!draws || !is_trained(model, false))
        return;
    clips->tp.inside = clips->tp.outside = names;
    clips->positions = model_drop_positions(pass, &m->on_positions, clips->positions);
}

enum { CONTEXT_SITE = 0x6374 }; /* sets what is drawn apart from other draws of a step */

/* In training one of several, the same for all clips of a step. */
static struct s2s_reach reach_of(const struct s2s_model *model, const struct s2s_pass *pass)
{
    const struct config *c = &((const struct fastconformer *)model->impl)->config;
    const struct s2s_media *audio = model_media(pass->batch, S2S_MEDIA_AUDIO);
    if (c->n_contexts == 0)
        return (struct s2s_reach){0};
    int64_t i = 0;
    if (c->n_contexts > 1 && audio && audio->draws && is_trained(model, false)) {
        double at = s2s_rng_uniform_f64(S2S_RNG_KEY(pass->batch->draw, CONTEXT_SITE), 0);
        while (i + 1 < c->n_contexts && at >= c->contexts[i].probability)
            at -= c->contexts[i++].probability;
    }
    return c->contexts[i].reach;
}

/* What layers that see no positions take in their place. */
static void add_nothing(const struct s2s_model *model, struct s2s_tape *tape,
                        struct s2s_nn_clips *clips)
{
    const struct s2s_nn_conformer_options *b =
        &((const struct fastconformer *)model->impl)->config.block;
    const int64_t n = clips->seqs.max_seqlen > 0 ? 2 * clips->seqs.max_seqlen - 1 : 0;
    const int64_t heads = b->n_heads / s2s_group_size(model->par->tp), dim = b->width / b->n_heads;
    float *zeros = s2s_xcalloc((size_t)((n + 1) * heads * dim), sizeof *zeros);
    clips->no_positions = s2s_tape_upload_floats(tape, 2, (int64_t[]){n, heads * dim}, zeros);
    clips->no_bias = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){heads, dim}, zeros);
    free(zeros);
}

/* Adds the sines and cosines of each frame's place in its clip. */
static struct s2s_tensor *add_places(struct s2s_tape *tape, const struct s2s_nn_clips *clips,
                                     const struct s2s_model *model, const struct s2s_media *mel,
                                     struct s2s_tensor *x)
{
    const int64_t n = s2s_tensor_rows(x);
    int32_t *rows = s2s_xmalloc((size_t)(n + 1) * sizeof *rows);
    int64_t at = 0;
    for (int64_t k = 0; k < mel->n; k++) {
        const int64_t len = fastconformer_frames(model, mel->cu[k + 1] - mel->cu[k]);
        for (int64_t i = 0; i < len; i++) /* the row of i - 0 */
            rows[at++] = (int32_t)(clips->seqs.max_seqlen - 1 - i);
    }
    struct s2s_tensor *idx = s2s_tape_upload_i32(tape, rows, n);
    free(rows);
    return s2s_op_add(tape, x, s2s_op_gather_rows(tape, clips->positions, idx));
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
    clips->reach = reach_of(model, pass);
    if (m->config.block.absolute)
        add_nothing(model, tape, clips);
    clips->positions = s2s_op_relpos_table(tape, clips->seqs.max_seqlen, m->config.block.width);
    /* statistics of a batch are for training: a frozen encoder keeps its own; and nothing has none
     */
    clips->batch_stats = model->options.batch_norm_batch && tape->recording && cu[mel.n] > 0;
    if (clips->batch_stats && mel.padded)
        s2s_nn_clips_pad(tape, clips, cu, fastconformer_frames(model, mel.padded));
    name_frames(model, pass, &mel, cu, shared);
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
    if (m->config.scale_input)
        out[0] = s2s_op_scale(tape, sqrtf((float)m->config.block.width), out[0]);
    if (m->config.block.absolute)
        out[0] = add_places(tape, &shared->clips, model, &clips, out[0]);
    out[0] = s2s_nn_drop(tape, &m->on_input, &shared->clips.tp, out[0]);
}

static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct fastconformer *m = ctx->block->model->impl;
    const struct model_encoder_shared *shared = ctx->shared;
    struct s2s_encoder_trace *trace = shared->trace;
    struct s2s_nn_conformer_parts parts;
    const bool looked_at = trace && ctx->block->impl == m->layers;
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
    .free_impl = fastconformer_free,
};
