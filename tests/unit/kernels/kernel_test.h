/* What the tests of kernels share: values, comparison with a reference in double, every table. */
#ifndef KERNEL_TEST_H
#define KERNEL_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"

/* The tables that run the same cases. */
static const struct s2s_kernels *const tables[] = {&s2s_kernels_cpu};
enum { N_TABLES = sizeof tables / sizeof *tables };

static struct s2s_queue queue = {.lanes = 1};

/* Normal values [rows, stride], NaN in the gaps between rows: nobody may read them. */
static inline float *values(int64_t rows, int64_t cols, int64_t stride, uint64_t key)
{
    float *x = s2s_xmalloc((size_t)(rows * stride + 1) * sizeof *x);
    for (int64_t i = 0; i < rows * stride; i++)
        x[i] = NAN;
    for (int64_t r = 0; r < rows; r++)
        s2s_rng_fill_normal(x + r * stride, (size_t)cols, key, (uint64_t)(r * cols), 0, 1);
    return x;
}

/* Every element within tolerance times (1 + its reference's size); gaps must still be NaN. */
static inline void close_to(const char *what, const float *got, const double *want, int64_t rows,
                            int64_t cols, int64_t stride, double tolerance)
{
    int n_bad = 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            double x = got[r * stride + c], y = want[r * cols + c];
            if (!(fabs(x - y) <= tolerance * (1 + fabs(y))) && n_bad++ < 10)
                print_error("%s[%lld, %lld] = %.9g, expected %.9g\n", what, (long long)r,
                            (long long)c, x, y);
        }
        for (int64_t c = cols; c < stride; c++)
            if (!isnan(got[r * stride + c]) && n_bad++ < 10)
                print_error("%s: row %lld was written past its end\n", what, (long long)r);
    }
    assert_int_equal(n_bad, 0);
}

static inline struct s2s_mat mat(float *data, int64_t stride)
{
    return (struct s2s_mat){data, stride, S2S_F32};
}

#endif
