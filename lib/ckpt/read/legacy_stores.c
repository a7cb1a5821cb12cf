/* Keeps the storages of an old torch.save file by their addresses. */
#include "lib/ckpt/read/legacy_stores.h"

#include "lib/base/base.h"
#include "lib/base/sort.h"
#include "lib/io/digest.h"

/* Texts that are no numbers, as those of torch are, get the numbers from 2^63 on. */
static uint64_t number_of(const char *key, size_t len)
{
    uint64_t value = 0;
    bool is_number = len > 0 && len < 19 && (key[0] != '0' || len == 1);
    for (size_t i = 0; i < len && is_number; i++) {
        is_number = key[i] >= '0' && key[i] <= '9';
        value = value * 10 + (uint64_t)(key[i] - '0');
    }
    return is_number ? value : s2s_xxh3_64(key, len) | (uint64_t)1 << 63;
}

static int by_key(const void *a, const void *b)
{
    const struct ckpt_legacy_store *x = a, *y = b;
    return (x->key > y->key) - (x->key < y->key);
}

/* Sorts them, and leaves one of those with the same key. */
static void sort(struct ckpt_legacy_stores *stores)
{
    struct ckpt_legacy_store *v = stores->v;
    size_t n = 0;
    if (stores->n == stores->n_sorted)
        return;
    s2s_sort(v, stores->n, sizeof *v, by_key);
    for (size_t i = 0; i < stores->n; i++)
        if (n == 0 || v[n - 1].key != v[i].key)
            v[n++] = v[i];
        else if (v[n - 1].element != v[i].element || v[n - 1].pos_or_numel != v[i].pos_or_numel)
            v[n - 1].element = 0;
    stores->n = stores->n_sorted = n;
}

void ckpt_add_legacy_store(struct ckpt_legacy_stores *stores, const struct ckpt_view *view)
{
    enum { FEW = 1024 };
    const int64_t most = ((int64_t)1 << 58) - 1; /* no file has so many */
    const int64_t numel = view->store_numel < most ? view->store_numel : most;
    const struct ckpt_legacy_store store = {
        .key = number_of(view->key, view->key_len),
        .element = view->dtype ? s2s_dtype_size(view->dtype) : 1,
        .pos_or_numel = (uint64_t)numel,
    };
    if (stores->n && memcmp(&stores->v[stores->n - 1], &store, sizeof store) == 0)
        return;
    /* a million tensors may be parts of one */
    if (stores->n > FEW && stores->n / 2 > stores->n_sorted)
        sort(stores);
    s2s_grow(&stores->v, stores->n, &stores->cap, sizeof *stores->v);
    stores->v[stores->n++] = store;
}

struct ckpt_legacy_store *ckpt_find_legacy_store(struct ckpt_legacy_stores *stores, const char *key,
                                                 size_t len)
{
    const struct ckpt_legacy_store wanted = {.key = number_of(key, len)};
    sort(stores);
    return stores->n ? bsearch(&wanted, stores->v, stores->n, sizeof wanted, by_key) : NULL;
}

void ckpt_legacy_stores_release(struct ckpt_legacy_stores *stores)
{
    free(stores->v);
    *stores = (struct ckpt_legacy_stores){.v = NULL};
}
