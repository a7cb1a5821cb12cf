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
    cpu_gemm_open();
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

#define IS(name) (strcmp(entry, #name) == 0)

/* Entries whose matrices are BF16 on a device that works in it; a new one says so here. */
CPU_INLINE bool works_in_bf16(const char *entry)
{
    return IS(gemm) || IS(gemm_grouped) || IS(axpby) || IS(colsum) || IS(reduce) || IS(transpose) ||
           IS(glu) || IS(glu_backward) || IS(embedding) || IS(embedding_backward) ||
           IS(gather_rows) || IS(scatter_rows) || IS(rows_sum) || IS(rows_sum_backward) ||
           IS(rows_max) || IS(rows_max_backward) || IS(rmsnorm) || IS(rmsnorm_backward) ||
           IS(layernorm) || IS(layernorm_backward) || IS(column_stats) || IS(batchnorm) ||
           IS(batchnorm_backward) || IS(rope) || IS(attention) || IS(attention_backward) ||
           IS(attention_merge) || IS(relattention) || IS(relattention_backward) || IS(conv2d) ||
           IS(conv2d_backward) || IS(dwconv) || IS(dwconv_backward) || IS(conv1d) ||
           IS(conv1d_backward) || IS(ssd) || IS(ssd_backward) || IS(gatednorm) ||
           IS(gatednorm_backward) || IS(xent_gradient) || IS(sqdist) || IS(adamw) || IS(dropout);
}

/* Fields that are F32 beside matrices of BF16: always, or as the caller likes. */
CPU_INLINE bool stays_f32(const char *entry, const char *field)
{
    return (IS(gemm) && strcmp(field, "bias") == 0) ||
           (IS(embedding_backward) && strcmp(field, "dtable") == 0) ||
           (IS(xent_gradient) && strcmp(field, "logits") == 0);
}

CPU_INLINE bool may_be_f32(const char *entry, const char *field)
{
    return stays_f32(entry, field) || ((IS(gemm) || IS(gemm_grouped)) && strcmp(field, "c") == 0) ||
           (IS(axpby) && strcmp(field, "x") == 0) || IS(adamw);
}

static _Noreturn void refuse(const char *entry, const char *field, const struct s2s_mat *mat)
{
    S2S_BUG("%s: %s is %s, which the CPU has not", entry, field, s2s_dtype_name(mat->dtype));
}

/* *seen: the type that the matrices before this one have in common. */
CPU_INLINE void check_mat(const char *entry, const char *field, const struct s2s_mat *mat,
                          enum s2s_dtype *seen)
{
    const bool converts = IS(copy) || IS(fill);
    if (!mat->data)
        return;
    if (mat->dtype != S2S_F32 && !(mat->dtype == S2S_BF16 && works_in_bf16(entry)) &&
        !(converts && (mat->dtype == S2S_BF16 || mat->dtype == S2S_F64 || mat->dtype == S2S_I32)))
        refuse(entry, field, mat);
    if (converts || (mat->dtype == S2S_F32 && may_be_f32(entry, field)))
        return;
    if (stays_f32(entry, field) || (*seen && *seen != mat->dtype))
        refuse(entry, field, mat);
    *seen = mat->dtype;
}

#define MAT(field) check_mat(entry, #field, &args->field, &seen);
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
        const char *entry __attribute__((unused)) = #name; \
        enum s2s_dtype seen __attribute__((unused)) = S2S_DTYPE_NONE; \
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
                                            .has_bf16 = true,
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
