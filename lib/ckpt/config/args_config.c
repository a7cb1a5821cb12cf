/*
 * Makes config.json from the arguments that a Megatron checkpoint saves. Sizes come from the
 * tensors' shapes where possible. If transformers would not compute the same, there is no
 * config.json but a warning that says why; keys that nothing determines are listed.
 */
#include <math.h>

#include "lib/ckpt/box.h"
#include "lib/ckpt/config/args_config_internal.h"
#include "lib/ckpt/names.h"
#include "lib/ckpt/pickle/torch_dtype.h"

const struct ckpt_arg_key ckpt_arg_keys[] = {
    {"num_hidden_layers", "num_layers", CKPT_ARG_COUNT},
    {"hidden_size", "hidden_size", CKPT_ARG_COUNT},
    {"intermediate_size", "ffn_hidden_size", CKPT_ARG_COUNT},
    {"num_attention_heads", "num_attention_heads", CKPT_ARG_COUNT},
    {"num_key_value_heads", "num_query_groups", CKPT_ARG_COUNT},
    {"head_dim", "kv_channels", CKPT_ARG_COUNT},
    {"max_position_embeddings", "max_position_embeddings", CKPT_ARG_NUMBER},
    /* If a class has several of these keys the last counts: a Nemotron-H has all three, and its
     * class uses the last. Until 0.15 Megatron-LM's argument was norm_epsilon. */
    {"norm_eps", "layernorm_epsilon", CKPT_ARG_NUMBER},
    {"norm_eps", "norm_epsilon", CKPT_ARG_NUMBER},
    {"rms_norm_eps", "layernorm_epsilon", CKPT_ARG_NUMBER},
    {"rms_norm_eps", "norm_epsilon", CKPT_ARG_NUMBER},
    {"layer_norm_epsilon", "layernorm_epsilon", CKPT_ARG_NUMBER},
    {"layer_norm_epsilon", "norm_epsilon", CKPT_ARG_NUMBER},
    {"rope_theta", "rotary_base", CKPT_ARG_NUMBER},
    {"vocab_size", "vocab_size", CKPT_ARG_COUNT},
    {"hybrid_override_pattern", "hybrid_override_pattern", CKPT_ARG_TEXT},
    {"mamba_num_heads", "mamba_num_heads", CKPT_ARG_COUNT},
    {"mamba_head_dim", "mamba_head_dim", CKPT_ARG_COUNT},
    {"n_groups", "mamba_num_groups", CKPT_ARG_COUNT},
    {"ssm_state_size", "mamba_state_dim", CKPT_ARG_COUNT},
    {"n_routed_experts", "num_experts", CKPT_ARG_EXPERTS},
    {"num_experts", "num_experts", CKPT_ARG_EXPERTS},
    {"num_local_experts", "num_experts", CKPT_ARG_EXPERTS},
    {"num_experts_per_tok", "moe_router_topk", CKPT_ARG_EXPERTS},
    {"moe_intermediate_size", "moe_ffn_hidden_size", CKPT_ARG_EXPERTS},
    {"moe_shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
     CKPT_ARG_EXPERTS},
    {"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", CKPT_ARG_EXPERTS},
    {"routed_scaling_factor", "moe_router_topk_scaling_factor", CKPT_ARG_NUMBER},
    {"n_group", "moe_router_num_groups", CKPT_ARG_EXPERTS},
    {"topk_group", "moe_router_group_topk", CKPT_ARG_EXPERTS},
    {"moe_latent_size", "moe_latent_size", CKPT_ARG_EXPERTS},
    {"attn_logit_softcapping", "attn_logit_softcapping", CKPT_ARG_NUMBER},
    {"final_logit_softcapping", "final_logit_softcapping", CKPT_ARG_NUMBER},
    {NULL, NULL, CKPT_ARG_COUNT},
};

