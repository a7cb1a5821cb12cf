/*
 * What the files of the CPU table share. Every function is one entry of struct s2s_kernels.
 *
 * A build may have the kernels for several instruction levels (CPU_LEVELS of the Makefile): each of
 * their files is then compiled once a level, with CPU_LEVEL as the level's name. C has one name for
 * a function and the linker one for each level. table.c, levels.c, memory.c and gemm_*.c are for
 * all levels.
 */
#ifndef S2S_KERNELS_CPU_H
#define S2S_KERNELS_CPU_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "lib/base/half.h"

/* After a declaration of what there is once a level: its name for the linker. */
#ifdef CPU_LEVEL
#define CPU_SYMBOL(name) __asm__("cpu_" #name "_" CPU_LEVEL)
#else
#define CPU_SYMBOL(name)
#endif

/* Below this many elements a parallel region costs more than it gains. */
enum { CPU_PARALLEL_MIN = 16384 };
/* Rows that one partial sum covers: a reduction over rows is blocks of this, then their sum. */
enum { CPU_ROW_BLOCK = 64 };

static inline float *cpu_row(const struct s2s_mat *mat, int64_t row)
{
    return (float *)mat->data + row * mat->stride;
}

/*
 * Matrices of BF16 take the loops of F32: an element becomes fp32 where it is read and is rounded
 * once where it is written. A loop is a CPU_INLINE function that is told `bf16` as a constant, so
 * that there are two loops, each without branches; rows are void pointers in it.
 */
#define CPU_INLINE static inline __attribute__((always_inline))

CPU_INLINE float cpu_load(const void *row, int64_t i, bool bf16)
{
    return bf16 ? s2s_f32_of_bits(s2s_bits_bf16_to_f32(((const uint16_t *)row)[i]))
                : ((const float *)row)[i];
}

CPU_INLINE void cpu_store(void *row, int64_t i, float x, bool bf16)
{
    if (bf16)
        ((uint16_t *)row)[i] = s2s_bits_f32_to_bf16(s2s_bits_of_f32(x));
    else
        ((float *)row)[i] = x;
}

/* The part of a row from element i on. */
CPU_INLINE void *cpu_from(const void *row, int64_t i, bool bf16)
{
    return (char *)row + i * (bf16 ? 2 : 4);
}

static inline bool cpu_is_bf16(const struct s2s_mat *mat)
{
    return mat->dtype == S2S_BF16;
}

static inline void *cpu_any_row(const struct s2s_mat *mat, int64_t row)
{
    return cpu_from(mat->data, row * mat->stride, cpu_is_bf16(mat));
}

/* The matrix `at` elements further on. */
static inline struct s2s_mat cpu_moved(struct s2s_mat mat, int64_t at)
{
    mat.data = cpu_from(mat.data, at, cpu_is_bf16(&mat));
    return mat;
}

static inline int64_t cpu_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/*
 * exp in fp32, at most 0.71 ulp and 0.25 on average (an exact rounding has 0.5 and 0.25), written
 * so that a loop over it becomes vector code. Range reduction by ln 2 in two parts, a polynomial of
 * degree 6 (Cephes' coefficients) whose 1 + r is summed in two parts too, the exponent added to
 * the bits. Underflows to 0 below -87.3, saturates at 88.
 */
static inline float cpu_exp(float x)
{
    /* written so that a NaN is clamped too: it has no integer part */
    float clamped = x > -87.3f ? (x < 88.0f ? x : 88.0f) : -87.3f;
    float shifted = clamped * 1.44269504f + 12582912.0f; /* rounds to an integer in the low bits */
    float n = shifted - 12582912.0f;
    float high = clamped - n * 0.693359375f, low = n * 2.12194440e-4f; /* high is exact */
    float r = high + low;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float sum = 1.0f + high, lost = high - (sum - 1.0f);
    p = sum + (p * (r * r) + low + lost);
    int32_t bits = (int32_t)n * (1 << 23);
    union {
        float f;
        int32_t i;
    } u = {.f = p};
    u.i += bits;
    float y = x < -87.3f ? 0.0f : u.f;
    return x != x ? x : y;
}

static inline float cpu_sigmoid(float x)
{
    return 1.0f / (1.0f + cpu_exp(-x));
}

static inline float cpu_tanh(float x)
{
    return 1.0f - 2.0f / (1.0f + cpu_exp(2.0f * x));
}

/*
 * One thread's product, row-major, no parallelism of its own inside an OpenMP region:
 * c[m,n] = alpha op(a) op(b) + beta c. From gemm_dnnl.c or gemm_openblas.c.
 */
void cpu_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
               int64_t ldc);

