/* lib/audio/mel against the Parakeet feature extractor (tests/oracle/parakeet_features). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "lib/audio/audio.h"
#include "lib/audio/augment.h"
#include "lib/audio/mel.h"
#include "lib/base/base.h"
#include "lib/io/safetensors.h"

#define FOLDER "tests/oracle/parakeet_features"

static struct s2s_safetensors expected;
static json_t *tolerance;

static int open_expected(void **state)
{
    json_t *root = json_load_file(FOLDER "/expected.json", 0, NULL);
    tolerance = json_incref(json_object_get(root, "tolerance"));
    json_decref(root);
    return s2s_safetensors_open(&expected, FOLDER "/expected.safetensors", NULL);
}

static int close_expected(void **state)
{
    json_decref(tolerance);
    s2s_safetensors_release(&expected);
    return 0;
}

static struct s2s_audio decode(const char *name)
{
    struct s2s_audio audio;
    char *path = s2s_xasprintf(FOLDER "/%s.wav", name);
    assert_int_equal(s2s_audio_decode_file(&audio, path, NULL, NULL), 0);
    free(path);
    return audio;
}

static struct s2s_mel *new_mel(int n_mels)
{
    struct s2s_mel_config config = S2S_MEL_CONFIG_DEFAULT;
    struct s2s_mel *mel = NULL;
    config.n_mels = n_mels;
    assert_int_equal(s2s_mel_new(&mel, &config, NULL), 0);
    return mel;
}

/* Rows of one clip as upstream lays them out: n_rows rows, zero past the valid frames. */
static float *features(const struct s2s_mel *mel, const struct s2s_audio *audio, int64_t n_rows)
{
    size_t width = (size_t)s2s_mel_config(mel)->n_mels;
    struct s2s_mel_work *work = s2s_mel_work_new(mel);
    float *out = s2s_xcalloc((size_t)n_rows * width, sizeof *out);
    s2s_mel_compute(mel, work, out, audio->data, audio->n_samples);
    s2s_mel_work_free(work);
    return out;
}

static double tolerance_of(const char *name)
{
    double atol = json_number_value(json_object_get(json_object_get(tolerance, name), "atol"));
    assert_true(atol > 0);
    return atol;
}

static void check(const float *got, const float *want, size_t n, double atol, const char *name)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
    if (!(worst <= atol))
        fail_msg("%s: difference %g above %g", name, worst, atol);
}

static void features_of_single_clips_are_the_extractors(void **state)
{
    static const char *const names[] = {"activated", "hello-world", "please-try-again"};
    for (int n_mels = 80; n_mels <= 128; n_mels += 48) {
        struct s2s_mel *mel = new_mel(n_mels);
        for (int i = 0; i < 3; i++) {
            char *name = s2s_xasprintf("mel%d/%s/input_features", n_mels, names[i]);
            const struct s2s_st_tensor *want = s2s_safetensors_find(&expected, name);
            assert_non_null(want);
            struct s2s_audio audio = decode(names[i]);
            assert_int_equal(want->shape[want->n_dims - 1], n_mels);
            int64_t n_rows = want->shape[want->n_dims - 2];
            assert_int_equal(n_rows, s2s_mel_frames(mel, audio.n_samples) + 1);
            float *got = features(mel, &audio, n_rows);
            check(got, want->data, (size_t)n_rows * (size_t)n_mels, tolerance_of(name), name);
            free(got);
            free(name);
            s2s_audio_release(&audio);
        }
        s2s_mel_free(mel);
    }
}

static void a_padded_batch_is_its_single_clips(void **state)
{
    static const char *const names[] = {"activated", "hello-world", "please-try-again"};
    const struct s2s_st_tensor *want = s2s_safetensors_find(&expected, "batch80/input_features");
    struct s2s_mel *mel = new_mel(80);
    size_t row_bytes = (size_t)(want->shape[1] * want->shape[2]);
    for (int i = 0; i < 3; i++) {
        struct s2s_audio audio = decode(names[i]);
        float *got = features(mel, &audio, want->shape[1]);
        check(got, (const float *)want->data + (size_t)i * row_bytes, row_bytes,
              tolerance_of("batch80/input_features"), names[i]);
        free(got);
        s2s_audio_release(&audio);
    }
    s2s_mel_free(mel);
}

