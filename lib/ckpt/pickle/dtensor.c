/* Finds meshes and placements in a pickled DTensor, and the box of its part. */
#include "lib/ckpt/pickle/dtensor.h"

#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/names.h"
#include "lib/ckpt/pickle/torch_dtype.h"

static int bad(const struct ckpt_node *node, const char *what, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT, "DTensor at byte %u of its pickle: %s", node->offset,
                         what);
}

/* class: a global, or a record of one; what: the kind of thing that it is */
static int unknown(const struct ckpt_node *class, const char *what, struct s2s_error *err)
{
    const struct ckpt_node *global = class->kind == CKPT_RECORD ? class->items[0] : class;
    size_t len;
    const char *name = ckpt_global_name(global, &len);
    return s2s_error_set(err, S2S_E_UNSUPPORTED,
                         "a %s %.*s.%.*s (byte %u of the pickle) is not read", what,
                         ckpt_shown_len(global->n, 100), global->text, ckpt_shown_len(len, 100),
                         name, class->offset);
}

/* Is it an object of this class, of a module that the list of classes has? */
static bool is_of(const struct ckpt_node *node, const char *name)
{
    return node && node->kind == CKPT_RECORD && !node->opaque && ckpt_is_named(node, name);
}

bool ckpt_is_wrapped(const struct ckpt_node *node)
{
    if (node->kind == CKPT_DTENSOR)
        return true;
    return ckpt_is(node, "torch._utils", "_rebuild_wrapper_subclass") && node->kind == CKPT_RECORD;
}

/* ---- the tensor ---- */

/* TensorMeta(shape, stride, dtype), which must agree with the local part. The stride is only of the
 * tensor that is not stored. */
static int take_meta(struct ckpt_dtensor *tensor, const struct ckpt_node *meta,
                     const struct ckpt_node *node, struct s2s_error *err)
{
    if (!is_of(meta, "TensorMeta") || meta->items[1]->n != 3)
        return bad(node, "no shape and dtype", err);
    tensor->n_dims = ckpt_get_ints(meta->items[1]->items[0], tensor->shape, S2S_MAX_DIMS);
    if (tensor->n_dims < 0 || ckpt_box_numel(tensor->shape, tensor->n_dims) < 0)
        return bad(node, "bad shape (at most 8 axes are read)", err);
    if (ckpt_dtype_of_global(meta->items[1]->items[2]) != tensor->local.dtype)
        return bad(node, "its dtype is not that of its part", err);
    return 0;
}

static int take_placement(int *cut, const struct ckpt_node *placement, int n_dims,
                          const struct ckpt_node *node, struct s2s_error *err)
{
    int64_t axis;
    *cut = -1;
    if (is_of(placement, "Replicate"))
        return 0;
    if (!is_of(placement, "Shard"))
        return placement->kind == CKPT_RECORD ? unknown(placement, "DTensor with placement", err)
                                              : bad(node, "bad placements", err);
    if (!ckpt_get_int(ckpt_get(placement, "dim"), &axis) || axis < 0 || axis >= n_dims)
        return bad(node, "it is cut along an axis that it does not have", err);
    *cut = (int)axis;
    return 0;
}

/* An axis of the tensor that several axes of the mesh cut is cut by the first of these first,
 * unless shard_order (torch 2.10) says otherwise. It has (axis, (mesh axes)) for each axis that is
 * cut. */
static int check_order(const struct ckpt_node *order, const struct ckpt_node *node,
                       struct s2s_error *err)
{
    int64_t axes[CKPT_MESH_AXES];
    if (!order || order->kind == CKPT_NONE)
        return 0;
    if (order->kind != CKPT_TUPLE)
        return bad(node, "bad shard_order", err);
    for (uint32_t i = 0; i < order->n; i++) {
        const struct ckpt_node *entry = order->items[i];
        const int n = is_of(entry, "ShardOrderEntry") && entry->items[1]->n == 2
                          ? ckpt_get_ints(entry->items[1]->items[1], axes, CKPT_MESH_AXES)
                          : -1;
        if (n < 0)
            return bad(node, "bad shard_order", err);
        for (int k = 1; k < n; k++)
            if (axes[k] <= axes[k - 1])
                return s2s_error_set(err, S2S_E_UNSUPPORTED,
                                     "a DTensor (byte %u of the pickle) whose shard_order is not "
                                     "that of its mesh is not read",
                                     node->offset);
    }
    return 0;
}

