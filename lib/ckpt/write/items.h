/* The contents of a rank's .distcp file, as a packed list that rank 0 turns into .metadata. */
#ifndef CKPT_ITEMS_H
#define CKPT_ITEMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/io/safetensors.h"

struct ckpt_file;
struct s2s_ckpt_plan;
struct s2s_ckpt;

/* A box of a tensor, or a byte object, in one of the files. */
struct ckpt_item {
    const char *name;
    size_t name_number;   /* index + 1 of the plan's target with this name; 0: unknown */
    enum s2s_dtype dtype; /* NONE: a byte object */
    int n_dims;
    int64_t shape[S2S_MAX_DIMS], offset[S2S_MAX_DIMS], size[S2S_MAX_DIMS];
    bool is_flattened;                /* by Megatron-Core */
    int64_t orig_shape[S2S_MAX_DIMS]; /* [n_dims - 1], before it was flattened */
    int rank;                         /* whose file contains it */
    int64_t pos, len;                 /* of its archive in that file */
};

/* Writes the name of a rank's file ("__3_0.distcp") into text, and returns text. */
enum { CKPT_RANK_FILE = 32 };
const char *ckpt_rank_file(char text[CKPT_RANK_FILE], int rank);

/* The digest of a rank's file is part of the list, as an item whose name is this prefix and the hex
 * digits, and whose len is the file's. */
#define CKPT_ITEM_DIGEST "\x01xxh3:"

/* Appends an item to a list in packed form. As there may be hundreds of thousands, that takes some
 * fifteen bytes: a name that has a number is omitted, and so is the box of a whole tensor. */
void ckpt_item_pack(const struct ckpt_item *item, struct s2s_buf *out);
/* Sets *item to the first item of a packed list. Its name is lent by the list, and "" if it has a
 * number. Returns the length of its packed form; 0: the list is corrupt. */
size_t ckpt_item_unpack(struct ckpt_item *item, const char *list, size_t len);

/* The items of several lists, which stay packed: only the position of each is stored. */
struct ckpt_items {
    struct ckpt_item_list {
        const char *bytes;
        size_t begin; /* position in the concatenation of all lists */
    } * lists;
    size_t n_lists, cap_lists, len; /* len: bytes of all lists together */
    uint32_t *at; /* [n]: position of each item in the concatenation of all lists */
    size_t n, cap;
    const struct s2s_ckpt_plan *plan; /* the plan that name numbers refer to (kept); or NULL */
};

void ckpt_items_release(struct ckpt_items *items);
/* Adds the items of a packed list (keeps). FORMAT: it is corrupt; UNSUPPORTED: the lists have more
 * than 4 GiB together. */
int ckpt_items_add(struct ckpt_items *items, const struct s2s_buf *list, struct s2s_error *err);
/* The i-th item, and its name alone; i < n. Names are lent by list or plan. */
struct ckpt_item ckpt_items_get(const struct ckpt_items *items, size_t i);
const char *ckpt_items_name(const struct ckpt_items *items, size_t i);
/* Is the i-th item the first of its name? To be called after ckpt_items_check. */
bool ckpt_items_starts_name(const struct ckpt_items *items, size_t i);

/* Sorts items by name, then offset, and checks them. SHAPE, DTYPE, FORMAT: items of one name
 * contradict each other, or their boxes do not cover the tensor exactly. */
int ckpt_items_check(struct ckpt_items *items, struct s2s_error *err);
/* Moves the digests of files from the list to a manifest (an object, borrowed). */
void ckpt_items_take_digests(struct ckpt_items *items, json_t *manifest);
/* The index after the last item with the same name as the one at begin. */
size_t ckpt_items_end_of_name(const struct ckpt_items *items, size_t begin);
/* Writes sorted items as the pickle .metadata into file. names: NULL, or the checkpoint that knows
 * the position of names in nested dicts and lists (ckpt_path_of). IO. */
int ckpt_items_metadata(const struct ckpt_items *items, const struct s2s_ckpt *names,
                        struct ckpt_file *file, struct s2s_error *err);

#endif
