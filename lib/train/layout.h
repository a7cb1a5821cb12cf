/*
 * The groups a rank trains in: made once of the recipe's mesh, lent to the model, to the step and
 * to whoever saves or evaluates.
 *
 *     tp x cp x dp x pp ranks. Peers along tp, cp and pp compute on the same packs, each a part of
 *     the model or of the tokens; ranks of different dp have other packs. Experts lay out the same
 *     ranks another way: etp x ep x (the rest, their data parallelism) x pp.
 */
#ifndef S2S_TRAIN_LAYOUT_H
#define S2S_TRAIN_LAYOUT_H

#include "lib/mesh/mesh.h"
#include "lib/tensor/par.h"

struct s2s_device;
struct s2s_error;

/* Sizes, at least 1 each; all 1 is one process. */
struct s2s_layout_spec {
    int size[S2S_AXES]; /* of tp, cp, dp, pp, whose product are the ranks; and ep */
    int etp;            /* tp of the experts */
    enum s2s_cp_comm cp_comm;
    bool sequence_parallel; /* activations between regions of tp are cut along the tokens */
};

#define S2S_LAYOUT_SPEC_INIT \
    { \
        .size = {1, 1, 1, 1, 1}, .etp = 1 \
    }

/* Ranks that compute on the same packs. */
static inline int s2s_layout_peers(const struct s2s_layout_spec *spec)
{
    return spec->size[S2S_AXIS_TP] * spec->size[S2S_AXIS_CP] * spec->size[S2S_AXIS_PP];
}

/* All lent by the mesh until it is closed. A group of one rank is there, and does nothing. */
struct s2s_layout {
    struct s2s_grid *grid;                  /* "main": tp, cp, dp, pp */
    struct s2s_grid *experts;               /* "experts"; NULL: they are cut as everything else */
    struct s2s_comm *comms[S2S_AXES];       /* of the grid, along one axis: host memory */
    const struct s2s_group *axes[S2S_AXES]; /* the same: tensors */
    const struct s2s_group *expert_axes[S2S_AXES]; /* of the experts' grid, tp being etp */
    /* dp x cp: the same parameters, other tokens. Losses and gradients are sums over these. */
    struct s2s_comm *data;
    const struct s2s_group *gradients;
    const struct s2s_group *expert_gradients; /* ranks that have the same experts */
    struct s2s_comm *expert_data;             /* the same, in host memory */
    struct s2s_comm *expert_cuts;             /* etp x ep: ranks that have other experts */
    struct s2s_par par;                       /* what models are built for */
};

/* Collective over the launch: adds the grids. device: whose memory the tensors are in, and whose
 * queue a group waits for. RANGE and ARG: sizes that do not fit the ranks that were started; and as
 * s2s_mesh_use_device says. */
int s2s_layout_init(struct s2s_layout *layout, struct s2s_mesh *mesh,
                    const struct s2s_layout_spec *spec, struct s2s_device *device,
                    struct s2s_error *err);

#endif
