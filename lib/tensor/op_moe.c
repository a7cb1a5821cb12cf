/* Mixtures of experts: routes, rows by expert, products of each expert, and what ranks exchange. */
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/tensor/loads.h"
#include "lib/tensor/tensor_internal.h"

static struct s2s_tensor *vector(struct s2s_tape *tape, enum s2s_dtype dtype, int64_t n)
{
    return s2s_tape_tensor(tape, dtype, 1, &n);
}

/* ---- routes ---- */

struct route_saved {
    struct s2s_k_route forward;
};

static void route_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct route_saved *saved = node->saved;
    struct s2s_k_route_backward args = {.forward = saved->forward};
    args.dweights = s2s_tape_out_grad(node->out[0])->data;
    args.dlogits = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate));
    tensor_k(tape)->route_backward(tensor_queue(tape), &args);
}

static void sort_by_expert(struct s2s_tape *tape, struct s2s_routes *routes)
{
    const int64_t n = routes->n * routes->n_chosen;
    routes->places = vector(tape, S2S_I32, n);
    routes->rows = vector(tape, S2S_I32, n);
    routes->offsets = vector(tape, S2S_I32, routes->n_experts + 1);
    struct s2s_k_expert_order args = {.experts = routes->experts->data,
                                      .places = routes->places->data,
                                      .rows = routes->rows->data,
                                      .offsets = routes->offsets->data,
                                      .n = n,
                                      .n_experts = routes->n_experts,
                                      .n_chosen = routes->n_chosen};
    args.workspace =
        s2s_tape_scratch(tape, tensor_k(tape)->expert_order_workspace(tensor_queue(tape), &args));
    tensor_k(tape)->expert_order(tensor_queue(tape), &args);
    s2s_tape_scratch_end(tape);
}

struct s2s_routes s2s_op_route(struct s2s_tape *tape, struct s2s_tensor *logits,
                               struct s2s_tensor *bias, const struct s2s_router *r)
{
    struct s2s_routes routes = {
        .n = s2s_tensor_rows(logits), .n_chosen = r->n_chosen, .n_experts = r->n_experts};
    tensor_check(tape, "route", logits, -1, r->n_experts);
    if (bias)
        tensor_check(tape, "route", bias, 1, r->n_experts);
    routes.weights = s2s_tape_tensor(tape, S2S_F32, 2, (int64_t[]){routes.n, r->n_chosen});
    routes.experts = vector(tape, S2S_I32, routes.n * r->n_chosen);
    const struct s2s_k_route args = {.logits = s2s_tensor_mat(logits),
                                     .bias = bias ? bias->data : NULL,
                                     .experts = routes.experts->data,
                                     .weights = routes.weights->data,
                                     .n = routes.n,
                                     .n_experts = r->n_experts,
                                     .n_chosen = r->n_chosen,
                                     .n_groups = r->n_groups,
                                     .n_chosen_groups = r->n_chosen_groups,
                                     .n_group_best = r->n_group_best,
                                     .score = r->score,
                                     .normalise = r->normalise,
                                     .scale = r->scale};
    tensor_k(tape)->route(tensor_queue(tape), &args);
    sort_by_expert(tape, &routes);
    if (s2s_tape_needs(tape, 1, &logits)) {
        struct route_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
        *saved = (struct route_saved){args};
        s2s_tape_push(tape, "route", route_backward, 1, &logits, 1, &routes.weights)->saved = saved;
    }
    return routes;
}

/* ---- rows by expert, and back ---- */

static struct s2s_routes *keep_routes(struct s2s_tape *tape, const struct s2s_routes *routes)
{
    struct s2s_routes *kept = s2s_tape_host_alloc(tape, sizeof *kept);
    *kept = *routes;
    return kept;
}

static void dispatch_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_routes *routes = node->saved;
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    struct s2s_k_rows_sum args = {.src = s2s_tensor_mat(dy),
                                  .idx = routes->places->data,
                                  .n = routes->n,
                                  .n_sources = routes->n_chosen,
                                  .cols = s2s_tensor_cols(dy)};
    args.dst = s2s_tensor_mat(s2s_tape_grad(tape, node->in[0], &args.accumulate));
    tensor_k(tape)->rows_sum(tensor_queue(tape), &args);
}

struct s2s_tensor *s2s_op_dispatch(struct s2s_tape *tape, struct s2s_tensor *x,
                                   const struct s2s_routes *routes)
{
    const int64_t n = routes->n * routes->n_chosen, cols = s2s_tensor_cols(x);
    tensor_check(tape, "dispatch", x, routes->n, -1);
    struct s2s_tensor *y = s2s_tape_matrix(tape, n, cols);
    tensor_k(tape)->gather_rows(tensor_queue(tape), &(struct s2s_k_rows){.dst = s2s_tensor_mat(y),
                                                                         .src = s2s_tensor_mat(x),
                                                                         .idx = routes->rows->data,
                                                                         .n = n,
                                                                         .cols = cols});
    if (s2s_tape_needs(tape, 1, &x))
        s2s_tape_push(tape, "dispatch", dispatch_backward, 1, &x, 1, &y)->saved =
            keep_routes(tape, routes);
    return y;
}

