/* Orders of samples. */
#ifndef S2S_DATA_ORDER_H
#define S2S_DATA_ORDER_H

#include <stddef.h>
#include <stdint.h>

/*
 * Shuffles items [n] in place through a buffer of `buffer` items (0: not at all), as a stream of
 * any length can be shuffled: every item that comes in changes place with a random one of the
 * buffer, which goes out. The order is that of Lhotse's streaming_shuffle with random.Random(seed).
 */
void s2s_data_shuffle(uint32_t *items, size_t n, size_t buffer, uint64_t seed);

#endif
