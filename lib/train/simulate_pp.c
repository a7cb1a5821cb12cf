/* Ranks go on in turn, each until it waits: times follow from the messages alone. */
#include "lib/train/simulate_pp.h"

#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

/* What is on its way: of an activation or a gradient, named by the stage that takes it. */
struct letter {
    double posted; /* when */
    int stage;
    bool gradient;
    int64_t microbatch;
};

struct letters {
    struct letter *list;
    size_t n, cap;
};

/* From one rank to another, in order. */
struct link {
    struct letters sent, expected;
};

enum { INPUT = 1, GRADIENT = 2, KEPT = 4 };

struct rank {
    struct s2s_pp_schedule schedule;
    int64_t at; /* the next list of messages */
    bool posted;
    double now, work;
    size_t *places; /* in its link, of each message of the schedule */
    uint8_t *has;   /* [n_chunks * n_microbatches] what arrived and is not used yet */
};

struct world {
    const struct s2s_pipeline *p;
    const struct s2s_pp_times *times;
    struct rank *ranks;
    struct link *links; /* [2 n_ranks]: to the next rank, to the one before */
};

static struct link *link_of(struct world *w, int from, int to)
{
    return &w->links[2 * from + (to == (from + 1) % w->p->n_ranks ? 0 : 1)];
}

static struct link *link_for(struct world *w, int rank, const struct s2s_message *m)
{
    return m->send ? link_of(w, rank, m->peer) : link_of(w, m->peer, rank);
}

static uint8_t *state(struct world *w, int rank, int chunk, int64_t microbatch)
{
    return &w->ranks[rank].has[chunk * w->p->n_microbatches + microbatch];
}

static int stuck(const struct world *w, int rank, const char *why, struct s2s_error *err)
{
    const struct rank *r = &w->ranks[rank];
    return s2s_error_set(err, S2S_E_RANGE,
                         "rank %d of %d, %d chunks, %lld microbatches in groups of %lld, action "
                         "%lld of %lld: %s",
                         rank, w->p->n_ranks, w->p->n_chunks, (long long)w->p->n_microbatches,
                         (long long)w->p->group, (long long)r->at, (long long)r->schedule.n_actions,
                         why);
}

/* The action before the list that the rank has come to. */
static int compute(struct world *w, int rank, struct s2s_error *err)
{
    struct rank *r = &w->ranks[rank];
    const struct s2s_action *a = &r->schedule.actions[r->at - 1];
    const int stage = s2s_pipeline_stage(w->p, rank, a->chunk);
    uint8_t *has = state(w, rank, a->chunk, a->microbatch);
    const double work = w->times->stages ? w->times->stages[stage] : 1;
    double time;
    if (a->kind == S2S_ACTION_FORWARD) {
        if (stage > 0 && !(*has & INPUT))
            return stuck(w, rank, "a forward without its input", err);
        *has = KEPT;
        time = work * w->times->forward;
    } else {
        const bool begins = s2s_pipeline_is_last(w->p, rank, a->chunk);
        if (*has != (begins ? KEPT : KEPT | GRADIENT))
            return stuck(w, rank, "a backward without its forward or its gradient", err);
        *has = 0;
        time = work * w->times->backward;
    }
    r->now += time;
    r->work += time;
    return 0;
}

static void post(struct world *w, int rank)
{
    struct rank *r = &w->ranks[rank];
    const struct s2s_pp_schedule *s = &r->schedule;
    for (int64_t j = s->list[r->at]; j < s->list[r->at + 1]; j++) {
        const struct s2s_message *m = &s->messages[j];
        struct link *link = link_for(w, rank, m);
        struct letters *to = m->send ? &link->sent : &link->expected;
        const int own = s2s_pipeline_stage(w->p, rank, m->chunk);
        s2s_grow(&to->list, to->n, &to->cap, sizeof *to->list);
        r->places[j] = to->n;
        to->list[to->n++] = (struct letter){r->now, m->send ? own + (m->gradient ? -1 : 1) : own,
                                            m->gradient, m->microbatch};
    }
    r->posted = true;
}

