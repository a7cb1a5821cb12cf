/* Mixtures of experts. */
#include "lib/nn/moe.h"

#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/tensor/loads.h"

/* ---- parameters ---- */

/* One matrix of every expert, [out, in], which ranks of etp cut along dim. Gives the first of this
 * rank. */
static struct s2s_param *add_experts(const struct s2s_nn_ctx *ctx,
                                     const struct s2s_nn_moe_options *o, const char *name,
                                     int64_t out, int64_t in, int dim)
{
    const int64_t n = o->router.n_experts, own = n / s2s_group_size(ctx->par->ep),
                  begin = own * s2s_group_rank(ctx->par->ep);
    struct s2s_param *first = NULL;
    for (int64_t e = 0; e < n; e++) {
        const bool here = e >= begin && e < begin + own;
        struct s2s_param_spec spec = {.n_dims = 2,
                                      .shape = {out, in},
                                      .cuts = {{S2S_AXIS_TP, dim, ctx->par->etp}},
                                      .flags = S2S_PARAM_EXPERT,
                                      .init = {S2S_INIT_NORMAL, ctx->init_std}};
        spec.flags |= e > 0 ? S2S_PARAM_STACKED : 0;
        spec.flags |= here ? 0 : S2S_PARAM_ABSENT;
        char *expert = s2s_xasprintf("%s.%lld.%s", o->names->experts, (long long)e, name);
        struct s2s_param *p = s2s_nn_add(ctx, expert, "weight", spec);
        free(expert);
        first = e == begin ? p : first;
    }
    return first;
}

int s2s_nn_moe_check(const struct s2s_nn_moe_options *o, const struct s2s_par *par,
                     struct s2s_error *err)
{
    const int ep = s2s_group_size(par->ep), etp = s2s_group_size(par->etp),
              tp = s2s_group_size(par->tp);
    if (o->router.n_experts % ep)
        return s2s_error_set(err, S2S_E_RANGE,
                             "%lld experts cannot be shared by %d ranks (mesh.ep)",
                             (long long)o->router.n_experts, ep);
    if (o->inner % etp)
        return s2s_error_set(err, S2S_E_RANGE,
                             "%lld columns of an expert cannot be cut for %d ranks (mesh.etp)",
                             (long long)o->inner, etp);
    if (etp != tp && etp != 1)
        return s2s_error_set(err, S2S_E_RANGE, "mesh.etp is %d; it is 1 or mesh.tp, %d", etp, tp);
    if (etp != tp && !par->sp)
        return s2s_error_hint(err,
                              s2s_error_set(err, S2S_E_RULE,
                                            "experts that are not cut by mesh.tp (mesh.etp=1) are "
                                            "for ranks of tp that have other tokens"),
                              "set mesh.sequence_parallel=true, or mesh.etp=%d", tp);
    return 0;
}

static void add_shared(struct s2s_nn_moe *layer, const struct s2s_nn_ctx *ctx,
                       const struct s2s_nn_moe_options *o)
{
    char *place = s2s_xasprintf("%s.%s", ctx->place, o->names->shared);
    struct s2s_nn_ctx below = *ctx;
    below.place = place;
    s2s_nn_plain_mlp_init(&layer->shared, &below, o->width, o->shared_inner, o->act, o->bias);
    free(place);
}

void s2s_nn_moe_init(struct s2s_nn_moe *layer, const struct s2s_nn_ctx *ctx,
                     const struct s2s_nn_moe_options *o)
{
    const struct s2s_nn_moe_names *names = o->names;
    const int64_t n = o->router.n_experts;
    *layer = (struct s2s_nn_moe){.router = o->router, .act = o->act, .par = ctx->par};
    layer->gate =
        s2s_nn_add(ctx, names->gate, "weight",
                   (struct s2s_param_spec){.n_dims = 2,
                                           .shape = {n, o->width},
                                           .flags = S2S_PARAM_ROUTER | s2s_nn_outside(ctx->par),
                                           .init = {S2S_INIT_NORMAL, ctx->init_std}});
    if (names->bias)
        layer->bias = s2s_nn_add(
            ctx, names->gate, names->bias,
            (struct s2s_param_spec){
                .n_dims = 1, .shape = {n}, .flags = S2S_PARAM_ROUTER | S2S_PARAM_BUFFER});
    const int64_t width = o->latent ? o->latent : o->width;
    if (names->expert_gate)
        layer->w_gate = add_experts(ctx, o, names->expert_gate, o->inner, width, 0);
    layer->w_up = add_experts(ctx, o, names->expert_up, o->inner, width, 0);
    layer->w_down = add_experts(ctx, o, names->expert_down, width, o->inner, 1);
    if (o->latent) {
        s2s_nn_linear_init(&layer->narrow, ctx, names->narrow, o->latent, o->width, o->bias,
                           S2S_NN_OUTSIDE);
        s2s_nn_linear_init(&layer->widen, ctx, names->widen, o->width, o->latent, o->bias,
                           S2S_NN_OUTSIDE);
    }
    if (o->shared_inner)
        add_shared(layer, ctx, o);
}