/* Whether this machine multiplies BF16 itself: else cpu_bgemm must not be called. */
bool cpu_has_bgemm(void);
/* Before the first product; more than once does no harm. */
void cpu_gemm_open(void);
/*
 * One thread's product of BF16 matrices, accumulated in fp32, rounded once: c[m,n] = op(a) op(b) +
 * bias (+ c), of c BF16 or F32.
 */
void cpu_bgemm(const struct s2s_k_gemm *args);
/*
 * Products of many rows with one b, of a and c without gaps between their rows, and a as it is:
 * room for b in the library's own order, which the calling thread keeps until its next one (NULL:
 * the library has no such order for these sizes); the columns n0 .. n0 + n of b, put there by any
 * thread, n0 a multiple of 64; and one thread's product with them, of any m, which costs a fraction
 * of a millisecond the first time that a thread meets its sizes.
 */
struct cpu_room;
struct cpu_room *cpu_bgemm_room(const struct s2s_k_gemm *args);
void cpu_bgemm_order(const struct s2s_k_gemm *args, struct cpu_room *room, int64_t n0, int64_t n);
void cpu_bgemm_ordered(const struct s2s_k_gemm *args, const struct cpu_room *room);

/* Parts of a product of BF16 (gemm_bf16.c): how many there are each way, and one of them. */
void cpu_bf16_blocks(const struct s2s_k_gemm *args, int64_t *n_m, int64_t *n_n)
    CPU_SYMBOL(bf16_blocks);
void cpu_bf16_block(const struct s2s_k_gemm *args, int64_t i, int64_t j) CPU_SYMBOL(bf16_block);
/* The whole of a product of BF16 whose b many rows meet; false: it is none. */
bool cpu_bf16_of_many_rows(struct s2s_queue *queue, const struct s2s_k_gemm *args)
    CPU_SYMBOL(bf16_of_many_rows);
/* c of rows m0 .. m1, columns n0 .. n1 before a product adds to it: bias, or 0, and what is there.
 */
void cpu_gemm_start(const struct s2s_k_gemm *args, int64_t m0, int64_t m1, int64_t n0, int64_t n1)
    CPU_SYMBOL(gemm_start);

/*
 * Rows of a part of a matrix as fp32, for products: row .. row + n, columns col .. col + cols.
 * Where they stand if they are F32, else a copy in room [n * cols]. *ld: between rows.
 */
const float *cpu_widen(const struct s2s_mat *mat, int64_t row, int64_t col, int64_t n, int64_t cols,
                       float *room, int64_t *ld) CPU_SYMBOL(widen);
/* The part (+)= rows of fp32, ld apart. */
void cpu_narrow(const struct s2s_mat *mat, int64_t row, int64_t col, int64_t n, int64_t cols,
                const float *from, int64_t ld, bool accumulate) CPU_SYMBOL(narrow);
/* The part = 0. */
void cpu_zero_part(const struct s2s_mat *mat, int64_t row, int64_t col, int64_t n, int64_t cols)
    CPU_SYMBOL(zero_part);

/* The sequence that holds packed row `row`, which must be one of them. */
static inline int64_t cpu_find_seq(const int32_t *cu, int64_t n_seqs, int64_t row)
{
    int64_t lo = 0, hi = n_seqs - 1;
    while (lo < hi) {
        int64_t mid = (lo + hi + 1) / 2;
        if (cu[mid] <= row)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* alloc and free of the table (memory.c). */
void *cpu_alloc(struct s2s_queue *queue, size_t bytes);
void cpu_free(struct s2s_queue *queue, void *ptr);

/* out[cols] (+)= the sum of n_partials vectors, in order */
void cpu_add_partials(float *out, const float *partial, int64_t n_partials, int64_t cols,
                      bool accumulate) CPU_SYMBOL(add_partials);

#define PLAIN(name, suffix)
#define WORKSPACE(name, suffix) \
    size_t cpu_##name##_workspace(const struct s2s_queue *queue, \
                                  const struct s2s_k_##suffix *args) CPU_SYMBOL(name##_workspace);
#define X(name, suffix, kind, mats) \
    void cpu_##name(struct s2s_queue *queue, const struct s2s_k_##suffix *args) CPU_SYMBOL(name); \
    kind(name, suffix)
S2S_KERNELS(X)
#undef X
#undef PLAIN
#undef WORKSPACE

/* The kernels of one level (entries.c): the members of the list alone. */
extern const struct s2s_kernels cpu_entries CPU_SYMBOL(entries);

/* ---- the levels of this build (levels.c) ---- */

/* The lowest one. */
const struct s2s_kernels *cpu_lowest(void);

/* Lends in *entries the best level that this machine has, or the one that S2S_CPU_LEVEL names: 0,
 * or a status for cpu_level_text, which is static and NULL for others. */
int cpu_choose(const struct s2s_kernels **entries);
const char *cpu_level_text(int status);

#endif
