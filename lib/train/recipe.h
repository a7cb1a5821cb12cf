/* A recipe of s2s-train (doc/RECIPE.md) as read, with its defaults. */
#ifndef S2S_TRAIN_RECIPE_H
#define S2S_TRAIN_RECIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/audio/augment.h"
#include "lib/mesh/mesh.h"
#include "lib/model/model.h"
#include "lib/model/vision_projection.h"
#include "lib/nn/lora.h"
#include "lib/optim/optim.h"
#include "lib/optim/schedule.h"
#include "lib/train/buckets.h"
#include "lib/train/layout.h"
#include "lib/train/stages.h"
#include "lib/train/usual.h"

struct s2s_conf;
struct s2s_error;

/* One part of a model; strings are the tree's. */
struct s2s_recipe_part {
    const char *path;              /* HF directory, or NULL */
    const struct s2s_conf *config; /* a file's name or the keys in place, or NULL */
    bool freeze;
    const struct s2s_conf *override; /* keys of its config that are said here; or NULL */
};

struct s2s_recipe_eval {
    const char *name, *path;
};

struct s2s_recipe {
    struct s2s_conf *conf; /* the whole tree, owned */
    const char *run;
    int64_t seed;
    const char *device; /* one of s2s_device_names */

    const char *model_path; /* a whole model; else the parts */
    struct s2s_recipe_part encoder, projection, vision, vision_projection, llm;
    struct s2s_vision_spec vision_spec; /* of the projection of images */
    bool batch_norm_batch;
    bool step_clamp; /* of Mamba layers, as the config has it */
    bool has_lora;
    struct s2s_lora lora;   /* adapters of the LLM */
    int64_t placeholder_id; /* -1: the stream's */

    const char **train; /* [n_train] */
    size_t n_train;
    struct s2s_recipe_eval *eval; /* [n_eval] */
    size_t n_eval;
    const char *tokenizer, *features; /* or NULL */
    bool shuffle;

    struct s2s_layout_spec mesh; /* dp 0: the rest of the world size */
    struct s2s_stages_spec stages;
    double timeout_s;
    double bucket_mb; /* of gradients that are summed at once */
    bool overlap_grad_reduce;
    enum s2s_sharding sharding;
    struct s2s_adamw_options adamw;
    struct s2s_schedule schedule;

    int64_t steps; /* -1: until the data or the time ends */
    double max_seconds;
    int64_t packs_per_step, packs_per_microbatch, eval_every, log_every;
    bool augment;
    enum s2s_recompute recompute;
    enum s2s_dtype dtype;             /* of activations and of the weights that layers use */
    struct s2s_model_balance balance; /* factors of losses of mixtures of experts; 0: none */
    double bias_rate;                 /* of the biases of their routers; 0: they stay */
    struct s2s_spec_augment spec_augment;
    double dither; /* of the sound that features are made of, in training */
    double token_dropout;
    enum s2s_answer on_nan, on_spike; /* to steps in trouble */
    double spike_factor;              /* times the median of the last spike_window steps */
    int64_t spike_window, max_skips;  /* steps in a row */
    struct s2s_dropout_rates dropout; /* of models; below 0: as their configs have it */
    int64_t ckpt_every, ckpt_keep;
    bool resume;
    bool async_save; /* checkpoints are written beside training */
};

#define S2S_RECIPE_INIT \
    { \
        .conf = NULL \
    }

/*
 * Reads path ("-": stdin), applies the overrides (key=value, [n]), fills *recipe. OPEN, FORMAT and
 * RANGE name file:line:column and the key. Rules (lib/rules) are the caller's to run before it
 * trusts the values: s2s_recipe_check.
 */
int s2s_recipe_read(struct s2s_recipe *recipe, const char *path, char *const *overrides, size_t n,
                    struct s2s_error *err);
/* The same of a tree that is there; takes conf, also on failure. */
int s2s_recipe_take(struct s2s_recipe *recipe, struct s2s_conf *conf, char *const *overrides,
                    size_t n, struct s2s_error *err);
/*
 * As s2s-check would judge it on world_size ranks; where nothing is trained its batches need not
 * fit them. Warnings are logged. ARG and RANGE for a mesh that does not fit; sets the size of dp.
 */
int s2s_recipe_check(struct s2s_recipe *recipe, int world_size, bool trains, struct s2s_error *err);
/* Of that what no rule of lib/rules says: whether the mesh fits world_size ranks, experts and
 * stages the mesh, and the microbatches of a step its pipeline. Sets the size of dp. */
int s2s_recipe_fit(struct s2s_recipe *recipe, int world_size, bool trains, struct s2s_error *err);
void s2s_recipe_release(struct s2s_recipe *recipe);

#endif
