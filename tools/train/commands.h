/* The commands of s2s-train, and the launch they share. */
#ifndef S2S_TRAIN_COMMANDS_H
#define S2S_TRAIN_COMMANDS_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/tool.h"
#include "lib/mesh/mesh.h"
#include "lib/train/recipe.h"

struct s2s_conf;
struct s2s_error;

/* The ranks of this launch; NULL until train_launch. main closes it. */
extern struct s2s_mesh *train_mesh;

/* Positional arguments RECIPE [KEY=VALUE...], collected by a parser. */
struct train_args {
    struct s2s_common common;
    char *recipe;
    char **overrides;
    size_t n_overrides, cap_overrides;
    char seed[32];  /* --seed as an override */
    bool evaluates; /* and does not train */
};

/* Parses the positional arguments, for the `default:` of a command's own parser. */
error_t train_parse_args(int key, char *arg, struct argp_state *state, struct train_args *args);
void train_args_release(struct train_args *args);
/* Threads, ranks, recipe with its overrides, rules. Collective. */
int train_launch(struct s2s_recipe *recipe, struct train_args *args, struct s2s_error *err);
/* The same with a recipe that no file has: takes conf, also on failure. What is done with it need
 * not be training. */
int train_launch_conf(struct s2s_recipe *recipe, struct s2s_conf *conf, char *const *overrides,
                      size_t n, const struct s2s_common *common, struct s2s_error *err);

int train_train(int argc, char **argv, struct s2s_error *err);
int train_eval(int argc, char **argv, struct s2s_error *err);
int train_export(int argc, char **argv, struct s2s_error *err);
int train_generate(int argc, char **argv, struct s2s_error *err);
int train_lr(int argc, char **argv, struct s2s_error *err);
int train_plan(int argc, char **argv, struct s2s_error *err);
int train_plot(int argc, char **argv, struct s2s_error *err);

#endif
