/* The format of torch.save before torch 1.6: five pickles, then the storages, in the order of the
 * last, a list of their keys. */
#include "lib/ckpt/read/torch_walk.h"

#include "lib/base/base.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/read/torch_zip.h"
#include "lib/io/pread.h"

enum { MAX_PICKLES = 1 << 30 };
enum { MAGIC, PROTOCOL, SYSTEM, OBJECT, KEYS, N_PICKLES };

/* The first pickle of a legacy file is a magic number; from protocol 4 on it is inside a FRAME. */
bool ckpt_is_legacy_torch(const unsigned char head[CKPT_TORCH_HEAD])
{
    static const unsigned char number[] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                           0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
    const unsigned char *at = head + 2;
    if (head[0] != 0x80 || head[1] < 2 || head[1] > 5)
        return false;
    if (*at == 0x95) /* FRAME and its length */
        at += 9;
    return memcmp(at, number, sizeof number) == 0;
}

struct legacy {
    struct ckpt_torch_walk *w;
    int fd;
    int64_t begin, len; /* range of the file fd */
    struct ckpt_pickle pickles[N_PICKLES];
    int64_t end; /* end of the pickles, relative to begin */
    int bad;     /* error of the first storage that cannot be read, or 0 */
    struct s2s_error bad_err;
    uint32_t *order; /* the list of keys, as indices of the storages */
    size_t n_order, cap_order;
};

/* ---- callbacks of the pickles ---- */

static void note_store(void *ctx, const struct ckpt_node *persid)
{
    struct legacy *l = ctx;
    struct ckpt_view view;
    if (l->bad < 0 || (l->bad = ckpt_storage_of(persid, &view, &l->bad_err)) < 0)
        return;
    const size_t had = l->w->stores.n;
    struct ckpt_torch_store *store = ckpt_add_torch_store(&l->w->stores, view.key, view.key_len);
    const uint32_t element = view.dtype ? (uint32_t)s2s_dtype_size(view.dtype) : 1;
    if (!store) /* a key that no list has */
        return;
    if (l->w->stores.n > had)
        *store = (struct ckpt_torch_store){.element = element, .numel = view.store_numel};
    else if (store->element != element || store->numel != view.store_numel)
        store->element = 0;
}

/* Takes a key out of the list of them. */
static int take_key(void *ctx, struct ckpt_node *not_in_list, struct ckpt_node *key,
                    struct s2s_error *err)
{
    struct legacy *l = ctx;
    struct ckpt_torch_store *store = !not_in_list && key->kind == CKPT_STR
                                         ? ckpt_find_torch_store(&l->w->stores, key->text, key->len)
                                         : NULL;
    if (!store)
        return s2s_error_set(err, S2S_E_FORMAT, "storage %zu: no tensor names it", l->n_order);
    if (store->is_listed)
        return s2s_error_set(err, S2S_E_FORMAT, "storage %.*s is there twice",
                             ckpt_shown_len(key->len, 40), key->text);
    store->is_listed = true;
    s2s_grow(&l->order, l->n_order, &l->cap_order, sizeof *l->order);
    l->order[l->n_order++] = (uint32_t)(store - l->w->stores.v);
    return 1;
}

static void take_again(void *ctx)
{
    struct legacy *l = ctx;
    for (size_t k = 0; k < l->n_order; k++)
        l->w->stores.v[l->order[k]].is_listed = false;
    l->n_order = 0;
}

/* ---- reading ---- */

