/* Which tensors of a map this model may lack, by arguments and configuration. */
#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/map/map_internal.h"

/* By the arguments: 1 tied, 0 untied, -1 unknown. */
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
    const json_t *words = ckpt_text_config(config);
    const json_t *tied = json_object_get(words, "tie_word_embeddings");
    if (!json_is_boolean(tied))
        tied = json_object_get(config, "tie_word_embeddings");
    if (!json_is_boolean(tied))
        return ckpt_config_default(words, "tie_word_embeddings") != 0 ? 1 : -1;
    return json_is_true(tied);
}

static bool has_no_conv_bias(const struct ckpt_map_engine *e)
{
    const json_t *config = ckpt_text_config(e->any_config);
    return json_is_false(json_object_get(config, "use_conv_bias"));
}

/* Has the model no projection? NeMo's perception has one if its adapter has a width and no output
 * size; s2s-train's configuration says so explicitly. */
static bool has_no_projection(const json_t *config)
{
    const json_t *adapter =
        json_object_get(json_object_get(config, "perception"), "modality_adapter");
    if (json_is_object(adapter))
        return !json_object_get(adapter, "d_model") || json_object_get(adapter, "output_dim");
    return strcmp(ckpt_config_type(config), "salm") == 0 && !json_object_get(config, "projection");
}

/* Whether the whole model ties a part's embedding: 1, 0, or -1: the part decides. Some classes tie
 * whatever the part's section says, by default too; it counts if the section says nothing. */
static int whole_tied(const struct ckpt_map_engine *e)
{
    const json_t *whole = e->request->is_part ? e->request->beside : e->config;
    const json_t *part = ckpt_text_config(e->config);
    const json_t *said = json_object_get(whole, "tie_word_embeddings");
    if (!said && e->request->is_part && ckpt_config_ties(ckpt_config_type(whole)))
        return 1;
    if (whole == part || !json_is_boolean(said) ||
        (json_is_false(said) && json_object_get(part, "tie_word_embeddings")))
        return -1;
    return json_is_true(said);
}

/* transformers' class of Nemotron-H ties nothing, whatever its config.json says; NVIDIA's own may.
 */
static bool never_ties(const struct ckpt_map_engine *e)
{
    return e->request->is_exact && !e->request->is_part &&
           strcmp(ckpt_config_type(e->config), "nemotron_h") == 0 &&
           !json_object_get(e->config, "auto_map");
}

static bool is_tied(const struct ckpt_map_engine *e)
{
    if (never_ties(e))
        return false;
    int tied = e->to_megatron ? whole_tied(e) : args_tied(e->args);
    if (tied < 0)
        tied = config_tied(e->config);
    if (tied < 0)
        tied = config_tied(e->own_config);
    /* transformers' default is untied; for a part the whole model decides */
    if (tied < 0 && e->to_megatron && !e->request->is_part)
        return ckpt_text_config(e->config) != e->config ||
               !ckpt_config_class(ckpt_config_type(e->config));
    return tied != 0;
}

bool ckpt_map_says_tied(const struct ckpt_map_engine *e)
{
    return args_tied(e->args) == 1 || (args_tied(e->args) < 0 && config_tied(e->config) == 1);
}

bool ckpt_map_config_ties(const struct ckpt_map_engine *e)
{
    return args_tied(e->args) != 1 && config_tied(e->any_config) == 1;
}

bool ckpt_map_config_unties(const struct ckpt_map_engine *e)
{
    const json_t *config = e->any_config;
    return config && args_tied(e->args) == 1 && config_tied(config) != 1;
}

bool ckpt_map_has_tied(const struct ckpt_map_engine *e, const struct ckpt_rule *rule)
{
    static const char input[] = "embedding.word_embeddings.weight";
    const json_t *whole = e->request->is_part ? e->request->beside : e->config;
    const int tied = e->request->is_part ? whole_tied(e) : config_tied(e->config);
    bool has = false;
    /* a decoder without an output matrix is checked without a model_type */
    if (!e->request->is_exact || tied != 1 || never_ties(e) || !*ckpt_config_type(whole) ||
        !s2s_ends_with(rule->megatron, input))
        return false;
    for (size_t i = 0; i < e->map.n_rules; i++)
        has |= e->map.rules[i].absence == CKPT_ABSENT_IF_TIED &&
               ckpt_map_find(e, e->map.rules[i].hf) != NULL;
    return has;
}

/* The embedding that belongs to `out`, the source of a rule, if that is an output matrix of the
 * tables; NULL: it is none, or the embedding is missing. */
