/* The projection of a speech LLM, and its file. */
#include "lib/model/projection.h"

#include "lib/base/error.h"
#include "lib/model/model_internal.h"

static const char *const names[] = {"proj.weight", "proj.bias"};

int s2s_projection_look(int64_t *out, bool *bias, const struct s2s_safetensors *st, int64_t in,
                        struct s2s_error *err)
{
    const struct s2s_st_tensor *w = s2s_safetensors_find(st, names[0]);
    if (!w || w->n_dims != 2)
        return s2s_error_set(err, S2S_E_NOTFOUND, "no matrix %s", names[0]);
    if (w->shape[1] != in)
        return s2s_error_set(err, S2S_E_SHAPE, "%s is [%lld, %lld]; the encoder is %lld wide",
                             names[0], (long long)w->shape[0], (long long)w->shape[1],
                             (long long)in);
    *out = w->shape[0];
    *bias = s2s_safetensors_find(st, names[1]) != NULL;
    return 0;
}

void s2s_projection_init(struct s2s_nn_linear *projection, const struct s2s_nn_ctx *ctx,
                         int64_t out, int64_t in, bool bias)
{
    struct s2s_nn_ctx own = *ctx;
    own.fan_in = true;
    s2s_nn_linear_init(projection, &own, "proj", out, in, bias, S2S_NN_WHOLE);
}

int s2s_projection_load(const struct s2s_nn_linear *projection, const struct s2s_safetensors *st,
                        struct s2s_error *err)
{
    struct s2s_param *const params[] = {projection->w, projection->b};
    int rc = 0;
    for (int i = 0; rc == 0 && i < 2 && params[i]; i++) {
        const struct s2s_st_tensor *t = s2s_safetensors_find(st, names[i]);
        rc = t ? model_set_param(params[i], t, err)
               : s2s_error_set(err, S2S_E_NOTFOUND, "no tensor %s", names[i]);
    }
    return rc;
}
