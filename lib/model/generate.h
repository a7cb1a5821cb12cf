/* Greedy text from a prompt: one pass over the prompt, then a token at a time over a cache of keys
 * and values. */
#ifndef S2S_MODEL_GENERATE_H
#define S2S_MODEL_GENERATE_H

#include "lib/model/model.h"

struct s2s_generate_options {
    int64_t max_new_tokens;
    const int32_t *stop_ids; /* generation ends before one of these */
    size_t n_stop_ids;
};

/*
 * prompt is one sequence, with its clips if the model takes audio; labels are not read. Tokens are
 * added to *ids (gives: free), *n_ids is their number; the stop token is not among them. The
 * batch's positions are continued. UNSUPPORTED for a model without a decoder, ARG for several
 * sequences, RANGE (names the step) when the logits are not finite.
 */
int s2s_generate(int32_t **ids, size_t *n_ids, struct s2s_model *model,
                 const struct s2s_batch *prompt, const struct s2s_generate_options *options,
                 struct s2s_error *err);

#endif
