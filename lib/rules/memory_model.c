/* How many parameters a language model has, by the sizes in its config. */
#include "lib/rules/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double rules_number(const struct rules_check *check, const char *name, double other)
{
    const struct rules_fact *f = rules_fact_find(&check->facts, name);
    if (!f)
        return NAN;
    switch (f->value.type) {
    case RULES_INT:
        return (double)f->value.i;
    case RULES_FLOAT:
        return f->value.f;
    case RULES_NULL:
        return other;
    default:
        return NAN;
    }
}

bool rules_on(const struct rules_check *check, const char *name)
{
    const struct rules_fact *f = rules_fact_find(&check->facts, name);
    return f && f->value.type == RULES_BOOL && f->value.b;
}

/* The first of the blank-separated keys that is there and a number; `other` if none is. */
static double at(const struct s2s_conf *config, const char *keys, double other)
{
    char key[64];
    while (*keys) {
        size_t len = strcspn(keys, " ");
        snprintf(key, sizeof key, "%.*s", (int)len, keys);
        struct rules_value v = rules_value_of(s2s_conf_key(config, key));
        if (v.type == RULES_INT || v.type == RULES_FLOAT)
            return v.type == RULES_INT ? (double)v.i : v.f;
        keys += len;
        keys += strspn(keys, " ");
    }
    return other;
}

static bool on(const struct s2s_conf *config, const char *key, bool other)
{
    struct rules_value v = rules_value_of(s2s_conf_key(config, key));
    return v.type == RULES_BOOL ? v.b : other;
}

/* What the family says that its config does not. */
static const struct family {
    const char *type;
    bool qkv_bias, qk_norm, tied, mla, hybrid;
} families[] = {
    {"llama", false, false, false, false, false},
    {"mistral", false, false, false, false, false},
    {"mixtral", false, false, false, false, false},
    {"granite", false, false, true, false, false},
    {"gemma", false, false, true, false, false},
    {"qwen2", true, false, false, false, false},
    {"qwen2_moe", true, false, false, false, false},
    {"qwen3", false, true, false, false, false},
    {"qwen3_moe", false, true, false, false, false},
    {"deepseek_v2", false, false, false, true, false},
    {"deepseek_v3", false, false, false, true, false},
    {"nemotron_h", false, false, false, false, true},
};

static const struct family *family_of(const struct s2s_conf *config)
{
    const struct s2s_conf *type = s2s_conf_key(config, "model_type");
    for (size_t i = 0; type && type->text && i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i].type, type->text))
            return &families[i];
    return NULL;
}

/* Which layers of a transformer have experts: not the first k, not those of mlp_only_layers, and of
 * the rest one in `step`. */
static double moe_layers(const struct s2s_conf *config, double layers)
{
    double first = at(config, "first_k_dense_replace", 0);
    double step = at(config, "decoder_sparse_step moe_layer_freq", 1);
    const struct s2s_conf *dense = s2s_conf_key(config, "mlp_only_layers");
    double n = 0;
    for (double i = 0; i < layers && step >= 1 && layers < 1e4; i++)
        n += i >= first && (step == 1 || fmod(i + 1, step) == 0);
    return n - (dense && dense->kind == S2S_CONF_LIST ? (double)dense->n_items : 0);
}

/* Letters of a hybrid's pattern: M mamba, * attention, - MLP, E experts. What stands behind '/' is
 * for prediction of further tokens. */
static void count_letters(struct rules_shape *shape, const char *pattern)
{
    shape->n_attention = shape->n_mlp = shape->n_moe = shape->n_mamba = 0;
    for (; *pattern && *pattern != '/'; pattern++) {
        shape->n_attention += *pattern == '*';
        shape->n_mlp += *pattern == '-';
        shape->n_moe += *pattern == 'E';
        shape->n_mamba += *pattern == 'M';
        if (!strchr("*-EM|", *pattern))
            shape->n_attention = NAN; /* a layer of another kind */
    }
    shape->n_norms = shape->n_attention + shape->n_mlp + shape->n_moe + shape->n_mamba;
}

static void hf_experts(struct rules_shape *s, const struct s2s_conf *config)
{
    s->experts = at(config, "n_routed_experts num_experts num_local_experts", 0);
    s->topk = at(config, "num_experts_per_tok", NAN);
    s->expert_ffn = at(config, "moe_intermediate_size intermediate_size", NAN);
    s->shared_ffn =
        at(config, "shared_expert_intermediate_size moe_shared_expert_intermediate_size", -1);
    s->shared_gate = s->shared_ffn > 0 && s2s_conf_key(config, "shared_expert_intermediate_size");
    double n_shared = at(config, "n_shared_experts", 0);
    if (s->shared_ffn < 0)
        s->shared_ffn = n_shared > 0 ? n_shared * s->expert_ffn : 0;
    s->latent = at(config, "moe_latent_size", 0);
    /* the correction that balances load without a loss, where there are groups to choose from */
    s->router_bias =
        s2s_conf_key(config, "n_group") != NULL && !s2s_conf_key(config, "aux_loss_alpha");
}

