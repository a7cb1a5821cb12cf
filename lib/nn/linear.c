/* The linear map, and names of parameters. */
#include "lib/nn/linear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/nn/lora.h"

struct s2s_param *s2s_nn_add(const struct s2s_nn_ctx *ctx, const char *name, const char *part,
                             struct s2s_param_spec spec)
{
    char *full = *ctx->place ? s2s_xasprintf("%s.%s.%s", ctx->place, name, part)
                             : s2s_xasprintf("%s.%s", name, part);
    spec.name = full;
    struct s2s_param *param = s2s_params_add(ctx->params, &spec);
    free(full);
    return param;
}

struct s2s_param_spec s2s_nn_cut_along(struct s2s_param_spec spec, const struct s2s_nn_ctx *ctx,
                                       int dim)
{
    spec.cuts[0] = (struct s2s_cut){S2S_AXIS_TP, dim, ctx->par->tp};
    return spec;
}

unsigned s2s_nn_outside(const struct s2s_par *par)
{
    return par->sp ? S2S_PARAM_SP_SUM : 0;
}

/* ---- regions ---- */

int64_t s2s_nn_rows(const struct s2s_nn_tp *tp, int64_t n)
{
    const int64_t size = tp->sp ? s2s_group_size(tp->group) : 1;
    return (n + size - 1) / size * size;
}

struct s2s_tensor *s2s_nn_enter(struct s2s_tape *tape, const struct s2s_nn_tp *tp,
                                struct s2s_tensor *x)
{
    return tp->sp ? s2s_op_all_gather(tape, x, tp->group, false)
                  : s2s_op_copy_to_group(tape, x, tp->group);
}

struct s2s_tensor *s2s_nn_leave(struct s2s_tape *tape, const struct s2s_nn_tp *tp,
                                struct s2s_tensor *y)
{
    return tp->sp ? s2s_op_reduce_scatter(tape, y, tp->group)
                  : s2s_op_all_reduce(tape, y, tp->group);
}

/* ---- dropout ---- */

struct s2s_nn_dropout s2s_nn_dropout_at(const struct s2s_nn_ctx *ctx, const char *name, double rate)
{
    char *full = s2s_xasprintf("%s.%s", ctx->place, name);
    const struct s2s_nn_dropout drop = {(float)rate, s2s_rng_name(full)};
    free(full);
    return drop;
}

struct s2s_tensor *s2s_nn_drop(struct s2s_tape *tape, const struct s2s_nn_dropout *drop,
                               const struct s2s_nn_tp *tp, struct s2s_tensor *x)
{
    return s2s_op_dropout(
        tape, x,
        &(struct s2s_dropout){.rate = drop->rate, .site = drop->site, .rows = tp->outside});
}

struct s2s_tensor *s2s_nn_drop_inside(struct s2s_tape *tape, const struct s2s_nn_dropout *drop,
                                      const struct s2s_nn_tp *tp, struct s2s_tensor *x)
{
    return s2s_op_dropout(
        tape, x,
        &(struct s2s_dropout){.rate = drop->rate,
                              .site = drop->site,
                              .rows = tp->inside,
                              .first = s2s_group_rank(tp->group) * s2s_tensor_cols(x)});
}

/* ---- the adapter ---- */

/* Ranks that see a part of the sum over outputs, of the inputs, or of the tokens each have a part
 * of the gradient of what is whole. */
static void add_adapter(struct s2s_nn_linear *layer, const struct s2s_nn_ctx *ctx, const char *name,
                        enum s2s_nn_cut cut)
{
    const struct s2s_param *w = layer->w;
    const int64_t rank = ctx->lora->rank, out = w->shape[0], in = w->shape[1];
    const bool whole = cut == S2S_NN_WHOLE || cut == S2S_NN_OUTSIDE;
    const bool shared = whole ? ctx->par->sp : s2s_group_size(ctx->par->tp) > 1;
    const unsigned flags = S2S_PARAM_OPTIONAL | (shared ? S2S_PARAM_SP_SUM : 0);
    struct s2s_param_spec a = {.n_dims = 2,
                               .shape = {rank, in},
                               .flags = flags,
                               .init = {S2S_INIT_UNIFORM, 1.0 / sqrt((double)in)}};
    struct s2s_param_spec b = {.n_dims = 2, .shape = {out, rank}, .flags = flags};
    if (cut == S2S_NN_ROW)
        a = s2s_nn_cut_along(a, ctx, 1);
    if (cut == S2S_NN_COLUMN) {
        b = s2s_nn_cut_along(b, ctx, 0);
        b.n_parts = w->n_parts;
        memcpy(b.parts, w->parts, sizeof b.parts);
    }
    layer->lora_a = s2s_nn_add(ctx, name, S2S_LORA_A, a);
    layer->lora_b = s2s_nn_add(ctx, name, S2S_LORA_B, b);
    layer->lora_scale = (float)(ctx->lora->alpha / (double)rank);
    char *site = s2s_xasprintf("%s.lora_dropout", name);
    layer->lora_dropout = s2s_nn_dropout_at(ctx, site, ctx->lora->dropout);
    free(site);
}

void s2s_nn_linear_adapt(struct s2s_nn_linear *layer, const struct s2s_nn_ctx *ctx,
                         const char *name, enum s2s_nn_cut cut)
{
    char *full = *ctx->place ? s2s_xasprintf("%s.%s", ctx->place, name) : s2s_xstrdup(name);
    layer->lora_a = layer->lora_b = NULL;
    if (s2s_lora_adapts(ctx->lora, full))
        add_adapter(layer, ctx, name, cut);
    free(full);
}

