/* The pipeline of a plan: stages, what each rank computes in which order, how long ranks wait. */
#ifndef TRAIN_PLAN_PIPELINE_H
#define TRAIN_PLAN_PIPELINE_H

#include <jansson.h>

#include "lib/train/plan.h"

/* Adds "pipeline": sizes, layers of each stage, the share of time that ranks wait, and the actions
 * of each rank as "F0.0 B0.0": forward or backward, microbatch, chunk. */
int plan_pipeline_json(json_t *to, const struct s2s_plan *plan, struct s2s_error *err);
/* The same of the plan's rank, shortened. */
int plan_pipeline_print(const struct s2s_plan *plan, struct s2s_error *err);

#endif
