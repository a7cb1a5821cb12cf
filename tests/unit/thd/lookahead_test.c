/* lib/thd/lookahead: each sample once, none waits for ever, packs near the bound, in any window. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first */
#include <cmocka.h>
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/thd/bins.h"
#include "lib/thd/lookahead.h"

enum { CAPACITY = 512, N = 20000 };

/* speech: most of 10 to 100 slots, few of more */
static int32_t len_of(uint64_t i)
{
    const int32_t len = 10 + (int32_t)s2s_rng_below(1, i, 90);
    return i % 17 ? len : len * 5;
}

static void expect_packs(size_t window, size_t most)
{
    struct s2s_lookahead *ahead = s2s_lookahead_new(window, CAPACITY);
    bool *seen = s2s_xcalloc(N, sizeof *seen);
    int64_t total = 0;
    size_t n_packs = 0, n_seen = 0, n;
    const uint32_t *items;
    uint32_t oldest = 0, next = 0;
    do {
        while (next < N && !s2s_lookahead_add(ahead, next, len_of(next)))
            next++;
        next += next < N;
        n = s2s_lookahead_take(ahead, &items);
        int64_t load = 0;
        for (size_t k = 0; k < n; k++) {
            assert_false(seen[items[k]]);
            assert_true(items[k] < next); /* nothing that has not come yet */
            seen[items[k]] = true;
            load += len_of(items[k]);
        }
        if (n > 0)
            assert_int_equal(items[0], oldest); /* the one that waits longest is in */
        while (oldest < N && seen[oldest])
            oldest++;
        assert_true(load <= CAPACITY);
        total += load;
        n_seen += n;
        n_packs += n > 0;
    } while (n > 0);
    assert_int_equal(n_seen, N);
    const size_t bound = (size_t)((total + CAPACITY - 1) / CAPACITY);
    if (n_packs - bound > most)
        fail_msg("%zu packs through a window of %zu, the bound is %zu", n_packs, window, bound);
    s2s_lookahead_free(ahead);
    free(seen);
}

static void packs_come_near_the_bound(void **state)
{
    expect_packs(1, N); /* each sample alone */
    expect_packs(64, 40);
    expect_packs(256, 3); /* of 2,400 */
    expect_packs(N, 2);
}

static void no_length_is_used_twice(void **state)
{
    /* what is left over after the oldest could be filled by 100 + 100, but there is one of it */
    static const int32_t lens[] = {300, 100, 90, 5, 5};
    struct s2s_lookahead *ahead = s2s_lookahead_new(5, 500);
    const uint32_t *items;
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(s2s_lookahead_add(ahead, i, lens[i]), i == 4);
    assert_int_equal(s2s_lookahead_take(ahead, &items), 5);
    assert_int_equal(s2s_lookahead_take(ahead, &items), 0);
    s2s_lookahead_free(ahead);
}

static void best_fit_is_the_fullest_bin(void **state)
{
    /* 6 | 5 | then 4 into the bin of 6, 3 into that of 5, 2 and 1 into what is left there */
    static const int32_t lens[] = {1, 2, 3, 4, 5, 6};
    static const uint32_t items[] = {5, 3, 4, 2, 1};
    struct s2s_bins_options opt = S2S_BINS_OPTIONS_DEFAULT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_bins bins;
    opt.algorithm = S2S_BINS_BFD;
    opt.capacity = 10;
    assert_int_equal(s2s_thd_bins(&bins, lens, 6, &opt, &err), 0);
    assert_int_equal(bins.n_bins, 3);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(bins.items[i], items[i]);
    s2s_bins_release(&bins);
    opt.capacity = (int64_t)S2S_BFD_MAX_CAPACITY + 1;
    assert_int_equal(s2s_thd_bins(&bins, lens, 6, &opt, &err), S2S_E_RANGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packs_come_near_the_bound),
        cmocka_unit_test(no_length_is_used_twice),
        cmocka_unit_test(best_fit_is_the_fullest_bin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
