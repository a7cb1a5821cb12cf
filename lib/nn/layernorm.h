/* Layer norm of rows, as encoders have it. */
#ifndef S2S_NN_LAYERNORM_H
#define S2S_NN_LAYERNORM_H

#include "lib/nn/linear.h"

/* Gain and bias "PLACE.name.weight", ".bias" [size], at first 1 and 0. */
struct s2s_nn_layernorm {
    struct s2s_param *gain, *bias;
};
void s2s_nn_layernorm_init(struct s2s_nn_layernorm *norm, const struct s2s_nn_ctx *ctx,
                           const char *name, int64_t size);

#endif
