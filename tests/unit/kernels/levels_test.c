/* The instruction levels of the CPU table: which of them a queue gets, and what is refused. */
#include "tests/unit/kernels/kernel_test.h"

/* All that a build may have, the lowest first. */
static const char *const names[] = {"native", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};
enum { N_NAMES = sizeof names / sizeof *names };

static char *from_outside; /* the variable as the test found it */

static int remember(void **state)
{
    const char *level = getenv("S2S_CPU_LEVEL");
    from_outside = level ? s2s_xstrdup(level) : NULL;
    return 0;
}

static int restore(void **state)
{
    if (from_outside)
        setenv("S2S_CPU_LEVEL", from_outside, 1);
    else
        unsetenv("S2S_CPU_LEVEL");
    free(from_outside);
    return 0;
}

/* Opens a queue with this level named, NULL for none, and gives the status. */
static int open_at(struct s2s_queue *at, const char *level)
{
    if (level)
        setenv("S2S_CPU_LEVEL", level, 1);
    else
        unsetenv("S2S_CPU_LEVEL");
    return s2s_kernels_cpu.open(at, 0);
}

static void a_queue_gets_the_best_level_unless_one_is_named(void **state)
{
    struct s2s_queue best, empty, last = {0};
    assert_int_equal(open_at(&best, NULL), 0);
    assert_int_equal(open_at(&empty, ""), 0);
    for (int i = 0; i < N_NAMES; i++) {
        struct s2s_queue at;
        if (open_at(&at, names[i]) != 0)
            continue;
        assert_ptr_not_equal(at.handle, last.handle);
        last = at;
    }
    assert_non_null(last.handle);
    assert_ptr_equal(best.handle, last.handle);
    assert_ptr_equal(empty.handle, last.handle);
}

enum { N_PRODUCTS = 64 };

/* Whether the compiler fuses products and sums in this file, which a build of one level compiles as
 * it does the kernels. */
static __attribute__((noinline)) bool fuses_here(const float *a, float alpha, float beta)
{
    float y[N_PRODUCTS];
    for (int i = 0; i < N_PRODUCTS; i++)
        y[i] = alpha * a[i] + beta * a[i];
    return y[0] != 0;
}

/* a a - a a is 0 where each product is rounded, and its rounding error where one is fused with the
 * sum, which x86-64-v3 can and the levels below cannot. */
static void a_named_level_runs_its_own_instructions(void **state)
{
    int n_run = 0;
    for (int i = 0; i < N_NAMES; i++) {
        struct s2s_queue at;
        float a[N_PRODUCTS], y[N_PRODUCTS];
        if (open_at(&at, names[i]) != 0)
            continue;
        for (int j = 0; j < N_PRODUCTS; j++)
            a[j] = 1 + 0x1p-13f;
        const bool fuses = i == 0 ? fuses_here(a, a[0], -a[0]) : strcmp(names[i], "x86-64-v3") >= 0;
        s2s_kernels_cpu.axpby(&at, &(struct s2s_k_axpby){.rows = 1,
                                                         .cols = N_PRODUCTS,
                                                         .alpha = a[0],
                                                         .beta = -a[0],
                                                         .x = {a, N_PRODUCTS, S2S_F32},
                                                         .z = {a, N_PRODUCTS, S2S_F32},
                                                         .y = {y, N_PRODUCTS, S2S_F32}});
        for (int j = 0; j < N_PRODUCTS; j++)
            assert_int_equal(y[j] != 0, fuses);
        n_run++;
    }
    assert_true(n_run > 0);
}

static void a_level_that_the_build_has_not_is_refused_with_its_list(void **state)
{
    static const char *const wrong[] = {"x86-64-v9", "x86-64-v", "native ", "v3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct s2s_queue at;
        const int status = open_at(&at, wrong[i]);
        assert_int_not_equal(status, 0);
        const char *text = s2s_kernels_cpu.status_text(status);
        assert_non_null(strstr(text, "S2S_CPU_LEVEL names no instruction level of this build"));
        for (int n = 0; n < N_NAMES; n++)
            if (open_at(&at, names[n]) == 0)
                assert_non_null(strstr(text, names[n]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_queue_gets_the_best_level_unless_one_is_named),
        cmocka_unit_test(a_named_level_runs_its_own_instructions),
        cmocka_unit_test(a_level_that_the_build_has_not_is_refused_with_its_list),
    };
    return cmocka_run_group_tests_name("levels", tests, remember, restore);
}
