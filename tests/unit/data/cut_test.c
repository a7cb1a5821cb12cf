/* lib/data/cut: what is loaded of cuts. tests/oracle/lhotse holds it against lhotse itself. */
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
#include "lib/data/cut.h"

enum { HZ = 1000, N = 1000 };

static char folder[] = "/tmp/cut_test.XXXXXX";

/* Sample i of channel c of the files: all different, exact in 16 bits. */
static float sample(int file, int c, int64_t i)
{
    return (float)((file + 1) * 4000 + c * 2000 + i) / 32768;
}

static void make_file(int file, int n_channels)
{
    char path[64];
    SF_INFO info = {
        .samplerate = HZ, .channels = n_channels, .format = SF_FORMAT_WAV | SF_FORMAT_PCM_16};
    snprintf(path, sizeof path, "%s/%d.wav", folder, file);
    SNDFILE *out = sf_open(path, SFM_WRITE, &info);
    assert_non_null(out);
    for (int i = 0; i < N; i++) {
        short frame[2];
        for (int c = 0; c < n_channels; c++)
            frame[c] = (short)lroundf(sample(file, c, i) * 32768);
        assert_int_equal(sf_writef_short(out, frame, 1), 1);
    }
    sf_close(out);
}

static int setup(void **state)
{
    assert_non_null(mkdtemp(folder));
    make_file(0, 1);
    make_file(1, 1);
    make_file(2, 2);
    return 0;
}

static int teardown(void **state)
{
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/%d.wav", folder, i);
        unlink(path);
    }
    return rmdir(folder);
}

/* @F in a text stands for a recording of file F, one second long. */
static json_t *json_of(const char *text)
{
    json_error_t at;
    char *full = s2s_xasprintf("%s", text);
    char *place;
    while ((place = strstr(full, "@")) != NULL) {
        char *next = s2s_xasprintf(
            "%.*s{\"id\":\"r\",\"sampling_rate\":%d,\"num_samples\":%d,\"duration\":1.0,"
            "\"sources\":[{\"type\":\"file\",\"channels\":%s,\"source\":\"%s/%c.wav\"}]}%s",
            (int)(place - full), full, HZ, N, place[1] == '2' ? "[0,1]" : "[0]", folder, place[1],
            place + 2);
        free(full);
        full = next;
    }
    json_t *json = json_loads(full, 0, &at);
    if (!json)
        fail_msg("%s: %s", full, at.text);
    free(full);
    return json;
}

static int load(struct s2s_audio *audio, const char *text, struct s2s_error *err)
{
    const struct s2s_waves_options opt = {.tolerance_s = 0.2};
    struct s2s_cut *cut;
    json_t *json = json_of(text);
    int rc = s2s_cut_parse(&cut, json, NULL, NULL, err);
    json_decref(json);
    if (rc < 0)
        return rc;
    rc = s2s_cut_check(cut, &opt, err);
    if (rc == 0)
        rc = s2s_cut_load(audio, cut, &opt, err);
    if (rc == 0)
        assert_int_equal(audio->n_samples, s2s_cut_n_samples(cut));
    s2s_cut_free(cut);
    return rc;
}

