/*
 * Does transformers' class that a config.json names have these tensors? Those that it has not it
 * leaves out. Source: transformers' models.
 */
#include "lib/base/base.h"
#include "lib/ckpt/ckpt_internal.h"
#include "lib/ckpt/config/args_config.h"

#define NORMED "qwen3 qwen3_moe gemma3_text "
#define GATED "llama mistral qwen2 gemma gemma2 qwen2_moe " NORMED

/* part of the name of a layer's tensor, and the types that have it */
static const struct {
    const char *part, *types;
    const char *key; /* or those of this key; NULL: none */
} kinds[] = {
    {".mixer.", "nemotron_h ", NULL},
    {".self_attn.q_proj.weight", "nemotron mixtral " GATED, NULL},
    {".self_attn.q_proj.bias", "qwen2 qwen2_moe ", "attention_bias"},
    {".self_attn.q_norm.weight", NORMED, NULL},
    {".mlp.gate_proj.weight", GATED, NULL},
    {".pre_feedforward_layernorm.weight", "gemma2 gemma3_text ", NULL},
    {".block_sparse_moe.", "mixtral ", NULL},
    {".mlp.experts.", "qwen2_moe qwen3_moe ", NULL},
    {".mlp.shared_expert.", "qwen2_moe ", NULL},
};

static bool is_words(const char *name)
{
    static const char *const stacks[] = {"model.layers.", "backbone.layers.",
                                         "language_model.model.layers.",
                                         "language_model.backbone.layers."};
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        if (s2s_starts_with(name, stacks[i]))
            return true;
    return false;
}

int ckpt_config_check_kind(const json_t *config, const struct s2s_ckpt_plan *plan,
                           struct s2s_error *err)
{
    const json_t *words = ckpt_config_of_words(config);
    const char *type = json_string_value(json_object_get(words, "model_type"));
    /* code of one's own may have anything */
    if (!type || json_object_get(config, "auto_map") ||
        !ckpt_has_word("nemotron_h nemotron mixtral " GATED, type))
        return 0;
    for (size_t i = 0; i < plan->n_targets; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            const char *name = plan->targets[i].name;
            if (!is_words(name) || !strstr(name, kinds[k].part) ||
                ckpt_has_word(kinds[k].types, type) ||
                (kinds[k].key && json_is_true(json_object_get(words, kinds[k].key))))
                continue;
            int rc = s2s_error_set(
                err, S2S_E_SHAPE,
                "%s: the configuration says that this is a %s, which has none%s%s", name, type,
                kinds[k].key ? " without " : "", kinds[k].key ? kinds[k].key : "");
            return s2s_error_hint(err, rc, "--config takes the config.json of this model");
        }
    return 0;
}
