/* s2s-train plan RECIPE [key=value...]: what a step needs and who runs with whom, without running.
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/conf/conf.h"
#include "lib/io/outfile.h"
#include "lib/io/printout.h"
#include "lib/train/plan.h"
#include "tools/train/commands.h"
#include "tools/train/memory.h"
#include "tools/train/plan_groups.h"
#include "tools/train/plan_pipeline.h"
#include "tools/train/plan_svg.h"

enum { KEY_WORLD_SIZE = 0x100, KEY_RANK, KEY_MESH, KEY_MICROBATCHES, KEY_TOKENS, KEY_FORMAT };

struct plan_args {
    struct train_args train; /* first: it begins with the shared options */
    int world_size, rank;    /* 0: by the mesh */
    const char *mesh;
    bool svg;
    int64_t microbatches, tokens;
};

static const struct argp_option options[] = {
    {"world-size", KEY_WORLD_SIZE, "N", 0, "Ranks of the run (default: those of the mesh)", 1},
    {"mesh", KEY_MESH, "LIST", 0,
     "Sizes of the mesh, such as tp=2,dp=4: of tp, cp, dp, pp, ep, etp (tp of the experts), and "
     "order=tp-cp-ep-dp-pp",
     1},
    {"rank", KEY_RANK, "R", 0, "The rank whose memory and messages are told (default 0)", 1},
    {"microbatches", KEY_MICROBATCHES, "M", 0,
     "Microbatches of a rank in a step, of made-up packs (default: by train.packs_per_step)", 1},
    {"format", KEY_FORMAT, "NAME", 0,
     "text (the default), json, or svg: a picture of which rank holds what", 1},
    {"tokens", KEY_TOKENS, "T", 0,
     "Slots of a made-up pack (default: the packs of data.train, or 8192)", 1},
    {0},
};

static const char doc[] =
    "Print what a training step of a rank needs: memory part by part, operations, bytes sent; and "
    "the groups of the mesh. RECIPE may also be a model's config.json."
    "\v"
    "The model, the step and the optimizer run as they are, three steps, on a device and a mesh "
    "that only count: nothing is computed, launched or written. Where the streams of data.train "
    "are files that are there, their packs are what is counted; else made-up packs of --tokens "
    "slots are: one sequence, or with an encoder utterances of 20 s of sound and as many slots of "
    "text. A mesh in another order is shown with its groups alone: s2s-train does not train on "
    "it.\n"
    "\n"
    "Examples:\n"
    "  s2s-train plan recipe.yaml train.recompute=selective\n"
    "  s2s-train plan config.json --tokens 8192 --world-size 64 --json\n"
    "  s2s-train plan config.json --mesh tp=2,pp=2,dp=4 --format svg -o mesh.svg\n"
    "\n"
    "Exit status: 0 done, 1 the recipe or the model is bad, 2 the command line is bad or an input "
    "cannot be opened.\n"
    "See also: s2s-train(1), s2s-check(1)";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct plan_args *args = state->input;
    switch (key) {
    case KEY_WORLD_SIZE:
        args->world_size = (int)s2s_arg_i64(state, "world-size", arg, 1, PLAN_MAX_RANKS);
        return 0;
    case KEY_RANK:
        args->rank = (int)s2s_arg_i64(state, "rank", arg, 0, PLAN_MAX_RANKS - 1);
        return 0;
    case KEY_MESH:
        args->mesh = arg;
        return 0;
    case KEY_FORMAT:
        args->svg = strcmp(arg, "svg") == 0;
        args->train.common.json = strcmp(arg, "json") == 0;
        if (!args->svg && !args->train.common.json && strcmp(arg, "text") != 0)
            argp_error(state, "--format: expected text, json or svg, found '%s'", arg);
        return 0;
    case KEY_MICROBATCHES:
        args->microbatches = s2s_arg_i64(state, "microbatches", arg, 1, 1 << 20);
        return 0;
    case KEY_TOKENS:
        args->tokens = s2s_arg_i64(state, "tokens", arg, 1, 1 << 26);
        return 0;
    default:
        return train_parse_args(key, arg, state, &args->train);
    }
}

/* ---- input ---- */

/* A recipe of a bare config.json: the model alone; a composite's parts lie beside it. */
static int recipe_of_config(struct s2s_conf **out, const char *path, const char *type,
                            struct s2s_error *err)
{
    const bool composite = strcmp(type, "salm") == 0;
    const char *slash = strrchr(path, '/');
    char *dir = slash ? s2s_xstrndup(path, (size_t)(slash - path)) : s2s_xstrdup(".");
    json_t *json = composite ? json_pack("{s:{s:s}}", "model", "path", dir)
                             : json_pack("{s:{s:{s:s}}}", "model", "llm", "config", path);
    char *text = json ? json_dumps(json, 0) : NULL;
    int rc = text ? s2s_conf_parse(out, text, strlen(text), path, S2S_CONF_JSON, err)
                  : s2s_error_set(err, S2S_E_FORMAT, "%s: its name is not UTF-8", path);
    free(text);
    json_decref(json);
    free(dir);
    return rc;
}

