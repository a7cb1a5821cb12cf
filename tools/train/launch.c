/* What the commands of s2s-train do before their work: arguments, recipe, mesh. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/conf/conf.h"
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

static int open_ranks(const struct s2s_common *common, struct s2s_error *err)
{
    omp_set_num_threads(common->jobs);
    int rc = s2s_mesh_open(&train_mesh, NULL, err);
    /* messages that are no rank's own come from rank 0; who waits for it says so itself */
    if (rc == 0 && s2s_mesh_rank(train_mesh) > 0 && common->verbosity < 2)
        s2s_log_set_only("mesh");
    return rc;
}

/* The recipe as it was read (rc), against the ranks that there are. */
static int agree(struct s2s_recipe *recipe, int rc, bool trains, struct s2s_error *err)
{
    if (rc == 0)
        rc = s2s_recipe_check(recipe, s2s_mesh_size(train_mesh), trains, err);
    if ((rc = s2s_mesh_all_ok(train_mesh, rc, err)) == 0)
        s2s_mesh_set_timeout(train_mesh, recipe->timeout_s);
    return rc;
}

int train_launch(struct s2s_recipe *recipe, struct train_args *args, struct s2s_error *err)
{
    int rc = open_ranks(&args->common, err);
    if (rc < 0)
        return rc;
    if (args->common.seed_given) { /* the recipe that is kept has it, too */
        snprintf(args->seed, sizeof args->seed, "seed=%lld", (long long)args->common.seed);
        add_override(args, args->seed);
    }
    rc = s2s_recipe_read(recipe, args->recipe, args->overrides, args->n_overrides, err);
    return agree(recipe, rc, !args->evaluates, err);
}

int train_launch_conf(struct s2s_recipe *recipe, struct s2s_conf *conf, char *const *overrides,
                      size_t n, const struct s2s_common *common, struct s2s_error *err)
{
    int rc = open_ranks(common, err);
    if (rc < 0) {
        s2s_conf_free(conf);
        return rc;
    }
    return agree(recipe, s2s_recipe_take(recipe, conf, overrides, n, err), false, err);
}
