/*
 * Perturbation of recordings: speed, tempo, pitch and volume, drawn for each sample and epoch. What
 * is drawn is a function of the seed, the sample's id and the epoch, so a split, resumed or
 * differently threaded run perturbs alike.
 */
#ifndef S2S_AUDIO_PERTURB_H
#define S2S_AUDIO_PERTURB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_error;

/* What is done to a sound; 0 of a factor is 1. */
struct s2s_audio_change {
    double speed; /* 1.1: a tenth shorter and higher, as a tape that runs faster (Lhotse's Speed) */
    double tempo; /* 1.1: a tenth shorter, as high as before */
    double pitch; /* semitones; as long as before */
    double volume; /* factor of the samples */
};

/* Does it do anything; does it change the number of samples? */
bool s2s_audio_changes(const struct s2s_audio_change *change);
bool s2s_audio_changes_length(const struct s2s_audio_change *change);
/* Samples that n become at a speed or tempo: n / factor to the nearest (Lhotse's rounding). */
int64_t s2s_audio_n_faster(int64_t n, double factor);
/* Samples that n at from_hz become under the change, at to_hz. */
int64_t s2s_audio_n_changed(int64_t n, const struct s2s_audio_change *change, int from_hz,
                            int to_hz);

/*
 * in [n] at from_hz to out [s2s_audio_n_changed] at to_hz: speed and rate in one pass of libsoxr,
 * then tempo, pitch, volume. out must not overlap in.
 */
int s2s_audio_change(float *out, const float *in, int64_t n, const struct s2s_audio_change *change,
                     int from_hz, int to_hz, struct s2s_error *err);

/*
 * in [n] to out [n_out], as high as before, by overlapping segments of 82 ms where they are most
 * alike (WSOLA: Verhelst and Roelands, ICASSP 1993).
 */
void s2s_audio_stretch(float *out, int64_t n_out, const float *in, int64_t n, int rate_hz);

/* One of some values, each as often as the others over as many epochs; or any of a range. */
struct s2s_audio_choice {
    double values[16];
    int n; /* 0: nothing is drawn; -1: from values[0] up to values[1] */
};

struct s2s_audio_perturb {
    struct s2s_audio_choice speed, tempo, pitch, volume;
};

/* "0.9,1,1.1" or "0.9..1.1"; each from min to max. ARG. */
int s2s_audio_choice_parse(struct s2s_audio_choice *choice, const char *text, double min,
                           double max, struct s2s_error *err);

/* Draws for a sample in an epoch. */
void s2s_audio_perturb_draw(struct s2s_audio_change *change,
                            const struct s2s_audio_perturb *perturb, uint64_t seed,
                            const char *sample_id, uint64_t epoch);
/* Is there anything to draw; may it change lengths? */
bool s2s_audio_perturbs(const struct s2s_audio_perturb *perturb);
bool s2s_audio_perturbs_length(const struct s2s_audio_perturb *perturb);

#endif
