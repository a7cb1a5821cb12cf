/* lib/thd/bins: the worked example, the tie rules, bin counts, and properties that any packing has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/base/pyrandom.h"
#include "lib/thd/bins.h"

static const int32_t example[] = {4, 1, 3, 2, 1, 3, 4, 5};

/* Bins as text, "[0,3][1]". */
static char *text_of(const struct s2s_bins *bins)
{
    struct s2s_buf buf = S2S_BUF_INIT;
    s2s_buf_puts(&buf, "");
    for (size_t b = 0; b < bins->n_bins; b++) {
        s2s_buf_putc(&buf, '[');
        for (size_t i = bins->begin[b]; i < bins->begin[b + 1]; i++)
            s2s_buf_printf(&buf, "%s%u", i > bins->begin[b] ? "," : "", bins->items[i]);
        s2s_buf_putc(&buf, ']');
    }
    return buf.data;
}

static void expect(const int32_t *lens, size_t n, const struct s2s_bins_options *opt,
                   const char *want)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_bins bins;
    assert_int_equal(s2s_thd_bins(&bins, lens, n, opt, &err), 0);
    char *got = text_of(&bins);
    assert_string_equal(got, want);
    free(got);
    s2s_bins_release(&bins);
}

static void worked_example(void **state)
{
    struct s2s_bins_options opt = S2S_BINS_OPTIONS_DEFAULT;
    opt.capacity = 5;
    opt.algorithm = S2S_BINS_CONCATENATIVE;
    expect(example, 8, &opt, "[0,1][2,3][4,5][6][7]");
    opt.algorithm = S2S_BINS_FFD;
    expect(example, 8, &opt, "[7][6,4][0,1][5,3][2]");
    opt.algorithm = S2S_BINS_MFFD;
    expect(example, 8, &opt, "[7][0][6][2,3][5,1,4]");
}

static void lengths_are_rounded_up_first(void **state)
{
    struct s2s_bins_options opt = S2S_BINS_OPTIONS_DEFAULT;
    const int32_t lens[] = {1, 1, 5};
    opt.capacity = 8;
    opt.multiple = 4;
    expect(lens, 3, &opt, "[2][1,0]");
}

static void few_bins_are_split_from_the_fullest(void **state)
{
    struct s2s_bins_options opt = S2S_BINS_OPTIONS_DEFAULT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_bins bins;
    opt.capacity = 5;
    opt.algorithm = S2S_BINS_CONCATENATIVE;
    opt.bins_multiple = 4; /* 5 bins become 8: the donors are 2, 1 and 0 */
    expect(example, 8, &opt, "[0][2][4][6][7][5][3][1]");
    opt.bins_multiple = 1;
    opt.min_bins = 6;
    expect(example, 8, &opt, "[0,1][2,3][4][6][7][5]");
    opt.min_bins = 9;
    assert_int_equal(s2s_thd_bins(&bins, example, 8, &opt, &err), S2S_E_RANGE);
    assert_non_null(strstr(err.text, "E_TOO_FEW"));
}

static void what_does_not_fit_is_refused(void **state)
{
    struct s2s_bins_options opt = S2S_BINS_OPTIONS_DEFAULT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_bins bins;
    opt.capacity = 4;
    assert_int_equal(s2s_thd_bins(&bins, example, 8, &opt, &err), S2S_E_RANGE);
    assert_non_null(strstr(err.text, "length 7"));
    const int32_t zero[] = {3, 0};
    opt.algorithm = S2S_BINS_MFFD;
    assert_int_equal(s2s_thd_bins(&bins, zero, 2, &opt, &err), S2S_E_RANGE);
    opt.algorithm = S2S_BINS_FFD;
    expect(zero, 2, &opt, "[0,1]");
    opt.capacity = 0;
    assert_int_equal(s2s_thd_bins(&bins, zero, 2, &opt, &err), S2S_E_RANGE);
}

/* Every item once, no bin over its capacity. */
static void check_packing(const struct s2s_bins *bins, const int32_t *lens, size_t n,
                          int64_t capacity)
{
    uint8_t *seen = s2s_xcalloc(n + 1, 1);
    for (size_t b = 0; b < bins->n_bins; b++) {
        int64_t load = 0;
        for (size_t i = bins->begin[b]; i < bins->begin[b + 1]; i++) {
            assert_true(bins->items[i] < n);
            assert_int_equal(seen[bins->items[i]]++, 0);
            load += lens[bins->items[i]];
        }
        assert_true(load <= capacity);
        assert_true(bins->begin[b + 1] > bins->begin[b]);
    }
    assert_int_equal(bins->n_items, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(seen[i], 1);
    free(seen);
}

static void large_inputs_keep_every_item(void **state)
{
    enum { N = 60000 };
    int32_t *lens = s2s_xcalloc(N, sizeof *lens);
    struct s2s_error err = S2S_ERROR_INIT;
    for (int kind = 0; kind < 3; kind++) {
        /* speech-like, mixed, and lengths that need two digits to sort */
        const int32_t capacity = kind == 2 ? 200000 : 4096;
        for (uint64_t i = 0; i < N; i++)
            lens[i] = 1 + (int32_t)(s2s_rng_below(7, i, kind == 0 ? 600 : (uint64_t)capacity));
        for (int a = S2S_BINS_CONCATENATIVE; a <= S2S_BINS_MFFD; a++) {
            struct s2s_bins_options opt = S2S_BINS_OPTIONS_DEFAULT;
            struct s2s_bins bins;
            opt.algorithm = (enum s2s_bin_algorithm)a;
            opt.capacity = capacity;
            opt.seed = 5;
            assert_int_equal(s2s_thd_bins(&bins, lens, N, &opt, &err), 0);
            check_packing(&bins, lens, N, capacity);
            if (kind == 0 && a != S2S_BINS_CONCATENATIVE)
                assert_true(s2s_thd_bins_fill(&bins, lens, &opt) > 0.99);
            s2s_bins_release(&bins);
        }
    }
    free(lens);
}

static void orders_are_those_of_python(void **state)
{
    static const uint32_t words[] = {2746317213u, 478163327u, 107420369u, 3184935163u};
    static const uint32_t shuffled[] = {7, 5, 2, 8, 9, 6, 11, 3, 4, 0, 1, 10};
    struct s2s_pyrandom random;
    uint32_t items[12];
    s2s_pyrandom_seed(&random, 42);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(s2s_pyrandom_u32(&random), words[i]);
    for (uint32_t i = 0; i < 12; i++)
        items[i] = i;
    s2s_pyrandom_seed(&random, 42);
    s2s_pyrandom_shuffle(&random, items, 12);
    assert_memory_equal(items, shuffled, sizeof items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_example),
        cmocka_unit_test(lengths_are_rounded_up_first),
        cmocka_unit_test(few_bins_are_split_from_the_fullest),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(large_inputs_keep_every_item),
        cmocka_unit_test(orders_are_those_of_python),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
