/* s2s-train RECIPE.yaml [key=value...]: what a recipe asks for, from the model to the end of the
 * run. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/conf/conf.h"
#include "lib/io/outfile.h"
#include "lib/train/lock.h"
#include "lib/train/trainer.h"
#include "tools/train/commands.h"
#include "tools/train/profile.h"

enum { KEY_PROFILE = 0x100 };

struct run_args {
    struct train_args train; /* first: it begins with the shared options */
    const char *profile;
};

static const struct argp_option options[] = {
    {"profile", KEY_PROFILE, "FILE", 0,
     "Measure the steps: a table on stderr at the end, and a trace of the last 3 steps in FILE, "
     "which Perfetto and chrome://tracing read (with several ranks FILE is one file each, with "
     ".rankR before its ending)",
     1},
    {0},
};

static const char doc[] =
    "Train a speech language model. The run resumes from its last checkpoint, if there is one."
    "\v"
    "Commands (s2s-train COMMAND --help shows their options):\n"
    "  eval       Loss, token accuracy and word error rate of data sets\n"
    "  export     Adapters as a PEFT folder, or merged into the model\n"
    "  generate   Text for a sound and a prompt\n"
    "  lr         The learning rate of each step\n"
    "  plan       What a step needs and who runs with whom, without running it\n"
    "  plot       The loss of a run as a picture\n"
    "  probe      Numbers of a model for comparison with another framework\n"
    "\n"
    "Axes of a mesh (mesh.tp, cp, dp, pp, ep) combine in any way, with an optimizer or parameters "
    "that ranks divide, too (mesh.data_parallel_sharding_strategy). s2s-check --world-size N "
    "refuses what a run on N ranks refuses.\n"
    "\n"
    "Examples:\n"
    "  s2s-train recipe.yaml run=runs/a train.steps=100\n"
    "  s2s-train recipe.yaml --profile trace.json train.steps=10\n"
    "  mpirun -n 4 s2s-train -v recipe.yaml mesh.dp=4\n"
    "  s2s-shard cat packs.s2s | s2s-train recipe.yaml 'data.train=[-]'\n"
    "\n"
    "Exit status: 0 done; 1 the data, the recipe or the run is bad, or it was interrupted (its "
    "checkpoint is saved); 2 the command line is bad or an input cannot be opened.\n"
    "See also: s2s-pack(1), s2s-check(1), s2s-ckpt(1), doc/RECIPE.md";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct run_args *args = state->input;
    switch (key) {
    case KEY_PROFILE:
        args->profile = arg;
        return 0;
    default:
        return train_parse_args(key, arg, state, &args->train);
    }
}

/* The recipe as it runs, beside what it makes. */
static int write_recipe(const struct s2s_recipe *recipe, struct s2s_error *err)
{
    struct s2s_buf text = S2S_BUF_INIT;
    struct s2s_outfile *out = NULL;
    char *path = s2s_xasprintf("%s/recipe.yaml", recipe->run);
    s2s_conf_dump(&text, recipe->conf, false);
    int rc = s2s_outfile_open(&out, path, err);
    if (rc == 0 && (rc = s2s_outfile_write(out, text.data, text.len, err)) < 0)
        s2s_outfile_abort(out);
    else if (rc == 0)
        rc = s2s_outfile_commit(out, err);
    s2s_buf_release(&text);
    free(path);
    return rc;
}

static int claim_run(struct s2s_run_lock **lock, const struct s2s_recipe *recipe,
                     struct s2s_error *err)
{
    if (!recipe->run)
        return s2s_error_hint(err, s2s_error_set(err, S2S_E_NOTFOUND, "no run directory"),
                              "give run: DIR in the recipe, or run=DIR");
    if (s2s_mesh_rank(train_mesh) != 0)
        return 0;
    int rc = s2s_run_lock(lock, recipe->run, err);
    return rc < 0 ? rc : write_recipe(recipe, err);
}

/* From the state that is restored to the last step, measured where that was asked for. */
static int run(struct s2s_trainer *trainer, const char *profile_path, struct s2s_error *err)
{
    struct train_profile *profile = NULL;
    int rc = profile_path ? train_profile_open(&profile, profile_path, trainer, err) : 0;
    rc = s2s_mesh_all_ok(train_mesh, rc, err);
    if (rc == 0)
        rc = s2s_trainer_run(trainer, err);
    /* an interrupted run was measured, too */
    if (profile && (rc == 0 || rc == S2S_E_INTERRUPTED)) {
        struct s2s_error own = S2S_ERROR_INIT;
        int written = s2s_mesh_all_ok(train_mesh, train_profile_write(profile, &own), &own);
        if (rc == 0 && written < 0) {
            *err = own;
            rc = written;
        }
    }
    train_profile_free(profile);
    return rc;
}

int train_train(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp argp = {options, parse, "RECIPE [KEY=VALUE...]", doc, NULL,
                                     NULL,    NULL};
    struct run_args args = {.train.common = S2S_COMMON_DEFAULT};
    struct s2s_recipe recipe = S2S_RECIPE_INIT;
    struct s2s_run_lock *lock = NULL;
    struct s2s_trainer *trainer = NULL;

    s2s_tool_parse(&argp, argc, argv, &args);
    s2s_trainer_catch_signals();
    int rc = train_launch(&recipe, &args.train, err);
    if (rc == 0)
        rc = s2s_mesh_all_ok(train_mesh, claim_run(&lock, &recipe, err), err);
    if (rc == 0)
        rc = s2s_trainer_open(&trainer, &recipe, train_mesh, err);
    if (rc == 0)
        rc = s2s_trainer_resume(trainer, err);
    if (rc == 0)
        rc = run(trainer, args.profile, err);
    s2s_trainer_free(trainer);
    s2s_run_unlock(lock);
    s2s_recipe_release(&recipe);
    train_args_release(&args.train);
    return rc;
}
