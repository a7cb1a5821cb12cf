/* What a rank wrote into its .distcp file: the list that rank 0 turns into .metadata. */
#ifndef CKPT_ITEMS_H
#define CKPT_ITEMS_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/ckpt/pickle/emit.h"
#include "lib/base/base.h"
#include "lib/io/safetensors.h"

struct ckpt_item {
    char *name;
    enum s2s_dtype dtype; /* NONE: a byte object */
    int n_dims;
    int64_t shape[S2S_MAX_DIMS], offset[S2S_MAX_DIMS], size[S2S_MAX_DIMS];
    int n_orig_dims; /* -1: not flattened */
    int64_t orig_shape[S2S_MAX_DIMS];
    char *file;       /* plain name in the checkpoint's folder */
    int64_t pos, len; /* of the stored archive in it */
};

/* The digest of a rank's file travels as an item of this name: the hex digits follow. */
#define CKPT_ITEM_DIGEST "\x01xxh3:"

struct ckpt_items {
    struct ckpt_item *v;
    size_t n, cap;
};

/* Adds a zeroed item; lent until the next. */
struct ckpt_item *ckpt_items_add(struct ckpt_items *items);
void ckpt_items_release(struct ckpt_items *items);
void ckpt_items_pack(const struct ckpt_items *items, struct s2s_buf *out);
/* Appends those of a packed list. FORMAT: not such a list. */
int ckpt_items_unpack(struct ckpt_items *items, const struct s2s_buf *in, struct s2s_error *err);

/* Sorts by name, then offset; checks that items of one name agree and tile it. */
int ckpt_items_check(struct ckpt_items *items, struct s2s_error *err);
/* Takes the digests out of the list, into a manifest. */
void ckpt_items_take_digests(struct ckpt_items *items, json_t *manifest);
/* The .metadata pickle of sorted items. paths: NULL, or where names stand in nested dicts and lists
 * (model.h). */
void ckpt_items_metadata(const struct ckpt_items *items, const json_t *paths, struct s2s_buf *out);
/* Its planner_data (paths.c). */
struct ckpt_emitter;
void ckpt_emit_paths(struct ckpt_emitter *out, const struct ckpt_items *items, const json_t *paths);

#endif
