/* Sizes of a language model and the memory of its ranks; shared by memory.c and memory_model.c. */
#ifndef S2S_RULES_MEMORY_H
#define S2S_RULES_MEMORY_H

#include "lib/rules/rules_internal.h"

/*
 * What a language model is made of. A count or width that is not known is NaN, and so is whatever
 * is computed from it. Layers are counted by what is in them: a transformer's layer is an attention
 * and an MLP, one of a hybrid is only one thing.
 */
struct rules_shape {
    double n_attention, n_mlp, n_moe, n_mamba, n_norms; /* in all layers */
    double hidden, heads, kv_heads, head_dim, ffn, vocab;
    double experts, topk, expert_ffn, shared_ffn, latent; /* latent: 0, or width inside experts */
    double matrices;                                      /* of an MLP: 3 if gated, else 2 */
    double norm_size;                                     /* vectors of a norm: 2 with a bias */
    double mamba_inner, mamba_heads, mamba_groups, mamba_state, mamba_conv;
    bool mla, tied, bias, qkv_bias, output_bias, qk_norm, shared_gate, router_bias;
    double q_rank, kv_rank, nope_dim, rope_dim, v_dim; /* of multi-latent attention */
    double n_positions;                                /* learned ones */
};

/* Parameters by how they are cut: by tp, or by experts. */
struct rules_params {
    double dense, experts; /* of all layers */
    double embedding;      /* one matrix */
    double output;         /* 0 if tied */
};

/* From config.json of the language model (HF names), or from Megatron's arguments. */
void rules_shape_of_hf(struct rules_shape *shape, const struct s2s_conf *config);
void rules_shape_of_mlm(struct rules_shape *shape, const struct rules_check *check);
struct rules_params rules_count(const struct rules_shape *shape);

/* A number of the facts; NaN if unknown, `other` if null. */
double rules_number(const struct rules_check *check, const char *name, double other);
bool rules_on(const struct rules_check *check, const char *name);

#endif
