/* The layers of a stack: on a leading axis, or numbered in names. */
#ifndef CKPT_LAYERS_H
#define CKPT_LAYERS_H

#include "lib/ckpt/map/map.h"

/*
 * Names the layers in a plan of whole tensors (not sealed) as Megatron-Core's models ask for them.
 * A transformer block whose layers are alike saves "decoder.layers.mlp.linear_fc2.weight"
 * [n_layers, ..]; one whose layers differ, and every Mamba, hybrid or multi-token-prediction stack,
 * saves "decoder.layers.7.mlp.linear_fc2.weight" [..].
 *
 *   AUTO      numbered blocks go on an axis where Megatron-Core would do so: all layers alike, and
 *             the saved arguments speak of no layers that differ
 *   STACKED   every numbered block goes on an axis; SHAPE names what is not alike
 *   NUMBERED  every block that lies on an axis gets numbers
 *
 * Optimizer state follows its weights; UNSUPPORTED where Megatron-Core flattened it. Byte objects
 * of plan->source get their names, too: call this once. *n_changed is how many stacks changed.
 */
int s2s_ckpt_plan_layers(struct s2s_ckpt_plan *plan, enum ckpt_layers how, size_t *n_changed,
                         struct s2s_error *err);

/*
 * The content metadata that belongs to layers named so, out of a common state (NULL: there is
 * none): Megatron-LM hands it to the model, which then asks for numbers though its layers are alike
 * (non_homogeneous_layers). NULL: what is there may stay. Gives a reference.
 */
json_t *s2s_ckpt_layers_metadata(const json_t *common, enum ckpt_layers how);

#endif