static const struct ckpt_map_source *words_of(const struct ckpt_map_engine *e,
                                              const struct ckpt_rule *rule,
                                              const struct ckpt_map_source *out)
{
    static const char output[] = "output_layer.weight";
    if (!out || !s2s_ends_with(rule->megatron, output))
        return NULL;
    const size_t prefix_len = strlen(rule->megatron) - strlen(output);
    for (size_t i = 0; i < e->map.n_rules; i++) {
        const char *name = e->map.rules[i].megatron;
        const struct ckpt_map_source *found = ckpt_map_find(e, e->map.rules[i].hf);
        if (found && strncmp(name, rule->megatron, prefix_len) == 0 &&
            strcmp(name + prefix_len, "embedding.word_embeddings.weight") == 0)
            return found;
    }
    return NULL;
}

int ckpt_map_leave_out_copy(struct ckpt_map_engine *e)
{
    int same = 0;
    for (size_t i = 0; i < e->map.n_rules && config_tied(e->config) == 1 && same == 0; i++) {
        struct ckpt_map_source *out = ckpt_map_find(e, e->map.rules[i].hf);
        const struct ckpt_map_source *in = words_of(e, &e->map.rules[i], out);
        /* a user's map may require it */
        if (!in || in == out || !ckpt_map_is_optional(e, &e->map.rules[i]))
            continue;
        same = s2s_ckpt_is_copy(e->request->ckpt, in->tensor, out->tensor, e->err);
        if (same == 0)
            s2s_warn("ckpt",
                     "%s differs from %s, though the configuration ties them: it stays a matrix of "
                     "its own",
                     out->name, in->name);
        if (same <= 0)
            continue;
        s2s_info("ckpt", "%s is a copy of %s: tied", out->name, in->name);
        out->used = true;
        e->copy = out;
    }
    return same < 0 ? same : 0;
}

int ckpt_map_find_own_head(struct ckpt_map_engine *e, struct ckpt_own_head *head)
{
    int tied = whole_tied(e), same = 1;
    if (tied < 0)
        tied = config_tied(e->config);
    if (tied != 1 || never_ties(e))
        return 0;
    for (size_t i = 0; i < e->map.n_rules && same == 1; i++) {
        const struct ckpt_map_source *out = ckpt_map_find(e, e->map.rules[i].hf);
        const struct ckpt_map_source *in = words_of(e, &e->map.rules[i], out);
        if (!in || in == out)
            continue;
        same = s2s_ckpt_is_copy(e->request->ckpt, in->tensor, out->tensor, e->err);
        if (same == 0)
            *head = (struct ckpt_own_head){out->tensor->name, in->tensor->name};
    }
    return same < 0 ? same : 0;
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
    [CKPT_ABSENT_UNLESS_MIXER_BIAS] = {NULL, {"use_bias"}, {NULL}, false},
    [CKPT_ABSENT_UNLESS_QK_NORM] = {"qk_layernorm",
                                    {NULL},
                                    {"qwen3", "qwen3_moe", "gemma3_text"},
                                    false},
    [CKPT_ABSENT_UNLESS_SHARED_GATE] = {"moe_shared_expert_gate", {NULL}, {"qwen2_moe"}, false},
    [CKPT_ABSENT_UNLESS_SHARED] = {NULL, {"n_shared_experts"}, {NULL}, false},
};

/* true, or a count of more than none */
static bool is_true(const json_t *object, const char *key)
{
    const json_t *value = key ? json_object_get(object, key) : NULL;
    return json_is_true(value) || json_integer_value(value) > 0;
}

/* Does add_bias_linear count? True is Megatron's default, which arguments not written by a training
 * run may have for a model without biases: the tensors must agree. */
static bool has_linear_biases(const struct ckpt_map_engine *e)
{
    bool any = false;
    if (e->to_megatron || !is_true(e->args, "add_bias_linear"))
        return false;
    for (size_t i = 0; i < e->n_sources; i++)
        any |= e->sources[i].rule && claims[e->map.rules[e->sources[i].rule - 1].absence].linear;
    return any;
}

static bool is_claimed_by_type(const json_t *config, const struct claim *claim)
{
    const char *type = ckpt_config_type(config);
    bool claimed = false;
    for (int i = 0; i < 3 && claim->types[i]; i++)
        claimed |= strcmp(type, claim->types[i]) == 0;
    for (int i = 0; i < 2 && claim->config[i]; i++)
        claimed &= !json_is_false(json_object_get(config, claim->config[i]));
    return claimed;
}

/* By a key of the configuration that the model's class heeds; code of its own may heed any. */
static bool is_claimed_by_key(const struct ckpt_map_engine *e, const char *key)
{
    const json_t *config = ckpt_text_config(e->any_config);
    return is_true(config, key) &&
           (json_object_get(config, "auto_map") || json_object_get(e->any_config, "auto_map") ||
            ckpt_config_heeds(ckpt_config_type(config), key));
}

static bool is_claimed(const struct ckpt_map_engine *e, const struct claim *claim)
{
    const json_t *config = ckpt_text_config(e->any_config);
    return is_claimed_by_key(e, claim->config[0]) || is_claimed_by_key(e, claim->config[1]) ||
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
    default:
        return !is_claimed(e, &claims[rule->absence]);
    }
}
