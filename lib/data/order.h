/* Orders of samples. */
#ifndef S2S_DATA_ORDER_H
#define S2S_DATA_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_pyrandom;

/*
 * Shuffles items [n] in place through a buffer of `buffer` items (0: no shuffling), as for a stream
 * of unknown length: each incoming item replaces a random one of the buffer, which goes out. The
 * order equals Lhotse's streaming_shuffle with random.Random(seed).
 */
void s2s_data_shuffle(uint32_t *items, size_t n, size_t buffer, uint64_t seed);

/* The order of n shards in a walk: ascending, or with `shuffle` that of random.shuffle. Seeds
 * *random, which goes on behind the shuffle. Gives: free. */
uint32_t *data_shard_order(struct s2s_pyrandom *random, size_t n, uint64_t seed, bool shuffle);

/* A slice of each shard: `wanted` items in a row, from a random one on; wanted 0: all. */
struct data_slice {
    int64_t wanted, skip, n_seen, n_taken;
};

/* Begins a shard of n items, and draws where its slice begins if it has more than are wanted. */
void data_slice_begin(struct data_slice *slice, int64_t wanted, size_t n,
                      struct s2s_pyrandom *random);
/* Is the next item in front of the slice? Counts it as seen. */
bool data_slice_skips(struct data_slice *slice);
/* Has the slice all that is wanted? */
bool data_slice_is_full(const struct data_slice *slice);

#endif
