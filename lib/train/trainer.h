/*
 * A run of training: model, optimizer, data and log of a recipe, on all ranks. What the commands of
 * s2s-train are made of.
 *
 *     struct s2s_trainer *t;
 *     s2s_trainer_open(&t, &recipe, mesh, err);     // model, optimizer
 *     s2s_trainer_resume(t, err);                   // the last complete checkpoint, or weights
 *     s2s_trainer_run(t, err);                      // to the last step
 *     s2s_trainer_free(t);
 *
 * All functions are collective over the mesh, and their failures are everybody's.
 */
#ifndef S2S_TRAINER_H
#define S2S_TRAINER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/mesh/mesh.h"
#include "lib/model/model.h"
#include "lib/optim/optim.h"
#include "lib/train/feed.h"
#include "lib/train/layout.h"
#include "lib/train/recipe.h"
#include "lib/train/runlog.h"
#include "lib/train/step.h"

struct s2s_ckpt;
struct s2s_error;
struct s2s_save;

/* A model on its device. */
struct s2s_bundle {
    struct s2s_device *device;
    struct s2s_model *model;
    struct s2s_stages stages; /* of the pipeline: what of the model is here */
    bool composite;
};

void s2s_bundle_free(struct s2s_bundle *bundle);

/* Where a run stands: what a checkpoint keeps beside tensors. */
struct s2s_run_state {
    int64_t step;            /* optimizer steps done */
    int64_t packs;           /* of all epochs, used */
    int64_t samples, tokens; /* used */
    double elapsed_s;        /* spent on steps */
    int64_t seed;            /* of the run that saved it; -1: it does not say */
    json_t *data;            /* s2s_feed_describe of that run, a reference; NULL: it does not say */
    bool shuffled;           /* with data: whether that run shuffled */
    json_t *base;            /* s2s_base_describe of that run, a reference; NULL: it has none */
    int64_t skipped, skips_in_row; /* steps of those done */
    json_t *usual;                 /* s2s_usual_describe of that run, a reference, or NULL */
};

struct s2s_trainer {
    const struct s2s_recipe *recipe; /* kept */
    struct s2s_mesh *mesh;           /* kept */
    struct s2s_layout layout;
    struct s2s_bundle bundle;
    struct s2s_optim *optim;
    struct s2s_side side; /* what the step works on */
    struct s2s_feed *feed;
    struct s2s_runlog *log; /* rank 0 */
    struct s2s_run_state state;
    struct s2s_usual *usual; /* what spikes are measured by; NULL: there are none */
    json_t *base;            /* rank 0: s2s_base_describe of a run of adapters, or NULL */
    bool saved; /* the state is that of the newest checkpoint, or of the one that is being saved */
    struct s2s_save *save; /* NULL before the first one */
    bool save_waits;       /* a save was busy on some rank when the ranks asked each other last */
    char *ckpt_root;
    /* NULL, or called before each step (begins) and after it: who measures the run */
    void (*watch)(void *ctx, const struct s2s_trainer *trainer, int64_t step, bool begins);
    void *watch_ctx;
};

/* Rank 0 has locked the run directory (lib/train/lock.h). */
int s2s_trainer_open(struct s2s_trainer **trainer, const struct s2s_recipe *recipe,
                     struct s2s_mesh *mesh, struct s2s_error *err);
/* The same on a device of the caller's choice (taken, also on failure); what only an evaluation
 * reads is not looked at. */
int s2s_trainer_open_on(struct s2s_trainer **trainer, const struct s2s_recipe *recipe,
                        struct s2s_mesh *mesh, struct s2s_device *device, struct s2s_error *err);
/* The recipe's streams, from the first pack that was not used. */
int s2s_trainer_open_feed(struct s2s_trainer *trainer, struct s2s_error *err);
/* The newest checkpoint of the run; without one the model's own weights and initial values. */
int s2s_trainer_resume(struct s2s_trainer *trainer, struct s2s_error *err);
/*
 * Steps until the recipe's end (steps, seconds, a pipe's end), with evaluations and checkpoints;
 * the last state is saved. INTERRUPTED after SIGTERM, SIGINT or SIGUSR1 to any rank: saved too.
 */
int s2s_trainer_run(struct s2s_trainer *trainer, struct s2s_error *err);
void s2s_trainer_free(struct s2s_trainer *trainer); /* NULL is a no-op */

/* Handlers of SIGTERM, SIGINT and SIGUSR1 that only take note; before threads start. */
void s2s_trainer_catch_signals(void);

/* ---- models (setup.c) ---- */

/* The recipe's model for a rank of the layout (kept), allocated; its values are not set. head:
 * of the checkpoint that they will come from (s2s_restore_head), or BY_FILES. device: taken, also
 * on failure. */
int s2s_bundle_open(struct s2s_bundle *bundle, const struct s2s_recipe *recipe,
                    const struct s2s_layout *layout, enum s2s_sharding sharding, enum s2s_head head,
                    struct s2s_device *device, struct s2s_error *err);
/* The weights of its directories, and initial values of whatever these do not hold. */
int s2s_bundle_load(struct s2s_bundle *bundle, uint64_t seed, struct s2s_error *err);
/* The values of a checkpoint (s2s_restore), and those that it leaves to the files of its base. */
int s2s_bundle_restore(struct s2s_bundle *bundle, uint64_t seed, const char *path,
                       struct s2s_optim *optim, struct s2s_run_state *state, struct s2s_error *err);
