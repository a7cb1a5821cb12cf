/* Grids: which ranks form the groups along an axis (Megatron's orthogonal rank groups). */
#include <stdlib.h>
#include <string.h>

#include "lib/mesh/mesh_internal.h"

static const char *const axis_names[S2S_AXES] = {"tp", "cp", "ep", "dp", "pp"};

/* The masks that have groups, in the order in which these are made. A new one goes to mesh.h, too.
 */
enum {
    TP = S2S_AXIS_BIT(S2S_AXIS_TP),
    CP = S2S_AXIS_BIT(S2S_AXIS_CP),
    EP = S2S_AXIS_BIT(S2S_AXIS_EP),
    DP = S2S_AXIS_BIT(S2S_AXIS_DP),
    PP = S2S_AXIS_BIT(S2S_AXIS_PP)
};
static const unsigned groups[] = {TP,
                                  CP,
                                  EP,
                                  DP,
                                  PP,
                                  TP | CP,
                                  CP | DP,
                                  TP | DP,
                                  TP | EP,
                                  TP | PP,
                                  TP | CP | DP,
                                  TP | EP | PP,
                                  TP | CP | EP | PP,
                                  TP | CP | EP | DP | PP};
enum { N_GROUPS = sizeof groups / sizeof *groups };

const char *s2s_mesh_axis_name(enum s2s_axis axis)
{
    return axis_names[axis];
}

/* The axes of an order string, innermost first. */
static int parse_order(int order[S2S_AXES], const char *text, struct s2s_error *err)
{
    unsigned seen = 0;
    const char *at = text;
    for (int i = 0; i < S2S_AXES; i++) {
        int axis = 0;
        size_t len = strcspn(at, "-");
        while (axis < S2S_AXES && !(len == 2 && strncmp(at, axis_names[axis], len) == 0))
            axis++;
        if (axis == S2S_AXES || (seen & S2S_AXIS_BIT(axis)))
            return s2s_error_set(err, S2S_E_ARG,
                                 "order '%s' does not name each of tp, cp, ep, dp, pp once", text);
        seen |= S2S_AXIS_BIT(axis);
        order[i] = axis;
        at += len + (at[len] == '-');
    }
    if (*at)
        return s2s_error_set(err, S2S_E_ARG, "order '%s' names more than five axes", text);
    return 0;
}

/* Ranks of the box, and the distance in ranks between neighbours along each axis. */
static int strides_of(int64_t stride[S2S_AXES], int64_t *n_ranks, int order[S2S_AXES],
                      const struct s2s_grid_spec *spec, struct s2s_error *err)
{
    int rc = parse_order(order, spec->order, err);
    if (rc < 0)
        return rc;
    *n_ranks = 1;
    for (int i = 0; i < S2S_AXES; i++) {
        if (spec->size[order[i]] < 1)
            return s2s_error_set(err, S2S_E_ARG, "grid %s: %s is %d, expected at least 1",
                                 spec->name, axis_names[order[i]], spec->size[order[i]]);
        stride[order[i]] = *n_ranks;
        *n_ranks *= spec->size[order[i]];
        if (*n_ranks > INT32_MAX)
            return s2s_error_set(err, S2S_E_RANGE, "grid %s has too many ranks", spec->name);
    }
    return 0;
}

/* Rank offset of index i among the axes in mask, the innermost counting fastest. */
static int64_t offset_of(int64_t i, const struct s2s_grid_spec *spec, const int *order,
                         const int64_t *stride, unsigned mask)
{
    int64_t offset = 0;
    for (int k = 0; k < S2S_AXES; k++) {
        int axis = order[k];
        if (!(mask & S2S_AXIS_BIT(axis)))
            continue;
        offset += i % spec->size[axis] * stride[axis];
        i /= spec->size[axis];
    }
    return offset;
}

int s2s_grid_groups(int **ranks, int *n_groups, int *group_size, const struct s2s_grid_spec *spec,
                    unsigned mask, struct s2s_error *err)
{
    int order[S2S_AXES];
    int64_t stride[S2S_AXES], n_ranks;
    int rc = strides_of(stride, &n_ranks, order, spec, err);
    if (rc < 0)
        return rc;
    *group_size = 1;
    for (int axis = 0; axis < S2S_AXES; axis++)
        if (mask & S2S_AXIS_BIT(axis))
            *group_size *= spec->size[axis];
    *n_groups = (int)(n_ranks / *group_size);
    *ranks = s2s_xcalloc((size_t)n_ranks, sizeof **ranks);
    for (int g = 0; g < *n_groups; g++)
        for (int i = 0; i < *group_size; i++)
            (*ranks)[g * *group_size + i] =
                spec->first_rank + (int)(offset_of(g, spec, order, stride, ~mask) +
                                         offset_of(i, spec, order, stride, mask));
    return 0;
}

