/* Hugging Face folders: safetensors or torch files, single or listed by an index. */
#include "lib/ckpt/model.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "lib/base/base.h"

/* names of a folder that end in suffix, sorted. Gives: free each and the list. */
static int list_suffix(struct s2s_ckpt *ckpt, const char *folder, const char *suffix, char ***names,
                       size_t *n, struct s2s_error *err)
{
    struct dirent **entries;
    size_t cap = 0;
    *names = NULL;
    *n = 0;
    int n_entries = scandirat(ckpt->dir_fd, *folder ? folder : ".", &entries, NULL, alphasort);
    if (n_entries < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "list folder %s", *folder ? folder : ".");
    for (int i = 0; i < n_entries; i++) {
        const char *name = entries[i]->d_name;
        if (name[0] != '.' && strlen(name) > strlen(suffix) && s2s_ends_with(name, suffix)) {
            s2s_grow(names, *n, &cap, sizeof **names);
            (*names)[(*n)++] = s2s_xasprintf("%s%s", folder, name);
        }
        free(entries[i]);
    }
    free(entries);
    return 0;
}

static void free_list(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

/* Whose tensors these are. */
struct st_reader {
    struct s2s_ckpt *ckpt;
    int file;
    int64_t data_pos;
    const char *prefix;  /* before every name */
    const json_t *boxes; /* by their offsets, from the DCP_SHARDING_INFO; NULL: whole tensors */
};

static int read_offsets(const json_t *boxes, const struct s2s_st_tensor *st, int64_t *offset,
                        struct s2s_error *err)
{
    const json_t *list = json_object_get(json_object_get(boxes, st->name), "saved_offsets");
    memset(offset, 0, S2S_MAX_DIMS * sizeof *offset);
    if (!list)
        return 0;
    if (!json_is_array(list) || json_array_size(list) != (size_t)st->n_dims)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: saved_offsets of another rank", st->name);
    for (int d = 0; d < st->n_dims; d++) {
        const json_t *value = json_array_get(list, (size_t)d);
        offset[d] = json_integer_value(value);
        if (!json_is_integer(value) || offset[d] < 0 || offset[d] > INT64_MAX - st->shape[d])
            return s2s_error_set(err, S2S_E_FORMAT, "%s: bad saved_offsets", st->name);
    }
    return 0;
}

static int add_st_tensor(void *ctx, const struct s2s_st_tensor *st, size_t begin,
                         struct s2s_error *err)
{
    const struct st_reader *r = ctx;
    struct s2s_ckpt *ckpt = r->ckpt;
    struct s2s_ckpt_tensor *tensor;
    static const int64_t zeros[S2S_MAX_DIMS];
    int64_t offset[S2S_MAX_DIMS], pos = r->data_pos + (int64_t)begin;
    char *name = *r->prefix ? s2s_xasprintf("%s%s", r->prefix, st->name) : NULL;
    const char *full = name ? name : st->name;
    int rc = ckpt_add_tensor(ckpt, &tensor, full, strlen(full), err);
    free(name);
    if (rc == 0)
        rc = read_offsets(r->boxes, st, offset, err);
    if (rc < 0)
        return rc;
    tensor->dtype = st->dtype;
    tensor->n_dims = st->n_dims;
    tensor->shape = ckpt_arena_shape(ckpt, st->shape, st->n_dims);
    tensor->n_chunks = 1;
    tensor->chunks = ckpt_arena(ckpt, sizeof *tensor->chunks);
    *tensor->chunks =
        (struct ckpt_chunk){.offset = r->boxes ? ckpt_arena_shape(ckpt, offset, st->n_dims) : zeros,
                            .size = tensor->shape,
                            .file = r->file,
                            .located = true,
                            .data = pos,
                            .store_pos = pos,
                            .store_len = (int64_t)st->len_bytes};
    return 0;
}

/* The boxes of a header, which may stand behind all tensors. Gives a reference; NULL: none. */
static int read_boxes(json_t **boxes, int fd, struct s2s_error *err)
{
    struct s2s_safetensors st;
    int64_t data_pos;
    int rc = s2s_safetensors_read_header(&st, fd, &data_pos, NULL, NULL, err);
    if (rc < 0)
        return rc;
    const char *info = s2s_safetensors_meta(&st, "DCP_SHARDING_INFO");
    *boxes = info ? json_loads(info, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (info && !json_is_object(*boxes))
        rc = s2s_error_set(err, S2S_E_FORMAT, "DCP_SHARDING_INFO is not JSON");
    s2s_safetensors_release(&st);
    return rc;
}

static int read_file(struct s2s_ckpt *ckpt, const char *name, const char *prefix, bool sharded,
                     struct s2s_error *err)
{
    struct s2s_safetensors st;
    json_t *boxes = NULL;
    int file = ckpt_add_file(ckpt, name, err);
    int fd = file < 0 ? file : ckpt_file_fd(ckpt, file, err);
    if (fd < 0)
        return fd;
    int rc = sharded ? read_boxes(&boxes, fd, err) : 0;
    struct st_reader r = {.ckpt = ckpt, .file = file, .prefix = prefix, .boxes = boxes};
    if (rc == 0)
        rc = s2s_safetensors_read_header(&st, fd, &r.data_pos, add_st_tensor, &r, err);
    if (rc == 0)
        s2s_safetensors_release(&st);
    json_decref(boxes);
    return rc < 0 ? s2s_error_add(err, ckpt_hint_bytes(ckpt, name, rc, err), "%s", name) : 0;
}

int ckpt_read_safetensors(struct s2s_ckpt *ckpt, const char *file, const char *prefix,
                          struct s2s_error *err)
{
    return read_file(ckpt, file, prefix, false, err);
}

/* ---- index ---- */

/* the distinct files of an index, in its order */
struct index_files {
    const char *folder; /* before each */
    char **names, *last;
    size_t n, cap;
    json_t *seen;
};

static int note_file(void *ctx, const char *name, const char *file, struct s2s_error *err)
{
    struct index_files *files = ctx;
    (void)name;
    (void)err;
    if (files->last && strcmp(files->last, file) == 0) /* many tensors lie in one file */
        return 0;
    free(files->last);
    files->last = s2s_xstrdup(file);
    if (json_object_get(files->seen, file))
        return 0;
    json_object_set_new(files->seen, file, json_null());
    s2s_grow(&files->names, files->n, &files->cap, sizeof *files->names);
    files->names[files->n++] = s2s_xasprintf("%s%s", files->folder, file);
    return 0;
}

/* 0: there is no index; 1. Gives, also on failure: free each name and the list. */
static int list_index(struct s2s_ckpt *ckpt, const char *index, const char *folder, char ***names,
                      size_t *n, struct s2s_error *err)
{
    struct index_files files = {.folder = folder, .seen = json_object()};
    int rc = ckpt_index_each(ckpt, index, note_file, &files, err);
    json_decref(files.seen);
    free(files.last);
    *names = files.names;
    *n = files.n;
    return rc;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* files of weights that the index does not name, or beside model.safetensors, are not read, as the
 * libraries do */
static int warn_of_others(struct s2s_ckpt *ckpt, const char *folder, const char *suffix,
                          char **known, size_t n_known, const char *why, struct s2s_error *err)
{
    char **files;
    size_t n;
    int rc = list_suffix(ckpt, folder, suffix, &files, &n, err);
    if (n_known)
        qsort(known, n_known, sizeof *known, by_text);
    for (size_t i = 0; i < n; i++)
        if (!n_known || !bsearch(&files[i], known, n_known, sizeof *known, by_text))
            s2s_warn("ckpt", "%s: %s, not read", files[i], why);
    free_list(files, n);
    return rc;
}

/* is the tensor's neighbour of the same name? sorted from `first` on */
static bool twice(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *t, size_t first)
{
    const struct s2s_ckpt_tensor *begin = ckpt->tensors + first,
                                 *end = ckpt->tensors + ckpt->n_tensors;
    return (t > begin && strcmp(t[-1].name, t->name) == 0) ||
           (t + 1 < end && strcmp(t[1].name, t->name) == 0);
}

/* an index beside what its files hold */
struct index_check {
    struct s2s_ckpt *ckpt;
    size_t first; /* of the tensors */
    const char *folder, *prefix;
    bool *named; /* of each tensor: by the index */
};

static int check_entry(void *ctx, const char *key, const char *file, struct s2s_error *err)
{
    const struct index_check *c = ctx;
    struct s2s_ckpt *ckpt = c->ckpt;
    const size_t n = ckpt->n_tensors - c->first;
    char *name = *c->prefix ? s2s_xasprintf("%s%s", c->prefix, key) : NULL;
    const struct s2s_ckpt_tensor want = {.name = name ? name : key};
    const struct s2s_ckpt_tensor *found =
        n ? bsearch(&want, ckpt->tensors + c->first, n, sizeof want, ckpt_by_tensor_name) : NULL;
    free(name);
    if (found && twice(ckpt, found, c->first))
        return s2s_error_set(err, S2S_E_FORMAT, "tensor %s is in two of the index's files", key);
    if (!found || strcmp(ckpt->files[found->chunks->file].name + strlen(c->folder), file) != 0)
        return s2s_error_set(err, S2S_E_NOTFOUND, "the index says that %s is in %s%s: it is not",
                             key, c->folder, file);
    bool *named = &c->named[found - (ckpt->tensors + c->first)];
    if (*named)
        return s2s_error_set(err, S2S_E_FORMAT, "%s is twice in the index", key);
    *named = true;
    return 0;
}

/* every name of the index must be in its file; what is in a file and not in the index is read, as
 * transformers does, with a warning */
static int check_index(struct s2s_ckpt *ckpt, const char *index, size_t first, const char *folder,
                       const char *prefix, struct s2s_error *err)
{
    struct index_check c = {.ckpt = ckpt, .first = first, .folder = folder, .prefix = prefix};
    const size_t n = ckpt->n_tensors - first;
    if (n)
        qsort(ckpt->tensors + first, n, sizeof *ckpt->tensors, ckpt_by_tensor_name);
    c.named = s2s_xcalloc(n + 1, sizeof *c.named);
    int rc = ckpt_index_each(ckpt, index, check_entry, &c, err);
    for (size_t i = 0; i < n && rc > 0; i++)
        if (!c.named[i])
            s2s_warn("ckpt", "%s: not in the index, read all the same",
                     ckpt->tensors[first + i].name);
    free(c.named);
    if (rc == 0)
        rc = s2s_error_set(err, S2S_E_IO, "%s: gone while it was read", index);
    return rc < 0 ? rc : 0;
}

int ckpt_read_hf(struct s2s_ckpt *ckpt, const char *folder, const char *prefix,
                 struct s2s_error *err)
{
    char *index = s2s_xasprintf("%smodel.safetensors.index.json", folder);
    char *single = s2s_xasprintf("%smodel.safetensors", folder), **files = NULL;
    size_t n = 0, first = ckpt->n_tensors;
    int rc = list_index(ckpt, index, folder, &files, &n, err);
    const bool indexed = rc > 0;
    rc = rc < 0 ? rc : 0;
    if (rc == 0 && !indexed && faccessat(ckpt->dir_fd, single, F_OK, 0) == 0) {
        rc = read_file(ckpt, single, prefix, false, err);
        if (rc == 0)
            rc = warn_of_others(ckpt, folder, ".safetensors", &single, 1,
                                "beside model.safetensors", err);
    } else if (rc == 0 && !indexed)
        rc = list_suffix(ckpt, folder, ".safetensors", &files, &n, err);
    if (rc == 0 && !indexed)
        rc = ckpt_check_parts(files, n, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_file(ckpt, files[i], prefix, false, err);
    if (rc == 0 && indexed)
        rc = warn_of_others(ckpt, folder, ".safetensors", files, n, "not in the index", err);
    if (rc == 0 && indexed)
        rc = check_index(ckpt, index, first, folder, prefix, err);
    free_list(files, n);
    free(index);
    free(single);
    return rc;
}

/* training_args.bin and the like lie beside the weights */
static int list_bin(struct s2s_ckpt *ckpt, char ***files, size_t *n, struct s2s_error *err)
{
    size_t kept = 0;
    int rc = list_suffix(ckpt, "", ".bin", files, n, err);
    for (size_t i = 0; i < *n; i++)
        if (s2s_starts_with((*files)[i], "pytorch_model") ||
            strcmp((*files)[i], "adapter_model.bin") == 0)
            (*files)[kept++] = (*files)[i];
        else
            free((*files)[i]);
    *n = kept;
    return rc;
}

int ckpt_read_hf_bin(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    static const char index[] = "pytorch_model.bin.index.json";
    char **files = NULL;
    size_t n = 0;
    int rc = list_index(ckpt, index, "", &files, &n, err);
    const bool indexed = rc > 0;
    if (rc == 0)
        rc = list_bin(ckpt, &files, &n, err);
    if (rc == 0)
        rc = ckpt_check_parts(files, n, err);
    rc = rc < 0 ? rc : 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct ckpt_torch_source source = {.file = files[i], .prefix = "", .len_bytes = -1};
        if ((rc = ckpt_read_torch(ckpt, &source, err)) < 0)
            ckpt_hint_bytes(ckpt, files[i], rc, err);
    }
    if (rc == 0 && indexed)
        rc = check_index(ckpt, index, 0, "", "", err);
    free_list(files, n);
    return rc;
}

/* ---- torch.distributed.checkpoint with safetensors: boxes of one tensor in several files ---- */

/* chunks of the same name, sorted together, become one tensor; its shape is where they end */
static void join_boxes(struct s2s_ckpt *ckpt)
{
    size_t kept = 0;
    qsort(ckpt->tensors, ckpt->n_tensors, sizeof *ckpt->tensors, ckpt_by_tensor_name);
    for (size_t i = 0, next; i < ckpt->n_tensors; i = next) {
        struct s2s_ckpt_tensor joined = ckpt->tensors[i];
        int64_t shape[S2S_MAX_DIMS] = {0};
        next = i + 1;
        while (next < ckpt->n_tensors && strcmp(ckpt->tensors[next].name, joined.name) == 0 &&
               ckpt->tensors[next].n_dims == joined.n_dims &&
               ckpt->tensors[next].dtype == joined.dtype)
            next++;
        joined.n_chunks = next - i;
        joined.chunks = ckpt_arena(ckpt, joined.n_chunks * sizeof *joined.chunks);
        for (size_t k = 0; k < joined.n_chunks; k++) {
            joined.chunks[k] = *ckpt->tensors[i + k].chunks;
            for (int d = 0; d < joined.n_dims; d++) {
                int64_t end = joined.chunks[k].offset[d] + joined.chunks[k].size[d];
                shape[d] = end > shape[d] ? end : shape[d];
            }
        }
        joined.shape = ckpt_arena_shape(ckpt, shape, joined.n_dims);
        ckpt->tensors[kept++] = joined;
    }
    ckpt->n_tensors = kept;
}

/* is `name`, or a rank's share of it ("shard-00001-" in front), one of the files? */
static bool has_share(char **files, size_t n, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < n; i++) {
        size_t have = strlen(files[i]);
        if (strcmp(files[i], name) == 0 ||
            (have > len && strncmp(files[i], "shard-", 6) == 0 && files[i][have - len - 1] == '-' &&
             strcmp(files[i] + have - len, name) == 0))
            return true;
    }
    return false;
}

struct box_check {
    const struct s2s_ckpt *ckpt;
    char **files, *last; /* the one that was looked for last is there */
    size_t n;
};

static int check_box_entry(void *ctx, const char *key, const char *file, struct s2s_error *err)
{
    struct box_check *c = ctx;
    if (!c->last || strcmp(c->last, file) != 0) {
        if (!has_share(c->files, c->n, file))
            return s2s_error_set(err, S2S_E_NOTFOUND,
                                 "%s is missing: the index says that %s is in it", file, key);
        free(c->last);
        c->last = s2s_xstrdup(file);
    }
    if (!s2s_ckpt_find(c->ckpt, key))
        return s2s_error_set(err, S2S_E_NOTFOUND, "the index says that %s is in %s: it is not", key,
                             file);
    return 0;
}

/* What an index names must be there: without it a box at a tensor's end would not be missed. The
 * tensors are in the order of their names. */
static int check_box_index(struct s2s_ckpt *ckpt, char **files, size_t n, struct s2s_error *err)
{
    struct box_check c = {.ckpt = ckpt, .files = files, .n = n};
    int rc = ckpt_index_each(ckpt, "model.safetensors.index.json", check_box_entry, &c, err);
    free(c.last);
    return rc < 0 ? rc : 0;
}

int ckpt_read_dcp_hf(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    char **files;
    size_t n;
    int rc = list_suffix(ckpt, "", ".safetensors", &files, &n, err);
    if (rc == 0)
        rc = ckpt_check_parts(files, n, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_file(ckpt, files[i], "", true, err);
    if (rc == 0 && ckpt->n_tensors)
        join_boxes(ckpt);
    if (rc == 0)
        rc = check_box_index(ckpt, files, n, err);
    free_list(files, n);
    return rc;
}
