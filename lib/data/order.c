/* Shuffles samples. */
#include "lib/data/order.h"

#include <stdbool.h>
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/base/pyrandom.h"

void s2s_data_shuffle(uint32_t *items, size_t n, size_t buffer, uint64_t seed)
{
    struct s2s_pyrandom random;
    size_t n_held = 0, n_out = 0, next = 0;
    bool starting = true;
    if (buffer < 1 || n < 2)
        return;
    buffer = buffer < n ? buffer : n;
    uint32_t *held = s2s_xmalloc((buffer + 1) * sizeof *held);
    s2s_pyrandom_seed(&random, seed);
    while (next < n) {
        uint32_t item = items[next++];
        if (n_held < buffer && next < n)
            held[n_held++] = items[next++];
        size_t k = s2s_pyrandom_below(&random, (uint32_t)n_held);
        uint32_t out = held[k];
        held[k] = item;
        if (starting && n_held < buffer) {
            held[n_held++] = out;
            continue;
        }
        starting = false;
        items[n_out++] = out; /* never ahead of what was read */
    }
    for (size_t i = 0; i < n_held; i++)
        items[n_out++] = held[i];
    free(held);
}

uint32_t *data_shard_order(struct s2s_pyrandom *random, size_t n, uint64_t seed, bool shuffle)
{
    uint32_t *order = s2s_xmalloc((n + 1) * sizeof *order);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    s2s_pyrandom_seed(random, seed);
    if (shuffle)
        s2s_pyrandom_shuffle(random, order, n);
    return order;
}

void data_slice_begin(struct data_slice *slice, int64_t wanted, size_t n,
                      struct s2s_pyrandom *random)
{
    *slice = (struct data_slice){.wanted = wanted};
    if (wanted > 0 && wanted < (int64_t)n)
        slice->skip = s2s_pyrandom_between(random, 0, (int64_t)n - wanted);
}

bool data_slice_skips(struct data_slice *slice)
{
    return slice->n_seen++ < slice->skip;
}

bool data_slice_is_full(const struct data_slice *slice)
{
    return slice->wanted > 0 && slice->n_taken == slice->wanted;
}
