/* Opens, resumes and runs a training on all ranks. */
#include "lib/train/trainer.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/write/dist.h"
#include "lib/conf/conf.h"
#include "lib/io/there.h"
#include "lib/text/tokenizer.h"
#include "lib/train/base.h"
#include "lib/train/changes.h"

static volatile sig_atomic_t asked_to_stop;

static void take_note(int signal_number)
{
    asked_to_stop = signal_number;
}

void s2s_trainer_catch_signals(void)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
    struct sigaction act = {.sa_handler = take_note, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &act, NULL);
}

/* ---- life ---- */

/* The same on every rank, also of a stage where nothing is. */
static bool is_anything_trained(const struct s2s_params *params)
{
    for (size_t i = 0; i < params->n; i++)
        if (s2s_param_learns(params->list[i]))
            return true;
    return false;
}

static bool has_any(const struct s2s_params *params, unsigned flags)
{
    for (size_t i = 0; i < params->n; i++)
        if ((params->list[i]->flags & flags) == flags)
            return true;
    return false;
}

static int check_model(const struct s2s_trainer *t, struct s2s_error *err)
{
    const struct s2s_model *model = t->bundle.model;
    if (model->vocab_size == 0)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "an encoder alone has no loss to train on");
    if (!is_anything_trained(model->params))
        return s2s_error_set(err, S2S_E_RULE, "every part of the model is frozen");
    if (t->recipe->bias_rate > 0 && !has_any(model->params, S2S_PARAM_ROUTER | S2S_PARAM_BUFFER))
        return s2s_error_hint(err,
                              s2s_error_set(err, S2S_E_RULE,
                                            "train.moe_router_bias_update_rate %g for a model "
                                            "whose routers have no bias",
                                            t->recipe->bias_rate),
                              "leave it out; train.moe_aux_loss_coeff evens their load");
    if (t->layout.experts && !has_any(model->params, S2S_PARAM_EXPERT))
        return s2s_error_hint(
            err,
            s2s_error_set(err, S2S_E_RULE, "mesh.ep %d and mesh.etp %d for a model without experts",
                          t->recipe->mesh.size[S2S_AXIS_EP], t->recipe->mesh.etp),
            "leave them out");
    return 0;
}

static bool is_trained_on(const struct s2s_recipe *r, const char *path)
{
    for (size_t i = 0; i < r->n_train; i++)
        if (strcmp(r->train[i], path) == 0)
            return true;
    return false;
}

/* What is needed only when the first evaluation or checkpoint is due is missed before the first
 * step. Of a set that is trained on, too, the feed says whose ids it has. */
static int check_inputs(const struct s2s_recipe *r, struct s2s_error *err)
{
    struct s2s_tokenizer *tok = NULL;
    int rc = r->tokenizer ? s2s_tokenizer_open(&tok, r->tokenizer, err) : 0;
    s2s_tokenizer_free(tok);
    for (size_t i = 0; rc == 0 && r->eval_every > 0 && i < r->n_eval; i++)
        rc = s2s_evaluate_try(r->eval[i].path,
                              is_trained_on(r, r->eval[i].path) ? NULL : r->tokenizer, err);
    return rc;
}

/* Whether there is a checkpoint to go on from, for all ranks: the file system of rank 0 may see a
 * rename earlier. */
static bool has_checkpoint(const struct s2s_trainer *t)
{
    char *tracker = s2s_xasprintf("%s/latest_checkpointed_iteration.txt", t->ckpt_root);
    uint8_t there = s2s_is_there(AT_FDCWD, tracker);
    free(tracker);
    s2s_comm_broadcast(s2s_mesh_world(t->mesh), &there, 1, S2S_U8, 0);
    return there;
}

/* A run keeps the head that it began with, whatever its model's directory has become. */
static enum s2s_head head_to_go_on_with(const struct s2s_trainer *t)
{
    uint8_t head = S2S_HEAD_BY_FILES;
    if (!has_checkpoint(t))
        return S2S_HEAD_BY_FILES;
    if (s2s_mesh_rank(t->mesh) == 0)
        head = (uint8_t)s2s_restore_head(t->ckpt_root);
    s2s_comm_broadcast(s2s_mesh_world(t->mesh), &head, 1, S2S_U8, 0);
    return (enum s2s_head)head;
}

