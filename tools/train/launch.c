/* What the commands of s2s-train do before their work: arguments, recipe, mesh. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/train/trainer.h"
#include "tools/train/commands.h"

struct s2s_mesh *train_mesh;

static void add_override(struct train_args *args, char *text)
{
    s2s_grow(&args->overrides, args->n_overrides, &args->cap_overrides, sizeof *args->overrides);
    args->overrides[args->n_overrides++] = text;
}

error_t train_parse_args(int key, char *arg, struct argp_state *state, struct train_args *args)
{
    if (key == ARGP_KEY_END && !args->recipe)
        argp_error(state, "no recipe: name a YAML file");
    if (key != ARGP_KEY_ARG)
        return key == ARGP_KEY_END ? 0 : ARGP_ERR_UNKNOWN;
    if (!args->recipe) {
        args->recipe = arg;
        return 0;
    }
    if (!strchr(arg, '=') || arg[0] == '=')
        argp_error(state, "'%s' is not KEY=VALUE", arg);
    add_override(args, arg);
    return 0;
}

void train_args_release(struct train_args *args)
{
    free(args->overrides);
    args->overrides = NULL;
}

int train_launch(struct s2s_recipe *recipe, struct train_args *args, struct s2s_error *err)
{
    omp_set_num_threads(args->common.jobs);
    int rc = s2s_mesh_open(&train_mesh, NULL, err);
    if (rc < 0)
        return rc;
    /* messages that are no rank's own come from rank 0 */
    if (s2s_mesh_rank(train_mesh) > 0)
        s2s_log_set_verbosity(args->common.verbosity > 1 ? args->common.verbosity : -1);
    if (args->common.seed_given) { /* the recipe that is kept has it, too */
        snprintf(args->seed, sizeof args->seed, "seed=%lld", (long long)args->common.seed);
        add_override(args, args->seed);
    }
    rc = s2s_recipe_read(recipe, args->recipe, args->overrides, args->n_overrides, err);
    if (rc == 0)
        rc = s2s_recipe_check(recipe, s2s_mesh_size(train_mesh), !args->evaluates, err);
    if ((rc = s2s_mesh_all_ok(train_mesh, rc, err)) < 0)
        return rc;
    s2s_mesh_set_timeout(train_mesh, recipe->timeout_s);
    return 0;
}
