/*
 * Values and gradients that ranks divide, block by block (FSDP: Zhao et al. 2023; ZeRO's third
 * stage): the unit of a block is gathered while the block before it computes, and stays until
 * another one takes its place; in the backward it is gathered again, and its gradients are summed
 * to the ranks that keep their parts while the next block computes. Experts are divided between the
 * ranks that have the same ones.
 *
 * What is used beyond its block's pass is gathered and summed once a step: an embedding that is the
 * output layer too, and in a pipeline the last unit, whose gradients begin in the forward, after
 * which that of another microbatch may come. An embedding that two stages have is summed over them
 * first.
 */
#ifndef S2S_TRAIN_FSDP_H
#define S2S_TRAIN_FSDP_H

#include "lib/model/model.h"
#include "lib/optim/optim.h"

struct s2s_fsdp;

/* Before s2s_params_finish: the blocks of the model as units, each class of which is divided by the
 * ranks of its group; the groups are kept. */
void s2s_fsdp_lay_out(struct s2s_model *model, const struct s2s_group *const groups[S2S_CLASSES],
                      bool pipeline);
/* Over a registry that was finished after that; sets model->watch. overlap: gathers and sums run
 * beside the computation (collective then). Gives: s2s_fsdp_free. */
struct s2s_fsdp *s2s_fsdp_new(struct s2s_model *model, bool overlap);
void s2s_fsdp_free(struct s2s_fsdp *fsdp); /* NULL is a no-op */

/* A step: begin, then arm before the last backward, finish after it; update moves what this rank
 * keeps (lib/train/buckets.h has the same calls). */
void s2s_fsdp_begin(struct s2s_fsdp *fsdp);
void s2s_fsdp_arm(struct s2s_fsdp *fsdp);
void s2s_fsdp_finish(struct s2s_fsdp *fsdp);
void s2s_fsdp_update(struct s2s_fsdp *fsdp, struct s2s_optim *optim, double lr, double weight_decay,
                     double grad_scale);
int s2s_fsdp_optim(struct s2s_optim **optim, struct s2s_fsdp *fsdp,
                   const struct s2s_adamw_options *options, struct s2s_error *err);

#endif