static void filters_and_log_mel_are_the_extractors(void **state)
{
    for (int n_mels = 80; n_mels <= 128; n_mels += 48) {
        struct s2s_mel *mel = new_mel(n_mels);
        char *name = s2s_xasprintf("mel%d/filters", n_mels);
        const struct s2s_st_tensor *want = s2s_safetensors_find(&expected, name);
        check(s2s_mel_filters(mel), want->data, (size_t)n_mels * 257, tolerance_of(name), name);
        free(name);
        s2s_mel_free(mel);
    }
    struct s2s_mel *mel = new_mel(80);
    struct s2s_mel_work *work = s2s_mel_work_new(mel);
    struct s2s_audio audio = decode("activated");
    const struct s2s_st_tensor *want = s2s_safetensors_find(&expected, "mel80/activated/log_mel");
    int64_t n_rows = want->shape[want->n_dims - 2];
    assert_int_equal(n_rows, 107);
    float *got = s2s_xcalloc((size_t)n_rows * 80, sizeof *got);
    s2s_mel_log(mel, work, got, n_rows, audio.data, audio.n_samples);
    check(got, want->data, (size_t)n_rows * 80, 1e-4, "log_mel");
    free(got);
    s2s_audio_release(&audio);
    s2s_mel_work_free(work);
    s2s_mel_free(mel);
}

/* The check of the specification: a tone of 440 Hz. */
static void a_tone_gives_the_published_numbers(void **state)
{
    struct s2s_mel *mel = new_mel(80);
    struct s2s_mel_work *work = s2s_mel_work_new(mel);
    float pcm[1600], out[11 * 80];
    for (int i = 0; i < 1600; i++)
        pcm[i] = (float)(0.5 * sin(2 * M_PI * 440 * i / 16000));
    s2s_mel_log(mel, work, out, 11, pcm, 1600);
    assert_true(fabs(out[0] + 8.05191) < 1e-4 && fabs(out[1] + 7.59236) < 1e-4);
    assert_true(fabs(out[5 * 80 + 10] - 0.17636) < 1e-4);
    s2s_mel_compute(mel, work, out, pcm, 1600);
    assert_true(fabs(out[0] - 2.23327) < 1e-4 && fabs(out[3] - 2.19278) < 1e-4);
    s2s_mel_work_free(work);
    s2s_mel_free(mel);
}

/* The transform in double precision, as its formula reads. */
static double naive_log_mel(const struct s2s_mel *mel, const float *pcm, int64_t n, int64_t t,
                            int m)
{
    const struct s2s_mel_config *c = s2s_mel_config(mel);
    int n_bins = c->n_fft / 2 + 1, left = (c->n_fft - c->win) / 2;
    double sum = 0;
    for (int k = 0; k < n_bins; k++) {
        double re = 0, im = 0, weight = (double)s2s_mel_filters(mel)[m * n_bins + k];
        for (int j = 0; weight > 0 && j < c->win; j++) {
            int64_t at = t * c->hop + left + j - c->n_fft / 2;
            if (at < 0 || at >= n)
                continue;
            double x =
                (double)pcm[at] - (at > 0 ? (double)c->preemphasis * (double)pcm[at - 1] : 0);
            double w = 0.5 - 0.5 * cos(2 * M_PI * j / (c->win - 1));
            double angle = -2 * M_PI * k * (left + j) / c->n_fft;
            re += x * w * cos(angle);
            im += x * w * sin(angle);
        }
        sum += weight * (re * re + im * im);
    }
    return log(sum + 0x1p-24);
}

static void other_settings_follow_the_formula(void **state)
{
    static const struct s2s_mel_config configs[] = {
        {16000, 80, 512, 400, 160, 0.97f}, {8000, 40, 256, 200, 80, 0.97f},
        {22050, 20, 1024, 1023, 256, 0},   {16000, 8, 64, 64, 64, 0.5f},
        {16000, 5, 32, 30, 1, -0.5f},      {48000, 16, 2048, 1200, 480, 0.97f},
    };
    float pcm[3000];
    s2s_rng_fill_normal(pcm, 3000, 1, 0, 0, 0.1f);
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        struct s2s_mel *mel = NULL;
        assert_int_equal(s2s_mel_new(&mel, &configs[i], NULL), 0);
        struct s2s_mel_work *work = s2s_mel_work_new(mel);
        int n_mels = configs[i].n_mels;
        int64_t n_frames = 3000 / configs[i].hop + 1;
        n_frames = n_frames > 40 ? 40 : n_frames;
        float *out = s2s_xcalloc((size_t)(n_frames * n_mels), sizeof *out);
        s2s_mel_log(mel, work, out, n_frames, pcm, 3000);
        for (int64_t t = 0; t < n_frames; t += t < 2 ? 1 : 7)
            for (int m = 0; m < n_mels; m += 3) {
                double want = naive_log_mel(mel, pcm, 3000, t, m);
                double got = (double)out[t * n_mels + m];
                if (!(fabs(got - want) < 1e-4 + 1e-5 * fabs(want)))
                    fail_msg("settings %zu frame %d mel %d: %g, not %g", i, (int)t, m, got, want);
            }
        free(out);
        s2s_mel_work_free(work);
        s2s_mel_free(mel);
    }
}