/* This rank's group along the axes in mask, which are longer than 1. */
static struct s2s_comm *make_group(struct s2s_grid *grid, const int *order, const int64_t *stride,
                                   unsigned mask)
{
    const struct s2s_grid_spec *spec = &grid->spec;
    struct s2s_buf name = S2S_BUF_INIT;
    int64_t first = spec->first_rank, size = 1;
    for (int axis = 0; axis < S2S_AXES; axis++) {
        if (mask & S2S_AXIS_BIT(axis)) {
            s2s_buf_printf(&name, "%s%s%s", name.len > 0 ? "" : spec->name,
                           name.len > 0 ? "-" : "/", axis_names[axis]);
            size *= spec->size[axis];
        } else {
            first += grid->coord[axis] * stride[axis];
        }
    }
    int *ranks = s2s_xcalloc((size_t)size, sizeof *ranks);
    for (int64_t i = 0; i < size; i++)
        ranks[i] = (int)(first + offset_of(i, spec, order, stride, mask));
    struct s2s_comm *comm = mesh_comm_over(grid->mesh, name.data, ranks, (int)size);
    free(ranks);
    s2s_buf_release(&name);
    return comm;
}

static void make_groups(struct s2s_grid *grid, const int *order, const int64_t *stride)
{
    grid->comms[0] = grid->mesh->self;
    for (size_t i = 0; i < N_GROUPS; i++) {
        const unsigned mask = groups[i] & grid->long_axes;
        if (!grid->comms[mask])
            grid->comms[mask] = make_group(grid, order, stride, mask);
    }
}

static int check_name(const struct s2s_mesh *mesh, const char *name, struct s2s_error *err)
{
    for (size_t i = 0; i < mesh->n_grids; i++)
        if (strcmp(mesh->grids[i]->spec.name, name) == 0)
            return s2s_error_set(err, S2S_E_ARG, "there are two grids %s", name);
    return 0;
}

int s2s_mesh_add_grid(struct s2s_grid **out, struct s2s_mesh *mesh,
                      const struct s2s_grid_spec *spec, struct s2s_error *err)
{
    int order[S2S_AXES];
    int64_t stride[S2S_AXES], n_ranks;
    int rc = strides_of(stride, &n_ranks, order, spec, err);
    if (rc < 0)
        return rc;
    if (spec->first_rank < 0 || spec->first_rank + n_ranks > mesh->size)
        return s2s_error_set(err, S2S_E_RANGE, "grid %s needs ranks %d to %lld, started were %d",
                             spec->name, spec->first_rank,
                             (long long)(spec->first_rank + n_ranks - 1), mesh->size);
    if ((rc = check_name(mesh, spec->name, err)) < 0)
        return rc;
    /* a rank that is missing is missed by all, and not by those it shares a group with, who are
     * missed by others in turn */
    mesh_meet(mesh, "new grid");
    struct s2s_grid *grid = s2s_xcalloc(1, sizeof *grid);
    grid->mesh = mesh;
    grid->spec = *spec;
    grid->spec.name = s2s_xstrdup(spec->name);
    grid->spec.order = s2s_xstrdup(spec->order);
    grid->spec.experts_of = spec->experts_of ? s2s_xstrdup(spec->experts_of) : NULL;
    grid->n_ranks = (int)n_ranks;
    grid->pp_stride = (int)stride[S2S_AXIS_PP];
    int64_t at = mesh->rank - spec->first_rank;
    const bool member = at >= 0 && at < n_ranks;
    for (int axis = 0; axis < S2S_AXES; axis++) {
        grid->coord[axis] = member ? (int)(at / stride[axis] % spec->size[axis]) : -1;
        grid->long_axes |= spec->size[axis] > 1 ? S2S_AXIS_BIT(axis) : 0;
    }
    if (member)
        make_groups(grid, order, stride);
    s2s_grow(&mesh->grids, mesh->n_grids, &mesh->cap_grids, sizeof *mesh->grids);
    mesh->grids[mesh->n_grids++] = grid;
    *out = grid;
    return 0;
}

int s2s_grid_coord(const struct s2s_grid *grid, enum s2s_axis axis)
{
    return grid->coord[axis];
}

struct s2s_comm *s2s_grid_comm(struct s2s_grid *grid, unsigned mask)
{
    size_t i = 0;
    while (i < N_GROUPS && groups[i] != mask)
        i++;
    if (i == N_GROUPS)
        S2S_BUG("grid %s has no groups along axes 0x%x", grid->spec.name, mask);
    return grid->comms[mask & grid->long_axes];
}

/* ---- groups of a list ---- */

