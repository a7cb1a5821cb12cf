/*
 * Sums over ranks, in the order of the ranks. Halves and F32 are added in double and rounded once,
 * so the result hardly depends on how many ranks there are.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/mesh/mesh_internal.h"

enum { BLOCK = 512 };

typedef void load_fn(double *out, const void *src, int64_t at, int n);
typedef void store_fn(void *dst, int64_t at, const double *in, int n);

static void load_f64(double *out, const void *src, int64_t at, int n)
{
    memcpy(out, (const double *)src + at, (size_t)n * sizeof *out);
}
static void store_f64(void *dst, int64_t at, const double *in, int n)
{
    memcpy((double *)dst + at, in, (size_t)n * sizeof *in);
}
static void load_f32(double *out, const void *src, int64_t at, int n)
{
    const float *x = (const float *)src + at;
    for (int i = 0; i < n; i++)
        out[i] = (double)x[i];
}
static void store_f32(void *dst, int64_t at, const double *in, int n)
{
    float *y = (float *)dst + at;
    for (int i = 0; i < n; i++)
        y[i] = (float)in[i];
}
static void load_bf16(double *out, const void *src, int64_t at, int n)
{
    const uint16_t *x = (const uint16_t *)src + at;
    for (int i = 0; i < n; i++)
        out[i] = (double)s2s_bf16_to_f32(x[i]);
}
static void store_bf16(void *dst, int64_t at, const double *in, int n)
{
    uint16_t *y = (uint16_t *)dst + at;
    for (int i = 0; i < n; i++)
        y[i] = s2s_f32_to_bf16((float)in[i]);
}
static void load_f16(double *out, const void *src, int64_t at, int n)
{
    const uint16_t *x = (const uint16_t *)src + at;
    for (int i = 0; i < n; i++)
        out[i] = (double)s2s_f16_to_f32(x[i]);
}
static void store_f16(void *dst, int64_t at, const double *in, int n)
{
    uint16_t *y = (uint16_t *)dst + at;
    for (int i = 0; i < n; i++)
        y[i] = s2s_f32_to_f16((float)in[i]);
}

static void combine_real(void *dst, const char *parts, int n_parts, int64_t stride_bytes, int64_t n,
                         load_fn *load, store_fn *store, enum s2s_group_op op)
{
    double sum[BLOCK], x[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int len = n - at < BLOCK ? (int)(n - at) : BLOCK;
        load(sum, parts, at, len);
        for (int p = 1; p < n_parts; p++) {
            load(x, parts + p * stride_bytes, at, len);
            if (op == S2S_GROUP_SUM)
                for (int i = 0; i < len; i++)
                    sum[i] += x[i];
            else /* NaN wins, whoever has it */
                for (int i = 0; i < len; i++)
                    sum[i] = x[i] > sum[i] || x[i] != x[i] ? x[i] : sum[i];
        }
        store(dst, at, sum, len);
    }
}

/* Integers: wrap-around is not expected, so 64 bits serve all widths. */
static int64_t get_int(const char *src, int64_t i, enum s2s_dtype dtype)
{
    if (dtype == S2S_I64)
        return ((const int64_t *)(const void *)src)[i];
    return dtype == S2S_I32 ? ((const int32_t *)(const void *)src)[i] : ((const uint8_t *)src)[i];
}

static void put_int(char *dst, int64_t i, int64_t value, enum s2s_dtype dtype)
{
    if (dtype == S2S_I64)
        ((int64_t *)(void *)dst)[i] = value;
    else if (dtype == S2S_I32)
        ((int32_t *)(void *)dst)[i] = (int32_t)value;
    else
        ((uint8_t *)dst)[i] = (uint8_t)value;
}

static void combine_int(char *dst, const char *parts, int n_parts, int64_t stride_bytes, int64_t n,
                        enum s2s_dtype dtype, enum s2s_group_op op)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t sum = get_int(parts, i, dtype);
        for (int p = 1; p < n_parts; p++) {
            int64_t x = get_int(parts + p * stride_bytes, i, dtype);
            sum = op == S2S_GROUP_SUM ? sum + x : x > sum ? x : sum;
        }
        put_int(dst, i, sum, dtype);
    }
}

void mesh_combine(void *dst, const void *parts, int n_parts, int64_t stride, int64_t n,
                  enum s2s_dtype dtype, enum s2s_group_op op)
{
    const int64_t stride_bytes = stride * (int64_t)s2s_dtype_size(dtype);
    switch (dtype) {
    case S2S_F64:
        combine_real(dst, parts, n_parts, stride_bytes, n, load_f64, store_f64, op);
        break;
    case S2S_F32:
        combine_real(dst, parts, n_parts, stride_bytes, n, load_f32, store_f32, op);
        break;
    case S2S_BF16:
        combine_real(dst, parts, n_parts, stride_bytes, n, load_bf16, store_bf16, op);
        break;
    case S2S_F16:
        combine_real(dst, parts, n_parts, stride_bytes, n, load_f16, store_f16, op);
        break;
    case S2S_I64:
    case S2S_I32:
    case S2S_U8:
        combine_int(dst, parts, n_parts, stride_bytes, n, dtype, op);
        break;
    default:
        S2S_BUG("no sums of %s over ranks", s2s_dtype_name(dtype));
    }
}