int s2s_trainer_open_on(struct s2s_trainer **out, const struct s2s_recipe *recipe,
                        struct s2s_mesh *mesh, struct s2s_device *device, struct s2s_error *err)
{
    struct s2s_trainer *t = s2s_xcalloc(1, sizeof *t);
    t->recipe = recipe;
    t->mesh = mesh;
    t->ckpt_root = s2s_xasprintf("%s/checkpoints", recipe->run ? recipe->run : ".");
    s2s_mesh_note(mesh, -1, "set-up");
    t->bundle.device = device;
    const enum s2s_head head = recipe->run ? head_to_go_on_with(t) : S2S_HEAD_BY_FILES;
    int rc = s2s_layout_init(&t->layout, mesh, &recipe->mesh, device, err);
    if (rc == 0)
        rc = s2s_bundle_open(&t->bundle, recipe, &t->layout, recipe->sharding, head, device, err);
    if (rc == 0)
        rc = check_model(t, err);
    if ((rc = s2s_mesh_all_ok(mesh, rc, err)) < 0) {
        s2s_trainer_free(t);
        return rc;
    }
    const struct s2s_buckets_options gradients = {.layout = &t->layout,
                                                  .bucket_bytes =
                                                      (int64_t)(recipe->bucket_mb * (1 << 20)),
                                                  .overlap = recipe->overlap_grad_reduce,
                                                  .sharding = recipe->sharding};
    struct s2s_buckets *buckets = s2s_buckets_new(t->bundle.model, &gradients);
    rc = s2s_buckets_optim(&t->optim, buckets, &recipe->adamw, err);
    if ((rc = s2s_mesh_all_ok(mesh, rc, err)) < 0) {
        s2s_buckets_free(buckets);
        s2s_trainer_free(t);
        return rc;
    }
    const struct s2s_side_options side = {.layout = &t->layout,
                                          .buckets = buckets,
                                          .stages = &t->bundle.stages,
                                          .balance = recipe->balance,
                                          .bias_rate = recipe->bias_rate,
                                          .recompute = recipe->recompute,
                                          .batch_norm_batch = recipe->batch_norm_batch};
    s2s_side_init(&t->side, mesh, t->bundle.model, t->optim, &side);
    if (recipe->on_spike != S2S_OFF) {
        t->usual = s2s_xcalloc(1, sizeof *t->usual);
        t->usual->window = recipe->spike_window;
        t->usual->factor = recipe->spike_factor;
    }
    *out = t;
    return 0;
}

int s2s_trainer_open(struct s2s_trainer **out, const struct s2s_recipe *recipe,
                     struct s2s_mesh *mesh, struct s2s_error *err)
{
    struct s2s_device *device = NULL;
    int rc = check_inputs(recipe, err);
    if (rc == 0)
        rc = s2s_device_open_at(&device, recipe->device, s2s_mesh_local_rank(mesh), err);
    if ((rc = s2s_mesh_all_ok(mesh, rc, err)) < 0) {
        s2s_device_close(device);
        return rc;
    }
    return s2s_trainer_open_on(out, recipe, mesh, device, err);
}

void s2s_trainer_free(struct s2s_trainer *t)
{
    if (!t)
        return;
    s2s_feed_close(t->feed);
    s2s_runlog_close(t->log, NULL);
    s2s_save_free(t->save);
    s2s_side_release(&t->side);
    s2s_optim_free(t->optim);
    s2s_bundle_free(&t->bundle);
    json_decref(t->state.data);
    json_decref(t->state.base);
    json_decref(t->state.usual);
    json_decref(t->base);
    free(t->usual);
    free(t->ckpt_root);
    free(t);
}

/* A checkpoint that cannot be read is never passed over in silence: which one to take instead is
 * the user's to say. */
static int restore_newest(struct s2s_trainer *t, struct s2s_error *err)
{
    int rc = s2s_bundle_restore(&t->bundle, (uint64_t)t->recipe->seed, t->ckpt_root, t->optim,
                                &t->state, err);
    if (rc == 0)
        rc = s2s_restore_check(t->ckpt_root, t->mesh, err);
    const bool damaged =
        rc == S2S_E_OPEN || rc == S2S_E_TRUNCATED || rc == S2S_E_DIGEST || rc == S2S_E_FORMAT;
    const int64_t previous = damaged ? s2s_dist_previous(t->ckpt_root) : -1;
    if (previous < 0)
        return rc;
    err->hint[0] = 0; /* the reader's, to name another one: a run is gone on with by its tracker */
    return s2s_error_hint(err, rc,
                          "the one of step %lld is there too: write %lld into "
                          "%s/latest_checkpointed_iteration.txt to go on from it",
                          (long long)previous, (long long)previous, t->ckpt_root);
}