static int take_spec(struct ckpt_dtensor *tensor, const struct ckpt_node *spec,
                     const struct ckpt_node *node, struct s2s_error *err)
{
    const struct ckpt_node *placements = ckpt_get(spec, "placements");
    int rc = take_meta(tensor, ckpt_get(spec, "tensor_meta"), node, err);
    if (rc < 0)
        return rc;
    tensor->mesh = ckpt_get(spec, "mesh");
    if (!is_of(tensor->mesh, "DeviceMesh"))
        return bad(node, "no mesh", err);
    if (!placements || placements->kind != CKPT_TUPLE || placements->n > CKPT_MESH_AXES)
        return bad(node, "bad placements (meshes of at most 8 axes are read)", err);
    tensor->n_mesh_dims = (int)placements->n;
    for (int m = 0; rc == 0 && m < tensor->n_mesh_dims; m++)
        rc = take_placement(&tensor->cut[m], placements->items[m], tensor->n_dims, node, err);
    return rc < 0 ? rc : check_order(ckpt_get(spec, "shard_order"), node, err);
}

/* The value of a slot: the state is (attributes, slots). */
static const struct ckpt_node *slot(const struct ckpt_node *node, const char *name)
{
    const struct ckpt_node *state = node->items[2];
    return state && state->kind == CKPT_TUPLE && state->n == 2 ? ckpt_get(state->items[1], name)
                                                               : NULL;
}

int ckpt_dtensor_of(struct ckpt_dtensor *tensor, const struct ckpt_node *node,
                    struct s2s_error *err)
{
    if (node->kind == CKPT_DTENSOR) {
        *tensor = *node->dtensor;
        return 0;
    }
    *tensor = (struct ckpt_dtensor){.n_dims = 0};
    const struct ckpt_node *args = node->items[1], *class = args->n ? args->items[0] : NULL;
    if (!class || class->kind != CKPT_GLOBAL)
        return bad(node, "it names no class", err);
    if (class->opaque || !ckpt_is_named(class, "DTensor"))
        return unknown(class, "tensor of class", err);
    const struct ckpt_node *spec = slot(node, "_spec"), *local = slot(node, "_local_tensor");
    if (!is_of(spec, "DTensorSpec"))
        return bad(node, "no _spec", err);
    int rc = ckpt_view_of(local, &tensor->local, err);
    if (rc == 0)
        return local && local->kind == CKPT_RECORD && ckpt_is_wrapped(local) &&
                       local->items[1]->n && local->items[1]->items[0]->kind == CKPT_GLOBAL
                   ? unknown(local->items[1]->items[0], "DTensor with parts of class", err)
                   : bad(node, "no _local_tensor", err);
    return rc < 0 ? rc : take_spec(tensor, spec, node, err);
}

/* ---- the mesh ---- */

static int bad_mesh(const struct ckpt_node *node, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT,
                         "DeviceMesh at byte %u of the pickle: its shape and ranks do not fit",
                         node->offset);
}

/* Numbers of ranks, and how far apart these are in the tuple of all: an axis of the mesh may have
 * several, or none. */
struct layout {
    int n;
    int64_t size[CKPT_MESH_AXES], stride[CKPT_MESH_AXES];
    const struct ckpt_node *ranks; /* the tuple */
};