static int check_ranks(const struct s2s_mesh *mesh, const char *name, const int *ranks, int n,
                       struct s2s_error *err)
{
    if (n < 1)
        return s2s_error_set(err, S2S_E_ARG, "group %s has no ranks", name);
    int rc = 0;
    bool *seen = s2s_xcalloc((size_t)mesh->size, sizeof *seen);
    for (int i = 0; i < n && rc == 0; i++) {
        if (ranks[i] < 0 || ranks[i] >= mesh->size)
            rc = s2s_error_set(err, S2S_E_ARG, "group %s has rank %d, started were %d", name,
                               ranks[i], mesh->size);
        else if (seen[ranks[i]])
            rc = s2s_error_set(err, S2S_E_ARG, "group %s has rank %d twice", name, ranks[i]);
        else
            seen[ranks[i]] = true;
    }
    free(seen);
    return rc;
}

int s2s_mesh_add_group(struct s2s_comm **comm, struct s2s_mesh *mesh, const char *name,
                       const int *ranks, int n, struct s2s_error *err)
{
    *comm = NULL;
    int rc = check_ranks(mesh, name, ranks, n, err);
    if (rc < 0)
        return rc;
    mesh_meet(mesh, "new group");
    for (int i = 0; i < n; i++)
        if (ranks[i] == mesh->rank)
            *comm = mesh_comm_over(mesh, name, ranks, n);
    return 0;
}

/* ---- all grids together ---- */

static int check_cover(const struct s2s_mesh *mesh, struct s2s_error *err)
{
    for (int rank = 0, next; rank < mesh->size; rank = next) {
        bool in_grid = false;
        next = mesh->size; /* the first rank after `rank` where a grid begins */
        for (size_t i = 0; i < mesh->n_grids; i++) {
            const int first = mesh->grids[i]->spec.first_rank, n = mesh->grids[i]->n_ranks;
            in_grid |= rank >= first && rank < first + n;
            next = first > rank && first < next ? first : next;
        }
        if (in_grid) {
            next = rank + 1;
            continue;
        }
        if (next == rank + 1)
            return s2s_error_set(err, S2S_E_RANGE, "rank %d of %d is in no grid", rank, mesh->size);
        return s2s_error_set(err, S2S_E_RANGE, "ranks %d to %d of %d are in no grid", rank,
                             next - 1, mesh->size);
    }
    return 0;
}

/* Grids are beside each other, or over the same ranks. */
static int check_overlap(const struct s2s_grid *a, const struct s2s_grid *b, struct s2s_error *err)
{
    const int a_first = a->spec.first_rank, a_last = a_first + a->n_ranks - 1;
    const int b_first = b->spec.first_rank, b_last = b_first + b->n_ranks - 1;
    if (a_last < b_first || b_last < a_first || (a_first == b_first && a_last == b_last))
        return 0;
    return s2s_error_set(err, S2S_E_ARG, "grids %s (ranks %d to %d) and %s (%d to %d) overlap",
                         a->spec.name, a_first, a_last, b->spec.name, b_first, b_last);
}

static int check_experts(const struct s2s_mesh *mesh, const struct s2s_grid *experts,
                         struct s2s_error *err)
{
    const char *name = experts->spec.name;
    const struct s2s_grid *dense = NULL;
    for (size_t i = 0; i < mesh->n_grids; i++)
        if (strcmp(mesh->grids[i]->spec.name, experts->spec.experts_of) == 0)
            dense = mesh->grids[i];
    if (!dense)
        return s2s_error_set(err, S2S_E_ARG, "grid %s has the experts of %s, which is no grid",
                             name, experts->spec.experts_of);
    const int first = dense->spec.first_rank;
    if (experts->spec.first_rank != first || experts->n_ranks != dense->n_ranks)
        return s2s_error_set(err, S2S_E_ARG, "grid %s: expected the ranks of %s, %d to %d", name,
                             dense->spec.name, first, first + dense->n_ranks - 1);
    if (experts->spec.size[S2S_AXIS_CP] > 1)
        return s2s_error_set(err, S2S_E_ARG, "grid %s: cp is %d, expected 1 in a grid of experts",
                             name, experts->spec.size[S2S_AXIS_CP]);
    const int pp = experts->spec.size[S2S_AXIS_PP], dense_pp = dense->spec.size[S2S_AXIS_PP];
    if (pp != dense_pp)
        return s2s_error_set(err, S2S_E_ARG, "grid %s: pp is %d, expected %d as in %s", name, pp,
                             dense_pp, dense->spec.name);
    if (pp > 1 && experts->pp_stride != dense->pp_stride)
        return s2s_error_set(err, S2S_E_ARG,
                             "grid %s: order %s puts ranks in other stages than order %s of %s",
                             name, experts->spec.order, dense->spec.order, dense->spec.name);
    return 0;
}

int s2s_mesh_check(const struct s2s_mesh *mesh, struct s2s_error *err)
{
    int rc = check_cover(mesh, err);
    for (size_t i = 0; i < mesh->n_grids && rc == 0; i++) {
        if (mesh->grids[i]->spec.experts_of)
            rc = check_experts(mesh, mesh->grids[i], err);
        for (size_t k = 0; k < i && rc == 0; k++)
            rc = check_overlap(mesh->grids[k], mesh->grids[i], err);
    }
    return rc;
}
