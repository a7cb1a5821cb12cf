/* rt.h on the CPU: device memory is host memory, and everything is done when a call returns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/rt.h"

int rt_open(int index, struct rt_device *device)
{
    memset(device, 0, sizeof *device);
    snprintf(device->name, sizeof device->name, "emulated");
    device->bytes = (size_t)1 << 34;
    device->multiprocessors = 2;
    device->major = 8;
    device->shared_bytes = 99 << 10;
    return index == 0 ? 0 : 1;
}

const char *rt_status_text(int status)
{
    return status ? "unknown" : "no failure";
}

int rt_stream_new(struct rt_stream **stream)
{
    *stream = (struct rt_stream *)malloc(1);
    return *stream ? 0 : 1;
}

void rt_stream_free(struct rt_stream *stream)
{
    free(stream);
}

int rt_stream_wait(struct rt_stream *stream)
{
    return 0;
}

void *rt_alloc(size_t bytes)
{
    void *ptr = NULL;
    return posix_memalign(&ptr, 256, bytes ? bytes : 1) ? NULL : ptr;
}

void rt_free(void *ptr)
{
    free(ptr);
}

void *rt_alloc_host(size_t bytes)
{
    return rt_alloc(bytes);
}

void rt_free_host(void *ptr)
{
    free(ptr);
}

int rt_copy(struct rt_stream *stream, void *dst, const void *src, size_t bytes)
{
    if (bytes)
        memcpy(dst, src, bytes);
    return 0;
}

int rt_zero(struct rt_stream *stream, void *dst, size_t bytes)
{
    if (bytes)
        memset(dst, 0, bytes);
    return 0;
}

struct rt_event *rt_event_new(void)
{
    return (struct rt_event *)malloc(1);
}

void rt_event_free(struct rt_event *event)
{
    free(event);
}

int rt_event_record(struct rt_event *event, struct rt_stream *stream)
{
    return 0;
}

int rt_event_wait(struct rt_event *event, struct rt_stream *stream)
{
    return 0;
}

int rt_before_launch(const void *kernel, size_t shared_bytes)
{
    return 0;
}

int rt_after_launch(void)
{
    return 0;
}
