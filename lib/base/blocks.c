/* Small objects from large blocks, which are freed together. */
#include "lib/base/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

enum { FIRST_BYTES = 16 << 10, BLOCK_BYTES = 64 << 10, ALIGN_BYTES = 8 };

struct s2s_block {
    struct s2s_block *next;
    size_t used, cap;
    _Alignas(ALIGN_BYTES) char data[];
};

static struct s2s_block *new_block(size_t cap)
{
    struct s2s_block *block = s2s_xcalloc(1, sizeof *block + cap);
    block->cap = cap;
    return block;
}

void *s2s_blocks_alloc(struct s2s_blocks *blocks, size_t len_bytes)
{
    struct s2s_block *block = blocks->last;
    len_bytes = (len_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    blocks->used_bytes += len_bytes;
    if (block && len_bytes > BLOCK_BYTES / 16 && block->cap - block->used < len_bytes) {
        /* a block of its own, after the one that still has room */
        struct s2s_block *own = new_block(len_bytes);
        own->used = len_bytes;
        own->next = block->next;
        block->next = own;
        return own->data;
    }
    if (!block || block->cap - block->used < len_bytes) {
        size_t cap = block ? BLOCK_BYTES : FIRST_BYTES;
        block = new_block(len_bytes > cap ? len_bytes : cap);
        block->next = blocks->last;
        blocks->last = block;
    }
    void *piece = block->data + block->used;
    block->used += len_bytes;
    return piece;
}

char *s2s_blocks_text(struct s2s_blocks *blocks, const char *text, size_t len)
{
    struct s2s_block *block = blocks->last;
    char *copy;
    if (block && block->cap - block->used > len) { /* from the end, which needs no alignment */
        block->cap -= len + 1;
        blocks->used_bytes += len + 1;
        copy = block->data + block->cap;
    } else {
        copy = s2s_blocks_alloc(blocks, len + 1);
    }
    memcpy(copy, text, len);
    return copy;
}

void s2s_blocks_take(struct s2s_blocks *blocks, struct s2s_blocks *from)
{
    struct s2s_block *first = from->last;
    while (first && first->next)
        first = first->next;
    if (first && blocks->last) { /* after the one that still has room */
        first->next = blocks->last->next;
        blocks->last->next = from->last;
    } else if (first) {
        blocks->last = from->last;
    }
    blocks->used_bytes += from->used_bytes;
    *from = (struct s2s_blocks){.last = NULL};
}

void s2s_blocks_release(struct s2s_blocks *blocks)
{
    for (struct s2s_block *block = blocks->last, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    *blocks = (struct s2s_blocks){.last = NULL};
}
