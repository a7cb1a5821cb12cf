/* --profile: steps of a run measured, as a trace for Perfetto and a table. */
#ifndef TRAIN_PROFILE_H
#define TRAIN_PROFILE_H

#include "lib/train/trainer.h"

struct train_profile;

/* Begins to measure the steps of the trainer, its device's table and its `watch` being taken; the
 * trainer must outlive it. The trace goes to path (of several ranks with .rankR before its ending),
 * which is begun here. Gives: train_profile_free. */
int train_profile_open(struct train_profile **profile, const char *path,
                       struct s2s_trainer *trainer, struct s2s_error *err);
/* The trace of the newest steps, and on rank 0 the table on stderr. Nothing where no step was done.
 */
int train_profile_write(struct train_profile *profile, struct s2s_error *err);
/* The device is as before; a trace that was not written is no file. NULL is a no-op. */
void train_profile_free(struct train_profile *profile);

#endif
