/*
 * First fit: each item into the lowest-numbered bin with room. A tournament tree over the room that
 * is left (16 children a node, their maximum above) finds that bin in O(log bins); a run of equal
 * lengths sweeps the bins once, because a bin that it has passed has no room for another of them.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/thd/thd_internal.h"

enum { FAN = 16, FAN_BITS = 4, MAX_LEVELS = 9 };

/* level[0] is the room of each bin, level[l + 1] the maxima of FAN entries of level[l]; what is
 * behind the last bin is -1. */
struct tree {
    int32_t *level[MAX_LEVELS];
    int n_levels;
    size_t cap; /* bins there is memory for: FAN to the power of n_levels */
};

static void tree_grow(struct tree *tree)
{
    const int n = tree->n_levels + 1;
    size_t cap = FAN;
    struct tree bigger = {.n_levels = n};
    for (int l = 1; l < n; l++)
        cap *= FAN;
    bigger.cap = cap;
    for (int l = 0; l < n; l++, cap >>= FAN_BITS) {
        const size_t old = l < tree->n_levels ? tree->cap >> (FAN_BITS * l) : 0;
        bigger.level[l] = s2s_xalloc_aligned(cap * sizeof(int32_t));
        if (old)
            memcpy(bigger.level[l], tree->level[l], old * sizeof(int32_t));
        memset(bigger.level[l] + old, 0xff, (cap - old) * sizeof(int32_t));
        if (l < tree->n_levels)
            free(tree->level[l]);
    }
    if (tree->n_levels > 0) {
        int32_t max = -1;
        for (int i = 0; i < FAN; i++)
            max = bigger.level[n - 2][i] > max ? bigger.level[n - 2][i] : max;
        bigger.level[n - 1][0] = max;
    }
    *tree = bigger;
}

/* Which of the node's children have at least `len`; bit i is child i. */
static inline uint32_t children_with(const int32_t *node, int32_t len)
{
    uint32_t mask = 0;
    for (uint32_t i = 0; i < FAN; i++)
        mask |= (uint32_t)(node[i] >= len) << i;
    return mask;
}

/* The first bin at `from` or behind it with room for len, or cap. */
static size_t tree_find(const struct tree *tree, size_t from, int32_t len)
{
    size_t at = from;
    int l = 0;
    for (;;) { /* up until a later child has room */
        if (l == tree->n_levels || at >= tree->cap >> (FAN_BITS * l))
            return tree->cap;
        size_t node = at & ~(size_t)(FAN - 1);
        uint32_t mask = children_with(tree->level[l] + node, len) >> (at & (FAN - 1));
        if (mask) {
            at += (size_t)__builtin_ctz(mask);
            break;
        }
        at = (at >> FAN_BITS) + 1;
        l++;
    }
    while (l-- > 0) /* and down to it */
        at = (at << FAN_BITS) +
             (size_t)__builtin_ctz(children_with(tree->level[l] + (at << FAN_BITS), len));
    return at;
}

static void tree_set(struct tree *tree, size_t bin, int32_t room)
{
    tree->level[0][bin] = room;
    for (int l = 1; l < tree->n_levels; l++) {
        const int32_t *node = tree->level[l - 1] + (bin & ~(size_t)(FAN - 1));
        int32_t max = -1;
        for (int i = 0; i < FAN; i++)
            max = node[i] > max ? node[i] : max;
        bin >>= FAN_BITS;
        if (tree->level[l][bin] == max)
            return;
        tree->level[l][bin] = max;
    }
}

/* Items i .. end of one length: bins with room in order, then new ones. */
static void place_run(struct bins_open *open, struct tree *tree, size_t i, size_t end, int32_t len,
                      int64_t capacity)
{
    size_t from = 0;
    while (i < end) {
        size_t bin = tree_find(tree, from, len);
        if (bin == tree->cap) {
            bin = open->n_bins++;
            if (bin == tree->cap)
                tree_grow(tree);
            tree->level[0][bin] = (int32_t)capacity;
        }
        int32_t room = tree->level[0][bin];
        size_t n = len > 0 ? (size_t)(room / len) : end - i;
        n = n < end - i ? n : end - i;
        for (size_t stop = i + n; i < stop; i++)
            open->bin[i] = (uint32_t)bin;
        tree_set(tree, bin, room - (int32_t)n * len);
        from = bin + 1;
    }
}

void thd_first_fit(struct bins_open *open, const int32_t *lens, int64_t capacity)
{
    struct tree tree = {.n_levels = 0};
    tree_grow(&tree);
    open->n_bins = 0;
    for (size_t i = 0; i < open->n_items;) {
        const int32_t len = lens[open->order[i]];
        size_t end = i + 1;
        while (end < open->n_items && lens[open->order[end]] == len)
            end++;
        place_run(open, &tree, i, end, len, capacity);
        i = end;
    }
    for (int l = 0; l < tree.n_levels; l++)
        free(tree.level[l]);
}
