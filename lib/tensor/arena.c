#include "lib/tensor/arena.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "lib/base/error.h"
#include "lib/base/mem.h"

enum { ALIGN = 64 };

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

void s2s_arena_init(struct s2s_arena *arena, const struct s2s_kernels *kernels,
                    size_t min_chunk_bytes)
{
    *arena = (struct s2s_arena){.kernels = kernels, .min_chunk_bytes = min_chunk_bytes};
}

static void add_chunk(struct s2s_arena *arena, size_t bytes)
{
    /* growing with what is there keeps the number of chunks logarithmic */
    size_t cap = bytes;
    if (cap < arena->min_chunk_bytes)
        cap = arena->min_chunk_bytes;
    if (cap < arena->reserved_bytes / 4)
        cap = round_up(arena->reserved_bytes / 4);
    s2s_grow(&arena->chunks, arena->n_chunks, &arena->cap_chunks, sizeof *arena->chunks);
    void *data = arena->kernels ? arena->kernels->alloc(cap) : s2s_xalloc_aligned(cap);
    if (!data && cap > bytes)
        data = arena->kernels->alloc(cap = bytes);
    if (!data)
        S2S_BUG("out of device memory: %zu bytes more than the %zu that are reserved", bytes,
                arena->reserved_bytes);
    arena->chunks[arena->n_chunks++] = (struct s2s_arena_chunk){data, cap};
    arena->reserved_bytes += cap;
}

void *s2s_arena_alloc(struct s2s_arena *arena, size_t bytes)
{
    bytes = round_up(bytes ? bytes : 1);
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

void s2s_arena_reset(struct s2s_arena *arena)
{
    s2s_arena_rewind(arena, (struct s2s_arena_mark){0});
}

void s2s_arena_release(struct s2s_arena *arena)
{
    for (size_t i = 0; i < arena->n_chunks; i++) {
        if (arena->kernels)
            arena->kernels->free(arena->chunks[i].data);
        else
            free(arena->chunks[i].data);
    }
    free(arena->chunks);
    s2s_arena_init(arena, arena->kernels, arena->min_chunk_bytes);
}

void s2s_pool_init(struct s2s_pool *pool, const struct s2s_kernels *kernels)
{
    *pool = (struct s2s_pool){0};
    s2s_arena_init(&pool->arena, kernels, 1 << 20);
}

void *s2s_pool_get(struct s2s_pool *pool, size_t bytes)
{
    bytes = round_up(bytes ? bytes : 1);
    /* the smallest block that fits without wasting more than an eighth; latest first, as it is the
     * one still in the cache */
    size_t best = pool->n_blocks;
    for (size_t i = pool->n_blocks; i-- > 0;) {
        size_t have = pool->blocks[i].bytes;
        if (have < bytes || have > bytes + bytes / 8)
            continue;
        if (best == pool->n_blocks || have < pool->blocks[best].bytes)
            best = i;
        if (have == bytes)
            break;
    }
    if (best == pool->n_blocks)
        return s2s_arena_alloc(&pool->arena, bytes);
    void *ptr = pool->blocks[best].ptr;
    memmove(pool->blocks + best, pool->blocks + best + 1,
            (--pool->n_blocks - best) * sizeof *pool->blocks);
    return ptr;
}

void s2s_pool_put(struct s2s_pool *pool, void *ptr, size_t bytes)
{
    s2s_grow(&pool->blocks, pool->n_blocks, &pool->cap_blocks, sizeof *pool->blocks);
    pool->blocks[pool->n_blocks].ptr = ptr;
    pool->blocks[pool->n_blocks++].bytes = round_up(bytes ? bytes : 1);
}

void s2s_pool_release(struct s2s_pool *pool)
{
    s2s_arena_release(&pool->arena);
    free(pool->blocks);
    pool->blocks = NULL;
    pool->n_blocks = pool->cap_blocks = 0;
}
