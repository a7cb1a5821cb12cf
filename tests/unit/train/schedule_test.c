/* Orders of pipelines against those of torch and megatron-core, and pipelines that run by
 * themselves. */
#include <setjmp.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/train/simulate_pp.h"

/* "F0.0 B0.0": actions with microbatch and chunk */
static void say_actions(struct s2s_buf *text, const struct s2s_pp_schedule *s)
{
    s2s_buf_puts(text, "");
    for (int64_t i = 0; i < s->n_actions; i++)
        s2s_buf_printf(text, "%s%c%lld.%d", i ? " " : "",
                       s->actions[i].kind == S2S_ACTION_FORWARD ? 'F' : 'B',
                       (long long)s->actions[i].microbatch, s->actions[i].chunk);
}

static void expect_order(const struct s2s_pipeline *p, int rank, const char *want)
{
    struct s2s_pp_schedule s;
    struct s2s_buf have = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_pipeline_check(p, &err) < 0)
        fail_msg("%s", err.text);
    s2s_pp_schedule_init(&s, p, rank);
    say_actions(&have, &s);
    assert_string_equal(have.data, want);
    s2s_buf_release(&have);
    s2s_pp_schedule_release(&s);
}

static void orders_are_those_worked_out_by_hand(void **state)
{
    (void)state;
    static const char *const plain[] = {"F0.0 F1.0 F2.0 F3.0 B0.0 B1.0 B2.0 B3.0",
                                        "F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 B2.0 B3.0",
                                        "F0.0 F1.0 B0.0 F2.0 B1.0 F3.0 B2.0 B3.0",
                                        "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0"},
                             *const interleaved[] = {
                                 "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 "
                                 "B3.1 B2.0 B3.0",
                                 "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 "
                                 "B3.1 B2.0 B3.0"};
    for (int r = 0; r < 4; r++)
        expect_order(&(struct s2s_pipeline){4, 1, 4, 0, false}, r, plain[r]);
    for (int r = 0; r < 2; r++)
        expect_order(&(struct s2s_pipeline){2, 2, 4, 0, false}, r, interleaved[r]);
    /* fewer microbatches than ranks, none, one rank, and a pass that only evaluates */
    expect_order(&(struct s2s_pipeline){4, 1, 2, 0, false}, 0, "F0.0 F1.0 B0.0 B1.0");
    expect_order(&(struct s2s_pipeline){4, 1, 2, 0, false}, 3, "F0.0 B0.0 F1.0 B1.0");
    expect_order(&(struct s2s_pipeline){4, 1, 0, 0, false}, 1, "");
    expect_order(&(struct s2s_pipeline){1, 1, 2, 0, false}, 0, "F0.0 B0.0 F1.0 B1.0");
    expect_order(&(struct s2s_pipeline){2, 2, 2, 0, true}, 1, "F0.0 F1.0 F0.1 F1.1");
}

static void orders_are_those_of_torch_and_megatron(void **state)
{
    (void)state;
    FILE *in = fopen("tests/oracle/pipeline/orders.txt", "re");
    char *line = NULL, who[32];
    size_t cap = 0, n_torch = 0, n_megatron = 0;
    assert_non_null(in);
    for (ssize_t len; (len = getline(&line, &cap, in)) > 0;) {
        struct s2s_pipeline p = {.n_ranks = 0};
        long long m, g;
        int rank, at;
        line[len - 1] = 0;
        assert_int_equal(sscanf(line, "%31s %d %d %lld %lld %d %n", who, &p.n_ranks, &p.n_chunks,
                                &m, &g, &rank, &at),
                         6);
        p.n_microbatches = m;
        p.group = g;
        expect_order(&p, rank, line + at);
        n_torch += strcmp(who, "torch") == 0;
        n_megatron += strcmp(who, "megatron-core") == 0;
    }
    assert_true(n_torch >= 30 && n_megatron >= 30);
    free(line);
    fclose(in);
}

static void shapes_that_megatron_refuses_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct s2s_pipeline p;
        bool good;
    } cases[] = {
        {{4, 1, 1, 0, false}, true},   {{4, 2, 3, 0, false}, false}, {{4, 2, 4, 0, false}, true},
        {{4, 2, 4, 3, false}, false},  {{4, 2, 4, 5, false}, false}, {{4, 2, 9, 4, false}, false},
        {{4, 2, 12, 4, false}, true},  {{4, 2, 9, 5, false}, true},  {{4, 2, 8, 5, false}, false},
        {{1, 2, 4, 0, false}, false},  {{0, 1, 4, 0, false}, false}, {{2, 0, 4, 0, false}, false},
        {{2, 1, -1, 0, false}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_error err = S2S_ERROR_INIT;
        const int rc = s2s_pipeline_check(&cases[i].p, &err);
        assert_int_equal(rc, cases[i].good ? 0 : S2S_E_RANGE);
    }
}

/* Time of a pipeline whose stages are alike, for whole ranks: (m + (p - 1) / v) (tF + tB). */
static void expect_formula(const struct s2s_pipeline *p)
{
    struct s2s_pp_result result;
    struct s2s_error err = S2S_ERROR_INIT;
    const struct s2s_pp_times times = {.forward = 1, .backward = 2};
    if (s2s_pp_simulate(&result, p, &times, &err) < 0)
        fail_msg("%s", err.text);
    const double one = p->forward_only ? 1 : 3, work = (double)(p->n_microbatches * p->n_chunks),
                 gap = p->n_ranks - 1;
    if (result.makespan != (work + gap) * one || result.busiest != work * one)
        fail_msg("%d ranks, %d chunks, %lld microbatches, group %lld: %g, not %g", p->n_ranks,
                 p->n_chunks, (long long)p->n_microbatches, (long long)p->group, result.makespan,
                 (work + gap) * one);
    assert_true(fabs(result.idle - gap / (work + gap)) < 1e-12);
}

