/* Copies that convert, and fills: blocks of a row, so that one long row is work for all threads. */
#include "kernels/cpu/cpu.h"
#include "lib/base/half.h"

enum { BLOCK = 16384 };

static char *at_col(const struct s2s_mat *mat, int64_t row, int64_t col)
{
    return (char *)mat->data + (size_t)(row * mat->stride + col) * s2s_dtype_size(mat->dtype);
}

/* ---- the loops, one a pair of types ---- */

static inline float from_bf16(uint16_t x)
{
    return s2s_f32_of_bits(s2s_bits_bf16_to_f32(x));
}

static inline uint16_t to_bf16(float x)
{
    return s2s_bits_f32_to_bf16(s2s_bits_of_f32(x));
}

#define LOOP(from, from_type, to, to_type, convert) \
    static void from##_to_##to(void *dst, const void *src, int64_t n) \
    { \
        const from_type *restrict x = (const from_type *)src; \
        to_type *restrict y = (to_type *)dst; \
        for (int64_t i = 0; i < n; i++) \
            y[i] = convert; \
    }
LOOP(f32, float, bf16, uint16_t, to_bf16(x[i]))
LOOP(f32, float, f64, double, (double)x[i])
LOOP(f32, float, i32, int32_t, (int32_t)x[i])
LOOP(bf16, uint16_t, f32, float, from_bf16(x[i]))
LOOP(bf16, uint16_t, f64, double, (double)from_bf16(x[i]))
LOOP(bf16, uint16_t, i32, int32_t, (int32_t)from_bf16(x[i]))
LOOP(f64, double, f32, float, (float)x[i])
LOOP(f64, double, bf16, uint16_t, to_bf16((float)x[i]))
LOOP(f64, double, i32, int32_t, (int32_t)x[i])
LOOP(i32, int32_t, f32, float, (float)x[i])
LOOP(i32, int32_t, bf16, uint16_t, to_bf16((float)x[i]))
LOOP(i32, int32_t, f64, double, (double)x[i])
#undef LOOP

typedef void convert_fn(void *dst, const void *src, int64_t n);

enum { N_TYPES = 4 };

static int type_idx(enum s2s_dtype dtype)
{
    return dtype == S2S_F32 ? 0 : dtype == S2S_BF16 ? 1 : dtype == S2S_F64 ? 2 : 3;
}

static convert_fn *const converts[N_TYPES][N_TYPES] = {
    {NULL, f32_to_bf16, f32_to_f64, f32_to_i32},
    {bf16_to_f32, NULL, bf16_to_f64, bf16_to_i32},
    {f64_to_f32, f64_to_bf16, NULL, f64_to_i32},
    {i32_to_f32, i32_to_bf16, i32_to_f64, NULL},
};

void cpu_copy(struct s2s_queue *queue, const struct s2s_k_copy *args)
{
    convert_fn *convert = converts[type_idx(args->src.dtype)][type_idx(args->dst.dtype)];
    const size_t size = s2s_dtype_size(args->dst.dtype);
    const int64_t n_blocks = cpu_ceil_div(args->cols, BLOCK);
#pragma omp parallel for collapse(2) num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        for (int64_t b = 0; b < n_blocks; b++) {
            const int64_t begin = b * BLOCK, left = args->cols - begin;
            const int64_t n = left < BLOCK ? left : BLOCK;
            if (convert)
                convert(at_col(&args->dst, r, begin), at_col(&args->src, r, begin), n);
            else
                memcpy(at_col(&args->dst, r, begin), at_col(&args->src, r, begin),
                       (size_t)n * size);
        }
}

/* n copies of a value: what is there already, again and again */
static void fill_block(char *to, const char *value, size_t size, int64_t n)
{
    const size_t bytes = (size_t)n * size;
    memcpy(to, value, size);
    for (size_t have = size; have < bytes; have *= 2)
        memcpy(to + have, to, have < bytes - have ? have : bytes - have);
}

void cpu_fill(struct s2s_queue *queue, const struct s2s_k_fill *args)
{
    const size_t size = s2s_dtype_size(args->dst.dtype);
    const int64_t n_blocks = cpu_ceil_div(args->cols, BLOCK);
    char value[8];
    convert_fn *convert = converts[type_idx(S2S_F64)][type_idx(args->dst.dtype)];
    if (convert)
        convert(value, &args->value, 1);
    else
        memcpy(value, &args->value, sizeof value);
#pragma omp parallel for collapse(2) num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        for (int64_t b = 0; b < n_blocks; b++) {
            const int64_t begin = b * BLOCK, left = args->cols - begin;
            fill_block(at_col(&args->dst, r, begin), value, size, left < BLOCK ? left : BLOCK);
        }
}
