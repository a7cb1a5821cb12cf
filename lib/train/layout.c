/* Grids of a mesh, and the groups of both as communicators and for tensors. */
#include "lib/train/layout.h"

#include <string.h>

#include "lib/base/error.h"
#include "lib/tensor/device.h"

#define TP S2S_AXIS_BIT(S2S_AXIS_TP)
#define CP S2S_AXIS_BIT(S2S_AXIS_CP)
#define EP S2S_AXIS_BIT(S2S_AXIS_EP)
#define DP S2S_AXIS_BIT(S2S_AXIS_DP)

static int add_main(struct s2s_layout *l, struct s2s_mesh *mesh, const struct s2s_layout_spec *spec,
                    struct s2s_error *err)
{
    struct s2s_grid_spec grid = S2S_GRID_SPEC_INIT;
    memcpy(grid.size, spec->size, sizeof grid.size);
    grid.size[S2S_AXIS_EP] = 1;
    return s2s_mesh_add_grid(&l->grid, mesh, &grid, err);
}

/* The same ranks with the same stages, laid out for the experts. */
static int add_experts(struct s2s_layout *l, struct s2s_mesh *mesh,
                       const struct s2s_layout_spec *spec, struct s2s_error *err)
{
    const int *size = spec->size;
    struct s2s_grid_spec grid = S2S_GRID_SPEC_INIT;
    const int stage = size[S2S_AXIS_TP] * size[S2S_AXIS_CP] * size[S2S_AXIS_DP],
              cuts = spec->etp * size[S2S_AXIS_EP];
    if (stage % cuts)
        return s2s_error_set(err, S2S_E_RANGE, "etp %d x ep %d do not divide the %d ranks of %s",
                             spec->etp, size[S2S_AXIS_EP], stage,
                             size[S2S_AXIS_PP] > 1 ? "a pipeline stage" : "the mesh");
    grid.name = "experts";
    grid.experts_of = "main";
    grid.size[S2S_AXIS_TP] = spec->etp;
    grid.size[S2S_AXIS_EP] = size[S2S_AXIS_EP];
    grid.size[S2S_AXIS_DP] = stage / cuts;
    grid.size[S2S_AXIS_PP] = size[S2S_AXIS_PP];
    return s2s_mesh_add_grid(&l->experts, mesh, &grid, err);
}

static void find_groups(struct s2s_layout *l, const struct s2s_layout_spec *spec,
                        void (*sync)(struct s2s_queue *queue))
{
    for (int axis = 0; axis < S2S_AXES; axis++) {
        struct s2s_grid *grid = axis == S2S_AXIS_EP && l->experts ? l->experts : l->grid;
        l->comms[axis] = s2s_grid_comm(grid, S2S_AXIS_BIT(axis));
        l->axes[axis] =
            s2s_comm_group(l->comms[axis], s2s_mesh_axis_name((enum s2s_axis)axis), sync);
    }
    l->data = s2s_grid_comm(l->grid, DP | CP);
    l->gradients = s2s_comm_group(l->data, "dp", sync);
    l->expert_gradients = l->gradients;
    l->expert_data = l->data;
    l->expert_cuts = l->comms[S2S_AXIS_TP];
    l->par =
        (struct s2s_par){.tp = l->axes[S2S_AXIS_TP],
                         .cp = l->axes[S2S_AXIS_CP],
                         .ep = l->axes[S2S_AXIS_EP],
                         .etp = l->axes[S2S_AXIS_TP],
                         .tokens = l->axes[S2S_AXIS_CP],
                         .batch = l->gradients,
                         .cp_comm = spec->cp_comm,
                         .sp = spec->sequence_parallel && s2s_group_size(l->axes[S2S_AXIS_TP]) > 1};
    if (l->par.sp) {
        l->par.tokens = s2s_comm_group(s2s_grid_comm(l->grid, TP | CP), "tp-cp", sync);
        l->par.batch = s2s_comm_group(s2s_grid_comm(l->grid, TP | CP | DP), "tp-cp-dp", sync);
    }
    memcpy(l->expert_axes, l->axes, sizeof l->expert_axes);
    if (!l->experts)
        return;
    for (int axis = 0; axis < S2S_AXES; axis++)
        l->expert_axes[axis] = s2s_comm_group(s2s_grid_comm(l->experts, S2S_AXIS_BIT(axis)),
                                              s2s_mesh_axis_name((enum s2s_axis)axis), sync);
    l->expert_data = s2s_grid_comm(l->experts, DP);
    l->expert_gradients = s2s_comm_group(l->expert_data, "edp", sync);
    l->expert_cuts = s2s_grid_comm(l->experts, TP | EP);
    l->par.etp = s2s_comm_group(s2s_grid_comm(l->experts, TP), "etp", sync);
}

int s2s_layout_init(struct s2s_layout *layout, struct s2s_mesh *mesh,
                    const struct s2s_layout_spec *spec, struct s2s_device *device,
                    struct s2s_error *err)
{
    *layout = (struct s2s_layout){.grid = NULL};
    int rc = s2s_mesh_use_device(mesh, device->kernels, &device->queue, err);
    if (rc == 0)
        rc = add_main(layout, mesh, spec, err);
    if (rc == 0 && (spec->size[S2S_AXIS_EP] > 1 || spec->etp != spec->size[S2S_AXIS_TP]))
        rc = add_experts(layout, mesh, spec, err);
    if (rc == 0)
        rc = s2s_mesh_check(mesh, err);
    if (rc == 0)
        find_groups(layout, spec, device->kernels->sync);
    return rc;
}
