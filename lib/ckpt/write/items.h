/* The contents of the ranks' .distcp files: each rank lists its own, and rank 0 turns the lists
 * into .metadata. */
#ifndef CKPT_ITEMS_H
#define CKPT_ITEMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/base/dtype.h"

struct ckpt_file;
struct s2s_ckpt;
struct s2s_dist_chunk;

/* A box of a tensor, or a byte object, in one of the files. A list is such records one after the
 * other, each with its name behind it and padded to 8 bytes. */
struct ckpt_item {
    int64_t pos, len; /* of its archive in the file */
    int32_t rank;     /* whose file it is in */
    int32_t dtype;    /* an enum s2s_dtype; NONE: a byte object */
    int32_t n_dims;
    int32_t is_flattened; /* by Megatron-Core: 1; else 0 */
    int64_t dims[]; /* shape, offset, size: [n_dims] each; if flattened, [n_dims - 1] before that */
};

static inline const int64_t *ckpt_item_shape(const struct ckpt_item *item)
{
    return item->dims;
}

static inline const int64_t *ckpt_item_offset(const struct ckpt_item *item)
{
    return item->dims + item->n_dims;
}

static inline const int64_t *ckpt_item_size(const struct ckpt_item *item)
{
    return item->dims + 2 * item->n_dims;
}

static inline const int64_t *ckpt_item_orig_shape(const struct ckpt_item *item)
{
    return item->dims + 3 * item->n_dims;
}

static inline const char *ckpt_item_name(const struct ckpt_item *item)
{
    return (const char *)(item->dims + 3 * item->n_dims +
                          (item->is_flattened ? item->n_dims - 1 : 0));
}

/* Writes the name of a rank's file ("__3_0.distcp") into text, and returns text. */
enum { CKPT_RANK_FILE = 32 };
const char *ckpt_rank_file(char text[CKPT_RANK_FILE], int rank);

/* The digest of a rank's file is part of its list, as an item whose name is this prefix and the hex
 * digits, and whose len is the file's. */
#define CKPT_ITEM_DIGEST "\x01xxh3:"

/* Appends an item to a list: of a chunk, or a byte object of this name (chunk NULL). Lent until the
 * next is added. */
struct ckpt_item *ckpt_item_add(struct s2s_buf *list, int rank, int64_t pos, const char *name,
                                const struct s2s_dist_chunk *chunk);

/* The items of several lists, which stay where they are. */
struct ckpt_items {
    const struct ckpt_item **v;
    size_t n, cap;
};

void ckpt_items_release(struct ckpt_items *items);
/* Adds the items of a list (keeps). FORMAT: it is damaged. */
int ckpt_items_add(struct ckpt_items *items, const struct s2s_buf *list, struct s2s_error *err);
/* Sorts items by name, then offset, and checks them. SHAPE, DTYPE, FORMAT: items of one name
 * contradict each other, or their boxes do not cover the tensor exactly. */
int ckpt_items_check(struct ckpt_items *items, struct s2s_error *err);
/* Moves the digests of files from the list to a manifest (an object, borrowed). */
void ckpt_items_take_digests(struct ckpt_items *items, json_t *manifest);
/* Of sorted items: the index after the last item with the same name as the one at begin. */
size_t ckpt_items_end_of_name(const struct ckpt_items *items, size_t begin);
/* Writes sorted items as the pickle .metadata into file. names: NULL, or the checkpoint that knows
 * the position of names in nested dicts and lists (ckpt_path_of). IO. */
int ckpt_items_metadata(const struct ckpt_items *items, const struct s2s_ckpt *names,
                        struct ckpt_file *file, struct s2s_error *err);

#endif