int s2s_trainer_resume(struct s2s_trainer *t, struct s2s_error *err)
{
    const bool first = s2s_mesh_rank(t->mesh) == 0;
    int rc = first && t->recipe->resume ? s2s_dist_clean(t->ckpt_root, err) : 0;
    if (rc == 0 && first && t->recipe->has_lora)
        rc = s2s_base_describe(&t->base, t->recipe, err);
    if ((rc = s2s_mesh_all_ok(t->mesh, rc, err)) < 0)
        return rc;
    if (!has_checkpoint(t)) {
        rc = s2s_bundle_load(&t->bundle, (uint64_t)t->recipe->seed, err);
        if (rc == 0)
            s2s_optim_begin_ema(t->optim);
        return s2s_mesh_all_ok(t->mesh, rc, err);
    }
    if (!t->recipe->resume) {
        rc = s2s_error_set(err, S2S_E_RULE, "%s holds checkpoints, and checkpoint.resume is false",
                           t->ckpt_root);
        return s2s_error_hint(err, rc, "remove them, or give another run=DIR");
    }
    rc = restore_newest(t, err);
    if (rc == 0 && t->usual)
        s2s_usual_restore(t->usual, t->state.usual);
    if (rc == 0 && first)
        rc = s2s_base_check(t->state.base, t->base, err);
    if ((rc = s2s_mesh_all_ok(t->mesh, rc, err)) < 0)
        return rc;
    /* the save before may have been killed between its end and the removal of older ones */
    rc = first ? s2s_dist_prune(t->ckpt_root, (int)t->recipe->ckpt_keep, err) : 0;
    if ((rc = s2s_mesh_all_ok(t->mesh, rc, err)) < 0)
        return rc;
    t->saved = true;
    if (first && t->recipe->shuffle && t->state.seed >= 0 && t->state.seed != t->recipe->seed)
        s2s_warn("train",
                 "seed %lld, but %s is of a run with seed %lld: the order of packs is another, and "
                 "in this epoch some come twice and others not at all",
                 (long long)t->recipe->seed, t->ckpt_root, (long long)t->state.seed);
    if (first)
        s2s_info("train", "goes on from step %lld of %s", (long long)t->state.step, t->ckpt_root);
    return 0;
}

/* ---- the loop ---- */

/* The same answer on every rank: why to stop before the next step, or 0. */
enum stop { GO_ON, STOP_DONE, STOP_ASKED };

static enum stop ask_all(struct s2s_trainer *t)
{
    const struct s2s_recipe *r = t->recipe;
    double facts[3] = {asked_to_stop != 0, s2s_mesh_rank(t->mesh) == 0 ? t->state.elapsed_s : 0,
                       s2s_trainer_save_is_busy(t)};
    s2s_comm_all_reduce(s2s_mesh_world(t->mesh), facts, 3, S2S_F64, S2S_GROUP_MAX);
    t->state.elapsed_s = facts[1]; /* the clock of rank 0 counts */
    t->save_waits = facts[2] > 0;
    if (facts[0] > 0)
        return STOP_ASKED;
    if (r->steps >= 0 && t->state.step >= r->steps)
        return STOP_DONE;
    return r->max_seconds > 0 && t->state.elapsed_s >= r->max_seconds ? STOP_DONE : GO_ON;
}

/* For what takes long between two steps. */
static bool is_asked_to_stop(void *trainer)
{
    return ask_all(trainer) == STOP_ASKED;
}

int s2s_trainer_open_feed(struct s2s_trainer *t, struct s2s_error *err)
{
    const struct s2s_recipe *r = t->recipe;
    struct s2s_feed_options options = {.paths = r->train,
                                       .n_paths = r->n_train,
                                       .shuffle = r->shuffle,
                                       .seed = (uint64_t)r->seed,
                                       .packs_per_step = r->packs_per_step,
                                       .packs_per_microbatch = r->packs_per_microbatch,
                                       .first_pack = t->state.packs,
                                       .mesh = t->mesh,
                                       .grid = t->layout.grid,
                                       .features = r->features,
                                       .tokenizer = r->tokenizer,
                                       .n_mels = (int)t->bundle.model->n_mels,
                                       .augment = r->augment ? &r->spec_augment : NULL,
                                       .dither = (float)r->dither,
                                       .token_dropout = (float)r->token_dropout,
                                       .draws = t->bundle.model->draws,
                                       .give_up = is_asked_to_stop,
                                       .give_up_ctx = t};
    s2s_mesh_note(t->mesh, -1, "open data");
    return s2s_mesh_all_ok(t->mesh, s2s_feed_open(&t->feed, &options, err), err);
}

