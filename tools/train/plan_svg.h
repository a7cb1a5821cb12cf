/* A mesh as a picture: which rank holds what. */
#ifndef TRAIN_PLAN_SVG_H
#define TRAIN_PLAN_SVG_H

#include "lib/train/plan.h"
#include "tools/train/plan_groups.h"

enum { PLAN_SVG_RANKS = 1024 };

/* Prints an SVG of a mesh of up to PLAN_SVG_RANKS ranks (ARG: it has more). plan: whose stages are
 * told; NULL: none. */
int plan_svg_print(const struct plan_mesh *mesh, const struct s2s_plan *plan,
                   struct s2s_error *err);

#endif
