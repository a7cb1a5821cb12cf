/*
 * Recordings as Lhotse describes them: channels in one or more files, and what is to be done to
 * them when they are loaded. What is loaded are Lhotse's samples: the same range of the file, the
 * same order of operations, the same number in the end.
 */
#ifndef S2S_DATA_RECORDING_H
#define S2S_DATA_RECORDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/data/sample.h"

struct s2s_error;
struct s2s_audio_known;

/* Of one cut or recording, channels together: 37 hours at 16 kHz. What descriptions say beyond that
 * is not believed, as nothing holds it against bytes that are there. */
#define S2S_MAX_SAMPLES (INT64_C(1) << 31)

/* One file of a recording. */
struct s2s_recording_source {
    struct s2s_sound sound; /* all of it; without path and bytes its sound is elsewhere (Shar) */
    int *channels;          /* [n_channels] their ids, in the order of the file */
    int n_channels;
};

/* What is done to each channel, one after the other. */
struct s2s_transform {
    enum {
        S2S_TRANSFORM_SPEED,
        S2S_TRANSFORM_TEMPO,
        S2S_TRANSFORM_RESAMPLE,
        S2S_TRANSFORM_VOLUME
    } kind;
    double factor;
    int from_hz, to_hz; /* of RESAMPLE */
};

struct s2s_recording {
    char *id;
    struct s2s_recording_source *sources;
    size_t n_sources;
    int *channels; /* [n_channels] ids of all */
    int n_channels;
    struct s2s_transform *transforms;
    size_t n_transforms;
    /* after the transforms */
    int rate_hz;
    int64_t n_samples;
    double duration_s;
};

/*
 * Reads a recording's description. Relative names are looked up beside `manifest` (may be NULL).
 * FORMAT names the key; UNSUPPORTED: a kind of source or a transform that is not known here.
 */
int s2s_recording_parse(struct s2s_recording *recording, const json_t *json, const char *manifest,
                        struct s2s_error *err);
void s2s_recording_release(struct s2s_recording *recording);
/* A list of transforms. Gives *transforms. */
int s2s_transforms_parse(struct s2s_transform **transforms, size_t *n, const json_t *list,
                         struct s2s_error *err);

/* Several channels of sound. Release with s2s_waves_release. */
struct s2s_waves {
    float *data; /* [n_channels, n_samples] */
    int n_channels;
    int64_t n_samples;
    int rate_hz;
};
void s2s_waves_release(struct s2s_waves *waves);
/* Cuts off what is more than n_samples, and lengthens what is less by its mirror image. */
void s2s_waves_fit(struct s2s_waves *waves, int64_t n_samples);

struct s2s_waves_options {
    double tolerance_s;            /* how far files may be from what is said of them */
    struct s2s_audio_known *known; /* borrowed; may be NULL */
};

/*
 * Loads channels [n_channels] (ids) of a range; duration_s < 0: to the end. Errors of the decoder;
 * RANGE: no such channel; TRUNCATED: more than the tolerance is missing; FORMAT: more than it is
 * too much.
 */
int s2s_recording_load(struct s2s_waves *waves, const struct s2s_recording *recording,
                       const int *channels, int n_channels, double offset_s, double duration_s,
                       const struct s2s_waves_options *opt, struct s2s_error *err);
/* Transforms in place, of sound at rate_hz in the end. */
int s2s_waves_transform(struct s2s_waves *waves, const struct s2s_transform *transform, int rate_hz,
                        struct s2s_error *err);

#endif
