/* Inside lib/thd. */
#ifndef S2S_THD_INTERNAL_H
#define S2S_THD_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

/*
 * Bins while they are filled: link[i] is the bin of item i, and items enter in the order of
 * `order`. bins_close turns them into lists.
 */
struct bins_open {
    uint32_t *order; /* [n_items], items in the order in which they went in */
    uint32_t *bin;   /* [n_items], bin of order[i] */
    size_t n_items, n_bins;
};

/* order [n]: indices of keys [n] (>= 0, at most max), ascending, stable. */
void thd_sort(uint32_t *order, const int32_t *keys, size_t n, int32_t max);

/* The packers. lens [n] are rounded and fit; all of open's arrays have room for n. */
void thd_first_fit(struct bins_open *open, const int32_t *lens, int64_t capacity);
void thd_best_fit(struct bins_open *open, const int32_t *lens, int64_t capacity);
void thd_mffd(struct bins_open *open, const int32_t *lens, size_t n, int64_t capacity);

/* A set of numbers below size; bit i % 64 of word i / 64 is number i, and the words that are not 0
 * are a set of their own in the level above. */
struct thd_bitmap {
    uint32_t size;
    int n_levels;
    uint64_t *level[6];
};

struct thd_bitmap thd_bitmap_new(uint32_t size);
void thd_bitmap_free(struct thd_bitmap *map);
void thd_bitmap_set(struct thd_bitmap *map, uint32_t at);
void thd_bitmap_clear(struct thd_bitmap *map, uint32_t at);
/* The smallest member that is at least `from`, the largest that is at most `upto`; -1: none. */
int64_t thd_bitmap_next(const struct thd_bitmap *map, uint32_t from);
int64_t thd_bitmap_last(const struct thd_bitmap *map, uint32_t upto);

#endif
