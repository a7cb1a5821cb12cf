/*
 * config.json out of the arguments that a Megatron checkpoint saves, for families whose arguments
 * say all of it. What transformers could not compute the same way gives no config.json and a word
 * why.
 */
#include "lib/ckpt/args_config.h"

#include "lib/base/base.h"
#include "lib/ckpt/ckpt_internal.h"

const struct ckpt_arg_key ckpt_arg_keys[] = {
    {"num_hidden_layers", "num_layers"},
    {"hidden_size", "hidden_size"},
    {"intermediate_size", "ffn_hidden_size"},
    {"num_attention_heads", "num_attention_heads"},
    {"num_key_value_heads", "num_query_groups"},
    {"head_dim", "kv_channels"},
    {"max_position_embeddings", "max_position_embeddings"},
    {"rms_norm_eps", "norm_epsilon"},
    {"layer_norm_epsilon", "norm_epsilon"},
    {"rope_theta", "rotary_base"},
    {"vocab_size", "vocab_size"},
    {"hybrid_override_pattern", "hybrid_override_pattern"},
    {"mamba_num_heads", "mamba_num_heads"},
    {"mamba_head_dim", "mamba_head_dim"},
    {"n_groups", "mamba_num_groups"},
    {"ssm_state_size", "mamba_state_dim"},
    {"n_routed_experts", "num_experts"},
    {"num_experts", "num_experts"},
    {"num_experts_per_tok", "moe_router_topk"},
    {"moe_intermediate_size", "moe_ffn_hidden_size"},
    {"moe_shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"},
    {"routed_scaling_factor", "moe_router_topk_scaling_factor"},
    {"n_group", "moe_router_num_groups"},
    {"topk_group", "moe_router_group_topk"},
    {"moe_latent_size", "moe_latent_size"},
    {NULL, NULL},
};

/* Which keys of the table a family's config has. */
static const char *const llama_keys[] = {"num_hidden_layers",
                                         "hidden_size",
                                         "intermediate_size",
                                         "num_attention_heads",
                                         "head_dim",
                                         "rms_norm_eps",
                                         "rope_theta",
                                         "max_position_embeddings",
                                         "num_key_value_heads",
                                         NULL};
static const char *const nemotron_keys[] = {"num_hidden_layers",
                                            "hidden_size",
                                            "intermediate_size",
                                            "num_attention_heads",
                                            "head_dim",
                                            "layer_norm_epsilon",
                                            "max_position_embeddings",
                                            "num_key_value_heads",
                                            "hybrid_override_pattern",
                                            "mamba_num_heads",
                                            "mamba_head_dim",
                                            "n_groups",
                                            "ssm_state_size",
                                            "n_routed_experts",
                                            "num_experts_per_tok",
                                            "moe_intermediate_size",
                                            "moe_shared_expert_intermediate_size",
                                            "routed_scaling_factor",
                                            "n_group",
                                            "topk_group",
                                            "moe_latent_size",
                                            NULL};

static const struct s2s_ckpt_target *find_target(const struct s2s_ckpt_plan *plan, const char *end)
{
    for (size_t i = 0; i < plan->n_targets; i++) {
        size_t len = strlen(plan->targets[i].name), n = strlen(end);
        if (len >= n && strcmp(plan->targets[i].name + len - n, end) == 0)
            return &plan->targets[i];
    }
    return NULL;
}

static const char *text(const json_t *args, const char *key, const char *absent)
{
    const char *value = json_string_value(json_object_get(args, key));
    return value ? value : absent;
}

static bool is_true(const json_t *args, const char *key)
{
    return json_is_true(json_object_get(args, key));
}

/* What transformers' model of the family cannot do; NULL: it can. */
static const char *hindrance(const json_t *args, bool nemotron)
{
    const json_t *percent = json_object_get(args, "rotary_percent");
    if (strcmp(text(args, "normalization", "LayerNorm"), "RMSNorm") != 0)
        return "its normalization is not RMSNorm";
    if (is_true(args, "add_bias_linear"))
        return "its linear layers have biases";
    if (is_true(args, "apply_layernorm_1p"))
        return "its norms have gains around 0";
    if (nemotron)
        return is_true(args, "squared_relu") ? NULL : "its activation is not squared_relu";
    if (!is_true(args, "swiglu"))
        return "its activation is not swiglu";
    if (strcmp(text(args, "position_embedding_type", "learned_absolute"), "rope") != 0)
        return "its positions are not rope";
    if ((json_is_number(percent) && json_number_value(percent) != 1) ||
        is_true(args, "rotary_interleaved"))
        return "its rotary embedding is partial or interleaved";
    return NULL;
}

