/*
 * What a FastConformer and a modality adapter of Conformer layers have in common: how config.json
 * says what frames see, the layers, and what stands in front of the first one.
 */
#ifndef S2S_MODEL_CONFORMER_H
#define S2S_MODEL_CONFORMER_H

#include "lib/model/model.h"
#include "lib/nn/conformer.h"

/* Paths of keys in the model's config, NeMo's meanings. */
struct model_conformer_keys {
    const char *width, *heads, *inner, *kernel, *norm; /* for messages; norm is read here */
    const char *positions, *context, *style, *probs;   /* self_attention_model, att_context_.. */
    const char *sides, *untied;                        /* conv_context_size, untie_biases */
    /* shares that are left out; inner and input NULL or absent: as dropout says */
    const char *dropout, *inner_dropout, *input_dropout, *attention_dropout, *positions_dropout;
};

/* What frames attend to; of several one is drawn for each step of training. */
struct model_context {
    struct s2s_reach reach;
    double probability;
};

struct model_conformer {
    struct s2s_nn_conformer_options block; /* sizes and biases are the caller's to read */
    int64_t n_layers;                      /* the caller's, too */
    bool scale_input;                      /* times sqrt(width) in front of the layers; the same */
    bool shares_biases;                    /* layers have bias_u and bias_v in common */
    double input_dropout, positions_dropout; /* of what goes into the layers, of their positions */
    struct model_context
        *contexts; /* [n_contexts], the first for evaluation; none: all of a clip */
    int64_t n_contexts;
    int number; /* sets its draws apart from those of another one; the caller's */
    struct s2s_nn_conformer *layers; /* [n_layers] */
    struct s2s_nn_dropout on_input, on_positions;
};

/* All but what is the caller's, which is checked: RANGE, SHAPE and UNSUPPORTED name the key. What a
 * failure leaves is released as a whole one. */
int model_conformer_read(struct model_conformer *c, struct s2s_model *model,
                         const struct model_conformer_keys *keys, struct s2s_error *err);
void model_conformer_release(struct model_conformer *c);
/* Adds what the layers share to the block that stands before them: ctx is its place, `layers` that
 * of the layers ("encoder.layers"). Where a directory of the model has weights of layers that share
 * none, UNSUPPORTED. */
int model_conformer_begin(struct model_conformer *c, struct s2s_model *model,
                          const struct s2s_nn_ctx *ctx, const char *layers, struct s2s_error *err);
/* The parameters of the next layer, and `block` with them, which runs s2s_nn_conformer. */
void model_conformer_add_layer(struct model_conformer *c, struct s2s_model *model, int idx,
                               const char *layers, struct s2s_block *block);
/* Whether a file may have a tensor of this name as the copy that each layer has of what they share:
 * "layers.3.self_attn.bias_u" below `layers`. */
bool model_conformer_is_copy(const struct model_conformer *c, const char *layers, const char *name);

/* Fills in what these layers see of clips, whose bounds are cu (host): reach, positions, names (or
 * NULL: nothing is drawn). */
void model_conformer_prepare(const struct model_conformer *c, const struct s2s_pass *pass,
                             struct s2s_nn_clips *clips, const int32_t *cu,
                             struct s2s_tensor *names);
/* What goes into the first layer: scaled, with places where positions are absolute, dropped. */
struct s2s_tensor *model_conformer_enter(struct s2s_tape *tape, const struct model_conformer *c,
                                         const struct s2s_nn_clips *clips, struct s2s_tensor *x);

#endif
