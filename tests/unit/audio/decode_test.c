/* lib/audio: decoding of every container, and that what is cut, flipped or odd is refused. */
#include <fcntl.h>
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>
#include <sndfile.h>

#include "lib/audio/audio.h"
#include "lib/audio/audio_internal.h"
#include "lib/base/base.h"
#include "lib/io/digest.h"

enum { RATE = 16000, N = 12000 };

struct bytes {
    unsigned char *data;
    size_t len;
};

static int16_t speech[2 * N];

static int make_speech(void **state)
{
    float noise[2 * N];
    s2s_rng_fill_normal(noise, 2 * N, 9, 0, 0, 1);
    for (int i = 0; i < 2 * N; i++)
        speech[i] = (int16_t)(3000 * sin(i * 0.05) + 300 * (double)noise[i]);
    return 0;
}

/* What is in a file, which goes. */
static struct bytes take_file(const char *path)
{
    struct bytes bytes = {s2s_xmalloc(1 << 20), 0};
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    bytes.len = fread(bytes.data, 1, 1 << 20, in);
    fclose(in);
    unlink(path);
    return bytes;
}

/* N samples of speech in the given libsndfile format. */
static struct bytes encode(int format, int n_channels, int rate_hz)
{
    char path[] = "/tmp/decode_test.XXXXXX";
    close(mkstemp(path));
    SF_INFO info = {.samplerate = rate_hz, .channels = n_channels, .format = format};
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);
    assert_non_null(file);
    sf_command(file, SFC_SET_SCALE_INT_FLOAT_WRITE, NULL, SF_TRUE);
    assert_int_equal(sf_writef_short(file, speech, N), N);
    sf_close(file);
    return take_file(path);
}

static int decode(struct s2s_audio *out, struct bytes bytes, struct s2s_error *err)
{
    /* exactly as large as the input, so that ASan sees a read past it */
    unsigned char *copy = s2s_xmalloc(bytes.len + !bytes.len);
    memcpy(copy, bytes.data, bytes.len);
    int rc = s2s_audio_decode_bytes(out, copy, bytes.len, NULL, err);
    free(copy);
    return rc;
}

