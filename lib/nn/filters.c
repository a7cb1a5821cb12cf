/* Adds weights of convolutions and multiplies with those of 1 x 1. */
#include "lib/nn/filters.h"

#include <math.h>
#include <string.h>

void s2s_nn_filters_init(struct s2s_nn_filters *filters, const struct s2s_nn_ctx *ctx,
                         const char *name, struct s2s_param_spec spec, bool bias,
                         enum s2s_nn_cut cut)
{
    int64_t n = 1;
    for (int i = 1; i < spec.n_dims; i++)
        n *= spec.shape[i];
    spec.init = (struct s2s_init){S2S_INIT_UNIFORM, 1.0 / sqrt((double)n)};
    struct s2s_param_spec with = {.n_dims = 1, .shape = {spec.shape[0]}, .init = spec.init};
    with.n_parts = spec.n_parts;
    memcpy(with.parts, spec.parts, sizeof with.parts);
    if (cut != S2S_NN_WHOLE)
        spec = s2s_nn_cut_along(spec, ctx, cut == S2S_NN_ROW);
    if (cut == S2S_NN_COLUMN)
        with = s2s_nn_cut_along(with, ctx, 0);
    filters->w = s2s_nn_add(ctx, name, "weight", spec);
    filters->b = bias ? s2s_nn_add(ctx, name, "bias", with) : NULL;
}

struct s2s_tensor *s2s_nn_value(const struct s2s_param *param)
{
    return param ? param->tensor : NULL;
}

static struct s2s_tensor *multiply(struct s2s_tape *tape, const struct s2s_param *w,
                                   struct s2s_tensor *b, struct s2s_tensor *x)
{
    const int64_t shape[] = {w->local[0], w->local[1]};
    return s2s_op_linear(tape, x, s2s_tape_view(tape, w->tensor, 2, shape), b);
}

struct s2s_tensor *s2s_nn_pointwise(struct s2s_tape *tape, const struct s2s_nn_filters *filters,
                                    struct s2s_tensor *x)
{
    return multiply(tape, filters->w, s2s_nn_value(filters->b), x);
}

struct s2s_tensor *s2s_nn_pointwise_leave(struct s2s_tape *tape,
                                          const struct s2s_nn_filters *filters,
                                          const struct s2s_nn_tp *tp, struct s2s_tensor *x)
{
    if (s2s_group_size(tp->group) == 1)
        return s2s_nn_pointwise(tape, filters, x);
    struct s2s_tensor *y = s2s_nn_leave(tape, tp, multiply(tape, filters->w, NULL, x));
    return filters->b ? s2s_op_add_bias(tape, y, filters->b->tensor) : y;
}
