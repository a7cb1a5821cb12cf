/* Changes speed, tempo, pitch and volume of a sound, and draws by how much. */
#include "lib/audio/perturb.h"

#include <math.h>

#include "lib/audio/audio.h"
#include "lib/audio/audio_internal.h"

static double factor_of(double value)
{
    return value > 0 ? value : 1;
}

bool s2s_audio_changes_length(const struct s2s_audio_change *change)
{
    return factor_of(change->speed) != 1 || factor_of(change->tempo) != 1;
}

bool s2s_audio_changes(const struct s2s_audio_change *change)
{
    return s2s_audio_changes_length(change) || change->pitch != 0 || factor_of(change->volume) != 1;
}

int64_t s2s_audio_n_faster(int64_t n, double factor)
{
    if (factor == 1) /* of nearly all samples, and to print and read numbers takes a while */
        return n;
    /* Python's round to 8 decimals, then half up where it gets shorter, half down else */
    char text[64];
    snprintf(text, sizeof text, "%.8f", (double)n / factor);
    const double value = strtod(text, NULL);
    return (int64_t)(factor >= 1 ? floor(value + 0.5) : ceil(value - 0.5));
}

int64_t s2s_audio_n_changed(int64_t n, const struct s2s_audio_change *change, int from_hz,
                            int to_hz)
{
    n = s2s_audio_n_faster(n, factor_of(change->speed));
    n = s2s_audio_n_resampled(n, from_hz, to_hz);
    return s2s_audio_n_faster(n, factor_of(change->tempo));
}

/* ---- tempo ---- */

/* Segments and how far they are moved to fit, in seconds. */
#define SEGMENT_S 0.082
#define OVERLAP_S 0.012
#define SEARCH_S 0.01468

/* How alike two stretches are: the cosine between them. */
static double likeness(const float *a, const float *b, int64_t n)
{
    double dot = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        dot += (double)a[i] * (double)b[i];
        norm += (double)b[i] * (double)b[i];
    }
    return norm > 0 ? dot / sqrt(norm) : 0;
}

/* Where from near `at` on the sound is most like what would have come next. */
static int64_t best_place(const float *in, int64_t n, int64_t at, const float *next,
                          int64_t n_overlap, int64_t n_search)
{
    int64_t best = -1;
    double most = 0;
    for (int64_t i = at - n_search / 2; i <= at + n_search / 2; i++) {
        if (i < 0 || i + n_overlap > n)
            continue;
        const double alike = likeness(next, in + i, n_overlap);
        if (best < 0 || alike > most) {
            best = i;
            most = alike;
        }
    }
    return best >= 0 ? best : at;
}

static float sample_at(const float *in, int64_t n, int64_t at)
{
    return at >= 0 && at < n ? in[at] : 0;
}

void s2s_audio_stretch(float *out, int64_t n_out, const float *in, int64_t n, int rate_hz)
{
    const int64_t n_overlap = (int64_t)(OVERLAP_S * rate_hz) + 1;
    const int64_t step = (int64_t)(SEGMENT_S * rate_hz) + 1 - n_overlap;
    const int64_t n_search = (int64_t)(SEARCH_S * rate_hz);
    const double ratio = n_out > 0 ? (double)n / (double)n_out : 1;
    int64_t next = 0; /* in the input, of what continues the segment before */
    for (int64_t done = 0; done < n_out; done += step) {
        int64_t at = (int64_t)llround((double)done * ratio);
        const bool blends = done > 0 && next + n_overlap <= n;
        if (blends)
            at = best_place(in, n, at, in + next, n_overlap, n_search);
        for (int64_t i = 0; i < step && done + i < n_out; i++) {
            const float here = sample_at(in, n, at + i);
            const float share =
                blends && i < n_overlap ? (float)(i + 1) / (float)(n_overlap + 1) : 1;
            out[done + i] = share * here + (1 - share) * sample_at(in, n, next + i);
        }
        next = at + step;
    }
}

/* As long as before: stretched by what the higher speed then takes back. */
static int shift_pitch(float *sound, int64_t n, double semitones, int rate_hz,
                       struct s2s_error *err)
{
    const double factor = pow(2, semitones / 12);
    const int64_t n_long = s2s_audio_n_faster(n, 1 / factor);
    float *stretched = s2s_xmalloc((size_t)(n_long + 1) * sizeof *stretched);
    s2s_audio_stretch(stretched, n_long, sound, n, rate_hz);
    int rc = s2s_audio_resample_to(sound, n, stretched, n_long, rate_hz * factor, rate_hz, err);
    free(stretched);
    return rc;
}