/* *bare: the input is a model's config. */
static int read_input(struct s2s_recipe *recipe, const struct plan_args *args, bool *bare,
                      struct s2s_error *err)
{
    const char *path = args->train.recipe, *type = NULL;
    struct s2s_conf *conf;
    int rc = s2s_conf_read(&conf, path, S2S_CONF_YAML, err);
    if (rc < 0)
        return rc;
    *bare = conf->kind == S2S_CONF_MAP && s2s_conf_key(conf, "model_type") &&
            !s2s_conf_key(conf, "model");
    if (*bare) {
        struct s2s_conf *of_config = NULL;
        rc = s2s_conf_get_str(&type, conf, "model_type", err);
        if (rc == 0)
            rc = recipe_of_config(&of_config, path, type, err);
        s2s_conf_free(conf);
        conf = of_config;
    }
    return rc < 0
               ? rc
               : s2s_recipe_take(recipe, conf, args->train.overrides, args->train.n_overrides, err);
}

/* ---- output ---- */

static json_t *cost_json(const struct s2s_tally_row *sum)
{
    return json_pack("{s:I, s:f, s:f, s:f}", "calls", (json_int_t)sum->calls, "flops",
                     sum->cost.flops, "read_bytes", sum->cost.read_bytes, "written_bytes",
                     sum->cost.written_bytes);
}

static json_t *plan_json(const struct s2s_plan *plan)
{
    json_t *operations = json_object(), *sent = json_object();
    const struct s2s_tally_row all = s2s_tally_sum(&plan->tally, S2S_ENTRIES);
    for (int e = 0; e < S2S_ENTRIES; e++) {
        const struct s2s_tally_row sum = s2s_tally_sum(&plan->tally, (enum s2s_entry)e);
        if (sum.calls > 0)
            json_object_set_new(operations, s2s_entry_name((enum s2s_entry)e), cost_json(&sum));
    }
    for (size_t i = 0; i < plan->n_sent; i++)
        json_object_set_new(sent, plan->sent[i].group, json_integer(plan->sent[i].bytes));
    return json_pack(
        "{s:s, s:I, s:I, s:i, s:I, s:I, s:o, s:I, s:I, s:f, s:f, s:f, s:o, s:o}", "batch",
        plan->batch, "tokens", (json_int_t)plan->tokens, "microbatches",
        (json_int_t)plan->microbatches, "threads", plan->lanes, "parameters",
        (json_int_t)plan->n_parameters, "trained_parameters", (json_int_t)plan->n_trained, "memory",
        train_memory_json(&plan->memory), "peak_bytes", (json_int_t)plan->peak_bytes, "save_bytes",
        (json_int_t)plan->save_bytes, "flops", all.cost.flops, "read_bytes", all.cost.read_bytes,
        "written_bytes", all.cost.written_bytes, "operations", operations, "sent", sent);
}

static void print_plan(const struct s2s_plan *plan, const struct s2s_recipe *recipe)
{
    const struct s2s_tally_row all = s2s_tally_sum(&plan->tally, S2S_ENTRIES);
    char a[TRAIN_UNIT_TEXT], b[TRAIN_UNIT_TEXT], c[TRAIN_UNIT_TEXT];
    printf("on %s with %d thread%s; a microbatch is %s\n", recipe->device, plan->lanes,
           s2s_plural((size_t)plan->lanes), plan->batch);
    printf("memory, at most in use (%lld parameters, %lld of them trained)\n",
           (long long)plan->n_parameters, (long long)plan->n_trained);
    train_memory_print(stdout, &plan->memory);
    printf("  %-26s %12s\n", "allocated", train_bytes_text(a, (double)plan->peak_bytes));
    if (plan->save_bytes > 0)
        printf("  %-26s %12s\n", "copy for a checkpoint",
               train_bytes_text(a, (double)plan->save_bytes));
    printf("a step of %lld microbatch%s, %lld tokens: %s, %s read, %s written\n",
           (long long)plan->microbatches, plan->microbatches == 1 ? "" : "es",
           (long long)plan->tokens, train_flops_text(a, all.cost.flops),
           train_bytes_text(b, all.cost.read_bytes), train_bytes_text(c, all.cost.written_bytes));
    for (int e = 0; e < S2S_ENTRIES; e++) {
        const struct s2s_tally_row sum = s2s_tally_sum(&plan->tally, (enum s2s_entry)e);
        if (sum.calls > 0)
            printf("  %-26s %12s %12s read %12s written %8lld calls\n", s2s_entry_name(sum.entry),
                   train_flops_text(a, sum.cost.flops), train_bytes_text(b, sum.cost.read_bytes),
                   train_bytes_text(c, sum.cost.written_bytes), (long long)sum.calls);
    }
    for (size_t i = 0; i < plan->n_sent; i++)
        if (plan->sent[i].bytes > 0)
            printf("sent by this rank in a step over %s (%d ranks): %s\n", plan->sent[i].group,
                   plan->sent[i].n_ranks, train_bytes_text(a, (double)plan->sent[i].bytes));
}

static const char untrained[] =
    "memory, operations and messages are not told: s2s-train does not train on a mesh with";