/* Where the x of a map is: GATHERED of a map that begins a region, outside. */
enum place { INSIDE, OUTSIDE, GATHERED };

/* y with what the adapter makes of x. Of a map that ends a region each rank has some columns of x.
 */
static struct s2s_tensor *adapt(struct s2s_tape *tape, const struct s2s_nn_linear *layer,
                                struct s2s_tensor *x, struct s2s_tensor *y,
                                const struct s2s_nn_tp *tp, enum place place)
{
    if (!layer->lora_a)
        return y;
    const int64_t cols = s2s_tensor_cols(x), all = layer->lora_a->shape[1];
    const struct s2s_dropout drop = {.rate = layer->lora_dropout.rate,
                                     .site = layer->lora_dropout.site,
                                     .rows = place == INSIDE ? tp->inside : tp->outside,
                                     .first = cols < all ? s2s_group_rank(tp->group) * cols : 0,
                                     .keeps = true};
    x = s2s_op_dropout(tape, x, &drop);
    struct s2s_tensor *low = s2s_op_linear(tape, x, layer->lora_a->tensor, NULL);
    if (place == GATHERED)
        low = s2s_nn_enter(tape, tp, low);
    return s2s_op_add_linear(tape, y, low, layer->lora_b->tensor, layer->lora_scale);
}

/* ---- the map ---- */

void s2s_nn_linear_init(struct s2s_nn_linear *layer, const struct s2s_nn_ctx *ctx, const char *name,
                        int64_t out, int64_t in, bool bias, enum s2s_nn_cut cut)
{
    const struct s2s_init uniform = {S2S_INIT_UNIFORM, 1.0 / sqrt((double)in)};
    struct s2s_param_spec w = {
        .n_dims = 2, .shape = {out, in}, .init = {S2S_INIT_NORMAL, ctx->init_std}};
    struct s2s_param_spec b = {.n_dims = 1, .shape = {out}};
    if (ctx->fan_in)
        w.init = b.init = uniform;
    if (cut == S2S_NN_COLUMN || cut == S2S_NN_ROW)
        w = s2s_nn_cut_along(w, ctx, cut == S2S_NN_ROW);
    if (cut == S2S_NN_COLUMN)
        b = s2s_nn_cut_along(b, ctx, 0);
    if (cut == S2S_NN_ROW || cut == S2S_NN_OUTSIDE)
        b.flags = s2s_nn_outside(ctx->par);
    if (cut == S2S_NN_OUTSIDE)
        w.flags = s2s_nn_outside(ctx->par);
    layer->w = s2s_nn_add(ctx, name, "weight", w);
    layer->b = bias ? s2s_nn_add(ctx, name, "bias", b) : NULL;
    s2s_nn_linear_adapt(layer, ctx, name, cut);
}

static struct s2s_tensor *map(struct s2s_tape *tape, const struct s2s_nn_linear *layer,
                              const struct s2s_nn_tp *tp, struct s2s_tensor *x, enum place place)
{
    struct s2s_tensor *b = layer->b ? layer->b->tensor : NULL;
    return adapt(tape, layer, x, s2s_op_linear(tape, x, layer->w->tensor, b), tp, place);
}

struct s2s_tensor *s2s_nn_linear(struct s2s_tape *tape, const struct s2s_nn_linear *layer,
                                 struct s2s_tensor *x)
{
    static const struct s2s_nn_tp alone = {.group = NULL};
    return map(tape, layer, &alone, x, OUTSIDE);
}

struct s2s_tensor *s2s_nn_linear_outside(struct s2s_tape *tape, const struct s2s_nn_linear *layer,
                                         const struct s2s_nn_tp *tp, struct s2s_tensor *x)
{
    return map(tape, layer, tp, x, OUTSIDE);
}

void s2s_nn_linear_enter(struct s2s_tape *tape, const struct s2s_nn_tp *tp, struct s2s_tensor *x,
                         int n, const struct s2s_nn_linear *const *layers, struct s2s_tensor **out)
{
    struct s2s_tensor *w[S2S_NN_MAPS] = {NULL}, *b[S2S_NN_MAPS] = {NULL};
    if (!tp->sp) {
        struct s2s_tensor *inside = s2s_nn_enter(tape, tp, x);
        for (int i = 0; i < n; i++)
            out[i] = map(tape, layers[i], tp, inside, INSIDE);
        s2s_tape_discard(tape, x);
        return;
    }
    for (int i = 0; i < n; i++) {
        w[i] = layers[i]->w->tensor;
        b[i] = layers[i]->b ? layers[i]->b->tensor : NULL;
    }
    s2s_op_gather_linear(tape, x, tp->group, n, w, b, out);
    for (int i = 0; i < n; i++)
        out[i] = adapt(tape, layers[i], x, out[i], tp, GATHERED);
    s2s_tape_discard(tape, x);
}

struct s2s_tensor *s2s_nn_linear_leave(struct s2s_tape *tape, const struct s2s_nn_linear *layer,
                                       const struct s2s_nn_tp *tp, struct s2s_tensor *x)
{
    struct s2s_tensor *y, *w = layer->w->tensor;
    if (s2s_group_size(tp->group) == 1) {
        y = map(tape, layer, tp, x, INSIDE);
        s2s_tape_discard(tape, x);
        return y;
    }
    if (tp->sp && !layer->lora_a)
        y = s2s_op_linear_scatter(tape, x, w, tp->group);
    else
        y = s2s_nn_leave(tape, tp,
                         adapt(tape, layer, x, s2s_op_linear(tape, x, w, NULL), tp, INSIDE));
    s2s_tape_discard(tape, x);
    return layer->b ? s2s_op_add_bias(tape, y, layer->b->tensor) : y;
}
