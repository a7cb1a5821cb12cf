/* What tests of whole steps share: a model of tests/oracle/models on a device, and its batch. */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/model/generate.h"
#include "lib/train/step.h"

enum { STEP_TOKENS = 96, STEP_MELS = 160, STEP_SEQS = 3, STEP_CLIPS = 2 };

/* One way to run a model. */
struct step_case {
    const char *dir;
    bool recompute, batch_norm;
};

static const struct step_case step_cases[] = {
    {"tests/oracle/models/qwen3", false, false},
    {"tests/oracle/models/qwen3", true, false},
    {"tests/oracle/models/gemma1", false, false},
    {"tests/oracle/models/mixtral", false, false},
    {"tests/oracle/models/qwen3_moe", true, false},
    {"tests/oracle/models/salm_llama", false, false},
    {"tests/oracle/models/salm_llama", true, false},
    {"tests/oracle/models/salm_llama", false, true},
    {"tests/oracle/models/salm_llama", true, true},
    {"tests/oracle/models/nemotron_h", false, false},
    {"tests/oracle/models/salm_nemotron_h", true, false},
};
enum { STEP_CASES = sizeof step_cases / sizeof *step_cases };

struct step_run {
    struct s2s_device *device;
    struct s2s_mesh *mesh;
    struct s2s_layout layout;
    struct s2s_model *model;
    struct s2s_optim *optim;
    struct s2s_side side;
    struct s2s_batch batch;
    int64_t n_steps;
    const struct step_case *how;
    int32_t ids[STEP_TOKENS], labels[STEP_TOKENS], positions[STEP_TOKENS], cu[STEP_SEQS + 1];
    int32_t rows[STEP_CLIPS], slot_of_row[STEP_TOKENS];
    int64_t cu_mel[STEP_CLIPS + 1];
    float *mel;
};

/* Two clips in the first two utterances. */
static inline void step_clips(struct step_run *run)
{
    static const int32_t slot[STEP_CLIPS] = {2, 32};
    const int64_t n_mels = run->model->n_mels;
    run->mel = s2s_xcalloc((size_t)(STEP_MELS * n_mels), sizeof *run->mel);
    s2s_rng_fill_normal(run->mel, (size_t)(STEP_MELS * n_mels), 3, 0, 0, 1);
    for (int k = 0; k < STEP_CLIPS; k++) {
        run->cu_mel[k + 1] = (k + 1) * STEP_MELS / STEP_CLIPS;
        run->rows[k] = (int32_t)s2s_model_frames(run->model, STEP_MELS / STEP_CLIPS);
        for (int i = 0; i < run->rows[k]; i++)
            run->labels[slot[k] + i] = -100;
    }
    s2s_media_slots(run->slot_of_row, slot, run->rows, STEP_CLIPS);
    run->batch.n_media = 1;
    run->batch.media[0] =
        (struct s2s_media){.n = STEP_CLIPS,
                           .rows = run->rows,
                           .slot_of_row = run->slot_of_row,
                           .data = run->mel,
                           .cu = run->cu_mel,
                           .width = n_mels,
                           .padded = run->how->batch_norm ? STEP_MELS / STEP_CLIPS : 0};
}

static inline void step_batch(struct step_run *run)
{
    static const int32_t cu[] = {0, 30, 60, STEP_TOKENS};
    memcpy(run->cu, cu, sizeof cu);
    for (int i = 0, s = 0; i < STEP_TOKENS; i++) {
        s += i == cu[s + 1];
        run->ids[i] = (int32_t)(i * 7 % run->model->vocab_size);
        run->labels[i] = i % 5 ? (int32_t)(i * 5 % run->model->vocab_size) : -100;
        run->positions[i] = i - cu[s];
    }
    run->batch = (struct s2s_batch){.n_tokens = STEP_TOKENS,
                                    .n_seqs = STEP_SEQS,
                                    .input_ids = run->ids,
                                    .labels = run->labels,
                                    .position_ids = run->positions,
                                    .cu_seqlens = run->cu,
                                    .max_seqlen = STEP_TOKENS - 60};
    if (run->model->n_mels > 0)
        step_clips(run);
}

/* Takes the device over. */
static inline struct step_run *step_open(const struct step_case *how, struct s2s_device *device)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct step_run *run = s2s_xcalloc(1, sizeof *run);
    struct s2s_model_options options = {.batch_norm_batch = how->batch_norm};
    struct s2s_adamw_options adamw = S2S_ADAMW_OPTIONS_DEFAULT;
    adamw.clip_norm = 1;
    run->how = how;
    run->device = device;
    if (s2s_model_open(&run->model, device, NULL, how->dir, &options, &err) < 0 ||
        s2s_params_finish(run->model->params, &err) < 0 || s2s_model_load(run->model, &err) < 0 ||
        s2s_optim_new(&run->optim, run->model->params, &adamw, 0, run->model->params->n_trained,
                      &err) < 0)
        fail_msg("%s", err.text);
    s2s_params_init(run->model->params, 1);
    if (s2s_mesh_open(&run->mesh, NULL, &err) < 0)
        fail_msg("%s", err.text);
    const struct s2s_layout_spec one = S2S_LAYOUT_SPEC_INIT;
    if (s2s_layout_init(&run->layout, run->mesh, &one, device, &err) < 0)
        fail_msg("%s", err.text);
    const struct s2s_side_options side = {
        .layout = &run->layout, .recompute = how->recompute, .batch_norm_batch = how->batch_norm};
    s2s_side_init(&run->side, run->mesh, run->model, run->optim, &side);
    step_batch(run);
    if (s2s_model_check(run->model, &run->batch, &err) < 0)
        fail_msg("%s", err.text);
    return run;
}

static inline void step_close(struct step_run *run)
{
    s2s_side_release(&run->side);
    s2s_optim_free(run->optim);
    s2s_model_free(run->model);
    s2s_device_close(run->device);
    s2s_mesh_close(run->mesh);
    free(run->mel);
    free(run);
}

/* Loss and norm of one step of two microbatches, which are the same. */
static inline void step_do(struct step_run *run, double out[2])
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_pack pack = {.batch = run->batch,
                            .n_labels = s2s_batch_n_labels(&run->batch),
                            .n_real = STEP_TOKENS,
                            .place = "the batch of this test"};
    struct s2s_pack *both[] = {&pack, &pack};
    const struct s2s_feed_step data = {.microbatches = both, .n_microbatches = 2, .n_global = 2};
    const struct s2s_step_options options = {
        .number = ++run->n_steps, .lr = 1e-3, .weight_decay = 0.1};
    struct s2s_step_result result;
    if (s2s_train_step(&run->side, &data, &options, &result, &err) < 0)
        fail_msg("%s", err.text);
    out[0] = result.loss;
    out[1] = result.grad_norm;
}

#endif
