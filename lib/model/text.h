/* The two ends that decoders have in common: embeddings of ids in front, and after the layers a
 * norm, the output layer, the loss. */
#ifndef S2S_MODEL_TEXT_H
#define S2S_MODEL_TEXT_H

#include "lib/model/model.h"
#include "lib/nn/decoder.h"
#include "lib/nn/embedding.h"

/* Its first block: the table of embeddings, under that name. */
void model_add_embed(struct s2s_model *model, struct s2s_nn_table *embed,
                     const struct s2s_param_spec *table, const char *name);
/* Of the batch's ids [T, H] times scale: zero rows in pad slots and where media will stand. Where
 * sequences are cut, this rank's rows. */
struct s2s_tensor *model_embed_ids(const struct s2s_model *model, const struct s2s_pass *pass,
                                   const struct s2s_nn_table *table, float scale,
                                   const struct s2s_nn_dropout *dropout);
/* The run of a decoder's first block: the kind's embed, and in its slots the embeddings that the
 * batch brought. */
void model_run_embed(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                     struct s2s_tensor *const *in, struct s2s_tensor **out);
/* Of its last one: the norm of h, and what struct s2s_forward asks for. Returns the former. */
struct s2s_tensor *model_run_head(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                                  const struct s2s_nn_rmsnorm *norm,
                                  const struct s2s_nn_table *head, struct s2s_tensor *h);
/* struct s2s_model_kind: what a decoder asks of a batch. */
int model_check_text(const struct s2s_model *model, const struct s2s_batch *batch,
                     struct s2s_error *err);

#endif
