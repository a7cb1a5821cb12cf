/*
 * What a recipe says about groups of parameters, by shell patterns over their names, in which *
 * matches dots too: "llm.model.layers.*.weight". Before s2s_params_finish.
 */
#ifndef S2S_OPTIM_GROUPS_H
#define S2S_OPTIM_GROUPS_H

struct s2s_conf;
struct s2s_error;
struct s2s_params;

/* Freezes what matches the pattern, or one of the list, at `node` (NULL: nothing). NOTFOUND for a
 * pattern that matches no name. */
int s2s_groups_freeze(struct s2s_params *params, const struct s2s_conf *node,
                      struct s2s_error *err);
/* Trains what matches, whatever froze it. NOTFOUND as above. */
int s2s_groups_unfreeze(struct s2s_params *params, const struct s2s_conf *node,
                        struct s2s_error *err);
/*
 * Scales learning rate (of which lr is the highest) and weight decay by the list at `node` (NULL:
 * nothing) of maps {match, lr_mult, weight_decay_mult, min_lr}; a name that several match is scaled
 * by each, and the last min_lr counts. NOTFOUND as above; FORMAT and RANGE name the place.
 */
int s2s_groups_scale(struct s2s_params *params, const struct s2s_conf *node, double lr,
                     struct s2s_error *err);

#endif