static void add_keys(json_t *config, const json_t *args, const char *const *names)
{
    for (size_t i = 0; ckpt_arg_keys[i].config; i++) {
        json_t *value = json_object_get(args, ckpt_arg_keys[i].args);
        bool wanted = false;
        for (const char *const *name = names; *name; name++)
            wanted |= strcmp(*name, ckpt_arg_keys[i].config) == 0;
        if (wanted && value && !json_is_null(value))
            json_object_set(config, ckpt_arg_keys[i].config, value);
    }
    /* without group_query_attention the number of groups counts for nothing */
    if (json_is_false(json_object_get(args, "group_query_attention")))
        json_object_set(config, "num_key_value_heads",
                        json_object_get(args, "num_attention_heads"));
    /* the newer spelling */
    if (json_is_string(json_object_get(args, "hybrid_layer_pattern")) &&
        !json_object_get(config, "hybrid_override_pattern"))
        json_object_set(config, "hybrid_override_pattern",
                        json_object_get(args, "hybrid_layer_pattern"));
}

/* Llama 3.1's long context, with the constants that Megatron-Core has for it. */
static void add_rope_scaling(json_t *config, const json_t *args)
{
    const json_t *factor = json_object_get(args, "rope_scaling_factor");
    if (is_true(args, "use_rope_scaling"))
        json_object_set_new(config, "rope_scaling",
                            json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor",
                                      json_is_number(factor) ? json_number_value(factor) : 8.0,
                                      "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                                      "original_max_position_embeddings", 8192));
}

static json_t *llama_config(const json_t *args, const struct s2s_ckpt_plan *plan)
{
    const bool bias = find_target(plan, "self_attn.q_proj.bias");
    const bool norm = find_target(plan, "self_attn.q_norm.weight");
    const char *type = norm ? "qwen3" : bias ? "qwen2" : "llama";
    const char *class = norm ? "Qwen3ForCausalLM" : bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM";
    json_t *config = json_pack("{s:[s], s:s, s:s}", "architectures", class, "model_type", type,
                               "hidden_act", "silu");
    add_keys(config, args, llama_keys);
    add_rope_scaling(config, args);
    return config;
}

/* Megatron does not clamp the step from below, transformers does at time_step_min. */
static json_t *nemotron_config(const json_t *args, const struct s2s_ckpt_plan *plan)
{
    const struct s2s_ckpt_target *conv = find_target(plan, "mixer.conv1d.weight");
    json_t *config = json_pack(
        "{s:[s], s:s, s:s, s:s, s:f, s:b, s:b, s:b, s:b, s:b}", "architectures",
        "NemotronHForCausalLM", "model_type", "nemotron_h", "mlp_hidden_act", "relu2",
        "mamba_hidden_act", "silu", "time_step_min", 1e-30, "use_conv_bias",
        find_target(plan, "mixer.conv1d.bias") != NULL, "use_bias", 0, "attention_bias",
        find_target(plan, "mixer.q_proj.bias") != NULL, "mlp_bias", 0, "mamba_proj_bias", 0);
    add_keys(config, args, nemotron_keys);
    if (conv && conv->n_dims == 3)
        json_object_set_new(config, "conv_kernel", json_integer(conv->shape[2]));
    if (find_target(plan, "shared_experts.up_proj.weight"))
        json_object_set_new(config, "n_shared_experts", json_integer(1));
    return config;
}

char *ckpt_args_config(const char *family, const json_t *args, const struct s2s_ckpt_plan *plan)
{
    const bool nemotron = strcmp(family, "nemotron_h") == 0;
    if (!json_is_object(args) || (!nemotron && strcmp(family, "llama") != 0) ||
        !json_is_integer(json_object_get(args, "num_layers")))
        return NULL;
    const char *why = hindrance(args, nemotron);
    if (why) {
        s2s_warn("ckpt", "no config.json: %s; --config takes one", why);
        return NULL;
    }
    json_t *config = nemotron ? nemotron_config(args, plan) : llama_config(args, plan);
    const struct s2s_ckpt_target *words = find_target(plan, "embed_tokens.weight");
    words = words ? words : find_target(plan, "embeddings.weight");
    if (words && words->n_dims == 2) {
        json_object_set_new(config, "vocab_size", json_integer(words->shape[0]));
        json_object_set_new(config, "dtype", json_string(ckpt_torch_dtype(words->dtype)));
    }
    json_object_set_new(config, "tie_word_embeddings",
                        json_boolean(!find_target(plan, "lm_head.weight")));
    char *out = json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(config);
    return out;
}
