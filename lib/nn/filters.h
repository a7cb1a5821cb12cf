/* Weights of convolutions, of which those of 1 x 1 are linear maps. */
#ifndef S2S_NN_FILTERS_H
#define S2S_NN_FILTERS_H

#include "lib/nn/linear.h"

struct s2s_nn_filters {
    struct s2s_param *w, *b; /* b NULL: no bias */
};
/* "PLACE.name.weight" of spec's shape, cut as that of a linear map, and where asked
 * "PLACE.name.bias" [shape[0]]; initial values uniform in 1/sqrt(fan in), as torch's. */
void s2s_nn_filters_init(struct s2s_nn_filters *filters, const struct s2s_nn_ctx *ctx,
                         const char *name, struct s2s_param_spec spec, bool bias,
                         enum s2s_nn_cut cut);
/* Of 1 x 1: x times the weights as a matrix. */
struct s2s_tensor *s2s_nn_pointwise(struct s2s_tape *tape, const struct s2s_nn_filters *filters,
                                    struct s2s_tensor *x);
/* The same of ROW filters, which end a region: y leaves it. */
struct s2s_tensor *s2s_nn_pointwise_leave(struct s2s_tape *tape,
                                          const struct s2s_nn_filters *filters,
                                          const struct s2s_nn_tp *tp, struct s2s_tensor *x);
/* The value of a parameter; NULL of none. */
struct s2s_tensor *s2s_nn_value(const struct s2s_param *param);

#endif