static const struct {
    const char *name;
    int format, rate_hz;
    double error; /* largest of the codec; 0: exact */
    bool flips_seen;
} formats[] = {
    {"wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, RATE, 0, false},
    {"wav float", SF_FORMAT_WAV | SF_FORMAT_FLOAT, RATE, 0, false},
    {"wav 24", SF_FORMAT_WAV | SF_FORMAT_PCM_24, RATE, 0, false},
    {"wav ulaw", SF_FORMAT_WAV | SF_FORMAT_ULAW, RATE, 0.01, false},
    {"wavex", SF_FORMAT_WAVEX | SF_FORMAT_PCM_16, RATE, 0, false},
    {"rifx", SF_FORMAT_WAV | SF_FORMAT_PCM_16 | SF_ENDIAN_BIG, RATE, 0, false},
    {"rf64", SF_FORMAT_RF64 | SF_FORMAT_PCM_16, RATE, 0, false},
    {"aiff", SF_FORMAT_AIFF | SF_FORMAT_PCM_16, RATE, 0, false},
    {"au", SF_FORMAT_AU | SF_FORMAT_PCM_16, RATE, 0, false},
    {"au, little-endian", SF_FORMAT_AU | SF_FORMAT_PCM_16 | SF_ENDIAN_LITTLE, RATE, 0, false},
    {"w64", SF_FORMAT_W64 | SF_FORMAT_PCM_16, RATE, 0, false},
    {"caf", SF_FORMAT_CAF | SF_FORMAT_PCM_16, RATE, 0, false},
    {"sphere", SF_FORMAT_NIST | SF_FORMAT_PCM_16, RATE, 0, false},
    {"flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, RATE, 0, true},
    {"vorbis", SF_FORMAT_OGG | SF_FORMAT_VORBIS, RATE, 0.1, true},
    {"opus", SF_FORMAT_OGG | SF_FORMAT_OPUS, RATE, 0.1, true},
    {"mp3", SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, RATE, 0.2, false},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static void every_container_decodes_to_what_went_in(void **state)
{
    for (int f = 0; f < N_FORMATS; f++) {
        struct bytes bytes = encode(formats[f].format, 1, formats[f].rate_hz);
        struct s2s_audio audio;
        struct s2s_audio_info info;
        struct s2s_error err = S2S_ERROR_INIT;
        if (decode(&audio, bytes, &err) < 0)
            fail_msg("%s: %s", formats[f].name, err.text);
        assert_int_equal(audio.rate_hz, RATE);
        if (formats[f].error == 0)
            assert_int_equal(audio.n_samples, N);
        assert_true(audio.n_samples >= N);
        double worst = 0;
        for (int i = 200; i < N - 200; i++)
            worst = fmax(worst, fabs((double)audio.data[i] - speech[i] / 32768.0));
        if (!(worst <= formats[f].error))
            fail_msg("%s: %g", formats[f].name, worst);
        assert_int_equal(s2s_audio_info_bytes(&info, bytes.data, bytes.len, NULL), 0);
        assert_int_equal(info.n_samples, audio.n_samples);
        assert_int_equal(info.n_channels, 1);
        s2s_audio_release(&audio);
        free(bytes.data);
    }
}

static void a_cut_file_is_refused_wherever_it_is_cut(void **state)
{
    for (int f = 0; f < N_FORMATS; f++) {
        struct bytes bytes = encode(formats[f].format, 1, formats[f].rate_hz);
        size_t step = bytes.len / 90 + 1;
        for (size_t len = 0; len < bytes.len; len += len + step < bytes.len - 3 ? step : 1) {
            struct s2s_audio audio;
            struct s2s_error err = S2S_ERROR_INIT;
            /* the last byte of a WAV's odd padding or of a FLAC's end may carry nothing */
            if (decode(&audio, (struct bytes){bytes.data, len}, &err) == 0)
                fail_msg("%s: %zu of %zu bytes decode", formats[f].name, len, bytes.len);
            assert_true(err.text[0] != 0);
        }
        free(bytes.data);
    }
}

static void a_flipped_bit_is_seen_where_the_format_has_checksums(void **state)
{
    for (int f = 0; f < N_FORMATS; f++) {
        if (!formats[f].flips_seen)
            continue;
        struct bytes bytes = encode(formats[f].format, 1, formats[f].rate_hz);
        int n_seen = 0;
        for (int k = 0; k < 64; k++) {
            struct s2s_audio audio;
            size_t at = (size_t)(s2s_rng_below(f, k, bytes.len * 9 / 10) + bytes.len / 20);
            bytes.data[at] ^= 1 << k % 8;
            if (decode(&audio, bytes, NULL) < 0)
                n_seen++;
            else
                s2s_audio_release(&audio);
            bytes.data[at] ^= 1 << k % 8;
        }
        if (n_seen != 64)
            fail_msg("%s: %d of 64 seen", formats[f].name, n_seen);
        free(bytes.data);
    }
}

static void ranges_channels_and_digests_are_as_asked(void **state)
{
    struct bytes bytes = encode(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 2, RATE);
    struct s2s_audio_options opt = S2S_AUDIO_OPTIONS_DEFAULT;
    struct s2s_audio audio;
    struct s2s_error err = S2S_ERROR_INIT;
    char hex[33];
    opt.offset_s = 0.1;
    opt.duration_s = 0.25;
    opt.digest = true;
    assert_int_equal(s2s_audio_decode_bytes(&audio, bytes.data, bytes.len, &opt, NULL), 0);
    assert_int_equal(audio.n_samples, 4000);
    assert_false(audio.int16);
    for (int i = 0; i < 4000; i++)
        assert_true(audio.data[i] ==
                    ((float)speech[2 * (1600 + i)] + (float)speech[2 * (1600 + i) + 1]) / 65536.0f);
    s2s_xxh3_128_hex(hex, bytes.data, bytes.len);
    assert_string_equal(audio.xxh3, hex);
    s2s_audio_release(&audio);
    opt.channel = 1;
    assert_int_equal(s2s_audio_decode_bytes(&audio, bytes.data, bytes.len, &opt, NULL), 0);
    assert_true(audio.int16);
    for (int i = 0; i < 4000; i++)
        assert_true(audio.data[i] == (float)speech[2 * (1600 + i) + 1] / 32768.0f);
    s2s_audio_release(&audio);
    opt.channel = 2;
    assert_int_equal(s2s_audio_decode_bytes(&audio, bytes.data, bytes.len, &opt, &err),
                     S2S_E_RANGE);
    opt.channel = 0;
    opt.offset_s = 0.5;
    opt.duration_s = 0.26; /* the file has 0.75 s: 10 ms too few are within the tolerance */
    assert_int_equal(s2s_audio_decode_bytes(&audio, bytes.data, bytes.len, &opt, NULL), 0);
    assert_int_equal(audio.n_samples, 4000);
    s2s_audio_release(&audio);
    opt.duration_s = 0.3;
    assert_int_equal(s2s_audio_decode_bytes(&audio, bytes.data, bytes.len, &opt, &err),
                     S2S_E_TRUNCATED);
    assert_non_null(strstr(err.text, "ends at 0.75 s"));
    opt.offset_s = 0.75;
    assert_int_equal(s2s_audio_decode_bytes(&audio, bytes.data, bytes.len, &opt, &err),
                     S2S_E_TRUNCATED);
    free(bytes.data);
}

/* Ten seconds of tones and silence, which a variable rate stores in frames of any size. */
static struct bytes encode_tones(int format, int rate_hz, int n, int bitrate_mode)
{
    char path[] = "/tmp/decode_test.XXXXXX";
    close(mkstemp(path));
    float *tones = s2s_xmalloc((size_t)n * sizeof *tones);
    for (int i = 0; i < n; i++) {
        double t = (double)i / rate_hz;
        tones[i] = (float)(sin(10.7 * t) > -0.3 ? 0.5 * sin(942 * t + 80 * sin(3 * t)) : 0);
    }
    SF_INFO info = {.samplerate = rate_hz, .channels = 1, .format = format};
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);
    assert_non_null(file);
    double level = bitrate_mode == SF_BITRATE_MODE_CONSTANT ? 0.5 : 0.99;
    sf_command(file, SFC_SET_BITRATE_MODE, &bitrate_mode, sizeof bitrate_mode);
    sf_command(file, SFC_SET_COMPRESSION_LEVEL, &level, sizeof level);
    assert_int_equal(sf_writef_float(file, tones, n), n);
    sf_close(file);
    free(tones);
    return take_file(path);
}

/* Wherever a range begins, its samples are those of the whole file. */
static void a_range_is_a_part_of_the_whole(void **state)
{
    static const struct {
        int format, rate_hz;
    } lossy[] = {{SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 16000},
                 {SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 44100},
                 {SF_FORMAT_OGG | SF_FORMAT_OPUS, 24000},
                 {SF_FORMAT_OGG | SF_FORMAT_VORBIS, 7350},
                 {SF_FORMAT_OGG | SF_FORMAT_VORBIS, 44100},
                 {SF_FORMAT_WAV | SF_FORMAT_GSM610, 8000}};
    for (size_t f = 0; f < sizeof lossy / sizeof *lossy; f++) {
        struct bytes bytes = encode_tones(lossy[f].format, lossy[f].rate_hz, 10 * lossy[f].rate_hz,
                                          SF_BITRATE_MODE_VARIABLE);
        struct s2s_audio whole, part;
        assert_int_equal(decode(&whole, bytes, NULL), 0);
        for (int k = 1; k < 50; k++) {
            struct s2s_audio_options opt = S2S_AUDIO_OPTIONS_DEFAULT;
            struct s2s_error err = S2S_ERROR_INIT;
            opt.offset_s = 0.199 * k;
            opt.duration_s = 0.15;
            if (s2s_audio_decode_bytes(&part, bytes.data, bytes.len, &opt, &err) < 0)
                fail_msg("%zu: %s", f, err.text);
            const float *same = whole.data + s2s_audio_n_samples(opt.offset_s, whole.rate_hz);
            for (size_t i = 0; i < part.n_samples; i++)
                if (!(fabsf(part.data[i] - same[i]) < 1e-6f))
                    fail_msg("format %zu, sample %zu from %g s on: %g, in the whole %g", f, i,
                             opt.offset_s, (double)part.data[i], (double)same[i]);
            s2s_audio_release(&part);
        }
        s2s_audio_release(&whole);
        free(bytes.data);
    }
}

/* libsndfile guesses the length of such a file, and would read a part of it. */
static void an_mp3_that_tells_no_length_is_no_short_one(void **state)
{
    struct bytes bytes = encode_tones(SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 16000, 160000,
                                      SF_BITRATE_MODE_VARIABLE);
    struct s2s_audio audio;
    struct s2s_error err = S2S_ERROR_INIT;
    unsigned char *tag = memmem(bytes.data, 200, "Xing", 4);
    assert_non_null(tag);
    memset(tag, 0, 16);
    assert_true(decode(&audio, bytes, &err) < 0);
    assert_non_null(strstr(err.text, "no Xing tag"));
    free(bytes.data);
    /* of a constant rate, its guess is a little too long */
    bytes = encode_tones(SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 44100, 160000,
                         SF_BITRATE_MODE_CONSTANT);
    tag = memmem(bytes.data, 200, "Info", 4);
    assert_non_null(tag);
    memset(tag, 0, 16);
    if (decode(&audio, bytes, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(audio.n_samples % 1152 == 0 && audio.n_samples >= 160000);
    /* a picture in front makes it seconds too long */
    enum { PICTURE = 100000 };
    struct s2s_audio behind;
    struct bytes tagged = {s2s_xcalloc(10 + PICTURE + bytes.len, 1), 10 + PICTURE + bytes.len};
    memcpy(tagged.data, "ID3\x03\0\0\0\x06\x0d\x20", 10); /* 6 << 14 | 13 << 7 | 32 */
    memcpy(tagged.data + 10 + PICTURE, bytes.data, bytes.len);
    if (decode(&behind, tagged, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(behind.n_samples, audio.n_samples);
    assert_memory_equal(behind.data, audio.data, audio.n_samples * sizeof *audio.data);
    s2s_audio_release(&behind);
    s2s_audio_release(&audio);
    free(tagged.data);
    free(bytes.data);
}

static struct bytes join(const void *first, size_t len, struct bytes second)
{
    struct bytes both = {s2s_xmalloc(len + second.len), len + second.len};
    memcpy(both.data, first, len);
    memcpy(both.data + len, second.data, second.len);
    return both;
}

/* libsndfile would read the first, and say that this is all. */
static void of_joined_files_none_is_lost(void **state)
{
    static const char id3v1[128] = "TAG";
    static const struct {
        int format;
        const char *why;
        const char *between; /* a tag of the second */
        size_t len;
    } cases[] = {
        {SF_FORMAT_OGG | SF_FORMAT_VORBIS, "another stream begins at byte", "", 0},
        {SF_FORMAT_OGG | SF_FORMAT_OPUS, "another stream begins at byte", "", 0},
        {SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, "frames, of which its first says", "", 0},
        {SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, "frames, of which its first says",
         "ID3\x04\0\x10\0\0\0\x02..3DI\x04\0\x10\0\0\0\x02", 22},
        {SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, "frames, of which its first says", id3v1,
         sizeof id3v1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes one = encode(cases[i].format, 1, RATE);
        struct bytes tagged = join(cases[i].between, cases[i].len, one);
        struct bytes both = join(one.data, one.len, tagged);
        struct s2s_audio audio;
        struct s2s_error err = S2S_ERROR_INIT;
        assert_int_equal(decode(&audio, one, &err), 0);
        s2s_audio_release(&audio);
        assert_int_equal(decode(&audio, both, &err), S2S_E_UNSUPPORTED);
        if (!strstr(err.text, cases[i].why))
            fail_msg("case %zu: %s", i, err.text);
        free(one.data);
        free(tagged.data);
        free(both.data);
    }
}

static void what_lies_behind_a_tag_at_the_end_is_no_sound(void **state)
{
    static const char extended[227 + 128] = "TAG+a title that is longer than those of ID3v1, and "
                                            "goes on and on: so is what is known of the artist, "
                                            "and of the album, in the two fields behind this one",
                                     and_more[128 + 8] = "TAG",
                                     appended[] = "ID3\x04\0\0\0\0\0\x02..more bytes";
    static const struct {
        const char *tag;
        size_t len;
    } tails[] = {{extended, sizeof extended}, {and_more, sizeof and_more - 1}, {appended, 22}};
    struct bytes bytes = encode(SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 1, RATE);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        struct bytes tail = {s2s_xmalloc(tails[i].len), tails[i].len};
        memcpy(tail.data, tails[i].tag, tail.len);
        tail.data[tail.len - 1] = 'x';
        struct bytes tagged = join(bytes.data, bytes.len, tail);
        struct s2s_audio audio;
        struct s2s_error err = S2S_ERROR_INIT;
        if (decode(&audio, tagged, &err) < 0)
            fail_msg("tail %zu: %s", i, err.text);
        s2s_audio_release(&audio);
        free(tail.data);
        free(tagged.data);
    }
    free(bytes.data);
}

/* Some programs put the tag of an MP3 in front of every file. */
static void a_tag_in_front_changes_nothing(void **state)
{
    static const char tag[] = "ID3\x03\0\0\0\0\0\x14....................";
    for (int f = 0; f < N_FORMATS; f++) {
        struct bytes bytes = encode(formats[f].format, 1, formats[f].rate_hz);
        struct bytes tagged = join(tag, sizeof tag - 1, bytes);
        struct s2s_audio plain, behind;
        struct s2s_error err = S2S_ERROR_INIT;
        assert_int_equal(decode(&plain, bytes, &err), 0);
        if (decode(&behind, tagged, &err) < 0)
            fail_msg("%s: %s", formats[f].name, err.text);
        assert_int_equal(behind.n_samples, plain.n_samples);
        assert_memory_equal(behind.data, plain.data, plain.n_samples * sizeof *plain.data);
        s2s_audio_release(&plain);
        s2s_audio_release(&behind);
        tagged.len -= bytes.len / 2;
        if (decode(&behind, tagged, &err) >= 0)
            fail_msg("%s: half of it is taken for the whole", formats[f].name);
        free(bytes.data);
        free(tagged.data);
    }
}

static void a_w64_from_a_pipe_says_no_length(void **state)
{
    struct bytes bytes = encode(SF_FORMAT_W64 | SF_FORMAT_PCM_16, 1, RATE);
    struct s2s_audio audio;
    struct s2s_error err = S2S_ERROR_INIT;
    memset(bytes.data + 16, 0xff, 8);
    unsigned char *data = memmem(bytes.data, 200, "data", 4);
    assert_non_null(data);
    memset(data + 16, 0xff, 8);
    if (decode(&audio, bytes, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(audio.n_samples, N);
    s2s_audio_release(&audio);
    free(bytes.data);
}

static void a_flac_from_a_pipe_says_no_length(void **state)
{
    struct bytes bytes = encode(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 1, RATE);
    struct s2s_audio audio;
    struct s2s_audio_info info;
    struct s2s_error err = S2S_ERROR_INIT;
    bytes.data[21] &= 0xf0;
    memset(bytes.data + 22, 0, 4);
    assert_int_equal(s2s_audio_info_bytes(&info, bytes.data, bytes.len, &err), 0);
    assert_int_equal(info.n_samples, N);
    assert_int_equal(decode(&audio, bytes, &err), 0);
    assert_int_equal(audio.n_samples, N);
    for (int i = 0; i < N; i++)
        assert_true(audio.data[i] * 32768 == speech[i]);
    s2s_audio_release(&audio);
    struct s2s_audio_options opt = S2S_AUDIO_OPTIONS_DEFAULT;
    opt.offset_s = 0.3;
    assert_int_equal(s2s_audio_decode_bytes(&audio, bytes.data, bytes.len, &opt, &err), 0);
    assert_int_equal(audio.n_samples, N - RATE * 3 / 10);
    for (size_t i = 0; i < audio.n_samples; i++)
        assert_true(audio.data[i] * 32768 == speech[i + RATE * 3 / 10]);
    s2s_audio_release(&audio);
    free(bytes.data);
}

static void put_file(const char *path, const void *data, size_t len)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, len, out), len);
    fclose(out);
}

/* Parts of a file that is known are those of one that is not; a file that changes is not known. */
static void what_is_known_of_a_file_changes_no_sample(void **state)
{
    enum { LONG = 40 * RATE };
    static const int known_formats[] = {SF_FORMAT_WAV | SF_FORMAT_PCM_16,
                                        SF_FORMAT_FLAC | SF_FORMAT_PCM_16,
                                        SF_FORMAT_WAV | SF_FORMAT_FLOAT};
    struct s2s_audio_known *known = s2s_audio_known_new();
    for (size_t f = 0; f < sizeof known_formats / sizeof *known_formats; f++) {
        char path[] = "/tmp/decode_test.XXXXXX", digest[33] = "";
        close(mkstemp(path));
        SF_INFO how = {.samplerate = RATE, .channels = 1, .format = known_formats[f]};
        SNDFILE *file = sf_open(path, SFM_WRITE, &how);
        int16_t *noise = s2s_xmalloc(LONG * sizeof *noise);
        for (int i = 0; i < LONG; i++)
            noise[i] = (int16_t)(s2s_rng_below(7, (uint64_t)i, 1 << 16) - (1 << 15));
        assert_int_equal(sf_writef_short(file, noise, LONG), LONG);
        sf_close(file);
        struct s2s_audio_options opt = S2S_AUDIO_OPTIONS_DEFAULT;
        struct s2s_audio_info info;
        struct s2s_error err = S2S_ERROR_INIT;
        opt.digest = true;
        for (int k = 0; k < 8; k++) {
            struct s2s_audio plain, part;
            opt.offset_s = 4.7 * k;
            opt.duration_s = k < 7 ? 2.5 : 0;
            opt.known = NULL;
            assert_int_equal(s2s_audio_decode_file(&plain, path, &opt, &err), 0);
            opt.known = known;
            assert_int_equal(s2s_audio_info_file(&info, path, known, &err), 0);
            assert_int_equal(info.n_samples, LONG);
            if (s2s_audio_decode_file(&part, path, &opt, &err) < 0)
                fail_msg("%s", err.text);
            assert_int_equal(part.n_samples, plain.n_samples);
            assert_memory_equal(part.data, plain.data, part.n_samples * sizeof *part.data);
            assert_string_equal(part.xxh3, plain.xxh3);
            memcpy(digest, part.xxh3, sizeof digest);
            s2s_audio_release(&plain);
            s2s_audio_release(&part);
        }
        /* another last sample in the file of the same size, and then a file that is cut */
        struct bytes bytes = {s2s_xmalloc(4 << 20), 0};
        FILE *in = fopen(path, "rb");
        bytes.len = fread(bytes.data, 1, 4 << 20, in);
        fclose(in);
        assert_true(bytes.len > 1 << 20 && bytes.len < 4 << 20);
        bytes.data[bytes.len - 1] ^= 1;
        put_file(path, bytes.data, bytes.len);
        struct s2s_audio part;
        opt.offset_s = 1;
        opt.duration_s = 2;
        if (s2s_audio_decode_file(&part, path, &opt, &err) < 0)
            fail_msg("%s", err.text);
        assert_string_not_equal(part.xxh3, digest);
        s2s_audio_release(&part);
        put_file(path, bytes.data, bytes.len / 2);
        if (known_formats[f] != (SF_FORMAT_FLAC | SF_FORMAT_PCM_16)) /* says no size of itself */
            assert_int_equal(s2s_audio_info_file(&info, path, known, &err), S2S_E_TRUNCATED);
        opt.offset_s = 35;
        assert_true(s2s_audio_decode_file(&part, path, &opt, &err) < 0);
        unlink(path);
        free(bytes.data);
        free(noise);
    }
    s2s_audio_known_free(known);
}

/* A small file is judged by its first bytes where they say all. */
static void assert_file_says_what_its_bytes_say(const char *path, const unsigned char *bytes,
                                                size_t len)
{
    struct s2s_audio_info of_file = {0}, of_bytes = {0};
    struct s2s_error err = S2S_ERROR_INIT, wanted = S2S_ERROR_INIT;
    put_file(path, bytes, len);
    const int rc = s2s_audio_info_bytes(&of_bytes, bytes, len, &wanted);
    assert_int_equal(s2s_audio_info_file(&of_file, path, NULL, &err), rc);
    if (rc < 0)
        assert_string_equal(err.text + strlen(path) + 2, wanted.text);
    assert_memory_equal(&of_file, &of_bytes, sizeof of_file);
}

static void a_file_says_the_same_as_its_bytes(void **state)
{
    char path[] = "/tmp/decode_test.XXXXXX";
    close(mkstemp(path));
    for (int f = 0; f < N_FORMATS; f++) {
        struct bytes bytes = encode(formats[f].format, 1, formats[f].rate_hz);
        for (size_t len = 0; len < 64; len++)
            assert_file_says_what_its_bytes_say(path, bytes.data, len);
        assert_file_says_what_its_bytes_say(path, bytes.data, bytes.len - 1);
        assert_file_says_what_its_bytes_say(path, bytes.data, bytes.len);
        if (!memcmp(bytes.data, "RIFF", 4))
            for (uint32_t extra = 4000; extra < 4100; extra += 2) { /* a chunk before the rest */
                unsigned char *longer = s2s_xcalloc(bytes.len + 8 + extra, 1);
                memcpy(longer, bytes.data, 12);
                memcpy(longer + 12, "LIST", 4);
                memcpy(longer + 16, &extra, 4);
                memcpy(longer + 20 + extra, bytes.data + 12, bytes.len - 12);
                assert_file_says_what_its_bytes_say(path, longer, bytes.len + 8 + extra);
                free(longer);
            }
        free(bytes.data);
    }
    unlink(path);
}

static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void of_a_million_files_no_more_is_known_than_a_part(void **state)
{
    const size_t before = allocated();
    struct s2s_audio_known *known = s2s_audio_known_new();
    struct audio_facts facts = {.is_checked = true}, found;
    struct stat st = {.st_size = 2 << 20};
    for (int64_t i = 1; i <= 1000000; i++) {
        st.st_ino = (ino_t)i;
        facts.info.n_samples = i;
        audio_known_add(known, &st, &facts);
        audio_known_find(&found, known, &st);
        assert_true(found.is_checked && found.info.n_samples == i);
    }
    assert_true(allocated() - before < 16 << 20);
    st.st_mtim.tv_nsec++;
    audio_known_find(&found, known, &st);
    assert_false(found.is_checked);
    s2s_audio_known_free(known);
}

static void odd_files_are_errors_that_say_why(void **state)
{
    struct s2s_audio audio;
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(s2s_audio_decode_bytes(&audio, "", 0, NULL, &err), S2S_E_EMPTY);
    assert_non_null(strstr(err.text, "empty"));
    assert_int_equal(s2s_audio_decode_bytes(&audio, "no sound at all", 15, NULL, &err),
                     S2S_E_FORMAT);
    assert_int_equal(s2s_audio_decode_file(&audio, "/nowhere/x.wav", NULL, &err), S2S_E_OPEN);
    assert_non_null(strstr(err.text, "/nowhere/x.wav"));
    assert_int_equal(s2s_audio_decode_file(&audio, "/tmp", NULL, &err), S2S_E_OPEN);
    struct bytes bytes = encode(SF_FORMAT_WAV | SF_FORMAT_FLOAT, 1, RATE);
    float bad = NAN;
    memcpy(bytes.data + bytes.len - 400, &bad, sizeof bad);
    assert_int_equal(decode(&audio, bytes, &err), S2S_E_NONFINITE);
    assert_non_null(strstr(err.text, "sample 11900 is NaN"));
    free(bytes.data);
    /* a header alone, as written for no sample */
    bytes = encode(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 1, RATE);
    memset(bytes.data + 40, 0, 4);
    bytes.data[4] = 36;
    bytes.data[5] = bytes.data[6] = bytes.data[7] = 0;
    bytes.len = 44;
    assert_int_equal(decode(&audio, bytes, &err), S2S_E_EMPTY);
    free(bytes.data);
}

static void a_wav_from_a_pipe_goes_to_the_end_of_the_file(void **state)
{
    struct bytes bytes = encode(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 1, RATE);
    struct s2s_audio audio;
    memset(bytes.data + 4, 0xff, 4);
    memset(bytes.data + 40, 0xff, 4);
    assert_int_equal(decode(&audio, bytes, NULL), 0);
    assert_int_equal(audio.n_samples, N);
    s2s_audio_release(&audio);
    free(bytes.data);
}

static void sample_counts_round_half_up(void **state)
{
    assert_int_equal(s2s_audio_n_samples(1.0, 16000), 16000);
    assert_int_equal(s2s_audio_n_samples(0.00003125, 16000), 1);  /* 0.5 */
    assert_int_equal(s2s_audio_n_samples(0.000031249, 16000), 0); /* 0.499984 */
    assert_int_equal(s2s_audio_n_samples(0.00015625, 16000), 3);  /* 2.5 */
    assert_int_equal(s2s_audio_n_samples(16.04, 22050), 353682);
    assert_int_equal(s2s_audio_n_resampled(44100, 44100, 16000), 16000);
    assert_int_equal(s2s_audio_n_resampled(1, 8000, 16000), 2);
    assert_int_equal(s2s_audio_n_resampled(1, 16000, 8000), 1); /* 0.5 */
    assert_int_equal(s2s_audio_n_resampled(3, 16000, 8000), 2);
}

static void a_tone_survives_resampling(void **state)
{
    enum { FROM = 44100, LEN = 44100 };
    float *in = s2s_xmalloc(LEN * sizeof *in), *out = s2s_xmalloc(RATE * sizeof *out);
    for (int i = 0; i < LEN; i++)
        in[i] = (float)(0.5 * sin(2 * M_PI * 1000 * i / FROM));
    assert_int_equal(s2s_audio_resample(out, in, LEN, FROM, RATE, NULL), 0);
    for (int i = 200; i < RATE - 200; i++)
        assert_true(fabs((double)out[i] - 0.5 * sin(2 * M_PI * 1000 * i / RATE)) < 1e-4);
    assert_int_equal(s2s_audio_resample(out, in, 10, 0, RATE, NULL), S2S_E_RANGE);
    free(in);
    free(out);
    struct bytes bytes = encode(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 1, 8000);
    struct s2s_audio_options opt = S2S_AUDIO_OPTIONS_DEFAULT;
    struct s2s_audio audio;
    opt.rate_hz = 16000;
    assert_int_equal(s2s_audio_decode_bytes(&audio, bytes.data, bytes.len, &opt, NULL), 0);
    assert_int_equal(audio.n_samples, 2 * N);
    assert_int_equal(audio.rate_hz, 16000);
    assert_int_equal(audio.in.rate_hz, 8000);
    s2s_audio_release(&audio);
    free(bytes.data);
}

static void sixteen_bits_go_round_and_clip(void **state)
{
    int16_t in[] = {-32768, -1, 0, 1, 32767}, out[5];
    float x[5], loud[] = {1.5f, -1.5f, 0.5f / 32768, 1.5f / 32768, 1};
    s2s_audio_from_s16(x, in, 5);
    s2s_audio_to_s16(out, x, 5);
    assert_memory_equal(in, out, sizeof in);
    s2s_audio_to_s16(out, loud, 5);
    const int16_t want[] = {32767, -32768, 0, 2, 32767};
    assert_memory_equal(out, want, sizeof want);
}

/* What a codec says on stderr does not come through; what others say does. */
static void codecs_are_silent(void **state)
{
    struct bytes bytes = encode(SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 1, RATE);
    char path[] = "/tmp/decode_test.XXXXXX", text[256] = "";
    int fd = mkstemp(path), saved = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    for (size_t at = 300; at < bytes.len; at += 97) {
        struct s2s_audio audio;
        bytes.data[at] ^= 0x5a;
        if (decode(&audio, bytes, NULL) == 0)
            s2s_audio_release(&audio);
    }
    fprintf(stderr, "ours");
    dup2(saved, STDERR_FILENO);
    close(saved);
    lseek(fd, 0, SEEK_SET);
    assert_int_equal(read(fd, text, sizeof text - 1), 4);
    assert_string_equal(text, "ours");
    close(fd);
    unlink(path);
    free(bytes.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_says_the_same_as_its_bytes),
        cmocka_unit_test(every_container_decodes_to_what_went_in),
        cmocka_unit_test(a_cut_file_is_refused_wherever_it_is_cut),
        cmocka_unit_test(a_flipped_bit_is_seen_where_the_format_has_checksums),
        cmocka_unit_test(ranges_channels_and_digests_are_as_asked),
        cmocka_unit_test(a_range_is_a_part_of_the_whole),
        cmocka_unit_test(of_joined_files_none_is_lost),
        cmocka_unit_test(what_lies_behind_a_tag_at_the_end_is_no_sound),
        cmocka_unit_test(a_tag_in_front_changes_nothing),
        cmocka_unit_test(an_mp3_that_tells_no_length_is_no_short_one),
        cmocka_unit_test(a_flac_from_a_pipe_says_no_length),
        cmocka_unit_test(a_w64_from_a_pipe_says_no_length),
        cmocka_unit_test(what_is_known_of_a_file_changes_no_sample),
        cmocka_unit_test(of_a_million_files_no_more_is_known_than_a_part),
        cmocka_unit_test(odd_files_are_errors_that_say_why),
        cmocka_unit_test(a_wav_from_a_pipe_goes_to_the_end_of_the_file),
        cmocka_unit_test(sample_counts_round_half_up),
        cmocka_unit_test(a_tone_survives_resampling),
        cmocka_unit_test(sixteen_bits_go_round_and_clip),
        cmocka_unit_test(codecs_are_silent),
    };
    return cmocka_run_group_tests(tests, make_speech, NULL);
}
