/*
 * What each rank of a pipeline computes in a step, in which order, and what it sends to whom in
 * between: pure functions, the same on every rank. One rank is a pipeline, too: forward and
 * backward of one microbatch after the other.
 *
 * A rank has one or several chunks of the model; the stages of the pipeline are chunk 0 of each
 * rank in turn, then chunk 1 of each, and so on: stage = chunk * n_ranks + rank. With one chunk the
 * order is 1F1B, with several interleaved 1F1B (Narayanan et al. 2021, as Megatron runs it).
 *
 * Messages are exchanged in lists whose messages are posted together: one list before the first
 * action and one after each. All ranks walk their actions and lists alike; nobody waits for
 * somebody who waits for him, also where a send ends only when it is received
 * (lib/train/simulate_pp.h shows it), and the messages from one rank to another are received in the
 * order in which they are sent.
 */
#ifndef S2S_TRAIN_SCHEDULE_PP_H
#define S2S_TRAIN_SCHEDULE_PP_H

#include <stdbool.h>
#include <stdint.h>

struct s2s_error;

struct s2s_pipeline {
    int n_ranks, n_chunks; /* at least 1 */
    int64_t n_microbatches;
    int64_t group; /* microbatches that go through a chunk together, with several chunks (Megatron's
                      microbatch_group_size_per_vp_stage); 0: n_ranks */
    bool forward_only; /* evaluation */
};

/* RANGE for what Megatron refuses: several chunks want at least 2 ranks, n_ranks <= group <=
 * n_microbatches, and a last group that is not smaller than n_ranks. */
int s2s_pipeline_check(const struct s2s_pipeline *pipeline, struct s2s_error *err);

enum s2s_action_kind { S2S_ACTION_FORWARD, S2S_ACTION_BACKWARD };

struct s2s_action {
    enum s2s_action_kind kind;
    int chunk; /* of this rank */
    int64_t microbatch;
};

/* An activation, which goes from a stage to the next one, or its gradient, which comes back. */
struct s2s_message {
    bool send, gradient;
    int chunk; /* of this rank: what it gave or takes, forward or back */
    int peer;  /* rank of the pipeline */
    int64_t microbatch;
};

struct s2s_pp_schedule {
    struct s2s_action *actions; /* [n_actions] */
    int64_t n_actions;
    struct s2s_message *messages;
    int64_t *list;     /* [n_actions + 2]: messages [list[i], list[i + 1]) stand before action i,
                          those of i = n_actions after the last one */
    int64_t in_flight; /* microbatches x chunks that have something kept, at most: from what they
                          take to their backward; without one until what they gave was sent */
};

/* The part of a rank, of a pipeline that was checked. */
void s2s_pp_schedule_init(struct s2s_pp_schedule *schedule, const struct s2s_pipeline *pipeline,
                          int rank);
void s2s_pp_schedule_release(struct s2s_pp_schedule *schedule); /* also of one that is zero */

/* Of this rank's chunks: the stage, and whether it is the last of all. */
int s2s_pipeline_stage(const struct s2s_pipeline *pipeline, int rank, int chunk);
bool s2s_pipeline_is_last(const struct s2s_pipeline *pipeline, int rank, int chunk);

#endif
