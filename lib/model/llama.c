/*
 * Decoders of the Llama type: Llama, Qwen2, Qwen3, Gemma 1; with mixtures of experts in the place
 * of MLPs Mixtral and Qwen3-MoE. h += attn(norm1(h)); h += mlp(norm2(h)); final norm; logits with
 * the output layer, or with the embedding when the two are tied
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/model_internal.h"
#include "lib/model/moe.h"
#include "lib/model/text.h"

enum family { LLAMA, QWEN2, QWEN3, GEMMA, MIXTRAL, QWEN3_MOE };

struct config {
    enum family family;
    int64_t vocab, width, inner, n_layers, n_heads, n_kv_heads, head_dim, pad;
    double eps, init_std;
    bool tied, qkv_bias, o_bias, mlp_bias;
    enum s2s_act act;
    struct model_moe moe;
};

struct layer {
    struct s2s_nn_rmsnorm norm1, norm2;
    struct s2s_nn_attention attention;
    bool sparse; /* a mixture of experts, no MLP */
    struct s2s_nn_mlp mlp;
    struct s2s_nn_moe moe;
};

struct llama {
    struct config config;
    double *inv_freq; /* [head_dim / 2] */
    struct s2s_nn_table embed, head;
    struct layer *layers;
    struct s2s_nn_rmsnorm norm;
};

static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out);
static void run_head(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                     struct s2s_tensor *const *in, struct s2s_tensor **out);

static const char *const model_types[] = {"llama",   "qwen2",     "qwen3", "gemma",
                                          "mixtral", "qwen3_moe", NULL};

/* What each class of transformers takes for an absent key; 0: it follows from other keys. */
static const struct {
    int64_t n_kv_heads, head_dim, pad;
    double eps, theta;
} class_defaults[] = {[LLAMA] = {0, 0, -1, 1e-6, 1e4},    [QWEN2] = {32, 0, -1, 1e-6, 1e4},
                      [QWEN3] = {32, 128, -1, 1e-6, 1e4}, [GEMMA] = {16, 256, 0, 1e-6, 1e4},
                      [MIXTRAL] = {8, 0, -1, 1e-5, 1e6},  [QWEN3_MOE] = {4, 0, -1, 1e-6, 1e4}};

/* ---- config.json ---- */

static int read_sizes(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    enum { BIG = 1 << 30 };
    const int64_t kv = class_defaults[c->family].n_kv_heads,
                  dim = class_defaults[c->family].head_dim;
    int rc;
    if ((rc = s2s_conf_get_i64(&c->vocab, conf, "vocab_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&c->width, conf, "hidden_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&c->inner, conf, "intermediate_size", 1, BIG, err)) < 0 ||
        (rc = s2s_conf_get_i64(&c->n_layers, conf, "num_hidden_layers", 0, 100000, err)) < 0 ||
        (rc = s2s_conf_get_i64(&c->n_heads, conf, "num_attention_heads", 1, 100000, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->n_kv_heads, conf, "num_key_value_heads", 1, 100000,
                                  c->n_heads, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->head_dim, conf, "head_dim", 1, BIG,
                                  dim ? dim : c->width / c->n_heads, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->pad, conf, "pad_token_id", -1, BIG,
                                  s2s_conf_find(conf, "pad_token_id") /* null is none */
                                      ? -1
                                      : class_defaults[c->family].pad,
                                  err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&c->init_std, conf, "initializer_range", 0.02, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&c->eps, conf, "rms_norm_eps", class_defaults[c->family].eps,
                                  err)) < 0)
        return rc;
    if (c->pad < 0 && !s2s_conf_is_unset(conf, "pad_token_id"))
        c->pad += c->vocab; /* torch counts from the end */
    if (!s2s_conf_find(conf, "num_key_value_heads") && kv && c->n_heads % kv == 0)
        c->n_kv_heads = kv; /* with other numbers of heads transformers has no model either */
    if (c->n_heads % c->n_kv_heads)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "num_key_value_heads"),
                              "%lld attention heads cannot share %lld key-value heads",
                              (long long)c->n_heads, (long long)c->n_kv_heads);
    if (c->head_dim % 2)
        return s2s_conf_error(err, S2S_E_RANGE, conf, "head_dim is %lld; rotation needs it even",
                              (long long)c->head_dim);
    return 0;
}