static void no_shape_waits_for_ever_and_all_take_the_time_of_the_formula(void **state)
{
    (void)state;
    struct s2s_pipeline p;
    for (p.n_ranks = 1; p.n_ranks <= 8; p.n_ranks++)
        for (p.n_chunks = 1; p.n_chunks <= 4; p.n_chunks++)
            for (p.n_microbatches = 1; p.n_microbatches <= 24; p.n_microbatches++)
                for (p.group = 0; p.group <= (p.n_chunks > 1 ? p.n_microbatches : 0); p.group++)
                    for (int only = 0; only < 2; only++) {
                        struct s2s_error err = S2S_ERROR_INIT;
                        p.forward_only = only;
                        if (s2s_pipeline_check(&p, &err) == 0)
                            expect_formula(&p);
                    }
}

static void large_pipelines_take_the_time_of_the_formula(void **state)
{
    (void)state;
    static const int sizes[] = {2, 3, 5, 12, 16, 31, 64};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int v = 1; v <= 8; v++) {
            const int n = sizes[i];
            const int64_t ms[] = {1, n - 1, n, n + n / 2, 2 * n, 4 * n + 1}, gs[] = {0, n + n / 2};
            for (size_t k = 0; k < 12; k++) {
                struct s2s_error err = S2S_ERROR_INIT;
                const struct s2s_pipeline p = {n, v, ms[k % 6], gs[k / 6], false};
                if (s2s_pipeline_check(&p, &err) == 0)
                    expect_formula(&p);
            }
        }
}

/* The shares of the bubble that the literature's formula (p - 1) / (m v + p - 1) gives. */
static void ranks_idle_for_the_share_of_the_formula(void **state)
{
    (void)state;
    static const struct {
        struct s2s_pipeline p;
        double idle;
    } cases[] = {
        {{4, 1, 8, 0, false}, .273}, {{4, 2, 8, 0, false}, .158}, {{4, 2, 4, 0, false}, .273}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_pp_result result;
        struct s2s_error err = S2S_ERROR_INIT;
        const struct s2s_pp_times times = {.forward = 1, .backward = 2};
        assert_int_equal(s2s_pp_simulate(&result, &cases[i].p, &times, &err), 0);
        assert_true(fabs(result.idle - cases[i].idle) < .0005);
    }
}

/* Nobody waits for ever either where stages take different times. */
static void uneven_stages_do_not_wait_for_ever(void **state)
{
    (void)state;
    const double stages[] = {3, .5, 1, 2, .25, 5, 0, 1};
    for (int64_t m = 4; m < 20; m++) {
        struct s2s_pp_result result;
        struct s2s_error err = S2S_ERROR_INIT;
        const struct s2s_pp_times times = {.stages = stages, .forward = 1, .backward = 2};
        const struct s2s_pipeline two = {4, 2, m, 0, false}, one = {4, 1, m, 0, false};
        if (s2s_pipeline_check(&two, &err) == 0) {
            assert_int_equal(s2s_pp_simulate(&result, &two, &times, &err), 0);
            assert_true(result.busiest == 3 * 5.5 * (double)m); /* stages 1 and 5 */
            assert_true(result.makespan > result.busiest);
        }
        assert_int_equal(s2s_pp_simulate(&result, &one, &times, &err), 0);
        assert_true(result.busiest == 9 * (double)m && result.makespan > result.busiest);
    }
}

/* How many microbatches a rank keeps: min(p - rank, m) with one chunk, w + 1 with several. */
static void a_rank_keeps_one_more_than_its_warm_up(void **state)
{
    (void)state;
    for (int v = 1; v <= 3; v++)
        for (int64_t m = 4; m <= 12; m += 4)
            for (int r = 0; r < 4; r++) {
                const struct s2s_pipeline p = {4, v, m, 0, false}, only = {4, v, m, 0, true};
                struct s2s_pp_schedule s;
                const int64_t w = v > 1 ? 2 * (3 - r) + (v - 1) * 4 : 3 - r, all = m * v;
                s2s_pp_schedule_init(&s, &p, r);
                assert_int_equal(s.in_flight, w + 1 < all ? w + 1 : all);
                s2s_pp_schedule_release(&s);
                s2s_pp_schedule_init(&s, &only, r);
                assert_true(s.in_flight <= 3);
                s2s_pp_schedule_release(&s);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_are_those_worked_out_by_hand),
        cmocka_unit_test(orders_are_those_of_torch_and_megatron),
        cmocka_unit_test(shapes_that_megatron_refuses_are_refused),
        cmocka_unit_test(no_shape_waits_for_ever_and_all_take_the_time_of_the_formula),
        cmocka_unit_test(large_pipelines_take_the_time_of_the_formula),
        cmocka_unit_test(ranks_idle_for_the_share_of_the_formula),
        cmocka_unit_test(uneven_stages_do_not_wait_for_ever),
        cmocka_unit_test(a_rank_keeps_one_more_than_its_warm_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