/* A position in an epoch means something only in the data that it was counted in. */
static void say_changes(const struct s2s_trainer *t)
{
    static const char *const switched[] = {"data.shuffle was false", "data.shuffle was true"};
    const bool was = t->state.shuffled, is = t->recipe->shuffle;
    json_t *now = t->state.data ? s2s_feed_describe(t->feed) : NULL;
    char *changes = now ? s2s_data_changes(t->state.data, now) : NULL;
    if (changes || (now && was != is)) {
        const bool breaks = s2s_data_breaks_epoch(t->state.data, was, now, is, t->state.packs);
        s2s_log(breaks ? S2S_LOG_WARN : S2S_LOG_INFO, "train",
                "the data is not that of step %lld: %s%s%s%s", (long long)t->state.step,
                changes ? changes : "", changes && was != is ? ", " : "",
                was != is ? switched[was] : "",
                breaks ? ": the order of packs is another, and in this epoch some come twice and "
                         "others not at all"
                       : "");
    }
    free(changes);
    json_decref(now);
}

/* The schedule counts steps, or shares of the time that may be spent. */
static double schedule_count(const struct s2s_trainer *t)
{
    const struct s2s_recipe *r = t->recipe;
    return r->max_seconds > 0 ? r->schedule.decay * t->state.elapsed_s / r->max_seconds
                              : (double)t->state.step;
}

/* *evaluated, the step that was evaluated last, stays what it is when a signal comes meanwhile: the
 * run that goes on evaluates this step again. */
static int evaluate_all(struct s2s_trainer *t, int64_t *evaluated, struct s2s_error *err)
{
    const struct s2s_recipe *r = t->recipe;
    const struct s2s_eval_options options = {
        .flow = &t->side.flow, .give_up = is_asked_to_stop, .give_up_ctx = t};
    s2s_mesh_note(t->mesh, t->state.step, "evaluation");
    for (size_t i = 0; i < r->n_eval; i++) {
        struct s2s_eval_result result;
        int rc = s2s_evaluate(&result, &t->bundle, t->layout.grid, r->eval[i].path, r->features,
                              &options, err);
        if (rc == S2S_E_INTERRUPTED) {
            *err = (struct s2s_error)S2S_ERROR_INIT;
            return 0;
        }
        if ((rc = s2s_mesh_all_ok(t->mesh, rc, err)) < 0)
            return rc;
        if (t->log) {
            rc = s2s_runlog_eval(t->log, t->state.step, r->eval[i].name, s2s_eval_loss(&result),
                                 s2s_eval_accuracy(&result), -1, err);
            s2s_info("train", "step %lld: %s loss %.4f, token accuracy %.3f",
                     (long long)t->state.step, r->eval[i].name, s2s_eval_loss(&result),
                     s2s_eval_accuracy(&result));
        }
        if ((rc = s2s_mesh_all_ok(t->mesh, rc, err)) < 0)
            return rc;
    }
    *evaluated = t->state.step;
    return 0;
}

static void show(struct s2s_trainer *t, struct s2s_progress *progress,
                 const struct s2s_runlog_step *line)
{
    if (line->step % t->recipe->log_every == 0)
        s2s_info("train", "step %lld: loss %.4f, grad norm %.3g, lr %.3g, %.0f tokens/s",
                 (long long)line->step, line->loss, line->grad_norm, line->lr, line->tokens_per_s);
    if (progress->label) {
        s2s_progress_note(progress, "loss %.4f, %.0f tokens/s", line->loss, line->tokens_per_s);
        s2s_progress_add(progress, 1);
    }
}