static int read_act(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const names[] = {"silu", "gelu_pytorch_tanh", "gelu_new", "gelu", "relu",
                                        NULL};
    static const enum s2s_act acts[] = {S2S_ACT_SILU, S2S_ACT_GELU_TANH, S2S_ACT_GELU_TANH,
                                        S2S_ACT_GELU, S2S_ACT_RELU};
    int choice;
    int rc = s2s_conf_get_choice_or(&choice, conf, "hidden_act", names, c->family == GEMMA, err);
    if (rc < 0)
        return rc;
    c->act = acts[choice];
    /* published Gemma files say "gelu" and mean the tanh form; the library corrects them so */
    if (c->family == GEMMA && c->act == S2S_ACT_GELU)
        c->act = S2S_ACT_GELU_TANH;
    return 0;
}

static int read_switches(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    bool sliding, attention_bias, mlp_bias, causal;
    int rc;
    if ((rc = s2s_conf_get_bool_or(&c->tied, conf, "tie_word_embeddings", c->family == GEMMA,
                                   err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&attention_bias, conf, "attention_bias", false, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&mlp_bias, conf, "mlp_bias", false, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&causal, conf, "is_causal", true, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&sliding, conf, "use_sliding_window", false, err)) < 0)
        return rc;
    c->qkv_bias = c->family == QWEN2 || (c->family != MIXTRAL && attention_bias);
    c->o_bias = c->family != QWEN2 && c->family != MIXTRAL && attention_bias;
    c->mlp_bias = c->family == LLAMA && mlp_bias;
    if (!causal)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "is_causal"),
                              "attention to what comes later is not implemented");
    if (c->family == MIXTRAL && !s2s_conf_is_unset(conf, "sliding_window"))
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "sliding_window"),
                              "attention in a sliding window is not implemented");
    if (sliding)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "use_sliding_window"),
                              "attention in a sliding window is not implemented");
    return read_act(c, conf, err);
}

/* Llama 3's scaling: long wavelengths are slowed by `factor`, short ones stay, between them a ramp.
 */
static int scale_llama3(double *inv_freq, int64_t half, const struct s2s_conf *rope,
                        struct s2s_error *err)
{
    double factor, low, high, original;
    int rc;
    if ((rc = s2s_conf_get_f64(&factor, rope, "factor", err)) < 0 ||
        (rc = s2s_conf_get_f64(&low, rope, "low_freq_factor", err)) < 0 ||
        (rc = s2s_conf_get_f64(&high, rope, "high_freq_factor", err)) < 0 ||
        (rc = s2s_conf_get_f64(&original, rope, "original_max_position_embeddings", err)) < 0)
        return rc;
    for (int64_t i = 0; i < half; i++) {
        double w = inv_freq[i], wavelength = 2 * M_PI / w;
        if (wavelength > original / low) {
            inv_freq[i] = w / factor;
        } else if (wavelength >= original / high) {
            double s = (original / wavelength - low) / (high - low);
            inv_freq[i] = (1 - s) * w / factor + s * w;
        }
    }
    return 0;
}

static int read_rope(struct llama *m, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const types[] = {"default", "linear", "llama3", NULL};
    const int64_t dim = m->config.head_dim;
    const struct s2s_conf *rope;
    double theta, factor = 1, partial;
    int type = 0, rc = s2s_conf_get_map(&rope, conf, "rope_parameters", err);
    if (rc == 0 && !rope)
        rc = s2s_conf_get_map(&rope, conf, "rope_scaling", err);
    if (rc < 0)
        return rc;
    if (rope && !s2s_conf_is_unset(rope, "rope_theta"))
        rc = s2s_conf_get_f64(&theta, rope, "rope_theta", err);
    else
        rc = s2s_conf_get_f64_or(&theta, conf, "rope_theta", class_defaults[m->config.family].theta,
                                 err);
    if (rc < 0 || (rc = s2s_conf_get_f64_or(&partial, conf, "partial_rotary_factor", 1.0, err)) < 0)
        return rc;
    if (partial != 1.0)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(conf, "partial_rotary_factor"),
                              "rotating a part of each head is not implemented");
    for (int64_t i = 0; i < dim / 2; i++)
        m->inv_freq[i] = pow(theta, -2.0 * (double)i / (double)dim);
    if (!rope)
        return 0;
    const char *key = s2s_conf_is_unset(rope, "rope_type") ? "type" : "rope_type";
    if ((rc = s2s_conf_get_choice_or(&type, rope, key, types, 0, err)) < 0)
        return rc;
    if (type == 2)
        return scale_llama3(m->inv_freq, dim / 2, rope, err);
    if (type == 1 && (rc = s2s_conf_get_f64(&factor, rope, "factor", err)) < 0)
        return rc;
    for (int64_t i = 0; i < dim / 2; i++)
        m->inv_freq[i] /= factor;
    return 0;
}

