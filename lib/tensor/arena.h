/*
 * Memory that grows and is reset, never freed piecemeal: a fresh page costs more than arithmetic,
 * so a step reuses the pages of the step before it.
 */
#ifndef S2S_TENSOR_ARENA_H
#define S2S_TENSOR_ARENA_H

#include <stddef.h>

struct s2s_device;

struct s2s_arena_chunk {
    char *data;
    size_t cap;
};

struct s2s_arena {
    struct s2s_device *device; /* whose memory; NULL: host memory */
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

/* device is kept; NULL: host memory. */
void s2s_arena_init(struct s2s_arena *arena, struct s2s_device *device, size_t min_chunk_bytes);
/* Aligned to 256 bytes (host memory to 64), not initialised, never NULL: without memory the program
 * ends with a message that names the layer (s2s_device_out_of_memory). */
void *s2s_arena_alloc(struct s2s_arena *arena, size_t bytes);
struct s2s_arena_mark s2s_arena_mark(const struct s2s_arena *arena);
void s2s_arena_rewind(struct s2s_arena *arena, struct s2s_arena_mark mark);
/* Keeps the memory; chunks that an arena grew by are replaced by one that has room for the peak, so
 * that nothing is lost at their ends. */
void s2s_arena_reset(struct s2s_arena *arena);
void s2s_arena_release(struct s2s_arena *arena); /* frees the memory */

/*
 * Blocks that are given back in any order: gradients of activations, which live from their first
 * writer to their reader. Free neighbours are joined, and when no block is in use the pool begins
 * anew, so what it holds does not depend on the sizes of the steps before.
 */
struct s2s_pool {
    struct s2s_device *device; /* kept */
    struct s2s_arena_chunk *chunks;
    size_t n_chunks, cap_chunks;
    struct s2s_pool_block {
        char *data;
        size_t bytes;
    } * blocks; /* free ones, by chunk and address */
    size_t n_blocks, cap_blocks;
    size_t used_bytes, peak_bytes, reserved_bytes;
};

void s2s_pool_init(struct s2s_pool *pool, struct s2s_device *device);
/* As s2s_arena_alloc. */
void *s2s_pool_get(struct s2s_pool *pool, size_t bytes);
void s2s_pool_put(struct s2s_pool *pool, void *ptr, size_t bytes);
void s2s_pool_release(struct s2s_pool *pool);

#endif
