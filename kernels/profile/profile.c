/* Every call of the list, with a clock around it. */
#include "kernels/profile/profile.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"

struct s2s_profile {
    struct s2s_kernels table;
    const struct s2s_kernels *base;
    struct s2s_queue *queue;
    struct s2s_tally tally;
    struct s2s_uploads uploads;
    struct s2s_profile_step steps[S2S_PROFILE_STEPS];
    size_t n_kept;
    int64_t n_steps;
    double seconds;
    bool on;
};

static struct s2s_profile *profile_of(const struct s2s_queue *queue)
{
    return queue->wrapped;
}

static const struct s2s_kernels *base_of(const struct s2s_queue *queue)
{
    return profile_of(queue)->base;
}

/* ---- one call ---- */

static double call_begin(const struct s2s_profile *p)
{
    return p->on ? s2s_now_s() : 0;
}

static void call_end(struct s2s_queue *queue, enum s2s_entry entry, double begin_s,
                     struct s2s_cost cost)
{
    struct s2s_profile *p = profile_of(queue);
    if (!p->on)
        return;
    p->base->sync(queue);
    const double seconds = s2s_now_s() - begin_s;
    struct s2s_tally_row *row = s2s_tally_row(&p->tally, entry, queue->layer);
    row->calls++;
    row->seconds += seconds;
    row->cost.flops += cost.flops;
    row->cost.read_bytes += cost.read_bytes;
    row->cost.written_bytes += cost.written_bytes;
    struct s2s_profile_step *step = &p->steps[p->n_kept - 1];
    if (step->n == S2S_PROFILE_EVENTS)
        return;
    s2s_grow(&step->events, step->n, &step->cap, sizeof *step->events);
    step->events[step->n++] = (struct s2s_profile_event){entry, row->layer, begin_s, seconds, cost};
}

#define X(name, suffix, kind, mats) \
    static void profile_##name(struct s2s_queue *queue, const struct s2s_k_##suffix *args) \
    { \
        const struct s2s_profile *p = profile_of(queue); \
        const double begin_s = call_begin(p); \
        p->base->name(queue, args); \
        call_end(queue, S2S_ENTRY_##name, begin_s, \
                 p->on ? s2s_cost_##name(args, &p->uploads) : (struct s2s_cost){0}); \
    }
S2S_KERNELS(X)
#undef X

static void profile_zero(struct s2s_queue *queue, void *dst, size_t bytes)
{
    const double begin_s = call_begin(profile_of(queue));
    base_of(queue)->zero(queue, dst, bytes);
    call_end(queue, S2S_ENTRY_zero, begin_s, (struct s2s_cost){.written_bytes = (double)bytes});
}

static void profile_copy_in(struct s2s_queue *queue, void *dst, const void *host, size_t bytes)
{
    const double begin_s = call_begin(profile_of(queue));
    base_of(queue)->copy_in(queue, dst, host, bytes);
    call_end(queue, S2S_ENTRY_copy_in, begin_s, (struct s2s_cost){.written_bytes = (double)bytes});
    s2s_uploads_add(&profile_of(queue)->uploads, dst, host, bytes);
}

static void profile_copy_in_async(struct s2s_queue *queue, void *dst, const void *host,
                                  size_t bytes)
{
    const double begin_s = call_begin(profile_of(queue));
    base_of(queue)->copy_in_async(queue, dst, host, bytes);
    call_end(queue, S2S_ENTRY_copy_in, begin_s, (struct s2s_cost){.written_bytes = (double)bytes});
    s2s_uploads_add(&profile_of(queue)->uploads, dst, host, bytes);
}

static void profile_copy_out(struct s2s_queue *queue, void *host, const void *src, size_t bytes)
{
    const double begin_s = call_begin(profile_of(queue));
    base_of(queue)->copy_out(queue, host, src, bytes);
    call_end(queue, S2S_ENTRY_copy_out, begin_s, (struct s2s_cost){.read_bytes = (double)bytes});
}

static void profile_copy_out_async(struct s2s_queue *queue, void *host, const void *src,
                                   size_t bytes)
{
    const double begin_s = call_begin(profile_of(queue));
    base_of(queue)->copy_out_async(queue, host, src, bytes);
    call_end(queue, S2S_ENTRY_copy_out_async, begin_s,
             (struct s2s_cost){.read_bytes = (double)bytes});
}

static void profile_sync(struct s2s_queue *queue)
{
    const double begin_s = call_begin(profile_of(queue));
    base_of(queue)->sync(queue);
    call_end(queue, S2S_ENTRY_sync, begin_s, (struct s2s_cost){0});
}

/* ---- life ---- */

/* What is not measured is the base's own. */
static struct s2s_kernels table_over(const struct s2s_kernels *base)
{
    struct s2s_kernels table = *base;
    table.zero = profile_zero;
    table.copy_in = profile_copy_in;
    table.copy_in_async = profile_copy_in_async;
    table.copy_out = profile_copy_out;
    table.copy_out_async = profile_copy_out_async;
    table.sync = profile_sync;
#define X(name, suffix, kind, mats) table.name = profile_##name;
    S2S_KERNELS(X)
#undef X
    return table;
}

struct s2s_profile *s2s_profile_new(const struct s2s_kernels *base, struct s2s_queue *queue)
{
    if (queue->wrapped)
        S2S_BUG("a queue of another table is measured");
    struct s2s_profile *p = s2s_xcalloc(1, sizeof *p);
    p->table = table_over(base);
    p->base = base;
    p->queue = queue;
    queue->wrapped = p;
    return p;
}

const struct s2s_kernels *s2s_profile_free(struct s2s_profile *p)
{
    const struct s2s_kernels *base = p->base;
    p->queue->wrapped = NULL;
    for (size_t i = 0; i < S2S_PROFILE_STEPS; i++)
        free(p->steps[i].events);
    s2s_tally_release(&p->tally);
    s2s_uploads_release(&p->uploads);
    free(p);
    return base;
}

const struct s2s_kernels *s2s_profile_table(const struct s2s_profile *p)
{
    return &p->table;
}

/* ---- steps ---- */

void s2s_profile_step(struct s2s_profile *p, int64_t number)
{
    if (p->n_kept == S2S_PROFILE_STEPS) {
        struct s2s_profile_step oldest = p->steps[0];
        memmove(p->steps, p->steps + 1, (S2S_PROFILE_STEPS - 1) * sizeof *p->steps);
        p->steps[--p->n_kept] = oldest;
    }
    struct s2s_profile_step *step = &p->steps[p->n_kept++];
    step->number = number;
    step->n = 0;
    step->seconds = 0;
    step->begin_s = s2s_now_s();
    p->on = true;
}

void s2s_profile_step_end(struct s2s_profile *p)
{
    struct s2s_profile_step *step = &p->steps[p->n_kept - 1];
    p->on = false;
    step->seconds = s2s_now_s() - step->begin_s;
    p->seconds += step->seconds;
    p->n_steps++;
}

const struct s2s_tally *s2s_profile_tally(const struct s2s_profile *p)
{
    return &p->tally;
}

int64_t s2s_profile_n_steps(const struct s2s_profile *p, double *seconds)
{
    *seconds = p->seconds;
    return p->n_steps;
}

const struct s2s_profile_step *s2s_profile_kept(const struct s2s_profile *p, size_t i)
{
    return i < p->n_kept ? &p->steps[i] : NULL;
}
