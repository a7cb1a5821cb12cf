/*
 * How the tree of a torch.save file becomes tensors and objects. read_torch.c finds the file's
 * storages and its tree; torch_walk.c gives each leaf its name.
 */
#ifndef CKPT_TORCH_WALK_H
#define CKPT_TORCH_WALK_H

#include "lib/base/base.h"
#include "lib/ckpt/pickle/view.h"
#include "lib/ckpt/read/read_internal.h"
#include "lib/io/zip.h"

struct ckpt_torch_walk {
    struct s2s_ckpt *ckpt;
    int file;
    struct s2s_zip_member *stores; /* sorted; the name is the key alone, pos is in the file */
    size_t n_stores;
    /* A small file can refer to one value in very many places. So there are limits to what is made
     * of all of it together: */
    struct ckpt_json_left left;  /* values and texts as JSON */
    size_t looks_left;           /* keys that are compared to find a set's */
    size_t names_left;           /* bytes of names */
    size_t exact_left;           /* bytes of values that are kept as opcodes */
    struct s2s_blocks *names;    /* ckpt_pickle.names; borrowed */
    bool takes_names;            /* the checkpoint has taken them, so names can point there */
    const struct ckpt_node *key; /* the node whose text is the whole name, and in names; or NULL */
    struct s2s_buf name;         /* of the value that is looked at, so far */
    struct s2s_error *err;
};

/* Appends a dict's key to a name as Python prints it; tuples of keys too, and with `objects` bytes,
 * and an object (an enum's, a device) as the call that makes it. false: no name can be made of it,
 * and perhaps a part was appended. */
bool ckpt_torch_put_key(struct s2s_buf *name, const struct ckpt_node *key, bool objects);
/* Sets *tensor to the tensor that a view describes; it is not added to the checkpoint. name is
 * kept. FORMAT: its storage is not in the file, or has another size. */
int ckpt_torch_tensor(struct ckpt_torch_walk *w, struct s2s_ckpt_tensor *tensor, const char *name,
                      const struct ckpt_view *view);
/*
 * Reads the optimizer of a Megatron rank, whose model's tensors are those of the checkpoint from
 * index n_before on, which are not sorted yet: adds its tensors to ckpt->states, and itself to
 * ckpt->rank_states. A tensor is said to belong to a parameter only where it can belong to no other
 * (rank_optimizer.c); where that is open, `why` of the rank says so, and it is no error. FORMAT: a
 * tensor is not in the file.
 */
int ckpt_read_rank_optimizer(struct ckpt_torch_walk *w, const struct ckpt_node *optimizer,
                             const char *folder, size_t n_before);
/*
 * Adds everything below root to w->ckpt: tensors as tensors, all else as objects, named by the keys
 * that lead there. What is in a pickled module has the names that its state_dict would have;
 * tensors in objects of other classes are named after the parts of these. A tensor that is no array
 * of numbers (sparse, quantized, only one rank's) becomes an object that is marked as lost, with a
 * warning. FORMAT, UNSUPPORTED.
 */
int ckpt_torch_walk(struct ckpt_torch_walk *w, const struct ckpt_node *root,
                    const struct ckpt_torch_source *source);

#endif
