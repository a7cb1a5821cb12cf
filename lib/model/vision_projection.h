/*
 * What stands between an image encoder and an LLM: a layer norm where the encoder ends without the
 * one it was trained with, pixel shuffle, and RMS norm -> linear map -> squared ReLU -> linear map.
 * Names are those of NVIDIA's Nemotron VLMs: vision_final_layernorm.{weight,bias} [D],
 * mlp1.0.weight [s s D], mlp1.1.weight [inner, s s D], mlp1.3.weight [H, inner]; no biases.
 */
#ifndef S2S_MODEL_VISION_PROJECTION_H
#define S2S_MODEL_VISION_PROJECTION_H

#include "lib/io/safetensors.h"
#include "lib/nn/decoder.h"
#include "lib/nn/layernorm.h"
#include "lib/nn/patches.h"

struct s2s_conf;
struct s2s_error;

struct s2s_vision_spec {
    int64_t inner;   /* 0: four times what goes in */
    int64_t shuffle; /* s: s x s patches become one row; 0: 2 */
    bool final_norm;
};

struct s2s_vision_projection {
    struct s2s_vision_spec spec; /* with its defaults filled in */
    struct s2s_nn_layernorm final_norm;
    struct s2s_nn_rmsnorm norm;
    struct s2s_nn_linear up, down;
    float eps; /* of the final norm */
};

/* The keys inner, pixel_shuffle and final_layernorm of a map. */
int s2s_vision_spec_read(struct s2s_vision_spec *spec, const struct s2s_conf *map,
                         struct s2s_error *err);
/* What a file holds, of an encoder `width` wide: NOTFOUND without its matrices, SHAPE where they do
 * not fit each other or the width. */
int s2s_vision_spec_look(struct s2s_vision_spec *spec, const struct s2s_safetensors *st,
                         int64_t width, struct s2s_error *err);

/* Adds the parameters, at ctx->place. Ranks of tp have columns of the inner width: RANGE where they
 * do not divide it. */
int s2s_vision_projection_init(struct s2s_vision_projection *projection,
                               const struct s2s_nn_ctx *ctx, const struct s2s_vision_spec *spec,
                               int64_t out, int64_t width, double eps, struct s2s_error *err);
/* Values of the file into the finished registry; prefix: of the parameters' names there. */
int s2s_vision_projection_load(const struct s2s_vision_projection *projection, const char *prefix,
                               const struct s2s_safetensors *st, struct s2s_error *err);
/* x [patches and what is in front of each image, width] -> [rows of all images, out]. */
struct s2s_tensor *s2s_vision_project(struct s2s_tape *tape,
                                      const struct s2s_vision_projection *projection,
                                      struct s2s_tensor *x, const struct s2s_nn_images *images,
                                      int64_t n_front, const struct s2s_nn_tp *tp);

#endif
