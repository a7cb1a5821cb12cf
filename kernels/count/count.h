/*
 * A table that computes nothing: it adds up what the calls would cost, and how much memory is
 * asked for. Running an unchanged step on it tells before a run what the run will need, in
 * milliseconds and for devices that this machine has not.
 *
 *     struct s2s_kernels table = s2s_count_over(&s2s_kernels_cpu);
 *     s2s_device_new(&device, &table, err);             // the table outlives the device
 *     device->queue.lanes = 2;                          // of the device that is planned
 *     ...                                               // forward, backward, optimizer
 *     const struct s2s_count *count = s2s_count_of(&device->queue);
 *
 * Its memory is addresses alone: whoever touches it, instead of handing it to a kernel, ends with a
 * fault. What is read back is zeros, which a step takes for a loss and a norm of 0.
 */
#ifndef S2S_COUNT_COUNT_H
#define S2S_COUNT_COUNT_H

#include "kernels/count/tally.h"

struct s2s_count_block {
    void *ptr;
    size_t bytes;
};

struct s2s_count {
    struct s2s_tally tally;
    size_t bytes, peak_bytes;       /* of device memory: in use now, and at most so far */
    struct s2s_count_block *blocks; /* [n_blocks] */
    size_t n_blocks, cap_blocks;
    struct s2s_uploads uploads;
};

/* A table with the workspaces and the name of the memory of `base`, whose device is not opened. */
struct s2s_kernels s2s_count_over(const struct s2s_kernels *base);
/* What was counted; lent until the queue is closed. The tally is the caller's to reset. */
struct s2s_count *s2s_count_of(const struct s2s_queue *queue);

#endif
