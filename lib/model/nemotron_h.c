/*
 * Nemotron-H: layers of one mixer each, h += mixer(norm(h)), which is a Mamba2 layer, attention
 * that knows no positions, an MLP with squared ReLU, or a mixture of experts; a norm, an output
 * layer of its own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/conf/conf.h"
#include "lib/model/model_internal.h"
#include "lib/model/keys.h"
#include "lib/model/moe.h"
#include "lib/model/text.h"
#include "lib/nn/lora.h"
#include "lib/nn/mamba.h"

enum mixer { MAMBA, ATTENTION, MLP, EXPERTS };

struct config {
    int64_t vocab, width, inner, n_layers, pad;
    double eps, init_std;
    double dropout, attention_dropout; /* of embeddings and what layers add; of what queries see */
    bool mlp_bias;
    enum s2s_act act;
    enum mixer *mixers; /* [n_layers] */
    struct s2s_attention_shape attention;
    struct s2s_nn_mamba_options mamba;
    struct model_moe moe; /* of no experts where no layer has any */
};

struct layer {
    enum mixer kind;
    struct s2s_nn_rmsnorm norm;
    struct s2s_nn_dropout dropout;
    union {
        struct s2s_nn_mamba mamba;
        struct s2s_nn_attention attention;
        struct s2s_nn_mlp mlp;
        struct s2s_nn_moe moe;
    };
};

struct nemotron {
    struct config config;
    struct s2s_nn_table embed, head;
    struct layer *layers;
    struct s2s_nn_rmsnorm norm;
    struct s2s_nn_dropout after_embed;
};

/* What the layers of one batch share. */
struct shared {
    struct s2s_nn_batch batch;
    struct s2s_nn_mamba_batch mamba;
};

static const char *const model_types[] = {"nemotron_h", NULL};

/* ---- config.json: layers ---- */

static const struct {
    enum mixer mixer;
    char letter;
    const char *word, *old_word; /* as transformers says it now, and said it */
} mixers[] = {{MAMBA, 'M', "linear_attention", "mamba"},
              {ATTENTION, '*', "full_attention", "attention"},
              {MLP, '-', "mlp", "mlp"},
              {EXPERTS, 'E', "moe", "moe"}};
enum { N_MIXERS = sizeof mixers / sizeof *mixers };

static int read_list(struct config *c, const struct s2s_conf *list, struct s2s_error *err)
{
    c->n_layers = (int64_t)list->n_items;
    c->mixers = s2s_xcalloc(list->n_items + 1, sizeof *c->mixers);
    for (size_t i = 0; i < list->n_items; i++) {
        const char *word;
        int k = 0, rc = s2s_conf_as_str(&word, list->items[i], err);
        if (rc < 0)
            return rc;
        while (k < N_MIXERS && strcmp(word, mixers[k].word) && strcmp(word, mixers[k].old_word))
            k++;
        if (k == N_MIXERS)
            return s2s_conf_error(err, S2S_E_UNSUPPORTED, list->items[i],
                                  "layer %zu is \"%s\"; known are linear_attention, "
                                  "full_attention, mlp and moe",
                                  i, word);
        c->mixers[i] = mixers[k].mixer;
    }
    return 0;
}

static int read_pattern(struct config *c, const struct s2s_conf *node, const char *pattern,
                        struct s2s_error *err)
{
    const size_t n = strlen(pattern);
    c->n_layers = (int64_t)n;
    c->mixers = s2s_xcalloc(n + 1, sizeof *c->mixers);
    for (size_t i = 0; i < n; i++) {
        int k = 0;
        while (k < N_MIXERS && mixers[k].letter != pattern[i])
            k++;
        if (k == N_MIXERS)
            return s2s_conf_error(err, S2S_E_UNSUPPORTED, node,
                                  "layer %zu is '%c'; known are M, *, - and E", i, pattern[i]);
        c->mixers[i] = mixers[k].mixer;
    }
    return 0;
}

