/* torch.save files: zip archives, and the legacy format of torch before 1.6, five pickles. */
#include "lib/ckpt/model.h"
#include "lib/ckpt/read/torch_walk.h"

#include "lib/base/base.h"
#include "lib/ckpt/read/torch_zip.h"
#include "lib/io/pread.h"

enum { MAX_PICKLES = 1 << 30 };

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

/* ---- names, while a pickle is parsed ---- */

struct naming {
    struct s2s_ckpt *ckpt;
    const struct ckpt_torch_source *source;
};

static void put_prefix(void *ctx, struct s2s_buf *prefix, const struct ckpt_node *const *keys,
                       int n)
{
    const struct naming *naming = ctx;
    ckpt_torch_prefix(prefix, naming->source, keys, n);
}

static const char *find_name(void *ctx, const char *name, size_t len)
{
    const struct naming *naming = ctx;
    return ckpt_known_name(naming->ckpt, name, len);
}

/* ---- zip archives ---- */

/* Keeps the storages among the archive's members, in the memory of these. */
static int take_stores(struct ckpt_torch_walk *w, struct s2s_zip *zip, int64_t begin)
{
    _Static_assert(sizeof(struct ckpt_torch_store) <= sizeof(struct s2s_zip_member), "in place");
    char *members = (char *)zip->members;
    const size_t n = zip->n_members;
    struct s2s_zip_member m;
    zip->members = NULL;
    zip->n_members = 0;
    ckpt_torch_stores_init(&w->stores, members, n * sizeof m);
    for (size_t i = 0; i < n; i++) {
        memcpy(&m, members + i * sizeof m, sizeof m); /* before what is added takes its place */
        const char *slash = strchr(m.name, '/');
        if (!slash || !s2s_starts_with(slash, "/data/"))
            continue;
        ckpt_warn_no_crc(w->ckpt, &m);
        ckpt_add_torch_store(&w->stores, slash + 6,
                             &(struct ckpt_torch_store){
                                 .pos = begin + m.pos, .len_bytes = m.len_bytes, .crc = m.crc});
    }
    return ckpt_sort_torch_stores(&w->stores, w->err);
}

static int read_zip(struct ckpt_torch_walk *w, const struct ckpt_torch_source *source, int fd,
                    int64_t len)
{
    struct naming naming = {w->ckpt, source};
    const struct ckpt_pickle_taker taker = {
        .ctx = &naming, .prefix = put_prefix, .known = find_name};
    struct ckpt_archive archive;
    struct s2s_zip_source span = {.fd = fd, .begin = source->begin, .len_bytes = len};
    int rc = ckpt_archive_begin(&archive, &span, w->err);
    if (rc < 0)
        return rc;
    rc = ckpt_archive_check_notes(&archive.zip, w->err);
    if (rc == 0)
        rc = take_stores(w, &archive.zip, source->begin);
    if (rc < 0) {
        ckpt_archive_release(&archive);
        return rc;
    }
    s2s_zip_drop_members(&archive.zip);
    rc = ckpt_archive_parse(&archive, CKPT_OPEN, &taker, w->err);
    if (rc < 0)
        return rc;
    w->left = ckpt_json_limit(archive.pickle.len);
    s2s_blocks_take(&w->ckpt->arena, &archive.pickle.names);
    rc = ckpt_torch_walk(w, archive.pickle.root, source);
    if (rc == 0)
        ckpt_warn_opaque(w->ckpt, &archive.pickle, source->file);
    ckpt_archive_release(&archive);
    return rc;
}

/* ---- legacy format: five pickles, then the storages ---- */

enum { MAGIC, PROTOCOL, SYSTEM, OBJECT, KEYS, N_PICKLES };

struct legacy {
    struct naming naming;
    int fd;
    int64_t begin, len; /* range of the file fd */
    struct ckpt_pickle pickles[N_PICKLES];
    int64_t end;   /* end of the pickles, relative to begin */
    json_t *named; /* an object: storage key -> bytes per element. A tensor may refer to one storage
                    * a million times */
    int bad;       /* error of the first storage that cannot be read, or 0 */
    struct s2s_error bad_err;
};

