/* Reads and loads Lhotse's cuts. */
#include "lib/data/cut.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"
#include "lib/data/line_json.h"

/* ---- descriptions ---- */

void s2s_cut_free(struct s2s_cut *cut)
{
    if (!cut)
        return;
    for (size_t i = 0; i < cut->n_tracks; i++) {
        if (cut->tracks[i].recording)
            s2s_recording_release(cut->tracks[i].recording);
        free(cut->tracks[i].recording);
        free(cut->tracks[i].channels);
    }
    free(cut->tracks);
    free(cut->transforms);
    free(cut->id);
    free(cut);
}

static int parse_padding(struct s2s_track *track, const json_t *json, struct s2s_error *err)
{
    track->is_padding = true;
    int rc = data_get_number(&track->duration_s, json, "duration", 0, err);
    if (rc > 0)
        rc = data_get_int(&track->rate_hz, json, "sampling_rate", 1, err);
    if (rc == 0)
        return s2s_error_set(err, S2S_E_FORMAT, "a PaddingCut lacks duration or sampling_rate");
    return rc < 0 ? rc : 0;
}

static int all_channels(struct s2s_track *track)
{
    const struct s2s_recording *r = track->recording;
    track->channels = s2s_xcalloc((size_t)r->n_channels, sizeof *track->channels);
    track->n_channels = r->n_channels;
    memcpy(track->channels, r->channels, (size_t)r->n_channels * sizeof *track->channels);
    return 0;
}

static bool is_custom(const char *field)
{
    return field && strcmp(field, "recording") != 0;
}

static const json_t *beside(const json_t *custom, const char *field, const char *suffix)
{
    char *key = s2s_xasprintf("%s_%s", field, suffix);
    const json_t *value = json_object_get(custom, key);
    free(key);
    return value;
}

/* A recording among the custom fields: the same part of it as of the cut's own, or with
 * NAME_unaligned all of it; its channels are those of NAME_channel_selector, or all. */
static int parse_custom(struct s2s_track *track, const json_t *json, const char *field,
                        struct s2s_error *err)
{
    const json_t *custom = json_object_get(json, "custom");
    const json_t *channels = beside(custom, field, "channel_selector");
    free(track->channels);
    track->channels = NULL;
    if (data_is_truthy(beside(custom, field, "unaligned"))) {
        track->start_s = 0;
        track->duration_s = track->recording->duration_s;
    }
    return channels && !json_is_null(channels)
               ? data_get_channels(&track->channels, &track->n_channels, channels, err)
               : all_channels(track);
}

static int parse_field(struct s2s_track *track, const json_t *json, const char *field,
                       const char *manifest, struct s2s_error *err)
{
    const json_t *from = is_custom(field) ? json_object_get(json, "custom") : json;
    const json_t *recording = json_object_get(from, is_custom(field) ? field : "recording");
    if (is_custom(field) && !json_is_array(json_object_get(recording, "sources")))
        return s2s_error_set(err, S2S_E_NOTFOUND, "no recording 'custom.%s'", field);
    track->recording = s2s_xcalloc(1, sizeof *track->recording);
    int rc = s2s_recording_parse(track->recording, recording, manifest, err);
    if (rc < 0)
        return rc;
    track->rate_hz = track->recording->rate_hz;
    if (is_custom(field))
        return parse_custom(track, json, field, err);
    return track->channels ? 0 : all_channels(track);
}

static int parse_track(struct s2s_track *track, const json_t *json, const char *type,
                       const char *field, const char *manifest, struct s2s_error *err)
{
    if (type && !strcmp(type, "PaddingCut"))
        return parse_padding(track, json, err);
    if (type && strcmp(type, "MonoCut") != 0 && strcmp(type, "MultiCut") != 0 &&
        strcmp(type, "Cut") != 0)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "a cut of type '%s'; MonoCut, MultiCut, MixedCut and PaddingCut are "
                             "known",
                             type);
    int rc = data_get_number(&track->start_s, json, "start", 0, err);
    if (rc >= 0)
        rc = data_get_number(&track->duration_s, json, "duration", 0, err);
    if (rc == 0)
        return s2s_error_set(err, S2S_E_FORMAT, "'duration' is missing");
    if (rc > 0 && json_object_get(json, "channel"))
        rc = data_get_channels(&track->channels, &track->n_channels,
                               json_object_get(json, "channel"), err);
    return rc < 0 ? rc : parse_field(track, json, field, manifest, err);
}

