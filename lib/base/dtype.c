/* Sizes and names of element types, and their conversion from and to fp32. */
#include "lib/base/dtype.h"

#include <math.h>
#include <string.h>

#include "lib/base/half.h"

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
    for (size_t i = 1; i < N_DTYPES; i++) {
        const char *known = dtype_table[i].name;
        if (name[0] == known[0] && name[1] == known[1] && !strcmp(name, known))
            return (enum s2s_dtype)i;
    }
    return S2S_DTYPE_NONE;
}

bool s2s_dtype_is_float(enum s2s_dtype dtype)
{
    return dtype == S2S_F64 || dtype == S2S_F32 || dtype == S2S_F16 || dtype == S2S_BF16;
}

float s2s_bf16_to_f32(uint16_t bits)
{
    return s2s_f32_of_bits(s2s_bits_bf16_to_f32(bits));
}

uint16_t s2s_f32_to_bf16(float x)
{
    return s2s_bits_f32_to_bf16(s2s_bits_of_f32(x));
}

float s2s_f16_to_f32(uint16_t bits)
{
    return s2s_f32_of_bits(s2s_bits_f16_to_f32(bits));
}

uint16_t s2s_f32_to_f16(float x)
{
    return s2s_bits_f32_to_f16(s2s_bits_of_f32(x));
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

float s2s_f4_to_f32(uint8_t bits)
{
    static const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const float x = magnitudes[bits & 7];
    return bits & 8 ? -x : x;
}
