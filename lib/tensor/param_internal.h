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

/* Places p at *end. */
void tensor_place(struct s2s_param *p, int64_t *end);
/* *end becomes one at which n ranks have equal parts. */
void tensor_round_up(int64_t *end, int n);
/* The type in which layers use it. */
enum s2s_dtype tensor_working_dtype(const struct s2s_params *params, const struct s2s_param *p);
/* Lays out what is trained of a class: each piece begins and ends where ranks can divide it, and
 * the parts of a rank are stored in the same order. */
void tensor_lay_out_pieces(struct s2s_params *params, int class);
/* After that: where whole units stand, and how much memory they take. */
void tensor_place_units(struct s2s_params *params);
/* Sets what is stored of a trained parameter, whose number in the list is `param`. Gives the piece
 * it is in. */
const struct s2s_param_piece *tensor_store_part(const struct s2s_params *params, size_t param);

#endif
