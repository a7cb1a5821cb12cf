#include "lib/base/dtype.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtype_table[] = {{"none", 0},
#define X(name, size) {#name, size},
                   S2S_DTYPE_MAP(X)
#undef X
};

#define N_DTYPES (sizeof dtype_table / sizeof *dtype_table)

size_t s2s_dtype_size(enum s2s_dtype dtype)
{
    return (size_t)dtype < N_DTYPES ? dtype_table[dtype].size : 0;
}

const char *s2s_dtype_name(enum s2s_dtype dtype)
{
    return (size_t)dtype < N_DTYPES ? dtype_table[dtype].name : "none";
}

enum s2s_dtype s2s_dtype_parse(const char *name)
{
    for (size_t i = 1; i < N_DTYPES; i++)
        if (!strcmp(name, dtype_table[i].name))
            return (enum s2s_dtype)i;
    return S2S_DTYPE_NONE;
}

float s2s_bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

uint16_t s2s_f32_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u); /* a quiet NaN, never rounded to infinity */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float s2s_f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1fu;
    uint32_t fraction = bits & 0x3ffu, wide;
    if (exponent == 31) {
        wide = sign | 0x7f800000u | fraction << 13;
    } else if (exponent) {
        wide = sign | (exponent + 112) << 23 | fraction << 13;
    } else {
        /* subnormal: fraction * 2^-24, exact in fp32 */
        float x = (float)fraction * 0x1p-24f;
        memcpy(&wide, &x, sizeof wide);
        wide |= sign;
    }
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

uint16_t s2s_f32_to_f16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | magnitude >> 13); /* NaN, quiet */
    if (magnitude >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u); /* 65520 and more round to infinity */
    if (magnitude >= 0x38800000u)
        return (uint16_t)(sign |
                          (((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - 0x1c000u));
    /* subnormal: adding 0.5 lets the addition itself round to multiples of 2^-24 */
    float shifted;
    memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f;
    memcpy(&bits, &shifted, sizeof bits);
    return (uint16_t)(sign | (bits - 0x3f000000u));
}

float s2s_f8_to_f32(uint8_t bits, enum s2s_dtype dtype)
{
    bool five = dtype == S2S_F8_E5M2 || dtype == S2S_F8_E5M2FNUZ;
    bool unsigned_zero = dtype == S2S_F8_E4M3FNUZ || dtype == S2S_F8_E5M2FNUZ;
    int fraction_bits = five ? 2 : 3, bias = (five ? 15 : 7) + unsigned_zero;
    int exponent = (bits & 0x7f) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    if (dtype == S2S_F8_E8M0)
        return bits == 0xff ? NAN : ldexpf(1.0f, bits - 127);
    if (dtype == S2S_F8_E5M2)
        return s2s_f16_to_f32((uint16_t)(bits << 8));
    if (unsigned_zero ? bits == 0x80 : (bits & 0x7f) == 0x7f)
        return NAN;
    int whole = exponent ? fraction | 1 << fraction_bits : fraction;
    float x = ldexpf((float)whole, (exponent ? exponent : 1) - bias - fraction_bits);
    return bits & 0x80 ? -x : x;
}
