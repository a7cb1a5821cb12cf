/* Loads Lhotse's recordings. */
#include "lib/data/recording.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"
#include "lib/data/line_json.h"

/* ---- descriptions ---- */

static void release_source(struct s2s_recording_source *source)
{
    s2s_sound_release(&source->sound);
    free(source->channels);
}

void s2s_recording_release(struct s2s_recording *recording)
{
    for (size_t i = 0; i < recording->n_sources; i++)
        release_source(&recording->sources[i]);
    free(recording->id);
    free(recording->sources);
    free(recording->channels);
    free(recording->transforms);
    *recording = (struct s2s_recording){.id = NULL};
}

static int parse_source(struct s2s_recording_source *source, const json_t *json,
                        const char *manifest, struct s2s_error *err)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    source->sound = (struct s2s_sound)S2S_SOUND_INIT;
    int rc = 0;
    if (json_object_get(json, "channels")) {
        rc = data_get_channels(&source->channels, &source->n_channels,
                               json_object_get(json, "channels"), err);
    } else { /* not said: it has one */
        source->n_channels = 1;
        source->channels = s2s_xcalloc(1, sizeof *source->channels);
    }
    if (rc < 0)
        return rc;
    rc = data_get_string(&source->sound.source, json, "source", err);
    if (rc < 0)
        return rc;
    if (type && (!strcmp(type, "shar") || !strcmp(type, "memory"))) {
        return 0; /* the bytes are elsewhere */
    }
    if (type && !strcmp(type, "file") && rc > 0 && *source->sound.source) {
        source->sound.path = data_resolve(source->sound.source, manifest);
        return 0;
    }
    if (type && !strcmp(type, "file"))
        return s2s_error_set(err, S2S_E_FORMAT, "'sources' has a file without a name");
    rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "a source of type '%s', 'file' expected",
                       type ? type : "");
    return s2s_error_hint(err, rc, "store the sound with cuts.save_audios(), or as Shar");
}

static int parse_transform(struct s2s_transform *transform, const json_t *json,
                           struct s2s_error *err)
{
    static const char *const names[] = {"Speed", "Tempo", "Resample", "Volume"};
    const char *name = json_string_value(json_object_get(json, "name"));
    const json_t *args = json_object_get(json, "kwargs");
    size_t kind = 0;
    while (kind < 4 && (!name || strcmp(name, names[kind]) != 0))
        kind++;
    if (kind == 4) {
        int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "a transform '%s'; Speed, Tempo, Resample and Volume are known",
                               name ? name : "");
        return s2s_error_hint(err, rc, "store the changed sound with cuts.save_audios()");
    }
    transform->kind = kind;
    if (transform->kind == S2S_TRANSFORM_RESAMPLE) {
        int rc = data_get_int(&transform->from_hz, args, "source_sampling_rate", 1, err);
        if (rc > 0)
            rc = data_get_int(&transform->to_hz, args, "target_sampling_rate", 1, err);
        return rc == 0  ? s2s_error_set(err, S2S_E_FORMAT, "'Resample' lacks a sampling rate")
               : rc < 0 ? rc
                        : 0;
    }
    const double least = transform->kind == S2S_TRANSFORM_VOLUME ? 0 : 0.01;
    int rc = data_get_number(&transform->factor, args, "factor", least, err);
    if (rc == 0 || (rc > 0 && transform->kind != S2S_TRANSFORM_VOLUME && transform->factor > 100))
        return s2s_error_set(err, S2S_E_FORMAT, "'%s' has no factor from %g to 100", name, least);
    return rc < 0 ? rc : 0;
}

