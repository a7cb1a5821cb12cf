/* Parts of matrices of BF16 as fp32 and back, for kernels whose products are of fp32. */
#include "kernels/cpu/cpu.h"

const float *cpu_widen(const struct s2s_mat *mat, int64_t row, int64_t col, int64_t n, int64_t cols,
                       float *room, int64_t *ld)
{
    if (!cpu_is_bf16(mat)) {
        *ld = mat->stride;
        return cpu_row(mat, row) + col;
    }
    *ld = cols;
    for (int64_t r = 0; r < n; r++) {
        const void *from = cpu_from(cpu_any_row(mat, row + r), col, true);
        float *to = room + r * cols;
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            to[i] = cpu_load(from, i, true);
    }
    return room;
}

CPU_INLINE void narrow_row(void *to, const float *from, int64_t n, bool accumulate, bool bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        cpu_store(to, i, (accumulate ? cpu_load(to, i, bf16) : 0.0f) + from[i], bf16);
}

void cpu_narrow(const struct s2s_mat *mat, int64_t row, int64_t col, int64_t n, int64_t cols,
                const float *from, int64_t ld, bool accumulate)
{
    const bool bf16 = cpu_is_bf16(mat);
    for (int64_t r = 0; r < n; r++) {
        void *to = cpu_from(cpu_any_row(mat, row + r), col, bf16);
        if (bf16 && accumulate)
            narrow_row(to, from + r * ld, cols, true, true);
        else if (bf16)
            narrow_row(to, from + r * ld, cols, false, true);
        else
            narrow_row(to, from + r * ld, cols, accumulate, false);
    }
}

void cpu_zero_part(const struct s2s_mat *mat, int64_t row, int64_t col, int64_t n, int64_t cols)
{
    const bool bf16 = cpu_is_bf16(mat);
    for (int64_t r = row; mat->data && r < row + n; r++)
        memset(cpu_from(cpu_any_row(mat, r), col, bf16), 0,
               (size_t)cols * s2s_dtype_size(mat->dtype));
}
