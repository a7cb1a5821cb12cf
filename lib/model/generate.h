/*
 * Texts that go on from prompts: one pass over all prompts, then a token of each sequence at a time
 * over what blocks keep of them. The likeliest token, a drawn one, or the best of several beams.
 */
#ifndef S2S_MODEL_GENERATE_H
#define S2S_MODEL_GENERATE_H

#include "lib/model/model.h"

struct s2s_generate_options {
    int64_t max_new_tokens;
    const int32_t *stop_ids; /* a sequence ends before one of these */
    size_t n_stop_ids;

    /* Drawn where temperature is above 0: from the softmax of logits / temperature, over the top_k
     * largest (0: all; equals of the last stay), of these over the fewest that have the share top_p
     * (0 or 1: all). */
    double temperature, top_p;
    int64_t top_k;
    uint64_t seed;
    int64_t
        first; /* number of the first sequence: what is drawn follows from seed, number, token */

    /* Beams where n_beams is above 1, as transformers has them: a text's score is the sum of its
     * log probabilities, with that of the stop token, over its length to the power of
     * length_penalty. A sequence ends when n_beams texts have, with early_stopping, or else when
     * the best open beam has no better score at its present length than the worst of them. */
    int64_t n_beams;
    double length_penalty;
    bool early_stopping;
};

struct s2s_generated {
    int32_t *ids; /* without the stop token */
    size_t n;
    double score; /* of beams; else 0 */
};

/*
 * out [prompt->n_seqs]. The prompts are sequences that are not empty, with their clips if the model
 * takes audio; labels are not read, and positions go on. Each sequence is what it is alone, to
 * the round-off of products of more rows. Gives: s2s_generated_release, also on failure.
 * UNSUPPORTED for a model without a decoder, RANGE when logits are not finite (names the token).
 */
int s2s_generate(struct s2s_generated *out, struct s2s_model *model, const struct s2s_batch *prompt,
                 const struct s2s_generate_options *options, struct s2s_error *err);
void s2s_generated_release(struct s2s_generated *out, int64_t n);

/* One token of n logits, that u in [0, 1) draws; the lowest id among equals of the likeliest. work
 * [n] is scratch. */
struct s2s_choice {
    float logit;
    int32_t id;
};
int32_t s2s_draw_token(const float *logits, int64_t n, const struct s2s_generate_options *options,
                       double u, struct s2s_choice *work);

#endif
