/* A set of small numbers in which the next member is found in a few words. */
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/thd/thd_internal.h"

struct thd_bitmap thd_bitmap_new(uint32_t size)
{
    struct thd_bitmap map = {.size = size};
    uint32_t n = size;
    do {
        n = (n + 63) / 64;
        map.level[map.n_levels++] = s2s_xcalloc(n, sizeof(uint64_t));
    } while (n > 1);
    return map;
}

void thd_bitmap_free(struct thd_bitmap *map)
{
    for (int l = 0; l < map->n_levels; l++)
        free(map->level[l]);
    *map = (struct thd_bitmap){.size = 0};
}

void thd_bitmap_set(struct thd_bitmap *map, uint32_t at)
{
    for (int l = 0; l < map->n_levels; l++, at /= 64) {
        uint64_t *word = &map->level[l][at / 64];
        const uint64_t old = *word;
        *word |= 1ULL << at % 64;
        if (old)
            return;
    }
}

void thd_bitmap_clear(struct thd_bitmap *map, uint32_t at)
{
    for (int l = 0; l < map->n_levels; l++, at /= 64) {
        uint64_t *word = &map->level[l][at / 64];
        *word &= ~(1ULL << at % 64);
        if (*word)
            return;
    }
}

int64_t thd_bitmap_next(const struct thd_bitmap *map, uint32_t from)
{
    uint64_t at = from, size = map->size, word;
    int l = 0;
    for (;; l++) { /* up until a later word has a member */
        if (l == map->n_levels || at >= size)
            return -1;
        word = map->level[l][at / 64] >> at % 64;
        if (word)
            break;
        at = at / 64 + 1;
        size = (size + 63) / 64;
    }
    at += (uint64_t)__builtin_ctzll(word);
    while (l-- > 0) /* and down to it */
        at = at * 64 + (uint64_t)__builtin_ctzll(map->level[l][at]);
    return (int64_t)at;
}

int64_t thd_bitmap_last(const struct thd_bitmap *map, uint32_t upto)
{
    int64_t at = upto < map->size ? (int64_t)upto : (int64_t)map->size - 1;
    uint64_t word;
    int l = 0;
    for (;; l++) {
        if (at < 0 || l == map->n_levels)
            return -1;
        word = map->level[l][at / 64] << (63 - at % 64);
        if (word)
            break;
        at = at / 64 - 1;
    }
    at -= __builtin_clzll(word);
    while (l-- > 0)
        at = at * 64 + 63 - __builtin_clzll(map->level[l][at]);
    return at;
}
