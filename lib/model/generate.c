/* Generation of a token a sequence at a time: the likeliest, or one that is drawn. */
#include "lib/model/generate.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/model/generate_internal.h"

/* ---- choosing a token ---- */

static int32_t likeliest(const float *logits, int64_t n)
{
    int64_t at = 0;
    for (int64_t i = 1; i < n; i++)
        at = logits[i] > logits[at] ? i : at;
    return (int32_t)at;
}

/* Largest first, the lowest id among equals. */
static int compare(const void *a, const void *b)
{
    const struct s2s_choice *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* exp((logit - largest) / temperature) of a sorted choice */
static double weight(const struct s2s_choice *work, int64_t i, double temperature)
{
    return exp(((double)work[i].logit - (double)work[0].logit) / temperature);
}

/* How many of the sorted choices can be drawn. */
static int64_t count_choices(const struct s2s_choice *work, int64_t n,
                             const struct s2s_generate_options *options)
{
    double all = 0, larger = 0;
    if (options->top_k > 0 && options->top_k < n) {
        const float last = work[options->top_k - 1].logit;
        int64_t k = options->top_k;
        while (k < n && work[k].logit == last)
            k++;
        n = k;
    }
    if (options->top_p <= 0 || options->top_p >= 1)
        return n;
    for (int64_t i = 0; i < n; i++)
        all += weight(work, i, options->temperature);
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && larger / all >= options->top_p)
            return i;
        larger += weight(work, i, options->temperature);
    }
    return n;
}

int32_t s2s_draw_token(const float *logits, int64_t n, const struct s2s_generate_options *options,
                       double u, struct s2s_choice *work)
{
    double all = 0, sum = 0;
    if (options->temperature <= 0)
        return likeliest(logits, n);
    for (int64_t i = 0; i < n; i++)
        work[i] = (struct s2s_choice){logits[i], (int32_t)i};
    qsort(work, (size_t)n, sizeof *work, compare);
    const int64_t n_choices = count_choices(work, n, options);
    for (int64_t i = 0; i < n_choices; i++)
        all += weight(work, i, options->temperature);
    for (int64_t i = 0; i < n_choices; i++) {
        sum += weight(work, i, options->temperature);
        if (u * all < sum)
            return work[i].id;
    }
    return work[n_choices - 1].id;
}

/* ---- running ---- */

int model_generation_run(struct generation *g, const struct s2s_batch *batch, int64_t token,
                         struct s2s_error *err)
{
    struct s2s_forward fwd = {.want_last = true, .decode = g->decode};
    const int64_t n = g->model->vocab_size;
    s2s_tape_reset(g->tape);
    s2s_model_forward(g->model, g->tape, batch, &fwd);
    s2s_tensor_read_f32(fwd.logits, g->logits);
    for (int64_t i = 0; i < n * batch->n_seqs; i++)
        if (!isfinite(g->logits[i]))
            return s2s_error_set(err, S2S_E_RANGE, "token %lld: logit %lld is %g", (long long)token,
                                 (long long)(i % n), (double)g->logits[i]);
    return 0;
}

int model_generation_go_on(struct generation *g, int64_t n, int64_t token, struct s2s_error *err)
{
    const struct s2s_batch batch = {.n_tokens = n,
                                    .n_seqs = n,
                                    .input_ids = g->ids,
                                    .position_ids = g->positions,
                                    .cu_seqlens = g->bounds,
                                    .max_seqlen = 1};
    s2s_decode_choose(g->decode, g->from, n);
    return model_generation_run(g, &batch, token, err);
}

bool model_generation_stops(const struct generation *g, int32_t id)
{
    for (size_t i = 0; i < g->options->n_stop_ids; i++)
        if (g->options->stop_ids[i] == id)
            return true;
    return false;
}

int32_t model_generation_position(const struct generation *g, int64_t s)
{
    return g->prompt->position_ids[g->prompt->cu_seqlens[s + 1] - 1] + 1;
}

/* Sequences that have not ended are the first ones of the batch: the last one takes the place of
 * one that ends. */
