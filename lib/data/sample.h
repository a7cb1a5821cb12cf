/*
 * A sample of a data set: turns of text and sound, what is known of it beside them, or a row that
 * is tokenized already.
 */
#ifndef S2S_DATA_SAMPLE_H
#define S2S_DATA_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/thd/salm.h"

struct s2s_cut;
struct s2s_error;
struct s2s_members;

/* Where a clip's encoded bytes are: a file, a member of a tar, or memory. */
struct s2s_sound {
    char *source;                  /* its name in the manifest */
    char *path;                    /* the file, or the tar; NULL: in memory */
    const struct s2s_members *tar; /* the member at `at` of it, called `source`; lent by the source
                                  of samples. NULL: path is the clip's own file */
    int64_t at;
    void *bytes; /* [len_bytes], if path is NULL */
    size_t len_bytes;
    /* The part of it: with has_range `duration_s` seconds from offset_s, otherwise all */
    bool has_range;
    double offset_s;
    double duration_s;     /* according to the manifest; 0: unknown */
    double whole_within_s; /* a part that lasts as long as the file within this is all of it */
    int rate_hz;           /* according to the manifest; 0: unknown */
    int channel;           /* -1: all of them, mixed */
    bool fits;             /* it gets the declared length, as Lhotse does it (lib/audio/audio.h) */
    struct s2s_cut *cut;   /* owned; not NULL: what this makes of other sounds (lib/data/cut.h), and
                            * only source, offset_s, duration_s and rate_hz are said of it here */
};

#define S2S_SOUND_INIT \
    { \
        .channel = -1 \
    }

void s2s_sound_release(struct s2s_sound *sound);

/* Reads the bytes of a member of a tar, or copies those in memory. Gives *bytes (free). */
int s2s_sound_read(const struct s2s_sound *sound, void **bytes, size_t *len_bytes,
                   struct s2s_error *err);

/* One turn of text, or of sound. */
struct s2s_sample_turn {
    const char *role; /* system, user, assistant */
    char *text;       /* NULL: sound */
    struct s2s_sound sound;
};

/* A row that is tokenized already. */
struct s2s_ids_row {
    char *id;           /* the line's number if there is none */
    char *text;         /* NULL: unknown */
    int32_t *ids;       /* [n_ids] */
    uint8_t *loss_mask; /* [n_ids]; NULL: all ones */
    size_t n_ids;
    struct s2s_thd_clip *clips; /* [n_clips], pos ascending */
    size_t n_clips;
};

#define S2S_IDS_ROW_INIT \
    { \
        .id = NULL \
    }

void s2s_ids_row_release(struct s2s_ids_row *row);

/* What one supervision of a cut says, in the time of the cut. */
struct s2s_said {
    double start_s, end_s;
    char *speaker, *text; /* NULL: unknown */
};

/* Unknown strings are NULL. Release with s2s_sample_release; who replaces a string frees the old
 * one with s2s_sample_free. */
struct s2s_sample {
    char *id;
    struct s2s_sample_turn *turns; /* [n_turns] in their order; none with ids */
    size_t n_turns, cap_turns;
    char *text, *lang, *speaker; /* text: the transcript, or the last answer */
    json_t *custom;              /* object with the unknown keys and the tags; NULL: none */
    bool has_ids;
    struct s2s_ids_row ids;
    /* Of a cut for duplex speech: its supervisions in their order. It has two sounds, what is heard
     * and what is said. */
    bool is_duplex;
    struct s2s_said *said; /* [n_said] */
    size_t n_said, cap_said;
    double duration_s;
    /* Turns and strings that were allocated in one piece, some of them for several fields: most
     * lines of manifests have nothing else */
    char *block; /* [block_bytes] or NULL */
    size_t block_bytes;
};

#define S2S_SAMPLE_INIT \
    { \
        .id = NULL \
    }

void s2s_sample_release(struct s2s_sample *sample);
/* Frees a string of the sample or of one of its sounds, unless it lies in the block. */
void s2s_sample_free(const struct s2s_sample *sample, char *text);

/* Appends a turn, and takes text (NULL: a sound, which the caller then fills). The turn is lent
 * until the next one is added. */
struct s2s_sample_turn *s2s_sample_add(struct s2s_sample *sample, const char *role, char *text);

/* Appends the transcript, if there is one, as the assistant's turn. */
void s2s_sample_answer(struct s2s_sample *sample);

/* Sound k of the sample, or NULL. */
struct s2s_sound *s2s_sample_sound(const struct s2s_sample *sample, size_t k);

/*
 * What is said before a sample: system_prompt becomes a first turn of role system unless there is
 * one; context becomes a first turn of the user if the user begins with sound. Both are strings of
 * `tags` (borrowed, may be NULL). As NeMo's multimodal conversations do it.
 */
void s2s_sample_prompt(struct s2s_sample *sample, const json_t *tags);

/*
 * Gives a sample the tags of its source (an object, or NULL; borrowed): they replace keys of its
 * custom ones. What is said before it (s2s_sample_prompt) comes from all of these, or in
 * conversations, which have turns of their own, from the tags alone.
 */
void s2s_sample_tag(struct s2s_sample *sample, const json_t *tags, bool is_conversation);

#endif
