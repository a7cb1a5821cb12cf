/* What of a map may be absent from this model, by what the arguments and the configuration say. */
#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/map/map_internal.h"

/* 1 the arguments say that words and outputs have one matrix, 0 that they have not, -1 neither */
static int args_tied(const json_t *args)
{
    const json_t *untied = json_object_get(args, "untie_embeddings_and_output_weights");
    const json_t *shared = json_object_get(args, "share_embeddings_and_output_weights");
    if (json_is_boolean(untied))
        return json_is_false(untied);
    return json_is_boolean(shared) ? json_is_true(shared) : -1;
}

static int config_tied(const json_t *config)
{
    const json_t *words = ckpt_config_of_words(config);
    const json_t *tied = json_object_get(words, "tie_word_embeddings");
    if (!json_is_boolean(tied))
        tied = json_object_get(config, "tie_word_embeddings");
    if (!json_is_boolean(tied))
        return ckpt_config_default(words, "tie_word_embeddings") != 0 ? 1 : -1;
    return json_is_true(tied);
}

static bool has_no_conv_bias(const struct ckpt_map_engine *e)
{
    const json_t *config = ckpt_config_of_words(e->config ? e->config : e->own_config);
    return json_is_false(json_object_get(config, "use_conv_bias"));
}

/* NeMo's perception has a projection where its adapter says a width and none of its output;
 * s2s-train's configuration of the composite says it itself */
static bool has_no_projection(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const json_t *adapter =
        json_object_get(json_object_get(config, "perception"), "modality_adapter");
    if (json_is_object(adapter))
        return !json_object_get(adapter, "d_model") || json_object_get(adapter, "output_dim");
    return type && strcmp(type, "salm") == 0 && !json_object_get(config, "projection");
}

static bool is_tied(const struct ckpt_map_engine *e)
{
    int tied = e->to_megatron ? -1 : args_tied(e->args);
    if (tied < 0)
        tied = config_tied(e->config);
    return tied != 0;
}

bool ckpt_map_says_tied(const struct ckpt_map_engine *e)
{
    return args_tied(e->args) == 1 || (args_tied(e->args) < 0 && config_tied(e->config) == 1);
}

bool ckpt_map_config_ties(const struct ckpt_map_engine *e)
{
    return args_tied(e->args) != 1 && config_tied(e->config ? e->config : e->own_config) == 1;
}

bool ckpt_map_config_unties(const struct ckpt_map_engine *e)
{
    const json_t *config = e->config ? e->config : e->own_config;
    return config && args_tied(e->args) == 1 && config_tied(config) != 1;
}

/*
 * Arguments and keys of the configuration of which any, when true, says that a tensor is there that
 * some models have, and the types of transformers' models that all have it unless a key is false.
 * Where all layers lay in one tensor and it is lost, all layers lack it: nothing else tells that
 * from a model that never had it.
 */
static const struct claim {
    const char *args, *config[2], *types[3];
    bool linear; /* one of the biases of add_bias_linear */
} claims[] = {
    [CKPT_ABSENT_UNLESS_QKV_BIAS] = {"add_qkv_bias",
                                     {"attention_bias", "qkv_bias"},
                                     {"qwen2", "qwen2_moe"},
                                     true},
    [CKPT_ABSENT_UNLESS_BIAS] = {NULL, {"attention_bias"}, {NULL}, true},
    [CKPT_ABSENT_UNLESS_MLP_BIAS] = {NULL, {"mlp_bias"}, {NULL}, true},
    [CKPT_ABSENT_UNLESS_QK_NORM] = {"qk_layernorm",
                                    {NULL},
                                    {"qwen3", "qwen3_moe", "gemma3_text"},
                                    false},
    [CKPT_ABSENT_UNLESS_SHARED_GATE] = {"moe_shared_expert_gate", {NULL}, {"qwen2_moe"}, false},
};

static bool is_true(const json_t *object, const char *key)
{
    return key && json_is_true(json_object_get(object, key));
}

/* It is Megatron's default, which arguments that were not written by a training run may show of a
 * model without any bias: the tensors must agree. */
static bool has_linear_biases(const struct ckpt_map_engine *e)
{
    struct ckpt_match match;
    if (!is_true(e->args, "add_bias_linear"))
        return false;
    for (size_t i = 0; i < e->map.n_rules; i++)
        for (size_t k = 0; claims[e->map.rules[i].absence].linear && k < e->n_sources; k++)
            if (ckpt_map_match(e->map.rules[i].megatron, e->sources[k].name, &match))
                return true;
    return false;
}

static bool is_claimed_by_type(const json_t *config, const struct claim *claim)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    bool claimed = false;
    for (int i = 0; type && i < 3 && claim->types[i]; i++)
        claimed |= strcmp(type, claim->types[i]) == 0;
    for (int i = 0; i < 2 && claim->config[i]; i++)
        claimed &= !json_is_false(json_object_get(config, claim->config[i]));
    return claimed;
}

static bool is_claimed(const struct ckpt_map_engine *e, const struct claim *claim)
{
    const json_t *config = ckpt_config_of_words(e->config ? e->config : e->own_config);
    return is_true(config, claim->config[0]) || is_true(config, claim->config[1]) ||
           is_true(e->args, claim->args) || is_claimed_by_type(config, claim) ||
           (claim->linear && has_linear_biases(e));
}

bool ckpt_map_is_optional(const struct ckpt_map_engine *e, const struct ckpt_rule *rule)
{
    switch (rule->absence) {
    case CKPT_NEVER_ABSENT:
        return false;
    case CKPT_MAY_BE_ABSENT:
        return true;
    case CKPT_ABSENT_IF_TIED:
        return is_tied(e);
    case CKPT_ABSENT_IF_NO_CONV_BIAS:
        return has_no_conv_bias(e);
    case CKPT_ABSENT_IF_NO_PROJECTION:
        return has_no_projection(e->request->config ? e->request->config : e->request->beside);
    case CKPT_ABSENT_UNLESS_QKV_BIAS:
    case CKPT_ABSENT_UNLESS_BIAS:
    case CKPT_ABSENT_UNLESS_MLP_BIAS:
    case CKPT_ABSENT_UNLESS_QK_NORM:
    case CKPT_ABSENT_UNLESS_SHARED_GATE:
        return !is_claimed(e, &claims[rule->absence]);
    }
    S2S_BUG("absence %d", (int)rule->absence);
}
