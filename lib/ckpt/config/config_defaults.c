/*
 * What a config.json means by a key that it lacks. Files of models of several parts, such as Gemma
 * 3's, leave out of text_config what their class has by itself. Source: the configuration classes
 * of transformers.
 */
#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"

static const char *const keys[] = {"num_attention_heads", "num_key_value_heads", "rms_norm_eps"};

/* in the order of keys; 0: the class has none. Without heads of keys all heads have their own. */
static const struct {
    const char *type;
    double values[3];
} classes[] = {
    {"llama", {32, 0, 1e-6}},      {"mistral", {32, 8, 1e-6}}, {"mixtral", {32, 8, 1e-5}},
    {"qwen2", {32, 32, 1e-6}},     {"qwen3", {32, 32, 1e-6}},  {"qwen2_moe", {16, 16, 1e-6}},
    {"qwen3_moe", {32, 4, 1e-6}},  {"gemma", {16, 16, 1e-6}},  {"gemma2", {8, 4, 1e-6}},
    {"gemma3_text", {8, 4, 1e-6}}, {"nemotron_h", {32, 8, 0}},
};

double ckpt_config_default(const json_t *config, const char *key)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (!type || json_object_get(config, key))
        return 0;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys && strcmp(classes[i].type, type) == 0;
             k++)
            if (strcmp(keys[k], key) == 0)
                return classes[i].values[k];
    return 0;
}