/* The line of the step that was done last; of one that stopped the run, of the next. */
static int write_line(struct s2s_trainer *t, struct s2s_progress *progress,
                      const struct s2s_step_result *result, double step_s, struct s2s_error *err)
{
    static const char *const answers[] = {
        [S2S_STOP] = "stop", [S2S_SKIP] = "skip", [S2S_WARN] = "warn"};
    const bool trouble = result->blame.trouble, stops = trouble && result->answer == S2S_STOP;
    const struct s2s_runlog_step line = {.step = t->state.step + stops,
                                         .samples = t->state.samples,
                                         .tokens = t->state.tokens,
                                         .loss = result->loss,
                                         .grad_norm = result->grad_norm,
                                         .lr = result->lr,
                                         .balanced = result->balanced,
                                         .balance = result->balance,
                                         .square = result->square,
                                         .tokens_per_s = (double)result->tokens / step_s,
                                         .step_s = step_s,
                                         .peak_bytes = result->peak_bytes,
                                         .blame = trouble ? &result->blame : NULL,
                                         .answer = trouble ? answers[result->answer] : NULL};
    struct s2s_error unheard = S2S_ERROR_INIT;
    if (!t->log)
        return 0;
    if (!stops)
        show(t, progress, &line);
    return s2s_runlog_add(t->log, &line, stops ? &unheard : err);
}

/* What the steps after this one are held against; too many in a row that changed nothing end the
 * run. */
static int remember(struct s2s_trainer *t, const struct s2s_step_result *result,
                    struct s2s_error *err)
{
    const bool skipped = result->answer == S2S_SKIP;
    t->state.skipped += skipped;
    t->state.skips_in_row = skipped ? t->state.skips_in_row + 1 : 0;
    if (t->usual && !skipped && result->labels > 0)
        s2s_usual_add(t->usual, result->loss, result->grad_norm);
    if (t->state.skips_in_row <= t->recipe->max_skips)
        return 0;
    return s2s_error_set(err, S2S_E_RANGE,
                         "%lld steps in a row were skipped (train.max_skips %lld)",
                         (long long)t->state.skips_in_row, (long long)t->recipe->max_skips);
}

static int run_step(struct s2s_trainer *t, const struct s2s_feed_step *data,
                    struct s2s_step_result *result, struct s2s_error *err)
{
    const struct s2s_recipe *r = t->recipe;
    const double count = schedule_count(t);
    const struct s2s_step_options options = {.number = t->state.step + 1,
                                             .lr = s2s_schedule_lr(&r->schedule, count),
                                             .weight_decay = s2s_schedule_wd(&r->schedule, count),
                                             .schedule = &r->schedule,
                                             .count = count,
                                             .on_nan = r->on_nan,
                                             .on_spike = r->on_spike,
                                             .usual = t->usual};
    return s2s_train_step(&t->side, data, &options, result, err);
}

static int one_step(struct s2s_trainer *t, struct s2s_progress *progress, bool *ended,
                    struct s2s_error *err)
{
    const struct s2s_feed_step *data = NULL;
    struct s2s_step_result result = {.loss = 0};
    const double start_s = s2s_now_s();
    s2s_mesh_note(t->mesh, t->state.step + 1, "data");
    int rc = s2s_mesh_all_ok(t->mesh, s2s_feed_next(t->feed, &data, err), err);
    if (rc == 0 && data->n_global == 0) {
        *ended = true;
        return 0;
    }
    if (rc == 0 && t->watch)
        t->watch(t->watch_ctx, t, t->state.step + 1, true);
    if (rc == 0)
        rc = run_step(t, data, &result, err);
    const double step_s = s2s_now_s() - start_s;
    if (rc < 0) {
        if (result.blame.trouble)
            write_line(t, progress, &result, step_s, err);
        return s2s_error_add(err, rc, "step %lld", (long long)t->state.step + 1);
    }
    if (t->watch)
        t->watch(t->watch_ctx, t, t->state.step + 1, false);
    t->state.step++;
    t->state.packs += data->n_global;
    t->state.samples += result.samples;
    t->state.tokens += result.tokens;
    t->state.elapsed_s += step_s;
    t->saved = false;
    rc = write_line(t, progress, &result, step_s, err);
    rc = s2s_mesh_all_ok(t->mesh, rc, err);
    return rc < 0 ? rc : remember(t, &result, err);
}

static bool due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

static int save(struct s2s_trainer *t, struct s2s_error *err)
{
    return t->recipe->async_save ? s2s_trainer_save_behind(t, err) : s2s_trainer_save(t, err);
}

