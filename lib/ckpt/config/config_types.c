/*
 * The transformers models known here, by model_type: their class and its defaults. Configurations
 * of composite models, such as Gemma 3's, omit defaults in text_config. Source: the configuration
 * classes of transformers.
 */
#include "lib/ckpt/config/args_config.h"

#include <string.h>

static const char *const keys[] = {"num_attention_heads",    "num_key_value_heads",
                                   "rms_norm_eps",           "rope_theta",
                                   "sliding_window",         "tie_word_embeddings",
                                   "attn_logit_softcapping", "final_logit_softcapping",
                                   "query_pre_attn_scalar"};

/* Values in the order of keys; 0: no default. Without num_key_value_heads every head has its own
 * keys. */
static const struct {
    const char *type, *class;
    double values[9];
} types[] = {
    {"llama", "LlamaForCausalLM", {32, 0, 1e-6, 1e4, 0}},
    {"mistral", "MistralForCausalLM", {32, 8, 1e-6, 1e4, 4096}},
    {"mixtral", "MixtralForCausalLM", {32, 8, 1e-5, 1e6, 0}},
    {"qwen2", "Qwen2ForCausalLM", {32, 32, 1e-6, 1e4, 4096}},
    {"qwen3", "Qwen3ForCausalLM", {32, 32, 1e-6, 1e4, 4096}},
    {"qwen2_moe", "Qwen2MoeForCausalLM", {16, 16, 1e-6, 1e4, 4096}},
    {"qwen3_moe", "Qwen3MoeForCausalLM", {32, 4, 1e-6, 1e4, 4096}},
    {"gemma", "GemmaForCausalLM", {16, 16, 1e-6, 1e4, 0, 1}},
    {"gemma2", "Gemma2ForCausalLM", {8, 4, 1e-6, 1e4, 4096, 1, 50, 30, 256}},
    {"gemma3", "Gemma3ForConditionalGeneration", {0}},
    {"gemma3_text", "Gemma3ForCausalLM", {8, 4, 1e-6, 1e6, 4096, 1, 0, 0, 256}},
    {"nemotron", "NemotronForCausalLM", {48, 0, 0, 1e4, 0}},
    {"nemotron_h", "NemotronHForCausalLM", {32, 8, 0, 0, 0}},
};

enum { N_TYPES = sizeof types / sizeof *types };

const char *ckpt_config_type(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type ? type : "";
}

static size_t find(const char *type)
{
    size_t i = 0;
    while (i < N_TYPES && strcmp(types[i].type, type) != 0)
        i++;
    return i;
}

const char *ckpt_config_class(const char *type)
{
    const size_t i = find(type);
    return i < N_TYPES ? types[i].class : NULL;
}

double ckpt_config_default(const json_t *config, const char *key)
{
    const size_t i = find(ckpt_config_type(config));
    for (size_t k = 0; i < N_TYPES && k < sizeof keys / sizeof *keys; k++)
        if (strcmp(keys[k], key) == 0 && !json_object_get(config, key))
            return types[i].values[k];
    return 0;
}
