/*
 * What a step of training needs, told before the run by the code of the run: the model, the step
 * and the optimizer of a recipe on a table that counts (kernels/count), as one rank of a mesh that
 * counts. And the same numbers of a run that is under way, to hold one against the other.
 */
#ifndef S2S_TRAIN_PLAN_H
#define S2S_TRAIN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/count/tally.h"
#include "lib/mesh/mesh.h"
#include "lib/train/memory.h"
#include "lib/train/schedule_pp.h"

struct s2s_error;
struct s2s_recipe;
struct s2s_trainer;

enum { S2S_PLAN_TOKENS = 8192 }; /* of a made-up pack, where nobody says */

struct s2s_plan_options {
    int64_t tokens;       /* slots of a made-up pack; 0: packs of the recipe's streams, if they are
                             files that are there */
    int64_t microbatches; /* of made-up packs, a rank and step; 0: as the recipe says */
};

struct s2s_plan_sent {
    char *group; /* "main/dp" */
    int n_ranks;
    int64_t bytes; /* that this rank hands to others in a step */
};

struct s2s_plan {
    char *batch;          /* what a microbatch was, in words */
    int64_t n_parameters; /* elements on all ranks: all, and those that are trained */
    int64_t n_trained;
    int64_t tokens, microbatches; /* of this rank's packs in a step, real tokens */
    int lanes;                    /* threads that workspaces are for */
    struct s2s_train_memory memory;
    int64_t peak_bytes; /* of all device memory that was allocated, gaps in it too */
    int64_t save_bytes; /* host memory for the copy that checkpoint.async_save writes; 0: none */
    struct s2s_tally tally; /* of one step */
    struct s2s_plan_sent *sent;
    size_t n_sent;
    struct s2s_pipeline pipeline; /* of that step */
    int stage_rank;               /* this rank's place in it */
    int *stage_layers;            /* [n_ranks * n_chunks] decoder layers of each stage */
};

/*
 * Runs three steps as the recipe's third one would be, as the rank that mesh says (of
 * s2s_mesh_open_count). Errors are those of the run: of the model's config, of the streams, and
 * UNSUPPORTED for a model that cannot be trained. Nothing is computed and nothing written.
 */
int s2s_plan_make(struct s2s_plan *plan, const struct s2s_recipe *recipe, struct s2s_mesh *mesh,
                  const struct s2s_plan_options *options, struct s2s_error *err);
void s2s_plan_release(struct s2s_plan *plan);
/* Whether a rank's part of the model can be built: its error, or 0. */
int s2s_plan_try(const struct s2s_recipe *recipe, struct s2s_mesh *mesh, struct s2s_error *err);

#endif
