/*
 * Turns the object tree of a torch.save file into tensors and objects. read_torch.c, or
 * read_legacy.c, finds the storages and parses the pickle; torch_walk.c names and adds each leaf.
 */
#ifndef CKPT_TORCH_WALK_H
#define CKPT_TORCH_WALK_H

#include "lib/base/base.h"
#include "lib/ckpt/pickle/view.h"
#include "lib/ckpt/read/legacy_stores.h"
#include "lib/ckpt/read/read_internal.h"
#include "lib/ckpt/read/torch_stores.h"

struct ckpt_torch_walk {
    struct s2s_ckpt *ckpt;
    int file;
    const struct ckpt_pickle *pickle;
    struct ckpt_torch_stores stores;
    bool is_legacy; /* the storages are these: */
    struct ckpt_legacy_stores legacy;
    /* A pickle can refer to one value many times, so that a small file describes something huge.
     * Limits for the whole file: */
    struct ckpt_json_left left; /* values and strings converted to JSON */
    size_t looks_left;          /* comparisons of keys in pickled sets */
    size_t names_left;          /* bytes of names */
    size_t exact_left;          /* bytes of values kept as pickle opcodes */
    const char *whole;          /* a text of the checkpoint that is the whole name; or NULL */
    struct ckpt_fsdp *fsdp;     /* NULL, or: DTensors are read, as those of its rank */
    struct s2s_buf name;        /* of the current value, so far */
    struct s2s_error *err;
};

/* Appends a dict's key to a name as Python prints it. Tuples of keys work too; with `objects` also
 * bytes, and objects (an enum's, a device) as the call that constructs them. false: the key cannot
 * be part of a name; something may have been appended. */
bool ckpt_torch_put_key(struct s2s_buf *name, const struct ckpt_node *key, bool objects);
/* Is it a record or a container? */
bool ckpt_torch_has_parts(const struct ckpt_node *node);
/* FORMAT if a dict has the key of a value with parts twice. Python would keep the last value; of
 * two nested dicts or lists parts of both would be read, under names that do not collide. (Two
 * tensors or objects of one name are refused elsewhere.) */
int ckpt_torch_check_keys(const struct ckpt_node *dict, struct s2s_error *err);
/* Sets *tensor to what a view describes, without adding it to the checkpoint. name is kept. FORMAT:
 * its storage is not in the file, or has another size. (torch_add.c) */
int ckpt_torch_tensor(struct ckpt_torch_walk *w, struct s2s_ckpt_tensor *tensor, const char *name,
                      const struct ckpt_view *view);
/* Charges a name to the limit: a dict with one long key may hold a thousand references to one
 * value. FORMAT. */
int ckpt_torch_take_name(struct ckpt_torch_walk *w, size_t len);
/* Add a tensor, or the part of one that this FSDP rank has, under the current name. FORMAT,
 * UNSUPPORTED, SHAPE. */
int ckpt_torch_add(struct ckpt_torch_walk *w, const struct ckpt_view *view);
int ckpt_torch_add_dtensor(struct ckpt_torch_walk *w, const struct ckpt_node *node);
/*
 * Adds everything below the pickle's root to w->ckpt: tensors as tensors, all else as objects,
 * named by the path of keys. Contents of a pickled nn.Module get the names of its state_dict;
 * tensors in objects of other classes are named by the attributes that lead to them. A tensor that
 * is not a dense array (sparse, quantized, one rank's shard) becomes an object marked as lost, with
 * a warning. FORMAT, UNSUPPORTED. Before, the checkpoint has taken the names of the pickle.
 */
int ckpt_torch_walk(struct ckpt_torch_walk *w, const struct ckpt_pickle *pickle,
                    const struct ckpt_torch_source *source);

/* The context of a taker that names tensors as ckpt_torch_walk will. */
struct ckpt_torch_naming {
    struct s2s_ckpt *ckpt;
    const struct ckpt_torch_source *source;
};
/* Returns such a taker; it borrows naming, which may be the beginning of a larger struct. */
struct ckpt_pickle_taker ckpt_torch_taker(struct ckpt_torch_naming *naming);

/* Reads `len` bytes of a file in the format before torch 1.6. FORMAT, TRUNCATED, UNSUPPORTED,
 * VERSION, IO. (read_legacy.c) */
int ckpt_read_torch_legacy(struct ckpt_torch_walk *w, const struct ckpt_torch_source *source,
                           int fd, int64_t len);

/* What ckpt_torch_walk will put before the keys of a dict to which keys [n] seem to lead. */
void ckpt_torch_prefix(struct s2s_buf *prefix, const struct ckpt_torch_source *source,
                       const struct ckpt_node *const *keys, int n);

#endif