static int parse_mixed_track(struct s2s_track *track, const json_t *json, const char *field,
                             const char *manifest, struct s2s_error *err)
{
    const json_t *cut = json_object_get(json, "cut"), *snr = json_object_get(json, "snr");
    const char *type = json_string_value(json_object_get(json, "type"));
    type = type ? type : json_string_value(json_object_get(cut, "type"));
    if (!json_is_object(cut))
        return s2s_error_set(err, S2S_E_FORMAT, "'tracks' has one without a cut");
    track->is_reference = json_is_true(json_object_get(json, "is_snr_reference"));
    track->is_mute = json_is_true(json_object_get(json, "mute"));
    track->has_snr = json_is_number(snr);
    track->snr_db = track->has_snr ? json_number_value(snr) : 0;
    int rc = data_get_number(&track->offset_s, json, "offset", 0, err);
    if (rc >= 0)
        rc = parse_track(track, cut, type, field, manifest, err);
    if (!is_custom(field))
        return rc;
    /* custom recordings lie behind each other as their cuts do, and silence where there is none */
    track->has_snr = track->is_reference = false;
    track->rate_hz = track->is_padding ? 0 : track->rate_hz;
    if (rc != S2S_E_NOTFOUND)
        return rc;
    s2s_error_clear(err);
    track->is_padding = true;
    return 0;
}

/* The rate and length of a mix are those of its tracks. */
static int measure_mix(struct s2s_cut *cut, struct s2s_error *err)
{
    bool any_audible = false;
    for (size_t i = 0; i < cut->n_tracks; i++)
        any_audible |= !cut->tracks[i].is_mute;
    for (size_t i = 0; i < cut->n_tracks; i++) {
        struct s2s_track *track = &cut->tracks[i];
        const double end_s = track->offset_s + track->duration_s;
        if (!any_audible)
            track->is_mute = false;
        if (!track->is_mute && end_s > cut->duration_s)
            cut->duration_s = end_s;
        if (cut->rate_hz == 0 && !track->is_padding)
            cut->rate_hz = track->rate_hz;
    }
    char text[64];
    snprintf(text, sizeof text, "%.8f", cut->duration_s);
    cut->duration_s = strtod(text, NULL);
    if (cut->rate_hz == 0)
        return s2s_error_set(err, S2S_E_FORMAT, "a MixedCut of padding alone");
    for (size_t i = 0; i < cut->n_tracks; i++)
        if (cut->tracks[i].rate_hz == 0)
            cut->tracks[i].rate_hz = cut->rate_hz;
        else if (cut->tracks[i].rate_hz != cut->rate_hz)
            return s2s_error_set(err, S2S_E_UNSUPPORTED,
                                 "'tracks[%zu]' is at %d Hz, others are at %d Hz", i,
                                 cut->tracks[i].rate_hz, cut->rate_hz);
    return 0;
}

static int parse_mixed(struct s2s_cut *cut, const json_t *json, const char *field,
                       const char *manifest, struct s2s_error *err)
{
    enum { MOST = 1 << 16 };
    const json_t *list = json_object_get(json, "tracks");
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0 || n > MOST)
        return s2s_error_set(err, S2S_E_FORMAT, "'tracks' is missing, empty or too long");
    cut->is_mixed = true;
    cut->tracks = s2s_xcalloc(n, sizeof *cut->tracks);
    while (cut->n_tracks < n) {
        struct s2s_track *track = &cut->tracks[cut->n_tracks++];
        int rc =
            parse_mixed_track(track, json_array_get(list, cut->n_tracks - 1), field, manifest, err);
        if (rc < 0)
            return s2s_error_add(err, rc, "'tracks[%zu]'", cut->n_tracks - 1);
    }
    int rc = s2s_transforms_parse(&cut->transforms, &cut->n_transforms,
                                  json_object_get(json, "transforms"), err);
    for (size_t i = 0; rc == 0 && i < cut->n_transforms; i++)
        if (cut->transforms[i].kind != S2S_TRANSFORM_VOLUME)
            rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "'transforms' of a MixedCut that are no Volume");
    return rc < 0 ? rc : measure_mix(cut, err);
}

static int check_length(const struct s2s_cut *cut, struct s2s_error *err)
{
    const double most_s = (double)S2S_MAX_SAMPLES / (cut->rate_hz > 0 ? cut->rate_hz : 1);
    double longest_s = cut->duration_s;
    for (size_t i = 0; i < cut->n_tracks; i++) /* also those that are mute */
        longest_s = fmax(longest_s, cut->tracks[i].offset_s + cut->tracks[i].duration_s);
    if (cut->duration_s > 0 && longest_s <= most_s)
        return 0;
    return s2s_error_set(err, S2S_E_RANGE, "a duration of %g s; up to %g s can be loaded",
                         longest_s, most_s);
}

