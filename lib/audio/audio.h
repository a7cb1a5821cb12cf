/*
 * Decoding and resampling: anything that libsndfile reads (WAV, FLAC, Ogg Vorbis, Opus, MP3, AIFF,
 * AU, SPHERE, ...) to one channel of fp32 samples in [-1, 1).
 *
 * Strict where libsndfile is lenient: a file whose header promises more than there is, an Ogg page
 * with a wrong checksum or a missing last page, an MP3 cut inside a frame, a decoder that stops
 * early, and samples that are NaN or infinite are errors. What a codec prints is kept off stderr.
 * All functions are safe from any thread.
 */
#ifndef S2S_AUDIO_AUDIO_H
#define S2S_AUDIO_AUDIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/audio/perturb.h"

struct s2s_error;

/* What a file says about itself. */
struct s2s_audio_info {
    int rate_hz;
    int n_channels;
    int64_t n_samples; /* a channel */
    bool int16;        /* stored with at most 16 bits: mono samples are k / 32768 exactly */
};

/* One channel of sound. Release with s2s_audio_release. */
struct s2s_audio {
    float *data;  /* [n_samples]; NULL with s16 */
    int16_t *s16; /* [n_samples] in place of data, where options ask for it and this is all of it */
    bool is_lent; /* data or s16 is the options' space's: there until it is used again */
    size_t n_samples;
    int rate_hz;
    bool int16;               /* every sample is k / 32768: nothing was mixed or resampled */
    struct s2s_audio_info in; /* the file before offset, mixing and resampling */
    char xxh3[33];            /* of the encoded bytes, hex; empty unless asked for */
};

#define S2S_AUDIO_INIT \
    { \
        .data = NULL \
    }

/*
 * What is known of files that are read in parts again and again: whether a file is whole and its
 * digest take all of it to find out. Shared by all threads; small files are not kept, and one that
 * changes is looked at anew.
 */
struct s2s_audio_known;
struct s2s_audio_known *s2s_audio_known_new(void);
void s2s_audio_known_free(struct s2s_audio_known *known);

/* Memory of one thread that decodes one clip after the other: files, and what becomes of them, lie
 * where the last ones lay. */
struct s2s_audio_space;
struct s2s_audio_space *s2s_audio_space_new(void);
void s2s_audio_space_free(struct s2s_audio_space *space);

enum { S2S_AUDIO_ALL_CHANNELS = -2 };

struct s2s_audio_options {
    double offset_s;   /* start in the file */
    double duration_s; /* 0: to the end */
    int rate_hz;       /* resample to this; 0: as the file is */
    /* -1: the mean of all channels (what Lhotse's and NeMo's downmix do); else from 0, or
     * S2S_AUDIO_ALL_CHANNELS: then data is [n_samples][in.n_channels], at the file's rate */
    int channel;
    /* the asked range may end this much behind the file's end (manifests round); then what is there
     * is given */
    double tolerance_s;
    struct s2s_audio_change change; /* what is done to the range */
    /* duration_s is what is given, as Lhotse does it: what is missing is the mirror image of the
     * end; after another rate it is duration_s again, not the rounded number of samples before */
    bool fits;
    bool digest;                   /* fill xxh3 */
    bool s16;                      /* give k of samples that are k / 32768, one and all */
    struct s2s_audio_known *known; /* borrowed, for files; may be NULL */
    struct s2s_audio_space *space; /* borrowed; NULL: the sound has memory of its own */
};

#define S2S_AUDIO_OPTIONS_DEFAULT \
    { \
        .channel = -1, .tolerance_s = 0.025 \
    }

/*
 * Decode a file, or the bytes of one (borrowed). opt NULL: the defaults. OPEN, FORMAT (no known
 * kind), NONFINITE, TRUNCATED (says what was promised and what is there; also a range behind the
 * end), EMPTY (no byte, or no sample), RANGE (no such channel).
 */
int s2s_audio_decode_file(struct s2s_audio *out, const char *path,
                          const struct s2s_audio_options *opt, struct s2s_error *err);
int s2s_audio_decode_bytes(struct s2s_audio *out, const void *bytes, size_t len,
                           const struct s2s_audio_options *opt, struct s2s_error *err);
void s2s_audio_release(struct s2s_audio *audio);
/* Sound that is decoded but for rate, change and length of opt: the rest of what the decoder does.
 */
int s2s_audio_finish(struct s2s_audio *audio, const struct s2s_audio_options *opt,
                     struct s2s_error *err);

/*
 * The bytes of a file with that sound (one channel): 16 bits a sample where audio->int16 says that
 * this is all of it, else 24, rounded and clipped. Gives *bytes (free). UNSUPPORTED: a rate that
 * the kind of file has not.
 */
enum s2s_audio_file { S2S_AUDIO_FILE_FLAC, S2S_AUDIO_FILE_WAV };
int s2s_audio_encode(void **bytes, size_t *len_bytes, const struct s2s_audio *audio,
                     enum s2s_audio_file kind, struct s2s_error *err);

/* Header only. The checks of the container that need no decoding are made. known may be NULL. */
int s2s_audio_info_file(struct s2s_audio_info *info, const char *path,
                        struct s2s_audio_known *known, struct s2s_error *err);
int s2s_audio_info_bytes(struct s2s_audio_info *info, const void *bytes, size_t len,
                         struct s2s_error *err);

/*
 * The number of samples that decoding a file that says `info` of itself with opt will give, without
 * decoding it. RANGE, TRUNCATED as the decoder.
 */
int s2s_audio_measure(int64_t *n_samples, const struct s2s_audio_info *info,
                      const struct s2s_audio_options *opt, struct s2s_error *err);

/* Samples of a time: round(seconds * rate, 8 decimals), then half up (Lhotse). */
int64_t s2s_audio_n_samples(double seconds, int rate_hz);
/* Samples after resampling n: n * to / from, half up. */
int64_t s2s_audio_n_resampled(int64_t n, int from_hz, int to_hz);

/* libsoxr, quality HQ. out [s2s_audio_n_resampled(n, from_hz, to_hz)]. */
int s2s_audio_resample(float *out, const float *in, size_t n, int from_hz, int to_hz,
                       struct s2s_error *err);

/* in [n] to out [n_out], which is what is wanted of it: samples that libsoxr makes more or less of
 * are left out or zero. Rates need not be whole. */
int s2s_audio_resample_to(float *out, int64_t n_out, const float *in, int64_t n, double from_hz,
                          double to_hz, struct s2s_error *err);
/* Where in n samples sample `at` is when they go on as their mirror image: numpy's "reflect". */
int64_t s2s_audio_mirrored(int64_t at, int64_t n);

/* Is no sample as large as the smallest step of 16 bits? */
bool s2s_audio_is_silent(const struct s2s_audio *audio);

/* k / 32768 to k and back; the first rounds to nearest and clips. */
void s2s_audio_to_s16(int16_t *out, const float *in, size_t n);
void s2s_audio_from_s16(float *out, const int16_t *in, size_t n);

#endif
