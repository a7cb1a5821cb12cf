/* Writes any checkpoint as torch_dist, with Megatron's names or under those that it has. */
#ifndef CKPT_TO_DIST_H
#define CKPT_TO_DIST_H

#include "lib/ckpt/map/map.h"
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

/*
 * Fills plan, which is not sealed, with Megatron's tensors, and makes the matching common state:
 * "args", as far as config.json determines them, and the small files of the folder. Adds the
 * model's empty extra states to the source as objects. request->config NULL: config.json of the
 * folder. Gives a reference in *common. ARG: the names are Megatron's already; NOTFOUND lists what
 * is missing; others as ckpt_map_to_megatron.
 */
int s2s_megatron_prepare(struct s2s_ckpt_plan *plan, json_t **common,
                         const struct ckpt_map_request *request, struct ckpt_map_result *result,
                         struct s2s_error *err);

#endif
