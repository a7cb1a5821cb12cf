/*
 * The products of attention in BF16, summed in fp32: with the library's, which read keys and values
 * where they are; a step of 50 million parameters is a tenth faster than with widened copies
 * (measured on Zen 4).
 */
#include "kernels/cpu/attention_bf16.h"

static void *begin_of(const struct cpu_att_part *part, int64_t row)
{
    return cpu_from(cpu_any_row(part->mat, part->row + row), part->col, cpu_is_bf16(part->mat));
}

/* Rows from `from` on of a part, and zeros up to `to` rows. */
static void copy_rows(uint16_t *rows, const struct cpu_att_part *part, int64_t from, int64_t to)
{
    const int64_t n = part->n - from;
    for (int64_t i = 0; i < n; i++)
        memcpy(rows + i * part->dim, begin_of(part, from + i), (size_t)part->dim * sizeof *rows);
    memset(rows + n * part->dim, 0, (size_t)((to - n) * part->dim) * sizeof *rows);
}

static int64_t whole_steps(int64_t n)
{
    return n / CPU_ATT_STEP * CPU_ATT_STEP;
}

static struct s2s_mat mat(const void *data, int64_t stride, enum s2s_dtype dtype)
{
    return (struct s2s_mat){(void *)data, stride, dtype};
}

void cpu_att_take(uint16_t *rows, int64_t m, const struct cpu_att_part *part)
{
    copy_rows(rows, part, 0, m);
}

void cpu_att_times_keys(float *s, int64_t ld, int64_t m, const uint16_t *x,
                        const struct cpu_att_part *y, uint16_t *tail)
{
    const int64_t whole = whole_steps(y->n);
    struct s2s_k_gemm g = {.a = mat(x, y->dim, S2S_BF16),
                           .b = mat(begin_of(y, 0), y->mat->stride, S2S_BF16),
                           .c = mat(s, ld, S2S_F32),
                           .m = m,
                           .n = whole,
                           .k = y->dim,
                           .trans_b = true,
                           .alpha = 1};
    if (whole > 0)
        cpu_bgemm(&g);
    if (y->n == whole)
        return;
    copy_rows(tail, y, whole, CPU_ATT_STEP);
    g.b = mat(tail, y->dim, S2S_BF16);
    g.c = mat(s + whole, ld, S2S_F32);
    g.n = CPU_ATT_STEP;
    cpu_bgemm(&g);
}

void cpu_att_times_values(float *o, int64_t m, const uint16_t *p, int64_t ld,
                          const struct cpu_att_part *y, uint16_t *tail)
{
    const int64_t whole = whole_steps(y->n);
    struct s2s_k_gemm g = {.a = mat(p, ld, S2S_BF16),
                           .b = mat(begin_of(y, 0), y->mat->stride, S2S_BF16),
                           .c = mat(o, y->dim, S2S_F32),
                           .m = m,
                           .n = y->dim,
                           .k = whole,
                           .alpha = 1};
    if (whole > 0)
        cpu_bgemm(&g);
    if (y->n == whole)
        return;
    copy_rows(tail, y, whole, CPU_ATT_STEP);
    g.a = mat(p + whole, ld, S2S_BF16);
    g.b = mat(tail, y->dim, S2S_BF16);
    g.k = CPU_ATT_STEP;
    g.accumulate = whole > 0;
    cpu_bgemm(&g);
}

void cpu_att_add_columns(const struct cpu_att_part *part, const uint16_t *p, int64_t ld, int64_t m,
                         const uint16_t *x, float *sum)
{
    const int64_t whole = whole_steps(part->n);
    struct s2s_k_gemm g = {.a = mat(p, ld, S2S_BF16),
                           .b = mat(x, part->dim, S2S_BF16),
                           .c = mat(begin_of(part, 0), part->mat->stride, S2S_F32),
                           .m = whole,
                           .n = part->dim,
                           .k = m,
                           .trans_a = true,
                           .accumulate = true,
                           .alpha = 1};
    if (whole > 0)
        cpu_bgemm(&g);
    if (part->n == whole)
        return;
    g.a = mat(p + whole, ld, S2S_BF16);
    g.c = mat(sum, part->dim, S2S_F32);
    g.m = CPU_ATT_STEP;
    g.accumulate = false;
    cpu_bgemm(&g);
    for (int64_t i = whole; i < part->n; i++) {
        float *row = begin_of(part, i), *from = sum + (i - whole) * part->dim;
#pragma omp simd
        for (int64_t d = 0; d < part->dim; d++)
            row[d] += from[d];
    }
}