static int go_on_by_tokens(struct generation *g, struct s2s_error *err)
{
    const struct s2s_generate_options *options = g->options;
    const int64_t vocab = g->model->vocab_size;
    int64_t n = g->prompt->n_seqs, *number = s2s_xcalloc((size_t)n, sizeof *number);
    struct s2s_choice *work = s2s_xmalloc((size_t)vocab * sizeof *work);
    int rc = 0;
    for (int64_t s = 0; s < n; s++) {
        number[s] = s;
        g->out[s].ids = s2s_xmalloc((size_t)options->max_new_tokens * sizeof *g->out[s].ids);
    }
    for (int64_t token = 0; rc == 0 && n > 0; token++) {
        int64_t n_on = 0;
        for (int64_t s = 0; s < n; s++) {
            struct s2s_generated *out = &g->out[number[s]];
            const uint64_t key = S2S_RNG_KEY(options->seed, (uint64_t)(options->first + number[s]));
            const int32_t id = s2s_draw_token(g->logits + s * vocab, vocab, options,
                                              s2s_rng_uniform_f64(key, (uint64_t)token), work);
            const bool stops = model_generation_stops(g, id);
            if (!stops)
                out->ids[out->n++] = id;
            g->ids[s] = stops || token + 1 == options->max_new_tokens ? -1 : id;
        }
        for (int64_t s = 0; s < n; s++) {
            int64_t last = s;
            if (g->ids[s] < 0) {
                for (last = n - 1; last > s && g->ids[last] < 0; last--)
                    ;
                n = last;
                if (last == s)
                    break;
            }
            g->ids[s] = g->ids[last];
            number[s] = number[last];
            g->from[s] = (int32_t)last;
            g->positions[s] = model_generation_position(g, number[s]) + (int32_t)token;
            n_on++;
        }
        n = n_on;
        if (n > 0)
            rc = model_generation_go_on(g, n, token + 1, err);
    }
    free(number);
    free(work);
    return rc;
}

/* ---- the call ---- */

static int check(const struct s2s_model *model, const struct s2s_batch *prompt,
                 struct s2s_error *err)
{
    if (model->vocab_size == 0)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: a model that cannot generate",
                             model->config_path);
    if (prompt->n_seqs < 1 || !prompt->position_ids || !prompt->cu_seqlens)
        return s2s_error_set(err, S2S_E_ARG, "no prompt");
    for (int64_t s = 0; s < prompt->n_seqs; s++)
        if (prompt->cu_seqlens[s + 1] <= prompt->cu_seqlens[s])
            return s2s_error_set(err, S2S_E_ARG, "prompt %lld is empty", (long long)s);
    return s2s_model_check(model, prompt, err);
}

static int open_generation(struct generation *g, struct s2s_error *err)
{
    const int64_t n_beams = g->options->n_beams > 1 ? g->options->n_beams : 1;
    const int64_t n = g->prompt->n_seqs * n_beams;
    int64_t longest = 0;
    for (int64_t s = 0; s < g->prompt->n_seqs; s++) {
        const int64_t len = g->prompt->cu_seqlens[s + 1] - g->prompt->cu_seqlens[s];
        longest = len > longest ? len : longest;
    }
    int rc = s2s_decode_new(&g->decode, g->model, n, longest + g->options->max_new_tokens, err);
    if (rc < 0)
        return rc;
    g->tape = s2s_tape_new(g->model->params->device, false);
    g->logits = s2s_xmalloc((size_t)(n * g->model->vocab_size) * sizeof *g->logits);
    g->ids = s2s_xcalloc((size_t)n, sizeof *g->ids);
    g->positions = s2s_xcalloc((size_t)n, sizeof *g->positions);
    g->from = s2s_xcalloc((size_t)n, sizeof *g->from);
    g->bounds = s2s_xcalloc((size_t)n + 1, sizeof *g->bounds);
    for (int64_t i = 0; i <= n; i++)
        g->bounds[i] = (int32_t)i;
    return 0;
}

int s2s_generate(struct s2s_generated *out, struct s2s_model *model, const struct s2s_batch *prompt,
                 const struct s2s_generate_options *options, struct s2s_error *err)
{
    struct generation g = {.model = model, .options = options, .prompt = prompt, .out = out};
    struct s2s_batch batch = *prompt;
    int rc = check(model, prompt, err);
    for (int64_t s = 0; s < prompt->n_seqs; s++)
        out[s] = (struct s2s_generated){.ids = NULL};
    batch.labels = NULL;
    if (rc < 0 || options->max_new_tokens < 1)
        return rc;
    if ((rc = open_generation(&g, err)) == 0 &&
        (rc = model_generation_run(&g, &batch, 0, err)) == 0)
        rc = options->n_beams > 1 ? model_generation_of_beams(&g, err) : go_on_by_tokens(&g, err);
    free(g.bounds);
    free(g.from);
    free(g.positions);
    free(g.ids);
    free(g.logits);
    if (g.tape)
        s2s_tape_free(g.tape);
    s2s_decode_free(g.decode);
    return rc;
}

void s2s_generated_release(struct s2s_generated *out, int64_t n)
{
    for (int64_t s = 0; s < n; s++) {
        free(out[s].ids);
        out[s] = (struct s2s_generated){.ids = NULL};
    }
}