static void a_clip_has_the_same_bytes_whatever_came_before(void **state)
{
    struct s2s_mel *mel = new_mel(80);
    struct s2s_audio a = decode("activated"), b = decode("hello-world");
    struct s2s_mel_work *work = s2s_mel_work_new(mel);
    size_t n = (size_t)s2s_mel_frames(mel, a.n_samples) * 80;
    float *alone = features(mel, &a, s2s_mel_frames(mel, a.n_samples));
    float *other = s2s_xcalloc((size_t)s2s_mel_frames(mel, b.n_samples) * 80, sizeof *other);
    float *after = s2s_xcalloc(n, sizeof *after);
    s2s_mel_compute(mel, work, other, b.data, b.n_samples);
    s2s_mel_compute(mel, work, after, a.data, a.n_samples);
    assert_memory_equal(alone, after, n * sizeof *after);
    free(alone);
    free(other);
    free(after);
    s2s_mel_work_free(work);
    s2s_audio_release(&a);
    s2s_audio_release(&b);
    s2s_mel_free(mel);
}

static void short_and_silent_clips_give_finite_numbers(void **state)
{
    struct s2s_mel *mel = new_mel(80);
    struct s2s_mel_work *work = s2s_mel_work_new(mel);
    float pcm[640] = {0}, out[4 * 80];
    assert_int_equal(s2s_mel_frames(mel, 159), 0);
    assert_int_equal(s2s_mel_frames(mel, 160), 1);
    assert_int_equal(s2s_mel_frames(mel, 640000), 4000);
    s2s_mel_compute(mel, work, out, pcm, 0);
    for (size_t n = 160; n <= 640; n += 160) {
        s2s_mel_compute(mel, work, out, pcm, n); /* silence */
        for (size_t i = 0; i < n / 160 * 80; i++)
            assert_true(out[i] == 0);
        pcm[n - 1] = 0.5f;
        s2s_mel_compute(mel, work, out, pcm, n);
        for (size_t i = 0; i < n / 160 * 80; i++)
            assert_true(isfinite(out[i]) && (n > 160 || out[i] == 0));
        pcm[n - 1] = 0;
    }
    s2s_mel_work_free(work);
    s2s_mel_free(mel);
}

static int open_config(struct s2s_mel_config *config, const char *json, struct s2s_error *err)
{
    char path[] = "/tmp/mel_test.XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, json, strlen(json)), (ssize_t)strlen(json));
    close(fd);
    int rc = s2s_mel_config_open(config, path, err);
    unlink(path);
    return rc;
}

static void settings_come_from_preprocessor_config(void **state)
{
    struct s2s_mel_config config;
    struct s2s_mel *mel = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(open_config(&config,
                                 "{\"feature_extractor_type\":\"ParakeetFeatureExtractor\","
                                 "\"feature_size\":128,\"hop_length\":80,\"n_fft\":256,"
                                 "\"preemphasis\":null,\"sampling_rate\":8000,\"win_length\":200}",
                                 NULL),
                     0);
    assert_int_equal(config.n_mels, 128);
    assert_int_equal(config.hop, 80);
    assert_true(config.preemphasis == 0);
    assert_int_equal(
        open_config(&config, "{\"feature_extractor_type\":\"WhisperFeatureExtractor\"}", &err),
        S2S_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "Whisper"));
    assert_int_equal(open_config(&config, "{\"n_fft\":\"512\"}", &err), S2S_E_FORMAT);
    assert_int_equal(open_config(&config, "{\"n_fft\":500}", &err), 0);
    assert_int_equal(s2s_mel_new(&mel, &config, &err), S2S_E_RANGE);
    assert_non_null(strstr(err.text, "n_fft = 500"));
}

static void spec_augment_masks_as_its_distribution_says(void **state)
{
    enum { T = 400, M = 80 };
    struct s2s_spec_augment aug = S2S_SPEC_AUGMENT_DEFAULT;
    float *mel = s2s_xcalloc(T * M, sizeof *mel), *again = s2s_xcalloc(T * M, sizeof *again);
    double masked = 0;
    int longest = 0;
    for (uint64_t key = 0; key < 500; key++) {
        for (int i = 0; i < T * M; i++)
            mel[i] = again[i] = 1;
        s2s_spec_augment(mel, T, M, &aug, key);
        s2s_spec_augment(again, T, M, &aug, key);
        assert_memory_equal(mel, again, T * M * sizeof *mel);
        for (int i = 0; i < T * M; i++)
            masked += mel[i] == 0;
        aug.n_time = 0; /* frequency alone: at most 2 * 26 bins */
        for (int i = 0; i < T * M; i++)
            again[i] = 1;
        s2s_spec_augment(again, T, M, &aug, key);
        int n = 0;
        for (int m = 0; m < M; m++)
            n += again[m] == 0;
        longest = n > longest ? n : longest;
        aug.n_time = 10;
    }
    assert_true(longest <= 52 && longest > 40);
    /* 10 masks of 9.5 frames on average of 400 and 2 of 13 bins of 80, overlaps taken out */
    double share = masked / 500 / (T * M);
    assert_true(share > 0.38 && share < 0.48);
    s2s_spec_augment(mel, 0, M, &aug, 1);
    s2s_spec_augment(mel, 1, M, &aug, 1);
    free(mel);
    free(again);
}