/* Ranks of tp have whole heads, and the same number of them. */
static int check_ranks(const struct s2s_model *model, const struct config *c, struct s2s_error *err)
{
    const int ranks = s2s_group_size(model->par->tp);
    bool dense = false;
    for (int64_t i = 0; i < c->n_layers; i++)
        dense |= !model_is_sparse(&c->moe, i);
    const bool shared = ranks > c->n_kv_heads; /* a key-value head by several ranks */
    const struct model_cut cuts[] = {
        {"num_attention_heads", "attention heads", c->n_heads, c->n_heads % ranks == 0},
        {"num_key_value_heads", "key-value heads", c->n_kv_heads,
         shared ? ranks % c->n_kv_heads == 0 : c->n_kv_heads % ranks == 0},
        {"head_dim", "rows of a key-value head", c->head_dim,
         !shared || c->head_dim % (ranks / c->n_kv_heads) == 0},
        {"intermediate_size", "columns of an MLP", c->inner, !dense || c->inner % ranks == 0},
        {"vocab_size", "tokens", c->vocab, c->vocab >= ranks},
    };
    int rc = model_check_cuts(model, cuts, sizeof cuts / sizeof *cuts, err);
    if (rc < 0 || c->moe.options.router.n_experts == 0)
        return rc;
    return s2s_nn_moe_check(&c->moe.options, model->par, err);
}

static int read_config(struct llama *m, const struct s2s_conf *conf, struct s2s_error *err)
{
    int family;
    int rc = s2s_conf_get_choice(&family, conf, "model_type", model_types, err);
    if (rc < 0)
        return rc;
    m->config.family = (enum family)family;
    if ((rc = read_sizes(&m->config, conf, err)) < 0 ||
        (rc = read_switches(&m->config, conf, err)) < 0)
        return rc;
    m->inv_freq = s2s_xcalloc((size_t)m->config.head_dim / 2, sizeof *m->inv_freq);
    if (family >= MIXTRAL &&
        (rc = model_read_moe(&m->config.moe, family == MIXTRAL ? MODEL_MIXTRAL : MODEL_QWEN3_MOE,
                             conf, m->config.width, m->config.act, err)) < 0)
        return rc;
    return read_rope(m, conf, err);
}

/* ---- parameters ---- */

static size_t layer_state_bytes(const struct s2s_block *block, int64_t cap)
{
    const struct layer *layer = block->impl;
    return s2s_kv_cache_bytes(&layer->attention, cap);
}

static void build_layer(struct s2s_model *model, struct llama *m, int idx)
{
    const struct config *c = &m->config;
    struct layer *layer = &m->layers[idx];
    const size_t begin = model->params->n;
    const double offset = c->family == GEMMA ? 1 : 0;
    char *place = s2s_xasprintf("%smodel.layers.%d", model->prefix, idx);
    char *attention = s2s_xasprintf("%s.self_attn", place);
    layer->sparse = model_is_sparse(&c->moe, idx);
    char *mlp = s2s_xasprintf("%s.%s", place, layer->sparse ? c->moe.place : "mlp");
    struct s2s_nn_ctx ctx = {.params = model->params,
                             .par = model->par,
                             .place = place,
                             .init_std = c->init_std,
                             .lora = model->options.lora};
    const unsigned outside = s2s_nn_outside(model->par);
    s2s_nn_rmsnorm_init(&layer->norm1, &ctx, "input_layernorm", c->width, c->eps, offset, outside);
    ctx.place = attention;
    s2s_nn_attention_init(
        &layer->attention, &ctx,
        &(struct s2s_nn_attention_options){
            .width = c->width,
            .qkv_bias = c->qkv_bias,
            .o_bias = c->o_bias,
            .qk_norm = c->family == QWEN3 || c->family == QWEN3_MOE,
            .eps = c->eps,
            .shape = {.n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .dim = c->head_dim}});
    ctx.place = place;
    s2s_nn_rmsnorm_init(&layer->norm2, &ctx, "post_attention_layernorm", c->width, c->eps, offset,
                        outside);
    ctx.place = mlp;
    if (layer->sparse)
        s2s_nn_moe_init(&layer->moe, &ctx, &c->moe.options);
    else
        s2s_nn_mlp_init(&layer->mlp, &ctx, c->width, c->inner, c->act, c->mlp_bias);
    free(mlp);
    free(attention);
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
                    "model.layers.%d", idx);
}

