/* Shared by the files of the parameter registry. */
#ifndef S2S_TENSOR_PARAM_INTERNAL_H
#define S2S_TENSOR_PARAM_INTERNAL_H

#include "lib/tensor/param.h"

/* How many elements from local element i on are neighbours in the global tensor too; *global: where
 * the first is there. boxes [n_boxes]: of this rank. */
int64_t tensor_param_run(const struct s2s_param *param, const struct s2s_box *boxes, int n_boxes,
                         int64_t i, int64_t *global);

/* ---- units that ranks divide (param_shard.c) ---- */

enum { PARAM_ALIGN = 16 }; /* elements: a cache line of fp32 */

/* The unit of a parameter, -1: nothing is divided. */
int tensor_unit_of(const struct s2s_params *params, size_t param);
/* After the flat layout: where whole units stand, and how much memory they take. */
void tensor_place_units(struct s2s_params *params);
/* Sets what is stored of a trained parameter. Gives where its whole is among the whole units. */
int64_t tensor_place_param(const struct s2s_params *params, struct s2s_param *param, int unit);

#endif
