/* A device: a table of kernels, the queues it runs on, and the memory that its operations share. */
#ifndef S2S_TENSOR_DEVICE_H
#define S2S_TENSOR_DEVICE_H

#include "kernels/kernels.h"
#include "lib/tensor/arena.h"

struct s2s_error;
struct s2s_tape;

struct s2s_device {
    const struct s2s_kernels *kernels;
    struct s2s_queue queue;             /* of computation */
    enum s2s_dtype dtype;               /* of activations, their gradients and working weights */
    struct s2s_arena scratch;           /* workspaces, in the order of the queue */
    struct s2s_arena_mark scratch_held; /* below it the scratch is somebody's still */
    struct s2s_pool pool;               /* gradients of activations */
    struct s2s_tape **children;         /* tapes that segments run on, one a depth of nesting */
    int n_children, depth;
    int64_t n_collectives; /* recorded or run by operations so far */
    /* NULL, or how to end a program whose device memory is out; does not return */
    void (*fail)(void *ctx, const struct s2s_error *err);
    void *fail_ctx;
};

/* The devices that there are, the default first; NULL ends the list. */
extern const char *const s2s_device_names[];
/* The table of a device, or of the default one (NULL). UNSUPPORTED: there is none of this name, or
 * its library is not in this build. */
int s2s_device_kernels(const struct s2s_kernels **kernels, const char *name, struct s2s_error *err);

/* name: one of s2s_device_names, or NULL for the default. UNSUPPORTED names those that this build
 * has. Gives: s2s_device_close. */
int s2s_device_open(struct s2s_device **device, const char *name, struct s2s_error *err);
/* The index-th of that name, counted round: that of a rank which is number `index` on its host. */
int s2s_device_open_at(struct s2s_device **device, const char *name, int index,
                       struct s2s_error *err);
/* The same over any table (kept): one that counts, or that looks at what another one does. */
int s2s_device_new(struct s2s_device **device, const struct s2s_kernels *kernels,
                   struct s2s_error *err);
/* Makes BF16 (or F32, as it opens) the type of activations, their gradients and working weights;
 * before anything is made on the device. UNSUPPORTED where its kernels have it not. */
int s2s_device_work_in(struct s2s_device *device, enum s2s_dtype dtype, struct s2s_error *err);
void s2s_device_close(struct s2s_device *device); /* NULL is a no-op */

/* Waits for the queue; a failure of a kernel is reported here, once for all before it. */
int s2s_device_sync(struct s2s_device *device, struct s2s_error *err);

/*
 * Ends the program (device->fail, or a message and status 1) because `bytes` more cannot be had;
 * names the layer that runs. An operation has no way back from there, and other ranks wait for it.
 */
_Noreturn void s2s_device_out_of_memory(struct s2s_device *device, size_t bytes);

#endif