/* Files of today have a list, older ones a letter a layer; num_hidden_layers has no say. */
static int read_layers(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const lists[] = {"layers_block_type", "layer_types"};
    static const char key[] = "hybrid_override_pattern";
    const struct s2s_conf *list = NULL;
    const char *pattern;
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0 && !list; i++)
        rc = s2s_conf_get_list(&list, conf, lists[i], err);
    if (rc < 0 || list)
        return rc < 0 ? rc : read_list(c, list, err);
    if ((rc = s2s_conf_get_str_or(&pattern, conf, key, NULL, err)) < 0)
        return rc;
    if (!pattern)
        return s2s_conf_error(err, S2S_E_NOTFOUND, conf,
                              "no layers: layers_block_type says what each is");
    return read_pattern(c, s2s_conf_find(conf, key), pattern, err);
}

static bool has_mixer(const struct config *c, enum mixer mixer)
{
    for (int64_t i = 0; i < c->n_layers; i++)
        if (c->mixers[i] == mixer)
            return true;
    return false;
}

/* ---- config.json: sizes ---- */

enum { BIG = 1 << 30, MANY = 100000 };

static int read_attention(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    struct s2s_attention_shape *a = &c->attention;
    int64_t dim;
    int rc;
    if ((rc = s2s_conf_get_i64_or(&a->n_heads, conf, "num_attention_heads", 1, MANY, 32, err)) <
            0 ||
        (rc = s2s_conf_get_i64_or(&a->n_kv_heads, conf, "num_key_value_heads", 1, MANY,
                                  s2s_conf_find(conf, "num_key_value_heads") ? a->n_heads : 8,
                                  err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&dim, conf, "attention_head_dim", 1, BIG, 128, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&a->dim, conf, "head_dim", 1, BIG, dim, err)) < 0)
        return rc;
    if (a->n_heads % a->n_kv_heads)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "num_key_value_heads"),
                              "%lld attention heads cannot share %lld key-value heads",
                              (long long)a->n_heads, (long long)a->n_kv_heads);
    if (has_mixer(c, ATTENTION) && !s2s_conf_is_unset(conf, "sliding_window"))
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "sliding_window"),
                              "attention in a sliding window is not implemented");
    return 0;
}

/* time_step_max and time_step_floor say nothing but how steps begin. */
static int read_steps(struct s2s_nn_mamba_options *m, const struct s2s_conf *conf, bool clamp,
                      struct s2s_error *err)
{
    double min;
    int rc = s2s_conf_get_f64_or(&min, conf, "time_step_min", 0.001, err);
    if (rc < 0 ||
        (rc = s2s_conf_get_f64_or(&m->first_step_max, conf, "time_step_max", 0.1, err)) < 0)
        return rc;
    if (!(m->first_step_max > 0))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "time_step_max"),
                              "expected more than 0");
    m->step_min = clamp ? min : 0;
    return 0;
}

static int read_mamba(struct config *c, const struct s2s_conf *conf, bool clamp,
                      struct s2s_error *err)
{
    static const char *const acts[] = {"silu", "swish", NULL};
    struct s2s_nn_mamba_options *m = &c->mamba;
    struct s2s_nn_mamba_shape *s = &m->shape;
    bool rescale;
    int act, rc;
    if ((rc = s2s_conf_get_i64_or(&s->n_heads, conf, "mamba_num_heads", 1, MANY, 128, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&s->dim, conf, "mamba_head_dim", 1, BIG, 64, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&s->n_groups, conf, "n_groups", 1, MANY, 8, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&s->state, conf, "ssm_state_size", 1, BIG, 128, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&s->kernel, conf, "conv_kernel", 1, 64, 4, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&m->bias, conf, "use_bias", false, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&m->conv_bias, conf, "use_conv_bias", true, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&rescale, conf, "rescale_prenorm_residual", true, err)) < 0 ||
        (rc = s2s_conf_get_choice_or(&act, conf, "mamba_hidden_act", acts, 0, err)) < 0 ||
        (rc = read_steps(m, conf, clamp, err)) < 0)
        return rc;
    m->width = c->width;
    m->eps = c->eps;
    m->out_init = rescale ? 1 / sqrt((double)(s->n_heads * s->dim * c->n_layers)) : 0;
    if (s->n_heads % s->n_groups)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "n_groups"),
                              "%lld heads of Mamba layers cannot form %lld groups",
                              (long long)s->n_heads, (long long)s->n_groups);
    return 0;
}

