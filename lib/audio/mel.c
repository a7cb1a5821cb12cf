/* Log-mel features: configuration, filters, short-time spectrum, normalisation. */
#include "lib/audio/mel.h"

#include <fcntl.h>
#include <math.h>

#include <jansson.h>

#include "lib/audio/audio_internal.h"
#include "lib/audio/fft.h"
#include "lib/io/there.h"

static const float GUARD = 0x1p-24f, EPSILON = 1e-5f;

/* A triangle: its weights for bins begin .. end-1. */
struct filter {
    int begin, end;
    const float *weights;
};

struct s2s_mel {
    struct s2s_mel_config config;
    struct audio_fft *fft;
    float *window;         /* [win] */
    float *filters;        /* [n_mels, n_bins], dense */
    struct filter *sparse; /* [n_mels], into filters */
    int lead;              /* samples of a frame before its centre */
    int column_stride;     /* floats a row of s2s_mel_work.columns */
    int n_columns;         /* hops that a block of frames touches */
};

struct s2s_mel_work {
    float *samples; /* [n_columns * hop], pre-emphasised, of one block of frames */
    float *columns; /* [hop, column_stride]: sample r of hop c at [r][c] */
    audio_vec *re, *im, *power, *log_mel;
};

/* ---- settings ---- */

static int read_int(const json_t *root, const char *key, int *value, struct s2s_error *err)
{
    const json_t *item = json_object_get(root, key);
    if (!item || json_is_null(item))
        return 0;
    if (!json_is_integer(item) || json_integer_value(item) <= 0 ||
        json_integer_value(item) > 1000000)
        return s2s_error_set(err, S2S_E_FORMAT, "%s is not a positive integer", key);
    *value = (int)json_integer_value(item);
    return 0;
}

static int read_settings(struct s2s_mel_config *config, const json_t *root, struct s2s_error *err)
{
    const json_t *type = json_object_get(root, "feature_extractor_type");
    const json_t *preemphasis = json_object_get(root, "preemphasis");
    if (json_is_string(type) && strcmp(json_string_value(type), "ParakeetFeatureExtractor"))
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "feature extractor %s is not supported",
                             json_string_value(type));
    int rc = read_int(root, "feature_size", &config->n_mels, err);
    if (rc == 0)
        rc = read_int(root, "sampling_rate", &config->rate_hz, err);
    if (rc == 0)
        rc = read_int(root, "n_fft", &config->n_fft, err);
    if (rc == 0)
        rc = read_int(root, "win_length", &config->win, err);
    if (rc == 0)
        rc = read_int(root, "hop_length", &config->hop, err);
    if (json_is_null(preemphasis))
        config->preemphasis = 0;
    else if (json_is_number(preemphasis))
        config->preemphasis = (float)json_number_value(preemphasis);
    else if (rc == 0 && preemphasis)
        rc = s2s_error_set(err, S2S_E_FORMAT, "preemphasis is not a number");
    return rc;
}

/* 1, or 0 with needs_part where the file has no part for the feature extractor. */
static int read_file(struct s2s_mel_config *config, const char *path, bool needs_part,
                     struct s2s_error *err)
{
    json_error_t at;
    FILE *file = fopen(path, "rbe");
    if (!file)
        return s2s_error_errno(err, S2S_E_OPEN, "%s", path);
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &at);
    fclose(file);
    if (!root)
        return s2s_error_set(err, S2S_E_FORMAT, "%s:%d: %s", path, at.line, at.text);
    const json_t *part = json_object_get(root, "feature_extractor");
    const bool has_part = json_is_object(part), is_read = has_part || !needs_part;
    int rc = 0;
    if (!json_is_object(root))
        rc = s2s_error_set(err, S2S_E_FORMAT, "not an object");
    else if (is_read)
        rc = read_settings(config, has_part ? part : root, err);
    json_decref(root);
    return rc < 0 ? s2s_error_add(err, rc, "%s", path) : is_read;
}

