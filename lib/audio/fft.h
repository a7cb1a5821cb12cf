/*
 * Power spectra of real frames, a vector of frames at a time: every value is a vector whose lanes
 * are frames, so that no operation ever crosses lanes and a frame's result does not depend on its
 * neighbours.
 */
#ifndef S2S_AUDIO_FFT_H
#define S2S_AUDIO_FFT_H

#include "lib/base/base.h"

enum { AUDIO_LANES = 16 };
typedef float audio_vec __attribute__((vector_size(4 * AUDIO_LANES)));
typedef int32_t audio_veci __attribute__((vector_size(4 * AUDIO_LANES)));
/* a vector at any float */
typedef float audio_vecu __attribute__((vector_size(4 * AUDIO_LANES), aligned(4)));

struct audio_fft; /* tables; shared by threads */

/* n_fft: a power of two in [32, 8192]. */
struct audio_fft *audio_fft_new(int n_fft);
void audio_fft_free(struct audio_fft *fft);

/*
 * re and im [n_fft/2]: on entry the frame's even and odd samples, used up. power [n_fft/2 + 1]:
 * |X|^2, with |X| rounded to fp32 in between as the models' extractors have it.
 */
void audio_fft_power(const struct audio_fft *fft, audio_vec *power, audio_vec *re, audio_vec *im);

#endif