static void note_store(void *ctx, const struct ckpt_node *persid)
{
    struct legacy *l = ctx;
    struct ckpt_view view;
    if (l->bad < 0 || (l->bad = ckpt_storage_of(persid, &view, &l->bad_err)) < 0)
        return;
    if (!json_object_getn(l->named, view.key, view.key_len))
        json_object_setn_new_nocheck(
            l->named, view.key, view.key_len,
            json_integer(view.dtype ? (json_int_t)s2s_dtype_size(view.dtype) : 1));
}

static void put_legacy_prefix(void *ctx, struct s2s_buf *prefix,
                              const struct ckpt_node *const *keys, int n)
{
    put_prefix(&((struct legacy *)ctx)->naming, prefix, keys, n);
}

static const char *find_legacy_name(void *ctx, const char *name, size_t len)
{
    return find_name(&((struct legacy *)ctx)->naming, name, len);
}

/* Adds the storage at *at, which is preceded by its element count; advances *at past it. */
static int find_store(struct ckpt_torch_walk *w, const struct ckpt_node *key, int64_t element,
                      struct legacy *l, int64_t *at)
{
    int64_t numel, size;
    if (l->len - *at < (int64_t)sizeof numel)
        return s2s_error_set(w->err, S2S_E_TRUNCATED, "file ends before storage %.*s",
                             ckpt_shown_len(key->len, 40), key->text);
    int rc = s2s_pread(l->fd, &numel, sizeof numel, l->begin + *at, w->err);
    if (rc < 0)
        return rc;
    *at += (int64_t)sizeof numel;
    if (numel < 0 || __builtin_mul_overflow(numel, element, &size) || size > l->len - *at)
        return s2s_error_set(w->err, S2S_E_TRUNCATED,
                             "storage of %lld elements at %lld leaves the file", (long long)numel,
                             (long long)*at);
    char *text = s2s_xstrndup(key->text, key->len);
    ckpt_add_torch_store(&w->stores, text,
                         &(struct ckpt_torch_store){.pos = l->begin + *at, .len_bytes = size});
    free(text);
    *at += size;
    return 0;
}

/* Finds the storages, which follow the pickles in the order of the key list. */
static int find_stores(struct ckpt_torch_walk *w, struct legacy *l)
{
    const struct ckpt_node *keys = l->pickles[KEYS].root;
    int64_t at = l->end;
    int rc = l->bad;
    if (rc < 0)
        *w->err = l->bad_err;
    if (rc == 0 && keys->kind != CKPT_LIST)
        rc = s2s_error_set(w->err, S2S_E_FORMAT, "no list of storages");
    for (uint32_t k = 0; rc == 0 && k < keys->n; k++) {
        const struct ckpt_node *key = keys->items[k];
        json_t *found =
            key->kind == CKPT_STR ? json_object_getn(l->named, key->text, key->len) : NULL;
        const int64_t element = json_integer_value(found);
        if (!found)
            rc = s2s_error_set(w->err, S2S_E_FORMAT, "storage %u of %u: no tensor names it", k,
                               keys->n);
        else if (element == 0)
            rc = ckpt_torch_store_twice(key->text, key->len, w->err);
        else
            rc = find_store(w, key, element, l, &at);
        json_integer_set(found, 0); /* seen */
    }
    if (rc == 0 && at != l->len)
        rc = s2s_error_set(w->err, S2S_E_FORMAT, "%lld bytes after the last storage",
                           (long long)(l->len - at));
    ckpt_pickle_release(&l->pickles[KEYS]);
    json_decref(l->named);
    l->named = NULL;
    return rc < 0 ? rc : ckpt_sort_torch_stores(&w->stores, w->err);
}

