/*
 * Running statistics of batch norms, over a step. One process would move them microbatch after
 * microbatch; a rank sees its own microbatches alone, and a microbatch may be computed twice. So
 * the backward of a batch norm only leaves its statistics here, and at the end of the step every
 * rank moves by all of them, in the order of the microbatches: the same values on any number of
 * ranks.
 *
 *     s2s_running_begin(running, n_microbatches);
 *     tape->running = running;
 *     for (each microbatch i) { s2s_running_at(running, i); ... s2s_tape_backward(tape); }
 *     s2s_running_end(running, dp, factors);
 */
#ifndef S2S_TENSOR_RUNNING_H
#define S2S_TENSOR_RUNNING_H

#include "lib/tensor/param.h"

/* How a buffer moves: b = keep b + take seen; both 0: it stays. */
struct s2s_running_factor {
    float take, keep;
};

struct s2s_running {
    struct s2s_device *device;  /* kept */
    struct s2s_param **buffers; /* [n_buffers], those that the registry flags so */
    int64_t *at;                /* [n_buffers + 1] where each stands in a row */
    int64_t n_buffers, n_microbatches, microbatch;
    struct s2s_arena arena;
    float *rows;                        /* device memory [n_microbatches, at[n_buffers]] */
    struct s2s_running_factor *factors; /* [n_microbatches, n_buffers] */
};

/* Of a finished registry (kept). Gives: s2s_running_free. */
struct s2s_running *s2s_running_new(struct s2s_params *params);
void s2s_running_free(struct s2s_running *running); /* NULL is a no-op */

/* The step has so many microbatches on each rank; none left anything yet. */
void s2s_running_begin(struct s2s_running *running, int64_t n_microbatches);
void s2s_running_at(struct s2s_running *running, int64_t microbatch);
/* What this microbatch saw for a buffer [its numel], device memory. */
void s2s_running_see(struct s2s_running *running, const struct s2s_param *buffer, const float *seen,
                     struct s2s_running_factor factor);

/*
 * Moves the buffers by all rows of all ranks of dp (microbatch i of rank r is the (i size + r)-th).
 * factors [dp's size, n_microbatches, n_buffers]: what each rank has in running->factors.
 * Collective over dp.
 */
void s2s_running_end(struct s2s_running *running, const struct s2s_group *dp,
                     const struct s2s_running_factor *factors);

#endif
