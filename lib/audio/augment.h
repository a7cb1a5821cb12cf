/*
 * Augmentation of training data. What is drawn is a function of `key` (lib/base/rng.h: seed, step,
 * sample id), so a resumed or split run augments alike.
 */
#ifndef S2S_AUDIO_AUGMENT_H
#define S2S_AUDIO_AUGMENT_H

#include <stddef.h>
#include <stdint.h>

/*
 * SpecAugment in NeMo's vectorised form: n_time masks, then n_freq masks, of value 0. Width
 * floor(u * W), start floor(v * (frames - width)) (mel bins likewise), u and v uniform fp32. For
 * time W is min(time_width * frames, frames).
 */
struct s2s_spec_augment {
    int n_freq, freq_width; /* masks, bins */
    int n_time;
    float time_width; /* share of the frames when <= 1, else frames */
};

/* FastConformer's recipe */
#define S2S_SPEC_AUGMENT_DEFAULT \
    { \
        .n_freq = 2, .freq_width = 27, .n_time = 10, .time_width = 0.05f \
    }

/* mel [n_frames, n_mels], changed in place. */
void s2s_spec_augment(float *mel, int64_t n_frames, int n_mels, const struct s2s_spec_augment *aug,
                      uint64_t key);

/* Adds Gaussian noise of deviation `dither` (NeMo's training default: 1e-5) to pcm [n]. */
void s2s_audio_dither(float *pcm, size_t n, float dither, uint64_t key);

#endif
