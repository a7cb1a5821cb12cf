/* Allocates many small objects that are freed together: names, shapes, nodes of a tree. */
#ifndef S2S_BASE_BLOCKS_H
#define S2S_BASE_BLOCKS_H

#include <stddef.h>

struct s2s_blocks {
    struct s2s_block *last; /* NULL: none yet */
    size_t used_bytes;      /* of all objects, most of them rounded up to 8 */
};

/* Allocates len bytes, zeroed, 8-byte aligned; ends the program if out of memory. */
void *s2s_blocks_alloc(struct s2s_blocks *blocks, size_t len_bytes);
/* A copy of len bytes with a terminating NUL. */
char *s2s_blocks_text(struct s2s_blocks *blocks, const char *text, size_t len);
/* How far the blocks are filled, and a way back to that: it frees all that was allocated since. */
struct s2s_blocks_mark {
    struct s2s_block *last, *after; /* after: the one that follows it */
    size_t used, cap, used_bytes;
};
struct s2s_blocks_mark s2s_blocks_mark(const struct s2s_blocks *blocks);
void s2s_blocks_rewind(struct s2s_blocks *blocks, const struct s2s_blocks_mark *mark);
/* Frees all objects; the blocks are empty and can be used again. */
void s2s_blocks_release(struct s2s_blocks *blocks);

#endif
