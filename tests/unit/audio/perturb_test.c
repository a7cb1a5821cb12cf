/* lib/audio/perturb: lengths as Lhotse counts them, what is heard, what is drawn. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"

enum { HZ = 16000 };

/* Frequency of a tone, from where it rises through zero. */
static double tone_hz(const float *x, int64_t n)
{
    double first = -1, last = -1;
    int n_rises = 0;
    for (int64_t i = HZ / 10; i + 1 < n - HZ / 10; i++)
        if (x[i] < 0 && x[i + 1] >= 0) {
            last = (double)i + (double)(-x[i] / (x[i + 1] - x[i]));
            first = first < 0 ? last : first;
            n_rises++;
        }
    return (n_rises - 1) * HZ / (last - first);
}

static float *tone(int64_t n, double hz)
{
    float *x = s2s_xmalloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(0.5 * sin(2 * M_PI * hz * (double)i / HZ));
    return x;
}

/* lhotse.utils.perturb_num_samples */
static void lengths_are_those_of_lhotse(void **state)
{
    static const struct {
        int64_t n, want;
        double factor;
    } cases[] = {{16000, 17778, 0.9},
                 {16000, 14545, 1.1},
                 {3, 2, 2},
                 {1, 2, 0.5},
                 {12345, 13717, 0.9},
                 {12345, 11223, 1.1},
                 {9, 10, 0.9},
                 {5, 4, 1.25},
                 {7, 9, 0.8},
                 {1, 1, 1.7},
                 {99999, 109999, 0.90909}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(s2s_audio_n_faster(cases[i].n, cases[i].factor), cases[i].want);
}

static void speed_moves_pitch_and_length_and_tempo_length_alone(void **state)
{
    static const struct {
        struct s2s_audio_change change;
        double hz, length;
    } cases[] = {{{.speed = 1.1}, 440 * 1.1, 1 / 1.1},
                 {{.speed = 0.9}, 440 * 0.9, 1 / 0.9},
                 {{.tempo = 1.25}, 440, 1 / 1.25},
                 {{.tempo = 0.8}, 440, 1 / 0.8},
                 {{.pitch = 4}, 440 * 1.2599210498948732, 1},
                 {{.pitch = -3}, 440 * 0.8408964152537145, 1},
                 {{.speed = 1.1, .tempo = 1.2, .pitch = 2}, 440 * 1.1 * 1.122462, 1 / 1.1 / 1.2}};
    const int64_t n = 2 * HZ;
    float *x = tone(n, 440);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t n_out = s2s_audio_n_changed(n, &cases[i].change, HZ, HZ);
        float *y = s2s_xmalloc((size_t)n_out * sizeof *y), loudest = 0;
        assert_int_equal(s2s_audio_change(y, x, n, &cases[i].change, HZ, HZ, NULL), 0);
        if (fabs((double)n_out - (double)n * cases[i].length) > 1)
            fail_msg("case %zu: %lld samples", i, (long long)n_out);
        if (fabs(tone_hz(y, n_out) / cases[i].hz - 1) > 2e-3)
            fail_msg("case %zu: %g Hz, not %g", i, tone_hz(y, n_out), cases[i].hz);
        for (int64_t k = HZ / 10; k < n_out - HZ / 10; k++)
            loudest = fmaxf(loudest, fabsf(y[k]));
        assert_true(loudest > 0.48f && loudest < 0.53f);
        free(y);
    }
    free(x);
}

/* A change of speed and rate at once is what Lhotse does one after the other. */
static void volume_is_a_factor_and_one_pass_is_two(void **state)
{
    const struct s2s_audio_change both = {.speed = 1.1, .volume = 0.25}, fast = {.speed = 1.1};
    const int64_t n = 30001, n_out = s2s_audio_n_changed(n, &both, 44100, HZ);
    const int64_t n_fast = s2s_audio_n_changed(n, &fast, 44100, 44100);
    float *x = tone(n, 300), *y = s2s_xmalloc((size_t)n_out * sizeof *y);
    float *a = s2s_xmalloc((size_t)n_fast * sizeof *a), *b = s2s_xmalloc((size_t)n_out * sizeof *b);
    assert_int_equal(s2s_audio_change(y, x, n, &both, 44100, HZ, NULL), 0);
    assert_int_equal(s2s_audio_change(a, x, n, &fast, 44100, 44100, NULL), 0);
    assert_int_equal(s2s_audio_resample(b, a, (size_t)n_fast, 44100, HZ, NULL), 0);
    assert_int_equal(n_out, s2s_audio_n_resampled(n_fast, 44100, HZ));
    for (int64_t i = HZ / 50; i < n_out - HZ / 50; i++)
        assert_true(fabsf(y[i] - b[i] / 4) < 1e-4f);
    free(x);
    free(y);
    free(a);
    free(b);
}