/* The chance of a mask of `width` at `start` on an axis of `size`, by NeMo's formulas. */
static double chance(const struct s2s_spec_augment *aug, bool time, int width, int start, int size)
{
    const double given = time ? (double)aug->time_width : aug->freq_width;
    double max = time && given <= 1 ? given * size : given;
    if (!aug->legacy) {
        max = time && max > size ? size : max;
        const double here = fmin(width + 1, max) - width;
        return here <= 0 ? 0 : here / max * (start < size - width ? 1.0 / (size - width) : 0);
    }
    max = floor(max + 1e-6);
    max = time && given <= 1 && max < 1 ? 1 : max;
    const double last = time ? fmax(1, size - max) : size - max;
    return width > max || start > last ? 0 : 1 / (max + 1) / (last + 1);
}

/* One mask, very often: every width and start as often as said, within five deviations. */
static void masks_of(const struct s2s_spec_augment *aug, bool time)
{
    enum { SIZE = 15, OTHER = 3, N = 40000 };
    static int seen[SIZE + 1][SIZE + 1];
    const int64_t frames = time ? SIZE : OTHER;
    const int mels = time ? OTHER : SIZE, step = time ? OTHER : 1;
    memset(seen, 0, sizeof seen);
    for (uint64_t key = 0; key < N; key++) {
        float mel[SIZE * OTHER];
        int start = 0, width = 0;
        for (int i = 0; i < SIZE * OTHER; i++)
            mel[i] = 1;
        s2s_spec_augment(mel, frames, mels, aug, S2S_RNG_KEY(5, key));
        for (int i = 0; i < SIZE; i++) {
            const bool hidden = mel[i * step] == aug->value;
            assert_true(hidden || mel[i * step] == 1);
            assert_true(mel[i * step + (time ? OTHER - 1 : 2 * SIZE)] == mel[i * step]);
            start = hidden && width == 0 ? i : start;
            assert_true(!hidden || i == start + width); /* one piece */
            width += hidden;
        }
        seen[width][start]++;
    }
    for (int w = 1; w <= SIZE; w++) /* a mask of no width has no start */
        for (int s = 0; s + w <= SIZE; s++) {
            double p = chance(aug, time, w, s, SIZE);
            if (s + w == SIZE) /* masks that would go on behind the end */
                for (int more = w + 1; more <= 2 * SIZE; more++)
                    p += chance(aug, time, more, s, SIZE);
            if (fabs(seen[w][s] - N * p) > 5 * sqrt(N * p) + (p > 0))
                fail_msg("width %d at %d: %d times, expected %g", w, s, seen[w][s], N * p);
        }
}

static void each_mask_is_drawn_as_nemo_draws_it(void **state)
{
    for (int legacy = 0; legacy < 2; legacy++) {
        struct s2s_spec_augment aug = {.legacy = legacy, .value = -2.5f, .n_time = 1};
        const float widths[] = {0.3f, 0.01f, 1, 4, 13};
        for (int i = 0; i < 5; i++) {
            aug.time_width = widths[i];
            masks_of(&aug, true);
        }
        aug.n_time = 0;
        aug.n_freq = 1;
        aug.freq_width = 6;
        masks_of(&aug, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features_of_single_clips_are_the_extractors),
        cmocka_unit_test(a_padded_batch_is_its_single_clips),
        cmocka_unit_test(filters_and_log_mel_are_the_extractors),
        cmocka_unit_test(a_tone_gives_the_published_numbers),
        cmocka_unit_test(other_settings_follow_the_formula),
        cmocka_unit_test(a_clip_has_the_same_bytes_whatever_came_before),
        cmocka_unit_test(short_and_silent_clips_give_finite_numbers),
        cmocka_unit_test(settings_come_from_preprocessor_config),
        cmocka_unit_test(spec_augment_masks_as_its_distribution_says),
        cmocka_unit_test(each_mask_is_drawn_as_nemo_draws_it),
    };
    return cmocka_run_group_tests(tests, open_expected, close_expected);
}
