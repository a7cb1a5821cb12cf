/* s2s-train eval RECIPE.yaml --checkpoint DIR [key=value...]: losses and texts of a checkpoint on
 * the sets of a recipe. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/io/outfile.h"
#include "lib/io/printout.h"
#include "lib/text/tokenizer.h"
#include "lib/train/trainer.h"
#include "tools/train/commands.h"

enum { KEY_CHECKPOINT = 0x100, KEY_SHUFFLE, KEY_NO_TEXT, KEY_MAX_NEW, KEY_SHOW, KEY_EMA };

struct eval_args {
    struct train_args train; /* first: it begins with the shared options */
    const char *checkpoint;
    bool ema;
    bool shuffle, no_text;
    int64_t max_new_tokens, n_show;
};

static const struct argp_option options[] = {
    {"checkpoint", KEY_CHECKPOINT, "DIR", 0,
     "Checkpoint to evaluate (default: the newest of the recipe's run)", 1},
    {"ema", KEY_EMA, NULL, 0, "Evaluate the averages of train.ema_decay", 1},
    {"shuffle-audio", KEY_SHUFFLE, NULL, 0,
     "Every utterance hears the sound of another: what the model knows without listening", 1},
    {"no-text", KEY_NO_TEXT, NULL, 0, "Losses and accuracies only", 1},
    {"max-new-tokens", KEY_MAX_NEW, "N", 0, "Longest text to generate (default 256)", 1},
    {"show", KEY_SHOW, "N", 0,
     "Print N texts of each set beside what was said, spread over the set (those of rank 0)", 1},
    {0},
};

static const char doc[] =
    "Print loss, token accuracy and, if the recipe names a tokenizer, word error rate of each data "
    "set of data.eval."
    "\v"
    "Examples:\n"
    "  s2s-train eval recipe.yaml\n"
    "  s2s-train eval recipe.yaml --checkpoint runs/a/checkpoints --json\n"
    "\n"
    "Exit status: 0 done, 1 the data or the checkpoint is bad, 2 the command line is bad or an "
    "input cannot be opened.\n"
    "See also: s2s-train(1)";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct eval_args *args = state->input;
    switch (key) {
    case KEY_CHECKPOINT:
        args->checkpoint = arg;
        return 0;
    case KEY_EMA:
        args->ema = true;
        return 0;
    case KEY_SHUFFLE:
        args->shuffle = true;
        return 0;
    case KEY_NO_TEXT:
        args->no_text = true;
        return 0;
    case KEY_MAX_NEW:
        args->max_new_tokens = s2s_arg_i64(state, "max-new-tokens", arg, 1, 1 << 20);
        return 0;
    case KEY_SHOW:
        args->n_show = s2s_arg_i64(state, "show", arg, 0, 1 << 20);
        return 0;
    default:
        return train_parse_args(key, arg, state, &args->train);
    }
}

/* Texts of a set, kept until it is known how many there are. */
struct texts {
    struct {
        char *said, *heard;
    } * list;
    size_t n, cap;
};

static void keep_text(void *ctx, const char *said, const char *heard)
{
    struct texts *texts = ctx;
    s2s_grow(&texts->list, texts->n, &texts->cap, sizeof *texts->list);
    texts->list[texts->n].said = s2s_xstrdup(said);
    texts->list[texts->n++].heard = s2s_xstrdup(heard);
}

static size_t n_shown(const struct texts *texts, int64_t n_show)
{
    return (size_t)n_show < texts->n ? (size_t)n_show : texts->n;
}

static json_t *texts_json(const struct texts *texts, int64_t n_show)
{
    json_t *list = json_array();
    const size_t n = n_shown(texts, n_show);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:s}", "said", texts->list[i * texts->n / n].said,
                                        "heard", texts->list[i * texts->n / n].heard));
    return list;
}

static void print_texts(const struct texts *texts, int64_t n_show)
{
    const size_t n = n_shown(texts, n_show);
    for (size_t i = 0; i < n; i++)
        printf("  said:  %s\n  heard: %s\n", texts->list[i * texts->n / n].said,
               texts->list[i * texts->n / n].heard);
}

static void texts_release(struct texts *texts)
{
    for (size_t i = 0; i < texts->n; i++) {
        free(texts->list[i].said);
        free(texts->list[i].heard);
    }
    free(texts->list);
}

static json_t *as_json(const char *name, const struct s2s_eval_result *r)
{
    json_t *set = json_pack("{s:s, s:f, s:f, s:I, s:I}", "name", name, "loss", s2s_eval_loss(r),
                            "token_accuracy", s2s_eval_accuracy(r), "utterances",
                            (json_int_t)r->n_utterances, "tokens", (json_int_t)r->n_labels);
    if (set && s2s_eval_wer(r) >= 0) {
        json_object_set_new(set, "wer", json_real(s2s_eval_wer(r)));
        json_object_set_new(set, "words", json_integer(r->n_words));
    }
    return set;
}

static void print_set(const char *name, const struct s2s_eval_result *r)
{
    printf("%s: loss %.4f, token accuracy %.2f %%", name, s2s_eval_loss(r),
           100 * s2s_eval_accuracy(r));
    if (s2s_eval_wer(r) >= 0)
        printf(", WER %.2f %%", 100 * s2s_eval_wer(r));
    printf(" (%lld utterances, %lld tokens)\n", (long long)r->n_utterances, (long long)r->n_labels);
}