int s2s_cut_parse(struct s2s_cut **out, const json_t *json, const char *field, const char *manifest,
                  struct s2s_error *err)
{
    struct s2s_cut *cut = s2s_xcalloc(1, sizeof *cut);
    const char *type = json_string_value(json_object_get(json, "type"));
    *out = NULL;
    int rc = data_get_string(&cut->id, json, "id", err);
    if (rc == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "'id' is missing");
    if (rc > 0 && type && !strcmp(type, "MixedCut")) {
        rc = parse_mixed(cut, json, field, manifest, err);
    } else if (rc > 0) {
        cut->tracks = s2s_xcalloc(1, sizeof *cut->tracks);
        cut->n_tracks = 1;
        rc = parse_track(&cut->tracks[0], json, type, field, manifest, err);
        cut->duration_s = cut->tracks[0].duration_s;
        cut->rate_hz = cut->tracks[0].rate_hz;
    }
    if (rc >= 0)
        rc = check_length(cut, err);
    if (rc >= 0)
        *out = cut;
    else
        s2s_cut_free(cut);
    return rc < 0 ? rc : 0;
}

static bool only_resamples(const struct s2s_recording *r)
{
    enum { SPEECH_HZ = 16000 };
    for (size_t i = 0; i < r->n_transforms; i++)
        if (r->transforms[i].kind != S2S_TRANSFORM_RESAMPLE || r->transforms[i].to_hz < SPEECH_HZ)
            return false;
    return true;
}

struct s2s_sound *s2s_cut_plain(const struct s2s_cut *cut, int *channel)
{
    const struct s2s_track *track = &cut->tracks[0];
    const struct s2s_recording *r = track->recording;
    if (cut->is_mixed || !r || !only_resamples(r))
        return NULL;
    for (size_t i = 0; i < r->n_sources; i++) {
        struct s2s_recording_source *s = &r->sources[i];
        for (int c = 0; track->n_channels == 1 && c < s->n_channels; c++)
            if (s->channels[c] == track->channels[0]) {
                *channel = c;
                return &s->sound;
            }
    }
    if (r->n_sources != 1 || track->n_channels != r->n_channels)
        return NULL;
    *channel = -1;
    return &r->sources[0].sound;
}

static int check_source(const struct s2s_recording_source *source, double until_s,
                        const struct s2s_waves_options *opt, struct s2s_error *err)
{
    const struct s2s_sound *sound = &source->sound;
    struct s2s_audio_info info;
    if (!sound->path && !sound->bytes)
        return s2s_error_set(err, S2S_E_NOTFOUND, "its sound is elsewhere (Shar, or memory)");
    if (!sound->path || sound->tar)
        return 0;
    int rc = s2s_audio_info_file(&info, sound->path, opt->known, err);
    if (rc < 0)
        return rc;
    const double file_s = (double)info.n_samples / info.rate_hz;
    if (file_s >= until_s - opt->tolerance_s)
        return 0;
    return s2s_error_set(err, S2S_E_TRUNCATED, "%s: %g s long, the cut says %g s", sound->path,
                         file_s, until_s);
}

int s2s_cut_check(const struct s2s_cut *cut, const struct s2s_waves_options *opt,
                  struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < cut->n_tracks; i++) {
        const struct s2s_track *track = &cut->tracks[i];
        const struct s2s_recording *r = track->recording;
        /* how long a file is that is made faster is seen when it is loaded */
        const double until_s = r && r->n_transforms == 0 ? track->start_s + track->duration_s : 0;
        for (size_t k = 0; rc == 0 && r && k < r->n_sources; k++)
            rc = check_source(&r->sources[k], until_s, opt, err);
    }
    return rc;
}

int64_t s2s_cut_n_samples(const struct s2s_cut *cut)
{
    return s2s_audio_n_samples(cut->duration_s, cut->rate_hz);
}

/* ---- sound ---- */

static int load_track(struct s2s_waves *waves, const struct s2s_track *track,
                      const struct s2s_waves_options *opt, struct s2s_error *err)
{
    if (!track->is_padding)
        return s2s_recording_load(waves, track->recording, track->channels, track->n_channels,
                                  track->start_s, track->duration_s, opt, err);
    *waves =
        (struct s2s_waves){.n_channels = 1,
                           .rate_hz = track->rate_hz,
                           .n_samples = s2s_audio_n_samples(track->duration_s, track->rate_hz)};
    waves->data = s2s_xcalloc((size_t)waves->n_samples + 1, sizeof *waves->data);
    return 0;
}