/* Marks are searched in this order. */
static const struct ckpt_config_family families[] = {
    {"nemotron_h", "backbone.", .fill = ckpt_draft_nemotron_h},
    {"gemma2", ".pre_feedforward_layernorm.", ckpt_draft_decoder, "gemma2", "gemma3_text",
     .zero_centered = true},
    {"mixtral", ".block_sparse_moe.", ckpt_draft_decoder, "mixtral", "mixtral", .experts = true},
    {"qwen_moe", ".mlp.experts.", ckpt_draft_decoder, "qwen2_moe", "qwen3_moe", .experts = true},
    {"nemotron", NULL, ckpt_draft_decoder, "nemotron", "nemotron", .layernorm = true,
     .zero_centered = true},
    {"llama", "model.layers.", ckpt_draft_decoder, .type_normed = "qwen3"},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

/* NULL: config.json cannot be made for it, or name is NULL. */
static const struct ckpt_config_family *find_family(const char *name)
{
    for (size_t i = 0; name && i < N_FAMILIES; i++)
        if (strcmp(families[i].name, name) == 0)
            return &families[i];
    return NULL;
}

bool ckpt_args_config_knows(const char *family)
{
    return find_family(family);
}

/* ---- helpers for families ---- */

/* A target's name without the draft's prefix; NULL: it belongs to another part. Layers of
 * multi-token prediction do not count as the model's. */
static const char *own_name(const struct ckpt_config_draft *draft, size_t i)
{
    const char *name = s2s_ckpt_target_name(&draft->plan->targets[i]);
    const bool of_mtp = s2s_starts_with(name, "mtp.");
    return s2s_starts_with(name, draft->prefix) && of_mtp == (strcmp(draft->prefix, "mtp.") == 0)
               ? name + strlen(draft->prefix)
               : NULL;
}

const struct s2s_ckpt_target *ckpt_draft_target(const struct ckpt_config_draft *draft,
                                                const char *end)
{
    for (size_t i = 0; i < draft->plan->n_targets; i++) {
        const char *name = own_name(draft, i);
        if (name && s2s_has_tail(name, '.', end))
            return &draft->plan->targets[i];
    }
    return NULL;
}

int64_t ckpt_draft_size(const struct ckpt_config_draft *draft, const char *end, int axis)
{
    const struct s2s_ckpt_target *target = ckpt_draft_target(draft, end);
    return target && axis < target->n_dims ? s2s_ckpt_target_shape(target)[axis] : 0;
}

/* The layer number in a target's name; -1: none, or of another part. */
static int64_t layer_of(const struct ckpt_config_draft *draft, size_t i, const char **rest)
{
    const char *name = own_name(draft, i);
    size_t prefix_len;
    int64_t layer;
    return name && ckpt_name_layer(name, &prefix_len, &layer, rest) ? layer : -1;
}

void ckpt_draft_mark_layers(const struct ckpt_config_draft *draft, const char *name, char mark,
                            char *marks)
{
    for (size_t i = 0; i < draft->plan->n_targets; i++) {
        const char *rest;
        const int64_t layer = layer_of(draft, i, &rest);
        if (layer >= 0 && !marks[layer] && strcmp(rest, name) == 0)
            marks[layer] = mark;
    }
}

int64_t ckpt_draft_layers(const struct ckpt_config_draft *draft)
{
    int64_t n = 0;
    const char *rest;
    for (size_t i = 0; i < draft->plan->n_targets; i++) {
        const int64_t layer = layer_of(draft, i, &rest);
        n = layer >= n ? layer + 1 : n;
    }
    return n;
}

json_t *ckpt_arg_as_fraction(const char *key, json_t *value)
{
    static const char keys[] = "norm_eps rms_norm_eps layer_norm_epsilon routed_scaling_factor "
                               "attn_logit_softcapping final_logit_softcapping ";
    return json_is_integer(value) && ckpt_has_word(keys, key)
               ? json_real((double)json_integer_value(value))
               : json_incref(value);
}

bool ckpt_draft_take(struct ckpt_config_draft *draft, const char *key)
{
    for (const struct ckpt_arg_key *k = ckpt_arg_keys; k->config; k++) {
        json_t *value = json_object_get(draft->args, k->args);
        if (strcmp(k->config, key) == 0 && value && ckpt_arg_can_be(k, value))
            return json_object_set_new(draft->config, key, ckpt_arg_as_fraction(key, value)) == 0;
    }
    return false;
}

void ckpt_draft_need(struct ckpt_config_draft *draft, const char *key)
{
    if (!ckpt_draft_take(draft, key))
        ckpt_draft_unsaid(draft, key);
}

void ckpt_draft_set_int(struct ckpt_config_draft *draft, const char *key, int64_t value)
{
    json_object_set_new(draft->config, key, json_integer(value));
}

void ckpt_draft_set_size(struct ckpt_config_draft *draft, const char *key, const char *end,
                         int axis)
{
    ckpt_draft_set_int(draft, key, ckpt_draft_size(draft, end, axis));
}

void ckpt_draft_set_bool(struct ckpt_config_draft *draft, const char *key, bool value)
{
    json_object_set_new(draft->config, key, json_boolean(value));
}

void ckpt_draft_set_text(struct ckpt_config_draft *draft, const char *key, const char *value)
{
    json_object_set_new(draft->config, key, json_string(value));
}

void ckpt_draft_set_type(struct ckpt_config_draft *draft, const char *type)
{
    draft->type = type;
    json_object_set_new(draft->config, "architectures", json_pack("[s]", ckpt_config_class(type)));
    ckpt_draft_set_text(draft, "model_type", type);
}

void ckpt_draft_unsaid(struct ckpt_config_draft *draft, const char *what)
{
    s2s_buf_printf(&draft->unsaid, "%s%s", draft->unsaid.len ? ", " : "", what);
}

void ckpt_draft_hinder(struct ckpt_config_draft *draft, const char *why)
{
    draft->hindrance = draft->hindrance ? draft->hindrance : why;
}

bool ckpt_arg_is_true(const json_t *args, const char *key)
{
    return json_is_true(json_object_get(args, key));
}

bool ckpt_arg_is_zero_centered(const json_t *args)
{
    return ckpt_arg_is_true(args, "apply_layernorm_1p") ||
           ckpt_arg_is_true(args, "layernorm_zero_centered_gamma");
}

bool ckpt_arg_is_number(const json_t *args, const char *key, double *value)
{
    const json_t *found = json_object_get(args, key);
    if (!json_is_number(found) || json_number_value(found) == 0)
        return false;
    *value = json_number_value(found);
    return true;
}

bool ckpt_draft_heads(struct ckpt_config_draft *draft, const char *q, const char *k)
{
    const int64_t heads = json_integer_value(json_object_get(draft->args, "num_attention_heads"));
    const int64_t rows = ckpt_draft_size(draft, q, 0), of_keys = ckpt_draft_size(draft, k, 0);
    ckpt_draft_need(draft, "num_attention_heads");
    if (heads <= 0 || heads > rows || rows % heads || of_keys % (rows / heads))
        return false;
    ckpt_draft_set_int(draft, "head_dim", rows / heads);
    ckpt_draft_set_int(draft, "num_key_value_heads", of_keys / (rows / heads));
    return true;
}

void ckpt_draft_plain_scale(struct ckpt_config_draft *draft)
{
    const int64_t dim = json_integer_value(json_object_get(draft->config, "head_dim"));
    double scale;
    if (ckpt_arg_is_number(draft->args, "softmax_scale", &scale) && dim > 0 &&
        fabs(scale * sqrt((double)dim) - 1) > 1e-6)
        ckpt_draft_hinder(draft, "its softmax_scale is not 1 / sqrt(head_dim)");
}

/* ---- checks ---- */

/* A tensor and its name within its layer. */
struct layer_tensor {
    const char *name;
    const struct s2s_ckpt_target *target;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct layer_tensor *)a)->name, ((const struct layer_tensor *)b)->name);
}

