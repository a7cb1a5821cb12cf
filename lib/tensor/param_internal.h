/* Shared by the files of the parameter registry. */
#ifndef S2S_TENSOR_PARAM_INTERNAL_H
#define S2S_TENSOR_PARAM_INTERNAL_H

#include "lib/tensor/param.h"

/* How many elements from local element i on are neighbours in the global tensor too; *global: where
 * the first is there. boxes [n_boxes]: of this rank. */
int64_t tensor_param_run(const struct s2s_param *param, const struct s2s_box *boxes, int n_boxes,
                         int64_t i, int64_t *global);

#endif
