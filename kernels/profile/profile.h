/*
 * A table that wraps another one and measures it: time, operations and bytes of each call, by
 * operation and layer. It is put before a device's table for the steps of interest, and taken away
 * again; a run that is not measured does not know of it.
 *
 *     struct s2s_profile *profile = s2s_profile_new(device->kernels, &device->queue);
 *     device->kernels = s2s_profile_table(profile);
 *     s2s_profile_step(profile, 1);
 *     ...
 *     s2s_profile_step_end(profile);
 *     device->kernels = s2s_profile_free(profile);
 *
 * Each call is waited for, so that its time is its own, whatever the device: measured kernels do
 * not run beside each other.
 */
#ifndef S2S_PROFILE_H
#define S2S_PROFILE_H

#include "kernels/count/tally.h"

struct s2s_profile;

/* Of the newest steps so many keep their events, and at most so many events each. */
enum { S2S_PROFILE_STEPS = 3, S2S_PROFILE_EVENTS = 1 << 20 };

struct s2s_profile_event {
    enum s2s_entry entry;
    const char *layer; /* lives as long as the profile */
    double begin_s, seconds;
    struct s2s_cost cost;
};

/* One step, from s2s_profile_step to s2s_profile_step_end. */
struct s2s_profile_step {
    int64_t number;
    double begin_s, seconds;
    struct s2s_profile_event *events; /* [n] in the order of their calls */
    size_t n, cap;
};

/* The queue stays open, and is the profile's as long as that lives (its `wrapped`). base is kept.
 * Gives: s2s_profile_free. */
struct s2s_profile *s2s_profile_new(const struct s2s_kernels *base, struct s2s_queue *queue);
/* Returns base. */
const struct s2s_kernels *s2s_profile_free(struct s2s_profile *profile);
const struct s2s_kernels *s2s_profile_table(const struct s2s_profile *profile);

/* Measures from here on. */
void s2s_profile_step(struct s2s_profile *profile, int64_t number);
void s2s_profile_step_end(struct s2s_profile *profile);

/* Sums over all steps. */
const struct s2s_tally *s2s_profile_tally(const struct s2s_profile *profile);
/* How many there were, and their seconds. */
int64_t s2s_profile_n_steps(const struct s2s_profile *profile, double *seconds);
/* The i-th of the steps that kept their events, the oldest first; NULL: no more. */
const struct s2s_profile_step *s2s_profile_kept(const struct s2s_profile *profile, size_t i);

#endif
