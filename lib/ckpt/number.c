/* Reads, casts, adds and stores elements of any type. */
#include "lib/ckpt/number.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lib/base/half.h"

enum { BLOCK = 512 }; /* elements of a cast that has a step in between */

static double load(const char *from, enum s2s_dtype dtype, size_t i)
{
    uint16_t half;
    float single;
    double value;
    switch (dtype) {
    case S2S_F64:
        memcpy(&value, from + 8 * i, 8);
        return value;
    case S2S_F32:
        memcpy(&single, from + 4 * i, 4);
        return (double)single;
    case S2S_F16:
        memcpy(&half, from + 2 * i, 2);
        return (double)s2s_f16_to_f32(half);
    default:
        memcpy(&half, from + 2 * i, 2);
        return (double)s2s_bf16_to_f32(half);
    }
}

static bool is_float8(enum s2s_dtype dtype)
{
    return dtype == S2S_F8_E5M2 || dtype == S2S_F8_E4M3 || dtype == S2S_F8_E8M0 ||
           dtype == S2S_F8_E4M3FNUZ || dtype == S2S_F8_E5M2FNUZ;
}

bool s2s_ckpt_can_average(enum s2s_dtype dtype)
{
    return s2s_ckpt_is_number(dtype) && !is_float8(dtype);
}

bool s2s_ckpt_is_number(enum s2s_dtype dtype)
{
    return dtype != S2S_DTYPE_NONE && dtype != S2S_C64 && dtype != S2S_C128 &&
           dtype != S2S_F4_E2M1FN_X2;
}

double s2s_ckpt_number(const void *data, enum s2s_dtype dtype, size_t i)
{
    const char *from = data;
    size_t size = s2s_dtype_size(dtype);
    uint64_t bits = 0;
    if (s2s_dtype_is_float(dtype))
        return load(from, dtype, i);
    memcpy(&bits, from + i * size, size);
    if (is_float8(dtype))
        return (double)s2s_f8_to_f32((uint8_t)bits, dtype);
    switch (dtype) {
    case S2S_I8:
        return (int8_t)bits;
    case S2S_I16:
        return (int16_t)bits;
    case S2S_I32:
        return (int32_t)bits;
    case S2S_I64:
        return (double)(int64_t)bits;
    default:
        return (double)bits;
    }
}

static inline uint32_t same_bits(uint32_t bits)
{
    return bits;
}

/* casts n elements from IN to OUT through the bits of a float32 */
#define CAST(IN, WIDEN, OUT, NARROW) \
    for (size_t i = 0; i < n; i++) { \
        IN x; \
        memcpy(&x, from + i * sizeof x, sizeof x); \
        const OUT y = NARROW(WIDEN(x)); \
        memcpy(to + i * sizeof y, &y, sizeof y); \
    }

/* Float16 to and from float32 by the processor's own instructions, three times as fast as vectors
 * of the bits. They return how many elements they cast: the rest is fewer than 8, or all. */
#if defined(__x86_64__)
#define F16C __attribute__((target("avx2,f16c")))

/* Processors with AVX2 have F16C, by which name clang 14 does not ask. */
static bool has_f16c(void)
{
    return __builtin_cpu_supports("avx2");
}

F16C static size_t widen_by_8(char *to, const char *from, size_t n)
{
    size_t i = 0;
    for (; has_f16c() && n - i >= 8; i += 8) {
        const __m128i halves = _mm_loadu_si128((const __m128i *)(from + 2 * i));
        _mm256_storeu_ps((float *)(to + 4 * i), _mm256_cvtph_ps(halves));
    }
    return i;
}

F16C static size_t narrow_by_8(char *to, const char *from, size_t n)
{
    size_t i = 0;
    for (; has_f16c() && n - i >= 8; i += 8) {
        const __m256 singles = _mm256_loadu_ps((const float *)(from + 4 * i));
        _mm_storeu_si128((__m128i *)(to + 2 * i),
                         _mm256_cvtps_ph(singles, _MM_FROUND_TO_NEAREST_INT));
    }
    return i;
}
#else
static size_t widen_by_8(char *to, const char *from, size_t n)
{
    return 0;
}

static size_t narrow_by_8(char *to, const char *from, size_t n)
{
    return 0;
}
#endif

static void widen_f16(char *restrict to, const char *restrict from, size_t n)
{
    const size_t done = widen_by_8(to, from, n);
    to += 4 * done, from += 2 * done, n -= done;
    CAST(uint16_t, s2s_bits_f16_to_f32, uint32_t, same_bits)
}

static void narrow_to_f16(char *restrict to, const char *restrict from, size_t n)
{
    const size_t done = narrow_by_8(to, from, n);
    to += 2 * done, from += 4 * done, n -= done;
    CAST(uint32_t, same_bits, uint16_t, s2s_bits_f32_to_f16)
}

