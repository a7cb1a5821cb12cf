/* Any checkpoint as torch_dist. */
#ifndef CKPT_TO_DIST_H
#define CKPT_TO_DIST_H

#include "lib/ckpt/plan.h"

/*
 * Writes the plan's targets into `dir` (made here) as a root folder: the tracker and iter_%07d
 * (S2S_DIST_UNKNOWN when the source knows no iteration), or `release` where the source is one. Byte
 * objects and the common state come along unchanged; a source without common state gets one with
 * the texts of its folder (config/.., file/..: doc/CHECKPOINT.md).
 */
int s2s_ckpt_write_dist(struct s2s_ckpt_plan *plan, const char *dir,
                        const struct s2s_ckpt_write *how, struct s2s_error *err);

#endif
