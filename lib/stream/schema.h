/*
 * What a record of each kind holds: one table that documents the tensors, gives a writer its
 * header's schema, and says what a reader demands. Sums and bounds that tie tensors to each other
 * are checked by s2s_schema_check. doc/FORMAT.md describes the same in words.
 */
#ifndef S2S_STREAM_SCHEMA_H
#define S2S_STREAM_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/io/safetensors.h"
#include "lib/stream/stream.h"

struct s2s_error;

enum s2s_stream_layout {
    S2S_LAYOUT_NONE,
    S2S_LAYOUT_SALM,
    S2S_LAYOUT_RL,
    S2S_LAYOUT_MCORE,
    S2S_LAYOUT_SFT
};
enum s2s_audio_form {
    S2S_AUDIO_NONE,
    S2S_AUDIO_PATH,
    S2S_AUDIO_PCM,
    S2S_AUDIO_FLAC,
    S2S_AUDIO_MEL
};

/* A line of the table. kinds, layouts and forms are bit masks of the enums (1 << value). */
struct s2s_schema_field {
    const char *name;
    const char *dtypes; /* "I32", or what is allowed: "I16|F32"; the first is the default */
    const char *shape;  /* sizes separated by commas: "T", "B+1", "n,H"; "" is a scalar */
    unsigned kinds, layouts, forms;
    bool required; /* else: demanded where the header's schema names it */
    const char *meaning;
};

/* The whole table; *n its lines. */
const struct s2s_schema_field *s2s_schema_fields(size_t *n);

/* A size in a shape: a number, or a letter that varies from record to record, with something
 * added. */
struct s2s_schema_dim {
    char letter[16]; /* empty: the number alone */
    int64_t plus;
};

struct s2s_schema_tensor {
    char *name;
    enum s2s_dtype dtype;
    int n_dims;
    struct s2s_schema_dim dims[S2S_MAX_DIMS];
};

/* What one stream's header promises of each of its records. */
struct s2s_schema {
    enum s2s_kind kind;
    enum s2s_stream_layout layout;
    enum s2s_audio_form audio;
    int64_t cp_size, cp_rank; /* 1, 0 where there is no cp */
    bool has_embed;
    int64_t hidden; /* of embed */
    bool projected; /* embed: already in the language model's width */
    enum s2s_dtype embed_dtype;
    struct s2s_schema_tensor *tensors;
    size_t n_tensors;
};

/*
 * The schema object for a header that lacks it: the required fields of its kind, layout and form,
 * with sizes that the header knows as numbers; entries that the header's own `schema` has already
 * are kept as they are. Gives a new reference; NULL with err filled when the header's kind, layout
 * or form is wrong.
 */
json_t *s2s_schema_default(const json_t *header, struct s2s_error *err);

/* Checks a whole header.json (doc/FORMAT.md) and compiles its schema. VERSION, FORMAT; names the
 * key. Nothing to release on failure. */
int s2s_schema_compile(struct s2s_schema *schema, const json_t *header, struct s2s_error *err);
void s2s_schema_release(struct s2s_schema *schema);

/* Holds a record against it: every tensor of the schema with its dtype and shape, sums, bounds and
 * metadata. SHAPE, DTYPE, NOTFOUND, FORMAT; names tensor and index. */
int s2s_schema_check(const struct s2s_schema *schema, const struct s2s_safetensors *st,
                     struct s2s_error *err);

#endif
