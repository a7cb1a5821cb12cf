/*
 * A table for tests that wraps the CPU's as another device would: its memory cannot be touched but
 * by kernels and copies, and a kernel's matrices lie in memory that it gave.
 */
#ifndef GUARD_TABLE_H
#define GUARD_TABLE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/kernels.h"
#include "lib/base/error.h"
#include "lib/base/mem.h"

/* Blocks end at a page that is never there, as far as their alignment lets them. */
enum { GUARD_PAGE = 4096, GUARD_MAX = 256 };

struct guard {
    struct guard_block {
        char *pages, *data;
        size_t size, bytes; /* of the pages that are there; of the data */
    } blocks[GUARD_MAX];
    int n;
};

static inline struct guard *guard_of(const struct s2s_queue *queue)
{
    return (struct guard *)queue->wrapped;
}

static inline void guard_set(struct s2s_queue *queue, int protection)
{
    struct guard *g = guard_of(queue);
    for (int i = 0; i < g->n; i++)
        if (mprotect(g->blocks[i].pages, g->blocks[i].size, protection) != 0)
            S2S_BUG("mprotect");
}

static inline void guard_owns(struct s2s_queue *queue, const char *what, const void *ptr,
                              size_t bytes)
{
    const struct guard *g = guard_of(queue);
    const char *at = (const char *)ptr;
    for (int i = 0; i < g->n; i++) {
        const struct guard_block *b = &g->blocks[i];
        if (at >= b->data && at + bytes <= b->data + b->bytes)
            return;
    }
    S2S_BUG("%s is not in memory of the device", what);
}

static inline int guard_open(struct s2s_queue *queue, int index)
{
    int rc = s2s_kernels_cpu.open(queue, index);
    queue->wrapped = s2s_xcalloc(1, sizeof(struct guard));
    return rc;
}

static inline void guard_free(struct s2s_queue *queue, void *ptr)
{
    struct guard *g = guard_of(queue);
    if (!ptr)
        return;
    guard_owns(queue, "what is freed", ptr, 0);
    for (int i = 0; i < g->n; i++)
        if (g->blocks[i].data == ptr) {
            munmap(g->blocks[i].pages, g->blocks[i].size + GUARD_PAGE);
            g->blocks[i] = g->blocks[--g->n];
            return;
        }
}

static inline void guard_close(struct s2s_queue *queue)
{
    struct guard *g = guard_of(queue);
    while (g->n > 0)
        guard_free(queue, g->blocks[0].data);
    free(g);
    queue->wrapped = NULL;
}

static inline void *guard_alloc(struct s2s_queue *queue, size_t bytes)
{
    struct guard *g = guard_of(queue);
    size_t size = (bytes + 256 + GUARD_PAGE - 1) / GUARD_PAGE * GUARD_PAGE;
    char *pages =
        (char *)mmap(NULL, size + GUARD_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || g->n == GUARD_MAX)
        S2S_BUG("too many blocks");
    char *data = pages + (size - bytes) / 256 * 256;
    g->blocks[g->n++] = (struct guard_block){pages, data, size, bytes};
    return data;
}

static inline void *guard_alloc_host(struct s2s_queue *queue, size_t bytes)
{
    return s2s_kernels_cpu.alloc_host(queue, bytes);
}

static inline void guard_free_host(struct s2s_queue *queue, void *ptr)
{
    s2s_kernels_cpu.free_host(queue, ptr);
}

static inline void guard_copy_in(struct s2s_queue *queue, void *dst, const void *host, size_t bytes)
{
    guard_owns(queue, "the target of copy_in", dst, bytes);
    guard_set(queue, PROT_READ | PROT_WRITE);
    s2s_kernels_cpu.copy_in(queue, dst, host, bytes);
    guard_set(queue, PROT_NONE);
}

static inline void guard_copy_out(struct s2s_queue *queue, void *host, const void *src,
                                  size_t bytes)
{
    guard_owns(queue, "the source of copy_out", src, bytes);
    guard_set(queue, PROT_READ | PROT_WRITE);
    s2s_kernels_cpu.copy_out(queue, host, src, bytes);
    guard_set(queue, PROT_NONE);
}

static inline void guard_zero(struct s2s_queue *queue, void *dst, size_t bytes)
{
    guard_owns(queue, "the target of zero", dst, bytes);
    guard_set(queue, PROT_READ | PROT_WRITE);
    s2s_kernels_cpu.zero(queue, dst, bytes);
    guard_set(queue, PROT_NONE);
}

static inline void guard_sync(struct s2s_queue *queue)
{
}

static inline struct s2s_event *guard_event_new(struct s2s_queue *queue)
{
    return s2s_kernels_cpu.event_new(queue);
}

static inline void guard_event_pass(struct s2s_queue *queue, struct s2s_event *event)
{
}

static inline const char *guard_status_text(int status)
{
    return s2s_kernels_cpu.status_text(status);
}

#define MAT(field) \
    if (args->field.data) \
        guard_owns(queue, #field, args->field.data, 0);
#define X(name, suffix, kind, mats) \
    static inline void guard_##name(struct s2s_queue *queue, const struct s2s_k_##suffix *args) \
    { \
        mats guard_set(queue, PROT_READ | PROT_WRITE); \
        s2s_kernels_cpu.name(queue, args); \
        guard_set(queue, PROT_NONE); \
    }
S2S_KERNELS(X)
#undef X
#undef MAT

#define PLAIN(name, suffix)
#define WORKSPACE(name, suffix) \
    static inline size_t guard_##name##_workspace(const struct s2s_queue *queue, \
                                                  const struct s2s_k_##suffix *args) \
    { \
        return s2s_kernels_cpu.name##_workspace(queue, args); \
    }
#define X(name, suffix, kind, mats) kind(name, suffix)
S2S_KERNELS(X)
#undef X
#undef PLAIN
#undef WORKSPACE

static const struct s2s_kernels guard_table = {.name = "guard",
                                               .logits_bytes = 32 << 20,
                                               .open = guard_open,
                                               .close = guard_close,
                                               .status_text = guard_status_text,
                                               .alloc = guard_alloc,
                                               .free = guard_free,
                                               .alloc_host = guard_alloc_host,
                                               .free_host = guard_free_host,
                                               .copy_in = guard_copy_in,
                                               .copy_out = guard_copy_out,
                                               .copy_in_async = guard_copy_in,
                                               .copy_out_async = guard_copy_out,
                                               .zero = guard_zero,
                                               .sync = guard_sync,
                                               .event_new = guard_event_new,
                                               .event_free = guard_event_pass,
                                               .event_record = guard_event_pass,
                                               .event_wait = guard_event_pass,
#define PLAIN(name)
#define WORKSPACE(name) .name##_workspace = guard_##name##_workspace,
#define X(name, suffix, kind, mats) .name = guard_##name, kind(name)
                                               S2S_KERNELS(X)
#undef X
#undef PLAIN
#undef WORKSPACE
};

#endif