static void hf_mamba(struct rules_shape *s, const struct s2s_conf *config)
{
    s->mamba_heads = at(config, "mamba_num_heads", NAN);
    s->mamba_inner = s->mamba_heads * at(config, "mamba_head_dim", NAN);
    s->mamba_groups = at(config, "n_groups mamba_n_groups", NAN);
    s->mamba_state = at(config, "ssm_state_size mamba_d_state", NAN);
    s->mamba_conv = at(config, "conv_kernel mamba_d_conv", 4);
}

static void hf_latent_attention(struct rules_shape *s, const struct s2s_conf *config)
{
    s->q_rank = at(config, "q_lora_rank", 0);
    s->kv_rank = at(config, "kv_lora_rank", NAN);
    s->nope_dim = at(config, "qk_nope_head_dim", NAN);
    s->rope_dim = at(config, "qk_rope_head_dim", NAN);
    s->v_dim = at(config, "v_head_dim", NAN);
}

void rules_shape_of_hf(struct rules_shape *s, const struct s2s_conf *config)
{
    const struct s2s_conf *text = rules_section(config, "text_config");
    config = text ? text : config;
    const struct family *family = family_of(config);
    double layers = family ? at(config, "num_hidden_layers", NAN) : NAN;
    *s = (struct rules_shape){.matrices = 3, .norm_size = 1};
    s->hidden = at(config, "hidden_size", NAN);
    s->heads = at(config, "num_attention_heads", NAN);
    s->kv_heads = at(config, "num_key_value_heads num_attention_heads", NAN);
    s->head_dim = at(config, "head_dim", s->hidden / s->heads);
    s->ffn = at(config, "intermediate_size", NAN);
    s->vocab = at(config, "vocab_size", NAN);
    s->tied = on(config, "tie_word_embeddings", family && family->tied);
    s->mla = family && family->mla;
    s->qk_norm = family && family->qk_norm;
    s->output_bias = on(config, "attention_bias", false);
    s->qkv_bias = s->output_bias || (family && family->qkv_bias);
    s->bias = on(config, "mlp_bias", false);
    hf_experts(s, config);
    if (s->mla)
        hf_latent_attention(s, config);
    s->n_attention = layers;
    s->n_moe = s->experts > 0 ? moe_layers(config, layers) : 0;
    s->n_mlp = layers - s->n_moe;
    s->n_norms = 2 * layers;
    const struct s2s_conf *pattern = s2s_conf_key(config, "hybrid_override_pattern");
    if (family && family->hybrid && pattern && pattern->text) {
        s->matrices = 2; /* squared ReLU */
        count_letters(s, pattern->text);
        hf_mamba(s, config);
    }
}

static void mlm_latent_attention(struct rules_shape *s, const struct rules_check *check)
{
    const struct s2s_conf *c = check->conf;
    s->q_rank = at(c, "q_lora_rank", 0);
    s->kv_rank = at(c, "kv_lora_rank", 32);
    s->nope_dim = at(c, "qk_head_dim", 128);
    s->rope_dim = at(c, "qk_pos_emb_head_dim", 64);
    s->v_dim = at(c, "v_head_dim", 128);
}

/* --moe-layer-freq: one in N, or a list of zeros and ones; a string of Python is not counted */
static double mlm_moe_layers(const struct s2s_conf *args, double layers)
{
    const struct s2s_conf *freq = s2s_conf_key(args, "moe_layer_freq");
    double step = at(args, "moe_layer_freq", freq ? NAN : 1), n = 0;
    if (freq && freq->kind == S2S_CONF_LIST) {
        for (size_t i = 0; i < freq->n_items; i++)
            n += freq->items[i]->kind == S2S_CONF_INT && freq->items[i]->as_int == 1;
        return n;
    }
    return step >= 1 ? ceil(layers / step) : NAN;
}

