/* The projection of images, and its file. */
#include "lib/model/vision_projection.h"

#include <string.h>

#include "lib/base/error.h"
#include "lib/conf/conf.h"
#include "lib/model/model_internal.h"

enum { MOST = 1 << 24 };

static const char norm_name[] = "vision_final_layernorm", up_name[] = "mlp1.1.weight";

/* ---- what it is ---- */

int s2s_vision_spec_read(struct s2s_vision_spec *spec, const struct s2s_conf *map,
                         struct s2s_error *err)
{
    int rc;
    *spec = (struct s2s_vision_spec){0};
    if (!map)
        return 0;
    if ((rc = s2s_conf_get_i64_or(&spec->inner, map, "inner", 1, MOST, 0, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&spec->shuffle, map, "pixel_shuffle", 1, 64, 0, err)) < 0)
        return rc;
    return s2s_conf_get_bool_or(&spec->final_norm, map, "final_layernorm", false, err);
}

int s2s_vision_spec_look(struct s2s_vision_spec *spec, const struct s2s_safetensors *st,
                         int64_t width, struct s2s_error *err)
{
    const struct s2s_st_tensor *w = s2s_safetensors_find(st, up_name);
    int64_t shuffle = 1;
    if (!w || w->n_dims != 2)
        return s2s_error_set(err, S2S_E_NOTFOUND, "no matrix %s", up_name);
    while (shuffle * shuffle * width < w->shape[1])
        shuffle++;
    if (shuffle * shuffle * width != w->shape[1])
        return s2s_error_set(err, S2S_E_SHAPE,
                             "%s is [%lld, %lld]; of an encoder %lld wide it would have a square "
                             "number of times that",
                             up_name, (long long)w->shape[0], (long long)w->shape[1],
                             (long long)width);
    *spec = (struct s2s_vision_spec){
        .inner = w->shape[0],
        .shuffle = shuffle,
        .final_norm = s2s_safetensors_find(st, "vision_final_layernorm.weight") != NULL};
    return 0;
}

/* ---- parameters ---- */

int s2s_vision_projection_init(struct s2s_vision_projection *p, const struct s2s_nn_ctx *ctx,
                               const struct s2s_vision_spec *spec, int64_t out, int64_t width,
                               double eps, struct s2s_error *err)
{
    const double norm_eps = 1e-5;
    struct s2s_nn_ctx own = *ctx;
    own.fan_in = true;
    *p = (struct s2s_vision_projection){.spec = *spec, .eps = (float)eps};
    p->spec.shuffle = spec->shuffle ? spec->shuffle : 2;
    const int64_t in = p->spec.shuffle * p->spec.shuffle * width;
    p->spec.inner = spec->inner ? spec->inner : 4 * in;
    const int ranks = s2s_group_size(ctx->par->tp);
    if (p->spec.inner % ranks)
        return s2s_error_set(err, S2S_E_RANGE,
                             "%lld columns of the projection of images cannot be shared by %d "
                             "ranks (mesh.tp)",
                             (long long)p->spec.inner, ranks);
    if (spec->final_norm)
        s2s_nn_layernorm_init(&p->final_norm, &own, norm_name, width);
    s2s_nn_rmsnorm_init(&p->norm, &own, "mlp1.0", in, norm_eps, 0, 0);
    s2s_nn_linear_init(&p->up, &own, "mlp1.1", p->spec.inner, in, false, S2S_NN_COLUMN);
    s2s_nn_linear_init(&p->down, &own, "mlp1.3", out, p->spec.inner, false, S2S_NN_ROW);
    return 0;
}

int s2s_vision_projection_load(const struct s2s_vision_projection *p, const char *prefix,
                               const struct s2s_safetensors *st, struct s2s_error *err)
{
    struct s2s_param *const params[] = {p->final_norm.gain, p->final_norm.bias, p->norm.gain,
                                        p->up.w, p->down.w};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof params / sizeof *params; i++) {
        if (!params[i] || !s2s_param_is_here(params[i]))
            continue;
        const char *name = params[i]->name + strlen(prefix);
        const struct s2s_st_tensor *t = s2s_safetensors_find(st, name);
        rc = t ? model_set_param(params[i], t, err)
               : s2s_error_set(err, S2S_E_NOTFOUND, "no tensor %s", name);
    }
    return rc;
}

/* ---- forward ---- */

struct s2s_tensor *s2s_vision_project(struct s2s_tape *tape, const struct s2s_vision_projection *p,
                                      struct s2s_tensor *x, const struct s2s_nn_images *images,
                                      int64_t n_front, const struct s2s_nn_tp *tp)
{
    const struct s2s_nn_linear *map = &p->up;
    struct s2s_tensor *inner;
    if (p->spec.final_norm)
        x = s2s_op_layernorm(tape, x, p->final_norm.gain->tensor, p->final_norm.bias->tensor,
                             p->eps);
    x = s2s_nn_shuffle(tape, x, images, n_front, (int)p->spec.shuffle);
    s2s_tape_lend(tape, true);
    x = s2s_nn_rmsnorm(tape, &p->norm, x);
    s2s_nn_linear_enter(tape, tp, x, 1, &map, &inner);
    s2s_tape_lend(tape, true);
    inner = s2s_op_glu(tape, inner, NULL, S2S_ACT_RELU2);
    s2s_tape_lend(tape, false);
    return s2s_nn_linear_leave(tape, &p->down, tp, inner);
}
