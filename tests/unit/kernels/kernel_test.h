/*
 * What the tests of kernels share: values, comparison with a reference in double, every table. A
 * test keeps its numbers in host memory; mat, vec, on and in give the device's copy of it for the
 * arguments of a call, and done brings back what the call wrote.
 */
#ifndef KERNEL_TEST_H
#define KERNEL_TEST_H

#include <dlfcn.h>
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

/*
 * The tables that run the same cases: those that S2S_TEST_TABLES names, or all that need no device.
 * emu is the GPU's table with its kernels on the CPU, cuda the same on a GPU.
 *
 * One place says how far a table may be from the reference: the tolerance that a test states is
 * what sums in fp32 deserve, times `slack`; with matrices of bf16 (inputs are rounded before the
 * reference sees them) it is the roundings of results and of factors, of 2^-9 each.
 */
static const struct test_table {
    const char *name, *library; /* NULL: in this program */
    const struct s2s_kernels *kernels;
    double slack;
    bool by_default;
} tables[] = {{"cpu", NULL, &s2s_kernels_cpu, 1, true},
              {"guard", NULL, &guard_table, 1, true},
              {"emu", "libs2s-emu.so", NULL, 10, true},
              {"cuda", "libs2s-cuda.so", NULL, 10, false}};
enum { N_TABLES = sizeof tables / sizeof *tables };
#define BF16_TOLERANCE 1e-2

/* Whether a kernel of the table under test is not there yet; NULL: all are. */
static bool (*is_absent)(const char *name);

/* The one under test, its queue, how exact it is, and the type of its matrices. */
static const struct s2s_kernels *k;
static struct s2s_queue queue;
static double slack = 1;
static bool is_bf16;

/* ---- the device's copies ---- */

struct mirror {
    const char *host;
    char *device;
    size_t bytes; /* of the host's */
    bool is_read_only, is_bf16;
};
static struct mirror mirrors[64];
static int n_mirrors;

/* Bytes at the device of so many at the host. */
static inline size_t there(bool bf16, size_t bytes)
{
    return bf16 ? bytes / 2 : bytes;
}

static inline void *mirror(const void *host, size_t bytes, bool is_read_only, bool bf16)
{
    const char *at = host;
    for (int i = 0; host && i < n_mirrors; i++)
        if (at >= mirrors[i].host && at + bytes <= mirrors[i].host + mirrors[i].bytes) {
            assert_true(mirrors[i].is_bf16 == bf16);
            return mirrors[i].device + there(bf16, (size_t)(at - mirrors[i].host));
        }
    assert_true(n_mirrors < (int)(sizeof mirrors / sizeof *mirrors));
    struct mirror *m = &mirrors[n_mirrors++];
    const size_t size = there(bf16, bytes);
    *m = (struct mirror){at, k->alloc(&queue, size), bytes, is_read_only, bf16};
    assert_non_null(m->device);
    assert_int_equal((uintptr_t)m->device % 256, 0);
    uint16_t *rounded = bf16 ? s2s_xmalloc(size + 1) : NULL;
    for (size_t i = 0; rounded && i < size / 2; i++)
        rounded[i] = s2s_f32_to_bf16(((const float *)host)[i]);
    k->copy_in(&queue, m->device, rounded ? (const void *)rounded : host, host ? size : 0);
    free(rounded);
    return m->device;
}

/* The copy of `bytes` at host, which done brings back; of memory that only is read. */
static inline void *on(void *host, size_t bytes)
{
    return mirror(host, bytes, false, false);
}

static inline void *in(const void *host, size_t bytes)
{
    return mirror(host, bytes, true, false);
}

/* Of a buffer of values or malloc, whole; NULL stays NULL. */
static inline void *vec(void *host)
{
    return host ? on(host, malloc_usable_size(host)) : NULL;
}

/* A matrix of the type under test. */
static inline struct s2s_mat mat(float *data, int64_t stride)
{
    void *at = data ? mirror(data, malloc_usable_size(data) / 4 * 4, false, is_bf16) : NULL;
    return (struct s2s_mat){at, stride, is_bf16 ? S2S_BF16 : S2S_F32};
}

/* A matrix that is F32 beside those of the type under test. */
static inline struct s2s_mat wide_mat(float *data, int64_t stride)
{
    return (struct s2s_mat){vec(data), stride, S2S_F32};
}

/* Workspace of this size, full of NaN; it goes with done. */
static inline void *work(size_t bytes)
{
    char *nan = s2s_xmalloc(bytes + 1);
    memset(nan, 0xff, bytes);
    void *ptr = mirror(NULL, bytes, true, false);
    k->copy_in(&queue, ptr, nan, bytes);
    free(nan);
    return ptr;
}

static inline void bring_back(const struct mirror *m)
{
    const size_t size = there(m->is_bf16, m->bytes);
    char *now = s2s_xmalloc(size + 1);
    k->copy_out(&queue, now, m->device, size);
    if (m->is_read_only)
        assert_memory_equal(now, m->host, m->bytes);
    else if (!m->is_bf16)
        memcpy((char *)m->host, now, size);
    for (size_t i = 0; m->is_bf16 && i < size / 2; i++)
        ((float *)m->host)[i] = s2s_bf16_to_f32(((uint16_t *)(void *)now)[i]);
    free(now);
}

