/* The table that measures: what is kept of which calls, and that the calls themselves are the
 * base's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/profile/profile.h"

enum { N = 6 };

static struct s2s_queue queue;
static struct s2s_profile *profile;
static const struct s2s_kernels *k;

static int begin(void **state)
{
    queue = (struct s2s_queue){0};
    s2s_kernels_cpu.open(&queue, 0);
    profile = s2s_profile_new(&s2s_kernels_cpu, &queue);
    k = s2s_profile_table(profile);
    return 0;
}

static int end(void **state)
{
    const struct s2s_kernels *base = s2s_profile_free(profile);
    s2s_kernels_cpu.close(&queue);
    return base != &s2s_kernels_cpu || queue.wrapped;
}

static void twice(float *y, const float *x)
{
    k->axpby(
        &queue,
        &(struct s2s_k_axpby){
            .x = {(void *)x, N, S2S_F32}, .y = {y, N, S2S_F32}, .rows = 1, .cols = N, .alpha = 2});
}

static void calls_are_those_of_the_base(void **state)
{
    const float host[N] = {1, 2, 3, 4, 5, 6};
    float *x = k->alloc(&queue, sizeof host), *y = k->alloc(&queue, sizeof host), back[N];
    assert_string_equal(k->name, "cpu");
    for (int measured = 0; measured < 2; measured++) {
        if (measured)
            s2s_profile_step(profile, 7);
        k->zero(&queue, y, sizeof host);
        k->copy_in(&queue, x, host, sizeof host);
        twice(y, x);
        k->copy_out(&queue, back, y, sizeof host);
        k->sync(&queue);
        for (int i = 0; i < N; i++)
            assert_true(back[i] == 2 * host[i]);
        assert_int_equal(s2s_tally_sum(s2s_profile_tally(profile), S2S_ENTRIES).calls,
                         measured ? 5 : 0);
    }
    s2s_profile_step_end(profile);
    twice(y, x); /* no more */
    const struct s2s_tally *tally = s2s_profile_tally(profile);
    assert_int_equal(s2s_tally_sum(tally, S2S_ENTRY_axpby).calls, 1);
    assert_true(s2s_tally_sum(tally, S2S_ENTRY_axpby).cost.flops == N);
    assert_true(s2s_tally_sum(tally, S2S_ENTRY_copy_in).cost.written_bytes == sizeof host);
    assert_true(s2s_tally_sum(tally, S2S_ENTRY_copy_out).cost.read_bytes == sizeof host);
    k->free(&queue, x);
    k->free(&queue, y);
}

static void the_newest_steps_keep_their_calls_in_order(void **state)
{
    float x[N] = {0}, y[N];
    double seconds, kept = 0;
    char layer[] = "layers.0";
    assert_null(s2s_profile_kept(profile, 0));
    queue.layer = layer;
    for (int step = 1; step <= S2S_PROFILE_STEPS + 2; step++) {
        layer[7] = (char)('0' + step);
        s2s_profile_step(profile, step);
        for (int i = 0; i < step; i++)
            twice(y, x);
        k->zero(&queue, y, sizeof y);
        s2s_profile_step_end(profile);
    }
    layer[7] = 'x'; /* names are copies */
    for (int i = 0; i < S2S_PROFILE_STEPS; i++) {
        const struct s2s_profile_step *step = s2s_profile_kept(profile, (size_t)i);
        const char name[] = {'l', 'a', 'y', 'e', 'r', 's', '.', (char)('0' + i + 3), 0};
        double at_s = step->begin_s;
        assert_int_equal(step->number, i + 3);
        assert_int_equal(step->n, i + 4);
        for (size_t e = 0; e < step->n; e++) {
            const struct s2s_profile_event *event = &step->events[e];
            assert_int_equal(event->entry, e + 1 < step->n ? S2S_ENTRY_axpby : S2S_ENTRY_zero);
            assert_string_equal(event->layer, name);
            assert_true(event->begin_s >= at_s && event->seconds >= 0);
            at_s = event->begin_s + event->seconds;
        }
        assert_true(at_s <= step->begin_s + step->seconds + 1e-9);
        kept += step->seconds;
    }
    assert_null(s2s_profile_kept(profile, S2S_PROFILE_STEPS));
    assert_int_equal(s2s_profile_n_steps(profile, &seconds), S2S_PROFILE_STEPS + 2);
    assert_true(seconds > kept && kept > 0);
    /* sums are of all steps */
    assert_int_equal(s2s_tally_sum(s2s_profile_tally(profile), S2S_ENTRY_axpby).calls,
                     (S2S_PROFILE_STEPS + 2) * (S2S_PROFILE_STEPS + 3) / 2);
    assert_true(s2s_tally_sum(s2s_profile_tally(profile), S2S_ENTRIES).seconds <= seconds);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(calls_are_those_of_the_base),
        TEST(the_newest_steps_keep_their_calls_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
