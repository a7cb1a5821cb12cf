/* 1F1B and interleaved 1F1B: the order of actions, and the messages between them. */
#include "lib/train/schedule_pp.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

static int64_t group_of(const struct s2s_pipeline *p)
{
    if (p->n_chunks == 1)
        return p->n_microbatches > 0 ? p->n_microbatches : 1;
    return p->group > 0 ? p->group : p->n_ranks;
}

int s2s_pipeline_check(const struct s2s_pipeline *p, struct s2s_error *err)
{
    const int64_t group = group_of(p), m = p->n_microbatches;
    if (p->n_ranks < 1 || p->n_chunks < 1 || m < 0 || p->group < 0)
        return s2s_error_set(err, S2S_E_RANGE,
                             "a pipeline of %d ranks, %d chunks a rank and %lld microbatches",
                             p->n_ranks, p->n_chunks, (long long)m);
    if (p->n_chunks == 1)
        return 0;
    if (p->n_ranks == 1)
        return s2s_error_set(err, S2S_E_RANGE, "%d chunks on a single rank are no pipeline",
                             p->n_chunks);
    if (group < p->n_ranks || group > m)
        return s2s_error_set(err, S2S_E_RANGE,
                             "%lld microbatches go through a chunk together; with several chunks a "
                             "rank expected at least as many as ranks (%d) and at most all (%lld)",
                             (long long)group, p->n_ranks, (long long)m);
    if (m % group != 0 && m % group < p->n_ranks)
        return s2s_error_set(err, S2S_E_RANGE,
                             "%lld microbatches in groups of %lld leave %lld; with several chunks "
                             "a rank expected none, or at least as many as ranks (%d)",
                             (long long)m, (long long)group, (long long)(m % group), p->n_ranks);
    return 0;
}

int s2s_pipeline_stage(const struct s2s_pipeline *p, int rank, int chunk)
{
    return chunk * p->n_ranks + rank;
}

bool s2s_pipeline_is_last(const struct s2s_pipeline *p, int rank, int chunk)
{
    return s2s_pipeline_stage(p, rank, chunk) == p->n_ranks * p->n_chunks - 1;
}

/* ---- what is made ---- */

struct maker {
    const struct s2s_pipeline *p;
    struct s2s_pp_schedule *s;
    size_t cap_actions, cap_messages, cap_list, n_messages;
    int rank;
    int64_t n, group, warm_up; /* forwards of this rank; before the first backward */
};

/* The k-th forward of every rank: group by group of microbatches, in it chunk by chunk. */
static struct s2s_action forward_at(const struct maker *k, int64_t idx)
{
    const int64_t m = k->p->n_microbatches, whole = k->group * k->p->n_chunks;
    const int64_t begin = idx / whole * k->group;
    const int64_t size = m - begin < k->group ? m - begin : k->group;
    const int64_t at = idx - begin * k->p->n_chunks;
    return (struct s2s_action){S2S_ACTION_FORWARD, (int)(at / size), begin + at % size};
}

/* The same list, the last chunk first. */
static struct s2s_action backward_at(const struct maker *k, int64_t idx)
{
    struct s2s_action a = forward_at(k, idx);
    return (struct s2s_action){S2S_ACTION_BACKWARD, k->p->n_chunks - 1 - a.chunk, a.microbatch};
}

static void act(struct maker *k, struct s2s_action action)
{
    struct s2s_pp_schedule *s = k->s;
    s2s_grow(&s->actions, (size_t)s->n_actions, &k->cap_actions, sizeof *s->actions);
    s->actions[s->n_actions++] = action;
    s2s_grow(&s->list, (size_t)s->n_actions, &k->cap_list, sizeof *s->list);
    s->list[s->n_actions] = (int64_t)k->n_messages;
}

static void message(struct maker *k, bool send, bool gradient, const struct s2s_action *of)
{
    struct s2s_pp_schedule *s = k->s;
    const int n = k->p->n_ranks, next = (k->rank + 1) % n, before = (k->rank + n - 1) % n;
    s2s_grow(&s->messages, k->n_messages, &k->cap_messages, sizeof *s->messages);
    s->messages[k->n_messages++] = (struct s2s_message){
        send, gradient, of->chunk, send != gradient ? next : before, of->microbatch};
}

static bool is_first(const struct maker *k, int chunk)
{
    return k->rank == 0 && chunk == 0;
}

static bool is_last(const struct maker *k, int chunk)
{
    return s2s_pipeline_is_last(k->p, k->rank, chunk);
}

static void send_activation(struct maker *k, int64_t idx)
{
    const struct s2s_action a = forward_at(k, idx);
    if (!is_last(k, a.chunk))
        message(k, true, false, &a);
}

static void send_gradient(struct maker *k, int64_t idx)
{
    const struct s2s_action a = backward_at(k, idx);
    if (!is_first(k, a.chunk))
        message(k, true, true, &a);
}

/* What the forward idx of this rank takes. */
static void take_activation(struct maker *k, int64_t idx)
{
    if (idx >= k->n)
        return;
    const struct s2s_action a = forward_at(k, idx);
    if (!is_first(k, a.chunk))
        message(k, false, false, &a);
}

