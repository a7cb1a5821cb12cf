/* Element types, named as in safetensors; but F4, which has two elements a byte there, is PyTorch's
 * float4_e2m1fn_x2 here: a byte that is a pair of them. */
#ifndef S2S_BASE_DTYPE_H
#define S2S_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name, bytes per element */
/* clang-format off */
#define S2S_DTYPE_MAP(X) \
    X(BOOL, 1) X(U8, 1) X(I8, 1) X(F8_E5M2, 1) X(F8_E4M3, 1) X(F8_E8M0, 1) \
    X(I16, 2) X(U16, 2) X(F16, 2) X(BF16, 2) \
    X(I32, 4) X(U32, 4) X(F32, 4) \
    X(I64, 8) X(U64, 8) X(F64, 8) X(C64, 8) \
    X(C128, 16) X(F8_E4M3FNUZ, 1) X(F8_E5M2FNUZ, 1) X(F4_E2M1FN_X2, 1)
/* clang-format on */

enum s2s_dtype {
    S2S_DTYPE_NONE = 0,
#define X(name, size) S2S_##name,
    S2S_DTYPE_MAP(X)
#undef X
};

#ifdef __cplusplus
extern "C" {
#endif

size_t s2s_dtype_size(enum s2s_dtype dtype);      /* bytes per element; 0 for S2S_DTYPE_NONE */
const char *s2s_dtype_name(enum s2s_dtype dtype); /* "BF16"; "none" */
enum s2s_dtype s2s_dtype_parse(const char *name); /* S2S_DTYPE_NONE when unknown */

/* F64, F32, F16 or BF16; false for smaller floats. */
bool s2s_dtype_is_float(enum s2s_dtype dtype);

/* Exact widening, and rounding to nearest even (NaN stays NaN). */
float s2s_bf16_to_f32(uint16_t bits);
uint16_t s2s_f32_to_bf16(float x);
float s2s_f16_to_f32(uint16_t bits);
uint16_t s2s_f32_to_f16(float x);
float s2s_f8_to_f32(uint8_t bits, enum s2s_dtype dtype); /* dtype: any F8_* */
float s2s_f4_to_f32(uint8_t bits); /* E2M1 (OCP MX, version 1.0), in the low four bits */

#ifdef __cplusplus
}
#endif

#endif
