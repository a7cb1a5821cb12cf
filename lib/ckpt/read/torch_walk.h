/*
 * Turns the object tree of a torch.save file into tensors and objects. read_torch.c, or
 * read_legacy.c, finds the storages and parses the pickle; torch_walk.c names and adds each leaf.
 */
#ifndef CKPT_TORCH_WALK_H
#define CKPT_TORCH_WALK_H

#include "lib/base/base.h"
#include "lib/ckpt/pickle/view.h"
#include "lib/ckpt/read/read_internal.h"

/* A storage in a torch.save file. */
struct ckpt_torch_store {
    int64_t pos, len_bytes; /* in the file */
    uint32_t crc;           /* 0: not known */
    bool is_listed;         /* the file has it */
    /* before torch 1.6, what its tensors say of it: bytes of an element (0: different things), and
     * their number */
    uint32_t element;
    int64_t numel;
};

/* The storages of a file by their keys; initially zeros. */
struct ckpt_torch_stores {
    struct ckpt_torch_store *v;
    size_t n, cap;
    json_t *idx; /* an object: key -> index in v */
};
/* The storage of this key [len], lent until one is added; NULL: none. */
struct ckpt_torch_store *ckpt_find_torch_store(const struct ckpt_torch_stores *stores,
                                               const char *key, size_t len);
/* The same; it is added if new. NULL: no key can be so. */
struct ckpt_torch_store *ckpt_add_torch_store(struct ckpt_torch_stores *stores, const char *key,
                                              size_t len);
void ckpt_torch_stores_release(struct ckpt_torch_stores *stores);

struct ckpt_torch_walk {
    struct s2s_ckpt *ckpt;
    int file;
    struct ckpt_torch_stores stores;
    /* A pickle can refer to one value many times, so that a small file describes something huge.
     * Limits for the whole file: */
    struct ckpt_json_left left; /* values and strings converted to JSON */
    size_t looks_left;          /* comparisons of keys in pickled sets */
    size_t names_left;          /* bytes of names */
    size_t exact_left;          /* bytes of values kept as pickle opcodes */
    struct ckpt_fsdp *fsdp;     /* NULL, or: DTensors are read, as those of its rank */
    struct s2s_buf name;        /* of the current value, so far */
    struct s2s_error *err;
};

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
 * a warning. FORMAT, UNSUPPORTED.
 */
int ckpt_torch_walk(struct ckpt_torch_walk *w, const struct ckpt_pickle *pickle,
                    const struct ckpt_torch_source *source);

/* Reads `len` bytes of a file in the format before torch 1.6. FORMAT, TRUNCATED, UNSUPPORTED,
 * VERSION, IO. (read_legacy.c) */
int ckpt_read_torch_legacy(struct ckpt_torch_walk *w, const struct ckpt_torch_source *source,
                           int fd, int64_t len);

#endif