static void expect(const char *text, float want(int64_t), size_t n)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_audio audio;
    if (load(&audio, text, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(audio.n_samples, n);
    for (size_t i = 0; i < n; i++)
        if (audio.data[i] != want((int64_t)i))
            fail_msg("%s: sample %zu is %.9g, not %.9g", text, i, (double)audio.data[i],
                     (double)want((int64_t)i));
    s2s_audio_release(&audio);
}

static float part(int64_t i)
{
    return sample(0, 0, 250 + i);
}
static float behind_the_end(int64_t i)
{
    return sample(0, 0, 950 + i < N ? 950 + i : 2 * (N - 1) - (950 + i));
}
static float right(int64_t i)
{
    return sample(2, 1, 100 + i);
}
static float both(int64_t i)
{
    return (sample(2, 0, 100 + i) + sample(2, 1, 100 + i)) / 2;
}
static float half(int64_t i)
{
    return 0.5f * sample(0, 0, i);
}
static float padded(int64_t i)
{
    return i < 300 ? sample(0, 0, 250 + i) : 0;
}
static float mixed(int64_t i)
{
    return (i < 300 ? sample(0, 0, 250 + i) : 0) + (i >= 200 ? sample(1, 0, i - 200) : 0);
}

#define MONO(more) "{\"id\":\"a\",\"type\":\"MonoCut\",\"channel\":0," more "}"
#define TRACK(more, cut) "{\"type\":\"MonoCut\"," more "\"cut\":" cut "}"
#define MIXED(tracks) "{\"id\":\"a\",\"type\":\"MixedCut\",\"tracks\":[" tracks "]}"
#define PART MONO("\"start\":0.25,\"duration\":0.3,\"recording\":@0")
#define PADDING(s) \
    "{\"type\":\"PaddingCut\",\"offset\":0.3,\"cut\":{\"id\":\"p\",\"duration\":" s \
    ",\"sampling_rate\":1000,\"feat_value\":-23}}"

static void a_cut_is_a_part_and_what_is_missing_its_mirror_image(void **state)
{
    expect(PART, part, 300);
    expect(MONO("\"start\":0.95,\"duration\":0.09,\"recording\":@0"), behind_the_end, 90);
    expect("{\"id\":\"a\",\"type\":\"MonoCut\",\"channel\":1,\"start\":0.1,\"duration\":0.5,"
           "\"recording\":@2}",
           right, 500);
    expect("{\"id\":\"a\",\"type\":\"MultiCut\",\"channel\":[0,1],\"start\":0.1,\"duration\":0.5,"
           "\"recording\":@2}",
           both, 500);
}

static void tracks_lie_over_each_other_where_they_begin(void **state)
{
    expect(MIXED(TRACK("", PART) "," PADDING("0.2")), padded, 500);
    expect(MIXED(TRACK("\"offset\":0,", PART) "," TRACK("\"offset\":0.2,",
                                                        MONO("\"duration\":0.4,\"recording\":@1"))),
           mixed, 600);
    /* a mute track takes no time either */
    expect(MIXED(TRACK("", PART) "," PADDING("0.2") "," TRACK(
               "\"mute\":true,\"offset\":0.7,", MONO("\"duration\":0.4,\"recording\":@1"))),
           padded, 500);
}

static void volume_is_a_factor_of_a_mix(void **state)
{
    expect(
        "{\"id\":\"a\",\"type\":\"MixedCut\",\"tracks\":[" TRACK(
            "", MONO("\"duration\":1,\"recording\":@0")) "],\"transforms\":[{\"name\":\"Volume\","
                                                         "\"kwargs\":{\"factor\":0.5}}]}",
        half, N);
}

static void snr_is_how_much_quieter_a_track_is(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_audio audio;
    double signal = 0, noise = 0;
    assert_int_equal(
        load(&audio,
             MIXED(TRACK("", MONO("\"duration\":0.5,\"recording\":@0")) "," TRACK(
                 "\"offset\":0.5,\"snr\":6,", MONO("\"duration\":0.5,\"recording\":@1"))),
             &err),
        0);
    for (int i = 0; i < 500; i++) {
        signal += (double)audio.data[i] * (double)audio.data[i];
        noise += (double)audio.data[500 + i] * (double)audio.data[500 + i];
    }
    assert_true(fabs(10 * log10(signal / noise) - 6) < 1e-4);
    s2s_audio_release(&audio);
}

static void faults_name_their_track_and_file(void **state)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {MONO("\"start\":0.9,\"duration\":0.5,\"recording\":@0"),
         "0.wav: 1 s long, the cut says 1.4"},
        {MONO("\"duration\":0.5,\"recording\":@7"), "7.wav"},
        {"{\"id\":\"a\",\"type\":\"MonoCut\",\"channel\":1,\"duration\":0.5,\"recording\":@0}",
         "wanted channels"},
        {MIXED(TRACK("\"snr\":3,", PART)), "no track says"},
        {MIXED(TRACK("", PART) "," TRACK("\"offset\":0.1,",
                                         MONO("\"duration\":0.5,\"recording\":@7"))),
         "7.wav"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_error err = S2S_ERROR_INIT;
        struct s2s_audio audio;
        assert_true(load(&audio, cases[i].text, &err) < 0);
        if (!strstr(err.text, cases[i].why))
            fail_msg("'%s' does not say '%s'", err.text, cases[i].why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_is_a_part_and_what_is_missing_its_mirror_image),
        cmocka_unit_test(tracks_lie_over_each_other_where_they_begin),
        cmocka_unit_test(volume_is_a_factor_of_a_mix),
        cmocka_unit_test(snr_is_how_much_quieter_a_track_is),
        cmocka_unit_test(faults_name_their_track_and_file),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
