/* lib/audio: sound decoded into a thread's space, and as 16-bit samples, is sound decoded alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>
#include <sndfile.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"

enum { RATE = 16000, MOST = 3 * RATE };

static void write_noise(const char *path, int format, int n_channels, int n, uint64_t seed)
{
    SF_INFO info = {.samplerate = RATE, .channels = n_channels, .format = format};
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);
    int16_t *noise = s2s_xmalloc((size_t)(n * n_channels) * sizeof *noise);
    for (int i = 0; i < n * n_channels; i++)
        noise[i] = (int16_t)(s2s_rng_below(seed, (uint64_t)i, 1 << 16) - (1 << 15));
    assert_non_null(file);
    sf_command(file, SFC_SET_SCALE_INT_FLOAT_WRITE, NULL, SF_TRUE);
    assert_int_equal(sf_writef_short(file, noise, n), n);
    sf_close(file);
    free(noise);
}

static void assert_same(const struct s2s_audio *alone, const struct s2s_audio *audio)
{
    assert_int_equal(audio->n_samples, alone->n_samples);
    assert_int_equal(audio->rate_hz, alone->rate_hz);
    assert_int_equal(audio->int16, alone->int16);
    assert_string_equal(audio->xxh3, alone->xxh3);
    for (size_t i = 0; i < alone->n_samples; i++) {
        const float x = audio->s16 ? (float)audio->s16[i] / 32768 : audio->data[i];
        if (x != alone->data[i])
            fail_msg("sample %zu is %g, alone %g", i, (double)x, (double)alone->data[i]);
    }
}

static const struct s2s_audio_options ranges[] = {
    {.channel = -1},
    {.channel = 0},
    {.channel = -1, .rate_hz = RATE},
    {.channel = -1, .rate_hz = 8000},
    {.channel = 0, .rate_hz = 22050},
    {.channel = 0, .offset_s = 0.2, .duration_s = 0.7},
    {.channel = 0, .change.volume = 0.5},
    {.channel = 0, .fits = true, .duration_s = 1.1, .tolerance_s = 4},
    {.channel = 0, .fits = true, .duration_s = 1.1, .tolerance_s = 4, .rate_hz = 48000},
};

/* Is all of this, of a file of 16 bits, 16-bit samples? */
static bool is_whole(const struct s2s_audio_options *opt, int n_channels)
{
    return (n_channels == 1 || opt->channel >= 0) && !opt->fits && opt->change.volume == 0 &&
           (opt->rate_hz == 0 || opt->rate_hz == RATE);
}

static void what_lay_in_a_space_before_changes_no_sample(void **state)
{
    static const struct {
        int format, n_channels, n;
    } files[] = {
        {SF_FORMAT_WAV | SF_FORMAT_PCM_16, 1, MOST},
        {SF_FORMAT_WAV | SF_FORMAT_PCM_16, 2, RATE},
        {SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 1, MOST / 2},
        {SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 2, RATE},
        {SF_FORMAT_WAV | SF_FORMAT_FLOAT, 1, RATE},
        {SF_FORMAT_WAV | SF_FORMAT_FLOAT, 2, MOST},
        {SF_FORMAT_FLAC | SF_FORMAT_PCM_24, 1, RATE},
    };
    struct s2s_audio_space *space = s2s_audio_space_new();
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char path[] = "/tmp/space_test.XXXXXX";
        close(mkstemp(path));
        write_noise(path, files[f].format, files[f].n_channels, files[f].n, f);
        const bool is_int16 = (files[f].format & SF_FORMAT_SUBMASK) == SF_FORMAT_PCM_16;
        for (size_t k = 0; k < sizeof ranges / sizeof *ranges; k++) {
            struct s2s_audio_options opt = ranges[k];
            struct s2s_audio alone, audio;
            opt.digest = true;
            assert_int_equal(s2s_audio_decode_file(&alone, path, &opt, NULL), 0);
            for (int i = 0; i < 4; i++) {
                opt.space = i % 2 ? space : NULL;
                opt.s16 = i / 2;
                assert_int_equal(s2s_audio_decode_file(&audio, path, &opt, NULL), 0);
                assert_int_equal(audio.s16 != NULL,
                                 opt.s16 && is_int16 && is_whole(&opt, files[f].n_channels));
                assert_same(&alone, &audio);
                s2s_audio_release(&audio);
            }
            s2s_audio_release(&alone);
        }
        unlink(path);
    }
    s2s_audio_space_free(space);
}

static void silence_is_as_silent_in_16_bits(void **state)
{
    enum { N = 10000 };
    static int16_t s16[N];
    static float data[N];
    const struct s2s_audio ints = {.s16 = s16, .n_samples = N};
    const struct s2s_audio floats = {.data = data, .n_samples = N};
    assert_true(s2s_audio_is_silent(&ints) && s2s_audio_is_silent(&floats));
    s16[N - 1] = -1;
    data[N - 1] = -1.0f / 32768;
    assert_false(s2s_audio_is_silent(&ints) || s2s_audio_is_silent(&floats));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_lay_in_a_space_before_changes_no_sample),
        cmocka_unit_test(silence_is_as_silent_in_16_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
