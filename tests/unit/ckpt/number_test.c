/* Casts of many elements at once are those of one element by definition, on any processor. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/base/half.h"
#include "lib/ckpt/number.h"

enum { N = 8 * 65536 + 5 }; /* not a multiple of what an instruction takes */

/* Every pattern of 16 bits; as float32 and float64, those patterns with lower bits that decide
 * about rounding. Of the float64, which reach further, half have the exponents of float16. */
static void fill(char *out, enum s2s_dtype dtype)
{
    for (uint64_t i = 0; i < N; i++) {
        const uint64_t low[] = {0, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
        const uint16_t half = (uint16_t)(i / 8);
        const uint32_t single = (uint32_t)half << 16 | (uint32_t)low[i % 8];
        const uint64_t exponent = i % 2 ? 0 : 0x3800000000000000;
        const uint64_t wide = (uint64_t)half << 44 ^ low[i % 8] << 28 ^ exponent ^ i % 3;
        if (s2s_dtype_size(dtype) == 2)
            memcpy(out + 2 * i, &half, 2);
        else if (dtype == S2S_F32)
            memcpy(out + 4 * i, &single, 4);
        else
            memcpy(out + 8 * i, &wide, 8);
    }
}

/* The i-th element cast by definition: to float64, which is exact, from there by C's conversion, to
 * 16 bits by way of float32. */
static void cast_one(char *out, enum s2s_dtype to, const char *in, enum s2s_dtype from, size_t i)
{
    const double value = s2s_ckpt_number(in, from, i);
    const float single = (float)value;
    const uint16_t half = to == S2S_F16 ? s2s_f32_to_f16(single) : s2s_f32_to_bf16(single);
    memcpy(out,
           to == S2S_F64   ? (const void *)&value
           : to == S2S_F32 ? (const void *)&single
                           : &half,
           s2s_dtype_size(to));
}

static void many_are_cast_as_one_is(void **state)
{
    const enum s2s_dtype dtypes[] = {S2S_F64, S2S_F32, S2S_F16, S2S_BF16};
    char *in = s2s_xmalloc(8 * N), *many = s2s_xmalloc(8 * N), one[8];
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++) {
            const size_t in_size = s2s_dtype_size(dtypes[from]), size = s2s_dtype_size(dtypes[to]);
            if (from == to)
                continue;
            fill(in, dtypes[from]);
            ckpt_numbers_cast(many, dtypes[to], in, dtypes[from], N);
            for (size_t i = 0; i < N; i++) {
                /* NaNs have payloads, which float64 would have made quiet */
                if (isnan(s2s_ckpt_number(in, dtypes[from], i)))
                    ckpt_numbers_cast(one, dtypes[to], in + i * in_size, dtypes[from], 1);
                else
                    cast_one(one, dtypes[to], in, dtypes[from], i);
                if (memcmp(one, many + i * size, size) != 0)
                    fail_msg("%s to %s: element %zu", s2s_dtype_name(dtypes[from]),
                             s2s_dtype_name(dtypes[to]), i);
            }
        }
    free(in);
    free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_are_cast_as_one_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
