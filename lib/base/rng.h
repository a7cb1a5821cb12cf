/*
 * Counter-based random numbers: a function of a 64-bit key, made from the seed and the ids of the
 * place of use (step, sample, layer, site), and of the element's number. So a recomputed, split or
 * resumed run draws the same numbers, in any order and on any thread. Generator: Philox4x32-10
 * (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 */
#ifndef S2S_BASE_RNG_H
#define S2S_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* The key of a place: every id affects all bits (SplitMix64 finaliser), and so does the order of
 * ids. */
uint64_t s2s_rng_key(uint64_t seed, const uint64_t *ids, size_t n_ids);
/* s2s_rng_key with the ids as arguments: S2S_RNG_KEY(seed, step, sample, SITE_DROPOUT) */
#define S2S_RNG_KEY(seed, ...) \
    s2s_rng_key(seed, (const uint64_t[]){__VA_ARGS__}, \
                sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))
/* An id for a name, such as a parameter's: FNV-1a, 64 bits. */
uint64_t s2s_rng_name(const char *name);

/* The generator itself: ten rounds on a 128-bit counter. */
void s2s_rng_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

/* Element i of the sequence of key. */
float s2s_rng_uniform(uint64_t key, uint64_t i);      /* [0,1), 24 bits */
double s2s_rng_uniform_f64(uint64_t key, uint64_t i); /* [0,1), 53 bits; a separate sequence */
/* An integer in [0, n), n >= 1; the bias is below n / 2^64. */
uint64_t s2s_rng_below(uint64_t key, uint64_t i, uint64_t n);

/*
 * Sets out to elements first .. first+n-1: uniform in [0,1), as from s2s_rng_uniform, or normal
 * (Box-Muller; elements 2i and 2i+1 share a draw, so that any split of the range gives the same
 * numbers).
 */
void s2s_rng_fill_uniform(float *out, size_t n, uint64_t key, uint64_t first);
void s2s_rng_fill_normal(float *out, size_t n, uint64_t key, uint64_t first, float mean, float std);

#endif