/* The sum of squares as numpy adds up fp32: halves of at least 128, eight sums a block. */
static float sum_of_squares(const float *x, int64_t n)
{
    enum { BLOCK = 128, WAYS = 8 };
    if (n < WAYS) {
        float sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += x[i] * x[i];
        return sum;
    }
    if (n > BLOCK) {
        const int64_t half = n / 2 - n / 2 % WAYS;
        return sum_of_squares(x, half) + sum_of_squares(x + half, n - half);
    }
    float r[WAYS];
    int64_t i = WAYS;
    for (int k = 0; k < WAYS; k++)
        r[k] = x[k] * x[k];
    for (; i < n - n % WAYS; i += WAYS)
        for (int k = 0; k < WAYS; k++)
            r[k] += x[i + k] * x[i + k];
    float sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++)
        sum += x[i] * x[i];
    return sum;
}

static double energy(const struct s2s_waves *waves)
{
    const int64_t n = waves->n_channels * waves->n_samples;
    return n > 0 ? (float)((double)sum_of_squares(waves->data, n) / (double)n) : 0;
}

/* The factor that makes a track as much quieter than the reference as its snr says. */
static double gain_of(const struct s2s_track *track, const struct s2s_waves *waves,
                      double reference)
{
    const double here = track->has_snr && reference > 0 ? energy(waves) : 0;
    return here > 0 ? sqrt(reference * pow(10, -track->snr_db / 10) / here) : 1;
}

/* A mix on its way. In fp32, as Lhotse has it, unless its first track is scaled: then in fp64. */
struct mix {
    double *sum; /* [n_channels, n_samples] */
    int n_channels;
    int64_t n_samples;
    bool is_wide;
    double reference; /* energy */
};

static double rounded(const struct mix *mix, double x)
{
    return mix->is_wide ? x : (float)x;
}

static void widen(struct mix *mix, int n_channels, int64_t n_samples)
{
    const int old_channels = mix->n_channels;
    n_channels = n_channels > old_channels ? n_channels : old_channels;
    n_samples = n_samples > mix->n_samples ? n_samples : mix->n_samples;
    double *sum = s2s_xcalloc((size_t)n_channels * (size_t)n_samples + 1, sizeof *sum);
    for (int c = 0; old_channels > 0 && c < n_channels; c++) {
        const int from = c < old_channels ? c : 0; /* one channel is in all */
        memcpy(sum + c * n_samples, mix->sum + from * mix->n_samples,
               (size_t)mix->n_samples * sizeof *sum);
    }
    free(mix->sum);
    mix->sum = sum;
    mix->n_channels = n_channels;
    mix->n_samples = n_samples;
}

static int add_to_mix(struct mix *mix, const struct s2s_waves *waves, int64_t at, double gain,
                      bool is_wide, struct s2s_error *err)
{
    if (waves->n_samples == 0)
        return 0;
    if (mix->n_channels > 1 && waves->n_channels > 1 && mix->n_channels != waves->n_channels)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "a mix of %d and of %d channels",
                             mix->n_channels, waves->n_channels);
    widen(mix, waves->n_channels, at + waves->n_samples);
    const float fp32 = (float)gain;
    for (int c = 0; c < mix->n_channels; c++) {
        const float *from = waves->data + (waves->n_channels > 1 ? c : 0) * waves->n_samples;
        double *to = mix->sum + c * mix->n_samples + at;
        for (int64_t i = 0; i < waves->n_samples; i++)
            to[i] = rounded(mix, to[i] + (is_wide ? gain * (double)from[i] : fp32 * from[i]));
    }
    return 0;
}

static const struct s2s_track *reference_of(const struct s2s_cut *cut)
{
    for (size_t i = 0; i < cut->n_tracks; i++)
        if (cut->tracks[i].is_reference)
            return &cut->tracks[i];
    for (size_t i = 0; i < cut->n_tracks; i++)
        if (!cut->tracks[i].is_padding && !cut->tracks[i].has_snr)
            return &cut->tracks[i];
    return NULL;
}

