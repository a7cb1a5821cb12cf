/* Converts a Hugging Face folder to what Megatron-Core loads. */
#ifndef CKPT_TO_MEGATRON_H
#define CKPT_TO_MEGATRON_H

#include "lib/ckpt/map/map.h"

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
