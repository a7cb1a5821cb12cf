/*
 * Layers of decoders, written once, forward only. Each is a struct of parameters made by its _init,
 * which adds them to a registry, and a function over the tape. struct s2s_par says how they are
 * cut; one process is the case where nothing is.
 */
#ifndef S2S_NN_DECODER_H
#define S2S_NN_DECODER_H

#include "lib/nn/linear.h"

/* RMS norm with gain "PLACE.name.weight" [size]; the gain in force is weight + offset. */
struct s2s_nn_rmsnorm {
    struct s2s_param *gain;
    float eps, offset;
};
void s2s_nn_rmsnorm_init(struct s2s_nn_rmsnorm *layer, const struct s2s_nn_ctx *ctx,
                         const char *name, int64_t size, double eps, double offset);
struct s2s_tensor *s2s_nn_rmsnorm(struct s2s_tape *tape, const struct s2s_nn_rmsnorm *layer,
                                  struct s2s_tensor *x);
/* *h += x, normed */
struct s2s_tensor *s2s_nn_add_rmsnorm(struct s2s_tape *tape, const struct s2s_nn_rmsnorm *layer,
                                      struct s2s_tensor **h, struct s2s_tensor *x);

/* Keys and values of one sequence, layer by layer, for generation. */
struct s2s_kv_cache {
    struct s2s_device *device;
    int n_layers;
    int64_t width;    /* n_kv_heads * dim */
    int64_t cap, len; /* rows there is room for, and that are filled */
    float **k, **v;   /* device memory [cap, width] each */
};
struct s2s_kv_cache *s2s_kv_cache_new(struct s2s_device *device, int n_layers, int64_t width,
                                      int64_t cap);
void s2s_kv_cache_free(struct s2s_kv_cache *cache); /* NULL is a no-op */

/* What attention layers of one batch share. */
struct s2s_nn_batch {
    struct s2s_spans spans;
    struct s2s_tensor *rope;    /* table [T, dim]; NULL: no positions */
    struct s2s_kv_cache *cache; /* or NULL */
};

/* Grouped-query attention: q_proj, k_proj, v_proj, o_proj, and q_norm, k_norm over each head. */
struct s2s_nn_attention {
    struct s2s_nn_linear q, k, v, o;
    struct s2s_nn_rmsnorm q_norm, k_norm;
    bool qk_norm;
    int layer_idx; /* its place in a cache */
    struct s2s_attention_shape shape;
};
struct s2s_nn_attention_options {
    int64_t width;
    int layer_idx;
    bool qkv_bias, o_bias, qk_norm;
    double eps; /* of q_norm, k_norm */
    struct s2s_attention_shape shape;
};
void s2s_nn_attention_init(struct s2s_nn_attention *layer, const struct s2s_nn_ctx *ctx,
                           const struct s2s_nn_attention_options *options);
struct s2s_tensor *s2s_nn_attention(struct s2s_tape *tape, const struct s2s_nn_attention *layer,
                                    struct s2s_tensor *x, const struct s2s_nn_batch *batch);

/* down(act(gate(x)) * up(x)): gate_proj, up_proj, down_proj. */
struct s2s_nn_mlp {
    struct s2s_nn_linear gate, up, down;
    enum s2s_act act;
};
void s2s_nn_mlp_init(struct s2s_nn_mlp *layer, const struct s2s_nn_ctx *ctx, int64_t width,
                     int64_t inner, enum s2s_act act, bool bias);
struct s2s_tensor *s2s_nn_mlp(struct s2s_tape *tape, const struct s2s_nn_mlp *layer,
                              struct s2s_tensor *x);

#endif
