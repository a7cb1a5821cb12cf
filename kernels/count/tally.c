/* Rows of sums, found by entry and layer. */
#include "kernels/count/tally.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"

static uint32_t *slot_of(const struct s2s_tally *tally, enum s2s_entry entry, const char *layer)
{
    size_t i = (s2s_rng_name(layer) + (size_t)entry * 0x9e3779b9u) & (tally->n_slots - 1);
    for (; tally->slots[i]; i = (i + 1) & (tally->n_slots - 1)) {
        const struct s2s_tally_row *row = tally->rows + tally->slots[i] - 1;
        if (row->entry == entry && strcmp(row->layer, layer) == 0)
            break;
    }
    return tally->slots + i;
}

/* Half of the slots stay free. */
static void grow_slots(struct s2s_tally *tally)
{
    if (2 * (tally->n + 1) <= tally->n_slots)
        return;
    free(tally->slots);
    tally->n_slots = tally->n_slots ? 2 * tally->n_slots : 256;
    tally->slots = s2s_xcalloc(tally->n_slots, sizeof *tally->slots);
    for (size_t i = 0; i < tally->n; i++)
        *slot_of(tally, tally->rows[i].entry, tally->rows[i].layer) = (uint32_t)i + 1;
}

struct s2s_tally_row *s2s_tally_row(struct s2s_tally *tally, enum s2s_entry entry,
                                    const char *layer)
{
    layer = layer ? layer : "";
    grow_slots(tally);
    uint32_t *slot = slot_of(tally, entry, layer);
    if (*slot == 0) {
        s2s_grow(&tally->rows, tally->n, &tally->cap, sizeof *tally->rows);
        tally->rows[tally->n++] =
            (struct s2s_tally_row){.layer = s2s_xstrdup(layer), .entry = entry};
        *slot = (uint32_t)tally->n;
    }
    return tally->rows + *slot - 1;
}

struct s2s_tally_row s2s_tally_sum(const struct s2s_tally *tally, enum s2s_entry entry)
{
    struct s2s_tally_row sum = {.layer = "", .entry = entry};
    for (size_t i = 0; i < tally->n; i++) {
        const struct s2s_tally_row *row = tally->rows + i;
        if (entry != S2S_ENTRIES && row->entry != entry)
            continue;
        sum.calls += row->calls;
        sum.seconds += row->seconds;
        sum.cost.flops += row->cost.flops;
        sum.cost.read_bytes += row->cost.read_bytes;
        sum.cost.written_bytes += row->cost.written_bytes;
    }
    return sum;
}

void s2s_tally_reset(struct s2s_tally *tally)
{
    for (size_t i = 0; i < tally->n; i++) {
        tally->rows[i].calls = 0;
        tally->rows[i].seconds = 0;
        tally->rows[i].cost = (struct s2s_cost){0};
    }
}

void s2s_tally_release(struct s2s_tally *tally)
{
    for (size_t i = 0; i < tally->n; i++)
        free((char *)tally->rows[i].layer);
    free(tally->rows);
    free(tally->slots);
    *tally = (struct s2s_tally){0};
}
