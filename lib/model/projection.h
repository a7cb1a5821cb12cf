/*
 * The linear map between an encoder and an LLM: proj.weight [out, in] and proj.bias [out], in a
 * file of its own. A speech LLM trains it, s2s-encode applies it.
 */
#ifndef S2S_MODEL_PROJECTION_H
#define S2S_MODEL_PROJECTION_H

#include "lib/io/safetensors.h"
#include "lib/nn/linear.h"

struct s2s_error;

/* What the file holds: NOTFOUND without a matrix, SHAPE for another input than `in`. */
int s2s_projection_look(int64_t *out, bool *bias, const struct s2s_safetensors *st, int64_t in,
                        struct s2s_error *err);
/* Its parameters, at ctx->place. */
void s2s_projection_init(struct s2s_nn_linear *projection, const struct s2s_nn_ctx *ctx,
                         int64_t out, int64_t in, bool bias);
/* Values of the file into the finished registry. */
int s2s_projection_load(const struct s2s_nn_linear *projection, const struct s2s_safetensors *st,
                        struct s2s_error *err);

#endif
