/*
 * Calls of the runtime that kernels' host code makes, twice: rt_cuda.cu over cudart, and emu/rt.cc
 * on the CPU. Nothing else of kernels/cuda calls cudart, so that all of it compiles without it.
 *
 * A call that can fail gives a status: 0, or a number that rt_status_text knows. What is issued to
 * a stream runs in its order and may fail later: the first failure is the status of rt_stream_wait.
 */
#ifndef S2S_KERNELS_CUDA_RT_H
#define S2S_KERNELS_CUDA_RT_H

#include <stddef.h>

#include "kernels/cuda/ptx.h"
#include "kernels/types.h"

struct rt_stream;
struct rt_event;

struct rt_device {
    char name[256];
    char id[32];  /* which it is of its host: the place on the bus */
    size_t bytes; /* of its memory */
    int multiprocessors, major, minor;
    int shared_bytes; /* that a block may have */
};

/* Takes the index-th device, counted round, for the calls of this thread, and says what it is. */
int rt_open(int index, struct rt_device *device);
const char *rt_status_text(int status); /* static; also of 0 and of unknown ones */

int rt_stream_new(struct rt_stream **stream);
/* For what runs beside the others, and before them where both could run. */
int rt_stream_new_beside(struct rt_stream **stream);
void rt_stream_free(struct rt_stream *stream); /* waits first; NULL is a no-op */
int rt_stream_wait(struct rt_stream *stream);

/* NULL when there is none left; of the device, aligned to 256 bytes; of the host, pinned. */
void *rt_alloc(size_t bytes);
void rt_free(void *ptr);
void *rt_alloc_host(size_t bytes);
void rt_free_host(void *ptr);

/* In the order of the stream, any way between host and device. */
int rt_copy(struct rt_stream *stream, void *dst, const void *src, size_t bytes);
int rt_zero(struct rt_stream *stream, void *dst, size_t bytes);

/* NULL when there is no memory left. */
struct rt_event *rt_event_new(void);
void rt_event_free(struct rt_event *event);
int rt_event_record(struct rt_event *event, struct rt_stream *stream);
int rt_event_wait(struct rt_event *event, struct rt_stream *stream);
/* From any thread: whether a stream is past the last record. A failure counts: sync tells it. */
bool rt_event_passed(struct rt_event *event);

/*
 * What cp.async.bulk.tensor wants to know of a tensor of bf16 in the device's memory: planes of a
 * matrix side by side, [rows, planes, cols], of which it brings boxes of so many columns of one
 * plane and so many rows, with the chunks of their lines permuted for lines of `swizzle` bytes (128
 * or 64). An argument of a kernel. cols, row_stride and data: multiples of 16 bytes.
 */
struct alignas(64) tensor_map {
    uint64_t words[16];
};
struct tensor_shape {
    const void *data;
    int64_t rows, planes, cols, row_stride; /* row_stride: elements */
    int box_rows, box_cols, swizzle;
};
int rt_tensor_map(struct tensor_map *map, const struct tensor_shape *shape);

/* Before a launch: lets the kernel have so much dynamic shared memory. After it: was it taken? */
int rt_before_launch(const void *kernel, size_t shared_bytes);
int rt_after_launch(void);

/* The stream of an open queue; keeps the queue's first failure. */
struct rt_stream *rt_stream_of(const struct s2s_queue *queue);
static inline void rt_keep(struct s2s_queue *queue, int status)
{
    if (queue->status == 0)
        queue->status = status;
}

/*
 * Runs kernel(...) in the queue: LAUNCH(queue, kernel, grid, block, shared_bytes, arguments..). A
 * kernel with several template arguments stands in parentheses. A grid without blocks is no
 * launch, and after a failure there is none: what was to be there is not.
 */
#ifdef __CUDACC__
/* Shared memory is rounded up to 16 bytes: the compiler may widen the last load up to there. */
#define LAUNCH(queue, kernel, grid, block, shared, ...) \
    do { \
        const dim3 grid_ = grid; \
        const size_t shared_ = ((size_t)(shared) + 15) / 16 * 16; \
        if (grid_.x == 0 || grid_.y == 0 || grid_.z == 0 || (queue)->status) \
            break; \
        rt_keep(queue, rt_before_launch((const void *)(kernel), shared_)); \
        (kernel)<<<grid_, block, shared_, (cudaStream_t)rt_stream_of(queue)>>>(__VA_ARGS__); \
        rt_keep(queue, rt_after_launch()); \
    } while (0)
#else
#define LAUNCH(queue, kernel, grid, block, shared, ...) \
    do { \
        const dim3 grid_ = grid; \
        if (grid_.x == 0 || grid_.y == 0 || grid_.z == 0 || (queue)->status) \
            break; \
        emu::launch(#kernel, kernel, grid_, block, shared, __VA_ARGS__); \
    } while (0)
#endif

#endif