/* Parses the five pickles; their lengths are not stored. */
static int parse_legacy(struct ckpt_torch_walk *w, struct legacy *l)
{
    const struct ckpt_pickle_taker taker = {
        .ctx = l, .storage = note_store, .prefix = put_legacy_prefix, .known = find_legacy_name};
    const int64_t have = l->len < MAX_PICKLES ? l->len : MAX_PICKLES;
    int64_t protocol;
    int rc = 0;
    for (int i = 0; rc == 0 && i < N_PICKLES; i++) {
        rc = ckpt_pickle_parse_file(&l->pickles[i], l->fd, l->begin + l->end,
                                    (size_t)(have - l->end), CKPT_OPEN, i == OBJECT ? &taker : NULL,
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
    json_decref(l->named);
}

static int read_legacy(struct ckpt_torch_walk *w, const struct ckpt_torch_source *source, int fd,
                       int64_t len)
{
    struct legacy l = {.naming = {w->ckpt, source},
                       .fd = fd,
                       .begin = source->begin,
                       .len = len,
                       .named = json_object()};
    int rc = parse_legacy(w, &l);
    if (rc == 0)
        rc = find_stores(w, &l);
    if (rc == 0)
        ckpt_warn_opaque(w->ckpt, &l.pickles[OBJECT], source->file);
    w->left = ckpt_json_limit(l.pickles[OBJECT].len);
    s2s_blocks_take(&w->ckpt->arena, &l.pickles[OBJECT].names);
    if (rc == 0)
        rc = ckpt_torch_walk(w, l.pickles[OBJECT].root, source);
    release_legacy(&l);
    return rc;
}

int ckpt_read_torch(struct s2s_ckpt *ckpt, const struct ckpt_torch_source *source,
                    struct s2s_error *err)
{
    struct ckpt_torch_walk w = {.ckpt = ckpt, .err = err};
    unsigned char head[CKPT_TORCH_HEAD] = {0};
    w.file = ckpt_add_file(ckpt, source->file, err);
    int fd = ckpt_file_fd(ckpt, w.file, err);
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
    ckpt_torch_stores_release(&w.stores);
    s2s_buf_release(&w.name);
    return rc < 0 ? s2s_error_add(err, rc, "%s", source->file) : 0;
}

/* 1 if the optimizer is stored separately from the rank's model: the distributed optimizer in one
 * file, Megatron-Core's layer-wise optimizer in one file per data-parallel rank. */
static int optimizer_apart(struct s2s_ckpt *ckpt, const char *prefix, struct s2s_error *err)
{
    char **names;
    size_t n;
    int rc = ckpt_list_suffix(ckpt, prefix, ".pt", &names, &n, err);
    int found = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const char *name = names[i] + strlen(prefix);
        found |=
            strcmp(name, "distrib_optim.pt") == 0 || s2s_starts_with(name, "layer_wise_optimizer_");
    }
    ckpt_free_list(names, n);
    return rc < 0 ? rc : found;
}

static int read_rank(struct s2s_ckpt *ckpt, const char *folder, struct s2s_error *err)
{
    char *file = s2s_xasprintf("%s/model_optim_rng.pt", folder);
    char *prefix = s2s_xasprintf("%s/", folder);
    const struct ckpt_torch_source source = {
        .file = file, .prefix = prefix, .len_bytes = -1, .model_only = true};
    const size_t had = ckpt->n_left_states;
    int rc = ckpt_read_torch(ckpt, &source, err);
    if (rc == 0 && ckpt->n_left_states == had) {
        rc = optimizer_apart(ckpt, prefix, err);
        ckpt->n_left_states += rc > 0;
    }
    free(file);
    free(prefix);
    return rc < 0 ? rc : 0;
}

/* mp_rank_00, mp_rank_00_001, ..: one file a model-parallel rank */
int ckpt_read_mp_rank(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    char **names;
    size_t n;
    int rc = ckpt_list_suffix(ckpt, "", "", &names, &n, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        if (s2s_starts_with(names[i], "mp_rank_"))
            rc = read_rank(ckpt, names[i], err);
    ckpt_free_list(names, n);
    return rc;
}