static inline void forget_mirrors(void)
{
    while (n_mirrors > 0)
        k->free(&queue, mirrors[--n_mirrors].device);
}

/* A test of a kernel that the table has not got yet is skipped: it says which it needs before it
 * allocates anything. */
static inline void needs(const char *name)
{
    if (!is_absent || !is_absent(name))
        return;
    print_message("%s: %s is not there yet\n", k->name, name);
    skip();
}

/* Whether of problems that take long only some are tried: S2S_LONG is not set. */
static inline bool is_short(void)
{
    const char *all = getenv("S2S_LONG");
    return !(all && *all);
}

/* On the emulator, where large problems take a second each, one in `of` is tried then. */
static inline bool is_left_out(size_t i, size_t of)
{
    return strcmp(k->name, "emu") == 0 && is_short() && i % of != 0;
}

/* After a call: its outputs in host memory, its inputs unchanged, the copies gone. */
static inline void done(void)
{
    k->sync(&queue);
    const int status = queue.status;
    queue.status = 0;
    if (status)
        fail_msg("%s", k->status_text(status));
    for (int i = 0; i < n_mirrors; i++)
        if (mirrors[i].host)
            bring_back(&mirrors[i]);
    forget_mirrors();
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
    for (int64_t i = 0; is_bf16 && i < rows * stride; i++)
        x[i] = s2s_bf16_to_f32(s2s_f32_to_bf16(x[i]));
    return x;
}

/* What is allowed of the table under test, where fp32 on the CPU is allowed so much. */
static inline double allowed(double tolerance)
{
    return is_bf16 ? fmax(tolerance, BF16_TOLERANCE) : tolerance * slack;
}

/* The largest errors that close_to has met on this table, with S2S_TEST_ERRORS set: of size 1 and
 * what is allowed so. tests/gpu/gradients.sh makes a table of them. */
static struct test_error {
    char what[24];
    double error, share; /* of what is allowed */
} errors[48];

static inline void keep_error(const char *what, double error, double tolerance)
{
    size_t i = 0;
    while (i < sizeof errors / sizeof *errors - 1 && *errors[i].what &&
           strncmp(errors[i].what, what, sizeof errors->what - 1) != 0)
        i++;
    if (!*errors[i].what)
        strncpy(errors[i].what, what, sizeof errors->what - 1);
    errors[i].error = fmax(errors[i].error, error);
    errors[i].share = fmax(errors[i].share, tolerance > 0 ? error / tolerance : 0);
}

static inline void print_errors(const char *table)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors && *errors[i].what; i++)
        printf("error %s %s %.1e %.2f %s\n", table, is_bf16 ? "bf16" : "f32", errors[i].error,
               errors[i].share, errors[i].what);
    memset(errors, 0, sizeof errors);
}

/* Every element within the allowed tolerance times (1 + its reference's size); gaps must still be
 * NaN. */
static inline void close_to(const char *what, const float *got, const double *want, int64_t rows,
                            int64_t cols, int64_t stride, double tolerance)
{
    int n_bad = 0;
    double worst = 0;
    tolerance = allowed(tolerance);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            double x = got[r * stride + c], y = want[r * cols + c];
            const double far = x == y ? 0 : fabs(x - y) / (1 + fabs(y));
            worst = isnan(far) ? INFINITY : fmax(worst, far);
            if (x != y && !(fabs(x - y) <= tolerance * (1 + fabs(y))) && n_bad++ < 10)
                print_error("%s[%lld, %lld] = %.9g, expected %.9g\n", what, (long long)r,
                            (long long)c, x, y);
        }
        for (int64_t c = cols; c < stride; c++)
            if (!isnan(got[r * stride + c]) && n_bad++ < 10)
                print_error("%s: row %lld was written past its end\n", what, (long long)r);
    }
    keep_error(what, worst, tolerance);
    assert_int_equal(n_bad, 0);
}

/* ---- dropout ---- */

/* Whether element e of a plane stays (struct s2s_draw): rows are named by their numbers. */
static inline bool stays(int64_t row, int64_t e, int64_t plane, uint64_t key, double rate)
{
    uint32_t out[4];
    s2s_rng_philox(out, (uint32_t[]){2 * (uint32_t)row, 7, (uint32_t)(e / 4), (uint32_t)plane},
                   (uint32_t[]){(uint32_t)key, (uint32_t)(key >> 32)});
    return out[e % 4] >= (uint32_t)(rate * 0x1p32);
}

/* Of n rows, on the device; good for one call. */
static inline struct s2s_draw draw_of(int64_t n, uint64_t key, float rate)
{
    static uint32_t names[2 * 4096];
    assert_true(n <= 4096);
    for (int64_t i = 0; i < n; i++) {
        names[2 * i] = 2 * (uint32_t)i;
        names[2 * i + 1] = 7;
    }
    return (struct s2s_draw){(uint32_t *)in(names, (size_t)(2 * n) * sizeof *names), key, rate};
}