int s2s_mel_config_open(struct s2s_mel_config *config, const char *path, struct s2s_error *err)
{
    *config = (struct s2s_mel_config)S2S_MEL_CONFIG_DEFAULT;
    int rc = read_file(config, path, false, err);
    return rc < 0 ? rc : 0;
}

int s2s_mel_config_find(struct s2s_mel_config *config, const char *dir, struct s2s_error *err)
{
    static const char *const names[] = {"preprocessor_config.json", "processor_config.json"};
    struct s2s_mel_config found = S2S_MEL_CONFIG_DEFAULT;
    int rc = 0;
    for (size_t i = 0; i < 2 && rc == 0; i++) {
        char *path = s2s_xasprintf("%s/%s", dir, names[i]);
        if (s2s_is_there(AT_FDCWD, path))
            rc = read_file(&found, path, i > 0, err);
        free(path);
    }
    if (rc > 0)
        *config = found;
    return rc < 0 ? rc : 0;
}

json_t *s2s_mel_config_json(const struct s2s_mel_config *c)
{
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:f}", "kind", "log_mel", "n_mels", c->n_mels,
                     "n_fft", c->n_fft, "win", c->win, "hop", c->hop, "preemphasis",
                     (double)c->preemphasis);
}

static int fits_features(const struct s2s_mel_config *config, const json_t *features,
                         struct s2s_error *err)
{
    json_t *wanted = s2s_mel_config_json(config), *want;
    const char *key;
    int rc = 0;
    json_object_foreach(wanted, key, want)
    {
        const json_t *found = json_object_get(features, key);
        if (!found || json_equal(found, want) ||
            (json_is_number(found) &&
             (float)json_number_value(found) == (float)json_number_value(want)))
            continue;
        char *says = json_dumps(found, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        char *wants = json_dumps(want, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "its features were made with %s = %s, the encoder wants %s", key, says,
                           wants);
        s2s_error_hint(err, rc,
                       "pack with --encoder-frames and the encoder's folder; if these are what it "
                       "wants, name its preprocessor_config.json (data.features, --config)");
        free(says);
        free(wants);
        break;
    }
    json_decref(wanted);
    return rc;
}

int s2s_mel_config_fits(const struct s2s_mel_config *config, const json_t *header,
                        struct s2s_error *err)
{
    const char *form = json_string_value(json_object_get(header, "audio"));
    const json_t *made = json_object_get(header, "config");
    const json_t *rate = json_object_get(made, "sampling_rate");
    form = form ? form : "none";
    if (strcmp(form, "pcm") && strcmp(form, "mel"))
        return 0;
    if (json_is_integer(rate) && json_integer_value(rate) != config->rate_hz) {
        int rc =
            s2s_error_set(err, S2S_E_UNSUPPORTED, "clips are at %lld Hz, the features want %d Hz",
                          (long long)json_integer_value(rate), config->rate_hz);
        return s2s_error_hint(err, rc, "resample when packing");
    }
    return !strcmp(form, "mel") && config->n_mels > 0
               ? fits_features(config, json_object_get(made, "features"), err)
               : 0;
}

static int check_settings(const struct s2s_mel_config *c, struct s2s_error *err)
{
    if (c->n_fft < 32 || c->n_fft > 8192 || (c->n_fft & (c->n_fft - 1)))
        return s2s_error_set(err, S2S_E_RANGE, "n_fft = %d is not a power of two in [32, 8192]",
                             c->n_fft);
    if (c->win < 2 || c->win > c->n_fft)
        return s2s_error_set(err, S2S_E_RANGE, "win_length = %d is not in [2, n_fft = %d]", c->win,
                             c->n_fft);
    if (c->hop < 1 || c->hop > c->win)
        return s2s_error_set(err, S2S_E_RANGE, "hop_length = %d is not in [1, win_length = %d]",
                             c->hop, c->win);
    if (c->n_mels < 1 || c->n_mels > 1024)
        return s2s_error_set(err, S2S_E_RANGE, "feature_size = %d is not in [1, 1024]", c->n_mels);
    if (c->rate_hz < 100 || c->rate_hz > 1000000)
        return s2s_error_set(err, S2S_E_RANGE, "sampling_rate = %d is not in [100, 1000000]",
                             c->rate_hz);
    if (!(fabsf(c->preemphasis) <= 1))
        return s2s_error_set(err, S2S_E_RANGE, "preemphasis = %g is not in [-1, 1]",
                             (double)c->preemphasis);
    return 0;
}

/* ---- tables ---- */

/* Slaney's mel scale: linear below 1000 Hz (15 mel), logarithmic above. */
static double hz_of_mel(double mel)
{
    return mel < 15 ? mel * 200 / 3 : 1000 * exp((mel - 15) * log(6.4) / 27);
}

static double mel_of_hz(double hz)
{
    return hz < 1000 ? hz * 3 / 200 : 15 + 27 * log(hz / 1000) / log(6.4);
}

static void make_filters(struct s2s_mel *mel)
{
    int n_mels = mel->config.n_mels, n_bins = mel->config.n_fft / 2 + 1;
    double top = mel_of_hz(mel->config.rate_hz / 2.0), step = top / (n_mels + 1);
    mel->filters = s2s_xcalloc((size_t)n_mels * (size_t)n_bins, sizeof *mel->filters);
    mel->sparse = s2s_xcalloc((size_t)n_mels, sizeof *mel->sparse);
    for (int m = 0; m < n_mels; m++) {
        double low = hz_of_mel(step * m), centre = hz_of_mel(step * (m + 1));
        double high = hz_of_mel(m + 2 == n_mels + 1 ? top : step * (m + 2));
        float *row = mel->filters + (size_t)m * (size_t)n_bins;
        struct filter *filter = &mel->sparse[m];
        for (int k = 0; k < n_bins; k++) {
            double f = (double)k * mel->config.rate_hz / mel->config.n_fft;
            double weight = fmin((f - low) / (centre - low), (high - f) / (high - centre));
            row[k] = weight > 0 ? (float)(weight * 2 / (high - low)) : 0;
            if (row[k] > 0 && filter->end == 0)
                filter->begin = k;
            if (row[k] > 0)
                filter->end = k + 1;
        }
        filter->weights = row + filter->begin;
    }
}

int s2s_mel_new(struct s2s_mel **out, const struct s2s_mel_config *config, struct s2s_error *err)
{
    int rc = check_settings(config, err);
    if (rc < 0)
        return rc;
    struct s2s_mel *mel = s2s_xcalloc(1, sizeof *mel);
    int win = config->win;
    mel->config = *config;
    mel->fft = audio_fft_new(config->n_fft);
    mel->window = s2s_xcalloc((size_t)win, sizeof *mel->window);
    for (int k = 0; k < win; k++)
        mel->window[k] = (float)(0.5 - 0.5 * cos(2 * M_PI * k / (win - 1)));
    mel->lead = config->n_fft / 2 - (config->n_fft - win) / 2;
    mel->n_columns = AUDIO_LANES + (win - 1) / config->hop;
    mel->column_stride = (mel->n_columns + AUDIO_LANES - 1) / AUDIO_LANES * AUDIO_LANES;
    make_filters(mel);
    *out = mel;
    return 0;
}

void s2s_mel_free(struct s2s_mel *mel)
{
    if (!mel)
        return;
    audio_fft_free(mel->fft);
    free(mel->window);
    free(mel->filters);
    free(mel->sparse);
    free(mel);
}

const struct s2s_mel_config *s2s_mel_config(const struct s2s_mel *mel)
{
    return &mel->config;
}

const float *s2s_mel_filters(const struct s2s_mel *mel)
{
    return mel->filters;
}

struct s2s_mel_work *s2s_mel_work_new(const struct s2s_mel *mel)
{
    struct s2s_mel_work *work = s2s_xcalloc(1, sizeof *work);
    size_t n = (size_t)mel->config.n_fft / 2, hop = (size_t)mel->config.hop;
    work->samples = s2s_xalloc_aligned(((size_t)mel->n_columns * hop + 16) * sizeof(float));
    work->columns = s2s_xalloc_aligned(hop * (size_t)mel->column_stride * sizeof(float));
    memset(work->columns, 0, hop * (size_t)mel->column_stride * sizeof(float));
    work->re = s2s_xalloc_aligned(n * sizeof(audio_vec));
    work->im = s2s_xalloc_aligned(n * sizeof(audio_vec));
    work->power = s2s_xalloc_aligned((n + 1) * sizeof(audio_vec));
    work->log_mel = s2s_xalloc_aligned((size_t)mel->config.n_mels * sizeof(audio_vec));
    return work;
}

void s2s_mel_work_free(struct s2s_mel_work *work)
{
    if (!work)
        return;
    free(work->samples);
    free(work->columns);
    free(work->re);
    free(work->im);
    free(work->power);
    free(work->log_mel);
    free(work);
}

/* ---- a block of frames ---- */

/* Pre-emphasised samples first .. first+n-1 of the clip, zero outside it. */
static void load_samples(float *restrict out, int64_t first, int64_t n, const float *restrict pcm,
                         int64_t n_pcm, float preemphasis)
{
    int64_t begin = first < 0 ? -first : 0;
    int64_t end = n_pcm - first < n ? n_pcm - first : n;
    if (begin > n)
        begin = n;
    if (end < begin)
        end = begin;
    memset(out, 0, (size_t)begin * sizeof *out);
    memset(out + end, 0, (size_t)(n - end) * sizeof *out);
    if (begin < end && first + begin == 0) {
        out[begin] = pcm[0];
        begin++;
    }
    for (int64_t i = begin; i < end; i++)
        out[i] = pcm[first + i] - preemphasis * pcm[first + i - 1];
}

/* A frame's samples at distance r + q * hop lie in row r, from column q on: lanes are frames. */
static void load_columns(const struct s2s_mel *mel, struct s2s_mel_work *work)
{
    int hop = mel->config.hop, n_columns = mel->n_columns;
    const float *restrict from = work->samples;
    for (int r = 0; r < hop; r++) {
        float *restrict row = work->columns + (size_t)r * (size_t)mel->column_stride;
        for (int c = 0; c < n_columns; c++)
            row[c] = from[c * hop + r];
    }
}

static void load_frames(const struct s2s_mel *mel, struct s2s_mel_work *work)
{
    const struct s2s_mel_config *c = &mel->config;
    int left = (c->n_fft - c->win) / 2, q = 0, r = 0;
    audio_vec zero = {0};
    for (int m = 0; m < c->n_fft; m++) {
        audio_vec *to = m % 2 ? &work->im[m / 2] : &work->re[m / 2];
        if (m < left || m >= left + c->win) {
            *to = zero;
            continue;
        }
        const float *at = work->columns + (size_t)r * (size_t)mel->column_stride + q;
        *to = *(const audio_vecu *)(const void *)at * mel->window[m - left];
        if (++r == c->hop) {
            r = 0;
            q++;
        }
    }
}

/* Natural logarithm of positive normal numbers; error below 1 ulp. Method and coefficients of
 * fdlibm's logf: x = 2^k (1 + f) with sqrt(1/2) < 1 + f < sqrt(2), s = f / (2 + f). */
static audio_vec log_vec(audio_vec x)
{
    audio_veci bits = (audio_veci)x + (0x3f800000 - 0x3f3504f3);
    audio_vec k = __builtin_convertvector((bits >> 23) - 127, audio_vec);
    audio_vec f = (audio_vec)((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
    audio_vec s = f / (2.0f + f), z = s * s, w = z * z;
    audio_vec t1 = w * (0xccce13.0p-25f + w * 0xf89e26.0p-26f);
    audio_vec t2 = z * (0xaaaaaa.0p-24f + w * 0x91e9ee.0p-25f);
    audio_vec half = 0.5f * f * f;
    return s * (half + t1 + t2) + k * 9.0580006145e-06f - half + f + k * 6.9313812256e-01f;
}

static void apply_filters(const struct s2s_mel *mel, struct s2s_mel_work *work)
{
    for (int m = 0; m < mel->config.n_mels; m++) {
        const struct filter *filter = &mel->sparse[m];
        audio_vec sum = {0};
        for (int k = filter->begin; k < filter->end; k++)
            sum += filter->weights[k - filter->begin] * work->power[k];
        work->log_mel[m] = log_vec(sum + GUARD);
    }
}

void s2s_mel_log(const struct s2s_mel *mel, struct s2s_mel_work *work, float *out, int64_t n_frames,
                 const float *pcm, size_t n_samples)
{
    const struct s2s_mel_config *c = &mel->config;
    size_t n_mels = (size_t)c->n_mels;
    for (int64_t t = 0; t < n_frames; t += AUDIO_LANES) {
        load_samples(work->samples, t * c->hop - mel->lead, (int64_t)mel->n_columns * c->hop, pcm,
                     (int64_t)n_samples, c->preemphasis);
        load_columns(mel, work);
        load_frames(mel, work);
        audio_fft_power(mel->fft, work->power, work->re, work->im);
        apply_filters(mel, work);
        int64_t n_here = n_frames - t < AUDIO_LANES ? n_frames - t : AUDIO_LANES;
        for (int64_t lane = 0; lane < n_here; lane++)
            for (size_t m = 0; m < n_mels; m++)
                out[(size_t)(t + lane) * n_mels + m] = work->log_mel[m][lane];
    }
}

/* ---- normalisation ---- */

void s2s_mel_normalize(float *mel, int64_t n_frames, int n_mels)
{
    size_t width = (size_t)n_mels;
    double *mean = s2s_xcalloc(2 * width, sizeof *mean), *square = mean + width;
    for (int64_t t = 0; t < n_frames; t++)
        for (size_t m = 0; m < width; m++)
            mean[m] += mel[(size_t)t * width + m];
    for (size_t m = 0; m < width; m++)
        mean[m] /= (double)(n_frames > 0 ? n_frames : 1);
    for (int64_t t = 0; t < n_frames; t++)
        for (size_t m = 0; m < width; m++) {
            double d = mel[(size_t)t * width + m] - mean[m];
            square[m] += d * d;
        }
    float *centre = s2s_xcalloc(2 * width, sizeof *centre), *scale = centre + width;
    for (size_t m = 0; m < width; m++) {
        centre[m] = (float)mean[m];
        scale[m] = (n_frames > 1 ? (float)sqrt(square[m] / (double)(n_frames - 1)) : 0) + EPSILON;
    }
    for (int64_t t = 0; t < n_frames; t++)
        for (size_t m = 0; m < width; m++)
            mel[(size_t)t * width + m] = (mel[(size_t)t * width + m] - centre[m]) / scale[m];
    free(centre);
    free(mean);
}

int64_t s2s_mel_frames(const struct s2s_mel *mel, size_t n_samples)
{
    return (int64_t)(n_samples / (size_t)mel->config.hop);
}

void s2s_mel_compute(const struct s2s_mel *mel, struct s2s_mel_work *work, float *out,
                     const float *pcm, size_t n_samples)
{
    int64_t n_frames = s2s_mel_frames(mel, n_samples);
    s2s_mel_log(mel, work, out, n_frames, pcm, n_samples);
    s2s_mel_normalize(out, n_frames, mel->config.n_mels);
}
