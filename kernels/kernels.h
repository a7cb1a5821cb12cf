/*
 * The operations that touch tensor memory: a table of functions over raw buffers, one table a
 * backend. Nothing above this header reads or writes a tensor's memory any other way.
 *
 * Rules that hold for every entry:
 * - Arguments were checked by the caller. A kernel allocates nothing, does not wait (but for
 *   copy_in, copy_out and sync), and has no error to return: a backend that can fail keeps its
 *   first failure in queue->status, which the caller reads after sync. A matrix of an element type
 *   that a backend has not ends the program, with the names of the entry, the field and the type.
 * - A matrix is [rows, cols] with contiguous columns; `stride` elements lie between rows. Vectors
 *   are plain pointers of the type said in brackets.
 * - The matrices of a call are F32, or all of them BF16 where the table has_bf16; a field that is
 *   F32 beside matrices of BF16 says so. Elements of BF16 are widened, computed with in fp32, and
 *   rounded to nearest even once, where they are stored: sums too, whatever adds to them in a call.
 * - Sums are accumulated in fp32 or better, in an order that depends on shapes alone: on one device
 *   the same bytes every run, and on the CPU on any number of threads.
 * - Outputs do not overlap inputs unless said. `accumulate` adds to what is there; without it the
 *   old contents (also NaN) do not matter.
 * - Sizes of 0 are legal and write nothing (sums of nothing are 0).
 * - Structs of arguments stand in the headers of their families; kernels/list.h lists the entries.
 */
#ifndef S2S_KERNELS_H
#define S2S_KERNELS_H

#include "kernels/attention.h"
#include "kernels/collectives.h"
#include "kernels/conv.h"
#include "kernels/dense.h"
#include "kernels/list.h"
#include "kernels/loss.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/optim.h"
#include "kernels/random.h"
#include "kernels/rows.h"
#include "kernels/ssm.h"
#include "kernels/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct s2s_event; /* a place in a queue that another one can wait for; the backend's own */

struct s2s_kernels {
    const char *name;
    /* Logits that a loss should hold at a time: fewer than what a cache holds costs the products,
     * more costs memory. */
    size_t logits_bytes;
    bool has_bf16; /* a device may work in BF16: entries take matrices of it */

    /* Opens a queue of the index-th device, counted round, setting all of it but layer and wrapped:
     * 0, or a status for status_text. close waits for what was issued; a queue that is zero is a
     * no-op. */
    int (*open)(struct s2s_queue *queue, int index);
    void (*close)(struct s2s_queue *queue);
    const char *(*status_text)(int status); /* static; also of 0 and of unknown ones */

    /* Memory of the queue's device, for all queues of that device; alloc gives NULL when there is
     * none left, and aligns to 256 bytes. free waits for nothing: what was issued may no longer use
     * it. NULL to free is a no-op. */
    void *(*alloc)(struct s2s_queue *queue, size_t bytes);
    void (*free)(struct s2s_queue *queue, void *ptr);
    /* Host memory that copies reach fastest (pinned); as above. */
    void *(*alloc_host)(struct s2s_queue *queue, size_t bytes);
    void (*free_host)(struct s2s_queue *queue, void *ptr);

    /* Host memory to device and back; done when the call returns, but that a device may still have
     * to get what the host memory held (in). */
    void (*copy_in)(struct s2s_queue *queue, void *dst, const void *host, size_t bytes);
    void (*copy_out)(struct s2s_queue *queue, void *host, const void *src, size_t bytes);
    /* The same, in the order of the queue: the host memory stays as it is (in) or is not read (out)
     * until the queue has passed the copy. It is of alloc_host where the copy must not wait. */
    void (*copy_in_async)(struct s2s_queue *queue, void *dst, const void *host, size_t bytes);
    void (*copy_out_async)(struct s2s_queue *queue, void *host, const void *src, size_t bytes);
    void (*zero)(struct s2s_queue *queue, void *dst, size_t bytes);
    void (*sync)(struct s2s_queue *queue); /* waits for all that was issued */

    /* record marks the end of what the queue holds; after wait, this queue goes on only when the
     * other one has passed that mark. An event is recorded before it is waited for, and may be
     * recorded again. event_new gives NULL when there is no memory left. */
    struct s2s_event *(*event_new)(struct s2s_queue *queue);
    void (*event_free)(struct s2s_queue *queue, struct s2s_event *event);
    void (*event_record)(struct s2s_queue *queue, struct s2s_event *event);
    void (*event_wait)(struct s2s_queue *queue, struct s2s_event *event);

    /* How devices of this kind talk to each other; NULL: their memory is the host's. */
    const struct s2s_collectives *collectives;

    /* one member an entry of the list */
#define X(name, suffix, kind, mats) \
    void (*name)(struct s2s_queue * queue, const struct s2s_k_##suffix *args);
    S2S_KERNELS(X)
#undef X

    /* Bytes of workspace that a call with these arguments in this queue needs; plain C on the host
     * for every backend: data pointers are not read, and the device is not asked. */
#define PLAIN(name, suffix)
#define WORKSPACE(name, suffix) \
    size_t (*name##_workspace)(const struct s2s_queue *queue, const struct s2s_k_##suffix *args);
#define X(name, suffix, kind, mats) kind(name, suffix)
    S2S_KERNELS(X)
#undef X
#undef PLAIN
#undef WORKSPACE
};

/* The default table, always there. OpenMP threads; oneDNN or a CBLAS for dense products. */
extern const struct s2s_kernels s2s_kernels_cpu;

#ifdef __cplusplus
}
#endif

#endif
