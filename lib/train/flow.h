/*
 * The microbatches of a step on their way through this rank's stages of the pipeline: actions in
 * the order of the schedule, and the exchanges between them. One rank without a pipeline goes the
 * same way, and exchanges nothing.
 *
 * The sizes of what is exchanged follow from the packs, which all ranks of a pipeline have; a
 * message of another length ends the job.
 */
#ifndef S2S_TRAIN_FLOW_H
#define S2S_TRAIN_FLOW_H

#include "lib/tensor/running.h"
#include "lib/train/pack.h"
#include "lib/train/stages.h"

/* A microbatch in a stage, from what it takes to the end of its backward. */
struct s2s_lane {
    struct s2s_tape *tape;
    bool taken;
    int chunk;
    int64_t microbatch;
    struct s2s_forward fwd;
    struct s2s_tensor *in, *out; /* NULL before the first and after the last stage */
};

/* A gradient that waits to be sent. */
struct s2s_flow_mail {
    int chunk;
    int64_t microbatch;
    void *data;
    size_t bytes;
};

struct s2s_flow {
    const struct s2s_model *model; /* kept, as what follows */
    const struct s2s_stages *stages;
    const struct s2s_group *pp; /* ranks of the pipeline */
    struct s2s_lane *lanes;     /* [n_lanes] as many as were ever in flight together */
    size_t n_lanes, cap_lanes;
    struct s2s_flow_mail *mail;
    size_t n_mail, cap_mail;
    struct s2s_pack *nothing; /* an empty microbatch */
};

void s2s_flow_init(struct s2s_flow *flow, const struct s2s_model *model,
                   const struct s2s_stages *stages, const struct s2s_group *pp);
void s2s_flow_release(struct s2s_flow *flow); /* also of one that is zero */
/* What all tapes together had in use at most. */
size_t s2s_flow_peak_bytes(const struct s2s_flow *flow);

/* A forward that has just ended, its tape as it is. */
struct s2s_flow_seen {
    int stage;
    bool last; /* of the pipeline: fwd has the loss */
    int64_t microbatch;
    struct s2s_tape *tape;
    const struct s2s_forward *fwd;
};

/* All borrowed for the call. */
struct s2s_flow_options {
    struct s2s_pack *const *packs; /* [n_packs], each a microbatch */
    int64_t n_packs;
    double seed; /* of struct s2s_forward, as what follows */
    enum s2s_recompute recompute;
    bool want_hits, want_rows;
    const struct s2s_model_balance *balance;
    bool forward_only;
    bool records;                /* what is computed is recorded, also if no backward follows */
    struct s2s_running *running; /* NULL, or what batch norms leave their statistics in */
    /* NULL, or called with ctx before each action (last: no other follows) and after each forward
     */
    void (*begins)(void *ctx, const struct s2s_action *action, bool last);
    void (*seen)(void *ctx, const struct s2s_flow_seen *seen);
    void *ctx;
};

/* Collective over the pipeline: the same packs and options on all its ranks. */
void s2s_flow_run(struct s2s_flow *flow, const struct s2s_flow_options *options);

/* Collective over the pipeline, after all backwards: the gradient of the parameter that first and
 * last stage both have becomes the sum of theirs, the same bits on both. */
void s2s_flow_sum_shared(struct s2s_flow *flow);

#endif
