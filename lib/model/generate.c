/* Generates text token by token over a cache. */
#include "lib/model/generate.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

/* The likeliest token, the lowest id among equals. */
static int best_token(int32_t *best, const struct s2s_tensor *logits, float *host,
                      struct s2s_error *err)
{
    int64_t n = s2s_tensor_cols(logits), at = 0;
    s2s_tensor_read_f32(logits, host);
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(host[i]))
            return s2s_error_set(err, S2S_E_RANGE, "logit %lld is %g", (long long)i,
                                 (double)host[i]);
        if (host[i] > host[at])
            at = i;
    }
    *best = (int32_t)at;
    return 0;
}

static bool stops(const struct s2s_generate_options *options, int32_t id)
{
    for (size_t i = 0; i < options->n_stop_ids; i++)
        if (options->stop_ids[i] == id)
            return true;
    return false;
}

static int check(const struct s2s_model *model, const struct s2s_batch *prompt,
                 struct s2s_error *err)
{
    if (model->vocab_size == 0)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: a model that cannot generate",
                             model->config_path);
    if (prompt->n_seqs != 1 || prompt->n_tokens < 1 || !prompt->position_ids)
        return s2s_error_set(err, S2S_E_ARG,
                             "a prompt of %lld sequences and %lld tokens; expected one sequence "
                             "that is not empty",
                             (long long)prompt->n_seqs, (long long)prompt->n_tokens);
    return s2s_model_check(model, prompt, err);
}

int s2s_generate(int32_t **ids, size_t *n_ids, struct s2s_model *model,
                 const struct s2s_batch *prompt, const struct s2s_generate_options *options,
                 struct s2s_error *err)
{
    *ids = NULL;
    *n_ids = 0;
    int rc = check(model, prompt, err);
    if (rc < 0)
        return rc;
    size_t cap = 0;
    int32_t id, position = prompt->position_ids[prompt->n_tokens - 1];
    const int32_t one_token[] = {0, 1};
    struct s2s_batch batch = *prompt;
    struct s2s_decode *decode;
    rc = s2s_decode_new(&decode, model, prompt->n_tokens + options->max_new_tokens, err);
    if (rc < 0)
        return rc;
    struct s2s_tape *tape = s2s_tape_new(model->params->device, false);
    float *logits = s2s_xmalloc((size_t)model->vocab_size * sizeof *logits);
    batch.labels = NULL;
    for (int64_t step = 0; step < options->max_new_tokens; step++) {
        struct s2s_forward fwd = {.want_last = true, .decode = decode};
        s2s_tape_reset(tape);
        s2s_model_forward(model, tape, &batch, &fwd);
        if ((rc = best_token(&id, fwd.logits, logits, err)) < 0) {
            s2s_error_add(err, rc, "token %lld", (long long)step);
            break;
        }
        if (stops(options, id))
            break;
        s2s_grow(ids, *n_ids, &cap, sizeof **ids);
        (*ids)[(*n_ids)++] = id;
        position++;
        batch = (struct s2s_batch){.n_tokens = 1,
                                   .n_seqs = 1,
                                   .input_ids = &id,
                                   .position_ids = &position,
                                   .cu_seqlens = one_token,
                                   .max_seqlen = 1};
    }
    free(logits);
    s2s_decode_free(decode);
    s2s_tape_free(tape);
    return rc;
}