/* config.json has one size for all layers: tensors of one name must have one shape. */
static void check_layers(struct ckpt_config_draft *draft)
{
    struct layer_tensor *all = s2s_xcalloc(draft->plan->n_targets, sizeof *all);
    size_t n = 0;
    for (size_t i = 0; i < draft->plan->n_targets; i++)
        if (layer_of(draft, i, &all[n].name) >= 0)
            all[n++].target = &draft->plan->targets[i];
    qsort(all, n, sizeof *all, by_name);
    for (size_t i = 1; i < n; i++) {
        const struct s2s_ckpt_target *a = all[i - 1].target, *b = all[i].target;
        if (by_name(&all[i - 1], &all[i]) == 0 &&
            !ckpt_same_shape(s2s_ckpt_target_shape(a), a->n_dims, s2s_ckpt_target_shape(b),
                             b->n_dims))
            ckpt_draft_hinder(draft, "its layers differ in size");
    }
    free(all);
}

/* Load balancing of experts is a string, or in newer releases a list. These two kinds change the
 * choice of experts and their weights, not only the loss. */
static void check_balance(struct ckpt_config_draft *draft)
{
    const json_t *value = json_object_get(draft->args, "moe_router_load_balancing_type");
    const char *how = json_string_value(json_is_array(value) ? json_array_get(value, 0) : value);
    if (how && strcmp(how, "sinkhorn") == 0)
        ckpt_draft_hinder(draft, "its router balances the experts by Sinkhorn's algorithm");
    if (how && strcmp(how, "quantile_balancing") == 0)
        ckpt_draft_hinder(draft, "its router balances the experts by quantiles");
}

