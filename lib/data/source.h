/*
 * Where samples come from. A source has an order, in which a walk gives places, which are small,
 * and cheap to find. `load` makes the sample of a place, on any thread, again and again, in any
 * order. So a plan can hold a million places, measure their samples on all cores, and have them
 * loaded when they are packed.
 *
 * Kinds of sources are files that fill `struct s2s_source` (lines_source.c is one) and end in a
 * function s2s_source_open_KIND.
 */
#ifndef S2S_DATA_SOURCE_H
#define S2S_DATA_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/data/sample.h"
#include "lib/data/window.h"

struct s2s_error;
struct s2s_source;

/* Where a sample is. What the numbers mean is the source's own affair, but for variant. */
struct s2s_place {
    uint64_t at;     /* of the line in its file, .. */
    uint64_t member; /* of a tar's member */
    uint64_t field;  /* which lines its fields have, or its question */
    int64_t line;    /* its number, from 1 */
    uint32_t leaf;   /* which source of a blend */
    uint32_t part;   /* which file of the source */
    int32_t variant; /* of a line that has several samples, from 0; `next` gives 0 */
};

/* One walk over all samples of a source; what the kind keeps follows. */
struct s2s_walk {
    struct s2s_source *source;
};

/* What a kind of source does. */
struct s2s_source_kind {
    /* Begins a walk, in an order of its own where the source shuffles: each walk of a source is its
     * next epoch. Several may be open. What shuffles draws when `next` is first called. */
    struct s2s_walk *(*begin)(struct s2s_source *source);
    /* Gives the next place: 1; 0 at the end. An error is about a whole file, and named; the walk
     * then goes on behind that file. One thread at a time for all walks of a source. */
    int (*next)(struct s2s_walk *walk, struct s2s_place *place, struct s2s_error *err);
    void (*end)(struct s2s_walk *walk);
    /* Fills the sample. Returns how many variants the place has, 0 where it is marked to be skipped
     * (then the sample holds nothing), or an error without the place's name. */
    int (*load)(const struct s2s_source *source, struct s2s_sample *sample,
                const struct s2s_place *place, struct s2s_error *err);
    /* "file:line", for messages. Gives: free. */
    char *(*where)(const struct s2s_source *source, const struct s2s_place *place);
    /* XXH3-128 of the k-th file of descriptions (manifest, cuts; not of sound) in hex; false: there
     * are only k. */
    bool (*digest)(const struct s2s_source *source, size_t k, char hex[33]);
    void (*close)(struct s2s_source *source);
};

/* The head of each source. */
struct s2s_source {
    const struct s2s_source_kind *kind;
    struct s2s_walk *walk; /* of s2s_source_next; NULL: at the start */
    int64_t n_marked;      /* samples that walks left out as they are marked _skipme */
};

/* The source's own walk, and its end: the next call begins the next one. */
int s2s_source_next(struct s2s_source *source, struct s2s_place *place, struct s2s_error *err);
void s2s_source_rewind(struct s2s_source *source);
/* As the kind's, but an error begins with the place's name. */
int s2s_source_load(const struct s2s_source *source, struct s2s_sample *sample,
                    const struct s2s_place *place, struct s2s_error *err);
/* Prepends the place's name to an error; returns rc. */
int s2s_source_error(int rc, const struct s2s_source *source, const struct s2s_place *place,
                     struct s2s_error *err);
bool s2s_source_digest(const struct s2s_source *source, size_t k, char hex[33]);
void s2s_source_close(struct s2s_source *source);

/* ---- kinds ---- */

/*
 * A key that samples of manifests get beside those of their lines: a line of a text file, without
 * white space around it. The k-th sample of an epoch gets the k-th line or, with is_drawn, one that
 * random.choice draws of all, seeded with that of the shards, to which tars add the epoch.
 * Source: extra_fields of NeMo (text_iter, text_sample).
 */
struct s2s_field {
    const char *name, *path;
    bool is_drawn;
    bool has_seed; /* each epoch draws from `seed` */
    uint64_t seed;
};

/* How supervisions are turns. Lists of strings, borrowed; NULL: user, User, and assistant,
 * Assistant, agent, Agent. */
struct s2s_turn_rules {
    json_t *input_roles, *output_roles;
    bool keep_stamps; /* texts stay as they are, with time stamps (<|12|>) */
};

struct s2s_source_options {
    const char *text_field;  /* NULL: "text" */
    const char *lang_field;  /* NULL: "lang" */
    const char *audio_field; /* of cuts: NULL: "recording", else a recording in `custom` */
    const char *said_field;  /* cuts become samples of duplex speech, whose second sound this is, of
                                `custom`; NULL: they do not */
    int32_t pad_id;          /* of tokenized rows */
    bool shuffle;            /* shards, and the lines of conversations, in the order of NeMo */
    uint64_t seed;           /* shard_seed, resolved */
    json_t *tags;            /* object: become part of each sample's custom keys; borrowed, may be
                                NULL */
    /* What stands for sound in turns of share_gpt: a list of strings, of which the first one found
     * counts; NULL: <sound>, <speech>; borrowed. */
    json_t *placeholders;
    bool as_turns; /* Shar: each supervision of a cut is a turn, as in S2S_LINES_TURNS */
    struct s2s_turn_rules turns;
    bool skip_missing;        /* members of a tar that are not in its manifest are left out */
    struct s2s_window window; /* of manifests, cuts and Shar, but for duplex speech and turns */
    int64_t slice_length;     /* samples taken of each shard of tars; 0: all */
    const struct s2s_field *fields; /* [n_fields] of S2S_LINES_NEMO; borrowed */
    size_t n_fields;
    const char *questions; /* of pairs: a file, of which a line is drawn for each pair, and put
                              before its question; NULL: none */
};

#define S2S_SOURCE_OPTIONS_DEFAULT \
    { \
        .text_field = NULL \
    }

/* For kinds: a copy of options borrows their lists until they are kept, and then dropped. */
void data_keep_lists(struct s2s_source_options *opt);
void data_drop_lists(const struct s2s_source_options *opt);

/* Files whose lines are samples. */
enum s2s_lines_kind {
    S2S_LINES_NEMO,         /* NeMo manifests */
    S2S_LINES_CUTS,         /* Lhotse cuts */
    S2S_LINES_IDS,          /* tokenized rows */
    S2S_LINES_CONVERSATION, /* NeMo's multimodal conversations */
    S2S_LINES_SHARE_GPT,    /* the same as ShareGPT has them */
    S2S_LINES_SFT,          /* conversations of text, messages, or pairs of input and output */
    S2S_LINES_TEXT,         /* a line is a text */
    S2S_LINES_TEXT_JSONL,   /* a line has a text under text_field */
    S2S_LINES_TURNS,        /* Lhotse cuts whose supervisions are turns of a conversation */
    S2S_LINES_PAIRS         /* the k-th line of one file asks, that of another answers */
};

/* paths [n_paths]: "-" is stdin, "pipe:COMMAND" what a command writes. OPEN, IO. */
int s2s_source_open_lines(struct s2s_source **source, enum s2s_lines_kind kind,
                          const char *const *paths, size_t n_paths,
                          const struct s2s_source_options *opt, struct s2s_error *err);

/* S2S_LINES_PAIRS: files of questions and of answers [n_paths]. Where one of a
 * pair of lines is empty it is as one that is marked to be skipped. */
int s2s_source_open_pairs(struct s2s_source **source, const char *const *paths,
                          const char *const *answers, size_t n_paths,
                          const struct s2s_source_options *opt, struct s2s_error *err);

#endif
