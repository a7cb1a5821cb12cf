/*
 * Augmentation of training data. What is drawn is a function of `key` (lib/base/rng.h: seed, step,
 * sample id), so a resumed or split run augments alike.
 */
#ifndef S2S_AUDIO_AUGMENT_H
#define S2S_AUDIO_AUGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * SpecAugment as NeMo has it (SpecAugment of nemo.collections.asr): n_time masks of frames and
 * n_freq masks of mel bins take `value`. In its vectorised form the width is floor(u W), the start
 * floor(v (size - width)), u and v uniform fp32; for time W is min(time_width * frames, frames). In
 * its older, legacy form the start is uniform in 0 .. max(1, frames - W), of bins in
 * 0 .. mels - freq_width, the width in 0 .. W, ends included, W = max(1, floor(frames time_width));
 * masks end where the clip does.
 */
struct s2s_spec_augment {
    int n_freq, freq_width; /* masks, bins */
    int n_time;
    float time_width; /* share of the frames when <= 1, else frames */
    float value;
    bool legacy;
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
