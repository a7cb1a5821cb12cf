/*
 * The CPU table: its memory, and its entries, each behind a check of the element types of its
 * matrices. A queue is a number of threads and the instruction level of its kernels: everything is
 * done when a call returns, so an event has nothing to hold.
 */
#include <omp.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "lib/base/error.h"

static int cpu_open(struct s2s_queue *queue, int index)
{
    const struct s2s_kernels *entries = NULL;
    const int status = cpu_choose(&entries);
    queue->handle = (void *)entries;
    queue->status = status;
    queue->lanes = omp_get_max_threads();
    return status;
}

/* The kernels of the level of a queue. One that was not opened may be asked for workspaces, which
 * are the same at all levels. */
static const struct s2s_kernels *entries_of(const struct s2s_queue *queue)
{
    return queue->handle ? queue->handle : cpu_lowest();
}

static void cpu_close(struct s2s_queue *queue)
{
}

static const char *cpu_status_text(int status)
{
    const char *level = cpu_level_text(status);
    return level ? level : status ? "unknown" : "no failure";
}

static void cpu_copy_bytes(struct s2s_queue *queue, void *dst, const void *src, size_t bytes)
{
    if (bytes > 0)
        memcpy(dst, src, bytes);
}

static void cpu_zero(struct s2s_queue *queue, void *dst, size_t bytes)
{
    char *to = dst;
    const size_t block = 1 << 20;
#pragma omp parallel for num_threads(queue->lanes) schedule(static) if (bytes > 2 * block)
    for (size_t at = 0; at < bytes; at += block)
        memset(to + at, 0, bytes - at < block ? bytes - at : block);
}

static void cpu_sync(struct s2s_queue *queue)
{
}

static struct s2s_event *cpu_event_new(struct s2s_queue *queue)
{
    static char one;
    return (struct s2s_event *)&one;
}

static void cpu_event_pass(struct s2s_queue *queue, struct s2s_event *event)
{
}

/* ---- element types ---- */

/* All entries have F32. */
static bool has_type(const char *entry, enum s2s_dtype dtype)
{
    if (dtype == S2S_BF16 && strcmp(entry, "adamw") == 0)
        return true;
    if (dtype == S2S_BF16 || dtype == S2S_F64 || dtype == S2S_I32)
        return strcmp(entry, "copy") == 0 || strcmp(entry, "fill") == 0;
    return dtype == S2S_F32;
}

static void check_mat(const char *entry, const char *field, const struct s2s_mat *mat)
{
    if (mat->data && mat->dtype != S2S_F32 && !has_type(entry, mat->dtype))
        S2S_BUG("%s: %s is %s, which the CPU has not", entry, field, s2s_dtype_name(mat->dtype));
}

#define MAT(field) check_mat(entry, #field, &args->field);
#define PLAIN(name, suffix)
#define WORKSPACE(name, suffix) \
    static size_t name##_workspace(const struct s2s_queue *queue, \
                                   const struct s2s_k_##suffix *args) \
    { \
        return entries_of(queue)->name##_workspace(queue, args); \
    }
#define X(name, suffix, kind, mats) \
    static void checked_##name(struct s2s_queue *queue, const struct s2s_k_##suffix *args) \
    { \
        static const char entry[] __attribute__((unused)) = #name; \
        mats entries_of(queue)->name(queue, args); \
    } \
    kind(name, suffix)
S2S_KERNELS(X)
#undef X
#undef PLAIN
#undef WORKSPACE
#undef MAT

const struct s2s_kernels s2s_kernels_cpu = {.name = "cpu",
                                            /* about the third-level cache */
                                            .logits_bytes = 32 << 20,
                                            .open = cpu_open,
                                            .close = cpu_close,
                                            .status_text = cpu_status_text,
                                            .alloc = cpu_alloc,
                                            .free = cpu_free,
                                            .alloc_host = cpu_alloc,
                                            .free_host = cpu_free,
                                            .copy_in = cpu_copy_bytes,
                                            .copy_out = cpu_copy_bytes,
                                            .copy_in_async = cpu_copy_bytes,
                                            .copy_out_async = cpu_copy_bytes,
                                            .zero = cpu_zero,
                                            .sync = cpu_sync,
                                            .event_new = cpu_event_new,
                                            .event_free = cpu_event_pass,
                                            .event_record = cpu_event_pass,
                                            .event_wait = cpu_event_pass,
#define PLAIN(name)
#define WORKSPACE(name) .name##_workspace = name##_workspace,
#define X(name, suffix, kind, mats) .name = checked_##name, kind(name)
                                            S2S_KERNELS(X)
#undef X
#undef PLAIN
#undef WORKSPACE
};