void rules_shape_of_mlm(struct rules_shape *s, const struct rules_check *check)
{
    const struct s2s_conf *args = check->conf;
    const struct s2s_conf *norm = s2s_conf_key(args, "normalization");
    const struct rules_fact *position = rules_fact_find(&check->facts, "position");
    const struct rules_fact *pattern = rules_fact_find(&check->facts, "pattern_new");
    double layers = rules_number(check, "layers", NAN);
    *s = (struct rules_shape){.matrices = rules_on(check, "swiglu") ? 3 : 2};
    s->norm_size = norm && norm->text && !strcmp(norm->text, "RMSNorm") ? 1 : 2;
    s->hidden = rules_number(check, "hidden", NAN);
    s->heads = rules_number(check, "heads", NAN);
    s->kv_heads = rules_number(check, "kv_heads", NAN);
    s->head_dim = rules_number(check, "head_dim", NAN);
    s->ffn = rules_number(check, "dense_ffn", NAN);
    /* a tokenizer knows the vocabulary where the arguments do not: the rest is still counted */
    s->vocab = rules_number(check, "vocab", at(args, "vocab_size", 0));
    s->bias = s->output_bias = !rules_on(check, "no_bias");
    s->qkv_bias = s->bias || on(args, "add_qkv_bias", false);
    s->qk_norm = on(args, "qk_layernorm", false);
    s->tied = !rules_on(check, "untied");
    s->mla = rules_on(check, "mla");
    s->experts = rules_number(check, "experts", 0);
    s->topk = rules_number(check, "topk", 2);
    s->expert_ffn = rules_number(check, "moe_ffn", s->ffn);
    s->shared_ffn = rules_number(check, "shared_ffn", 0);
    s->latent = rules_number(check, "latent", 0);
    s->router_bias = rules_on(check, "expert_bias");
    if (s->mla)
        mlm_latent_attention(s, check);
    if (position && position->value.type == RULES_TEXT &&
        !strcmp(position->value.s, "learned_absolute"))
        s->n_positions = rules_number(check, "mpe", 0);
    s->n_attention = layers;
    s->n_moe = s->experts > 0 ? mlm_moe_layers(args, layers) : 0;
    s->n_mlp = layers - s->n_moe;
    s->n_norms = 2 * layers;
    if (!rules_on(check, "hybrid"))
        return;
    s->n_attention = NAN;
    if (!pattern || pattern->value.type != RULES_TEXT)
        pattern = rules_fact_find(&check->facts, "pattern_old");
    if (pattern && pattern->value.type == RULES_TEXT && !strchr(pattern->value.s, '$'))
        count_letters(s, pattern->value.s);
    s->mamba_inner = rules_number(check, "mamba_inner", NAN);
    s->mamba_heads = rules_number(check, "mamba_heads", s->mamba_inner / 64);
    s->mamba_groups = rules_number(check, "mamba_groups", 8);
    s->mamba_state = rules_number(check, "mamba_state", 128);
    s->mamba_conv = 4;
}

static double attention_params(const struct rules_shape *s)
{
    double h = s->hidden;
    if (s->mla) {
        double head = s->nope_dim + s->rope_dim;
        double q = s->q_rank > 0 ? s->q_rank * (h + s->heads * head + 1) : h * s->heads * head;
        double kv = s->kv_rank * (h + s->heads * (s->nope_dim + s->v_dim) + 1) + h * s->rope_dim;
        return q + kv + s->heads * s->v_dim * h;
    }
    double rows = (s->heads + 2 * s->kv_heads) * s->head_dim;
    return h * rows + s->heads * s->head_dim * h + (s->qkv_bias ? rows : 0) +
           (s->output_bias ? h : 0) + (s->qk_norm ? 2 * s->norm_size * s->head_dim : 0);
}

static double mlp_params(const struct rules_shape *s, double width, double ffn)
{
    return s->matrices * width * ffn + (s->bias ? (s->matrices - 1) * ffn + width : 0);
}

/* Mamba2: projections in and out, a short convolution with its bias, A, D and the bias of the step
 * a head, a norm inside. */
static double mamba_params(const struct rules_shape *s)
{
    double conv = s->mamba_inner + 2 * s->mamba_groups * s->mamba_state;
    return s->hidden * (s->mamba_inner + conv + s->mamba_heads) + conv * (s->mamba_conv + 1) +
           3 * s->mamba_heads + s->mamba_inner + s->mamba_inner * s->hidden;
}

struct rules_params rules_count(const struct rules_shape *s)
{
    struct rules_params p = {0};
    double expert_width = s->latent > 0 ? s->latent : s->hidden;
    p.dense = s->n_attention * attention_params(s) + s->norm_size * s->hidden * (s->n_norms + 1) +
              s->n_positions * s->hidden;
    if (s->n_mlp != 0)
        p.dense += s->n_mlp * mlp_params(s, s->hidden, s->ffn);
    if (s->n_mamba != 0)
        p.dense += s->n_mamba * mamba_params(s);
    if (s->n_moe != 0) {
        p.dense += s->n_moe * (s->hidden * s->experts + (s->router_bias ? s->experts : 0) +
                               (s->latent > 0 ? 2 * s->hidden * s->latent : 0) +
                               (s->shared_gate ? s->hidden : 0));
        if (s->shared_ffn > 0)
            p.dense += s->n_moe * mlp_params(s, s->hidden, s->shared_ffn);
        p.experts = s->n_moe * s->experts * mlp_params(s, expert_width, s->expert_ffn);
    }
    p.embedding = s->vocab * s->hidden;
    p.output = s->tied ? 0 : p.embedding;
    return p;
}
