/* Philox4x32-10, and what is drawn from its output. */
#include "lib/base/rng.h"

#include <math.h>

uint64_t s2s_rng_key(uint64_t seed, const uint64_t *ids, size_t n_ids)
{
    uint64_t key = seed;
    for (size_t i = 0; i <= n_ids; i++) {
        uint64_t z = key + UINT64_C(0x9e3779b97f4a7c15) * (i + 1);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        key = z ^ (z >> 31);
        if (i < n_ids)
            key ^= ids[i];
    }
    return key;
}

uint64_t s2s_rng_name(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return h;
}

void s2s_rng_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)UINT32_C(0xd2511f53) * c0;
        uint64_t p1 = (uint64_t)UINT32_C(0xcd9e8d57) * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += UINT32_C(0x9e3779b9);
        k1 += UINT32_C(0xbb67ae85);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The counter's last word, which separates the sequences of a key: 32-bit, 64-bit, normal. */
enum { SEQUENCE_32, SEQUENCE_64, SEQUENCE_NORMAL };

static void draw(uint32_t out[4], uint64_t key, uint64_t block, uint32_t sequence)
{
    s2s_rng_philox(out, (uint32_t[]){(uint32_t)block, (uint32_t)(block >> 32), 0, sequence},
                   (uint32_t[]){(uint32_t)key, (uint32_t)(key >> 32)});
}

static uint32_t draw_u32(uint64_t key, uint64_t i)
{
    uint32_t word[4];
    draw(word, key, i / 4, SEQUENCE_32);
    return word[i % 4];
}

static uint64_t draw_u64(uint64_t key, uint64_t i)
{
    uint32_t word[4];
    draw(word, key, i / 2, SEQUENCE_64);
    return (uint64_t)word[i % 2 * 2 + 1] << 32 | word[i % 2 * 2];
}

static float to_unit(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

float s2s_rng_uniform(uint64_t key, uint64_t i)
{
    return to_unit(draw_u32(key, i));
}

double s2s_rng_uniform_f64(uint64_t key, uint64_t i)
{
    return (double)(draw_u64(key, i) >> 11) * 0x1p-53;
}

uint64_t s2s_rng_below(uint64_t key, uint64_t i, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)draw_u64(key, i) * n) >> 64);
}

void s2s_rng_fill_uniform(float *out, size_t n, uint64_t key, uint64_t first)
{
    uint32_t word[4];
    for (size_t i = 0; i < n; i++) {
        uint64_t element = first + i;
        if (i == 0 || element % 4 == 0)
            draw(word, key, element / 4, SEQUENCE_32);
        out[i] = to_unit(word[element % 4]);
    }
}

/* Two normals from one block; u is in (0,1], from 53 bits, so that the logarithm is finite. */
static void draw_normals(double pair[2], uint64_t key, uint64_t block)
{
    uint32_t word[4];
    draw(word, key, block, SEQUENCE_NORMAL);
    uint64_t wide = (uint64_t)word[1] << 32 | word[0];
    double radius = sqrt(-2 * log((double)((wide >> 11) + 1) * 0x1p-53));
    double angle = 6.283185307179586 * ((double)word[2] * 0x1p-32);
    pair[0] = radius * cos(angle);
    pair[1] = radius * sin(angle);
}

void s2s_rng_fill_normal(float *out, size_t n, uint64_t key, uint64_t first, float mean, float std)
{
    double pair[2];
    for (size_t i = 0; i < n; i++) {
        uint64_t element = first + i;
        if (i == 0 || element % 2 == 0)
            draw_normals(pair, key, element / 2);
        out[i] = (float)(mean + std * pair[element % 2]);
    }
}