/* The gradient of what only this operation reads; its data is NULL where none is wanted. */
static struct s2s_mat only_grad(struct s2s_tape *tape, struct s2s_tensor *x)
{
    bool accumulate;
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &accumulate);
    if (dx && accumulate)
        S2S_BUG("%s: combine: rows of experts that somebody else reads", tape->layer);
    return s2s_tensor_mat(dx);
}

static void combine_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_routes *routes = node->saved;
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    tensor_k(tape)->rows_sum_backward(
        tensor_queue(tape),
        &(struct s2s_k_rows_sum_backward){.src = s2s_tensor_mat(node->in[0]),
                                          .ddst = s2s_tensor_mat(dy),
                                          .dsrc = only_grad(tape, node->in[0]),
                                          .idx = routes->places->data,
                                          .weights = routes->weights->data,
                                          .dweights = only_grad(tape, node->in[1]).data,
                                          .n = routes->n,
                                          .n_sources = routes->n_chosen,
                                          .cols = s2s_tensor_cols(dy)});
}

struct s2s_tensor *s2s_op_combine(struct s2s_tape *tape, struct s2s_tensor *x,
                                  const struct s2s_routes *routes)
{
    const int64_t cols = s2s_tensor_cols(x);
    tensor_check(tape, "combine", x, routes->n * routes->n_chosen, -1);
    struct s2s_tensor *y = s2s_tape_matrix(tape, routes->n, cols);
    struct s2s_tensor *ins[] = {x, routes->weights};
    tensor_k(tape)->rows_sum(tensor_queue(tape),
                             &(struct s2s_k_rows_sum){.dst = s2s_tensor_mat(y),
                                                      .src = s2s_tensor_mat(x),
                                                      .idx = routes->places->data,
                                                      .weights = routes->weights->data,
                                                      .n = routes->n,
                                                      .n_sources = routes->n_chosen,
                                                      .cols = cols});
    if (s2s_tape_needs(tape, 2, ins))
        s2s_tape_push(tape, "combine", combine_backward, 2, ins, 1, &y)->saved =
            keep_routes(tape, routes);
    return y;
}

/* ---- products of experts ---- */

static void grouped_linear_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct s2s_stack *w = node->saved;
    struct s2s_tensor *x = node->in[0], *offsets = node->in[2];
    const struct s2s_tensor *dy = s2s_tape_out_grad(node->out[0]);
    struct s2s_k_gemm_grouped args = {.a = s2s_tensor_mat(dy),
                                      .b = s2s_tensor_mat(w->first),
                                      .offsets = offsets->data,
                                      .n_groups = w->n,
                                      .rows = s2s_tensor_rows(x),
                                      .n = s2s_tensor_cols(x),
                                      .k = s2s_tensor_cols(dy),
                                      .step = w->step};
    struct s2s_tensor *dx = s2s_tape_grad(tape, x, &args.accumulate);
    args.c = s2s_tensor_mat(dx);
    if (dx)
        tensor_k(tape)->gemm_grouped(tensor_queue(tape), &args);
    struct s2s_tensor *dw = s2s_tape_grad(tape, w->first, &args.accumulate);
    args.b = s2s_tensor_mat(x);
    args.c = s2s_tensor_mat(dw);
    args.of_weights = true;
    if (dw)
        tensor_k(tape)->gemm_grouped(tensor_queue(tape), &args);
}

struct s2s_tensor *s2s_op_grouped_linear(struct s2s_tape *tape, struct s2s_tensor *x,
                                         const struct s2s_stack *w, struct s2s_tensor *offsets)
{
    const int64_t rows = s2s_tensor_rows(x), in = s2s_tensor_cols(x),
                  out = w->first->shape[w->first->n_dims - 2];
    tensor_check(tape, "grouped linear", x, -1, -1);
    tensor_check(tape, "grouped linear", w->first, -1, in);
    if (s2s_tensor_numel(offsets) != w->n + 1)
        S2S_BUG("%s: %lld experts and bounds of %lld", tape->layer, (long long)w->n,
                (long long)s2s_tensor_numel(offsets) - 1);
    struct s2s_tensor *y = s2s_tape_matrix(tape, rows, out);
    tensor_k(tape)->gemm_grouped(tensor_queue(tape),
                                 &(struct s2s_k_gemm_grouped){.a = s2s_tensor_mat(x),
                                                              .b = s2s_tensor_mat(w->first),
                                                              .c = s2s_tensor_mat(y),
                                                              .offsets = offsets->data,
                                                              .n_groups = w->n,
                                                              .rows = rows,
                                                              .n = out,
                                                              .k = in,
                                                              .step = w->step,
                                                              .trans_b = true});
    struct s2s_tensor *ins[] = {x, w->first, offsets};
    if (s2s_tape_needs(tape, 3, ins)) {
        struct s2s_stack *saved = s2s_tape_host_alloc(tape, sizeof *saved);
        *saved = *w;
        s2s_tape_push(tape, "grouped_linear", grouped_linear_backward, 3, ins, 1, &y)->saved =
            saved;
    }
    return y;
}