/* 1: all messages of the list went through; 0: not yet. */
static int wait_for_all(struct world *w, int rank, struct s2s_error *err)
{
    struct rank *r = &w->ranks[rank];
    const struct s2s_pp_schedule *s = &r->schedule;
    double now = r->now;
    for (int64_t j = s->list[r->at]; j < s->list[r->at + 1]; j++) {
        const struct link *link = link_for(w, rank, &s->messages[j]);
        const size_t i = r->places[j];
        if (i >= link->sent.n || i >= link->expected.n)
            return 0;
        const struct letter *a = &link->sent.list[i], *b = &link->expected.list[i];
        if (a->stage != b->stage || a->gradient != b->gradient || a->microbatch != b->microbatch)
            return stuck(w, rank, "a message that is not the one expected", err);
        const double met = a->posted > b->posted ? a->posted : b->posted;
        now = met > now ? met : now;
    }
    for (int64_t j = s->list[r->at]; j < s->list[r->at + 1]; j++)
        if (!s->messages[j].send)
            *state(w, rank, s->messages[j].chunk, s->messages[j].microbatch) |=
                s->messages[j].gradient ? GRADIENT : INPUT;
    r->now = now;
    r->posted = false;
    return 1;
}

/* As far as it comes: the number of lists it got through. */
static int64_t go_on(struct world *w, int rank, struct s2s_error *err)
{
    struct rank *r = &w->ranks[rank];
    const int64_t begin = r->at;
    while (r->at <= r->schedule.n_actions) {
        int rc = 0;
        if (!r->posted && r->at > 0)
            rc = compute(w, rank, err);
        if (rc < 0)
            return rc;
        if (!r->posted)
            post(w, rank);
        if ((rc = wait_for_all(w, rank, err)) < 0)
            return rc;
        if (rc == 0)
            break;
        r->at++;
    }
    return r->at - begin;
}

static int run(struct world *w, struct s2s_error *err)
{
    for (int64_t moved = 1; moved > 0;) {
        moved = 0;
        for (int rank = 0; rank < w->p->n_ranks; rank++) {
            const int64_t n = go_on(w, rank, err);
            if (n < 0)
                return (int)n;
            moved += n;
        }
    }
    for (int rank = 0; rank < w->p->n_ranks; rank++)
        if (w->ranks[rank].at <= w->ranks[rank].schedule.n_actions)
            return stuck(w, rank, "it waits for ever", err);
    for (int i = 0; i < 2 * w->p->n_ranks; i++)
        if (w->links[i].sent.n != w->links[i].expected.n)
            return stuck(w, i / 2, "a message that nobody takes", err);
    return 0;
}

static void sum_up(struct s2s_pp_result *result, const struct world *w)
{
    double work = 0;
    *result = (struct s2s_pp_result){.makespan = 0};
    for (int i = 0; i < w->p->n_ranks; i++) {
        const struct rank *r = &w->ranks[i];
        result->makespan = r->now > result->makespan ? r->now : result->makespan;
        result->busiest = r->work > result->busiest ? r->work : result->busiest;
        work += r->work;
    }
    if (result->makespan > 0)
        result->idle = 1 - work / (result->makespan * w->p->n_ranks);
}

int s2s_pp_simulate(struct s2s_pp_result *result, const struct s2s_pipeline *p,
                    const struct s2s_pp_times *times, struct s2s_error *err)
{
    const size_t n = (size_t)p->n_ranks;
    struct world w = {.p = p, .times = times};
    w.ranks = s2s_xcalloc(n, sizeof *w.ranks);
    w.links = s2s_xcalloc(2 * n, sizeof *w.links);
    for (size_t i = 0; i < n; i++) {
        struct rank *r = &w.ranks[i];
        s2s_pp_schedule_init(&r->schedule, p, (int)i);
        const int64_t n_messages = r->schedule.list[r->schedule.n_actions + 1];
        r->places = s2s_xcalloc((size_t)n_messages + 1, sizeof *r->places);
        r->has = s2s_xcalloc((size_t)(p->n_chunks * p->n_microbatches) + 1, sizeof *r->has);
    }
    int rc = run(&w, err);
    if (rc == 0)
        sum_up(result, &w);
    for (size_t i = 0; i < n; i++) {
        s2s_pp_schedule_release(&w.ranks[i].schedule);
        free(w.ranks[i].places);
        free(w.ranks[i].has);
        free(w.links[2 * i].sent.list);
        free(w.links[2 * i].expected.list);
        free(w.links[2 * i + 1].sent.list);
        free(w.links[2 * i + 1].expected.list);
    }
    free(w.ranks);
    free(w.links);
    return rc;
}
