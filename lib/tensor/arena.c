/* Arenas: memory handed out in order, and taken back all at once. */
#include "lib/tensor/arena.h"

#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/tensor/device.h"

/* Device memory is aligned to what wide loads and copies of a GPU want, headers to a cache line. */
static size_t round_up(const struct s2s_device *device, size_t bytes)
{
    const size_t align = device ? 256 : 64;
    return bytes ? (bytes + align - 1) / align * align : align;
}

void s2s_arena_init(struct s2s_arena *arena, struct s2s_device *device, size_t min_chunk_bytes)
{
    *arena = (struct s2s_arena){.device = device, .min_chunk_bytes = min_chunk_bytes};
}

static void *chunk_alloc(struct s2s_device *device, size_t bytes)
{
    return device ? device->kernels->alloc(&device->queue, bytes) : s2s_xalloc_aligned(bytes);
}

static void chunk_free(struct s2s_device *device, void *data)
{
    if (device)
        device->kernels->free(&device->queue, data);
    else
        free(data);
}

static void add_chunk(struct s2s_arena *arena, size_t bytes)
{
    /* growing with what is there keeps the number of chunks logarithmic */
    size_t cap = bytes;
    if (cap < arena->min_chunk_bytes)
        cap = arena->min_chunk_bytes;
    if (cap < arena->reserved_bytes / 4)
        cap = round_up(arena->device, arena->reserved_bytes / 4);
    void *data = chunk_alloc(arena->device, cap);
    if (!data && cap > bytes)
        data = chunk_alloc(arena->device, cap = bytes);
    if (!data)
        s2s_device_out_of_memory(arena->device, bytes);
    s2s_grow(&arena->chunks, arena->n_chunks, &arena->cap_chunks, sizeof *arena->chunks);
    arena->chunks[arena->n_chunks++] = (struct s2s_arena_chunk){data, cap};
    arena->reserved_bytes += cap;
}

void *s2s_arena_alloc(struct s2s_arena *arena, size_t bytes)
{
    bytes = round_up(arena->device, bytes);
    while (arena->chunk_idx < arena->n_chunks &&
           arena->chunks[arena->chunk_idx].cap - arena->offset < bytes) {
        arena->chunk_idx++;
        arena->offset = 0;
    }
    if (arena->chunk_idx == arena->n_chunks)
        add_chunk(arena, bytes);
    void *ptr = arena->chunks[arena->chunk_idx].data + arena->offset;
    arena->offset += bytes;
    arena->used_bytes += bytes;
    if (arena->used_bytes > arena->peak_bytes)
        arena->peak_bytes = arena->used_bytes;
    return ptr;
}

struct s2s_arena_mark s2s_arena_mark(const struct s2s_arena *arena)
{
    return (struct s2s_arena_mark){arena->chunk_idx, arena->offset, arena->used_bytes};
}

void s2s_arena_rewind(struct s2s_arena *arena, struct s2s_arena_mark mark)
{
    arena->chunk_idx = mark.chunk_idx;
    arena->offset = mark.offset;
    arena->used_bytes = mark.used_bytes;
}

/* What was issued may still use memory that is given back. */
static void wait_for_users(struct s2s_device *device)
{
    if (device)
        device->kernels->sync(&device->queue);
}

static void free_chunks(struct s2s_arena *arena)
{
    for (size_t i = 0; i < arena->n_chunks; i++)
        chunk_free(arena->device, arena->chunks[i].data);
    arena->n_chunks = 0;
    arena->reserved_bytes = 0;
}

void s2s_arena_reset(struct s2s_arena *arena)
{
    s2s_arena_rewind(arena, (struct s2s_arena_mark){0});
    if (arena->n_chunks < 2)
        return;
    wait_for_users(arena->device);
    free_chunks(arena);
    add_chunk(arena, arena->peak_bytes);
}

void s2s_arena_release(struct s2s_arena *arena)
{
    free_chunks(arena);
    free(arena->chunks);
    s2s_arena_init(arena, arena->device, arena->min_chunk_bytes);
}

/* ---- pool ---- */

enum { POOL_MIN_CHUNK = 1 << 20 };

void s2s_pool_init(struct s2s_pool *pool, struct s2s_device *device)
{
    *pool = (struct s2s_pool){.device = device};
}

