/*
 * Running statistics of batch norm with several data-parallel ranks. One process moves them
 * microbatch after microbatch; a rank sees its own microbatches only. So each microbatch's share is
 * kept apart, and at the end of the step every rank moves them by all of them in their order: the
 * same values on all ranks, and those of one process.
 */
#ifndef S2S_TRAIN_MOVING_H
#define S2S_TRAIN_MOVING_H

#include <stdint.h>

struct s2s_trainer;

struct train_moving {
    int64_t width;  /* values of all statistics; 0: nothing to do */
    int64_t n_rows; /* microbatches of the step, over all ranks */
    float *before;  /* [width] */
    float *rows;    /* [n_rows, width + 1]: the share of each, and 1 if it moved them */
};

void train_moving_begin(struct train_moving *m, struct s2s_trainer *t, int64_t n_rows);
/* Around microbatch `row` of the step. */
void train_moving_before(const struct train_moving *m, struct s2s_trainer *t);
void train_moving_after(struct train_moving *m, struct s2s_trainer *t, int64_t row);
/* Collective over dp. */
void train_moving_end(struct train_moving *m, struct s2s_trainer *t);
void train_moving_release(struct train_moving *m);

#endif
