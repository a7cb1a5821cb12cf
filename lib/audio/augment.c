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

void s2s_spec_augment(float *mel, int64_t n_frames, int n_mels, const struct s2s_spec_augment *aug,
                      uint64_t key)
{
    size_t width = (size_t)n_mels;
    uint64_t time_key = S2S_RNG_KEY(key, SITE_TIME), freq_key = S2S_RNG_KEY(key, SITE_FREQ);
    float time_max = aug->time_width <= 1 ? aug->time_width * (float)n_frames : aug->time_width;
    int64_t begin, end;
    time_max = fminf(time_max, (float)n_frames);
    for (int i = 0; i < aug->n_time; i++) {
        draw_mask(&begin, &end, time_key, (uint64_t)i, time_max, n_frames);
        memset(mel + (size_t)begin * width, 0, (size_t)(end - begin) * width * sizeof *mel);
    }
    for (int i = 0; i < aug->n_freq; i++) {
        draw_mask(&begin, &end, freq_key, (uint64_t)i, (float)aug->freq_width, n_mels);
        for (int64_t t = 0; t < n_frames; t++)
            memset(mel + (size_t)t * width + begin, 0, (size_t)(end - begin) * sizeof *mel);
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