static void short_and_silent_sound_is_changed_too(void **state)
{
    const struct s2s_audio_change all = {.speed = 0.7, .tempo = 1.3, .pitch = 5, .volume = 2};
    float in[400] = {0}, out[700];
    for (int64_t n = 1; n <= 400; n += 57) {
        const int64_t n_out = s2s_audio_n_changed(n, &all, HZ, HZ);
        out[n_out] = 7;
        assert_int_equal(s2s_audio_change(out, in, n, &all, HZ, HZ, NULL), 0);
        for (int64_t i = 0; i < n_out; i++)
            assert_true(out[i] == 0);
        assert_true(out[n_out] == 7);
    }
}

static void listed_values_come_once_in_as_many_epochs(void **state)
{
    struct s2s_audio_perturb perturb = {.speed = {.n = 0}};
    int n_first[3] = {0};
    assert_int_equal(s2s_audio_choice_parse(&perturb.speed, "0.9,1,1.1", 0.1, 10, NULL), 0);
    for (int id = 0; id < 3000; id++) {
        char name[16];
        struct s2s_audio_change change[6];
        double sum[2] = {0};
        snprintf(name, sizeof name, "u%d", id);
        for (uint64_t epoch = 0; epoch < 6; epoch++) {
            s2s_audio_perturb_draw(&change[epoch], &perturb, 7, name, epoch);
            sum[epoch / 3] += change[epoch].speed * change[epoch].speed;
        }
        assert_true(fabs(sum[0] - 3.02) < 1e-9 && fabs(sum[1] - 3.02) < 1e-9);
        n_first[(int)lround((change[0].speed - 0.9) * 10)]++;
    }
    for (int k = 0; k < 3; k++)
        assert_true(n_first[k] > 900 && n_first[k] < 1100);
}

static void a_range_is_drawn_evenly_by_sample_and_epoch_and_seed(void **state)
{
    struct s2s_audio_perturb perturb = {.volume = {.n = 0}};
    struct s2s_audio_change a, b;
    double sum = 0;
    assert_int_equal(s2s_audio_choice_parse(&perturb.volume, "0.5..2", 0.1, 10, NULL), 0);
    for (uint64_t epoch = 0; epoch < 4000; epoch++) {
        s2s_audio_perturb_draw(&a, &perturb, 7, "a", epoch);
        assert_true(a.volume >= 0.5 && a.volume < 2 && a.speed == 0);
        sum += a.volume;
    }
    assert_true(fabs(sum / 4000 - 1.25) < 0.03);
    s2s_audio_perturb_draw(&b, &perturb, 7, "a", 3999);
    assert_true(a.volume == b.volume);
    s2s_audio_perturb_draw(&b, &perturb, 7, "b", 3999);
    assert_true(a.volume != b.volume);
    s2s_audio_perturb_draw(&b, &perturb, 8, "a", 3999);
    assert_true(a.volume != b.volume);
}

static void what_is_no_choice_is_refused(void **state)
{
    static const char *const bad[] = {
        "",        "x",      "0.9,",   ",1",   "0.9..", "..1", "2..1",
        "1..2..3", "1..2,3", "1,2..3", "0.05", "11",    "nan", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
        "1 "};
    struct s2s_audio_choice choice;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (s2s_audio_choice_parse(&choice, bad[i], 0.1, 10, NULL) != S2S_E_ARG)
            fail_msg("'%s' was taken", bad[i]);
    assert_int_equal(s2s_audio_choice_parse(&choice, "-2..2", -24, 24, NULL), 0);
    assert_true(choice.n == -1 && choice.values[0] == -2 && choice.values[1] == 2);
    assert_int_equal(s2s_audio_choice_parse(&choice, "-2", -24, 24, NULL), 0);
    assert_true(choice.n == 1 && choice.values[0] == -2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_are_those_of_lhotse),
        cmocka_unit_test(speed_moves_pitch_and_length_and_tempo_length_alone),
        cmocka_unit_test(volume_is_a_factor_and_one_pass_is_two),
        cmocka_unit_test(short_and_silent_sound_is_changed_too),
        cmocka_unit_test(listed_values_come_once_in_as_many_epochs),
        cmocka_unit_test(a_range_is_drawn_evenly_by_sample_and_epoch_and_seed),
        cmocka_unit_test(what_is_no_choice_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