/* Parses the five pickles; their lengths are not stored. */
static int parse_all(struct legacy *l, const struct ckpt_torch_source *source)
{
    const struct ckpt_pickle_taker object = {
        .ctx = l, .storage = note_store, .dtensors = source->fsdp != NULL};
    const struct ckpt_pickle_taker keys = {.ctx = l, .item = take_key, .again = take_again};
    const struct ckpt_pickle_taker *const takers[N_PICKLES] = {[OBJECT] = &object, [KEYS] = &keys};
    struct s2s_error *err = l->w->err;
    const int64_t have = l->len < MAX_PICKLES ? l->len : MAX_PICKLES;
    int64_t protocol;
    int rc = 0;
    for (int i = 0; rc == 0 && i < N_PICKLES; i++) {
        struct ckpt_pickle *pickle = &l->pickles[i];
        rc = ckpt_pickle_parse_file(pickle, l->fd, l->begin + l->end, (size_t)(have - l->end),
                                    CKPT_OPEN, takers[i], err);
        if (rc < 0)
            return s2s_error_add(err, rc, "at %lld", (long long)l->end);
        l->end += (int64_t)pickle->len;
        if (i == PROTOCOL && (!ckpt_get_int(pickle->root, &protocol) || protocol != 1001))
            rc = s2s_error_set(err, S2S_E_VERSION, "legacy torch file of an unknown protocol");
        const struct ckpt_node *little =
            i == SYSTEM ? ckpt_get(pickle->root, "little_endian") : NULL;
        if (i == SYSTEM && (!little || little->kind != CKPT_BOOL || !little->i))
            rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "legacy torch file that is not little-endian");
        if (i == OBJECT && l->bad < 0) {
            *err = l->bad_err;
            rc = l->bad;
        }
        if (i == KEYS && pickle->root->kind != CKPT_LIST)
            rc = s2s_error_set(err, S2S_E_FORMAT, "no list of storages");
    }
    return rc;
}

/* Finds storage k of the list at *at, where its number of elements is before it; advances *at past
 * it. */
static int find_store(struct legacy *l, size_t k, int64_t *at)
{
    struct ckpt_torch_store *store = &l->w->stores.v[l->order[k]];
    struct s2s_error *err = l->w->err;
    int64_t numel, size;
    if (!store->element)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "storage %zu of %zu: its tensors say different lengths", k,
                             l->n_order);
    if (l->len - *at < (int64_t)sizeof numel)
        return s2s_error_set(err, S2S_E_TRUNCATED, "file ends before storage %zu of %zu", k,
                             l->n_order);
    int rc = s2s_pread(l->fd, &numel, sizeof numel, l->begin + *at, err);
    if (rc < 0)
        return rc;
    *at += (int64_t)sizeof numel;
    if (numel < 0 || __builtin_mul_overflow(numel, (int64_t)store->element, &size) ||
        size > l->len - *at)
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "storage of %lld elements at %lld leaves the file", (long long)numel,
                             (long long)*at);
    if (numel != store->numel)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "storage %zu of %zu has %lld elements, its tensor says %lld", k,
                             l->n_order, (long long)numel, (long long)store->numel);
    store->pos = l->begin + *at;
    store->len_bytes = size;
    *at += size;
    return 0;
}

/* Finds the storages, which follow the pickles in the order of the key list. */
static int find_stores(struct legacy *l)
{
    int64_t at = l->end;
    int rc = 0;
    for (size_t k = 0; rc == 0 && k < l->n_order; k++)
        rc = find_store(l, k, &at);
    if (rc == 0 && at != l->len)
        rc = s2s_error_set(l->w->err, S2S_E_FORMAT, "%lld bytes after the last storage",
                           (long long)(l->len - at));
    free(l->order);
    l->order = NULL;
    ckpt_pickle_release(&l->pickles[KEYS]);
    return rc;
}

int ckpt_read_torch_legacy(struct ckpt_torch_walk *w, const struct ckpt_torch_source *source,
                           int fd, int64_t len)
{
    struct legacy l = {.w = w, .fd = fd, .begin = source->begin, .len = len};
    struct ckpt_pickle *object = &l.pickles[OBJECT];
    int rc = parse_all(&l, source);
    if (rc == 0)
        rc = find_stores(&l);
    if (rc == 0)
        ckpt_warn_opaque(w->ckpt, object, source->file);
    w->left = ckpt_json_limit(object->len);
    if (rc == 0)
        rc = ckpt_torch_walk(w, object, source);
    for (int i = 0; i < N_PICKLES; i++)
        ckpt_pickle_release(&l.pickles[i]);
    free(l.order);
    return rc;
}
