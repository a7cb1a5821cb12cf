/*
 * The CUDA table: devices, queues, memory, and the entries, each behind a check of the element
 * types of its matrices. A queue is a stream with a workspace for products.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

extern "C" void s2s_bug(const char *file, int line, const char *fmt, ...);

static const char *const entry_names[] = {
#define X(name, suffix, kind, mats) #name,
    S2S_KERNELS(X)
#undef X
};

/* ---- queues ---- */

struct rt_stream *rt_stream_of(const struct s2s_queue *queue)
{
    return cuda_queue_of(queue)->stream;
}

static void table_close(struct s2s_queue *queue)
{
    struct cuda_queue *q = cuda_queue_of(queue);
    if (!q)
        return;
    if (q->stream)
        rt_stream_wait(q->stream);
    upload_release(&q->upload);
    blas_free(q->blas);
    rt_free(q->sums);
    rt_stream_free(q->stream);
    free(q);
    queue->handle = NULL;
}

/* Whether a variable of the environment begins with this character. */
static bool says(const char *name, char what)
{
    const char *text = getenv(name);
    return text && *text == what;
}

static int table_open(struct s2s_queue *queue, int index)
{
    struct cuda_queue *q = (struct cuda_queue *)calloc(1, sizeof *q);
    queue->handle = q;
    queue->lanes = 1;
    int rc = q ? rt_open(index, &q->device) : 1;
    if (rc == 0)
        rc = rt_stream_new(&q->stream);
    if (rc == 0)
        rc = blas_new(&q->blas, q->stream);
    queue->status = rc;
    if (rc) {
        table_close(queue);
        return rc;
    }
    q->tf32 = says("S2S_TF32", '1');
    /* asked for, as long as no GPU has run it */
    q->wgmma = q->device.major == 9 && q->device.minor == 0 && says("S2S_WGMMA", '1');
    return 0;
}

static const char *table_status_text(int status)
{
    static char text[200];
    if (status >= CUDA_ABSENT && status < CUDA_ABSENT + N_ENTRIES) {
        snprintf(text, sizeof text, "%s is not on the GPU yet", entry_names[status - CUDA_ABSENT]);
        return text;
    }
    const char *of_blas = blas_status_text(status);
    return of_blas ? of_blas : rt_status_text(status);
}

/* ---- memory ---- */

static void *table_alloc(struct s2s_queue *queue, size_t bytes)
{
    return rt_alloc(bytes);
}

static void table_free(struct s2s_queue *queue, void *ptr)
{
    rt_free(ptr);
}

static void *table_alloc_host(struct s2s_queue *queue, size_t bytes)
{
    return rt_alloc_host(bytes);
}

static void table_free_host(struct s2s_queue *queue, void *ptr)
{
    rt_free_host(ptr);
}

static void table_sync(struct s2s_queue *queue)
{
    rt_keep(queue, rt_stream_wait(rt_stream_of(queue)));
    upload_arrived(&cuda_queue_of(queue)->upload);
}

static void table_copy_in_async(struct s2s_queue *queue, void *dst, const void *host, size_t bytes)
{
    rt_keep(queue, rt_copy(rt_stream_of(queue), dst, host, bytes));
}

/* After a failure there is nothing to be had, and zeros do the least harm until it is seen. */
static void table_copy_out_async(struct s2s_queue *queue, void *host, const void *src, size_t bytes)
{
    if (queue->status && bytes)
        memset(host, 0, bytes);
    else
        rt_keep(queue, rt_copy(rt_stream_of(queue), host, src, bytes));
}

/* The caller may use its memory again at once: what fits goes through a copy of it. */
static void table_copy_in(struct s2s_queue *queue, void *dst, const void *host, size_t bytes)
{
    void *room = upload_room(&cuda_queue_of(queue)->upload, bytes);
    if (room && bytes)
        memcpy(room, host, bytes);
    table_copy_in_async(queue, dst, room ? room : host, bytes);
    if (!room)
        table_sync(queue);
}