/* After the layers: norm, output layer, loss. */
static void build_head(struct s2s_model *model, struct llama *m, const struct s2s_param_spec *table)
{
    const struct config *c = &m->config;
    const size_t begin = model->params->n;
    char *place = s2s_xasprintf("%smodel", model->prefix);
    struct s2s_nn_ctx ctx = {
        .params = model->params, .par = model->par, .place = place, .init_std = c->init_std};
    s2s_nn_rmsnorm_init(&m->norm, &ctx, "norm", c->width, c->eps, c->family == GEMMA ? 1 : 0,
                        s2s_nn_outside(model->par));
    free(place);
    m->head = c->tied ? m->embed : s2s_nn_table_of(s2s_model_add(model, table, "lm_head.weight"));
    model_add_block(model,
                    &(struct s2s_block){.run = run_head,
                                        .n_in = 1,
                                        .n_out = 1,
                                        .param_begin = begin,
                                        .uses = c->tied ? m->embed.w : NULL,
                                        .hidden = (int)c->n_layers},
                    "model.norm");
}

/* As transformers does: a head of its own in the weights counts, whatever the config says. A run
 * that goes on has the one it began with. The config that checkpoints keep is put right. */
static int keep_own_head(struct s2s_model *model, bool *tied, struct s2s_error *err)
{
    static const char head[] = "lm_head.weight", embed[] = "model.embed_tokens.weight";
    const enum s2s_head known = model->options.head;
    bool own = *tied && known == S2S_HEAD_OWN;
    if (*tied && model->dir && known == S2S_HEAD_BY_FILES) {
        char *path = model_dir_differs(model, head, embed);
        if (path)
            s2s_warn("model",
                     "%s: %s differs from %s, though %s ties them (tie_word_embeddings): it stays "
                     "a matrix of its own, as in transformers; with tie_word_embeddings false "
                     "there is no warning",
                     path, head, embed, model->config_path);
        own = path != NULL;
        free(path);
    }
    if (own) {
        *tied = false;
        return s2s_conf_set_text(model->conf, "tie_word_embeddings", "false", S2S_CONF_FROM_DERIVED,
                                 model->config_path, err);
    }
    if (*tied) {
        model->twin[0] = embed;
        model->twin[1] = head;
    }
    return 0;
}

static int llama_build(struct s2s_model *model, struct s2s_error *err)
{
    struct llama *m = model->impl = s2s_xcalloc(1, sizeof *m);
    struct config *c = &m->config;
    int rc = read_config(m, model->conf, err);
    if (rc < 0 || (rc = check_ranks(model, c, err)) < 0 ||
        (rc = model_check_cp(model, c->n_heads, c->n_kv_heads, err)) < 0 ||
        (rc = keep_own_head(model, &c->tied, err)) < 0)
        return rc;
    model->vocab_size = c->vocab;
    model->hidden_size = c->width;
    model->pad_token_id = (int32_t)c->pad;
    const struct s2s_param_spec table =
        s2s_nn_table_spec(model->par, c->vocab, c->width, c->init_std);
    const size_t begin = model->params->n;
    m->embed = s2s_nn_table_of(s2s_model_add(model, &table, "model.embed_tokens.weight"));
    model_add_block(model,
                    &(struct s2s_block){.run = model_run_embed, .n_out = 1, .param_begin = begin},
                    "model.embed_tokens");
    m->layers = s2s_xcalloc((size_t)c->n_layers + 1, sizeof *m->layers);
    for (int i = 0; i < c->n_layers; i++)
        build_layer(model, m, i);
    build_head(model, m, &table);
    return 0;
}

static void llama_free(void *impl)
{
    struct llama *m = impl;
    free(m->inv_freq);
    free(m->layers);
    free(m);
}

