/*
 * The transformers models known here, by model_type: their class and its defaults. Configurations
 * of composite models, such as Gemma 3's, omit defaults in text_config. Source: the configuration
 * classes of transformers.
 */
#include "lib/ckpt/config/args_config.h"

#include <string.h>

#include "lib/ckpt/names.h"

static const char *const keys[] = {"num_attention_heads",    "num_key_value_heads",
                                   "rms_norm_eps",           "rope_theta",
                                   "sliding_window",         "max_position_embeddings",
                                   "num_experts_per_tok",    "tie_word_embeddings",
                                   "attn_logit_softcapping", "final_logit_softcapping",
                                   "query_pre_attn_scalar",  "norm_eps",
                                   "layer_norm_epsilon"};

/* Values in the order of keys; 0: no default. Without num_key_value_heads every head has its own
 * keys. */
static const struct {
    const char *type, *class, *activation;
    double values[sizeof keys / sizeof *keys];
} types[] = {
    {"llama", "LlamaForCausalLM", "silu", {32, 0, 1e-6, 1e4, 0, 2048}},
    {"mistral", "MistralForCausalLM", "silu", {32, 8, 1e-6, 1e4, 4096, 131072}},
    {"mixtral", "MixtralForCausalLM", "silu", {32, 8, 1e-5, 1e6, 0, 131072, 2}},
    {"qwen2", "Qwen2ForCausalLM", "silu", {32, 32, 1e-6, 1e4, 4096, 32768}},
    {"qwen3", "Qwen3ForCausalLM", "silu", {32, 32, 1e-6, 1e4, 4096, 32768}},
    {"qwen2_moe", "Qwen2MoeForCausalLM", "silu", {16, 16, 1e-6, 1e4, 4096, 32768, 4}},
    {"qwen3_moe", "Qwen3MoeForCausalLM", "silu", {32, 4, 1e-6, 1e4, 4096, 32768, 8}},
    {"gemma", "GemmaForCausalLM", "gelu_pytorch_tanh", {16, 16, 1e-6, 1e4, 0, 8192, 0, 1}},
    {"gemma2",
     "Gemma2ForCausalLM",
     "gelu_pytorch_tanh",
     {8, 4, 1e-6, 1e4, 4096, 8192, 0, 1, 50, 30, 256}},
    {"gemma3", "Gemma3ForConditionalGeneration", NULL, {0}},
    {"gemma3_text",
     "Gemma3ForCausalLM",
     "gelu_pytorch_tanh",
     {8, 4, 1e-6, 1e6, 4096, 131072, 0, 1, 0, 0, 256}},
    {"nemotron", "NemotronForCausalLM", "relu2", {48, 0, 0, 1e4, 0, 4096, 0, 0, 0, 0, 0, 1e-5}},
    {"nemotron_h", "NemotronHForCausalLM", "relu2", {32, 8, 0, 0, 0, 4096, 2, 0, 0, 0, 0, 0, 1e-5}},
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

bool ckpt_config_ties(const char *type)
{
    return ckpt_has_word("deepseek_vl deepseek_vl_hybrid fun_asr_nano gemma3 glmasr got_ocr2 "
                         "internvl janus lighton_ocr mistral3 moss_transcribe_diarize ovis2 "
                         "paligemma pp_chart2table qwen3_asr shieldgemma2",
                         type);
}

const char *ckpt_config_activation(const char *type)
{
    const size_t i = find(type);
    return i < N_TYPES ? types[i].activation : NULL;
}

bool ckpt_config_has_window(const char *type)
{
    return ckpt_has_word("mistral mixtral qwen2 qwen3 qwen2_moe qwen3_moe gemma2 gemma3_text",
                         type);
}

bool ckpt_config_heeds(const char *type, const char *key)
{
    /* keys that add biases, and the classes that have those */
    static const struct {
        const char *key, *types;
    } biases[] = {
        {"attention_bias", "llama qwen3 qwen3_moe gemma gemma2 gemma3_text nemotron"},
        {"mlp_bias", "llama nemotron nemotron_h"},
        {"qkv_bias", "qwen2_moe"},
        {"use_bias", "nemotron_h"},
    };
    bool heeds = true;
    for (size_t i = 0; find(type) < N_TYPES && i < sizeof biases / sizeof *biases; i++)
        heeds &= strcmp(biases[i].key, key) != 0 || ckpt_has_word(biases[i].types, type);
    return heeds;
}

double ckpt_config_default(const json_t *config, const char *key)
{
    const size_t i = find(ckpt_config_type(config));
    for (size_t k = 0; i < N_TYPES && k < sizeof keys / sizeof *keys; k++)
        if (strcmp(keys[k], key) == 0 && !json_object_get(config, key))
            return types[i].values[k];
    return 0;
}