/* A model directory with its weights, or the model inside a checkpoint (the other is NULL). */
int s2s_bundle_open_dir(struct s2s_bundle *bundle, const char *dir, const char *ckpt,
                        struct s2s_error *err);

/* ---- checkpoints (save.c, restore.c) ---- */

/* Writes one now; after a failure none of it is left. */
int s2s_trainer_save(struct s2s_trainer *trainer, struct s2s_error *err);

/* The model alone, without moments and with all that checkpoints of the run leave to its base, as a
 * checkpoint in root; its adapters were merged. One rank. */
int s2s_trainer_save_model(struct s2s_trainer *trainer, const char *root, struct s2s_error *err);
/*
 * The same beside training: save_behind waits for the save before, copies what this rank writes,
 * and starts a thread. Failures, and the checkpoint itself, come with a later call:
 *
 *     save_go_on  when no rank is_busy (the caller's to find out): goes on with what needs all
 * ranks finish      waits for the end
 *
 * Both are nothing when nothing is being saved. save_reserve comes first, once: NOMEM.
 */
int s2s_trainer_save_reserve(struct s2s_trainer *trainer, struct s2s_error *err);
int s2s_trainer_save_behind(struct s2s_trainer *trainer, struct s2s_error *err);
bool s2s_trainer_save_is_busy(const struct s2s_trainer *trainer); /* this rank's; not collective */
int s2s_trainer_save_go_on(struct s2s_trainer *trainer, struct s2s_error *err);
int s2s_trainer_save_finish(struct s2s_trainer *trainer, struct s2s_error *err);
/* Host memory that this rank's copy takes; not collective. */
int64_t s2s_trainer_save_bytes(struct s2s_trainer *trainer);
void s2s_save_free(struct s2s_save *save); /* waits for the thread; NULL is a no-op */

/* Parameters, and with optim and state the rest, of a torch_dist checkpoint. Every parameter must
 * be there: NOTFOUND lists those that are not. Weights that nobody wants are a warning. */
int s2s_restore(const char *path, struct s2s_params *params, struct s2s_optim *optim,
                struct s2s_run_state *state, struct s2s_error *err);
/* Compares the checkpoint's files with the digests that were written with them, a share of them on
 * each rank; agreeing on the result is up to the caller. DIGEST, TRUNCATED, NOTFOUND, IO. */
int s2s_restore_check(const char *path, struct s2s_mesh *mesh, struct s2s_error *err);
/* The averages of trained values (train.ema_decay) in their place; NOTFOUND if there are none. No
 * parameter may be divided. */
int s2s_restore_averages(const char *path, struct s2s_params *params, struct s2s_error *err);
/* Whether the checkpoint has an output layer that differs from the embedding, below prefix
 * ("llm."). 1, 0, or an error of reading. */
int s2s_restore_own_head(struct s2s_ckpt *ckpt, const char *prefix, struct s2s_error *err);
/* What the decoder in the checkpoint at path has; BY_FILES if there is none, or it cannot be read.
 */
enum s2s_head s2s_restore_head(const char *path);

/* ---- evaluation (evaluate.c) ---- */

struct s2s_tokenizer;

struct s2s_eval_options {
    struct s2s_tokenizer *tokenizer; /* NULL: no text metrics */
    bool shuffle_audio;              /* every utterance hears another one */
    int64_t max_tokens;              /* of a microbatch; 0: those of a pack */
    int64_t max_new_tokens;
    bool text; /* generate and compare with the reference */
    /* Tapes that a step has used, of this bundle on this grid; NULL: others are made and freed */
    struct s2s_flow *flow;
    /* NULL, or called with each reference and what was generated (borrowed for the call), in the
     * order of this rank's utterances */
    void (*heard)(void *ctx, const char *reference, const char *text);
    void *heard_ctx;
    /* Collective over the ranks of the evaluation, or NULL: whether to break it off
     * (S2S_E_INTERRUPTED, everybody's). Asked before each round of packs. */
    bool (*give_up)(void *ctx);
    void *give_up_ctx;
};

struct s2s_eval_result {
    int64_t n_utterances, n_labels, n_right, n_words, n_word_errors;
    double loss_sum;
};

/* Collective over the grid: results of all its ranks, the same whatever their number. A failure is
 * this rank's own, to be shared (s2s_mesh_all_ok). */
int s2s_evaluate(struct s2s_eval_result *result, struct s2s_bundle *bundle, struct s2s_grid *grid,
                 const char *path, const char *features, const struct s2s_eval_options *options,
                 struct s2s_error *err);
/* Whether path is a set that s2s_evaluate can read: its header and its end. Warns where its ids
 * are not those of tokenizer (may be NULL). */
int s2s_evaluate_try(const char *path, const char *tokenizer, struct s2s_error *err);
double s2s_eval_loss(const struct s2s_eval_result *result);     /* nats a token */
double s2s_eval_accuracy(const struct s2s_eval_result *result); /* of tokens */
double s2s_eval_wer(const struct s2s_eval_result *result);      /* -1: not measured */

#endif
