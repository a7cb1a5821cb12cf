/*
 * Values and gradients that ranks divide, block by block (FSDP: Zhao et al. 2023; ZeRO's third
 * stage): the unit of a block is gathered while the block before it computes, and stays until
 * another one takes its place; in the backward it is gathered again, and its gradients are summed
 * to the ranks that keep their parts while the next block computes.
 *
 * What is tied beyond its block (an embedding that is the output layer too) is gathered once a
 * step.
 */
#ifndef S2S_TRAIN_FSDP_H
#define S2S_TRAIN_FSDP_H

#include "lib/model/model.h"
#include "lib/optim/optim.h"

struct s2s_fsdp;

/* Before s2s_params_finish: the blocks of the model as units for the ranks of group. */
void s2s_fsdp_lay_out(struct s2s_model *model, const struct s2s_group *group);
/* Over a registry that was finished after that; sets model->watch. group is kept. overlap: gathers
 * and sums run beside the computation (collective then). Gives: s2s_fsdp_free. */
struct s2s_fsdp *s2s_fsdp_new(struct s2s_model *model, const struct s2s_group *group, bool overlap);
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
