/* config.json of Nemotron-H: the kinds of layers come from the tensors, the rest from the
 * arguments. */
#include "lib/ckpt/config/args_config_internal.h"

/* The layer pattern, one letter a layer; NULL: a layer of unknown kind. Gives: free. */
static char *pattern_of(const struct ckpt_config_draft *d)
{
    static const struct {
        char letter;
        const char *mark;
    } kinds[] = {{'M', "mixer.in_proj.weight"},
                 {'*', "mixer.q_proj.weight"},
                 {'E', "mixer.gate.weight"},
                 {'-', "mixer.up_proj.weight"}};
    const int64_t n = ckpt_draft_layers(d);
    char *pattern = s2s_xcalloc((size_t)n + 1, 1);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        ckpt_draft_mark_layers(d, kinds[k].mark, kinds[k].letter, pattern);
    if (strlen(pattern) == (size_t)n)
        return pattern;
    free(pattern);
    return NULL;
}

/*
 * Multi-token prediction: the layer pattern of one depth, and the number of depths. If a model
 * repeats one depth, only the arguments have the number.
 */
static void add_mtp(struct ckpt_config_draft *d)
{
    struct ckpt_config_draft mtp = *d;
    const int64_t said = json_integer_value(json_object_get(d->args, "mtp_num_layers"));
    mtp.prefix = "mtp.";
    const int64_t n = ckpt_draft_layers(&mtp);
    if (!n)
        return;
    char *first = s2s_xcalloc((size_t)n + 1, 1), *pattern = pattern_of(&mtp);
    ckpt_draft_mark_layers(&mtp, "eh_proj.weight", '1', first);
    int64_t depths = 0;
    for (int64_t layer = 0; layer < n; layer++)
        depths += first[layer] != 0;
    if (!pattern || !depths || n % depths) {
        ckpt_draft_hinder(d, "a layer of its multi-token prediction is of an unknown kind");
    } else {
        ckpt_draft_set_int(d, "num_nextn_predict_layers", said > depths ? said : depths);
        pattern[n / depths] = 0;
        ckpt_draft_set_text(d, "mtp_hybrid_override_pattern", pattern);
    }
    free(pattern);
    free(first);
}

static void add_mamba(struct ckpt_config_draft *d)
{
    const int64_t heads = ckpt_draft_size(d, "mixer.D", 0);
    const int64_t inner = ckpt_draft_size(d, "mixer.norm.weight", 0);
    ckpt_draft_set_text(d, "mamba_hidden_act", "silu");
    /* transformers clamps the time step to time_step_min, Megatron does not */
    json_object_set_new(d->config, "time_step_min", json_real(1e-30));
    ckpt_draft_set_bool(d, "use_conv_bias", ckpt_draft_target(d, "mixer.conv1d.bias"));
    ckpt_draft_set_bool(d, "use_bias", ckpt_draft_target(d, "mixer.in_proj.bias"));
    ckpt_draft_set_bool(d, "mamba_proj_bias", false);
    if (!heads || inner % heads)
        return;
    ckpt_draft_set_int(d, "mamba_num_heads", heads);
    ckpt_draft_set_int(d, "mamba_head_dim", inner / heads);
    ckpt_draft_set_size(d, "conv_kernel", "mixer.conv1d.weight", 2);
    ckpt_draft_need(d, "n_groups");
    ckpt_draft_need(d, "ssm_state_size");
}

static void add_attention(struct ckpt_config_draft *d)
{
    const char *kind = json_string_value(json_object_get(d->args, "position_embedding_type"));
    ckpt_draft_set_bool(d, "attention_bias", false);
    if (!ckpt_draft_size(d, "mixer.q_proj.weight", 0))
        return;
    (void)ckpt_draft_heads(d, "mixer.q_proj.weight", "mixer.k_proj.weight");
    ckpt_draft_plain_scale(d);
    if (ckpt_draft_target(d, "mixer.q_proj.bias"))
        ckpt_draft_hinder(d, "its attention has biases");
    if (json_is_array(json_object_get(d->args, "window_size")))
        ckpt_draft_hinder(d, "its attention has a window");
    if (kind && strcmp(kind, "none") != 0)
        ckpt_draft_hinder(d, "its attention has a position embedding");
}

