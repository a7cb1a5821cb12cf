/*
 * Conversion of 16-bit floats from and to float32, on bits and without branches, so that the
 * compiler vectorises loops over these, if the loops read and write bits, too. Rounding is to
 * nearest, ties to even; NaNs keep their sign and become quiet, except for bfloat16 that is
 * widened, as with the processor's own instructions.
 */
#ifndef BASE_HALF_H
#define BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t s2s_bits_of_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float s2s_f32_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t s2s_bits_bf16_to_f32(uint16_t bits)
{
    return (uint32_t)bits << 16;
}

static inline uint16_t s2s_bits_f32_to_bf16(uint32_t bits)
{
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

static inline uint32_t s2s_bits_f16_to_f32(uint16_t bits)
{
    const uint32_t exponent = bits >> 10 & 0x1fu, fraction = bits & 0x3ffu;
    const uint32_t bias = exponent == 31 ? 224 : 112;
    /* a subnormal is fraction * 2^-24, exact in float32 */
    const uint32_t small = s2s_bits_of_f32((float)(int32_t)fraction * 0x1p-24f);
    const uint32_t wide = exponent ? (exponent + bias) << 23 | fraction << 13 : small;
    const uint32_t quiet = exponent == 31 && fraction ? 0x400000u : 0;
    return (uint32_t)(bits & 0x8000u) << 16 | wide | quiet;
}

static inline uint16_t s2s_bits_f32_to_f16(uint32_t bits)
{
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    /* subnormal results: adding 0.5 makes the addition round to multiples of 2^-24 */
    uint32_t half = s2s_bits_of_f32(s2s_f32_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = ((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - 0x1c000u;
    half = magnitude >= 0x38800000u ? normal : half;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half; /* >= 65520: to infinity */
    half = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : half;
    return (uint16_t)(sign | half);
}

#endif
