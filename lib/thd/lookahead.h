/*
 * Packing a stream of samples that may have no end: a window of the next samples is held, and each
 * time it is full one pack goes out. A pack takes the oldest samples in their order, so none waits
 * for ever and the order of the data stays what it was but for the last few of a pack, which are
 * those of the window that fill it up: one, two or three whose lengths are just what is left.
 *
 * The result depends on the samples and the size of the window alone.
 */
#ifndef S2S_THD_LOOKAHEAD_H
#define S2S_THD_LOOKAHEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { S2S_LOOKAHEAD_MAX_CAPACITY = 1 << 24, S2S_LOOKAHEAD_MAX_WINDOW = 1 << 28 };

struct s2s_lookahead;

/* window: samples that are held, 1 .. S2S_LOOKAHEAD_MAX_WINDOW; capacity: slots of a pack, 1 ..
 * S2S_LOOKAHEAD_MAX_CAPACITY. */
struct s2s_lookahead *s2s_lookahead_new(size_t window, int64_t capacity);
void s2s_lookahead_free(struct s2s_lookahead *ahead);

/* Adds a sample of 1 .. capacity slots; the window must not be full. Returns whether it is now. */
bool s2s_lookahead_add(struct s2s_lookahead *ahead, uint32_t item, int32_t len);
/* The next pack from what is held, full or not: its items in the order in which they went in,
 * lent until the next call; 0: nothing is held. */
size_t s2s_lookahead_take(struct s2s_lookahead *ahead, const uint32_t **items);

#endif
