/* torch.save files: zip archives, and the five pickles of before torch 1.6. */
#include "lib/ckpt/model.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/io/pread.h"

enum { MAX_DEPTH = 1000, FIRST_READ = 1 << 20, MAX_PICKLES = 1 << 30 };

/* The first pickle of a legacy file is a number; from protocol 4 on it stands in a frame. */
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

/* where the storages of a file lie */
struct store {
    const char *key;
    size_t key_len;
    int64_t pos, len;
    uint32_t crc;
};

struct walk {
    struct s2s_ckpt *ckpt;
    int file;
    struct store *stores; /* sorted by key */
    size_t n_stores;
    struct ckpt_json_left left; /* of the tree; shared values count in each place */
    struct s2s_buf name;
    struct s2s_error *err;
};

static int compare_keys(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

static int by_key(const void *a, const void *b)
{
    const struct store *x = a, *y = b;
    return compare_keys(x->key, x->key_len, y->key, y->key_len);
}

/* which of two is meant nobody can know */
static int sort_stores(struct walk *w)
{
    if (w->n_stores)
        qsort(w->stores, w->n_stores, sizeof *w->stores, by_key);
    for (size_t i = 1; i < w->n_stores; i++)
        if (by_key(&w->stores[i - 1], &w->stores[i]) == 0)
            return s2s_error_set(w->err, S2S_E_FORMAT, "storage %.*s is there twice",
                                 (int)(w->stores[i].key_len < 40 ? w->stores[i].key_len : 40),
                                 w->stores[i].key);
    return 0;
}

static int add_view(struct walk *w, const struct ckpt_view *view)
{
    struct s2s_ckpt *ckpt = w->ckpt;
    struct s2s_ckpt_tensor *tensor;
    struct store key = {.key = view->key, .key_len = view->key_len};
    const struct store *store =
        w->n_stores ? bsearch(&key, w->stores, w->n_stores, sizeof key, by_key) : NULL;
    if (!store)
        return s2s_error_set(w->err, S2S_E_FORMAT, "storage %.*s is not in the file",
                             (int)(view->key_len < 40 ? view->key_len : 40), view->key);
    if (store->len != view->store_len)
        return s2s_error_set(w->err, S2S_E_FORMAT,
                             "storage %.*s has %lld bytes, its tensor says %lld",
                             (int)(view->key_len < 40 ? view->key_len : 40), view->key,
                             (long long)store->len, (long long)view->store_len);
    int rc = ckpt_add_tensor(ckpt, &tensor, w->name.data, w->name.len, w->err);
    if (rc < 0)
        return rc;
    int64_t zeros[S2S_MAX_DIMS] = {0};
    tensor->dtype = view->dtype;
    tensor->n_dims = view->n_dims;
    tensor->shape = ckpt_arena_ints(ckpt, view->size, view->n_dims);
    tensor->n_chunks = 1;
    tensor->chunks = ckpt_arena(ckpt, sizeof *tensor->chunks);
    *tensor->chunks = (struct ckpt_chunk){
        .offset = ckpt_arena_ints(ckpt, zeros, view->n_dims),
        .size = tensor->shape,
        .stride = ckpt_arena_ints(ckpt, view->stride, view->n_dims),
        .file = w->file,
        .located = true,
        .has_crc = store->crc != 0,
        .crc = store->crc,
        .store_pos = store->pos,
        .store_len = store->len,
        .data = store->pos + view->offset * (int64_t)s2s_dtype_size(view->dtype)};
    return 0;
}

/* How many nodes are looked at for tensors: a class of the user's may hold anything. */
enum { LOOK_MAX = 1 << 16 };

static bool holds_storage(const struct ckpt_node *node, int *left, int depth)
{
    if (!node || depth > MAX_DEPTH || --*left < 0)
        return false;
    if (node->kind == CKPT_PERSID)
        return true;
    const bool inner = node->kind == CKPT_RECORD || node->kind == CKPT_DICT ||
                       node->kind == CKPT_LIST || node->kind == CKPT_TUPLE;
    for (uint32_t i = 0; inner && i < (node->kind == CKPT_RECORD ? 4 : node->n); i++)
        if (holds_storage(node->items[i], left, depth + 1))
            return true;
    return false;
}

/* sparse, quantized, nested, without data: torch rebuilds them with functions of these names */
static bool is_odd_tensor(const struct ckpt_node *class)
{
    static const char module[] = "torch._utils", first[] = "_rebuild_";
    return class->n == sizeof module - 1 && memcmp(class->text, module, class->n) == 0 &&
           class->len - class->n > sizeof first &&
           memcmp(class->text + class->n + 1, first, sizeof first - 1) == 0;
}

/* Tensors in what is no tensor would be lost without a word. */
static void mark_lost(struct walk *w, struct s2s_ckpt_object *object, const struct ckpt_node *node)
{
    const struct ckpt_node *class = node->kind == CKPT_RECORD ? node->items[0] : NULL;
    int left = LOOK_MAX;
    if (!holds_storage(node, &left, 0) && !(class && is_odd_tensor(class)))
        return;
    char *name = class ? s2s_xasprintf("%.*s.%.*s", (int)class->n, class->text,
                                       (int)(class->len - class->n - 1), class->text + class->n + 1)
                       : s2s_xstrdup("storage");
    object->lost = ckpt_arena_text(w->ckpt, name, strlen(name));
    s2s_warn("ckpt", "%s: a %s, of which no tensor is read", object->name, name);
    free(name);
}

static int add_value(struct walk *w, const struct ckpt_node *node)
{
    struct s2s_ckpt_object *object;
    int rc = ckpt_add_object(w->ckpt, &object, w->name.len ? w->name.data : "value",
                             w->name.len ? w->name.len : 5, w->err);
    if (rc < 0)
        return rc;
    object->value = ckpt_node_json(node, &w->left);
    mark_lost(w, object, node);
    return 0;
}

/* A key as Python prints it; tuples of such keys too. */
static bool put_key(struct s2s_buf *name, const struct ckpt_node *key, int depth)
{
    switch (key->kind) {
    case CKPT_STR:
        if (depth)
            s2s_buf_putc(name, '\'');
        s2s_buf_add(name, key->text, key->len);
        if (depth)
            s2s_buf_putc(name, '\'');
        return true;
    case CKPT_INT:
        s2s_buf_printf(name, "%lld", (long long)key->i);
        return true;
    case CKPT_BOOL:
        s2s_buf_puts(name, key->i ? "True" : "False");
        return true;
    case CKPT_NONE:
        s2s_buf_puts(name, "None");
        return true;
    case CKPT_FLOAT:
        s2s_buf_printf(name, "%.17g", key->f);
        return true;
    case CKPT_GLOBAL: /* a dtype */
        s2s_buf_printf(name, "%.*s.%.*s", (int)key->n, key->text, (int)(key->len - key->n - 1),
                       key->text + key->n + 1);
        return true;
    case CKPT_TUPLE:
        s2s_buf_putc(name, '(');
        for (uint32_t i = 0; i < key->n; i++) {
            s2s_buf_puts(name, i ? ", " : "");
            if (depth > 3 || !put_key(name, key->items[i], depth + 1))
                return false;
        }
        s2s_buf_puts(name, key->n == 1 ? ",)" : ")");
        return true;
    default:
        return false;
    }
}

static int walk_node(struct walk *w, const struct ckpt_node *node, int depth);

static int walk_child(struct walk *w, const struct ckpt_node *key, int64_t index,
                      const struct ckpt_node *node, int depth)
{
    size_t len = w->name.len;
    if (len && w->name.data[len - 1] != '/')
        s2s_buf_putc(&w->name, '.');
    if (!key)
        s2s_buf_printf(&w->name, "%lld", (long long)index);
    else if (!put_key(&w->name, key, 0))
        return s2s_error_set(w->err, S2S_E_UNSUPPORTED,
                             "dict key at byte %zu is neither text, number nor a tuple of them",
                             key->offset);
    int rc = walk_node(w, node, depth + 1);
    w->name.len = len;
    w->name.data[len] = 0;
    return rc;
}

static int walk_node(struct walk *w, const struct ckpt_node *node, int depth)
{
    struct ckpt_view view;
    if (w->left.nodes == 0 || depth > MAX_DEPTH)
        return s2s_error_set(
            w->err, S2S_E_FORMAT, "object at byte %zu of the pickle: %s", node->offset,
            depth > MAX_DEPTH ? "more than 1000 levels down" : "its values repeat without end");
    w->left.nodes--;
    int rc = ckpt_view_of(node, &view, w->err);
    if (rc)
        return rc < 0 ? s2s_error_add(w->err, rc, "%s", w->name.len ? w->name.data : "tensor")
                      : add_view(w, &view);
    if (ckpt_is(node, "argparse", "Namespace") && node->items[2] &&
        node->items[2]->kind == CKPT_DICT)
        node = node->items[2];
    if (node->kind == CKPT_DICT) {
        for (uint32_t i = 0; rc == 0 && i < node->n; i += 2)
            rc = walk_child(w, node->items[i], 0, node->items[i + 1], depth);
        return rc;
    }
    if (node->kind == CKPT_LIST || node->kind == CKPT_TUPLE) {
        for (uint32_t i = 0; rc == 0 && i < node->n; i++)
            rc = walk_child(w, NULL, i, node->items[i], depth);
        return rc;
    }
    return add_value(w, node);
}

/* a Megatron rank file: `model`, `model0`, .. are tensors, the rest is state of the run */
static int walk_rank(struct walk *w, const struct ckpt_node *root)
{
    json_t *rest = json_object();
    int rc = 0;
    if (root->kind != CKPT_DICT)
        rc = s2s_error_set(w->err, S2S_E_FORMAT, "a Megatron rank file is a dict, this is not");
    for (uint32_t i = 0; rc == 0 && i < root->n; i += 2) {
        const struct ckpt_node *key = root->items[i], *value = root->items[i + 1];
        if (key->kind != CKPT_STR)
            continue;
        char *name = s2s_xstrndup(key->text, key->len);
        if (strcmp(name, "optimizer") == 0)
            w->ckpt->n_rank_states += value->kind != CKPT_NONE;
        size_t digits = strncmp(name, "model", 5) == 0 ? strspn(name + 5, "0123456789") : 0;
        if (strcmp(name, "model") == 0)
            rc = walk_node(w, value, 0);
        else if (digits && name[5 + digits] == 0)
            rc = walk_child(w, key, 0, value, 0);
        else
            json_object_set_new(rest, name, ckpt_node_json(value, &w->left));
        free(name);
    }
    if (!w->ckpt->common)
        w->ckpt->common = json_object();
    char *rank = s2s_xstrdup(w->name.len ? w->name.data : "");
    if (*rank && rank[strlen(rank) - 1] == '/')
        rank[strlen(rank) - 1] = 0;
    json_object_set_new(w->ckpt->common, rank, rest);
    free(rank);
    return rc;
}

static int walk_root(struct walk *w, const struct ckpt_node *root,
                     const struct ckpt_torch_source *source)
{
    s2s_buf_puts(&w->name, source->prefix);
    if (source->model_only)
        return walk_rank(w, root);
    struct ckpt_view view;
    int rc = ckpt_view_of(root, &view, w->err);
    if (rc > 0)
        s2s_buf_puts(&w->name, "tensor"); /* a file that is one tensor */
    return rc < 0 ? rc : walk_node(w, root, 0);
}

static int read_zip(struct walk *w, const struct ckpt_torch_source *source, int fd, int64_t len)
{
    struct ckpt_archive archive;
    struct s2s_zip_source span = {.fd = fd, .begin = source->begin, .len_bytes = len};
    int rc = ckpt_archive_open(&archive, &span, CKPT_OPEN, w->err);
    if (rc < 0)
        return rc;
    w->stores = s2s_xcalloc(archive.zip.n_members + 1, sizeof *w->stores);
    for (size_t i = 0; i < archive.zip.n_members; i++) {
        const struct s2s_zip_member *m = &archive.zip.members[i];
        const char *slash = strchr(m->name, '/');
        if (slash && strncmp(slash, "/data/", 6) == 0)
            w->stores[w->n_stores++] = (struct store){slash + 6, strlen(slash + 6),
                                                      source->begin + m->pos, m->len_bytes, m->crc};
    }
    rc = sort_stores(w);
    w->left = ckpt_json_limit(archive.pickle.len);
    if (rc == 0)
        rc = walk_root(w, archive.pickle.root, source);
    if (rc == 0 && archive.pickle.n_opaque)
        s2s_warn("ckpt", "%s: %zu classes that are no data are kept as names (%s%s)", source->file,
                 archive.pickle.n_opaque, archive.pickle.opaque_name,
                 archive.pickle.n_opaque > 1 ? ", ..." : "");
    ckpt_archive_release(&archive);
    return rc;
}

/* ---- before torch 1.6: five pickles, then the storages ---- */

enum { MAGIC, PROTOCOL, SYSTEM, OBJECT, KEYS, N_PICKLES };

struct legacy {
    int fd;
    int64_t begin, len; /* of the file in fd */
    unsigned char *bytes;
    struct ckpt_pickle pickles[N_PICKLES];
    int64_t end; /* of the pickles */
};

/* the storages that tensors name, sorted by key; len is what one element has, pos is not known yet.
 * Gives: free. */
static int list_stores(struct store **stores, const struct ckpt_pickle *object,
                       struct s2s_error *err)
{
    int rc = 0;
    *stores = s2s_xcalloc(object->n_persids + 1, sizeof **stores);
    for (size_t i = 0; rc == 0 && i < object->n_persids; i++) {
        struct ckpt_view view;
        rc = ckpt_storage_of(object->persids[i], &view, err);
        if (rc == 0)
            (*stores)[i] =
                (struct store){.key = view.key,
                               .key_len = view.key_len,
                               .pos = -1,
                               .len = view.dtype ? (int64_t)s2s_dtype_size(view.dtype) : 1};
    }
    if (rc == 0)
        qsort(*stores, object->n_persids, sizeof **stores, by_key);
    return rc;
}

/* one storage at *at, behind its element count; *at moves behind it */
static int find_store(struct walk *w, const struct store *known, const struct legacy *l,
                      int64_t *at)
{
    int64_t numel, size;
    if (l->len - *at < (int64_t)sizeof numel)
        return s2s_error_set(w->err, S2S_E_TRUNCATED, "file ends before storage %.*s",
                             (int)(known->key_len < 40 ? known->key_len : 40), known->key);
    int rc = s2s_pread(l->fd, &numel, sizeof numel, l->begin + *at, w->err);
    if (rc < 0)
        return rc;
    *at += (int64_t)sizeof numel;
    if (numel < 0 || __builtin_mul_overflow(numel, known->len, &size) || size > l->len - *at)
        return s2s_error_set(w->err, S2S_E_TRUNCATED,
                             "storage of %lld elements at %lld leaves the file", (long long)numel,
                             (long long)*at);
    w->stores[w->n_stores++] = (struct store){known->key, known->key_len, l->begin + *at, size, 0};
    *at += size;
    return 0;
}

/* the storages follow the pickles in the order of the key list */
static int find_stores(struct walk *w, const struct legacy *l)
{
    const struct ckpt_pickle *object = &l->pickles[OBJECT];
    const struct ckpt_node *keys = l->pickles[KEYS].root;
    struct store *known;
    int64_t at = l->end;
    int rc = list_stores(&known, object, w->err);
    if (rc == 0 && keys->kind != CKPT_LIST)
        rc = s2s_error_set(w->err, S2S_E_FORMAT, "no list of storages");
    w->stores = s2s_xcalloc(rc == 0 ? keys->n + 1 : 1, sizeof *w->stores);
    for (uint32_t k = 0; rc == 0 && k < keys->n; k++) {
        const struct ckpt_node *key = keys->items[k];
        const bool text = key->kind == CKPT_STR;
        const struct store want = {.key = text ? key->text : "", .key_len = text ? key->len : 0};
        const struct store *found =
            text ? bsearch(&want, known, object->n_persids, sizeof *known, by_key) : NULL;
        rc = found ? find_store(w, found, l, &at)
                   : s2s_error_set(w->err, S2S_E_FORMAT, "storage %u of %u: no tensor names it", k,
                                   keys->n);
    }
    if (rc == 0 && at != l->len)
        rc = s2s_error_set(w->err, S2S_E_FORMAT, "%lld bytes behind the last storage",
                           (long long)(l->len - at));
    free(known);
    return rc < 0 ? rc : sort_stores(w);
}

/* the five pickles, from the first `have` bytes of the file */
static int parse_legacy(struct walk *w, struct legacy *l, size_t have)
{
    int64_t protocol;
    int rc = 0;
    l->end = 0;
    for (int i = 0; rc == 0 && i < N_PICKLES; i++) {
        rc = ckpt_pickle_parse(&l->pickles[i], l->bytes + l->end, have - (size_t)l->end, CKPT_OPEN,
                               w->err);
        if (rc < 0)
            return s2s_error_add(w->err, rc, "at %lld", (long long)l->end);
        l->end += (int64_t)l->pickles[i].len;
        if (i == PROTOCOL && (!ckpt_get_int(l->pickles[i].root, &protocol) || protocol != 1001))
            rc = s2s_error_set(w->err, S2S_E_VERSION, "legacy torch file of an unknown protocol");
        const struct ckpt_node *little =
            i == SYSTEM ? ckpt_get(l->pickles[i].root, "little_endian") : NULL;
        if (i == SYSTEM && (!little || little->kind != CKPT_BOOL || !little->i))
            rc = s2s_error_set(w->err, S2S_E_UNSUPPORTED,
                               "legacy torch file that is not little-endian");
    }
    return rc;
}

static void release_legacy(struct legacy *l)
{
    for (int i = 0; i < N_PICKLES; i++)
        ckpt_pickle_release(&l->pickles[i]);
    free(l->bytes);
    l->bytes = NULL;
}

/* Nothing says how long the pickles are; four times as much is read until they end within it. */
static int read_legacy_pickles(struct walk *w, struct legacy *l)
{
    for (int64_t have = FIRST_READ;; have *= 4) {
        have = have < l->len ? have : l->len;
        have = have < MAX_PICKLES ? have : MAX_PICKLES;
        l->bytes = s2s_try_calloc((size_t)have, 1, "pickles", w->err);
        int rc =
            l->bytes ? s2s_pread(l->fd, l->bytes, (size_t)have, l->begin, w->err) : S2S_E_NOMEM;
        if (rc < 0)
            return rc;
        rc = parse_legacy(w, l, (size_t)have);
        if (rc != S2S_E_TRUNCATED || have == l->len || have == MAX_PICKLES)
            return rc;
        release_legacy(l);
    }
}

static int read_legacy(struct walk *w, const struct ckpt_torch_source *source, int fd, int64_t len)
{
    struct legacy l = {.fd = fd, .begin = source->begin, .len = len};
    int rc = read_legacy_pickles(w, &l);
    if (rc == 0)
        rc = find_stores(w, &l);
    w->left = ckpt_json_limit(l.pickles[OBJECT].len);
    if (rc == 0)
        rc = walk_root(w, l.pickles[OBJECT].root, source);
    release_legacy(&l);
    return rc;
}

int ckpt_read_torch(struct s2s_ckpt *ckpt, const struct ckpt_torch_source *source,
                    struct s2s_error *err)
{
    struct walk w = {.ckpt = ckpt, .err = err};
    unsigned char head[CKPT_TORCH_HEAD] = {0};
    w.file = ckpt_add_file(ckpt, source->file, err);
    int fd = w.file < 0 ? w.file : ckpt_file_fd(ckpt, w.file, err);
    if (fd < 0)
        return fd;
    int64_t len = source->len_bytes;
    if (len < 0)
        len = ckpt->files[w.file].len_bytes - source->begin;
    int rc = len < (int64_t)sizeof head
                 ? s2s_error_set(err, S2S_E_TRUNCATED, "%lld bytes are too few", (long long)len)
                 : ckpt_pread(fd, head, sizeof head, source->begin, source->file, err);
    if (rc == 0 && memcmp(head, "PK\3\4", 4) == 0)
        rc = read_zip(&w, source, fd, len);
    else if (rc == 0 && ckpt_is_legacy_torch(head))
        rc = read_legacy(&w, source, fd, len);
    else if (rc == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "neither a zip archive nor a legacy torch file");
    free(w.stores);
    s2s_buf_release(&w.name);
    return rc < 0 ? s2s_error_add(err, rc, "%s", source->file) : 0;
}

/* mp_rank_00, mp_rank_00_001, ..: one file a model-parallel rank */
int ckpt_read_mp_rank(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct dirent **entries;
    int n = scandirat(ckpt->dir_fd, ".", &entries, NULL, alphasort), rc = 0;
    if (n < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "list folder");
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (rc == 0 && strncmp(name, "mp_rank_", 8) == 0) {
            char *file = s2s_xasprintf("%s/model_optim_rng.pt", name);
            char *prefix = s2s_xasprintf("%s/", name);
            struct ckpt_torch_source source = {
                .file = file, .prefix = prefix, .len_bytes = -1, .model_only = true};
            const size_t had = ckpt->n_rank_states;
            rc = ckpt_read_torch(ckpt, &source, err);
            char *apart = s2s_xasprintf("%s/distrib_optim.pt", name);
            if (ckpt->n_rank_states == had && faccessat(ckpt->dir_fd, apart, F_OK, 0) == 0)
                ckpt->n_rank_states++;
            free(apart);
            free(file);
            free(prefix);
        }
        free(entries[i]);
    }
    free(entries);
    return rc;
}
