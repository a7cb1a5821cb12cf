/* The storages in a torch.save file of torch before 1.6, by their keys, which are the addresses
 * that they had in memory; there may be hundreds of thousands. */
#ifndef CKPT_LEGACY_STORES_H
#define CKPT_LEGACY_STORES_H

#include "lib/ckpt/pickle/view.h"

struct ckpt_legacy_store {
    uint64_t key;               /* the number; of another text, a digest */
    uint64_t element : 5;       /* bytes of an element; 0: tensors say different things of it */
    uint64_t is_listed : 1;     /* the file has it */
    uint64_t pos_or_numel : 58; /* its elements, by its tensors; then its position in the file */
};

struct ckpt_legacy_stores {
    struct ckpt_legacy_store *v;
    size_t n, cap;
    size_t n_sorted; /* the first of them are sorted, and have different keys */
};

/* Adds the storage that a tensor names, unless it is there. */
void ckpt_add_legacy_store(struct ckpt_legacy_stores *stores, const struct ckpt_view *view);
/* The storage of this key [len], lent until one is added; NULL: none. */
struct ckpt_legacy_store *ckpt_find_legacy_store(struct ckpt_legacy_stores *stores, const char *key,
                                                 size_t len);
void ckpt_legacy_stores_release(struct ckpt_legacy_stores *stores);

#endif
