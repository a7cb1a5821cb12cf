/* Parameters of layer norms. */
#include "lib/nn/layernorm.h"

void s2s_nn_layernorm_init(struct s2s_nn_layernorm *norm, const struct s2s_nn_ctx *ctx,
                           const char *name, int64_t size)
{
    struct s2s_param_spec spec = {.n_dims = 1, .shape = {size}, .init = {S2S_INIT_CONSTANT, 1}};
    norm->gain = s2s_nn_add(ctx, name, "weight", spec);
    spec.init = (struct s2s_init){S2S_INIT_ZERO, 0};
    norm->bias = s2s_nn_add(ctx, name, "bias", spec);
}
