/*
 * Products of attention in BF16: a block of queries with keys and values as they lie in memory. The
 * library makes code for each combination of sizes, so blocks have a multiple m of ROWS rows, zeros
 * behind those of the span, and keys are taken STEP at a time, the last ones from a copy with zeros
 * behind it.
 */
#ifndef S2S_KERNELS_CPU_ATTENTION_BF16_H
#define S2S_KERNELS_CPU_ATTENTION_BF16_H

#include "kernels/cpu/cpu.h"

enum { CPU_ATT_ROWS = 16, CPU_ATT_STEP = 64 };

/* Where the operands of a head are: rows from `row` on, `n` of them, dim columns from `col` on. */
struct cpu_att_part {
    const struct s2s_mat *mat;
    int64_t row, col, n, dim;
};

/* A part as the m rows [m, dim] of a block. */
void cpu_att_take(uint16_t *rows, int64_t m, const struct cpu_att_part *part) CPU_SYMBOL(att_take);
/* s [m, n up to a whole STEP] = x y^T, of x [m, dim]; tail [STEP, dim] is scratch */
void cpu_att_times_keys(float *s, int64_t ld, int64_t m, const uint16_t *x,
                        const struct cpu_att_part *y, uint16_t *tail) CPU_SYMBOL(att_times_keys);
/* o [m, dim] = p y, of p [m, n], zeros behind its n columns up to a whole STEP */
void cpu_att_times_values(float *o, int64_t m, const uint16_t *p, int64_t ld,
                          const struct cpu_att_part *y, uint16_t *tail)
    CPU_SYMBOL(att_times_values);
/* part (F32) += p^T x, of x [m, dim]; sum [STEP, dim] is scratch */
void cpu_att_add_columns(const struct cpu_att_part *part, const uint16_t *p, int64_t ld, int64_t m,
                         const uint16_t *x, float *sum) CPU_SYMBOL(att_add_columns);

#endif
