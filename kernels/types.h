/* What the arguments of every kernel are made of: matrices, and the queue that kernels run in. */
#ifndef S2S_KERNELS_TYPES_H
#define S2S_KERNELS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

/* Where kernels run, in the order they were issued. Opened by a table (struct s2s_kernels), and
 * then good for that table alone. */
struct s2s_queue {
    void *handle; /* the backend's own */
    int status;   /* 0, or the backend's first failure (status_text says what it was) */
    /* Parts that the backend divides work into, each with a workspace of its own where one is
     * needed; never part of a result. The CPU's threads, as many as OpenMP had at the opening. Who
     * changes it does so between calls of which one asks for a workspace and one uses it. */
    int lanes;
    const char *layer; /* whose kernels are being issued, for reports; the caller's, may be NULL */
    void *wrapped;     /* of a table that wraps another one: its own */
};

struct s2s_mat {
    void *data;
    int64_t stride; /* elements between rows */
    enum s2s_dtype dtype;
};

#endif
