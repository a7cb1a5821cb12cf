/* One sample as a row of the layout: read from its line, tokenized, its audio measured and decoded.
 */
#ifndef TOOLS_PACK_ROW_H
#define TOOLS_PACK_ROW_H

#include "lib/audio/audio.h"
#include "lib/audio/mel.h"
#include "lib/data/data.h"
#include "lib/text/prompt.h"
#include "tools/pack/pack.h"
#include "tools/pack/space.h"

/* What all rows share. Not changed once it is open, but `known`, which takes care of itself, and
 * the reading place of the source, so any thread may load rows with it. */
struct pack_loader {
    enum pack_input kind;
    struct s2s_source *source; /* read from one thread, loaded from on any */
    struct s2s_tokenizer *tok; /* NULL with ids */
    struct s2s_prompt *prompt;
    struct s2s_salm_options salm;
    struct s2s_layout layout;
    struct pack_duplex duplex;
    enum s2s_audio_form audio;
    struct s2s_mel_config mel_config;
    struct s2s_mel *mel;
    struct s2s_audio_known *known; /* long recordings of many samples */
    bool refuses_silence;
    bool
        trust_durations; /* lengths are the manifest's, where it says them, and no file is opened */
    double tolerance_s;  /* what may be missing of a declared duration */
    struct s2s_audio_perturb perturb;
    double pad_to_s; /* shorter sound gets silence behind it */
    uint64_t seed;
    int hop, factor; /* samples a mel frame, mel frames an encoder frame */
    bool causal;     /* each stage of the encoder makes n / 2 + 1 of n */
};

int pack_loader_open(struct pack_loader *loader, const struct pack_options *opt,
                     struct s2s_error *err);
void pack_loader_close(struct pack_loader *loader);

/* Where a sample comes from and what the plan found of it. */
struct pack_item {
    struct s2s_place place;
    uint64_t number;         /* of the place in its walk, from 0 */
    uint32_t epoch;          /* that its perturbation is drawn for */
    int32_t len, len_padded; /* slots, truncated if so */
    int32_t n_ids;           /* in which a clip is one */
    int32_t pad_labels, pad_stripped;
    bool first_supervised;   /* these four as in s2s_salm_shape */
    bool truncated, exact16; /* exact16: 16-bit samples say all of its audio */
    int64_t n_samples;       /* of its audio, at the rate of the features */
};

/* A clip of a loaded sample. */
struct pack_clip {
    struct s2s_sound *sound; /* of the row's sample */
    void *bytes;             /* its encoded bytes, if it is no file of its own */
    size_t len_bytes;
    struct s2s_audio_options range;
    struct s2s_audio_info info;
    int64_t n_decoded, n_samples; /* of the sound, and with the silence behind it */
    bool is_silent;
    bool shorter, longer; /* its file than the manifest says */
    char xxh3[33];        /* of the encoded bytes; empty: not read */
    int64_t len; /* samples, frames or bytes in the record: what its form counts; after decoding */
};

/* The sides of duplex speech, and their clips. */
enum { PACK_SOURCE, PACK_TARGET, PACK_N_SIDES };

/* A loaded sample. The first thd.n_clips of its clips are in the row: a truncated one lacks the
 * last ones. */
struct pack_row {
    struct s2s_thd_row thd; /* borrows from the rest */
    struct s2s_sample sample;
    struct s2s_rendered rendered;
    struct s2s_thd_clip *frames; /* [n_clips] */
    struct pack_clip *clips;     /* [n_clips]; none with ids */
    size_t n_clips;
    int32_t *channels[PACK_N_SIDES]; /* [n_frames]; of duplex speech, else NULL; thd then has id,
                                        and numbers of ids and clips alone */
    int64_t n_frames;
    struct s2s_duplex_counts turns;
};

/* Loads the sample of a place and measures its audio, as it is in this epoch, from the headers.
 * Returns the number of variants of the place, 0 when it is to be skipped (then there is nothing to
 * release). Errors name file and line. */
int pack_row_load(struct pack_row *row, const struct pack_loader *loader,
                  const struct s2s_place *place, uint32_t epoch, struct s2s_error *err);
/* Decodes and resamples its audio, demands as many samples as were measured, and appends it to
 * `out` as records have it (exact16: pcm is I16). After an error out is as it was. */
int pack_row_decode(struct pack_row *row, const struct pack_loader *loader, bool exact16,
                    struct pack_worker *worker, struct s2s_buf *out, struct s2s_error *err);
void pack_row_release(struct pack_row *row);

/* Clips of the row in which nothing is heard. */
int64_t pack_row_silent(const struct pack_row *row);
/* Samples of the clips that are in the row, at the rate of the features. */
int64_t pack_row_samples(const struct pack_row *row);
/* The text of the sample, or NULL. */
const char *pack_row_text(const struct pack_row *row);

#endif