/* Keys of transformers' class (5.24), and of published files. */
static const struct model_key keys[] = {
    {"vocab_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"hidden_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"intermediate_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"layers_block_type", MODEL_KEY_READ, 1, NULL, NULL},
    {"layer_types", MODEL_KEY_READ, 1, NULL, NULL},
    {"hybrid_override_pattern", MODEL_KEY_READ, 1, NULL, NULL},
    {"num_attention_heads", MODEL_KEY_READ, 1, NULL, NULL},
    {"num_key_value_heads", MODEL_KEY_READ, 1, NULL, NULL},
    {"head_dim", MODEL_KEY_READ, 1, NULL, NULL},
    {"attention_head_dim", MODEL_KEY_READ, 1, NULL, NULL},
    {"sliding_window", MODEL_KEY_READ, 1, NULL, NULL},
    {"mlp_bias", MODEL_KEY_READ, 1, NULL, NULL},
    {"mlp_hidden_act", MODEL_KEY_READ, 1, NULL, NULL},
    {"layer_norm_epsilon", MODEL_KEY_READ, 1, NULL, NULL},
    {"initializer_range", MODEL_KEY_READ, 1, NULL, NULL},
    {"rescale_prenorm_residual", MODEL_KEY_READ, 1, NULL, NULL},
    {"pad_token_id", MODEL_KEY_READ, 1, NULL, NULL},
    {"mamba_num_heads", MODEL_KEY_READ, 1, NULL, NULL},
    {"mamba_head_dim", MODEL_KEY_READ, 1, NULL, NULL},
    {"mamba_hidden_act", MODEL_KEY_READ, 1, NULL, NULL},
    {"n_groups", MODEL_KEY_READ, 1, NULL, NULL},
    {"ssm_state_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"conv_kernel", MODEL_KEY_READ, 1, NULL, NULL},
    {"use_bias", MODEL_KEY_READ, 1, NULL, NULL},
    {"use_conv_bias", MODEL_KEY_READ, 1, NULL, NULL},
    {"time_step_min", MODEL_KEY_READ, 1, NULL, NULL},
    {"time_step_max", MODEL_KEY_READ, 1, NULL, NULL},
    {"n_routed_experts", MODEL_KEY_READ, 1, NULL, NULL},
    {"num_local_experts", MODEL_KEY_READ, 1, NULL, NULL},
    {"num_experts_per_tok", MODEL_KEY_READ, 1, NULL, NULL},
    {"moe_intermediate_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"moe_shared_expert_intermediate_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"moe_latent_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"routed_scaling_factor", MODEL_KEY_READ, 1, NULL, NULL},
    {"n_group", MODEL_KEY_READ, 1, NULL, NULL},
    {"topk_group", MODEL_KEY_READ, 1, NULL, NULL},
    {"norm_topk_prob", MODEL_KEY_READ, 1, NULL, NULL},
    {"router_aux_loss_coef", MODEL_KEY_QUIET, 1, NULL, NULL}, /* the recipe says it */
    {"router_jitter_noise", MODEL_KEY_OFF, 1, NULL, NULL},
    {"attention_bias", MODEL_KEY_OFF, 1, NULL, NULL},
    {"mamba_proj_bias", MODEL_KEY_OFF, 1, NULL, "it is not implemented; use_bias says the biases"},
    {"residual_in_fp32", MODEL_KEY_OFF, 1, NULL, NULL},
    {"tie_word_embeddings", MODEL_KEY_OFF, 1, NULL, NULL},
    {"attention_dropout", MODEL_KEY_READ, 1, NULL, NULL},
    {"hidden_dropout", MODEL_KEY_READ, 1, NULL, NULL},
    /* the one shared expert is as wide as moe_shared_expert_intermediate_size says */
    {"n_shared_experts", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"moe_shared_expert_overlap", MODEL_KEY_QUIET, 1, NULL, NULL}, /* when it is computed */
    {"output_router_logits", MODEL_KEY_QUIET, 1, NULL, NULL},      /* they are only shown */
    /* heads and blocks say the number; layers that predict further tokens are left out */
    {"expand", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"num_hidden_layers", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"num_nextn_predict_layers", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"mtp_layers_block_type", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"mtp_hybrid_override_pattern", MODEL_KEY_QUIET, 1, NULL, NULL},
    /* attention has no positions */
    {"max_position_embeddings", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"rope_theta", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"partial_rotary_factor", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"norm_eps", MODEL_KEY_QUIET, 1, NULL, NULL}, /* transformers reads layer_norm_epsilon alone */
    {"chunk_size", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"use_mamba_kernels", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"mamba_ssm_cache_dtype", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"time_step_floor", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"time_step_limit", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"time_step_rank", MODEL_KEY_QUIET, 1, NULL, NULL},
};

static int read_config(struct config *c, const struct s2s_conf *conf, bool clamp,
                       struct s2s_error *err)
{
    static const char *const acts[] = {"relu2", "silu", "gelu", "relu", NULL};
    static const enum s2s_act act_of[] = {S2S_ACT_RELU2, S2S_ACT_SILU, S2S_ACT_GELU, S2S_ACT_RELU};
    const struct model_keys known = {keys, sizeof keys / sizeof *keys, 1, "nemotron_h"};
    int act, rc;
    if ((rc = model_check_keys(conf, &known, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->vocab, conf, "vocab_size", 1, BIG, 131072, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->width, conf, "hidden_size", 1, BIG, 4096, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->inner, conf, "intermediate_size", 1, BIG, 21504, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->pad, conf, "pad_token_id", -1, BIG,
                                  s2s_conf_find(conf, "pad_token_id") /* null is none */ ? -1 : 0,
                                  err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&c->init_std, conf, "initializer_range", 0.02, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&c->eps, conf, "layer_norm_epsilon", 1e-5, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&c->mlp_bias, conf, "mlp_bias", false, err)) < 0 ||
        (rc = s2s_conf_get_choice_or(&act, conf, "mlp_hidden_act", acts, 0, err)) < 0 ||
        (rc = read_layers(c, conf, err)) < 0 || (rc = read_attention(c, conf, err)) < 0 ||
        (rc = read_mamba(c, conf, clamp, err)) < 0)
        return rc;
    c->act = act_of[act];
    if (!has_mixer(c, EXPERTS))
        return 0;
    return model_read_moe(&c->moe, MODEL_NEMOTRON_H, conf, c->width, c->act, err);
}

/* What checkpoints keep of the config says what was trained: steps that were not clamped, no layers
 * that predict further tokens. */
static int correct_config(struct s2s_model *model, bool clamp, struct s2s_error *err)
{
    static const char further[] = "num_nextn_predict_layers";
    int rc = 0;
    if (!clamp)
        rc = s2s_conf_set_text(model->conf, "time_step_min", "1.0e-30", S2S_CONF_FROM_DERIVED,
                               model->config_path, err);
    if (rc == 0 && !s2s_conf_is_unset(model->conf, further))
        rc = s2s_conf_set_text(model->conf, further, "0", S2S_CONF_FROM_DERIVED, model->config_path,
                               err);
    return rc;
}

/* ---- ranks ---- */

/* Ranks of tp have whole heads and groups, and the same number of them. */
static int check_ranks(const struct s2s_model *model, const struct config *c, struct s2s_error *err)
{
    const int ranks = s2s_group_size(model->par->tp);
    const struct s2s_attention_shape *a = &c->attention;
    const struct s2s_nn_mamba_shape *s = &c->mamba.shape;
    const bool attends = has_mixer(c, ATTENTION), scans = has_mixer(c, MAMBA),
               dense = has_mixer(c, MLP), sparse = has_mixer(c, EXPERTS);
    const bool shared = ranks > a->n_kv_heads; /* a key-value head by several ranks */
    const struct model_cut cuts[] = {
        {"num_attention_heads", "attention heads", a->n_heads, !attends || a->n_heads % ranks == 0},
        {"num_key_value_heads", "key-value heads", a->n_kv_heads,
         !attends || (shared ? ranks % a->n_kv_heads : a->n_kv_heads % ranks) == 0},
        {"head_dim", "rows of a key-value head", a->dim,
         !attends || !shared || a->dim % (ranks / a->n_kv_heads) == 0},
        {"intermediate_size", "columns of an MLP", c->inner, !dense || c->inner % ranks == 0},
        {"moe_shared_expert_intermediate_size", "columns of the shared expert",
         c->moe.options.shared_inner, !sparse || c->moe.options.shared_inner % ranks == 0},
        {"vocab_size", "tokens", c->vocab, c->vocab >= ranks},
    };
    int rc = model_check_cuts(model, cuts, sizeof cuts / sizeof *cuts, err);
    if (rc < 0)
        return rc;
    if (scans)
        rc = s2s_nn_mamba_check(s, model->par, err);
    if (rc == 0 && sparse)
        rc = s2s_nn_moe_check(&c->moe.options, model->par, err);
    return rc < 0 ? s2s_error_add(err, rc, "%s", model->config_path) : 0;
}

/* ---- parameters ---- */

static size_t layer_state_bytes(const struct s2s_block *block, int64_t cap, int part)
{
    const struct layer *layer = block->impl;
    if (layer->kind == MAMBA)
        return s2s_nn_mamba_state_bytes(&layer->mamba, part);
    return layer->kind == ATTENTION ? s2s_kv_cache_bytes(&layer->attention, cap) : 0;
}

static void init_mixer(struct layer *layer, const struct s2s_nn_ctx *ctx, const struct config *c)
{
    switch (layer->kind) {
    case MAMBA:
        s2s_nn_mamba_init(&layer->mamba, ctx, &c->mamba);
        break;
    case ATTENTION:
        s2s_nn_attention_init(&layer->attention, ctx,
                              &(struct s2s_nn_attention_options){.width = c->width,
                                                                 .dropout = c->attention_dropout,
                                                                 .shape = c->attention});
        break;
    case MLP:
        s2s_nn_plain_mlp_init(&layer->mlp, ctx, c->width, c->inner, c->act, c->mlp_bias);
        break;
    case EXPERTS:
        s2s_nn_moe_init(&layer->moe, ctx, &c->moe.options);
        break;
    }
}

static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out);

static void build_layer(struct s2s_model *model, struct nemotron *m, int idx)
{
    const struct config *c = &m->config;
    struct layer *layer = &m->layers[idx];
    const size_t begin = model->params->n;
    char *place = s2s_xasprintf("%sbackbone.layers.%d", model->prefix, idx);
    char *mixer = s2s_xasprintf("%s.mixer", place);
    struct s2s_nn_ctx ctx = {.params = model->params,
                             .par = model->par,
                             .place = place,
                             .init_std = c->init_std,
                             .lora = model->options.lora};
    layer->kind = c->mixers[idx];
    s2s_nn_rmsnorm_init(&layer->norm, &ctx, "norm", c->width, c->eps, 0,
                        s2s_nn_outside(model->par));
    ctx.place = mixer;
    layer->dropout = s2s_nn_dropout_at(&ctx, "dropout", c->dropout);
    init_mixer(layer, &ctx, c);
    free(mixer);
    free(place);
    model_add_block(model,
                    &(struct s2s_block){.run = run_layer,
                                        .impl = layer,
                                        .n_in = 1,
                                        .n_out = 1,
                                        .param_begin = begin,
                                        .state_bytes = layer_state_bytes,
                                        .hidden = idx + 1,
                                        .pure = true},
                    "backbone.layers.%d", idx);
}

static void run_head(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                     struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct nemotron *m = ctx->block->model->impl;
    out[0] = model_run_head(tape, ctx, &m->norm, &m->head, in[0]);
}

static void build_head(struct s2s_model *model, struct nemotron *m,
                       const struct s2s_param_spec *table)
{
    const struct config *c = &m->config;
    const size_t begin = model->params->n;
    char *place = s2s_xasprintf("%sbackbone", model->prefix);
    struct s2s_nn_ctx ctx = {
        .params = model->params, .par = model->par, .place = place, .init_std = c->init_std};
    s2s_nn_rmsnorm_init(&m->norm, &ctx, "norm_f", c->width, c->eps, 0, s2s_nn_outside(model->par));
    free(place);
    m->head = s2s_nn_table_of(s2s_model_add(model, table, "lm_head.weight"));
    model_add_block(model,
                    &(struct s2s_block){.run = run_head,
                                        .n_in = 1,
                                        .n_out = 1,
                                        .param_begin = begin,
                                        .hidden = (int)c->n_layers},
                    "backbone.norm_f");
}

static int nemotron_build(struct s2s_model *model, struct s2s_error *err)
{
    struct nemotron *m = model->impl = s2s_xcalloc(1, sizeof *m);
    struct config *c = &m->config;
    const bool clamp = !model->options.free_steps;
    int rc = read_config(c, model->conf, clamp, err);
    if (rc < 0 || (rc = correct_config(model, clamp, err)) < 0 ||
        (rc = check_ranks(model, c, err)) < 0 ||
        (rc = model_check_cp(model, c->attention.n_heads, c->attention.n_kv_heads, err)) < 0)
        return rc;
    if ((rc = model_read_dropout(&c->dropout, model, "hidden_dropout",
                                 model_said_dropout(model).hidden, err)) < 0 ||
        (rc = model_read_dropout(&c->attention_dropout, model, "attention_dropout",
                                 model_said_dropout(model).attention, err)) < 0)
        return rc;
    model->draws |= model->options.lora && model->options.lora->dropout > 0;
    m->after_embed = (struct s2s_nn_dropout){(float)c->dropout, s2s_rng_name("embed")};
    model->vocab_size = c->vocab;
    model->hidden_size = c->width;
    model->pad_token_id = (int32_t)c->pad;
    const struct s2s_param_spec table =
        s2s_nn_table_spec(model->par, c->vocab, c->width, c->init_std);
    model_add_embed(model, &m->embed, &table, "backbone.embeddings");
    m->layers = s2s_xcalloc((size_t)c->n_layers + 1, sizeof *m->layers);
    for (int i = 0; i < c->n_layers; i++)
        build_layer(model, m, i);
    build_head(model, m, &table);
    return 0;
}

static void nemotron_free(void *impl)
{
    struct nemotron *m = impl;
    free(m->config.mixers);
    free(m->layers);
    free(m);
}

/* ---- forward ---- */

static struct s2s_tensor *nemotron_embed(const struct s2s_model *model, const struct s2s_pass *pass)
{
    const struct nemotron *m = model->impl;
    return model_embed_ids(model, pass, &m->embed, 1, &m->after_embed);
}

static void *nemotron_prepare(const struct s2s_model *model, const struct s2s_pass *pass)
{
    const struct nemotron *m = model->impl;
    struct shared *shared = s2s_tape_host_alloc(pass->tape, sizeof *shared);
    struct s2s_nn_batch *b = &shared->batch;
    const int64_t n_rows = s2s_nn_rows(&pass->tp, pass->batch->n_tokens);
    b->tp = shared->mamba.tp = pass->tp;
    b->load = has_mixer(&m->config, EXPERTS) ? model_load(pass, n_rows) : NULL;
    b->cp = model_spans_cp(model, pass, n_rows);
    if (!b->cp)
        b->spans = model_spans(pass, n_rows);
    b->cache_rows = model_cache_rows(pass);
    shared->mamba.trade = model_trade_cp(model, pass, n_rows, &shared->mamba.seqs);
    return shared;
}

static struct s2s_tensor *mix(struct s2s_tape *tape, const struct layer *layer,
                              const struct s2s_block_ctx *ctx, struct s2s_tensor *x)
{
    const struct shared *shared = ctx->shared;
    void *const *memory = ctx->state ? ctx->state->parts : NULL;
    const struct s2s_kv_cache cache = {memory ? memory[0] : NULL, memory ? memory[1] : NULL};
    switch (layer->kind) {
    case MAMBA:
        return s2s_nn_mamba(tape, &layer->mamba, x, &shared->mamba, memory);
    case ATTENTION:
        return s2s_nn_attention(tape, &layer->attention, x, &shared->batch, &cache);
    case MLP:
        return s2s_nn_mlp(tape, &layer->mlp, &shared->batch.tp, x);
    case EXPERTS:
        return s2s_nn_moe(tape, &layer->moe, &shared->batch.tp, x, shared->batch.load);
    }
    S2S_BUG("%s: a layer of kind %d", tape->layer, (int)layer->kind);
}

static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct layer *layer = ctx->block->impl;
    const char *place = tape->layer;
    s2s_tape_layer(tape, "%s.mixer", place);
    s2s_tape_lend(tape, layer->kind != EXPERTS);
    const struct shared *shared = ctx->shared;
    struct s2s_tensor *x = mix(tape, layer, ctx, s2s_nn_rmsnorm(tape, &layer->norm, in[0]));
    x = s2s_nn_drop(tape, &layer->dropout, &shared->batch.tp, x);
    tape->layer = place;
    out[0] = s2s_op_add_to(tape, x, in[0]);
}

const struct s2s_model_kind s2s_model_nemotron_h = {
    .model_types = model_types,
    .stem = "backbone.",
    .stem_in_memory = "model.",
    .dropped = "mtp.",
    .build = nemotron_build,
    .check = model_check_text,
    .prepare = nemotron_prepare,
    .embed = nemotron_embed,
    .free_impl = nemotron_free,
};
