/* Loads of experts over a step, and the biases that they move. */
#include "lib/tensor/loads.h"

#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

/* The bias of the choice stands right behind the router's matrix. */
static struct s2s_param *bias_of(const struct s2s_params *params, size_t gate)
{
    static const unsigned is_bias = S2S_PARAM_ROUTER | S2S_PARAM_BUFFER;
    struct s2s_param *next = gate + 1 < params->n ? params->list[gate + 1] : NULL;
    const bool moves =
        next && (next->flags & is_bias) == is_bias && !(next->flags & S2S_PARAM_FROZEN);
    return moves ? next : NULL;
}

struct s2s_loads *s2s_loads_new(struct s2s_params *params)
{
    struct s2s_loads *loads = s2s_xcalloc(1, sizeof *loads);
    loads->device = params->device;
    loads->list = s2s_xcalloc(params->n + 1, sizeof *loads->list);
    for (size_t i = 0; i < params->n; i++) {
        const struct s2s_param *p = params->list[i];
        if (!(p->flags & S2S_PARAM_ROUTER) || p->flags & S2S_PARAM_BUFFER || !s2s_param_is_here(p))
            continue;
        loads->list[loads->n++] =
            (struct s2s_load){.gate = p, .bias = bias_of(params, i), .n_experts = p->shape[0]};
        loads->n_counts += p->shape[0];
    }
    s2s_arena_init(&loads->arena, params->device, 1);
    loads->counts =
        s2s_arena_alloc(&loads->arena, (size_t)(2 * loads->n_counts + 1) * sizeof *loads->counts);
    float *at = loads->counts;
    for (int64_t i = 0; i < loads->n; i++) {
        loads->list[i].routed = at;
        loads->list[i].wanted = at + loads->n_counts;
        at += loads->list[i].n_experts;
    }
    return loads;
}

void s2s_loads_free(struct s2s_loads *loads)
{
    if (!loads)
        return;
    s2s_arena_release(&loads->arena);
    free(loads->list);
    free(loads);
}

void s2s_loads_begin(struct s2s_loads *loads)
{
    for (int64_t i = 0; i < loads->n; i++)
        loads->list[i].n_seen = 0;
    loads->device->kernels->zero(&loads->device->queue, loads->counts,
                                 (size_t)(2 * loads->n_counts) * sizeof *loads->counts);
}

struct s2s_load *s2s_loads_find(const struct s2s_loads *loads, const struct s2s_param *gate)
{
    for (int64_t i = 0; i < loads->n; i++)
        if (loads->list[i].gate == gate)
            return &loads->list[i];
    S2S_BUG("%s is no router of this step", gate->name);
}

void s2s_loads_end(struct s2s_loads *loads, const struct s2s_group *const *groups, int n_groups,
                   float rate)
{
    struct s2s_queue *queue = &loads->device->queue;
    for (int i = 0; i < n_groups && loads->n_counts > 0; i++)
        if (s2s_group_size(groups[i]) > 1)
            groups[i]->ops->all_reduce(groups[i], queue, loads->counts, loads->n_counts, S2S_F32,
                                       S2S_GROUP_SUM);
    for (int64_t i = 0; i < loads->n; i++) {
        const struct s2s_load *l = &loads->list[i];
        if (l->bias)
            loads->device->kernels->router_bias(
                queue, &(struct s2s_k_router_bias){.counts = l->routed,
                                                   .bias = l->bias->tensor->data,
                                                   .n_experts = l->n_experts,
                                                   .rate = rate});
    }
}
