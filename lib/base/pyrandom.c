/* The Mersenne Twister and the shuffle of CPython. */
#include "lib/base/pyrandom.h"

enum { N = 624, M = 397 };

static void init_genrand(struct s2s_pyrandom *r, uint32_t seed)
{
    r->state[0] = seed;
    for (uint32_t i = 1; i < N; i++)
        r->state[i] = 1812433253u * (r->state[i - 1] ^ (r->state[i - 1] >> 30)) + i;
    r->next = N;
}

void s2s_pyrandom_seed(struct s2s_pyrandom *r, uint64_t seed)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t n_key = key[1] ? 2 : 1;
    uint32_t *mt = r->state, i = 1, j = 0;
    init_genrand(r, 19650218u);
    for (int k = 0; k < N; k++) {
        mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1664525u)) + key[j] + j;
        if (++i >= N) {
            mt[0] = mt[N - 1];
            i = 1;
        }
        if (++j >= n_key)
            j = 0;
    }
    for (int k = 0; k < N - 1; k++) {
        mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1566083941u)) - i;
        if (++i >= N) {
            mt[0] = mt[N - 1];
            i = 1;
        }
    }
    mt[0] = 0x80000000u;
}

static void refill(struct s2s_pyrandom *r)
{
    uint32_t *mt = r->state;
    for (int k = 0; k < N; k++) {
        uint32_t y = (mt[k] & 0x80000000u) | (mt[(k + 1) % N] & 0x7fffffffu);
        mt[k] = mt[(k + M) % N] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    r->next = 0;
}

uint32_t s2s_pyrandom_u32(struct s2s_pyrandom *r)
{
    if (r->next >= N)
        refill(r);
    uint32_t y = r->state[r->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

uint32_t s2s_pyrandom_below(struct s2s_pyrandom *r, uint32_t n)
{
    const int unused_bits = __builtin_clz(n); /* 32 - n.bit_length() */
    uint32_t value;
    do
        value = s2s_pyrandom_u32(r) >> unused_bits;
    while (value >= n);
    return value;
}

double s2s_pyrandom_double(struct s2s_pyrandom *r)
{
    const uint32_t high = s2s_pyrandom_u32(r) >> 5, low = s2s_pyrandom_u32(r) >> 6;
    return ((double)high * 67108864.0 + (double)low) / 9007199254740992.0;
}

int64_t s2s_pyrandom_between(struct s2s_pyrandom *r, int64_t low, int64_t high)
{
    return low + s2s_pyrandom_below(r, (uint32_t)(high - low + 1));
}

size_t s2s_pyrandom_choice(struct s2s_pyrandom *r, const double *weights, size_t n)
{
    double total = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        total += weights[i];
    const double at = s2s_pyrandom_double(r) * total;
    for (size_t i = 0; i + 1 < n; i++) /* bisect_right of the running sums */
        if (at < (sum += weights[i]))
            return i;
    return n - 1;
}

void s2s_pyrandom_shuffle(struct s2s_pyrandom *r, uint32_t *items, size_t n)
{
    for (size_t i = n; i-- > 1;) {
        size_t j = s2s_pyrandom_below(r, (uint32_t)(i + 1));
        uint32_t item = items[i];
        items[i] = items[j];
        items[j] = item;
    }
}
