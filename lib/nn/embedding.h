/*
 * Tables with a row for each id: input embeddings, and the output matrix. Ranks of tp have the rows
 * of some ids each.
 */
#ifndef S2S_NN_EMBEDDING_H
#define S2S_NN_EMBEDDING_H

#include "lib/nn/linear.h"

struct s2s_nn_table {
    struct s2s_param *w;        /* [n, width] */
    struct s2s_classes classes; /* the ids, and who has which */
};

/* A table of n rows for the ranks of par: what its parameter is but for the name. */
struct s2s_param_spec s2s_nn_table_spec(const struct s2s_par *par, int64_t n, int64_t width,
                                        double init_std);
struct s2s_nn_table s2s_nn_table_of(struct s2s_param *w);

/*
 * Rows of host ids [n] times scale, as s2s_op_embedding has them; those of other ranks come from
 * there. Where sequences are cut, this rank's rows of them, with zero rows behind the last.
 */
struct s2s_tensor *s2s_nn_embed(struct s2s_tape *tape, const struct s2s_nn_table *table,
                                const struct s2s_nn_tp *tp, const int32_t *ids, int64_t n,
                                float scale, int32_t skip_id);

/* All classes of the rows of x: [rows, n]. Without gradient. x came through s2s_nn_enter. */
struct s2s_tensor *s2s_nn_logits(struct s2s_tape *tape, const struct s2s_nn_table *table,
                                 struct s2s_tensor *x);

#endif
