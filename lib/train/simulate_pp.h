/*
 * A pipeline that is only imagined: all ranks walk their schedules, a send ends when it is received
 * and not before, and time passes. Shows that nobody waits for ever, and how long ranks idle.
 */
#ifndef S2S_TRAIN_SIMULATE_PP_H
#define S2S_TRAIN_SIMULATE_PP_H

#include "lib/train/schedule_pp.h"

struct s2s_pp_times {
    const double *stages;     /* [n_ranks * n_chunks] work of a stage for a microbatch, in any unit;
                                 NULL: 1 each */
    double forward, backward; /* time for a unit of it; messages take none */
};

struct s2s_pp_result {
    double makespan;
    double busiest; /* time that the rank with most work computes */
    double idle;    /* share of the makespan that ranks wait, of all ranks together */
};

/*
 * Of a pipeline that was checked. Fails where the schedules of two ranks do not fit each other,
 * which would be our bug: ranks that wait for each other, a message that is no answer to the one
 * that its receiver expects, an action without what it needs. The text names rank and action.
 */
int s2s_pp_simulate(struct s2s_pp_result *result, const struct s2s_pipeline *pipeline,
                    const struct s2s_pp_times *times, struct s2s_error *err);

#endif
