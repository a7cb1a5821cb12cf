/* The mesh that --mesh names, and its groups of ranks as JSON and text. */
#include "tools/train/plan_groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"

/* ---- sizes ---- */

enum { KEY_ETP = S2S_AXES, KEY_ORDER, N_KEYS };
static const char *const keys[] = {"tp", "cp", "ep", "dp", "pp", "etp", "order"};

static int read_key(struct plan_mesh *mesh, int *sizes, const char *item, struct s2s_error *err)
{
    const char *is = strchr(item, '=');
    for (int i = 0; i < N_KEYS; i++) {
        if (!is || strlen(keys[i]) != (size_t)(is - item) ||
            strncmp(keys[i], item, (size_t)(is - item)) != 0)
            continue;
        if (i == KEY_ORDER) {
            snprintf(mesh->order, sizeof mesh->order, "%s", is + 1);
            return 0;
        }
        int64_t size;
        int rc = s2s_parse_i64(&size, is + 1, 1, PLAN_MAX_RANKS, err);
        sizes[i] = rc == 0 ? (int)size : 0;
        return rc < 0 ? s2s_error_add(err, rc, "--mesh %s", item) : 0;
    }
    int rc = s2s_error_set(err, S2S_E_ARG, "--mesh: '%s' is no size of a mesh", item);
    return s2s_error_hint(err, rc, "it has: tp, cp, dp, pp, ep, etp, order");
}

static int read_list(struct plan_mesh *mesh, int *sizes, const char *list, struct s2s_error *err)
{
    char *copy = s2s_xstrdup(list), *save = NULL;
    int rc = 0;
    for (char *at = strtok_r(copy, ",", &save); at && rc == 0; at = strtok_r(NULL, ",", &save))
        rc = read_key(mesh, sizes, at, err);
    free(copy);
    return rc;
}

/* Both grids of the world, or why they cannot be. */
static int fit(struct plan_mesh *mesh, const int *sizes, int world_size, struct s2s_error *err)
{
    const int64_t model = (int64_t)sizes[S2S_AXIS_TP] * sizes[S2S_AXIS_CP] * sizes[S2S_AXIS_PP];
    const int64_t expert = (int64_t)sizes[KEY_ETP] * sizes[S2S_AXIS_EP] * sizes[S2S_AXIS_PP];
    const int64_t dp = sizes[S2S_AXIS_DP] ? sizes[S2S_AXIS_DP]
                       : world_size       ? world_size / model
                                          : 1;
    const int64_t world = world_size ? world_size : model * dp;
    if (model * dp != world || world > PLAN_MAX_RANKS)
        return s2s_error_set(err, S2S_E_RANGE,
                             "tp %d x cp %d x dp %lld x pp %d are %lld ranks, not %lld",
                             sizes[S2S_AXIS_TP], sizes[S2S_AXIS_CP], (long long)dp,
                             sizes[S2S_AXIS_PP], (long long)(model * dp), (long long)world);
    if (world % expert != 0)
        return s2s_error_set(err, S2S_E_RANGE, "etp %d x ep %d x pp %d do not divide %lld ranks",
                             sizes[KEY_ETP], sizes[S2S_AXIS_EP], sizes[S2S_AXIS_PP],
                             (long long)world);
    mesh->world_size = (int)world;
    mesh->dense = (struct s2s_grid_spec){.name = "main",
                                         .size = {[S2S_AXIS_TP] = sizes[S2S_AXIS_TP],
                                                  [S2S_AXIS_CP] = sizes[S2S_AXIS_CP],
                                                  [S2S_AXIS_EP] = 1,
                                                  [S2S_AXIS_DP] = (int)dp,
                                                  [S2S_AXIS_PP] = sizes[S2S_AXIS_PP]},
                                         .order = mesh->order};
    mesh->expert = (struct s2s_grid_spec){.name = "expert",
                                          .size = {[S2S_AXIS_TP] = sizes[KEY_ETP],
                                                   [S2S_AXIS_CP] = 1,
                                                   [S2S_AXIS_EP] = sizes[S2S_AXIS_EP],
                                                   [S2S_AXIS_DP] = (int)(world / expert),
                                                   [S2S_AXIS_PP] = sizes[S2S_AXIS_PP]},
                                          .order = mesh->order};
    return 0;
}

int plan_mesh_read(struct plan_mesh *mesh, const struct s2s_recipe *recipe, const char *list,
                   int world_size, struct s2s_error *err)
{
    const struct s2s_grid_spec init = S2S_GRID_SPEC_INIT;
    int sizes[S2S_AXES + 1];
    *mesh = (struct plan_mesh){.world_size = 0};
    snprintf(mesh->order, sizeof mesh->order, "%s", init.order);
    for (int axis = 0; axis < S2S_AXES; axis++)
        sizes[axis] = recipe->mesh.size[axis];
    sizes[KEY_ETP] = list ? 0 : recipe->mesh.etp;
    int rc = list ? read_list(mesh, sizes, list, err) : 0;
    if (rc < 0)
        return rc;
    sizes[KEY_ETP] = sizes[KEY_ETP] ? sizes[KEY_ETP] : sizes[S2S_AXIS_TP];
    if (strcmp(mesh->order, init.order) != 0)
        snprintf(mesh->untrained, sizeof mesh->untrained, "order=%.50s", mesh->order);
    return fit(mesh, sizes, world_size, err);
}

/* ---- groups ---- */

