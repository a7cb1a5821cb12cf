/* The lines of a text file by their numbers, and fields of samples that are such lines. Inside
 * lib/data. */
#ifndef S2S_DATA_TEXTS_H
#define S2S_DATA_TEXTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/data/lines.h"
#include "lib/data/source.h"

struct s2s_error;

/* Moves both ends of a text inwards past white space, as Python's str.strip of UTF-8. */
void data_strip(const char **text, size_t *len);

/* All lines of a file, also those that are empty. */
struct data_texts {
    struct s2s_lines file;
    size_t *at; /* [n] offsets */
    size_t n;
};

#define DATA_TEXTS_INIT \
    { \
        .at = NULL \
    }

/* Errors of s2s_lines_open; FORMAT: it has no lines, or is not UTF-8 (names the line). */
int data_texts_open(struct data_texts *texts, const char *path, struct s2s_error *err);
void data_texts_close(struct data_texts *texts);
/* Line k, stripped; lent, and not ended by a NUL. */
const char *data_texts_at(const struct data_texts *texts, size_t k, size_t *len);

/* ---- fields ---- */

struct data_fields;
struct data_fields_walk;

/* Opens the files of specs [n]; n 0 gives NULL, with which all below does nothing. RANGE: their
 * lines have more combinations than a place can name. */
int data_fields_open(struct data_fields **fields, const struct s2s_field *specs, size_t n,
                     struct s2s_error *err);
void data_fields_close(struct data_fields *fields);
/* Begins an epoch: lines from the first on, draws from this seed where a field has none of its own.
 */
struct data_fields_walk *data_fields_begin(const struct data_fields *fields, uint64_t seed);
/* Chooses the lines of the next sample: *which is for data_fields_give. SHAPE: a file has no more.
 */
int data_fields_next(struct data_fields_walk *walk, uint64_t *which, struct s2s_error *err);
void data_fields_end(struct data_fields_walk *walk);
/* Sets them as keys of the sample's custom ones. */
void data_fields_give(const struct data_fields *fields, struct s2s_sample *sample, uint64_t which);
/* As `digest` of a source. */
bool data_fields_digest(const struct data_fields *fields, size_t k, char hex[33]);

#endif