int s2s_audio_change(float *out, const float *in, int64_t n, const struct s2s_audio_change *change,
                     int from_hz, int to_hz, struct s2s_error *err)
{
    const double speed = factor_of(change->speed), tempo = factor_of(change->tempo);
    const float volume = (float)factor_of(change->volume);
    const int64_t n_out = s2s_audio_n_changed(n, change, from_hz, to_hz);
    const int64_t n_fast = s2s_audio_n_resampled(s2s_audio_n_faster(n, speed), from_hz, to_hz);
    float *fast = tempo != 1 ? s2s_xmalloc((size_t)(n_fast + 1) * sizeof *fast) : out;
    int rc = 0;
    if (speed != 1 || from_hz != to_hz)
        rc = s2s_audio_resample_to(fast, n_fast, in, n, round(from_hz * speed), to_hz, err);
    else
        memcpy(fast, in, (size_t)n * sizeof *in);
    if (rc == 0 && tempo != 1)
        s2s_audio_stretch(out, n_out, fast, n_fast, to_hz);
    if (rc == 0 && change->pitch != 0)
        rc = shift_pitch(out, n_out, change->pitch, to_hz, err);
    for (int64_t i = 0; volume != 1 && i < n_out; i++)
        out[i] *= volume;
    if (fast != out)
        free(fast);
    return rc;
}

/* ---- what is drawn ---- */

int s2s_audio_choice_parse(struct s2s_audio_choice *choice, const char *text, double min,
                           double max, struct s2s_error *err)
{
    enum { MOST = sizeof choice->values / sizeof *choice->values };
    const char *const dots = strstr(text, "..");
    const char *p = text;
    *choice = (struct s2s_audio_choice){.n = 0};
    for (;;) {
        char *end = NULL;
        /* of "0.9..1.1" the first dot behind 0.9 is no part of the number */
        char *one = s2s_xstrndup(p, dots && p < dots ? (size_t)(dots - p) : strcspn(p, ","));
        const double value = strtod(one, &end);
        const bool is_bad = end == one || *end || !(value >= min && value <= max);
        const size_t len = strlen(one);
        free(one);
        if (is_bad || choice->n == MOST)
            return s2s_error_set(err, S2S_E_ARG,
                                 "'%s': A,B,.. (up to %d) or A..B expected, each from %g to %g",
                                 text, MOST, min, max);
        choice->values[choice->n++] = value;
        p += len;
        if (!*p)
            break;
        p += p == dots ? 2 : 1;
    }
    if (!dots)
        return 0;
    if (choice->n != 2 || choice->values[0] > choice->values[1])
        return s2s_error_set(err, S2S_E_ARG, "'%s': A..B with A <= B expected", text);
    choice->n = -1;
    return 0;
}

/* Over n epochs all n values come, in an order of the sample's own. */
static double draw_listed(const struct s2s_audio_choice *choice, uint64_t key, uint64_t epoch)
{
    const uint64_t n = (uint64_t)choice->n, round_key = S2S_RNG_KEY(key, epoch / n);
    uint64_t order[sizeof choice->values / sizeof *choice->values];
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t k = s2s_rng_below(round_key, i, i + 1);
        order[i] = order[k];
        order[k] = i;
    }
    return choice->values[order[epoch % n]];
}

static double draw(const struct s2s_audio_choice *choice, uint64_t key, uint64_t epoch)
{
    if (choice->n == 0)
        return 0;
    if (choice->n > 0)
        return draw_listed(choice, key, epoch);
    return choice->values[0] +
           s2s_rng_uniform_f64(key, epoch) * (choice->values[1] - choice->values[0]);
}

void s2s_audio_perturb_draw(struct s2s_audio_change *change,
                            const struct s2s_audio_perturb *perturb, uint64_t seed,
                            const char *sample_id, uint64_t epoch)
{
    enum { SITE_SPEED = 1, SITE_TEMPO, SITE_PITCH, SITE_VOLUME };
    const uint64_t key = S2S_RNG_KEY(seed, s2s_rng_name("perturb"), s2s_rng_name(sample_id));
    change->speed = draw(&perturb->speed, S2S_RNG_KEY(key, SITE_SPEED), epoch);
    change->tempo = draw(&perturb->tempo, S2S_RNG_KEY(key, SITE_TEMPO), epoch);
    change->pitch = draw(&perturb->pitch, S2S_RNG_KEY(key, SITE_PITCH), epoch);
    change->volume = draw(&perturb->volume, S2S_RNG_KEY(key, SITE_VOLUME), epoch);
}

bool s2s_audio_perturbs_length(const struct s2s_audio_perturb *perturb)
{
    return perturb->speed.n != 0 || perturb->tempo.n != 0;
}

bool s2s_audio_perturbs(const struct s2s_audio_perturb *perturb)
{
    return s2s_audio_perturbs_length(perturb) || perturb->pitch.n != 0 || perturb->volume.n != 0;
}