/* Puts a free block where its address belongs. */
static void insert_block(struct s2s_pool *pool, size_t at, char *data, size_t bytes)
{
    s2s_grow(&pool->blocks, pool->n_blocks, &pool->cap_blocks, sizeof *pool->blocks);
    for (size_t i = pool->n_blocks++; i > at; i--)
        pool->blocks[i] = pool->blocks[i - 1];
    pool->blocks[at] = (struct s2s_pool_block){data, bytes};
}

static void remove_block(struct s2s_pool *pool, size_t at)
{
    pool->n_blocks--;
    for (size_t i = at; i < pool->n_blocks; i++)
        pool->blocks[i] = pool->blocks[i + 1];
}

/* Index of the first free block that does not stand before data. */
static size_t place_of(const struct s2s_pool *pool, const char *data)
{
    size_t at = 0;
    while (at < pool->n_blocks && pool->blocks[at].data < data)
        at++;
    return at;
}

static void add_pool_chunk(struct s2s_pool *pool, size_t bytes)
{
    size_t cap = bytes > POOL_MIN_CHUNK ? bytes : POOL_MIN_CHUNK;
    char *data = chunk_alloc(pool->device, cap);
    if (!data)
        s2s_device_out_of_memory(pool->device, cap);
    s2s_grow(&pool->chunks, pool->n_chunks, &pool->cap_chunks, sizeof *pool->chunks);
    pool->chunks[pool->n_chunks++] = (struct s2s_arena_chunk){data, cap};
    pool->reserved_bytes += cap;
    insert_block(pool, place_of(pool, data), data, cap);
}

static void free_pool_chunks(struct s2s_pool *pool)
{
    for (size_t i = 0; i < pool->n_chunks; i++)
        chunk_free(pool->device, pool->chunks[i].data);
    pool->n_chunks = pool->n_blocks = 0;
    pool->reserved_bytes = 0;
}

/* The smallest free block that has room; the lowest of equals. n_blocks: none. */
static size_t best_fit(const struct s2s_pool *pool, size_t bytes)
{
    size_t best = pool->n_blocks;
    for (size_t i = 0; i < pool->n_blocks; i++)
        if (pool->blocks[i].bytes >= bytes &&
            (best == pool->n_blocks || pool->blocks[i].bytes < pool->blocks[best].bytes))
            best = i;
    return best;
}

void *s2s_pool_get(struct s2s_pool *pool, size_t bytes)
{
    bytes = round_up(pool->device, bytes);
    /* nothing is in use: one chunk in place of those that it grew by */
    if (pool->used_bytes == 0 && pool->n_chunks > 1) {
        size_t all = pool->reserved_bytes;
        wait_for_users(pool->device);
        free_pool_chunks(pool);
        add_pool_chunk(pool, all > bytes ? all : bytes);
    }
    size_t at = best_fit(pool, bytes);
    if (at == pool->n_blocks) {
        add_pool_chunk(pool, bytes);
        at = best_fit(pool, bytes);
    }
    struct s2s_pool_block *block = pool->blocks + at;
    char *data = block->data;
    block->data += bytes;
    block->bytes -= bytes;
    if (block->bytes == 0)
        remove_block(pool, at);
    pool->used_bytes += bytes;
    if (pool->used_bytes > pool->peak_bytes)
        pool->peak_bytes = pool->used_bytes;
    return data;
}

/* Do the two addresses stand in one chunk? */
static int same_chunk(const struct s2s_pool *pool, const char *a, const char *b)
{
    for (size_t i = 0; i < pool->n_chunks; i++) {
        const char *begin = pool->chunks[i].data, *end = begin + pool->chunks[i].cap;
        if (a >= begin && a < end)
            return b >= begin && b < end;
    }
    return 0;
}

void s2s_pool_put(struct s2s_pool *pool, void *ptr, size_t bytes)
{
    char *data = ptr;
    bytes = round_up(pool->device, bytes);
    pool->used_bytes -= bytes;
    size_t at = place_of(pool, data);
    insert_block(pool, at, data, bytes);
    struct s2s_pool_block *block = pool->blocks + at;
    if (at + 1 < pool->n_blocks && data + bytes == block[1].data &&
        same_chunk(pool, data, block[1].data)) {
        block->bytes += block[1].bytes;
        remove_block(pool, at + 1);
    }
    if (at > 0 && block[-1].data + block[-1].bytes == data &&
        same_chunk(pool, block[-1].data, data)) {
        block[-1].bytes += block->bytes;
        remove_block(pool, at);
    }
}

void s2s_pool_release(struct s2s_pool *pool)
{
    free_pool_chunks(pool);
    free(pool->chunks);
    free(pool->blocks);
    s2s_pool_init(pool, pool->device);
}