static void take_gradient(struct maker *k, int64_t idx)
{
    if (idx >= k->n)
        return;
    const struct s2s_action a = backward_at(k, idx);
    if (!is_last(k, a.chunk))
        message(k, false, true, &a);
}

/* What comes in beside the forward idx: the next one's; to the first rank what the last one
 * computed n_ranks - 1 forwards ago, for its next chunk, which may be due much later. */
static void next_activation(struct maker *k, int64_t idx)
{
    if (k->rank > 0) {
        take_activation(k, idx + 1);
        return;
    }
    const int64_t then = idx - (k->p->n_ranks - 1);
    if (then < 0)
        return;
    struct s2s_action a = forward_at(k, then);
    if (++a.chunk < k->p->n_chunks)
        message(k, false, false, &a);
}

/* The mirror image. */
static void next_gradient(struct maker *k, int64_t idx)
{
    if (k->rank < k->p->n_ranks - 1) {
        take_gradient(k, idx + 1);
        return;
    }
    const int64_t then = idx - (k->p->n_ranks - 1);
    if (then < 0)
        return;
    struct s2s_action a = backward_at(k, then);
    if (--a.chunk >= 0)
        message(k, false, true, &a);
}

/* ---- the three parts of a step ---- */

static void warm_up(struct maker *k)
{
    for (int64_t i = 0; i < k->warm_up; i++) {
        act(k, forward_at(k, i));
        send_activation(k, i);
        next_activation(k, i);
    }
    /* with one chunk the first gradient comes in beside the first forward after these */
    if (!k->p->forward_only && (k->p->n_chunks > 1 || k->warm_up == k->n) && k->warm_up > 0)
        take_gradient(k, 0);
}

/* One chunk: a forward's output goes out while the gradient for the backward comes in, and the
 * other way round. */
static void steady_plain(struct maker *k)
{
    for (int64_t f = k->warm_up, b = 0; f < k->n; f++, b++) {
        act(k, forward_at(k, f));
        send_activation(k, f);
        take_gradient(k, b);
        act(k, backward_at(k, b));
        send_gradient(k, b);
        next_activation(k, f);
        if (f == k->n - 1)
            take_gradient(k, b + 1);
    }
}

/* Several chunks: one exchange of all four after a forward and a backward. */
static void steady_interleaved(struct maker *k)
{
    for (int64_t f = k->warm_up, b = 0; f < k->n; f++, b++) {
        act(k, forward_at(k, f));
        act(k, backward_at(k, b));
        send_activation(k, f);
        next_activation(k, f);
        send_gradient(k, b);
        next_gradient(k, b);
    }
}

static void cool_down(struct maker *k)
{
    for (int64_t b = k->n - k->warm_up; b < k->n; b++) {
        act(k, backward_at(k, b));
        send_gradient(k, b);
        next_gradient(k, b);
    }
}

/* How much is kept at once: a forward's tensors from what it takes to its backward, or without one
 * until they were sent. */
static int64_t most_in_flight(const struct maker *k)
{
    const struct s2s_pp_schedule *s = k->s;
    int64_t now = 0, most = 0;
    for (int64_t i = 0; i <= s->n_actions; i++) {
        const struct s2s_action *a = i > 0 ? &s->actions[i - 1] : NULL;
        const bool back = a && a->kind == S2S_ACTION_BACKWARD,
                   ends = a && k->p->forward_only && is_last(k, a->chunk);
        now += a && !back && is_first(k, a->chunk);
        most = now > most ? now : most;
        now -= back || ends;
        for (int64_t j = s->list[i]; j < s->list[i + 1]; j++)
            now += !s->messages[j].send && !s->messages[j].gradient;
        most = now > most ? now : most;
        now -= a && k->p->forward_only && !ends;
    }
    return most;
}

void s2s_pp_schedule_init(struct s2s_pp_schedule *schedule, const struct s2s_pipeline *p, int rank)
{
    struct maker k = {.p = p,
                      .s = schedule,
                      .rank = rank,
                      .n = p->n_microbatches * p->n_chunks,
                      .group = group_of(p)};
    int64_t ahead = p->n_ranks - rank - 1;
    if (p->n_chunks > 1)
        ahead = 2 * ahead + (p->n_chunks - 1) * k.group;
    k.warm_up = p->forward_only || ahead > k.n ? k.n : ahead;
    *schedule = (struct s2s_pp_schedule){.n_actions = 0};
    s2s_grow(&schedule->list, 1, &k.cap_list, sizeof *schedule->list);
    schedule->list[0] = 0;
    if (rank > 0)
        take_activation(&k, 0);
    warm_up(&k);
    if (!p->forward_only) {
        if (p->n_chunks > 1)
            steady_interleaved(&k);
        else
            steady_plain(&k);
        cool_down(&k);
    }
    s2s_grow(&schedule->list, (size_t)schedule->n_actions + 1, &k.cap_list, sizeof *schedule->list);
    schedule->list[schedule->n_actions + 1] = (int64_t)k.n_messages;
    schedule->in_flight = most_in_flight(&k);
}

void s2s_pp_schedule_release(struct s2s_pp_schedule *s)
{
    free(s->actions);
    free(s->messages);
    free(s->list);
    *s = (struct s2s_pp_schedule){.n_actions = 0};
}
