/* Memory without pages, and kernels that only count. */
#include "kernels/count/count.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

struct s2s_count *s2s_count_of(const struct s2s_queue *queue)
{
    return queue->wrapped;
}

static void add(struct s2s_queue *queue, enum s2s_entry entry, struct s2s_cost cost)
{
    struct s2s_tally_row *row = s2s_tally_row(&s2s_count_of(queue)->tally, entry, queue->layer);
    row->calls++;
    row->cost.flops += cost.flops;
    row->cost.read_bytes += cost.read_bytes;
    row->cost.written_bytes += cost.written_bytes;
}

/* ---- queue ---- */

static int count_open(struct s2s_queue *queue, int index)
{
    queue->handle = NULL;
    queue->status = 0;
    queue->lanes = omp_get_max_threads();
    queue->wrapped = s2s_xcalloc(1, sizeof(struct s2s_count));
    return 0;
}

static void release_block(struct s2s_count *count, size_t at)
{
    const struct s2s_count_block block = count->blocks[at];
    munmap(block.ptr, block.bytes ? block.bytes : 1);
    count->bytes -= block.bytes;
    count->blocks[at] = count->blocks[--count->n_blocks];
}

static void count_close(struct s2s_queue *queue)
{
    struct s2s_count *count = s2s_count_of(queue);
    if (!count)
        return;
    while (count->n_blocks > 0)
        release_block(count, count->n_blocks - 1);
    free(count->blocks);
    s2s_uploads_release(&count->uploads);
    s2s_tally_release(&count->tally);
    free(count);
    queue->wrapped = NULL;
}

static const char *count_status_text(int status)
{
    return status ? "unknown" : "no failure";
}

/* ---- memory ---- */

static void *count_alloc(struct s2s_queue *queue, size_t bytes)
{
    struct s2s_count *count = s2s_count_of(queue);
    void *ptr = mmap(NULL, bytes ? bytes : 1, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ptr == MAP_FAILED)
        return NULL;
    s2s_grow(&count->blocks, count->n_blocks, &count->cap_blocks, sizeof *count->blocks);
    count->blocks[count->n_blocks++] = (struct s2s_count_block){ptr, bytes};
    count->bytes += bytes;
    if (count->bytes > count->peak_bytes)
        count->peak_bytes = count->bytes;
    return ptr;
}

/* The block that holds ptr; n_blocks: none. */
static size_t block_of(const struct s2s_count *count, const void *ptr)
{
    size_t i = 0;
    for (; i < count->n_blocks; i++) {
        const char *begin = count->blocks[i].ptr, *at = ptr;
        if (at >= begin && at < begin + (count->blocks[i].bytes ? count->blocks[i].bytes : 1))
            break;
    }
    return i;
}

static void count_free(struct s2s_queue *queue, void *ptr)
{
    struct s2s_count *count = s2s_count_of(queue);
    if (!ptr)
        return;
    const size_t at = block_of(count, ptr);
    if (at == count->n_blocks || count->blocks[at].ptr != ptr)
        S2S_BUG("memory is freed that was not given");
    release_block(count, at);
}

/* Host memory is host memory. */
static void *count_alloc_host(struct s2s_queue *queue, size_t bytes)
{
    void *ptr = NULL;
    return posix_memalign(&ptr, 256, bytes ? bytes : 1) ? NULL : ptr;
}

static void count_free_host(struct s2s_queue *queue, void *ptr)
{
    free(ptr);
}

static void count_copy_in(struct s2s_queue *queue, void *dst, const void *host, size_t bytes)
{
    struct s2s_count *count = s2s_count_of(queue);
    add(queue, S2S_ENTRY_copy_in, (struct s2s_cost){.written_bytes = (double)bytes});
    if (block_of(count, host) == count->n_blocks)
        s2s_uploads_add(&count->uploads, dst, host, bytes);
}

static void count_copy_out(struct s2s_queue *queue, void *host, const void *src, size_t bytes)
{
    add(queue, S2S_ENTRY_copy_out, (struct s2s_cost){.read_bytes = (double)bytes});
    if (bytes > 0)
        memset(host, 0, bytes);
}

static void count_copy_out_async(struct s2s_queue *queue, void *host, const void *src, size_t bytes)
{
    add(queue, S2S_ENTRY_copy_out_async, (struct s2s_cost){.read_bytes = (double)bytes});
    if (bytes > 0)
        memset(host, 0, bytes);
}

static void count_zero(struct s2s_queue *queue, void *dst, size_t bytes)
{
    add(queue, S2S_ENTRY_zero, (struct s2s_cost){.written_bytes = (double)bytes});
}

static void count_sync(struct s2s_queue *queue)
{
    add(queue, S2S_ENTRY_sync, (struct s2s_cost){0});
}

static struct s2s_event *count_event_new(struct s2s_queue *queue)
{
    static char one;
    return (struct s2s_event *)&one;
}

static void count_event_pass(struct s2s_queue *queue, struct s2s_event *event)
{
}

/* ---- kernels ---- */

#define X(name, suffix, kind, mats) \
    static void count_##name(struct s2s_queue *queue, const struct s2s_k_##suffix *args) \
    { \
        add(queue, S2S_ENTRY_##name, s2s_cost_##name(args, &s2s_count_of(queue)->uploads)); \
    }
S2S_KERNELS(X)
#undef X

struct s2s_kernels s2s_count_over(const struct s2s_kernels *base)
{
    return (struct s2s_kernels){.name = base->name,
                                .logits_bytes = base->logits_bytes,
                                .has_bf16 = base->has_bf16,
                                .open = count_open,
                                .close = count_close,
                                .status_text = count_status_text,
                                .alloc = count_alloc,
                                .free = count_free,
                                .alloc_host = count_alloc_host,
                                .free_host = count_free_host,
                                .copy_in = count_copy_in,
                                .copy_out = count_copy_out,
                                .copy_in_async = count_copy_in,
                                .copy_out_async = count_copy_out_async,
                                .zero = count_zero,
                                .sync = count_sync,
                                .event_new = count_event_new,
                                .event_free = count_event_pass,
                                .event_record = count_event_pass,
                                .event_wait = count_event_pass,
#define PLAIN(name)
#define WORKSPACE(name) .name##_workspace = base->name##_workspace,
#define X(name, suffix, kind, mats) .name = count_##name, kind(name)
                                S2S_KERNELS(X)
#undef X
#undef PLAIN
#undef WORKSPACE
    };
}