/* Arguments that transformers' models of these families do not support. */
static void check_args(struct ckpt_config_draft *draft)
{
    static const char *const never[][2] = {
        {"multi_latent_attention", "it has multi-latent attention"},
        {"attention_output_gate", "its attention has an output gate"},
        {"apply_residual_connection_post_layernorm",
         "its residual connections start after the norms"},
        {"use_mup", "its layers are scaled by their widths (muP)"},
        {"qk_l2_norm", "its queries and keys are divided by their lengths"},
        {"enable_mhc_connections", "it has hyper-connections (several residual streams)"},
        {"moe_apply_probs_on_input", "its router scales the experts' inputs, not their outputs"},
    };
    static const char *const numbers[][2] = {
        {"activation_func_clamp_value", "its activation is clamped"},
        {"glu_linear_offset", "its gates have an offset"},
    };
    const char *norm = json_string_value(json_object_get(draft->args, "normalization"));
    const char *softmax = json_string_value(json_object_get(draft->args, "softmax_type"));
    const bool layernorm = draft->family->layernorm;
    double value;
    if (!norm || strcmp(norm, layernorm ? "LayerNorm" : "RMSNorm") != 0)
        ckpt_draft_hinder(draft, layernorm ? "its normalization is not LayerNorm"
                                           : "its normalization is not RMSNorm");
    if (softmax && strcmp(softmax, "vanilla") != 0)
        ckpt_draft_hinder(draft, "its softmax has a sink");
    if (ckpt_arg_is_true(draft->args, "add_bias_linear") &&
        !ckpt_draft_target(draft, "mlp.down_proj.bias"))
        ckpt_draft_hinder(draft, "its linear layers have biases");
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (ckpt_arg_is_true(draft->args, never[i][0]))
            ckpt_draft_hinder(draft, never[i][1]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (ckpt_arg_is_number(draft->args, numbers[i][0], &value))
            ckpt_draft_hinder(draft, numbers[i][1]);
}

static void add_words(struct ckpt_config_draft *draft)
{
    const struct s2s_ckpt_target *words = ckpt_draft_target(draft, "embed_tokens.weight");
    words = words ? words : ckpt_draft_target(draft, "embeddings.weight");
    if (words && words->n_dims == 2) {
        ckpt_draft_set_int(draft, "vocab_size", s2s_ckpt_target_shape(words)[0]);
        ckpt_draft_set_text(draft, "dtype", ckpt_torch_dtype(words->dtype));
    }
    ckpt_draft_set_bool(draft, "tie_word_embeddings", !ckpt_draft_target(draft, "lm_head.weight"));
}

void ckpt_args_check_norms(const char *family, const json_t *args, const json_t *config)
{
    const char *type = ckpt_config_type(config);
    const struct ckpt_config_family *known = find_family(family);
    if (!known || known->zero_centered || s2s_starts_with(type, "gemma") ||
        !ckpt_arg_is_zero_centered(args))
        return;
    s2s_warn("ckpt",
             "the arguments say that norms have gains around 0, and they are written so: "
             "transformers' %s takes gains around 1",
             *type ? type : "model");
}

const char *ckpt_config_family(const struct s2s_ckpt_plan *plan, const char *prefix)
{
    const struct ckpt_config_draft draft = {.plan = plan, .prefix = prefix};
    for (size_t k = 0; k < N_FAMILIES; k++)
        for (size_t i = 0; i < plan->n_targets && families[k].mark; i++) {
            const char *name = own_name(&draft, i);
            if (name && strstr(name, families[k].mark))
                return families[k].name;
        }
    return NULL;
}

/* Of a model of several parts the arguments describe only the language model. */
static json_t *as_part(json_t *config)
{
    s2s_warn("ckpt",
             "config.json has the language model's part alone (llm_config): what the vision "
             "tower and its projection take is not in the checkpoint's arguments (--config "
             "takes a whole one)");
    return json_pack("{s:o}", "llm_config", config);
}

char *ckpt_args_config(const char *family, const json_t *args, const struct s2s_ckpt_plan *plan)
{
    const bool parts = s2s_starts_with(family, "nemotron_vlm");
    struct ckpt_config_draft draft = {.args = args,
                                      .plan = plan,
                                      .prefix = parts ? "language_model." : "",
                                      .unsaid = S2S_BUF_INIT};
    char *out = NULL;
    draft.family = find_family(parts ? ckpt_config_family(plan, draft.prefix) : family);
    if (!json_is_object(args) || !draft.family || ckpt_draft_layers(&draft) == 0)
        return NULL;
    draft.config = json_object();
    check_args(&draft);
    check_balance(&draft);
    check_layers(&draft);
    draft.family->fill(&draft);
    add_words(&draft);
    if (draft.hindrance) {
        s2s_warn("ckpt", "no config.json: %s; give one with --config", draft.hindrance);
    } else {
        if (draft.unsaid.len)
            s2s_warn("ckpt",
                     "config.json: the checkpoint's arguments do not say %.*s; the defaults of %s "
                     "apply (give a config.json with --config)",
                     (int)draft.unsaid.len, draft.unsaid.data, draft.type);
        ckpt_nemotron_h_differences(draft.config);
        draft.config = parts ? as_part(draft.config) : draft.config;
        out = s2s_ckpt_config_text(draft.config);
    }
    s2s_buf_release(&draft.unsaid);
    json_decref(draft.config);
    return out;
}
