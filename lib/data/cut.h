/*
 * Lhotse's cuts: a part of a recording (MonoCut, MultiCut), silence (PaddingCut), or several of
 * them one over the other (MixedCut). Loading gives the samples that Lhotse's load_audio gives, and
 * of several channels the mean.
 */
#ifndef S2S_DATA_CUT_H
#define S2S_DATA_CUT_H

#include "lib/data/recording.h"

struct s2s_audio;

/* One part of a cut. */
struct s2s_track {
    bool is_padding;
    double start_s, duration_s; /* in its recording, after its transforms */
    int *channels;              /* [n_channels] of them, ids */
    int n_channels;
    struct s2s_recording *recording; /* NULL: padding */
    int rate_hz;
    /* in a mix */
    double offset_s;
    bool has_snr, is_reference, is_mute;
    double snr_db; /* how much louder the reference is */
};

struct s2s_cut {
    char *id;
    struct s2s_track *tracks; /* one, or several mixed */
    size_t n_tracks;
    bool is_mixed;
    struct s2s_transform *transforms; /* of the mix */
    size_t n_transforms;
    double duration_s;
    int rate_hz;
};

/*
 * Reads a cut. `field` names the recording that is wanted: NULL or "recording", or a custom field
 * such as "target_audio", which spans the cut from its own beginning. Gives *cut. FORMAT names the
 * key; NOTFOUND: it has no such field; UNSUPPORTED.
 */
int s2s_cut_parse(struct s2s_cut **cut, const json_t *json, const char *field, const char *manifest,
                  struct s2s_error *err);
void s2s_cut_free(struct s2s_cut *cut);

/*
 * The one sound of a cut that is a part of a file to which nothing is done but another rate, not
 * below that of speech (16 kHz: what a lower one leaves out would come back); NULL: it is not that
 * simple. *channel is of the file, from 0, or -1: all.
 */
struct s2s_sound *s2s_cut_plain(const struct s2s_cut *cut, int *channel);

/* Are all of its files there, and long enough? Looks at their headers. Errors of the decoder,
 * NOTFOUND. */
int s2s_cut_check(const struct s2s_cut *cut, const struct s2s_waves_options *opt,
                  struct s2s_error *err);
/* Samples of the whole cut at its own rate. */
int64_t s2s_cut_n_samples(const struct s2s_cut *cut);
/* Loads it to one channel at its own rate. Errors of s2s_recording_load. */
int s2s_cut_load(struct s2s_audio *audio, const struct s2s_cut *cut,
                 const struct s2s_waves_options *opt, struct s2s_error *err);

/*
 * What the supervisions of a cut say: texts joined by a space in order of time, the language and
 * speaker of the first. Strings are given; NULL where nothing is said. UNSUPPORTED where
 * supervisions overlap in time, so that the texts have no order.
 */
struct s2s_cut_words {
    char *text, *lang, *speaker;
};
int s2s_cut_words(struct s2s_cut_words *words, const json_t *cut, struct s2s_error *err);
/* Makes a sample of a cut: its sound and its words as turns. Takes cut, also after an error. json
 * is what it was read from. Returns 1; errors of s2s_cut_words. */
int s2s_sample_of_cut(struct s2s_sample *sample, const json_t *json, struct s2s_cut *cut,
                      struct s2s_error *err);
/*
 * Makes a sample of duplex speech: the sound of `heard`, then that of `said`, which it takes, and
 * the supervisions of json in their order. Returns 1; FORMAT, RANGE (a time below 0).
 */
int s2s_sample_of_duplex(struct s2s_sample *sample, const json_t *json, struct s2s_cut *heard,
                         struct s2s_cut *said, struct s2s_error *err);
/* Appends text without time stamps (<|12|>), with one space where there was white space, and none
 * around it: what NeMo makes of texts of turns. */
struct s2s_buf;
void s2s_data_clean_text(struct s2s_buf *to, const char *text);
/* Adds the supervisions of a cut to the sample. */
int s2s_cut_said(struct s2s_sample *sample, const json_t *cut, struct s2s_error *err);
/* Makes a sound of a cut, which it takes: the part of a file where that is all it is. */
void s2s_sound_take_cut(struct s2s_sound *sound, struct s2s_cut *cut);

/* The custom fields of a cut, of a mix those of all its tracks; NULL: none. Gives. */
json_t *s2s_cut_custom(const json_t *cut);

#endif