static void add_experts(struct ckpt_config_draft *d)
{
    const char *score = json_string_value(json_object_get(d->args, "moe_router_score_function"));
    const int64_t n = ckpt_draft_size(d, "mixer.gate.weight", 0);
    if (!n)
        return;
    if (score && strcmp(score, "sigmoid") != 0)
        ckpt_draft_hinder(d, "its router's scores are not sigmoids");
    if (!ckpt_draft_target(d, "shared_experts.up_proj.weight"))
        ckpt_draft_hinder(d, "it has no shared expert");
    ckpt_draft_set_int(d, "n_routed_experts", n);
    ckpt_draft_need(d, "num_experts_per_tok");
    ckpt_draft_set_size(d, "moe_intermediate_size", "experts.0.up_proj.weight", 0);
    ckpt_draft_set_int(d, "n_shared_experts", 1);
    ckpt_draft_set_size(d, "moe_shared_expert_intermediate_size", "shared_experts.up_proj.weight",
                        0);
    if (ckpt_draft_target(d, "fc1_latent_proj.weight"))
        ckpt_draft_set_size(d, "moe_latent_size", "fc1_latent_proj.weight", 0);
    ckpt_draft_take(d, "routed_scaling_factor");
    if (!json_object_get(d->args, "moe_router_topk_scaling_factor"))
        ckpt_draft_unsaid(d, "routed_scaling_factor");
    if (ckpt_draft_take(d, "n_group"))
        ckpt_draft_need(d, "topk_group");
    /* Megatron normalises the chosen scores if there are several */
    const json_t *k = json_object_get(d->config, "num_experts_per_tok");
    if (json_is_integer(k))
        ckpt_draft_set_bool(d, "norm_topk_prob", json_integer_value(k) > 1);
}

void ckpt_draft_nemotron_h(struct ckpt_config_draft *d)
{
    ckpt_draft_set_type(d, "nemotron_h");
    char *pattern = pattern_of(d);
    if (pattern)
        ckpt_draft_set_text(d, "hybrid_override_pattern", pattern);
    else
        ckpt_draft_hinder(d, "one of its layers is of an unknown kind");
    free(pattern);
    ckpt_draft_set_int(d, "num_hidden_layers", ckpt_draft_layers(d));
    ckpt_draft_set_size(d, "hidden_size", "embeddings.weight", 1);
    ckpt_draft_need(d, "layer_norm_epsilon");
    ckpt_draft_take(d, "max_position_embeddings");
    if (ckpt_arg_is_zero_centered(d->args))
        ckpt_draft_hinder(d, "its norms have gains around 0");
    if (ckpt_draft_target(d, "up_proj.weight") && !ckpt_arg_is_true(d->args, "squared_relu"))
        ckpt_draft_hinder(d, "its activation is not squared_relu");
    ckpt_draft_set_text(d, "mlp_hidden_act", "relu2");
    ckpt_draft_set_bool(d, "mlp_bias", ckpt_draft_target(d, "up_proj.bias"));
    if (ckpt_draft_size(d, "mixer.up_proj.weight", 0))
        ckpt_draft_set_size(d, "intermediate_size", "mixer.up_proj.weight", 0);
    else
        ckpt_draft_take(d, "intermediate_size");
    add_mamba(d);
    add_attention(d);
    add_experts(d);
    add_mtp(d);
}

/* ---- differences between Megatron and transformers ---- */

static bool has_layer(const json_t *config, char letter)
{
    const char *pattern = json_string_value(json_object_get(config, "hybrid_override_pattern"));
    const json_t *kinds = json_object_get(config, "layers_block_type");
    size_t i;
    json_t *kind;
    if (pattern)
        return strchr(pattern, letter);
    kinds = kinds ? kinds : json_object_get(config, "layer_types");
    json_array_foreach(kinds, i, kind)
    {
        if (ckpt_config_letter(json_string_value(kind)) == letter)
            return true;
    }
    return false;
}

static int64_t int_or(const json_t *config, const char *key, int64_t absent)
{
    const json_t *value = json_object_get(config, key);
    return json_is_integer(value) ? json_integer_value(value) : absent;
}

void ckpt_nemotron_h_differences(const json_t *config)
{
    const json_t *eps = json_object_get(config, "layer_norm_epsilon");
    if (strcmp(ckpt_config_type(config), "nemotron_h") != 0)
        return;
    if (json_is_number(eps) && json_number_value(eps) != 1e-5 && has_layer(config, 'M'))
        s2s_warn("ckpt",
                 "layer_norm_epsilon is %g: Megatron's norm inside Mamba layers always has 1e-5, "
                 "transformers' has this one",
                 json_number_value(eps));
    if (json_is_true(json_object_get(config, "mlp_bias")))
        s2s_warn("ckpt",
                 "mlp_bias: Megatron's add_bias_linear gives the attention biases too, which "
                 "it has not in transformers");
    if (!has_layer(config, 'E'))
        return;
    const int64_t k = int_or(config, "num_experts_per_tok", 2);
    const int64_t groups = int_or(config, "n_group", 1), chosen = int_or(config, "topk_group", 1);
    const bool divides = !json_is_false(json_object_get(config, "norm_topk_prob"));
    if (divides != (k > 1))
        s2s_warn("ckpt",
                 "norm_topk_prob is %s with num_experts_per_tok %lld: Megatron divides by the sum "
                 "of the chosen scores if they are more than one, and only then",
                 divides ? "true" : "false", (long long)k);
    if (groups > 1 && chosen > 0 && chosen < groups && k / chosen != 2)
        s2s_warn("ckpt",
                 "%lld of %lld groups of experts: transformers judges a group by its two best "
                 "experts, Megatron by its best %lld (num_experts_per_tok / topk_group), so they "
                 "may choose different experts",
                 (long long)chosen, (long long)groups, (long long)(k / chosen));
}
