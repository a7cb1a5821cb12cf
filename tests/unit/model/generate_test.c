/* What is drawn of logits: each token as often as the filters of temperature, k and p leave it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/model/generate.h"

enum { N = 9 };

/* two equal ones around the places where filters cut */
static const float logits[N] = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f, 0.5f, 3.0f, -4.0f, 1.5f};

/* As transformers' warpers are written: k by the k-th largest value, then p from the smallest up.
 */
static void filtered(double *p, const struct s2s_generate_options *options)
{
    double sum = 0;
    bool removed[N] = {false};
    for (int i = 0; i < N; i++) {
        int n_larger = 0;
        for (int j = 0; j < N; j++)
            n_larger += logits[j] > logits[i];
        removed[i] = options->top_k > 0 && n_larger >= options->top_k;
        p[i] = removed[i] ? 0 : exp(logits[i] / options->temperature);
        sum += p[i];
    }
    for (int i = 0; i < N; i++)
        p[i] /= sum;
    for (int i = 0; options->top_p > 0 && options->top_p < 1 && i < N; i++) {
        double larger = 0;
        for (int j = 0; j < N; j++)
            larger += p[j] * (logits[j] > logits[i] || (logits[j] == logits[i] && j < i));
        removed[i] |= larger >= options->top_p;
    }
    sum = 0;
    for (int i = 0; i < N; i++)
        sum += removed[i] ? 0 : p[i];
    for (int i = 0; i < N; i++)
        p[i] = removed[i] ? 0 : p[i] / sum;
}

static void tokens_are_drawn_as_often_as_the_filters_leave_them(void **state)
{
    enum { DRAWS = 20000 };
    static const struct s2s_generate_options cases[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.5, .top_p = 1},
        {.temperature = 2, .top_p = 0.6},
        {.temperature = 1, .top_p = 0.05},
        {.temperature = 1.5, .top_p = 1, .top_k = 2}, /* the second one has an equal, which stays */
        {.temperature = 1.5, .top_p = 1, .top_k = 100},
        {.temperature = 1.5, .top_p = 0.7, .top_k = 5},
        {.temperature = 1, .top_p = 0},
    };
    struct s2s_choice work[N];
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        double want[N];
        int n[N] = {0};
        filtered(want, &cases[c]);
        for (int i = 0; i < DRAWS; i++)
            n[s2s_draw_token(logits, N, &cases[c], (i + 0.5) / DRAWS, work)]++;
        for (int i = 0; i < N; i++)
            if (fabs((double)n[i] / DRAWS - want[i]) > 1.5 / DRAWS)
                fail_msg("case %zu, token %d: %g of the draws, not %g", c, i, (double)n[i] / DRAWS,
                         want[i]);
    }
}

static void without_temperature_it_is_the_likeliest(void **state)
{
    static const float equal[] = {1, 3, 3, 2};
    const struct s2s_generate_options options = {.top_k = 2};
    assert_int_equal(s2s_draw_token(equal, 4, &options, 0.9, NULL), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_drawn_as_often_as_the_filters_leave_them),
        cmocka_unit_test(without_temperature_it_is_the_likeliest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