/* Up to torch 2.9 a mesh has the tensor of its ranks, and the same as a tuple. */
static bool take_tensor(struct ckpt_mesh *mesh, struct layout *layout, const struct ckpt_node *node)
{
    struct ckpt_view view;
    struct s2s_error ignored = S2S_ERROR_INIT; /* the caller has its own */
    if (ckpt_view_of(ckpt_get(node, "mesh"), &view, &ignored) <= 0)
        return false;
    mesh->n_dims = layout->n = view.n_dims;
    memcpy(mesh->size, view.size, sizeof mesh->size);
    memcpy(layout->size, view.size, sizeof layout->size);
    ckpt_box_strides(layout->stride, view.size, view.n_dims);
    layout->ranks = ckpt_get(node, "_flatten_mesh_list");
    return true;
}

/* Adds the sizes and strides of a _MeshLayout of torch 2.10 to 2.12, or of a _FlatLayout. Returns
 * how many there are; -1: they are not as they should be. */
static int add_sizes(struct layout *layout, const struct ckpt_node *from)
{
    const int room = CKPT_MESH_AXES - layout->n;
    int64_t *size = layout->size + layout->n, *stride = layout->stride + layout->n;
    const int n = ckpt_get_ints(ckpt_get(from, "shape"), size, room);
    if (n < 0 || ckpt_get_ints(ckpt_get(from, "stride"), stride, room) != n)
        return -1;
    layout->n += n;
    return n;
}

/* Since 2.10 a mesh has a layout of the tuple of all ranks, since 2.13 one for each axis. */
static bool take_layout(struct ckpt_mesh *mesh, struct layout *layout, const struct ckpt_node *node)
{
    const struct ckpt_node *from = ckpt_get(node, "_layout"), *axes = ckpt_get(from, "axes");
    layout->ranks = ckpt_get(node, "_flatten_rank_map");
    if (!is_of(from, "_MeshLayout"))
        return false;
    if (!axes) {
        mesh->n_dims = add_sizes(layout, from);
        memcpy(mesh->size, layout->size, sizeof mesh->size);
        return mesh->n_dims >= 0;
    }
    if (axes->kind != CKPT_TUPLE || axes->n > CKPT_MESH_AXES)
        return false;
    mesh->n_dims = (int)axes->n;
    for (int m = 0; m < mesh->n_dims; m++) {
        const int had = layout->n;
        const int n = is_of(axes->items[m], "_FlatLayout") ? add_sizes(layout, axes->items[m]) : -1;
        mesh->size[m] = n < 0 ? -1 : ckpt_box_numel(layout->size + had, n);
        if (mesh->size[m] < 0)
            return false;
    }
    return true;
}

int ckpt_mesh_of(struct ckpt_mesh *mesh, const struct ckpt_node *node, struct s2s_error *err)
{
    struct layout layout = {.n = 0};
    int64_t at[CKPT_MESH_AXES] = {0};
    *mesh = (struct ckpt_mesh){.n_dims = 0};
    const bool is = take_tensor(mesh, &layout, node) || take_layout(mesh, &layout, node);
    const struct ckpt_node *all = is ? layout.ranks : NULL;
    mesh->n_ranks = ckpt_box_numel(layout.size, layout.n);
    if (!all || mesh->n_ranks <= 0 || all->kind != CKPT_TUPLE || mesh->n_ranks > all->n)
        return bad_mesh(node, err);
    mesh->has_own = ckpt_get_ints(ckpt_get(node, "_coordinate_on_dim"), mesh->own,
                                  CKPT_MESH_AXES) == mesh->n_dims;
    mesh->ranks = s2s_xmalloc((size_t)mesh->n_ranks * sizeof *mesh->ranks);
    for (int64_t i = 0; i < mesh->n_ranks; i++) {
        __int128 k = 0;
        for (int m = 0; m < layout.n; m++)
            k += (__int128)at[m] * layout.stride[m];
        if (k < 0 || k >= all->n || !ckpt_get_int(all->items[k], &mesh->ranks[i])) {
            free(mesh->ranks);
            mesh->ranks = NULL;
            return bad_mesh(node, err);
        }
        for (int m = layout.n - 1; m >= 0 && ++at[m] == layout.size[m]; m--)
            at[m] = 0;
    }
    return 0;
}