static int eval_sets(const struct eval_args *args, const struct s2s_recipe *recipe,
                     struct s2s_bundle *bundle, struct s2s_grid *grid, struct s2s_tokenizer *tok,
                     struct s2s_error *err)
{
    struct s2s_eval_options opt = {.tokenizer = tok,
                                   .text = tok && !args->no_text,
                                   .shuffle_audio = args->shuffle,
                                   .max_new_tokens = args->max_new_tokens,
                                   .heard = args->n_show > 0 ? keep_text : NULL};
    const bool first = s2s_mesh_rank(train_mesh) == 0, json = args->train.common.json;
    struct s2s_printout to = {.out = NULL};
    json_t *sets = json_array();
    int rc = first ? s2s_printout_begin(&to, args->train.common.out, err) : 0;
    rc = s2s_mesh_all_ok(train_mesh, rc, err);
    for (size_t i = 0; rc == 0 && i < recipe->n_eval; i++) {
        struct s2s_eval_result result;
        struct texts texts = {.list = NULL};
        opt.heard_ctx = &texts;
        rc = s2s_evaluate_try(recipe->eval[i].path, recipe->tokenizer, err);
        if ((rc = s2s_mesh_all_ok(train_mesh, rc, err)) == 0)
            rc = s2s_evaluate(&result, bundle, grid, recipe->eval[i].path, recipe->features, &opt,
                              err);
        rc = s2s_mesh_all_ok(train_mesh, rc, err);
        if (rc == 0 && first && json) {
            json_t *set = as_json(recipe->eval[i].name, &result);
            if (args->n_show > 0)
                json_object_set_new(set, "texts", texts_json(&texts, args->n_show));
            json_array_append_new(sets, set);
        } else if (rc == 0 && first) {
            print_set(recipe->eval[i].name, &result);
            print_texts(&texts, args->n_show);
        }
        texts_release(&texts);
    }
    if (rc == 0 && first && json) {
        json_t *report = json_pack("{s:s, s:b, s:O}", "checkpoint", args->checkpoint,
                                   "shuffled_audio", args->shuffle, "sets", sets);
        json_dumpf(report, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(report);
    }
    rc = s2s_printout_end(&to, rc, err);
    json_decref(sets);
    return rc;
}

/* The model of the checkpoint, and the groups it is cut over. */
static int open_trained(struct s2s_bundle *bundle, struct s2s_layout *layout,
                        const struct s2s_recipe *recipe, const char *checkpoint, bool ema,
                        struct s2s_error *err)
{
    struct s2s_device *device;
    int rc = s2s_device_open_at(&device, recipe->device, s2s_mesh_local_rank(train_mesh), err);
    if ((rc = s2s_mesh_all_ok(train_mesh, rc, err)) < 0)
        return rc;
    if ((rc = s2s_layout_init(layout, train_mesh, &recipe->mesh, device, err)) < 0) {
        s2s_device_close(device);
        return rc;
    }
    rc = s2s_bundle_open(bundle, recipe, layout, S2S_NO_SHARD, s2s_restore_head(checkpoint), device,
                         err);
    if (rc == 0)
        rc = s2s_bundle_restore(bundle, (uint64_t)recipe->seed, checkpoint, NULL, NULL, err);
    return rc == 0 && ema ? s2s_restore_averages(checkpoint, bundle->model->params, err) : rc;
}

static int eval_run(struct eval_args *args, const struct s2s_recipe *recipe, struct s2s_error *err)
{
    struct s2s_bundle bundle = {.model = NULL};
    struct s2s_layout layout;
    struct s2s_tokenizer *tok = NULL;
    char *newest = recipe->run ? s2s_xasprintf("%s/checkpoints", recipe->run) : NULL;
    int rc = s2s_outfile_spares(args->train.common.out, args->train.recipe, err);
    for (size_t i = 0; i < recipe->n_eval && rc == 0; i++)
        rc = s2s_outfile_spares(args->train.common.out, recipe->eval[i].path, err);
    if (!args->checkpoint)
        args->checkpoint = newest;
    if (rc == 0 && !args->checkpoint)
        rc = s2s_error_set(err, S2S_E_ARG, "no checkpoint: give --checkpoint DIR");
    else if (rc == 0 && recipe->n_eval == 0)
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "data.eval names no data set");
    if (rc == 0 && recipe->tokenizer && !args->no_text)
        rc = s2s_tokenizer_open(&tok, recipe->tokenizer, err);
    /* the layout is made by all ranks together */
    if ((rc = s2s_mesh_all_ok(train_mesh, rc, err)) == 0)
        rc = open_trained(&bundle, &layout, recipe, args->checkpoint, args->ema, err);
    rc = s2s_mesh_all_ok(train_mesh, rc, err);
    if (rc == 0)
        rc = eval_sets(args, recipe, &bundle, layout.grid, tok, err);
    s2s_bundle_free(&bundle);
    s2s_tokenizer_free(tok);
    free(newest);
    return rc;
}

int train_eval(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp argp = {options, parse, "RECIPE [KEY=VALUE...]", doc, NULL,
                                     NULL,    NULL};
    struct eval_args args = {
        .train.common = S2S_COMMON_DEFAULT, .train.evaluates = true, .max_new_tokens = 256};
    struct s2s_recipe recipe = S2S_RECIPE_INIT;
    s2s_tool_parse(&argp, argc, argv, &args);
    int rc = train_launch(&recipe, &args.train, err);
    if (rc == 0)
        rc = eval_run(&args, &recipe, err);
    s2s_recipe_release(&recipe);
    train_args_release(&args.train);
    return rc;
}
