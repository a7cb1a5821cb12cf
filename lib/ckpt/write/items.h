/* What a rank wrote into its .distcp file: the list that rank 0 turns into .metadata. */
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

/* A box of a tensor, or a byte object, as it lies in one of the files. */
struct ckpt_item {
    const char *name;
    size_t name_number;   /* which target of the plan has this name, counted from 1; 0: not said */
    enum s2s_dtype dtype; /* NONE: a byte object */
    int n_dims;
    int64_t shape[S2S_MAX_DIMS], offset[S2S_MAX_DIMS], size[S2S_MAX_DIMS];
    bool is_flattened;                /* by Megatron-Core */
    int64_t orig_shape[S2S_MAX_DIMS]; /* [n_dims - 1], before it was flattened */
    int rank;                         /* in whose file it is */
    int64_t pos, len;                 /* where its archive lies in that file */
};

/* Writes the name of a rank's file ("__3_0.distcp") into text, and returns text. */
enum { CKPT_RANK_FILE = 32 };
const char *ckpt_rank_file(char text[CKPT_RANK_FILE], int rank);

/* The digest of a rank's file travels in the list, too: as an item whose name is this and the hex
 * digits, and whose len is the file's. */
#define CKPT_ITEM_DIGEST "\x01xxh3:"

/* Appends an item to a list in packed form. That takes some fifteen bytes, because there may be
 * hundreds of thousands: a name that has a number is left out, and so is the box of a whole tensor.
 */
void ckpt_item_pack(const struct ckpt_item *item, struct s2s_buf *out);
/* Sets *item to the first of a packed list; its name is lent by the list, and "" if it has a
 * number. Returns the length of its packed form; 0: the list is damaged. */
size_t ckpt_item_unpack(struct ckpt_item *item, const char *list, size_t len);

/* The items of several lists, which stay packed: only where each begins is kept. */
struct ckpt_items {
    struct ckpt_item_list {
        const char *bytes;
        size_t begin; /* where it would begin if all lists were one */
    } * lists;
    size_t n_lists, cap_lists, len; /* len: bytes of all lists */
    uint32_t *at;                   /* [n]: where each item begins if all lists were one */
    size_t n, cap;
    const struct s2s_ckpt_plan *plan; /* whose targets' names the numbers mean (kept); or NULL */
};

void ckpt_items_release(struct ckpt_items *items);
/* Adds the items of a packed list (keeps). FORMAT: it is damaged; UNSUPPORTED: the lists have more
 * than 4 GiB together. */
int ckpt_items_add(struct ckpt_items *items, const struct s2s_buf *list, struct s2s_error *err);
/* The i-th item, and its name alone; i < n. Lent by list or plan. */
struct ckpt_item ckpt_items_get(const struct ckpt_items *items, size_t i);
const char *ckpt_items_name(const struct ckpt_items *items, size_t i);
/* Is the i-th the first of its name? After ckpt_items_check. */
bool ckpt_items_starts_name(const struct ckpt_items *items, size_t i);

/* Sorts items by name, then offset, and checks them. SHAPE, DTYPE, FORMAT: items of one name do not
 * agree, or their boxes do not cover the tensor exactly. */
int ckpt_items_check(struct ckpt_items *items, struct s2s_error *err);
/* Moves the digests out of the list and into a manifest (an object, borrowed). */
void ckpt_items_take_digests(struct ckpt_items *items, json_t *manifest);
/* The index behind the last item that has the same name as that at begin. */
size_t ckpt_items_end_of_name(const struct ckpt_items *items, size_t begin);
/* Writes the pickle .metadata of sorted items into file. names: NULL, or the checkpoint that knows
 * where names stand in nested dicts and lists (ckpt_path_of). IO. */
int ckpt_items_metadata(const struct ckpt_items *items, const struct s2s_ckpt *names,
                        struct ckpt_file *file, struct s2s_error *err);

#endif
