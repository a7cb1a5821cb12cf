/*
 * Decoders of the Llama type: Llama, Mistral, Qwen2, Qwen3, Gemma 1; with mixtures of experts in
 * the place of MLPs Mixtral and Qwen3-MoE. h += attn(norm1(h)); h += mlp(norm2(h)); final norm;
 * logits with the output layer, or with the embedding when the two are tied
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/conf/conf.h"
#include "lib/model/llama_config.h"
#include "lib/model/model_internal.h"
#include "lib/model/text.h"
#include "lib/nn/lora.h"

struct layer {
    struct s2s_nn_rmsnorm norm1, norm2;
    struct s2s_nn_attention attention;
    bool sparse; /* a mixture of experts, no MLP */
    struct s2s_nn_mlp mlp;
    struct s2s_nn_moe moe;
    struct s2s_nn_dropout after_attention, after_mlp;
};

struct llama {
    struct llama_config config;
    struct s2s_nn_table embed, head;
    struct layer *layers;
    struct s2s_nn_rmsnorm norm;
    double dropout; /* of embeddings, and of what layers add */
    double attention_dropout;
    struct s2s_nn_dropout after_embed;
};

static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out);
static void run_head(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                     struct s2s_tensor *const *in, struct s2s_tensor **out);

/* Ranks of tp have whole heads, and the same number of them. */
static int check_ranks(const struct s2s_model *model, const struct llama_config *c,
                       struct s2s_error *err)
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

/* Ranks of cp have chunks of sequences, and do not know how long these are without padding. */
static int check_positions(const struct s2s_model *model, const struct model_rope *rope,
                           struct s2s_error *err)
{
    if (rope->limit == 0 || s2s_group_size(model->par->cp) == 1)
        return 0;
    return s2s_conf_error(err, S2S_E_UNSUPPORTED, model->conf,
                          "rope_type dynamic and longrope go by the length of each sequence, which "
                          "ranks of mesh.cp share");
}

/* ---- parameters ---- */

static size_t layer_state_bytes(const struct s2s_block *block, int64_t cap, int part)
{
    const struct layer *layer = block->impl;
    return s2s_kv_cache_bytes(&layer->attention, cap);
}

static void build_layer(struct s2s_model *model, struct llama *m, int idx)
{
    const struct llama_config *c = &m->config;
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
        &(struct s2s_nn_attention_options){.width = c->width,
                                           .qkv_bias = c->qkv_bias,
                                           .o_bias = c->o_bias,
                                           .qk_norm = c->family == QWEN3 || c->family == QWEN3_MOE,
                                           .eps = c->eps,
                                           .dropout = m->attention_dropout,
                                           .shape = {.n_heads = c->n_heads,
                                                     .n_kv_heads = c->n_kv_heads,
                                                     .dim = c->head_dim,
                                                     .window = c->in_window[idx] ? c->window : 0}});
    layer->after_attention = s2s_nn_dropout_at(&ctx, "dropout", m->dropout);
    ctx.place = place;
    s2s_nn_rmsnorm_init(&layer->norm2, &ctx, "post_attention_layernorm", c->width, c->eps, offset,
                        outside);
    ctx.place = mlp;
    layer->after_mlp = s2s_nn_dropout_at(&ctx, "dropout", m->dropout);
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
    const struct llama_config *c = &m->config;
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
    struct llama_config *c = &m->config;
    int rc = model_read_llama(c, model->conf, err);
    if (rc < 0 || (rc = check_ranks(model, c, err)) < 0 ||
        (rc = check_positions(model, &c->rope, err)) < 0 ||
        (rc = model_check_cp(model, c->n_heads, c->n_kv_heads, err)) < 0 ||
        (rc = keep_own_head(model, &c->tied, err)) < 0)
        return rc;
    if ((rc = model_read_dropout(&m->dropout, model, NULL, model_said_dropout(model).hidden, err)) <
            0 ||
        (rc = model_read_dropout(&m->attention_dropout, model, "attention_dropout",
                                 model_said_dropout(model).attention, err)) < 0)
        return rc;
    model->draws |= model->options.lora && model->options.lora->dropout > 0;
    m->after_embed = (struct s2s_nn_dropout){(float)m->dropout, s2s_rng_name("embed")};
    model->vocab_size = c->vocab;
    model->hidden_size = c->width;
    model->pad_token_id = (int32_t)c->pad;
    const struct s2s_param_spec table =
        s2s_nn_table_spec(model->par, c->vocab, c->width, c->init_std);
    model_add_embed(model, &m->embed, &table, "model.embed_tokens");
    m->layers = s2s_xcalloc((size_t)c->n_layers + 1, sizeof *m->layers);
    for (int i = 0; i < c->n_layers; i++)
        build_layer(model, m, i);
    build_head(model, m, &table);
    return 0;
}

static void llama_free(void *impl)
{
    struct llama *m = impl;
    model_llama_config_release(&m->config);
    free(m->layers);
    free(m);
}

/* ---- forward ---- */

static struct s2s_tensor *llama_embed(const struct s2s_model *model, const struct s2s_pass *pass)
{
    const struct llama *m = model->impl;
    const float scale = m->config.family == GEMMA ? sqrtf((float)m->config.width) : 1;
    return model_embed_ids(model, pass, &m->embed, scale, &m->after_embed);
}

static void *llama_prepare(const struct s2s_model *model, const struct s2s_pass *pass)
{
    const struct llama *m = model->impl;
    struct s2s_nn_batch *shared = s2s_tape_host_alloc(pass->tape, sizeof *shared);
    const int64_t n_rows = s2s_nn_rows(&pass->tp, pass->batch->n_tokens);
    shared->tp = pass->tp;
    shared->load = m->config.moe.options.router.n_experts ? model_load(pass, n_rows) : NULL;
    shared->cp = model_spans_cp_window(model, pass, n_rows, m->config.window);
    if (!shared->cp)
        shared->spans = model_spans(pass, n_rows);
    shared->cache_rows = model_cache_rows(pass);
    shared->rope = model_rope_table(pass, &m->config.rope, n_rows);
    return shared;
}

static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct layer *layer = ctx->block->impl;
    const struct s2s_kv_cache cache = {ctx->state ? ctx->state->parts[0] : NULL,
                                       ctx->state ? ctx->state->parts[1] : NULL};
    const struct s2s_nn_batch *shared = ctx->shared;
    const char *place = tape->layer;
    struct s2s_tensor *h = in[0];
    s2s_tape_layer(tape, "%s.self_attn", place);
    s2s_tape_lend(tape, true);
    struct s2s_tensor *x = s2s_nn_rmsnorm(tape, &layer->norm1, h);
    x = s2s_nn_attention(tape, &layer->attention, x, shared, &cache);
    x = s2s_nn_drop(tape, &layer->after_attention, &shared->tp, x);
    s2s_tape_layer(tape, "%s.mlp", place);
    s2s_tape_lend(tape, !layer->sparse);
    x = s2s_nn_add_rmsnorm(tape, &layer->norm2, &h, x);
    x = layer->sparse ? s2s_nn_moe(tape, &layer->moe, &shared->tp, x, shared->load)
                      : s2s_nn_mlp(tape, &layer->mlp, &shared->tp, x);
    x = s2s_nn_drop(tape, &layer->after_mlp, &shared->tp, x);
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
    .model_types = model_llama_types,
    .build = llama_build,
    .check = model_check_text,
    .prepare = llama_prepare,
    .embed = llama_embed,
    .free_impl = llama_free,
};
