/* Units of parameters whose values and gradients ranks divide: where the parts and the wholes are.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/tensor/param_internal.h"

void s2s_params_shard(struct s2s_params *params, const struct s2s_param_unit *units, int n_units,
                      const struct s2s_group *const groups[S2S_CLASSES])
{
    if (params->finished)
        S2S_BUG("parameters are divided after the buffers were laid out");
    struct s2s_shards *s = params->shards = s2s_xcalloc(1, sizeof *s);
    *s = (struct s2s_shards){.n_units = n_units};
    memcpy(s->groups, groups, sizeof s->groups);
    s->units = s2s_xcalloc((size_t)n_units + 1, sizeof *s->units);
    memcpy(s->units, units, (size_t)n_units * sizeof *units);
}

int tensor_unit_of(const struct s2s_params *params, size_t param)
{
    const struct s2s_shards *s = params->shards;
    if (!s)
        return -1;
    for (int u = 0; u < s->n_units; u++)
        if (param >= s->units[u].begin && param < s->units[u].end)
            return u;
    S2S_BUG("parameter %s is in no unit", params->list[param]->name);
}

int64_t s2s_shards_part(const struct s2s_shards *shards, const struct s2s_param_unit *unit,
                        int class)
{
    return (unit->flat[class][1] - unit->flat[class][0]) / s2s_group_size(shards->groups[class]);
}

void tensor_place_units(struct s2s_params *params)
{
    struct s2s_shards *s = params->shards;
    int64_t room[2] = {0, 0};
    int n = 0;
    for (int u = 0; u < s->n_units; u++) {
        struct s2s_param_unit *unit = &s->units[u];
        unit->numel = 0;
        for (int c = 0; c < S2S_CLASSES; c++)
            unit->numel += unit->flat[c][1] - unit->flat[c][0];
        unit->place = unit->kept || unit->numel == 0 ? -1 : n++ % 2;
        if (unit->place >= 0 && unit->numel > room[unit->place])
            room[unit->place] = unit->numel;
    }
    s->n_whole = room[0] + room[1];
    for (int u = 0; u < s->n_units; u++) {
        struct s2s_param_unit *unit = &s->units[u];
        unit->at = unit->place < 0 ? s->n_whole : unit->place * room[0];
        s->n_whole += unit->place < 0 ? unit->numel : 0;
    }
}

int64_t tensor_place_param(const struct s2s_params *params, struct s2s_param *p, int u)
{
    const struct s2s_shards *s = params->shards;
    const struct s2s_param_unit *unit = &s->units[u];
    const int64_t *flat = unit->flat[p->class];
    int64_t at = unit->at + (p->offset - flat[0]);
    for (int c = 0; c < (int)p->class; c++)
        at += unit->flat[c][1] - unit->flat[c][0];
    /* of the unit's elements this rank has [begin, begin + part) */
    const int64_t part = s2s_shards_part(s, unit, (int)p->class),
                  begin = flat[0] + part * s2s_group_rank(s->groups[p->class]);
    const int64_t first = p->offset > begin ? p->offset : begin;
    const int64_t last = p->offset + p->numel < begin + part ? p->offset + p->numel : begin + part;
    const bool any = first < last;
    const int64_t stored = unit->stored[p->class] + (any ? first - begin : 0);
    p->divided = true;
    p->stored_begin = any ? first - p->offset : 0;
    p->stored_end = any ? last - p->offset : 0;
    p->master = params->master + stored;
    p->grad_stored = params->grads + stored;
    return at;
}

void s2s_params_round_unit(struct s2s_params *params, const struct s2s_param_unit *unit)
{
    const struct s2s_shards *s = params->shards;
    struct s2s_device *device = params->device;
    const size_t size = s2s_dtype_size(device->dtype);
    if (s->values == s->masters)
        return;
    device->kernels->copy(&device->queue,
                          &(struct s2s_k_copy){.src = {s->masters + unit->at, unit->numel, S2S_F32},
                                               .dst = {(char *)s->values + (size_t)unit->at * size,
                                                       unit->numel, device->dtype},
                                               .rows = 1,
                                               .cols = unit->numel});
}
