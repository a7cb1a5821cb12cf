/*
 * Beam search as transformers has it (generation/utils.py, _beam_search): each step takes the best
 * (1 + stop tokens) * n_beams of all tokens after all beams of a sequence. Those that end, among
 * the first n_beams, are texts; the best of the others are the next beams.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/model/generate_internal.h"

/* A text that is open, or one that has ended. */
struct beam {
    int32_t *ids; /* [max_new_tokens] */
    int64_t n;
    double score;
    int32_t at; /* its row of the batch: the state it goes on from */
};

struct candidate {
    double score;
    int64_t beam;
    int32_t id;
};

/* The beams of one prompt. */
struct search {
    struct beam *open, *next, *ended;
    int64_t n_open, n_next, n_ended;
    bool done;
};

static struct beam *new_beams(const struct generation *g, int64_t n)
{
    struct beam *beams = s2s_xcalloc((size_t)n, sizeof *beams);
    for (int64_t i = 0; i < n; i++)
        beams[i].ids = s2s_xcalloc((size_t)g->options->max_new_tokens, sizeof *beams[i].ids);
    return beams;
}

static void free_beams(struct beam *beams, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        free(beams[i].ids);
    free(beams);
}

/* Puts a candidate among the best ones, of which there are n of at most cap. */
static int64_t keep_best(struct candidate *best, int64_t n, int64_t cap, struct candidate c)
{
    if (n == cap && !(c.score > best[n - 1].score))
        return n;
    int64_t at = n < cap ? n++ : cap - 1;
    for (; at > 0 && c.score > best[at - 1].score; at--)
        best[at] = best[at - 1];
    best[at] = c;
    return n;
}

static double log_sum_exp(const float *z, int64_t n)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        max = z[i] > max ? z[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += exp(z[i] - max);
    return max + log(sum);
}

static int64_t find_candidates(const struct generation *g, const struct search *search,
                               struct candidate *best, int64_t cap)
{
    const int64_t vocab = g->model->vocab_size;
    int64_t n = 0;
    for (int64_t b = 0; b < search->n_open; b++) {
        const float *z = g->logits + search->open[b].at * vocab;
        const double before = search->open[b].score - log_sum_exp(z, vocab);
        for (int64_t i = 0; i < vocab; i++)
            n = keep_best(best, n, cap, (struct candidate){before + z[i], b, (int32_t)i});
    }
    return n;
}

/* beam = the one a candidate goes on from, with its token unless it stops there */
static void set_beam(struct beam *beam, const struct beam *from, const struct candidate *c,
                     bool stops)
{
    memcpy(beam->ids, from->ids, (size_t)from->n * sizeof *beam->ids);
    beam->n = from->n;
    beam->score = c->score;
    beam->at = from->at;
    if (!stops)
        beam->ids[beam->n++] = c->id;
}

/* Texts that have ended, best first. */
static void add_ended(struct search *search, int64_t n_beams, const struct candidate *c, bool stops,
                      double score)
{
    int64_t at = search->n_ended;
    if (at == n_beams && !(score > search->ended[at - 1].score))
        return;
    if (at == n_beams)
        at--;
    else
        search->n_ended++;
    struct beam beam = search->ended[at];
    set_beam(&beam, &search->open[c->beam], c, stops);
    beam.score = score;
    for (; at > 0 && score > search->ended[at - 1].score; at--)
        search->ended[at] = search->ended[at - 1];
    search->ended[at] = beam;
}

/* After `length` tokens, the stop token counted, can an open beam still be better? */
static bool can_improve(const struct generation *g, const struct search *search, int64_t length)
{
    const int64_t n_beams = g->options->n_beams;
    if (search->n_open == 0)
        return false;
    if (search->n_ended < n_beams)
        return true;
    return !g->options->early_stopping &&
           search->open[0].score / pow((double)length, g->options->length_penalty) >
               search->ended[n_beams - 1].score;
}

/* One token more: what ends, and the beams that go on. length: of texts with this token. */
static void advance(const struct generation *g, struct search *search, int64_t length,
                    struct candidate *best, int64_t cap)
{
    const struct s2s_generate_options *options = g->options;
    const int64_t n = find_candidates(g, search, best, cap);
    search->n_next = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct candidate *c = &best[i];
        const bool stops = model_generation_stops(g, c->id),
                   ends = length == options->max_new_tokens;
        if ((stops || ends) && i < options->n_beams)
            add_ended(search, options->n_beams, c, stops,
                      c->score / pow((double)length, options->length_penalty));
        else if (!stops && !ends && search->n_next < options->n_beams)
            set_beam(&search->next[search->n_next++], &search->open[c->beam], c, false);
    }
    struct beam *was = search->open;
    search->open = search->next;
    search->n_open = search->n_next;
    search->next = was;
    search->done = !can_improve(g, search, length);
}

/* The next batch: all beams of the searches that go on. Gives their number. */
static int64_t lay_out(struct generation *g, struct search *searches, int64_t length)
{
    int64_t n = 0;
    for (int64_t s = 0; s < g->prompt->n_seqs; s++)
        for (int64_t b = 0; !searches[s].done && b < searches[s].n_open; b++) {
            struct beam *beam = &searches[s].open[b];
            g->from[n] = beam->at;
            g->ids[n] = beam->ids[beam->n - 1];
            g->positions[n] = model_generation_position(g, s) + (int32_t)length - 1;
            beam->at = (int32_t)n++;
        }
    return n;
}

static void give(struct s2s_generated *out, struct search *search)
{
    *out = (struct s2s_generated){.ids = NULL};
    if (search->n_ended == 0)
        return;
    *out = (struct s2s_generated){search->ended[0].ids, (size_t)search->ended[0].n,
                                  search->ended[0].score};
    search->ended[0].ids = NULL;
}

int model_generation_of_beams(struct generation *g, struct s2s_error *err)
{
    const int64_t n_seqs = g->prompt->n_seqs, n_beams = g->options->n_beams;
    const int64_t n_stops = g->options->n_stop_ids > 1 ? (int64_t)g->options->n_stop_ids : 1;
    const int64_t cap = (1 + n_stops) * n_beams;
    struct search *searches = s2s_xcalloc((size_t)n_seqs, sizeof *searches);
    struct candidate *best = s2s_xcalloc((size_t)cap, sizeof *best);
    int64_t n = n_seqs;
    int rc = 0;
    for (int64_t s = 0; s < n_seqs; s++) {
        searches[s] = (struct search){.open = new_beams(g, n_beams),
                                      .next = new_beams(g, n_beams),
                                      .ended = new_beams(g, n_beams),
                                      .n_open = 1};
        searches[s].open[0].at = (int32_t)s;
    }
    for (int64_t length = 1; rc == 0 && n > 0; length++) {
        for (int64_t s = 0; s < n_seqs; s++)
            if (!searches[s].done)
                advance(g, &searches[s], length, best, cap);
        n = lay_out(g, searches, length);
        if (n > 0)
            rc = model_generation_go_on(g, n, length, err);
    }
    for (int64_t s = 0; s < n_seqs; s++) {
        if (rc == 0)
            give(&g->out[s], &searches[s]);
        free_beams(searches[s].open, n_beams);
        free_beams(searches[s].next, n_beams);
        free_beams(searches[s].ended, n_beams);
    }
    free(best);
    free(searches);
    return rc;
}
