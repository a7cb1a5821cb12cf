/* lib/base/rng: the published answers of Philox, and that cuts of a range draw the same numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/base/base.h"

/* kat_vectors of the Random123 library, philox4x32 with 10 rounds */
static void philox_gives_the_published_answers(void **state)
{
    static const uint32_t kat[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        s2s_rng_philox(out, kat[i], kat[i] + 4);
        assert_memory_equal(out, kat[i] + 6, sizeof out);
    }
}

static void a_number_depends_on_key_and_place_alone(void **state)
{
    uint64_t key = S2S_RNG_KEY(42, 7, s2s_rng_name("layers.0.weight"));
    assert_true(key != S2S_RNG_KEY(42, 8, s2s_rng_name("layers.0.weight")));
    assert_true(S2S_RNG_KEY(42, 1, 2) != S2S_RNG_KEY(42, 2, 1));
    assert_true(S2S_RNG_KEY(42, 0) != S2S_RNG_KEY(42, 0, 0));
    enum { N = 1001 };
    float whole[N], cut[N], normal[N];
    s2s_rng_fill_uniform(whole, N, key, 5);
    s2s_rng_fill_normal(normal, N, key, 5, 1, 2);
    for (size_t begin = 0; begin < 9; begin++) {
        s2s_rng_fill_uniform(cut, 10, key, 5 + begin);
        assert_memory_equal(cut, whole + begin, 10 * sizeof *cut);
        s2s_rng_fill_normal(cut, 10, key, 5 + begin, 1, 2);
        assert_memory_equal(cut, normal + begin, 10 * sizeof *cut);
        assert_true(whole[begin] == s2s_rng_uniform(key, 5 + begin));
    }
}

static void moments_are_those_of_the_distributions(void **state)
{
    enum { N = 200000 };
    static float x[N];
    double sum = 0, sum2 = 0;
    int64_t below = 0, hist[7] = {0};
    s2s_rng_fill_normal(x, N, 3, 0, 1, 2);
    for (int i = 0; i < N; i++) {
        sum += x[i];
        sum2 += (x[i] - 1.0) * (x[i] - 1.0);
    }
    assert_true(fabs(sum / N - 1) < 0.02); /* four deviations */
    assert_true(fabs(sum2 / N - 4) < 0.06);
    s2s_rng_fill_uniform(x, N, 4, 0);
    for (int i = 0; i < N; i++) {
        assert_true(x[i] >= 0 && x[i] < 1);
        below += x[i] < 0.25f;
        double wide = s2s_rng_uniform_f64(4, (uint64_t)i);
        assert_true(wide >= 0 && wide < 1);
        hist[s2s_rng_below(5, (uint64_t)i, 7)]++;
    }
    assert_true(fabs((double)below / N - 0.25) < 0.004);
    for (int i = 0; i < 7; i++)
        assert_true(fabs((double)hist[i] / N - 1.0 / 7) < 0.0032);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_answers),
        cmocka_unit_test(a_number_depends_on_key_and_place_alone),
        cmocka_unit_test(moments_are_those_of_the_distributions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