/* Casts by way of float32 or float64, which hold every number of the narrower dtypes. */
static void cast_in_two_steps(char *restrict to, enum s2s_dtype to_dtype, const char *restrict from,
                              enum s2s_dtype from_dtype, size_t n)
{
    const bool is_wide = from_dtype == S2S_F64 || to_dtype == S2S_F64;
    double block[BLOCK];
    for (size_t now; n; n -= now) {
        now = n < BLOCK ? n : BLOCK;
        if (is_wide) {
            s2s_ckpt_numbers(block, from, from_dtype, now);
            ckpt_numbers_store(to, to_dtype, block, now);
        } else {
            ckpt_numbers_cast(block, S2S_F32, from, from_dtype, now);
            ckpt_numbers_cast(to, to_dtype, block, S2S_F32, now);
        }
        from += now * s2s_dtype_size(from_dtype);
        to += now * s2s_dtype_size(to_dtype);
    }
}

/* Whole models go through these: loops that the compiler vectorises. */
void ckpt_numbers_cast(void *restrict out, enum s2s_dtype to_dtype, const void *restrict in,
                       enum s2s_dtype from_dtype, size_t n)
{
    const char *restrict from = in;
    char *restrict to = out;
    if (from_dtype == S2S_BF16 && to_dtype == S2S_F32)
        CAST(uint16_t, s2s_bits_bf16_to_f32, uint32_t, same_bits)
    else if (from_dtype == S2S_F32 && to_dtype == S2S_BF16)
        CAST(uint32_t, same_bits, uint16_t, s2s_bits_f32_to_bf16)
    else if (from_dtype == S2S_F16 && to_dtype == S2S_F32)
        widen_f16(to, from, n);
    else if (from_dtype == S2S_F32 && to_dtype == S2S_F16)
        narrow_to_f16(to, from, n);
    else
        cast_in_two_steps(to, to_dtype, from, from_dtype, n);
}

size_t ckpt_numbers_infinite(const void *data, enum s2s_dtype dtype, size_t n)
{
    uint32_t found = 0; /* vectors of it are half as wide as of size_t, so twice as fast */
    if (dtype == S2S_F16) {
        for (size_t i = 0; i < n; i++) {
            uint16_t x;
            memcpy(&x, (const char *)data + 2 * i, 2);
            found += (x & 0x7fffu) == 0x7c00u;
        }
        return found;
    }
    for (size_t i = 0; i < n; i++)
        found += isinf(load(data, dtype, i)) != 0;
    return found;
}

/* out[i] DO element i of IN, through the bits of a float32 */
#define EACH(IN, WIDEN, DO) \
    for (size_t i = 0; i < n; i++) { \
        IN x; \
        memcpy(&x, bytes + i * sizeof x, sizeof x); \
        out[i] DO(double) s2s_f32_of_bits(WIDEN(x)); \
    }

void s2s_ckpt_numbers(double *restrict out, const void *restrict from, enum s2s_dtype dtype,
                      size_t n)
{
    const char *restrict bytes = from;
    if (dtype == S2S_F64)
        memcpy(out, from, n * sizeof *out);
    else if (dtype == S2S_F32)
        EACH(uint32_t, same_bits, =)
    else if (dtype == S2S_BF16)
        EACH(uint16_t, s2s_bits_bf16_to_f32, =)
    else if (dtype == S2S_F16)
        EACH(uint16_t, s2s_bits_f16_to_f32, =)
    else
        for (size_t i = 0; i < n; i++)
            out[i] = s2s_ckpt_number(bytes, dtype, i);
}

void ckpt_numbers_add(double *restrict out, const void *restrict from, enum s2s_dtype dtype,
                      size_t n)
{
    const char *restrict bytes = from;
    if (dtype == S2S_F32)
        EACH(uint32_t, same_bits, +=)
    else if (dtype == S2S_BF16)
        EACH(uint16_t, s2s_bits_bf16_to_f32, +=)
    else if (dtype == S2S_F16)
        EACH(uint16_t, s2s_bits_f16_to_f32, +=)
    else
        for (size_t i = 0; i < n; i++)
            out[i] += load(bytes, dtype, i);
}

/* stores n float64 as OUT, through the bits of a float32 */
#define STORE(OUT, NARROW) \
    for (size_t i = 0; i < n; i++) { \
        const OUT y = NARROW(s2s_bits_of_f32((float)from[i])); \
        memcpy(to + i * sizeof y, &y, sizeof y); \
    }

void ckpt_numbers_store(void *restrict out, enum s2s_dtype dtype, const double *restrict from,
                        size_t n)
{
    char *restrict to = out;
    if (dtype == S2S_F32)
        STORE(uint32_t, same_bits)
    else if (dtype == S2S_BF16)
        STORE(uint16_t, s2s_bits_f32_to_bf16)
    else if (dtype == S2S_F16)
        STORE(uint16_t, s2s_bits_f32_to_f16)
    else
        memcpy(to, from, n * sizeof *from);
}