static void table_copy_out(struct s2s_queue *queue, void *host, const void *src, size_t bytes)
{
    table_copy_out_async(queue, host, src, bytes);
    table_sync(queue);
}

static void table_zero(struct s2s_queue *queue, void *dst, size_t bytes)
{
    rt_keep(queue, rt_zero(rt_stream_of(queue), dst, bytes));
}

/* ---- events ---- */

static struct s2s_event *table_event_new(struct s2s_queue *queue)
{
    return (struct s2s_event *)rt_event_new();
}

static void table_event_free(struct s2s_queue *queue, struct s2s_event *event)
{
    rt_event_free((struct rt_event *)event);
}

static void table_event_record(struct s2s_queue *queue, struct s2s_event *event)
{
    rt_keep(queue, rt_event_record((struct rt_event *)event, rt_stream_of(queue)));
}

static void table_event_wait(struct s2s_queue *queue, struct s2s_event *event)
{
    rt_keep(queue, rt_event_wait((struct rt_event *)event, rt_stream_of(queue)));
}

/* ---- element types ---- */

static bool has_type(enum entry entry, enum s2s_dtype dtype)
{
    if (dtype == S2S_F64 || dtype == S2S_I32)
        return entry == ENTRY_copy || entry == ENTRY_fill;
    return dtype == S2S_F32 || dtype == S2S_BF16;
}

static void check_mat(enum entry entry, const char *field, const struct s2s_mat *mat)
{
    if (mat->data && !has_type(entry, mat->dtype))
        s2s_bug(__FILE__, __LINE__, "%s: %s is %s, which the GPU has not", entry_names[entry],
                field, s2s_dtype_name(mat->dtype));
}

#define MAT(field) check_mat(entry, #field, &args->field);
#define X(name, suffix, kind, mats) \
    static void checked_##name(struct s2s_queue *queue, const struct s2s_k_##suffix *args) \
    { \
        const enum entry entry = ENTRY_##name; \
        (void)entry; \
        mats cuda_##name(queue, args); \
    }
S2S_KERNELS(X)
#undef X
#undef MAT

/* ---- the table ---- */

static struct s2s_kernels make_table(void)
{
    struct s2s_kernels t = {};
#ifdef __CUDACC__
    t.name = "cuda";
#else
    t.name = "emu";
#endif
    t.has_bf16 = true;
    t.logits_bytes = 1 << 30; /* some thousands of rows keep the chip busy */
    t.open = table_open;
    t.close = table_close;
    t.status_text = table_status_text;
    t.alloc = table_alloc;
    t.free = table_free;
    t.alloc_host = table_alloc_host;
    t.free_host = table_free_host;
    t.copy_in = table_copy_in;
    t.copy_out = table_copy_out;
    t.copy_in_async = table_copy_in_async;
    t.copy_out_async = table_copy_out_async;
    t.zero = table_zero;
    t.sync = table_sync;
    t.event_new = table_event_new;
    t.event_free = table_event_free;
    t.event_record = table_event_record;
    t.event_wait = table_event_wait;
    t.collectives = cuda_collectives();
#define PLAIN(name)
#define WORKSPACE(name) t.name##_workspace = cuda_##name##_workspace;
#define X(name, suffix, kind, mats) \
    t.name = checked_##name; \
    kind(name)
    S2S_KERNELS(X)
#undef X
#undef PLAIN
#undef WORKSPACE
    return t;
}

/* What this library has for lib/tensor/device.c. table_bytes: what its table is there; NULL: it is
 * of another build. */
extern "C" __attribute__((visibility("default"))) const struct s2s_kernels *s2s_kernels_cuda(
    size_t table_bytes)
{
    static struct s2s_kernels table;
    if (!table.name)
        table = make_table();
    return table_bytes == sizeof table ? &table : NULL;
}
