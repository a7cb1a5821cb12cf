/*
 * What the tests of kernels share: values, comparison with a reference in double, every table. A
 * test keeps its numbers in host memory; mat, vec, on and in give the device's copy of it for the
 * arguments of a call, and done brings back what the call wrote.
 */
#ifndef KERNEL_TEST_H
#define KERNEL_TEST_H

#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "tests/unit/kernels/guard_table.h"

/* The tables that run the same cases. */
static const struct s2s_kernels *const tables[] = {&s2s_kernels_cpu, &guard_table};
enum { N_TABLES = sizeof tables / sizeof *tables };

/* The one under test, and its queue. */
static const struct s2s_kernels *k;
static struct s2s_queue queue;

/* ---- the device's copies ---- */

struct mirror {
    const char *host;
    char *device;
    size_t bytes;
    bool is_read_only;
};
static struct mirror mirrors[64];
static int n_mirrors;

static inline void *mirror(const void *host, size_t bytes, bool is_read_only)
{
    const char *at = host;
    for (int i = 0; host && i < n_mirrors; i++)
        if (at >= mirrors[i].host && at + bytes <= mirrors[i].host + mirrors[i].bytes)
            return mirrors[i].device + (at - mirrors[i].host);
    assert_true(n_mirrors < (int)(sizeof mirrors / sizeof *mirrors));
    struct mirror *m = &mirrors[n_mirrors++];
    *m = (struct mirror){at, k->alloc(&queue, bytes), bytes, is_read_only};
    assert_non_null(m->device);
    assert_int_equal((uintptr_t)m->device % 256, 0);
    k->copy_in_async(&queue, m->device, host, host ? bytes : 0);
    return m->device;
}

/* The copy of `bytes` at host, which done brings back; of memory that only is read. */
static inline void *on(void *host, size_t bytes)
{
    return mirror(host, bytes, false);
}

static inline void *in(const void *host, size_t bytes)
{
    return mirror(host, bytes, true);
}

/* Of a buffer of values or malloc, whole; NULL stays NULL. */
static inline void *vec(void *host)
{
    return host ? on(host, malloc_usable_size(host)) : NULL;
}

static inline struct s2s_mat mat(float *data, int64_t stride)
{
    return (struct s2s_mat){vec(data), stride, S2S_F32};
}

/* Workspace of this size, full of NaN; it goes with done. */
static inline void *work(size_t bytes)
{
    char *nan = s2s_xmalloc(bytes + 1);
    memset(nan, 0xff, bytes);
    void *ptr = mirror(NULL, bytes, true);
    k->copy_in(&queue, ptr, nan, bytes);
    free(nan);
    return ptr;
}

/* After a call: its outputs in host memory, its inputs unchanged, the copies gone. */
static inline void done(void)
{
    k->sync(&queue);
    assert_int_equal(queue.status, 0);
    while (n_mirrors > 0) {
        struct mirror *m = &mirrors[--n_mirrors];
        char *now = m->is_read_only ? s2s_xmalloc(m->bytes + 1) : (char *)m->host;
        if (m->host)
            k->copy_out(&queue, now, m->device, m->bytes);
        if (m->host && m->is_read_only)
            assert_memory_equal(now, m->host, m->bytes);
        if (m->is_read_only)
            free(now);
        k->free(&queue, m->device);
    }
}

/* ---- values ---- */

/* Normal values [rows, stride], NaN in the gaps between rows: nobody may read them. */
static inline float *values(int64_t rows, int64_t cols, int64_t stride, uint64_t key)
{
    float *x = s2s_xmalloc((size_t)(rows * stride + 1) * sizeof *x);
    for (int64_t i = 0; i < rows * stride + 1; i++)
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
            if (x != y && !(fabs(x - y) <= tolerance * (1 + fabs(y))) && n_bad++ < 10)
                print_error("%s[%lld, %lld] = %.9g, expected %.9g\n", what, (long long)r,
                            (long long)c, x, y);
        }
        for (int64_t c = cols; c < stride; c++)
            if (!isnan(got[r * stride + c]) && n_bad++ < 10)
                print_error("%s: row %lld was written past its end\n", what, (long long)r);
    }
    assert_int_equal(n_bad, 0);
}

/* ---- running ---- */

/* The tests once a table, each in a queue of its own; the number of failures. */
#define run_on_tables(tests) run_tests_on_tables(tests, sizeof tests / sizeof *tests)
static inline int run_tests_on_tables(const struct CMUnitTest *tests, size_t n)
{
    int n_failed = 0;
    for (int t = 0; t < N_TABLES; t++) {
        k = tables[t];
        assert_int_equal(k->open(&queue, 0), 0);
        n_mirrors = 0;
        n_failed += _cmocka_run_group_tests(k->name, tests, n, NULL, NULL);
        k->close(&queue);
    }
    return n_failed;
}

#endif
