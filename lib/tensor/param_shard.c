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

/* ---- pieces ---- */

int64_t s2s_piece_part(const struct s2s_shards *shards, const struct s2s_param_piece *piece)
{
    return (piece->end - piece->begin) / s2s_group_size(shards->groups[piece->class]);
}

void *s2s_piece_values(const struct s2s_shards *shards, const struct s2s_param_piece *piece)
{
    return piece->dtype == S2S_F32
               ? (char *)(shards->wide + piece->value)
               : (char *)shards->narrow + (size_t)piece->value * s2s_dtype_size(piece->dtype);
}

static struct s2s_param_piece *piece_of(const struct s2s_params *params, size_t param)
{
    struct s2s_shards *s = params->shards;
    const struct s2s_param *p = params->list[param];
    const bool wide = tensor_working_dtype(params, p) == S2S_F32;
    for (int u = 0; u < s->n_units; u++)
        if (param >= s->units[u].begin && param < s->units[u].end)
            return &s->units[u].pieces[2 * (int)p->class + wide];
    S2S_BUG("parameter %s is in no unit", p->name);
}

/* In the order in which the parameters were added. */
static void lay_out(struct s2s_params *params, enum s2s_param_class class, bool wide)
{
    const int parts = s2s_group_size(params->shards->groups[class]);
    struct s2s_param_piece *piece = NULL;
    int64_t *end = &params->n_trained, begin = 0;
    for (size_t i = 0; i < params->n; i++) {
        struct s2s_param *p = params->list[i];
        const enum s2s_dtype dtype = tensor_working_dtype(params, p);
        if (!p->trained || p->class != class || (dtype == S2S_F32) != wide)
            continue;
        struct s2s_param_piece *own = piece_of(params, i);
        if (own != piece) {
            tensor_round_up(end, parts);
            begin = piece ? begin : *end;
            *own = (struct s2s_param_piece){.class = class,
                                            .dtype = dtype,
                                            .begin = *end,
                                            .stored = params->n_stored + (*end - begin) / parts};
        }
        piece = own;
        tensor_place(p, end);
        piece->end = *end;
        tensor_round_up(&piece->end, parts);
    }
    if (!piece)
        return;
    tensor_round_up(end, parts);
    params->n_stored += (*end - begin) / parts;
}

void tensor_lay_out_pieces(struct s2s_params *params, int class)
{
    lay_out(params, (enum s2s_param_class) class, false);
    lay_out(params, (enum s2s_param_class) class, true);
}

/* ---- whole units ---- */

enum room { GRADS, WIDE, NARROW, ROOMS };

/* The unit begins at `at`, which becomes its end. */
static void put_unit(struct s2s_param_unit *unit, int64_t at[ROOMS])
{
    unit->grad = at[GRADS];
    for (int i = 0; i < S2S_PIECES; i++) {
        struct s2s_param_piece *piece = &unit->pieces[i];
        const int64_t n = piece->end - piece->begin;
        int64_t *values = &at[piece->dtype == S2S_F32 ? WIDE : NARROW];
        piece->grad = at[GRADS];
        piece->value = *values;
        at[GRADS] += n;
        *values += n;
    }
    unit->numel = at[GRADS] - unit->grad;
}

void tensor_place_units(struct s2s_params *params)
{
    struct s2s_shards *s = params->shards;
    int64_t room[2][ROOMS] = {{0}}, end[ROOMS];
    int n = 0;
    for (int u = 0; u < s->n_units; u++) {
        struct s2s_param_unit *unit = &s->units[u];
        int64_t size[ROOMS] = {0};
        put_unit(unit, size);
        unit->place = unit->kept || unit->numel == 0 ? -1 : n++ % 2;
        for (int r = 0; r < ROOMS && unit->place >= 0; r++)
            if (size[r] > room[unit->place][r])
                room[unit->place][r] = size[r];
    }
    for (int r = 0; r < ROOMS; r++)
        end[r] = room[0][r] + room[1][r];
    for (int u = 0; u < s->n_units; u++) {
        struct s2s_param_unit *unit = &s->units[u];
        int64_t at[ROOMS];
        for (int r = 0; r < ROOMS; r++)
            at[r] = unit->place * room[0][r];
        put_unit(unit, unit->place < 0 ? end : at);
    }
    s->n_grads = end[GRADS];
    s->n_wide = end[WIDE];
    s->n_narrow = end[NARROW];
}

const struct s2s_param_piece *tensor_store_part(const struct s2s_params *params, size_t param)
{
    struct s2s_param *p = params->list[param];
    const struct s2s_param_piece *piece = piece_of(params, param);
    const struct s2s_shards *s = params->shards;
    /* of the piece's elements this rank has [begin, begin + part) */
    const int64_t part = s2s_piece_part(s, piece),
                  begin = piece->begin + part * s2s_group_rank(s->groups[piece->class]);
    const int64_t first = p->offset > begin ? p->offset : begin;
    const int64_t last = p->offset + p->numel < begin + part ? p->offset + p->numel : begin + part;
    const bool any = first < last;
    const int64_t stored = piece->stored + (any ? first - begin : 0);
    p->divided = true;
    p->stored_begin = any ? first - p->offset : 0;
    p->stored_end = any ? last - p->offset : 0;
    p->master = params->master + stored;
    p->grad_stored = params->grads + stored;
    return piece;
}
