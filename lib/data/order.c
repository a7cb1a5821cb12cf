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
