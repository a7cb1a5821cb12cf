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

struct s2s_blocks_mark s2s_blocks_mark(const struct s2s_blocks *blocks)
{
    struct s2s_block *last = blocks->last;
    return (struct s2s_blocks_mark){.last = last,
                                    .after = last ? last->next : NULL,
                                    .used = last ? last->used : 0,
                                    .cap = last ? last->cap : 0,
                                    .used_bytes = blocks->used_bytes};
}

/* Frees the blocks from this one up to `end`, which it returns. */
static struct s2s_block *free_until(struct s2s_block *block, struct s2s_block *end)
{
    for (struct s2s_block *next; block != end; block = next) {
        next = block->next;
        free(block);
    }
    return end;
}

void s2s_blocks_rewind(struct s2s_blocks *blocks, const struct s2s_blocks_mark *mark)
{
    struct s2s_block *last = blocks->last = free_until(blocks->last, mark->last);
    blocks->used_bytes = mark->used_bytes;
    if (!last)
        return;
    last->next = free_until(last->next, mark->after); /* those of their own */
    memset(last->data + mark->used, 0, last->used - mark->used);
    memset(last->data + last->cap, 0, mark->cap - last->cap);
    last->used = mark->used;
    last->cap = mark->cap;
}

void s2s_blocks_release(struct s2s_blocks *blocks)
{
    (void)free_until(blocks->last, NULL);
    *blocks = (struct s2s_blocks){.last = NULL};
}
