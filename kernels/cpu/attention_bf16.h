/*
 * Products of attention in BF16: a block of queries with keys and values, all as they lie in
 * memory.
 */
#ifndef S2S_KERNELS_CPU_ATTENTION_BF16_H
#define S2S_KERNELS_CPU_ATTENTION_BF16_H

#include "kernels/cpu/cpu.h"

/* Where the operands of a head are: rows from `row` on, `n` of them, dim columns from `col` on. */
struct cpu_att_part {
    const struct s2s_mat *mat;
    int64_t row, col, n, dim;
};

/* s [x->n, y->n] = x y^T */
void cpu_att_times_keys(float *s, int64_t ld, const struct cpu_att_part *x,
                        const struct cpu_att_part *y) CPU_SYMBOL(att_times_keys);
/* o [m, dim] = p y, of p [m, y->n] */
void cpu_att_times_values(float *o, int64_t m, const uint16_t *p, int64_t ld,
                          const struct cpu_att_part *y) CPU_SYMBOL(att_times_values);
/* part (F32) += p^T x, of p [x->n, part->n] */
void cpu_att_add_columns(const struct cpu_att_part *part, const uint16_t *p, int64_t ld,
                         const struct cpu_att_part *x) CPU_SYMBOL(att_add_columns);

#endif
