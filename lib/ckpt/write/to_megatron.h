/* From a Hugging Face folder to what Megatron-Core loads. */
#ifndef CKPT_TO_MEGATRON_H
#define CKPT_TO_MEGATRON_H

#include "lib/ckpt/map/map.h"

/*
 * Fills plan with Megatron's tensors (not sealed) and *common with the common state: `args` as far
 * as the configuration says them, and the texts of the folder; the source gets the
 * model's empty extra states as objects. request->config NULL: config.json of
 * the folder. ARG when the names are Megatron's already; NOTFOUND lists what is missing. Gives a
 * reference in *common.
 */
int s2s_megatron_prepare(struct s2s_ckpt_plan *plan, json_t **common,
                         const struct ckpt_map_request *request, struct ckpt_map_result *result,
                         struct s2s_error *err);

/* Adds to plan->source the extra states that modules of these weights may ask for, as objects. */
int ckpt_add_extra_states(struct s2s_ckpt_plan *plan, struct s2s_error *err);

#endif