/* ---- experts on other ranks ---- */

/* Bounds of every rank's sorted rows by expert, host [size, E + 1]. Gives: free. */
static int32_t *read_counts(struct s2s_tape *tape, const struct s2s_routes *routes,
                            const struct s2s_group *group)
{
    const int64_t n = routes->n_experts + 1, rows = routes->n * routes->n_chosen;
    struct s2s_tensor *all = vector(tape, S2S_I32, group->size * n);
    int32_t *host = s2s_xmalloc((size_t)(group->size * n) * sizeof *host);
    group->ops->all_gather(group, tensor_queue(tape), all->data, routes->offsets->data, n, S2S_I32);
    tape->device->n_collectives++;
    s2s_tensor_read(all, host);
    if (host[group->rank * n + routes->n_experts] == rows)
        return host;
    for (int64_t i = 0; i < group->size * n; i++) /* nothing can be read of a table that counts */
        host[i] = (int32_t)(i % n * rows / routes->n_experts);
    return host;
}

/* Rows come by rank and by expert in each rank's part: the order that sorts them by expert, its
 * inverse, and where the experts begin. */
static void sort_parts(struct s2s_expert_rows *rows, struct s2s_tape *tape, const int32_t *bounds,
                       const struct s2s_routes *routes, const struct s2s_group *group)
{
    const int64_t n = routes->n_experts + 1, own = routes->n_experts / group->size,
                  first = group->rank * own;
    int64_t n_rows = 0, at = 0;
    for (int r = 0; r < group->size; r++)
        n_rows += rows->recv[r];
    int32_t *order = s2s_xmalloc((size_t)(2 * n_rows + own + 1) * sizeof *order),
            *back = order + n_rows, *offsets = back + n_rows;
    for (int64_t e = 0; e < own; e++) {
        int64_t begin = 0; /* of the part of rank r */
        offsets[e] = (int32_t)at;
        for (int r = 0; r < group->size; r++) {
            const int32_t *b = bounds + r * n + first;
            for (int64_t i = b[e]; i < b[e + 1]; i++)
                order[at++] = (int32_t)(begin + i - b[0]);
            begin += rows->recv[r];
        }
    }
    offsets[own] = (int32_t)at;
    for (int64_t i = 0; i < n_rows; i++)
        back[order[i]] = (int32_t)i;
    rows->order = s2s_tape_upload_i32(tape, order, n_rows);
    rows->back = s2s_tape_upload_i32(tape, back, n_rows);
    rows->offsets = s2s_tape_upload_i32(tape, offsets, own + 1);
    free(order);
}

struct s2s_expert_rows s2s_op_expert_rows(struct s2s_tape *tape, const struct s2s_routes *routes,
                                          const struct s2s_group *group)
{
    const int64_t n = routes->n_experts + 1, own = routes->n_experts / group->size;
    const size_t bytes = (size_t)group->size * sizeof(int64_t);
    int64_t *send = s2s_tape_host_alloc(tape, bytes), *recv = s2s_tape_host_alloc(tape, bytes);
    struct s2s_expert_rows rows = {.send = send, .recv = recv};
    int32_t *bounds = read_counts(tape, routes, group);
    for (int r = 0; r < group->size; r++) {
        const int32_t *mine = bounds + group->rank * n + r * own;
        const int32_t *theirs = bounds + r * n + group->rank * own;
        send[r] = mine[own] - mine[0];
        recv[r] = theirs[own] - theirs[0];
    }
    sort_parts(&rows, tape, bounds, routes, group);
    free(bounds);
    return rows;
}

/* ---- balance ---- */

struct balance_saved {
    struct s2s_k_router_load load;
    struct s2s_k_router_balance sums;
    float balance, square;
};

