/*
 * Where samples come from. A source has an order, which `next` walks: it gives places, which are
 * small, and cheap to find. `load` makes the sample of a place, on any thread, again and again, in
 * any order. So a plan can hold a million places, measure their samples on all cores, and have them
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

struct s2s_error;
struct s2s_source;

/* Where a sample is. What the numbers mean is the source's own affair, but for variant. */
struct s2s_place {
    uint64_t at;     /* of the line in its file, .. */
    uint64_t member; /* of a tar's member */
    int64_t line;    /* its number, from 1 */
    uint32_t leaf;   /* which source of a blend */
    uint32_t part;   /* which file of the source */
    int32_t variant; /* of a line that has several samples, from 0; `next` gives 0 */
};

/* What a kind of source does. */
struct s2s_source_kind {
    /* Gives the next place: 1; 0 at the end. An error is about a whole file, and named; the source
     * then goes on behind that file. One thread at a time. */
    int (*next)(struct s2s_source *source, struct s2s_place *place, struct s2s_error *err);
    /* Makes `next` begin anew. */
    void (*rewind)(struct s2s_source *source);
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
};

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

struct s2s_source_options {
    const char *text_field; /* NULL: "text" */
    const char *lang_field; /* NULL: "lang" */
    int32_t pad_id;         /* of tokenized rows */
};

#define S2S_SOURCE_OPTIONS_DEFAULT \
    { \
        .text_field = NULL \
    }

/* Files whose lines are samples. */
enum s2s_lines_kind {
    S2S_LINES_NEMO, /* NeMo manifests */
    S2S_LINES_CUTS, /* Lhotse cuts */
    S2S_LINES_IDS   /* tokenized rows */
};

/* paths [n_paths]: "-" is stdin, "pipe:COMMAND" what a command writes. OPEN, IO. */
int s2s_source_open_lines(struct s2s_source **source, enum s2s_lines_kind kind,
                          const char *const *paths, size_t n_paths,
                          const struct s2s_source_options *opt, struct s2s_error *err);

#endif
