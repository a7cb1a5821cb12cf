/* The mesh of a plan: its sizes, and its groups as Megatron counts them. */
#ifndef TRAIN_PLAN_GROUPS_H
#define TRAIN_PLAN_GROUPS_H

#include <jansson.h>

#include "lib/mesh/mesh.h"
#include "lib/train/recipe.h"

enum { PLAN_MAX_RANKS = 1 << 20 };

struct plan_mesh {
    int world_size;
    struct s2s_grid_spec dense, expert; /* expert: tp is that of the experts, cp is 1 */
    char order[64];
    char untrained[64]; /* of it what nobody can train on: "order=.."; "" */
};

/*
 * The recipe's sizes, changed by `list` ("tp=2,dp=4"; NULL: none); dp is what is left of world_size
 * (0: the product of the sizes). ARG and RANGE for names and sizes that do not fit.
 */
int plan_mesh_read(struct plan_mesh *mesh, const struct s2s_recipe *recipe, const char *list,
                   int world_size, struct s2s_error *err);
/* at [world_size]: the place of each rank along an axis, where it stands in its group. */
int plan_mesh_places(int *at, const struct s2s_grid_spec *grid, enum s2s_axis axis,
                     struct s2s_error *err);
/* Adds "mesh", "groups", "expert" and "coordinates" (of each rank, by axis). */
int plan_groups_json(json_t *to, const struct plan_mesh *mesh, struct s2s_error *err);
/* The groups that a rank is in, a line each; of a single rank nothing. */
int plan_groups_print(const struct plan_mesh *mesh, int rank, struct s2s_error *err);

#endif