/* ---- forward ---- */

static struct s2s_tensor *llama_embed(const struct s2s_model *model, const struct s2s_pass *pass)
{
    const struct llama *m = model->impl;
    const float scale = m->config.family == GEMMA ? sqrtf((float)m->config.width) : 1;
    return model_embed_ids(model, pass, &m->embed, scale);
}

/* Positions and bounds of the rows inside of tp regions: behind the last token there is a sequence
 * of rows that nobody reads. */
static void prepare_rows(struct s2s_nn_batch *shared, const struct llama *m,
                         const struct s2s_pass *pass, int64_t n_rows)
{
    const struct s2s_batch *batch = pass->batch;
    const int64_t n_seqs = batch->n_seqs + 1;
    int32_t *positions = s2s_xcalloc((size_t)n_rows, sizeof *positions);
    int32_t *cu = s2s_xcalloc((size_t)n_seqs + 1, sizeof *cu);
    memcpy(positions, batch->position_ids, (size_t)batch->n_tokens * sizeof *positions);
    memcpy(cu, batch->cu_seqlens, (size_t)n_seqs * sizeof *cu);
    cu[n_seqs] = (int32_t)n_rows;
    if (!shared->cp)
        shared->spans = s2s_op_spans(pass->tape, cu, cu, n_seqs, true);
    shared->rope = s2s_op_rope_table(pass->tape, s2s_tape_upload_i32(pass->tape, positions, n_rows),
                                     m->inv_freq, m->config.head_dim, 1);
    free(positions);
    free(cu);
}

static void *llama_prepare(const struct s2s_model *model, const struct s2s_pass *pass)
{
    const struct llama *m = model->impl;
    const struct s2s_batch *batch = pass->batch;
    struct s2s_nn_batch *shared = s2s_tape_host_alloc(pass->tape, sizeof *shared);
    const int64_t n_rows = s2s_nn_rows(&pass->tp, batch->n_tokens);
    const struct s2s_decode *decode = pass->fwd->decode;
    const int32_t *cu = batch->cu_seqlens;
    /* one sequence goes on where its cache ends */
    const int32_t seen[] = {0, (int32_t)(decode ? decode->len + batch->n_tokens : 0)};
    shared->tp = pass->tp;
    shared->load = m->config.moe.options.router.n_experts ? model_load(pass, n_rows) : NULL;
    shared->cp = model_spans_cp(model, pass, n_rows);
    if (n_rows > batch->n_tokens) {
        prepare_rows(shared, m, pass, n_rows);
        return shared;
    }
    struct s2s_tensor *positions = s2s_tape_upload_i32(pass->tape, batch->position_ids, n_rows);
    if (!shared->cp)
        shared->spans = s2s_op_spans(pass->tape, cu, decode ? seen : cu, batch->n_seqs, true);
    shared->rope = s2s_op_rope_table(pass->tape, positions, m->inv_freq, m->config.head_dim, 1);
    return shared;
}

static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct layer *layer = ctx->block->impl;
    const struct s2s_kv_cache cache = {ctx->state, ctx->cap, ctx->n_seen};
    const struct s2s_nn_batch *shared = ctx->shared;
    const char *place = tape->layer;
    struct s2s_tensor *h = in[0];
    s2s_tape_layer(tape, "%s.self_attn", place);
    struct s2s_tensor *x = s2s_nn_rmsnorm(tape, &layer->norm1, h);
    x = s2s_nn_attention(tape, &layer->attention, x, shared, &cache);
    s2s_tape_layer(tape, "%s.mlp", place);
    x = s2s_nn_add_rmsnorm(tape, &layer->norm2, &h, x);
    x = layer->sparse ? s2s_nn_moe(tape, &layer->moe, &shared->tp, x, shared->load)
                      : s2s_nn_mlp(tape, &layer->mlp, &shared->tp, x);
    tape->layer = place;
    out[0] = s2s_op_add_to(tape, x, h);
}

static void run_head(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                     struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct llama *m = ctx->block->model->impl;
    out[0] = model_run_head(tape, ctx, &m->norm, &m->head, in[0]);
}

const struct s2s_model_kind s2s_model_llama = {
    .model_types = model_types,
    .build = llama_build,
    .check = model_check_text,
    .prepare = llama_prepare,
    .embed = llama_embed,
    .free_impl = llama_free,
};
