/* The storages in a torch.save file, by their keys; there may be hundreds of thousands. */
#ifndef CKPT_TORCH_STORES_H
#define CKPT_TORCH_STORES_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/blocks.h"

struct s2s_error;

struct ckpt_torch_store {
    int64_t pos; /* in the file */
    int64_t len_bytes;
    uint32_t crc; /* 0: not known */
    uint32_t key; /* a decimal number, as torch has them; or the index of its text */
};

struct ckpt_torch_stores {
    struct ckpt_torch_store *v; /* sorted by key */
    size_t n, cap;
    const char **texts; /* NULL while all keys are numbers */
    size_t n_texts, cap_texts;
    struct s2s_blocks text_bytes;
};

/* An empty table in this memory of malloc, which it takes: `len_bytes` suffice for all that are
 * added. */
void ckpt_torch_stores_init(struct ckpt_torch_stores *stores, void *memory, size_t len_bytes);
/* Adds a storage; its key is that given here. */
void ckpt_add_torch_store(struct ckpt_torch_stores *stores, const char *key,
                          const struct ckpt_torch_store *store);
/* Sorts them, once all were added. FORMAT: two have one key. */
int ckpt_sort_torch_stores(struct ckpt_torch_stores *stores, struct s2s_error *err);
/* The storage of this key [len]; NULL: none. */
const struct ckpt_torch_store *ckpt_find_torch_store(const struct ckpt_torch_stores *stores,
                                                     const char *key, size_t len);
void ckpt_torch_stores_release(struct ckpt_torch_stores *stores);
int ckpt_torch_store_twice(const char *key, size_t len, struct s2s_error *err);

#endif
