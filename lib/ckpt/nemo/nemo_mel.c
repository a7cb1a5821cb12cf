/*
 * Converts NeMo's AudioToMelSpectrogramPreprocessor to transformers' ParakeetFeatureExtractor:
 * sizes that both can set, and settings that only NeMo has. NeMo's defaults:
 * nemo/collections/asr/modules/audio_preprocessing.py.
 */
#include <math.h>

#include "lib/base/base.h"
#include "lib/ckpt/nemo/from_nemo.h"

/* Settings with a single value in ParakeetFeatureExtractor, which is also the default. */
static const struct {
    const char *key;
    const char *text; /* NULL: a number or bool */
    double number;
    bool null_is_off; /* else null is refused by NeMo or as the default */
} fixed[] = {
    {"normalize", "per_feature", 0, true},
    {"window", "hann", 0, true},
    {"mel_norm", "slaney", 0, true},
    {"log_zero_guard_type", "add", 0, false},
    {"log_zero_guard_value", NULL, 0x1p-24, false},
    {"log", NULL, 1, true},
    {"exact_pad", NULL, 0, false},
    {"frame_splicing", NULL, 1, false},
    {"mag_power", NULL, 2, false},
    {"lowfreq", NULL, 0, false},
    {"use_torchaudio", NULL, 0, false},
};

/* Numbers and their bounds; without a key there is a default. */
static const struct {
    const char *key;
    bool whole, null_too;
    double min, max;
} numbers[] = {
    {"sample_rate", true, false, 1, 1 << 24},    {"features", true, false, 1, 1 << 16},
    {"n_fft", true, true, 0, 1 << 24},           {"n_window_size", true, true, 0, 1 << 24},
    {"n_window_stride", true, true, 0, 1 << 24}, {"window_size", false, true, 0, 1000},
    {"window_stride", false, true, 0, 1000},     {"preemph", false, true, -1e9, 1e9},
    {"pad_value", false, false, -1e9, 1e9},      {"highfreq", false, true, 0, 1e9},
};

static const char *find_odd_number(const json_t *from)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const json_t *value = json_object_get(from, numbers[i].key);
        const double number = json_number_value(value);
        const bool is_one = numbers[i].whole ? json_is_integer(value) : json_is_number(value);
        if (value && !(json_is_null(value) && numbers[i].null_too) &&
            !(is_one && number >= numbers[i].min && number <= numbers[i].max))
            return numbers[i].key;
    }
    return NULL;
}

static double number_of(const json_t *value)
{
    return json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
}

/* The first key whose value transformers does not support; NULL: none. */
static const char *find_odd(const json_t *from, json_int_t hz)
{
    const char *class = json_string_value(json_object_get(from, "_target_")), *key;
    json_t *item;
    if (class && !s2s_ends_with(class, "AudioToMelSpectrogramPreprocessor"))
        return "_target_";
    json_object_foreach((json_t *)from, key, item)
    {
        if (json_is_string(item) && strstr(json_string_value(item), "${"))
            return key; /* a reference that was not resolved */
    }
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        const json_t *value = json_object_get(from, fixed[i].key);
        const char *text = json_string_value(value);
        const bool is_it = fixed[i].text
                               ? text && strcmp(text, fixed[i].text) == 0
                               : !text && fabs(number_of(value) - fixed[i].number) < 1e-12;
        /* null turns normalisation, the window, the mels' norm and the logarithm off */
        const bool silent = !value || (json_is_null(value) && !fixed[i].null_is_off);
        if (!silent && !is_it)
            return fixed[i].key;
    }
    const double highest = json_number_value(json_object_get(from, "highfreq"));
    return highest > 0 && highest * 2 != (double)hz ? "highfreq" : find_odd_number(from);
}

/* Number of samples, from the key in seconds or the key that counts them; truncated as in NeMo. 0:
 * neither says one. */
static json_int_t samples(const json_t *from, const char *seconds, const char *count,
                          double usual_s, json_int_t hz)
{
    const json_t *said = json_object_get(from, seconds), *n = json_object_get(from, count);
    const double s = said || json_is_integer(n) ? json_number_value(said) : usual_s;
    return s > 0 ? (json_int_t)(s * (double)hz) : json_integer_value(n);
}

/* The FFT size: the next power of two. */
static json_int_t fft_of(json_int_t window)
{
    json_int_t n = 1;
    while (n < window)
        n *= 2;
    return n;
}

json_t *ckpt_nemo_mel(char **odd, const json_t *from)
{
    static const char *const keys[][2] = {{"features", "feature_size"},
                                          {"n_fft", "n_fft"},
                                          {"preemph", "preemphasis"},
                                          {"pad_value", "padding_value"}};
    const json_t *rate = json_object_get(from, "sample_rate");
    const json_int_t hz = rate ? json_integer_value(rate) : 16000;
    const char *key = find_odd(from, hz);
    const json_int_t window = key ? 1 : samples(from, "window_size", "n_window_size", 0.02, hz);
    const json_int_t hop = key ? 1 : samples(from, "window_stride", "n_window_stride", 0.01, hz);
    if (window < 1 || hop < 1)
        key = window < 1 ? "window_size" : "window_stride";
    *odd = key ? s2s_xstrdup(key) : NULL; /* it may be a key of `from` */
    if (key)
        return NULL;
    json_t *out =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "feature_extractor_type",
                  "ParakeetFeatureExtractor", "sampling_rate", hz, "win_length", window,
                  "hop_length", hop, "feature_size", (json_int_t)64, "n_fft", fft_of(window));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(from, keys[i][0]);
        if (json_is_number(value))
            json_object_set(out, keys[i][1], value);
    }
    if (json_integer_value(json_object_get(out, "n_fft")) == 0) /* as null */
        json_object_set_new(out, "n_fft", json_integer(fft_of(window)));
    if (json_is_null(json_object_get(from, "preemph")))
        json_object_set_new(out, "preemphasis", json_real(0.0));
    return out;
}
