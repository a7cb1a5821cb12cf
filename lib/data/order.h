/* Orders of samples. */
#ifndef S2S_DATA_ORDER_H
#define S2S_DATA_ORDER_H

#include <stddef.h>
#include <stdint.h>

/*
 * Shuffles items [n] in place through a buffer of `buffer` items (0: no shuffling), as for a stream
 * of unknown length: each incoming item replaces a random one of the buffer, which goes out. The
 * order equals Lhotse's streaming_shuffle with random.Random(seed).
 */
void s2s_data_shuffle(uint32_t *items, size_t n, size_t buffer, uint64_t seed);

#endif