/* ---- running ---- */

typedef const struct s2s_kernels *give_kernels(size_t table_bytes);

/* A table of a library must be there when its name was given, and when it is one of all. */
static inline const struct s2s_kernels *find_table(const struct test_table *table)
{
    const char *names = getenv("S2S_TEST_TABLES"), *at = names ? strstr(names, table->name) : NULL;
    const size_t n = strlen(table->name);
    if (names && *names ? !at || (at > names && at[-1] != ',') || (at[n] && at[n] != ',')
                        : !table->by_default)
        return NULL;
    is_absent = NULL;
    if (!table->library)
        return table->kernels;
    const char *path = strcmp(table->name, "cuda") == 0 ? getenv("S2S_CUDA") : NULL;
    void *lib = dlopen(path && *path ? path : table->library, RTLD_NOW | RTLD_LOCAL);
    give_kernels *give = lib ? (give_kernels *)dlsym(lib, "s2s_kernels_cuda") : NULL;
    const struct s2s_kernels *kernels = give ? give(sizeof *kernels) : NULL;
    is_absent = lib ? (bool (*)(const char *))dlsym(lib, "s2s_cuda_is_absent") : NULL;
    if (!kernels || !is_absent) {
        fprintf(stderr, "%s: %s\n", table->library, give ? "of another build" : dlerror());
        exit(1);
    }
    return kernels;
}

static inline int forget(void **state)
{
    forget_mirrors();
    return 0;
}

static inline int run_tests_on_table(const struct test_table *table, const struct s2s_kernels *of,
                                     bool bf16, const struct CMUnitTest *tests, size_t n)
{
    struct CMUnitTest own[64];
    char name[32];
    assert_true(n <= sizeof own / sizeof *own);
    for (size_t i = 0; i < n; i++) {
        own[i] = tests[i];
        own[i].teardown_func = own[i].teardown_func ? own[i].teardown_func : forget;
    }
    k = of;
    slack = table->slack;
    is_bf16 = bf16;
    n_mirrors = 0;
    const int status = k->open(&queue, 0);
    if (status) {
        fprintf(stderr, "%s: %s\n", table->name, k->status_text(status));
        exit(1);
    }
    snprintf(name, sizeof name, "%s%s", table->name, bf16 ? " bf16" : "");
    const int n_failed = _cmocka_run_group_tests(name, own, n, NULL, NULL);
    k->close(&queue);
    if (getenv("S2S_TEST_ERRORS"))
        print_errors(table->name);
    is_bf16 = false;
    return n_failed;
}

/* The tests once a table, each in a queue of its own; the number of failures. also_bf16: and once
 * more with matrices of bf16 where a table has that. */
#define run_on_tables(tests) run_tests_on_tables(tests, sizeof tests / sizeof *tests, false)
#define run_on_tables_and_types(tests) \
    run_tests_on_tables(tests, sizeof tests / sizeof *tests, true)
static inline int run_tests_on_tables(const struct CMUnitTest *tests, size_t n, bool also_bf16)
{
    int n_failed = 0;
    for (int t = 0; t < N_TABLES; t++) {
        const struct s2s_kernels *of = find_table(&tables[t]);
        if (of)
            n_failed += run_tests_on_table(&tables[t], of, false, tests, n);
        if (of && also_bf16 && of->has_bf16)
            n_failed += run_tests_on_table(&tables[t], of, true, tests, n);
    }
    return n_failed;
}

/* The tests in bf16 on the emulator as a GPU of compute capability sm / 10, where that table runs,
 * or where S2S_TEST_TABLES names it "emu-sm90"; and on a GPU where S2S_WGMMA was set. */
#define run_emulated(sm, tests) run_tests_emulated(sm, tests, sizeof tests / sizeof *tests)
static inline int run_tests_emulated(const char *sm, const struct CMUnitTest *tests, size_t n)
{
    const char *names = getenv("S2S_TEST_TABLES");
    const bool on_gpu = getenv("S2S_WGMMA") != NULL;
    char own[32];
    int n_failed = 0;
    snprintf(own, sizeof own, "emu-sm%s", sm);
    setenv("S2S_EMU_SM", sm, 1);
    setenv("S2S_WGMMA", "1", 1);
    for (int t = 0; t < N_TABLES; t++) {
        struct test_table table = tables[t];
        const bool is_emu = strcmp(table.name, "emu") == 0;
        if (!is_emu && !(on_gpu && strcmp(table.name, "cuda") == 0))
            continue;
        if (is_emu && names && strstr(names, own))
            table.name = own;
        const struct s2s_kernels *of = find_table(&table);
        if (of)
            n_failed += run_tests_on_table(&table, of, true, tests, n);
    }
    unsetenv("S2S_EMU_SM");
    unsetenv("S2S_WGMMA");
    return n_failed;
}

#endif
