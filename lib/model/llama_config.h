/* What config.json says of decoders of the Llama type. */
#ifndef S2S_MODEL_LLAMA_CONFIG_H
#define S2S_MODEL_LLAMA_CONFIG_H

#include "lib/model/moe.h"
#include "lib/model/rope.h"

enum llama_family { LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, MIXTRAL, QWEN3_MOE };

/* "model_type" of each, NULL-ended. */
extern const char *const model_llama_types[];

struct llama_config {
    enum llama_family family;
    int64_t vocab, width, inner, n_layers, n_heads, n_kv_heads, head_dim, pad;
    double eps, init_std;
    bool tied, qkv_bias, o_bias, mlp_bias;
    enum s2s_act act;
    struct model_rope rope;
    struct model_moe moe;
    int64_t window;  /* that a token of some layers sees, itself included; 0: no layer has one */
    bool *in_window; /* [n_layers] */
};

/* Defaults of absent keys are those of the family's class. Errors name the key, its place and what
 * is known. Gives, also on failure: model_llama_config_release. */
int model_read_llama(struct llama_config *config, const struct s2s_conf *conf,
                     struct s2s_error *err);
void model_llama_config_release(struct llama_config *config);

#endif