static const struct {
    const char *name;
    unsigned mask;
} dense[] =
    {
#define BIT(axis) S2S_AXIS_BIT(S2S_AXIS_##axis)
        {"tp", BIT(TP)},
        {"cp", BIT(CP)},
        {"dp", BIT(DP)},
        {"pp", BIT(PP)},
        {"dp_cp", BIT(DP) | BIT(CP)},
        {"tp_pp", BIT(TP) | BIT(PP)},
        {"tp_cp", BIT(TP) | BIT(CP)},
        {"tp_dp", BIT(TP) | BIT(DP)},
        {"tp_dp_cp", BIT(TP) | BIT(DP) | BIT(CP)},
},
  expert[] = {
      {"ep", BIT(EP)},
      {"tp", BIT(TP)},
      {"dp", BIT(DP)},
      {"tp_ep", BIT(TP) | BIT(EP)},
      {"tp_ep_pp", BIT(TP) | BIT(EP) | BIT(PP)},
#undef BIT
};
enum { N_DENSE = sizeof dense / sizeof *dense, N_EXPERT = sizeof expert / sizeof *expert };

/* [[0,1],[2,3]] */
static int lists_json(json_t *to, const char *name, const struct s2s_grid_spec *spec, unsigned mask,
                      struct s2s_error *err)
{
    int *ranks, n, size, rc = s2s_grid_groups(&ranks, &n, &size, spec, mask, err);
    if (rc < 0)
        return rc;
    json_t *lists = json_array();
    for (int g = 0; g < n; g++) {
        json_t *list = json_array();
        for (int i = 0; i < size; i++)
            json_array_append_new(list, json_integer(ranks[g * size + i]));
        json_array_append_new(lists, list);
    }
    json_object_set_new(to, name, lists);
    free(ranks);
    return 0;
}

int plan_mesh_places(int *at, const struct s2s_grid_spec *grid, enum s2s_axis axis,
                     struct s2s_error *err)
{
    int *ranks, n, size, rc = s2s_grid_groups(&ranks, &n, &size, grid, S2S_AXIS_BIT(axis), err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < n * size; i++)
        at[ranks[i]] = i % size;
    free(ranks);
    return 0;
}

static int coordinates_json(json_t *to, const struct plan_mesh *mesh, struct s2s_error *err)
{
    static const enum s2s_axis axes[] = {S2S_AXIS_TP, S2S_AXIS_CP, S2S_AXIS_DP, S2S_AXIS_PP};
    int *at = s2s_xcalloc((size_t)mesh->world_size, sizeof *at), rc = 0;
    for (size_t a = 0; rc == 0 && a < sizeof axes / sizeof *axes; a++) {
        if ((rc = plan_mesh_places(at, &mesh->dense, axes[a], err)) < 0)
            break;
        json_t *list = json_array();
        for (int r = 0; r < mesh->world_size; r++)
            json_array_append_new(list, json_integer(at[r]));
        json_object_set_new(to, s2s_mesh_axis_name(axes[a]), list);
    }
    free(at);
    return rc;
}

int plan_groups_json(json_t *to, const struct plan_mesh *mesh, struct s2s_error *err)
{
    json_t *groups = json_object(), *experts = json_object(), *at = json_object();
    const int *d = mesh->dense.size, *e = mesh->expert.size;
    int rc = 0;
    json_object_set_new(to, "mesh",
                        json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:s}", "tp", d[S2S_AXIS_TP], "cp",
                                  d[S2S_AXIS_CP], "dp", d[S2S_AXIS_DP], "pp", d[S2S_AXIS_PP], "ep",
                                  e[S2S_AXIS_EP], "etp", e[S2S_AXIS_TP], "order", mesh->order));
    json_object_set_new(to, "groups", groups);
    json_object_set_new(to, "expert", experts);
    json_object_set_new(to, "coordinates", at);
    for (int i = 0; rc == 0 && i < N_DENSE; i++)
        rc = lists_json(groups, dense[i].name, &mesh->dense, dense[i].mask, err);
    for (int i = 0; rc == 0 && i < N_EXPERT; i++)
        rc = lists_json(experts, expert[i].name, &mesh->expert, expert[i].mask, err);
    return rc < 0 ? rc : coordinates_json(at, mesh, err);
}

/* ---- text ---- */

enum { SHOWN_RANKS = 16 };

/* "dp: rank 1 of 4 in [0 2 4 6]", where the axes are longer than 1. */
static int print_group(const char *prefix, const char *name, const struct s2s_grid_spec *spec,
                       unsigned mask, int rank, struct s2s_error *err)
{
    int *ranks, n, size, at = 0, rc = s2s_grid_groups(&ranks, &n, &size, spec, mask, err);
    if (rc < 0)
        return rc;
    while (at < n * size && ranks[at] != rank)
        at++;
    const int *group = ranks + at / size * size;
    if (size > 1) {
        printf("%s%s: number %d of %d groups, place %d of", prefix, name, at / size, n, at % size);
        for (int i = 0; i < size && i < SHOWN_RANKS; i++)
            printf("%s%d", i ? " " : " [", group[i]);
        printf("%s\n", size > SHOWN_RANKS ? " ..]" : "]");
    }
    free(ranks);
    return 0;
}

int plan_groups_print(const struct plan_mesh *mesh, int rank, struct s2s_error *err)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < N_DENSE; i++)
        rc = print_group("group ", dense[i].name, &mesh->dense, dense[i].mask, rank, err);
    for (int i = 0; rc == 0 && mesh->expert.size[S2S_AXIS_EP] > 1 && i < N_EXPERT; i++)
        rc = print_group("group of experts ", expert[i].name, &mesh->expert, expert[i].mask, rank,
                         err);
    return rc;
}