static void balance_backward(struct s2s_tape *tape, struct s2s_node *node)
{
    const struct balance_saved *saved = node->saved;
    struct s2s_tensor *logits = node->in[0], *y = node->out[0];
    struct s2s_k_router_balance_backward args = {.forward = saved->load,
                                                 .factors = saved->sums.factors,
                                                 .balance_scale = saved->balance,
                                                 .square_scale = saved->square,
                                                 .accumulate = true};
    tensor_k(tape)->router_balance(tensor_queue(tape), &saved->sums);
    if (s2s_tape_grad_steal(logits, y)) {
        args.dlogits = s2s_tensor_mat(logits->grad);
    } else {
        bool accumulate;
        struct s2s_tensor *dx = s2s_tape_grad(tape, logits, &accumulate);
        tensor_axpby(tape, 1, s2s_tape_out_grad(y), accumulate ? 1 : 0, dx);
        args.dlogits = s2s_tensor_mat(dx);
    }
    tensor_k(tape)->router_balance_backward(tensor_queue(tape), &args);
}

static void sum_counts(struct s2s_tape *tape, const struct s2s_group *group,
                       const struct s2s_tensor *counts)
{
    if (s2s_group_size(group) == 1)
        return;
    group->ops->all_reduce(group, tensor_queue(tape), counts->data, s2s_tensor_numel(counts),
                           S2S_F32, S2S_GROUP_SUM);
    tape->device->n_collectives++;
}

/* y = alpha x (+ y) */
static void add_counts(struct s2s_tape *tape, float alpha, const float *x, float beta, float *y,
                       int64_t n)
{
    const struct s2s_mat mat = {y, n, S2S_F32};
    tensor_k(tape)->axpby(
        tensor_queue(tape),
        &(struct s2s_k_axpby){.x = {(float *)x, n, S2S_F32},
                              .z = beta != 0 ? mat : (struct s2s_mat){NULL, 0, S2S_F32},
                              .y = mat,
                              .rows = 1,
                              .cols = n,
                              .alpha = alpha,
                              .beta = beta});
}

/* The counts become those of the mean of all microbatches so far. */
static void mean_over_step(struct s2s_tape *tape, struct s2s_load *load, float *counts)
{
    add_counts(tape, 1, counts, 1, load->wanted, load->n_experts);
    load->n_seen++;
    add_counts(tape, 1 / (float)load->n_seen, load->wanted, 0, counts, load->n_experts);
}

struct s2s_tensor *s2s_op_balance(struct s2s_tape *tape, struct s2s_tensor *logits,
                                  const struct s2s_router *r, const struct s2s_balance *balance,
                                  struct s2s_load *load)
{
    const int64_t n = balance->n_segments * r->n_experts;
    tensor_check(tape, "balance", logits, -1, r->n_experts);
    if (!s2s_tape_needs(tape, 1, &logits))
        return logits;
    struct s2s_tensor *counts = vector(tape, S2S_F32, n), *probs = vector(tape, S2S_F32, n),
                      *totals = vector(tape, S2S_F32, 2), *factors = vector(tape, S2S_F32, n);
    struct balance_saved *saved = s2s_tape_host_alloc(tape, sizeof *saved);
    *saved = (struct balance_saved){
        .load = {.logits = s2s_tensor_mat(logits),
                 .segments = balance->segments ? balance->segments->data : NULL,
                 .counts = counts->data,
                 .probs = probs->data,
                 .totals = totals->data,
                 .n = s2s_tensor_rows(logits),
                 .n_experts = r->n_experts,
                 .n_chosen = r->n_chosen,
                 .n_segments = balance->n_segments,
                 .score = r->score},
        .sums = {.counts = counts->data,
                 .probs = probs->data,
                 .totals = totals->data,
                 .factors = factors->data,
                 .losses = balance->losses,
                 .n_experts = r->n_experts,
                 .n_chosen = r->n_chosen,
                 .n_segments = balance->n_segments},
        .balance = balance->balance,
        .square = balance->square};
    saved->load.workspace = s2s_tape_scratch(
        tape, tensor_k(tape)->router_load_workspace(tensor_queue(tape), &saved->load));
    tensor_k(tape)->router_load(tensor_queue(tape), &saved->load);
    s2s_tape_scratch_end(tape);
    sum_counts(tape, balance->group, counts);
    if (balance->over_step)
        mean_over_step(tape, load, counts->data);
    struct s2s_tensor *y = tensor_alias(tape, logits);
    y->kept = true;
    struct s2s_node *node = s2s_tape_push(tape, "balance", balance_backward, 1, &logits, 1, &y);
    node->saved = saved;
    node->always = true; /* its loss has a gradient of its own */
    return y;
}

void s2s_op_count_routes(struct s2s_tape *tape, const struct s2s_routes *routes,
                         const struct s2s_tensor *rows, struct s2s_load *load)
{
    if (!load || !load->bias || !tape->recording)
        return;
    tensor_k(tape)->expert_counts(
        tensor_queue(tape), &(struct s2s_k_expert_counts){.experts = routes->experts->data,
                                                          .segments = rows ? rows->data : NULL,
                                                          .counts = load->routed,
                                                          .n = routes->n,
                                                          .n_chosen = routes->n_chosen,
                                                          .n_experts = routes->n_experts});
}
