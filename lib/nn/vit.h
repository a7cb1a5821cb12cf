/*
 * The layer of image encoders over packed images, written once, forward only: attention of each
 * image's rows to all of them, and an MLP, each after a layer norm. Names are those of timm's
 * Vision Transformer, which C-RADIO's files have.
 */
#ifndef S2S_NN_VIT_H
#define S2S_NN_VIT_H

#include "lib/nn/layernorm.h"

struct s2s_nn_vit_options {
    int64_t width, inner, n_heads;
    bool qkv_bias;
    double eps;
    enum s2s_act act;
    double scale;     /* at first, of each channel of what a part adds */
    bool fixed_scale; /* it is not trained */
};

/*
 * h += scale1 attn.proj(attention(attn.qkv(norm1(h)))), h += scale2
 * mlp.fc2(act(mlp.fc1(norm2(h)))). attn.qkv is q, k and v one below the other; scales are
 * layer_scale1.lambda1 and layer_scale2. lambda1, which files may do without. Ranks of tp have
 * heads, and columns of the MLP.
 */
struct s2s_nn_vit {
    struct s2s_nn_layernorm norm1, norm2;
    struct s2s_nn_linear qkv, proj, fc1, fc2;
    struct s2s_param *scale1, *scale2;
    struct s2s_attention_shape shape; /* of this rank */
    float eps;
    enum s2s_act act;
};
void s2s_nn_vit_init(struct s2s_nn_vit *layer, const struct s2s_nn_ctx *ctx,
                     const struct s2s_nn_vit_options *options);

/* What the layers of one batch share. */
struct s2s_nn_vit_batch {
    struct s2s_nn_tp tp;    /* without sp: all ranks have all rows */
    struct s2s_spans spans; /* an image each */
};
struct s2s_tensor *s2s_nn_vit(struct s2s_tape *tape, const struct s2s_nn_vit *layer,
                              struct s2s_tensor *h, const struct s2s_nn_vit_batch *batch);

#endif
