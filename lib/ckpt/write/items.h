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

struct ckpt_item {
    const char *name;
    size_t name_number;   /* 0, or that of the plan's target whose name it is, from 1 */
    enum s2s_dtype dtype; /* NONE: a byte object */
    int n_dims;
    int64_t shape[S2S_MAX_DIMS], offset[S2S_MAX_DIMS], size[S2S_MAX_DIMS];
    bool is_flattened;
    int64_t orig_shape[S2S_MAX_DIMS]; /* before that, with one axis less */
    int rank;                         /* in whose file it is */
    int64_t pos, len;                 /* of the stored archive in it */
};

/* The file of a rank in the checkpoint's folder; returns text. */
enum { CKPT_RANK_FILE = 32 };
const char *ckpt_rank_file(char text[CKPT_RANK_FILE], int rank);

/* The digest of a rank's file travels as an item of this name: the hex digits follow. */
#define CKPT_ITEM_DIGEST "\x01xxh3:"

/* Appends an item to a list of packed ones, which take some fifteen bytes: there may be hundreds of
 * thousands. A name that has a number is left out, and the box of a whole tensor. */
void ckpt_item_pack(const struct ckpt_item *item, struct s2s_buf *out);
/* The item that begins such a list; its texts are lent by the list, a name that has a number is
 * empty. Returns its packed length, 0: damaged. */
size_t ckpt_item_unpack(struct ckpt_item *item, const char *list, size_t len);

/* Where packed items lie. */
struct ckpt_items {
    struct ckpt_item_list {
        const char *bytes;
        size_t begin; /* of its bytes among those of all lists */
    } * lists;
    size_t n_lists, cap_lists, len;
    uint32_t *at; /* among the bytes of all lists */
    size_t n, cap;
    const struct s2s_ckpt_plan *plan; /* NULL, or what the names of most are (kept) */
};

void ckpt_items_release(struct ckpt_items *items);
/* Appends those of a list (keeps). FORMAT: not such a list; UNSUPPORTED: more than 4 GiB. */
int ckpt_items_add(struct ckpt_items *items, const struct s2s_buf *list, struct s2s_error *err);
struct ckpt_item ckpt_items_get(const struct ckpt_items *items, size_t i);
const char *ckpt_items_name(const struct ckpt_items *items, size_t i);
/* Has the one before it another name? */
bool ckpt_items_starts_name(const struct ckpt_items *items, size_t i);

/* Sorts by name, then offset; checks that items of one name agree and tile it. */
int ckpt_items_check(struct ckpt_items *items, struct s2s_error *err);
/* Takes the digests out of the list, into a manifest. */
void ckpt_items_take_digests(struct ckpt_items *items, json_t *manifest);
/* Where the items of the name at begin end. */
size_t ckpt_items_end_of_name(const struct ckpt_items *items, size_t begin);
/* Writes the .metadata pickle of sorted items. names: NULL, or the checkpoint that knows where
 * names stand in nested dicts and lists (model.h). */
int ckpt_items_metadata(const struct ckpt_items *items, const struct s2s_ckpt *names,
                        struct ckpt_file *file, struct s2s_error *err);

#endif
