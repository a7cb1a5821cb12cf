/*
 * What a rank computes in a step, in which order: a list that a pure function makes and the step
 * walks. Without a pipeline it is forward and backward of one microbatch after the other.
 */
#ifndef S2S_TRAIN_ACTIONS_H
#define S2S_TRAIN_ACTIONS_H

#include <stdint.h>

enum s2s_action_kind { S2S_ACTION_FORWARD, S2S_ACTION_BACKWARD };

struct s2s_action {
    enum s2s_action_kind kind;
    int64_t microbatch;
};

/* The actions of n microbatches. Gives: free; *n_actions is their number. */
struct s2s_action *s2s_actions_new(int64_t n_microbatches, int64_t *n_actions);

#endif
