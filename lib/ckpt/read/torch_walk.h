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
    struct ckpt_json_left left;  /* of the tree; shared values count in each place */
    size_t looks_left;           /* at keys in sets */
    size_t names_left;           /* bytes of names that are made: what many share counts in each */
    size_t exact_left;           /* bytes of values that are kept as they are */
    struct s2s_blocks *names;    /* of the pickle; borrowed */
    bool takes_names;            /* they are the checkpoint's now */
    const struct ckpt_node *key; /* NULL, or whose text is all of the name, and the checkpoint's */
    struct s2s_buf name;
    struct s2s_error *err;
};

/* Order of two stores by key, for qsort and bsearch. */
int ckpt_torch_by_key(const void *a, const void *b);
/* A tensor of that name (borrowed; it has to live as long as the checkpoint), described in *tensor
 * and not added to the checkpoint. FORMAT: its storage is not in the file, or of another size. */
int ckpt_torch_tensor(struct ckpt_torch_walk *w, struct s2s_ckpt_tensor *tensor, const char *name,
                      const struct ckpt_view *view);
/*
 * The optimizer of a Megatron rank, whose model is the checkpoint's tensors from n_before on: adds
 * its tensors to ckpt->states and what it is to ckpt->rank_states. Which parameter a tensor belongs
 * to is said only where nothing else can be (rank_optimizer.c); why not is no error. Before the
 * tensors are sorted. FORMAT: a tensor is not in the file.
 */
int ckpt_read_rank_optimizer(struct ckpt_torch_walk *w, const struct ckpt_node *optimizer,
                             const char *folder, size_t n_before);
/*
 * Adds what stands in root to w->ckpt: every tensor, and every other value as an object. A pickled
 * module gives the names that its state_dict would have; tensors in objects of other classes are
 * named after the object's parts. A tensor that is no array of numbers (sparse, quantized, of one
 * rank) becomes an object that is marked as lost, with a warning.
 */
int ckpt_torch_walk(struct ckpt_torch_walk *w, const struct ckpt_node *root,
                    const struct ckpt_torch_source *source);

#endif
