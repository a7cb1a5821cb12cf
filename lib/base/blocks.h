/* Many small pieces of memory that are freed together: names, shapes, nodes of a tree. */
#ifndef S2S_BASE_BLOCKS_H
#define S2S_BASE_BLOCKS_H

#include <stddef.h>

struct s2s_blocks {
    struct s2s_block *last; /* NULL: none yet */
    size_t used_bytes;      /* of all pieces, most rounded up to 8 */
};

/* Zeroed, 8-byte aligned; ends the program when memory is out. */
void *s2s_blocks_alloc(struct s2s_blocks *blocks, size_t len_bytes);
/* A copy of len bytes and a zero byte. */
char *s2s_blocks_text(struct s2s_blocks *blocks, const char *text, size_t len);
/* Takes all pieces of `from`, which is empty then. */
void s2s_blocks_take(struct s2s_blocks *blocks, struct s2s_blocks *from);
/* Frees all pieces; the blocks are empty and can be used again. */
void s2s_blocks_release(struct s2s_blocks *blocks);

#endif
