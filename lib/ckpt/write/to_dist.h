/* Writes any checkpoint as torch_dist. */
#ifndef CKPT_TO_DIST_H
#define CKPT_TO_DIST_H

#include "lib/ckpt/plan.h"

/*
 * Writes the targets of a sealed plan into dir, which is created: a tracker, and the folder that it
 * names, which is iter_%07d with the source's iteration (S2S_DIST_UNKNOWN: it has none) or release.
 * Byte objects and the common state of the source are copied; without a common state, one is made
 * of the small files of its folder (config/.., file/..: doc/CHECKPOINT.md). Collective over
 * how->mesh; all ranks return the same result.
 */
int s2s_ckpt_write_dist(struct s2s_ckpt_plan *plan, const char *dir,
                        const struct s2s_ckpt_write *how, struct s2s_error *err);

#endif
