/* Shared by the two ways to go on: a token a sequence, and beams. */
#ifndef S2S_MODEL_GENERATE_INTERNAL_H
#define S2S_MODEL_GENERATE_INTERNAL_H

#include "lib/model/generate.h"

/* A generation under way. Rows of logits are those of the sequences of the last batch. */
struct generation {
    const struct s2s_model *model;
    const struct s2s_generate_options *options;
    const struct s2s_batch *prompt;
    struct s2s_generated *out;
    struct s2s_decode *decode;
    struct s2s_tape *tape;
    float *logits;                   /* [sequences, vocab_size] */
    int32_t *ids, *positions, *from; /* [sequences] of the next batch */
    int32_t *bounds;                 /* [sequences + 1] 0, 1, 2 .. */
};

/* Runs the batch; RANGE if a logit is not finite. */
int model_generation_run(struct generation *g, const struct s2s_batch *batch, int64_t token,
                         struct s2s_error *err);
/* n sequences go on from what from[] were, each with its ids[] at positions[]. */
int model_generation_go_on(struct generation *g, int64_t n, int64_t token, struct s2s_error *err);
bool model_generation_stops(const struct generation *g, int32_t id);
/* Where the first token after prompt s stands. */
int32_t model_generation_position(const struct generation *g, int64_t s);

int model_generation_of_beams(struct generation *g, struct s2s_error *err);

#endif
