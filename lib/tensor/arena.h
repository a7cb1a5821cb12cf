/*
 * Memory that grows and is reset, never freed piecemeal: a fresh page costs more than arithmetic,
 * so a step reuses the pages of the step before it.
 */
#ifndef S2S_TENSOR_ARENA_H
#define S2S_TENSOR_ARENA_H

#include <stddef.h>

struct s2s_kernels;

struct s2s_arena_chunk {
    char *data;
    size_t cap;
};

struct s2s_arena {
    const struct s2s_kernels *kernels; /* whose memory; NULL: host memory */
    struct s2s_arena_chunk *chunks;
    size_t n_chunks, cap_chunks;
    size_t chunk_idx, offset;      /* where the next allocation is tried */
    size_t min_chunk_bytes;        /* of a new chunk */
    size_t used_bytes, peak_bytes; /* handed out now, and at most since init */
    size_t reserved_bytes;
};

/* A place to go back to; what was allocated after it is gone. */
struct s2s_arena_mark {
    size_t chunk_idx, offset, used_bytes;
};

void s2s_arena_init(struct s2s_arena *arena, const struct s2s_kernels *kernels,
                    size_t min_chunk_bytes);
/* 64-byte aligned, not initialised, never NULL (memory that is out ends the program). */
void *s2s_arena_alloc(struct s2s_arena *arena, size_t bytes);
struct s2s_arena_mark s2s_arena_mark(const struct s2s_arena *arena);
void s2s_arena_rewind(struct s2s_arena *arena, struct s2s_arena_mark mark);
void s2s_arena_reset(struct s2s_arena *arena);   /* keeps the memory */
void s2s_arena_release(struct s2s_arena *arena); /* frees the memory */

/*
 * Blocks that are given back in any order and reused by size: gradients of activations, which live
 * from their first writer to their reader. Backed by an arena.
 */
struct s2s_pool {
    struct s2s_arena arena;
    struct s2s_pool_block {
        void *ptr;
        size_t bytes;
    } * blocks; /* free ones */
    size_t n_blocks, cap_blocks;
};

void s2s_pool_init(struct s2s_pool *pool, const struct s2s_kernels *kernels);
void *s2s_pool_get(struct s2s_pool *pool, size_t bytes);
void s2s_pool_put(struct s2s_pool *pool, void *ptr, size_t bytes);
void s2s_pool_release(struct s2s_pool *pool);

#endif
