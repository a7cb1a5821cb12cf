/*
 * How the tree of a torch.save file becomes tensors and objects. read_torch.c finds the file's
 * storages and its tree; torch_walk.c gives each leaf its name.
 */
#ifndef CKPT_TORCH_WALK_H
#define CKPT_TORCH_WALK_H

#include "lib/ckpt/model.h"

#include "lib/base/base.h"

/* where a storage lies; key is not zero-ended */
struct ckpt_torch_store {
    const char *key;
    size_t key_len;
    int64_t pos, len;
    uint32_t crc;
};

struct ckpt_torch_walk {
    struct s2s_ckpt *ckpt;
    int file;
    struct ckpt_torch_store *stores; /* sorted by key */
    size_t n_stores;
    struct ckpt_json_left left; /* of the tree; shared values count in each place */
    size_t looks_left;          /* of looking ahead for tensors */
    struct s2s_buf name;
    struct s2s_error *err;
};

/* Order of two stores by key, for qsort and bsearch. */
int ckpt_torch_by_key(const void *a, const void *b);
/*
 * Adds what stands in root to w->ckpt: every tensor, and every other value as an object. A pickled
 * module gives the names that its state_dict would have; tensors in objects of other classes are
 * named after the object's parts. A tensor that is no array of numbers (sparse, quantized, of one
 * rank) becomes an object that is marked as lost, with a warning.
 */
int ckpt_torch_walk(struct ckpt_torch_walk *w, const struct ckpt_node *root,
                    const struct ckpt_torch_source *source);

#endif
