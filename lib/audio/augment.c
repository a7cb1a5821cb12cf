/* SpecAugment masks and dither, each drawn from the key of its sample. */
#include "lib/audio/augment.h"

#include <math.h>

#include "lib/base/base.h"

enum { SITE_TIME = 1, SITE_FREQ, SITE_DITHER };

/* Mask i of an axis of `size`: [begin, end). Widths and starts are fp32 products, as upstream. */
static void draw_mask(int64_t *begin, int64_t *end, uint64_t key, uint64_t i, float width_max,
                      int64_t size)
{
    int64_t width = (int64_t)floorf(s2s_rng_uniform(key, 2 * i) * width_max);
    float room = (float)size - (float)width;
    *begin = (int64_t)floorf(s2s_rng_uniform(key, 2 * i + 1) * (room > 0 ? room : 0));
    *end = *begin + width < size ? *begin + width : size;
}

/* The same in the legacy form: integers, ends included. */
static void draw_legacy(int64_t *begin, int64_t *end, uint64_t key, uint64_t i, int64_t last_start,
                        int64_t width_max, int64_t size)
{
    const int64_t width = (int64_t)s2s_rng_below(key, 2 * i, (uint64_t)width_max + 1);
    *begin = (int64_t)s2s_rng_below(key, 2 * i + 1, (uint64_t)last_start + 1);
    *begin = *begin < size ? *begin : size;
    *end = *begin + width < size ? *begin + width : size;
}

static void draw_time(int64_t *begin, int64_t *end, uint64_t key, uint64_t i, int64_t n_frames,
                      const struct s2s_spec_augment *aug)
{
    const bool is_share = aug->time_width <= 1;
    if (!aug->legacy) {
        const float max = is_share ? aug->time_width * (float)n_frames : aug->time_width;
        draw_mask(begin, end, key, i, fminf(max, (float)n_frames), n_frames);
        return;
    }
    int64_t max = (int64_t)(is_share ? aug->time_width * (float)n_frames : aug->time_width);
    max = is_share && max < 1 ? 1 : max;
    draw_legacy(begin, end, key, i, n_frames - max > 1 ? n_frames - max : 1, max, n_frames);
}

static void draw_freq(int64_t *begin, int64_t *end, uint64_t key, uint64_t i, int n_mels,
                      const struct s2s_spec_augment *aug)
{
    if (!aug->legacy)
        draw_mask(begin, end, key, i, (float)aug->freq_width, n_mels);
    else
        draw_legacy(begin, end, key, i, n_mels > aug->freq_width ? n_mels - aug->freq_width : 0,
                    aug->freq_width, n_mels);
}

static void hide(float *row, int64_t begin, int64_t end, float value)
{
    for (int64_t i = begin; i < end; i++)
        row[i] = value;
}

void s2s_spec_augment(float *mel, int64_t n_frames, int n_mels, const struct s2s_spec_augment *aug,
                      uint64_t key)
{
    const uint64_t time_key = S2S_RNG_KEY(key, SITE_TIME), freq_key = S2S_RNG_KEY(key, SITE_FREQ);
    int64_t begin, end;
    for (int i = 0; i < aug->n_time; i++) {
        draw_time(&begin, &end, time_key, (uint64_t)i, n_frames, aug);
        hide(mel, begin * n_mels, end * n_mels, aug->value);
    }
    for (int i = 0; i < aug->n_freq; i++) {
        draw_freq(&begin, &end, freq_key, (uint64_t)i, n_mels, aug);
        for (int64_t t = 0; t < n_frames; t++)
            hide(mel + t * n_mels, begin, end, aug->value);
    }
}

void s2s_audio_dither(float *pcm, size_t n, float dither, uint64_t key)
{
    enum { STEP = 1024 };
    float noise[STEP];
    uint64_t noise_key = S2S_RNG_KEY(key, SITE_DITHER);
    for (size_t i = 0; i < n; i += STEP) {
        size_t n_here = n - i < STEP ? n - i : STEP;
        s2s_rng_fill_normal(noise, n_here, noise_key, i, 0, dither);
        for (size_t k = 0; k < n_here; k++)
            pcm[i + k] += noise[k];
    }
}
