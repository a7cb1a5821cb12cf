/* What encoders have in common: the media that a rank encodes, and the loss of a bare encoder. */
#include "lib/model/model_internal.h"
#include "lib/nn/spread.h"

struct s2s_media model_own_media(const struct s2s_model *encoder, const struct s2s_pass *pass,
                                 enum s2s_media_kind kind)
{
    static const int64_t no_bounds[1] = {0};
    const struct s2s_media *all = model_media(pass->batch, kind);
    if (!model_has_features(all))
        return (struct s2s_media){.cu = no_bounds};
    struct s2s_media own = *all;
    int64_t begin, end;
    s2s_nn_spread(&begin, &end, all->n, model_spread(encoder, pass));
    own.n = end - begin;
    own.cu = all->cu + begin;
    own.grid = all->grid ? all->grid + 2 * begin : NULL;
    own.draws = all->draws ? all->draws + begin : NULL;
    return own;
}

static void run_loss(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                     struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const float *values = ctx->pass->batch->target;
    struct s2s_forward *fwd = ctx->pass->fwd;
    out[0] = fwd->output = in[0];
    if (!values)
        return;
    struct s2s_tensor *target = s2s_tape_upload_floats(tape, 2, in[0]->shape, values);
    fwd->loss = s2s_op_sqdist(tape, in[0], target, fwd->seed);
}

void model_add_encoder_loss(struct s2s_model *encoder)
{
    model_add_block(encoder,
                    &(struct s2s_block){.run = run_loss,
                                        .n_in = 1,
                                        .n_out = 1,
                                        .param_begin = encoder->params->n,
                                        .hidden = -1},
                    "loss");
}
