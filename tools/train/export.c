/* s2s-train export: what a run has learned, for other programs. */
#include <omp.h>
#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/model/adapter.h"
#include "lib/model/salm.h"
#include "lib/train/trainer.h"
#include "tools/train/commands.h"

enum { KEY_MERGE = 0x100, KEY_EMA };

struct export_args {
    struct train_args train; /* first: it begins with the shared options */
    bool merge, ema;
};

static const struct argp_option options[] = {
    {"merge", KEY_MERGE, NULL, 0,
     "Add adapters to the weights of their maps: the whole model, as a checkpoint", 1},
    {"ema", KEY_EMA, NULL, 0,
     "The averages of train.ema_decay; of a run without adapters the whole model", 1},
    {0},
};

static const char doc[] =
    "Write what the newest checkpoint of a run has learned into the folder -o, for other programs: "
    "the adapters of its language model as a PEFT folder, or with --merge the whole model with "
    "the adapters in its weights, as a checkpoint without state of the optimizer. Runs on one "
    "rank, "
    "whatever mesh the run had."
    "\v"
    "Examples:\n"
    "  s2s-train export lora.yaml -o adapter\n"
    "  s2s-train export lora.yaml --merge -o merged\n"
    "\n"
    "Exit status: 0 done; 1 there is no checkpoint, or it cannot be read; 2 the command line is "
    "bad or an input cannot be opened.\n"
    "See also: s2s-ckpt(1), doc/RECIPE.md";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct export_args *args = state->input;
    if (key == KEY_MERGE) {
        args->merge = true;
        return 0;
    }
    if (key == KEY_EMA) {
        args->ema = true;
        return 0;
    }
    if (key == ARGP_KEY_END && !args->train.common.out)
        argp_error(state, "no folder: give -o DIR");
    return train_parse_args(key, arg, state, &args->train);
}

/* The recipe on one rank. */
static int read_recipe(struct s2s_recipe *recipe, struct export_args *args, struct s2s_error *err)
{
    omp_set_num_threads(args->train.common.jobs);
    int rc = s2s_mesh_open(&train_mesh, NULL, err);
    if (rc < 0)
        return rc;
    if (s2s_mesh_size(train_mesh) > 1)
        return s2s_error_set(err, S2S_E_ARG, "export runs on one rank, not on %d",
                             s2s_mesh_size(train_mesh));
    rc = s2s_recipe_read(recipe, args->train.recipe, args->train.overrides, args->train.n_overrides,
                         err);
    for (int axis = 0; axis < S2S_AXES; axis++)
        recipe->mesh.size[axis] = 1;
    recipe->mesh.etp = recipe->stages.n_chunks = 1;
    recipe->mesh.sequence_parallel = false;
    recipe->stages.n_layers = 0;
    recipe->sharding = S2S_NO_SHARD;
    return rc;
}

static int write_model(struct s2s_trainer *t, const struct export_args *args, struct s2s_error *err)
{
    const struct s2s_recipe *r = t->recipe;
    struct s2s_model *llm = t->bundle.composite ? s2s_salm_llm(t->bundle.model) : t->bundle.model;
    const char *base = r->llm.path ? r->llm.path : r->model_path;
    if (!args->merge && r->has_lora)
        return s2s_adapter_save(llm, base, args->train.common.out, err);
    int rc = s2s_adapter_merge(llm, err);
    return rc < 0 ? rc : s2s_trainer_save_model(t, args->train.common.out, err);
}

static int export_run(const struct s2s_recipe *recipe, const struct export_args *args,
                      struct s2s_error *err)
{
    struct s2s_trainer *t = NULL;
    int rc = s2s_trainer_open(&t, recipe, train_mesh, err);
    if (rc == 0)
        rc = s2s_trainer_resume(t, err);
    if (rc == 0 && !t->saved)
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s: no checkpoint", t->ckpt_root);
    if (rc == 0 && args->ema)
        rc = s2s_restore_averages(t->ckpt_root, t->bundle.model->params, err);
    if (rc == 0)
        rc = write_model(t, args, err);
    s2s_trainer_free(t);
    return rc;
}

int train_export(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp argp = {options, parse, "RECIPE [KEY=VALUE...]", doc, NULL,
                                     NULL,    NULL};
    struct export_args args = {.train.common = S2S_COMMON_DEFAULT};
    struct s2s_recipe recipe = S2S_RECIPE_INIT;
    s2s_tool_parse(&argp, argc, argv, &args);
    int rc = read_recipe(&recipe, &args, err);
    if (rc == 0 && (!recipe.run || (!recipe.has_lora && !args.ema)))
        rc = s2s_error_set(err, S2S_E_RULE,
                           recipe.run ? "the recipe has no adapters (model.lora); s2s-ckpt convert "
                                        "--to hf takes the checkpoint itself"
                                      : "the recipe names no run");
    if (rc == 0)
        rc = export_run(&recipe, &args, err);
    s2s_recipe_release(&recipe);
    train_args_release(&args.train);
    return rc;
}