static int add_track(struct mix *mix, const struct s2s_cut *cut, const struct s2s_track *track,
                     bool is_first, const struct s2s_waves_options *opt, struct s2s_error *err)
{
    struct s2s_waves waves;
    int rc = load_track(&waves, track, opt, err);
    if (rc < 0)
        return rc;
    const double gain = gain_of(track, &waves, mix->reference);
    if (is_first) {
        mix->is_wide = gain != 1;
        if (mix->reference < 0) /* the first one is the reference */
            mix->reference = energy(&waves);
    }
    rc = add_to_mix(mix, &waves, s2s_audio_n_samples(track->offset_s, cut->rate_hz), gain,
                    is_first && mix->is_wide, err);
    s2s_waves_release(&waves);
    return rc;
}

static int mix_tracks(struct mix *mix, const struct s2s_cut *cut,
                      const struct s2s_waves_options *opt, struct s2s_error *err)
{
    const struct s2s_track *const reference = reference_of(cut);
    struct s2s_waves waves;
    bool is_first = true;
    int rc = 0;
    if (!reference)
        return s2s_error_set(err, S2S_E_FORMAT, "no track says what the snr of others refers to");
    size_t first = 0;
    while (cut->tracks[first].is_mute)
        first++;
    mix->reference = -1;
    if (reference != &cut->tracks[first]) {
        if ((rc = load_track(&waves, reference, opt, err)) < 0)
            return rc;
        mix->reference = energy(&waves);
        s2s_waves_release(&waves);
    }
    for (size_t i = first; rc == 0 && i < cut->n_tracks; i++) {
        if (cut->tracks[i].is_mute)
            continue;
        rc = add_track(mix, cut, &cut->tracks[i], is_first, opt, err);
        if (rc < 0)
            s2s_error_add(err, rc, "'tracks[%zu]'", i);
        is_first = false;
    }
    return rc;
}

static void scale_mix(struct mix *mix, const struct s2s_cut *cut)
{
    for (size_t t = 0; t < cut->n_transforms; t++)
        for (int64_t i = 0; i < mix->n_channels * mix->n_samples; i++)
            mix->sum[i] = rounded(mix, rounded(mix, cut->transforms[t].factor) * mix->sum[i]);
}

static int load_mixed(struct s2s_waves *waves, const struct s2s_cut *cut,
                      const struct s2s_waves_options *opt, struct s2s_error *err)
{
    struct mix mix = {.sum = NULL};
    int rc = mix_tracks(&mix, cut, opt, err);
    const int64_t want = s2s_cut_n_samples(cut), differs = mix.n_samples - want;
    const int64_t allowed = s2s_audio_n_samples(opt->tolerance_s, cut->rate_hz);
    if (rc == 0 && differs != 0 && (differs >= allowed || differs <= -allowed))
        rc = s2s_error_set(err, S2S_E_TRUNCATED, "the mix has %lld samples where it should %lld",
                           (long long)mix.n_samples, (long long)want);
    if (rc == 0) {
        scale_mix(&mix, cut);
        *waves = (struct s2s_waves){
            .n_channels = mix.n_channels, .n_samples = mix.n_samples, .rate_hz = cut->rate_hz};
        const size_t n = (size_t)mix.n_channels * (size_t)mix.n_samples;
        waves->data = s2s_xmalloc((n + 1) * sizeof *waves->data);
        for (size_t i = 0; i < n; i++)
            waves->data[i] = (float)mix.sum[i];
        s2s_waves_fit(waves, want);
    }
    free(mix.sum);
    return rc;
}

/* One channel: the mean of all. Takes the waves. */
static void to_mono(struct s2s_audio *audio, struct s2s_waves *waves)
{
    const int64_t n = waves->n_samples;
    for (int64_t i = 0; waves->n_channels > 1 && i < n; i++) {
        float sum = waves->data[i];
        for (int c = 1; c < waves->n_channels; c++)
            sum += waves->data[c * n + i];
        waves->data[i] = sum / (float)waves->n_channels;
    }
    *audio = (struct s2s_audio)S2S_AUDIO_INIT;
    audio->data = waves->data;
    audio->n_samples = (size_t)n;
    audio->rate_hz = waves->rate_hz;
    audio->in = (struct s2s_audio_info){waves->rate_hz, 1, n, false};
}

int s2s_cut_load(struct s2s_audio *audio, const struct s2s_cut *cut,
                 const struct s2s_waves_options *opt, struct s2s_error *err)
{
    struct s2s_waves waves = {.data = NULL};
    *audio = (struct s2s_audio)S2S_AUDIO_INIT;
    int rc = cut->is_mixed ? load_mixed(&waves, cut, opt, err)
                           : load_track(&waves, &cut->tracks[0], opt, err);
    if (rc == 0)
        to_mono(audio, &waves);
    return rc;
}