/* ---- forward ---- */

static struct s2s_tensor *product(struct s2s_tape *tape, const struct s2s_param *first,
                                  struct s2s_tensor *x, struct s2s_tensor *offsets)
{
    const struct s2s_stack stack = s2s_param_stack(first);
    return s2s_op_grouped_linear(tape, x, &stack, offsets);
}

/* What this rank's experts make of the rows sorted by them. */
static struct s2s_tensor *run_experts(struct s2s_tape *tape, const struct s2s_nn_moe *layer,
                                      struct s2s_tensor *x, struct s2s_tensor *offsets)
{
    struct s2s_tensor *up = product(tape, layer->w_up, x, offsets), *y;
    if (layer->w_gate)
        y = s2s_op_glu(tape, product(tape, layer->w_gate, x, offsets), up, layer->act);
    else
        y = s2s_op_glu(tape, up, NULL, layer->act);
    return product(tape, layer->w_down, y, offsets);
}

/* The same by the ranks of ep: rows go to the ranks of their experts, and back. */
static struct s2s_tensor *run_on_ranks(struct s2s_tape *tape, const struct s2s_nn_moe *layer,
                                       struct s2s_tensor *x, const struct s2s_routes *routes)
{
    const struct s2s_group *ep = layer->par->ep;
    if (s2s_group_size(ep) == 1)
        return run_experts(tape, layer, x, routes->offsets);
    const struct s2s_expert_rows rows = s2s_op_expert_rows(tape, routes, ep);
    x = s2s_op_all_to_all(tape, x, ep, rows.send, rows.recv);
    x = s2s_op_gather_rows(tape, x, rows.order);
    x = run_experts(tape, layer, x, rows.offsets);
    x = s2s_op_gather_rows(tape, x, rows.back);
    return s2s_op_all_to_all(tape, x, ep, rows.recv, rows.send);
}

/* What the chosen experts make of x, weighted and summed. */
static struct s2s_tensor *run_routed(struct s2s_tape *tape, const struct s2s_nn_moe *layer,
                                     const struct s2s_nn_tp *tp, struct s2s_tensor *x,
                                     const struct s2s_nn_load *load)
{
    const struct s2s_par *par = layer->par;
    const struct s2s_nn_tp region = {.group = s2s_group_size(par->etp) > 1 ? par->etp : NULL,
                                     .sp = tp->sp};
    struct s2s_tensor *logits = s2s_op_logits(tape, x, layer->gate->tensor);
    struct s2s_load *own = load && load->loads ? s2s_loads_find(load->loads, layer->gate) : NULL;
    if (load && (load->balance.balance > 0 || load->balance.square > 0))
        logits = s2s_op_balance(tape, logits, &layer->router, &load->balance, own);
    if (layer->narrow.w)
        x = s2s_nn_linear_outside(tape, &layer->narrow, tp, x);
    /* what ranks of etp pass back to x and to the weights are parts of a sum */
    x = s2s_nn_enter(tape, &region, x);
    logits = s2s_nn_enter(tape, &region, logits);
    const struct s2s_routes routes =
        s2s_op_route(tape, logits, layer->bias ? layer->bias->tensor : NULL, &layer->router);
    if (own)
        s2s_op_count_routes(tape, &routes, load->routed, own);
    struct s2s_tensor *y = s2s_op_dispatch(tape, x, &routes);
    y = run_on_ranks(tape, layer, y, &routes);
    y = s2s_nn_leave(tape, &region, s2s_op_combine(tape, y, &routes));
    return layer->widen.w ? s2s_nn_linear_outside(tape, &layer->widen, tp, y) : y;
}

struct s2s_tensor *s2s_nn_moe(struct s2s_tape *tape, const struct s2s_nn_moe *layer,
                              const struct s2s_nn_tp *tp, struct s2s_tensor *x,
                              const struct s2s_nn_load *load)
{
    struct s2s_tensor *y = run_routed(tape, layer, tp, x, load);
    if (!layer->shared.up.w)
        return y;
    return s2s_op_add_to(tape, s2s_nn_mlp(tape, &layer->shared, tp, x), y);
}
