/* A device: a table of kernels, where they run, and the memory that its operations share. */
#ifndef S2S_TENSOR_DEVICE_H
#define S2S_TENSOR_DEVICE_H

#include "kernels/kernels.h"
#include "lib/tensor/arena.h"

struct s2s_error;

enum s2s_device_kind { S2S_DEVICE_CPU };

struct s2s_device {
    enum s2s_device_kind kind;
    int index;
    const struct s2s_kernels *kernels;
    struct s2s_queue queue;
    struct s2s_arena scratch; /* of one operation: mark, allocate, rewind */
    struct s2s_pool pool;     /* gradients of activations */
};

/* name is "cpu". UNSUPPORTED for a device that this build has not. Gives: s2s_device_close. */
int s2s_device_open(struct s2s_device **device, const char *name, struct s2s_error *err);
void s2s_device_close(struct s2s_device *device); /* NULL is a no-op */

/* Waits for the queue; a failure of a kernel is reported here, once for all before it. */
int s2s_device_sync(struct s2s_device *device, struct s2s_error *err);

/* Bytes at most in use so far by scratch and pool (tapes and parameters count their own). */
size_t s2s_device_peak_bytes(const struct s2s_device *device);

#endif
