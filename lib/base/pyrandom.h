/*
 * CPython's random.Random, for orders that must equal those of a Python program with the same seed
 * (shuffles, shuffle buffers). Mersenne Twister 19937 (Matsumoto and Nishimura 1998), seeded by
 * init_by_array. For everything else use lib/base/rng.h.
 */
#ifndef S2S_BASE_PYRANDOM_H
#define S2S_BASE_PYRANDOM_H

#include <stddef.h>
#include <stdint.h>

struct s2s_pyrandom {
    uint32_t state[624];
    int next;
};

/* random.seed(seed) for an integer seed >= 0. */
void s2s_pyrandom_seed(struct s2s_pyrandom *random, uint64_t seed);
/* getrandbits(32) */
uint32_t s2s_pyrandom_u32(struct s2s_pyrandom *random);
/* randrange(n), 1 <= n < 2^32 */
uint32_t s2s_pyrandom_below(struct s2s_pyrandom *random, uint32_t n);
/* random(): from 0 up to but without 1 */
double s2s_pyrandom_double(struct s2s_pyrandom *random);
/* randint(low, high), low <= high */
int64_t s2s_pyrandom_between(struct s2s_pyrandom *random, int64_t low, int64_t high);
/* choices(range(n), weights)[0]: an index below n. Only their ratios count; their sum is above 0.
 */
size_t s2s_pyrandom_choice(struct s2s_pyrandom *random, const double *weights, size_t n);
/* shuffle(list): items [n] */
void s2s_pyrandom_shuffle(struct s2s_pyrandom *random, uint32_t *items, size_t n);

#endif