/* evaluated: the step that was evaluated last */
static int loop(struct s2s_trainer *t, struct s2s_progress *progress, int64_t evaluated,
                struct s2s_error *err)
{
    const struct s2s_recipe *r = t->recipe;
    bool ended = false;
    enum stop stop;
    int rc = 0;
    if (evaluated != t->state.step && due(t->state.step, r->eval_every) &&
        (rc = evaluate_all(t, &evaluated, err)) < 0)
        return rc;
    while ((stop = ask_all(t)) == GO_ON) {
        if (!t->save_waits && (rc = s2s_trainer_save_go_on(t, err)) < 0)
            return rc;
        if ((rc = one_step(t, progress, &ended, err)) < 0)
            return rc;
        if (ended) {
            stop = ask_all(t); /* a pipe that was given up has ended, too */
            break;
        }
        if (due(t->state.step, r->eval_every) && (rc = evaluate_all(t, &evaluated, err)) < 0)
            return rc;
        if (due(t->state.step, r->ckpt_every) && (rc = save(t, err)) < 0)
            return rc;
    }
    if (stop != STOP_ASKED && r->eval_every > 0 && evaluated != t->state.step) {
        if ((rc = evaluate_all(t, &evaluated, err)) < 0)
            return rc;
        if (evaluated != t->state.step)
            stop = STOP_ASKED;
    }
    if ((rc = s2s_trainer_save_finish(t, err)) < 0 ||
        (!t->saved && (rc = s2s_trainer_save(t, err)) < 0))
        return rc;
    if (stop != STOP_ASKED)
        return 0;
    rc = s2s_error_set(err, S2S_E_INTERRUPTED,
                       "interrupted after step %lld; its checkpoint is in "
                       "%s",
                       (long long)t->state.step, t->ckpt_root);
    return s2s_error_hint(err, rc, "the same command continues from there");
}

/* What was being saved when the run failed (on all ranks) is what the next one goes on from. */
static void finish_save(struct s2s_trainer *t)
{
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_trainer_save_finish(t, &err) < 0 && s2s_mesh_rank(t->mesh) == 0)
        s2s_warn("train", "%s", err.text);
}

int s2s_trainer_run(struct s2s_trainer *t, struct s2s_error *err)
{
    struct s2s_progress progress = {.label = NULL};
    const bool first = s2s_mesh_rank(t->mesh) == 0;
    const double start_s = s2s_now_s();
    const struct s2s_run_state before = t->state;
    int rc = s2s_trainer_open_feed(t, err);
    if (rc < 0)
        return rc;
    if (first)
        say_changes(t);
    bool evaluated = true;
    if (first)
        rc = s2s_runlog_open(&t->log, t->recipe->run, t->state.step,
                             t->recipe->eval_every > 0 ? t->recipe->n_eval : 0, &evaluated, err);
    if ((rc = s2s_mesh_all_ok(t->mesh, rc, err)) < 0)
        return rc;
    uint8_t done = evaluated || t->state.step == 0;
    s2s_comm_broadcast(s2s_mesh_world(t->mesh), &done, 1, S2S_U8, 0);
    if (first && isatty(STDERR_FILENO)) {
        int64_t left = t->recipe->steps > 0 ? t->recipe->steps - t->state.step : 0;
        s2s_progress_begin(&progress, "training", "steps", left > 0 ? left : 0);
    }
    if (t->recipe->async_save && t->recipe->ckpt_every > 0 &&
        (rc = s2s_trainer_save_reserve(t, err)) < 0)
        return rc;
    rc = loop(t, &progress, done ? t->state.step : -1, err);
    if (rc < 0)
        finish_save(t);
    if (progress.label)
        s2s_progress_end(&progress);
    if (first) {
        const double seconds = t->state.elapsed_s - before.elapsed_s;
        s2s_info("train", "%lld steps, %lld tokens, %.0f tokens/s in steps, %.1f s in all",
                 (long long)(t->state.step - before.step),
                 (long long)(t->state.tokens - before.tokens),
                 seconds > 0 ? (double)(t->state.tokens - before.tokens) / seconds : 0,
                 s2s_now_s() - start_s);
        if (t->state.skipped > before.skipped)
            s2s_warn("train", "%lld steps were skipped",
                     (long long)(t->state.skipped - before.skipped));
    }
    if (rc < 0)
        return rc; /* everybody's already */
    rc = s2s_runlog_close(t->log, err);
    t->log = NULL;
    return s2s_mesh_all_ok(t->mesh, rc, err);
}
