/* Keeps the storages of a torch.save file by their keys. */
#include "lib/ckpt/read/torch_stores.h"

#include "lib/base/base.h"
#include "lib/ckpt/names.h"

void ckpt_torch_stores_init(struct ckpt_torch_stores *stores, void *memory, size_t len_bytes)
{
    *stores = (struct ckpt_torch_stores){.v = memory, .cap = len_bytes / sizeof *stores->v};
}

/* A number below 2^32 as it is printed: no sign, no leading zeros. */
static bool parse_key(const char *key, size_t len, uint32_t *number)
{
    uint64_t value = 0;
    if (len == 0 || len > 10 || (key[0] == '0' && len > 1))
        return false;
    for (size_t i = 0; i < len; i++) {
        if (key[i] < '0' || key[i] > '9')
            return false;
        value = value * 10 + (uint64_t)(key[i] - '0');
    }
    *number = (uint32_t)value;
    return value <= UINT32_MAX;
}

static uint32_t add_text(struct ckpt_torch_stores *stores, const char *key)
{
    s2s_grow(&stores->texts, stores->n_texts, &stores->cap_texts, sizeof *stores->texts);
    stores->texts[stores->n_texts] = s2s_blocks_text(&stores->text_bytes, key, strlen(key));
    return (uint32_t)stores->n_texts++;
}

/* Gives each storage's key as text. */
static void make_texts(struct ckpt_torch_stores *stores)
{
    char text[16];
    for (size_t i = 0; i < stores->n; i++) {
        snprintf(text, sizeof text, "%u", stores->v[i].key);
        stores->v[i].key = add_text(stores, text);
    }
}

void ckpt_add_torch_store(struct ckpt_torch_stores *stores, const char *key,
                          const struct ckpt_torch_store *store)
{
    struct ckpt_torch_store own = *store;
    const bool is_number = parse_key(key, strlen(key), &own.key);
    if (!is_number && !stores->texts)
        make_texts(stores);
    if (!is_number || stores->texts)
        own.key = add_text(stores, key);
    s2s_grow(&stores->v, stores->n, &stores->cap, sizeof *stores->v);
    stores->v[stores->n++] = own;
}

/* What the comparisons of one search or sort share, as their functions have no context. */
struct wanted {
    const struct ckpt_torch_stores *stores;
    const char *key;
    size_t len;
    uint32_t number;
};

static int compare_text(const char *a, size_t len, const char *b)
{
    const size_t b_len = strlen(b);
    const int order = memcmp(a, b, len < b_len ? len : b_len);
    return order ? order : (len > b_len) - (len < b_len);
}

static int compare(const void *wanted, const void *store)
{
    const struct wanted *w = wanted;
    const struct ckpt_torch_store *s = store;
    return w->stores->texts ? compare_text(w->key, w->len, w->stores->texts[s->key])
                            : (w->number > s->key) - (w->number < s->key);
}

static int by_number(const void *a, const void *b)
{
    const struct ckpt_torch_store *x = a, *y = b;
    return (x->key > y->key) - (x->key < y->key);
}

static int by_text(const void *a, const void *b, void *ctx)
{
    const struct ckpt_torch_store *x = a, *y = b;
    const char *const *texts = ctx;
    return strcmp(texts[x->key], texts[y->key]);
}

int ckpt_torch_store_twice(const char *key, size_t len, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT, "storage %.*s is there twice", ckpt_shown_len(len, 40),
                         key);
}

int ckpt_sort_torch_stores(struct ckpt_torch_stores *stores, struct s2s_error *err)
{
    stores->v = s2s_xrealloc(stores->v, stores->n + 1, sizeof *stores->v);
    stores->cap = stores->n + 1;
    struct ckpt_torch_store *v = stores->v;
    char text[16];
    if (stores->texts)
        qsort_r(v, stores->n, sizeof *v, by_text, stores->texts);
    else if (stores->n)
        s2s_sort(v, stores->n, sizeof *v, by_number);
    for (size_t i = 1; i < stores->n; i++) {
        if (stores->texts ? by_text(&v[i - 1], &v[i], stores->texts) : by_number(&v[i - 1], &v[i]))
            continue;
        snprintf(text, sizeof text, "%u", v[i].key);
        const char *key = stores->texts ? stores->texts[v[i].key] : text;
        return ckpt_torch_store_twice(key, strlen(key), err);
    }
    return 0;
}

const struct ckpt_torch_store *ckpt_find_torch_store(const struct ckpt_torch_stores *stores,
                                                     const char *key, size_t len)
{
    struct wanted wanted = {.stores = stores, .key = key, .len = len};
    if (stores->n == 0 || (!stores->texts && !parse_key(key, len, &wanted.number)))
        return NULL;
    /* torch numbers them from 0 on, without gaps */
    if (!stores->texts && wanted.number < stores->n &&
        stores->v[wanted.number].key == wanted.number)
        return &stores->v[wanted.number];
    return bsearch(&wanted, stores->v, stores->n, sizeof *stores->v, compare);
}

void ckpt_torch_stores_release(struct ckpt_torch_stores *stores)
{
    free(stores->v);
    free(stores->texts);
    s2s_blocks_release(&stores->text_bytes);
    *stores = (struct ckpt_torch_stores){.v = NULL};
}