int s2s_transforms_parse(struct s2s_transform **transforms, size_t *n, const json_t *list,
                         struct s2s_error *err)
{
    enum { MOST = 64 };
    *n = json_array_size(list);
    *transforms = NULL;
    if (list && !json_is_null(list) && !json_is_array(list))
        return s2s_error_set(err, S2S_E_FORMAT, "'transforms' is no list");
    if (*n > MOST)
        return s2s_error_set(err, S2S_E_FORMAT, "%zu transforms", *n);
    *transforms = s2s_xcalloc(*n + 1, sizeof **transforms);
    for (size_t i = 0; i < *n; i++) {
        int rc = parse_transform(&(*transforms)[i], json_array_get(list, i), err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int parse_sources(struct s2s_recording *r, const json_t *json, const char *manifest,
                         struct s2s_error *err)
{
    const json_t *list = json_object_get(json, "sources");
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0)
        return s2s_error_set(err, S2S_E_FORMAT, "'recording.sources' is missing or empty");
    r->sources = s2s_xcalloc(n, sizeof *r->sources);
    while (r->n_sources < n) {
        struct s2s_recording_source *source = &r->sources[r->n_sources++];
        int rc = parse_source(source, json_array_get(list, r->n_sources - 1), manifest, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Without 'channel_ids' they are those of the sources, ascending. */
static int by_number(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}

static void channels_of_sources(struct s2s_recording *r)
{
    int n = 0;
    for (size_t i = 0; i < r->n_sources; i++)
        n += r->sources[i].n_channels;
    r->channels = s2s_xcalloc((size_t)n, sizeof *r->channels);
    for (size_t i = 0; i < r->n_sources; i++) {
        const struct s2s_recording_source *s = &r->sources[i];
        memcpy(r->channels + r->n_channels, s->channels,
               (size_t)s->n_channels * sizeof *s->channels);
        r->n_channels += s->n_channels;
    }
    qsort(r->channels, (size_t)n, sizeof *r->channels, by_number);
}

int s2s_recording_parse(struct s2s_recording *r, const json_t *json, const char *manifest,
                        struct s2s_error *err)
{
    double n_samples = -1;
    *r = (struct s2s_recording){.id = NULL};
    if (!json_is_object(json))
        return s2s_error_set(err, S2S_E_FORMAT, "'recording' is missing");
    int rc = data_get_string(&r->id, json, "id", err);
    if (rc >= 0)
        rc = parse_sources(r, json, manifest, err);
    if (rc >= 0)
        rc = s2s_transforms_parse(&r->transforms, &r->n_transforms,
                                  json_object_get(json, "transforms"), err);
    if (rc >= 0)
        rc = data_get_int(&r->rate_hz, json, "sampling_rate", 1, err);
    if (rc == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "'recording.sampling_rate' is missing");
    if (rc >= 0)
        rc = data_get_number(&n_samples, json, "num_samples", 0, err);
    if (rc >= 0)
        rc = data_get_number(&r->duration_s, json, "duration", 0, err);
    if (rc >= 0 && n_samples > 1e15)
        rc = s2s_error_set(err, S2S_E_FORMAT, "'recording.num_samples' is %g", n_samples);
    if (rc == 0 && n_samples >= 0)
        r->duration_s = n_samples / r->rate_hz;
    if (rc >= 0 && json_is_array(json_object_get(json, "channel_ids")))
        rc = data_get_channels(&r->channels, &r->n_channels, json_object_get(json, "channel_ids"),
                               err);
    else if (rc >= 0)
        channels_of_sources(r);
    r->n_samples = n_samples >= 0 ? (int64_t)n_samples : 0;
    if (rc < 0)
        s2s_recording_release(r);
    return rc < 0 ? rc : 0;
}

/* ---- sound ---- */

void s2s_waves_release(struct s2s_waves *waves)
{
    free(waves->data);
    *waves = (struct s2s_waves){.data = NULL};
}

void s2s_waves_fit(struct s2s_waves *waves, int64_t n)
{
    const int64_t had = waves->n_samples;
    if (had == n)
        return;
    float *data = s2s_xmalloc(((size_t)waves->n_channels * (size_t)n + 1) * sizeof *data);
    for (int c = 0; c < waves->n_channels; c++)
        for (int64_t i = 0; i < n; i++)
            data[c * n + i] = had > 0 ? waves->data[c * had + s2s_audio_mirrored(i, had)] : 0;
    free(waves->data);
    waves->data = data;
    waves->n_samples = n;
}

/* To n_out samples a channel by a change of rate. */
static int resample(struct s2s_waves *waves, int64_t n_out, int from_hz, int to_hz,
                    struct s2s_error *err)
{
    if (n_out > S2S_MAX_SAMPLES / (waves->n_channels > 0 ? waves->n_channels : 1))
        return s2s_error_set(err, S2S_E_RANGE, "%lld samples after a change from %d Hz to %d Hz",
                             (long long)n_out, from_hz, to_hz);
    float *data = s2s_xmalloc(((size_t)waves->n_channels * (size_t)n_out + 1) * sizeof *data);
    int rc = 0;
    for (int c = 0; rc == 0 && c < waves->n_channels; c++)
        rc = s2s_audio_resample_to(data + c * n_out, n_out, waves->data + c * waves->n_samples,
                                   waves->n_samples, from_hz, to_hz, err);
    free(waves->data);
    waves->data = data;
    waves->n_samples = n_out;
    return rc;
}

static int stretch(struct s2s_waves *waves, double factor, int rate_hz, struct s2s_error *err)
{
    const int64_t n_out = s2s_audio_n_faster(waves->n_samples, factor);
    if (n_out > S2S_MAX_SAMPLES / (waves->n_channels > 0 ? waves->n_channels : 1))
        return s2s_error_set(err, S2S_E_RANGE, "%lld samples at a tempo of %g", (long long)n_out,
                             factor);
    float *data = s2s_xmalloc(((size_t)waves->n_channels * (size_t)n_out + 1) * sizeof *data);
    for (int c = 0; c < waves->n_channels; c++)
        s2s_audio_stretch(data + c * n_out, n_out, waves->data + c * waves->n_samples,
                          waves->n_samples, rate_hz);
    free(waves->data);
    waves->data = data;
    waves->n_samples = n_out;
    return 0;
}

int s2s_waves_transform(struct s2s_waves *waves, const struct s2s_transform *t, int rate_hz,
                        struct s2s_error *err)
{
    int from_hz = t->from_hz, to_hz = t->to_hz;
    switch (t->kind) {
    case S2S_TRANSFORM_VOLUME:
        for (int64_t i = 0; i < waves->n_channels * waves->n_samples; i++)
            waves->data[i] *= (float)t->factor;
        return 0;
    case S2S_TRANSFORM_TEMPO:
        return stretch(waves, t->factor, rate_hz, err);
    case S2S_TRANSFORM_SPEED:
        from_hz = (int)nearbyint(rate_hz * t->factor);
        to_hz = rate_hz;
        break;
    case S2S_TRANSFORM_RESAMPLE:
        break;
    }
    if (from_hz == to_hz)
        return 0;
    if (from_hz < 1)
        return s2s_error_set(err, S2S_E_RANGE, "speed %g at %d Hz", t->factor, rate_hz);
    /* what Lhotse's resamplers give: rounded up */
    const int64_t n_out = (int64_t)(((__int128)waves->n_samples * to_hz + from_hz - 1) / from_hz);
    return resample(waves, n_out, from_hz, to_hz, err);
}

/* The range before the transform of what is wanted after it. */
static void before(double *offset_s, double *duration_s, const struct s2s_transform *t, int rate_hz)
{
    int64_t n_offset, n_duration;
    switch (t->kind) {
    case S2S_TRANSFORM_VOLUME:
        return;
    case S2S_TRANSFORM_RESAMPLE:
        if (t->from_hz == t->to_hz)
            return;
        rate_hz = t->from_hz;
        n_offset = s2s_audio_n_samples(*offset_s, rate_hz);
        n_duration = s2s_audio_n_samples(*duration_s, rate_hz);
        break;
    default:
        n_offset = s2s_audio_n_faster(s2s_audio_n_samples(*offset_s, rate_hz), 1 / t->factor);
        n_duration = s2s_audio_n_faster(s2s_audio_n_samples(*duration_s, rate_hz), 1 / t->factor);
        break;
    }
    *offset_s = (double)n_offset / rate_hz;
    if (*duration_s >= 0)
        *duration_s = (double)n_duration / rate_hz;
}

/* The rate that the recording's files should have. */
static int rate_of_files(const struct s2s_recording *r)
{
    for (size_t i = 0; i < r->n_transforms; i++)
        if (r->transforms[i].kind == S2S_TRANSFORM_RESAMPLE)
            return r->transforms[i].from_hz;
    return r->rate_hz;
}

static bool is_wanted(int channel, const int *channels, int n_channels)
{
    for (int i = 0; i < n_channels; i++)
        if (channels[i] == channel)
            return true;
    return false;
}

/* Appends the wanted channels of a decoded file; other lengths than before are evened out by
 * silence. */
static void append(struct s2s_waves *waves, const struct s2s_audio *audio,
                   const struct s2s_recording_source *source, const int *channels, int n_channels)
{
    const int64_t n_here = (int64_t)audio->n_samples, width = audio->in.n_channels;
    const int64_t n_old = waves->n_samples, n = n_here > n_old ? n_here : n_old;
    int n_more = 0;
    for (int c = 0; c < source->n_channels; c++)
        n_more += is_wanted(source->channels[c], channels, n_channels);
    float *data = s2s_xcalloc((size_t)(waves->n_channels + n_more) * (size_t)n + 1, sizeof *data);
    for (int c = 0; c < waves->n_channels; c++)
        memcpy(data + c * n, waves->data + c * n_old, (size_t)n_old * sizeof *data);
    for (int c = 0; c < source->n_channels; c++) {
        if (!is_wanted(source->channels[c], channels, n_channels))
            continue;
        for (int64_t i = 0; i < n_here; i++)
            data[waves->n_channels * n + i] = audio->data[i * width + c];
        waves->n_channels++;
    }
    free(waves->data);
    waves->data = data;
    waves->n_samples = n;
}

static int decode(struct s2s_audio *audio, const struct s2s_sound *sound,
                  const struct s2s_audio_options *how, struct s2s_error *err)
{
    void *bytes = NULL;
    size_t len_bytes = 0;
    if (sound->path && !sound->tar)
        return s2s_audio_decode_file(audio, sound->path, how, err);
    int rc = s2s_sound_read(sound, &bytes, &len_bytes, err);
    if (rc == 0)
        rc = s2s_audio_decode_bytes(audio, bytes, len_bytes, how, err);
    free(bytes);
    return rc;
}

static int load_source(struct s2s_waves *waves, const struct s2s_recording *r,
                       const struct s2s_recording_source *source, const int *channels,
                       int n_channels, double offset_s, double duration_s,
                       const struct s2s_waves_options *opt, struct s2s_error *err)
{
    struct s2s_audio_options how = S2S_AUDIO_OPTIONS_DEFAULT;
    struct s2s_audio audio;
    how.channel = S2S_AUDIO_ALL_CHANNELS;
    how.offset_s = offset_s;
    how.duration_s = duration_s > 0 ? duration_s : 0;
    how.tolerance_s = opt->tolerance_s;
    how.known = opt->known;
    if (!source->sound.path && !source->sound.bytes)
        return s2s_error_set(err, S2S_E_NOTFOUND,
                             "recording '%s' has no sound here, only its place",
                             r->id ? r->id : "");
    int rc = decode(&audio, &source->sound, &how, err);
    if (rc < 0)
        return rc;
    const int64_t allowed = (int64_t)(opt->tolerance_s * audio.rate_hz + 0.5);
    const int64_t differs = (int64_t)audio.n_samples - waves->n_samples;
    if (audio.in.n_channels < source->n_channels)
        rc = s2s_error_set(err, S2S_E_RANGE, "%s: %d channels of %d", source->sound.source,
                           audio.in.n_channels, source->n_channels);
    else if (waves->n_channels > 0 && (differs > allowed || differs < -allowed))
        rc = s2s_error_set(err, S2S_E_TRUNCATED,
                           "%s: its channels have %zu samples, others of the recording %lld",
                           source->sound.source, audio.n_samples, (long long)waves->n_samples);
    else if (waves->n_channels > 0 && audio.rate_hz != waves->rate_hz)
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: at %d Hz, others of the recording at %d Hz",
                           source->sound.source, audio.rate_hz, waves->rate_hz);
    waves->rate_hz = audio.rate_hz;
    if (rc == 0)
        append(waves, &audio, source, channels, n_channels);
    s2s_audio_release(&audio);
    return rc;
}

static int load_sources(struct s2s_waves *waves, const struct s2s_recording *r, const int *channels,
                        int n_channels, double offset_s, double duration_s,
                        const struct s2s_waves_options *opt, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < r->n_sources; i++) {
        const struct s2s_recording_source *source = &r->sources[i];
        bool any = false;
        for (int c = 0; c < source->n_channels; c++)
            any |= is_wanted(source->channels[c], channels, n_channels);
        if (any)
            rc =
                load_source(waves, r, source, channels, n_channels, offset_s, duration_s, opt, err);
    }
    if (rc == 0 && waves->n_channels < n_channels)
        rc = s2s_error_set(err, S2S_E_RANGE, "recording '%s' has not the wanted channels",
                           r->id ? r->id : "");
    const int want_hz = rate_of_files(r);
    if (rc == 0 && waves->rate_hz != want_hz)
        rc = resample(waves, s2s_audio_n_resampled(waves->n_samples, waves->rate_hz, want_hz),
                      waves->rate_hz, want_hz, err);
    waves->rate_hz = r->rate_hz;
    return rc;
}

int s2s_recording_load(struct s2s_waves *waves, const struct s2s_recording *r, const int *channels,
                       int n_channels, double offset_s, double duration_s,
                       const struct s2s_waves_options *opt, struct s2s_error *err)
{
    *waves = (struct s2s_waves){.data = NULL};
    const double wanted_s = duration_s >= 0 ? duration_s : r->duration_s - offset_s;
    const int64_t want = s2s_audio_n_samples(wanted_s, r->rate_hz);
    const int64_t allowed = (int64_t)ceil(opt->tolerance_s * r->rate_hz);
    if (!(offset_s <= r->duration_s) || !(wanted_s > 0) || wanted_s > 1e9 || want > S2S_MAX_SAMPLES)
        return s2s_error_set(err, S2S_E_TRUNCATED, "wanted are %g s from %g s on, it has %g s",
                             wanted_s, offset_s, r->duration_s);
    /* what is asked for to a thousandth of a second is all there is */
    double from_s = offset_s, for_s = fabs(duration_s - r->duration_s) <= 1e-3 ? -1 : duration_s;
    for (size_t i = r->n_transforms; i-- > 0;)
        before(&from_s, &for_s, &r->transforms[i], r->rate_hz);
    int rc = load_sources(waves, r, channels, n_channels, from_s, for_s, opt, err);
    for (size_t i = 0; rc == 0 && i < r->n_transforms; i++)
        rc = s2s_waves_transform(waves, &r->transforms[i], r->rate_hz, err);
    const int64_t missing = want - waves->n_samples;
    if (rc == 0 && (missing > allowed || missing < -allowed))
        rc = s2s_error_set(err, missing > 0 ? S2S_E_TRUNCATED : S2S_E_FORMAT,
                           "recording '%s': %lld samples where %lld are declared",
                           r->id ? r->id : "", (long long)waves->n_samples, (long long)want);
    if (rc == 0)
        s2s_waves_fit(waves, want);
    if (rc < 0)
        s2s_waves_release(waves);
    return rc;
}
