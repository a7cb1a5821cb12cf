/* s2s-train lr RECIPE [key=value...]: the learning-rate curve; and plot, the loss of a run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/io/outfile.h"
#include "lib/io/printout.h"
#include "lib/train/runlog.h"
#include "lib/rules/rules.h"
#include "tools/train/commands.h"

enum { KEY_STEPS = 0x100 };

struct lr_args {
    struct train_args train;
    const char *steps;
};

static const struct argp_option options[] = {
    {"steps", KEY_STEPS, "LIST", 0, "Steps to print, such as 1,10,100 (default: 1 to train.steps)",
     1},
    {0},
};

static const char doc[] =
    "Print the learning rate and the weight decay of each optimizer step, a line a step: step, lr, "
    "weight decay. Step i, counted from 1, is at i - 1 of the schedule."
    "\v"
    "Examples:\n"
    "  s2s-train lr recipe.yaml schedule.name=wsd schedule.wsd_steps=200\n"
    "  s2s-train lr recipe.yaml --steps 1,100,2000\n"
    "\n"
    "Exit status: 0 done, 1 the recipe is bad, 2 the command line is bad or an input cannot be "
    "opened.\n"
    "See also: s2s-train(1)";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct lr_args *args = state->input;
    switch (key) {
    case KEY_STEPS:
        args->steps = arg;
        return 0;
    default:
        return train_parse_args(key, arg, state, &args->train);
    }
}

static void print_step(const struct s2s_recipe *r, int64_t step, bool json, bool first)
{
    const double count = (double)(step - 1);
    printf(json ? "%s[%lld, %.17g, %.17g]" : "%s%lld %.17g %.17g\n", json && !first ? ", " : "",
           (long long)step, s2s_schedule_lr(&r->schedule, count),
           s2s_schedule_wd(&r->schedule, count));
}

static int print_list(const struct s2s_recipe *r, const char *list, bool json,
                      struct s2s_error *err)
{
    char *copy = s2s_xstrdup(list), *save = NULL;
    bool first = true;
    int rc = 0;
    for (char *at = strtok_r(copy, ",", &save); at && rc == 0; at = strtok_r(NULL, ",", &save)) {
        int64_t step;
        if ((rc = s2s_parse_i64(&step, at, 1, INT64_MAX / 2, err)) < 0)
            s2s_error_add(err, rc, "--steps");
        else
            print_step(r, step, json, first);
        first = false;
    }
    free(copy);
    return rc;
}

static int print_curve(const struct s2s_recipe *r, const struct lr_args *args,
                       struct s2s_error *err)
{
    const bool json = args->train.common.json;
    int rc = 0;
    if (!args->steps && r->steps < 1)
        return s2s_error_set(err, S2S_E_ARG, "train.steps is not given: use --steps LIST");
    if (json)
        printf("{\"points\": [");
    if (args->steps)
        rc = print_list(r, args->steps, json, err);
    for (int64_t step = 1; !args->steps && step <= r->steps; step++)
        print_step(r, step, json, step == 1);
    if (json)
        printf("]}\n");
    return rc;
}

int train_lr(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp argp = {options, parse, "RECIPE [KEY=VALUE...]", doc, NULL,
                                     NULL,    NULL};
    struct lr_args args = {.train.common = S2S_COMMON_DEFAULT};
    struct s2s_recipe recipe = S2S_RECIPE_INIT;
    struct s2s_printout to = {.out = NULL};
    s2s_tool_parse(&argp, argc, argv, &args);
    int rc = s2s_recipe_read(&recipe, args.train.recipe, args.train.overrides,
                             args.train.n_overrides, err);
    if (rc == 0)
        rc = s2s_rules_check_recipe(recipe.conf, 0, NULL, NULL, err);
    if (rc == 0)
        rc = s2s_outfile_spares(args.train.common.out, args.train.recipe, err);
    if (rc == 0)
        rc = s2s_printout_begin(&to, args.train.common.out, err);
    if (rc == 0)
        rc = print_curve(&recipe, &args, err);
    rc = s2s_printout_end(&to, rc, err);
    s2s_recipe_release(&recipe);
    train_args_release(&args.train);
    return rc;
}

/* ---- plot ---- */

struct plot_args {
    struct s2s_common common;
    const char *run;
};

static const char plot_doc[] =
    "Draw the loss of a run, and of its evaluations, with gnuplot."
    "\v"
    "The picture is -o FILE (.svg or .png; default RUN/loss.svg).\n"
    "\n"
    "Example:\n"
    "  s2s-train plot runs/a -o loss.svg\n"
    "\n"
    "Exit status: 0 done, 1 nothing to draw or gnuplot failed, 2 the command line is bad or an "
    "input cannot be opened.\n"
    "See also: s2s-train(1)";

static error_t parse_plot(int key, char *arg, struct argp_state *state)
{
    struct plot_args *args = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        if (args->run)
            argp_error(state, "one run at a time");
        args->run = arg;
        return 0;
    case ARGP_KEY_END:
        if (!args->run)
            argp_error(state, "no run: name its directory");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int train_plot(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp argp = {NULL, parse_plot, "RUN", plot_doc, NULL, NULL, NULL};
    struct plot_args args = {.common = S2S_COMMON_DEFAULT};
    s2s_tool_parse(&argp, argc, argv, &args);
    const char *out = args.common.out;
    if (out && !s2s_ends_with(out, ".svg") && !s2s_ends_with(out, ".png"))
        return s2s_error_set(err, S2S_E_ARG, "-o %s: the name must end in .svg or .png", out);
    char *path = s2s_xasprintf("%s/loss.svg", args.run);
    int rc = s2s_runlog_plot(args.run, out ? out : path, err);
    free(path);
    return rc;
}
