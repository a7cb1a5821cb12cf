/* What s2s-train generate reads: sounds, texts and ids, and the batches made of them. */
#ifndef S2S_TOOLS_TRAIN_GENERATE_INPUTS_H
#define S2S_TOOLS_TRAIN_GENERATE_INPUTS_H

#include "lib/model/model.h"
#include "lib/text/prompt.h"
#include "lib/text/tokenizer.h"

/* One text to make. */
struct generate_input {
    char *audio, *prompt; /* NULL: none */
    int32_t *ids;         /* [n_ids] in their place; NULL */
    size_t n_ids;
};

struct generate_inputs {
    struct generate_input *list;
    size_t n, cap;
    bool want_text; /* some are no ids: a tokenizer is needed */
};

/* Appends; the strings are copied, NULL: none. */
void generate_add(struct generate_inputs *inputs, const char *audio, const char *prompt);
/* Appends the lines of a file of JSON objects: "audio" (or "audio_filepath"), "prompt", or
 * "input_ids". Paths count from where the program runs. */
int generate_read_list(struct generate_inputs *inputs, const char *path, struct s2s_error *err);
void generate_inputs_release(struct generate_inputs *inputs);

/* How inputs become tokens. format, tok: NULL where all are ids. features: NULL or a file. */
struct generate_reader {
    const struct s2s_model *model;
    struct s2s_tokenizer *tok;
    struct s2s_prompt *format;
    const char *features;
};

struct generate_batch {
    struct s2s_batch batch;
    int32_t *ids, *positions, *cu, *slots, *rows;
    float *mel;
    int64_t *cu_mel;
};

/* Some inputs, as sequences of one batch. Gives, also on failure: generate_batch_release. Errors
 * name the sound. */
int generate_batch_make(struct generate_batch *b, const struct generate_input *inputs, int64_t n,
                        const struct generate_reader *reader, struct s2s_error *err);
void generate_batch_release(struct generate_batch *b);

#endif