static int show(const struct plan_args *args, const struct s2s_recipe *recipe,
                const struct plan_mesh *mesh, const struct s2s_plan *plan, struct s2s_error *err)
{
    if (args->svg)
        return plan_svg_print(mesh, plan, err);
    json_t *json = args->train.common.json ? json_object() : NULL;
    int rc = 0;
    if (json) {
        json_object_set_new(json, "world_size", json_integer(mesh->world_size));
        json_object_set_new(json, "rank", json_integer(args->rank));
        rc = plan_groups_json(json, mesh, err);
        if (plan)
            json_object_update_new(json, plan_json(plan));
        if (rc == 0 && plan && plan->pipeline.n_ranks > 1)
            rc = plan_pipeline_json(json, plan, err);
        if (rc == 0)
            json_dumpf(json, stdout, JSON_REAL_PRECISION(17));
        printf("\n");
        json_decref(json);
        return rc;
    }
    printf("rank %d of %d, ", args->rank, mesh->world_size);
    if (plan)
        print_plan(plan, recipe);
    else
        printf("%s %s\n", untrained, mesh->untrained);
    if (plan && plan->pipeline.n_ranks > 1)
        rc = plan_pipeline_print(plan, err);
    return rc < 0 ? rc : plan_groups_print(mesh, args->rank, err);
}

/* ---- the command ---- */

static int make(struct s2s_plan *plan, const struct s2s_recipe *recipe,
                const struct plan_args *args, int world_size, struct s2s_error *err)
{
    const struct s2s_plan_options how = {.tokens = args->tokens,
                                         .microbatches = args->microbatches};
    struct s2s_mesh *mesh;
    omp_set_num_threads(args->train.common.jobs);
    int rc = s2s_mesh_open_count(&mesh, world_size, args->rank, err);
    if (rc < 0)
        return rc;
    rc = s2s_plan_make(plan, recipe, mesh, &how, err);
    s2s_mesh_close(mesh);
    return rc;
}

/* The sizes of --mesh in the recipe, as if it had them. */
static int take_mesh(struct s2s_recipe *recipe, const struct plan_mesh *mesh, struct s2s_error *err)
{
    int rc = 0;
    char text[32];
    for (int axis = 0; rc == 0 && axis < S2S_AXES; axis++) {
        const struct s2s_grid_spec *grid = axis == S2S_AXIS_EP ? &mesh->expert : &mesh->dense;
        snprintf(text, sizeof text, "mesh.%s=%d", s2s_mesh_axis_name((enum s2s_axis)axis),
                 grid->size[axis]);
        rc = s2s_conf_override(recipe->conf, text, err);
        recipe->mesh.size[axis] = grid->size[axis];
    }
    recipe->mesh.etp = mesh->expert.size[S2S_AXIS_TP];
    snprintf(text, sizeof text, "mesh.etp=%d", recipe->mesh.etp);
    if (rc == 0)
        rc = s2s_conf_override(recipe->conf, text, err);
    return rc;
}

static int plan_and_show(const struct plan_args *args, struct s2s_recipe *recipe, bool bare,
                         struct s2s_error *err)
{
    struct plan_mesh mesh;
    struct s2s_plan plan = {.batch = NULL};
    struct s2s_printout to = {.out = NULL};
    int rc = plan_mesh_read(&mesh, recipe, args->mesh, args->world_size, err);
    if (rc == 0 && args->rank >= mesh.world_size)
        rc = s2s_error_set(err, S2S_E_ARG, "--rank %d is not one of %d", args->rank,
                           mesh.world_size);
    const bool trains = rc == 0 && !*mesh.untrained;
    if (trains && args->mesh)
        rc = take_mesh(recipe, &mesh, err);
    recipe->mesh.size[S2S_AXIS_DP] = mesh.dense.size[S2S_AXIS_DP];
    if (trains && rc == 0 && !bare)
        rc = s2s_recipe_check(recipe, mesh.world_size, true, err);
    if (trains && rc == 0)
        rc = make(&plan, recipe, args, mesh.world_size, err);
    if (rc == 0)
        rc = s2s_outfile_spares(args->train.common.out, args->train.recipe, err);
    if (rc == 0)
        rc = s2s_printout_begin(&to, args->train.common.out, err);
    if (rc == 0)
        rc = show(args, recipe, &mesh, trains ? &plan : NULL, err);
    rc = s2s_printout_end(&to, rc, err);
    s2s_plan_release(&plan);
    return rc;
}

int train_plan(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp argp = {options, parse, "RECIPE [KEY=VALUE...]", doc, NULL,
                                     NULL,    NULL};
    struct plan_args args = {.train.common = S2S_COMMON_DEFAULT};
    struct s2s_recipe recipe = S2S_RECIPE_INIT;
    bool bare = false;
    s2s_tool_parse(&argp, argc, argv, &args);
    int rc = read_input(&recipe, &args, &bare, err);
    if (rc == 0)
        rc = plan_and_show(&args, &recipe, bare, err);
    s2s_recipe_release(&recipe);
    train_args_release(&args.train);
    return rc;
}
