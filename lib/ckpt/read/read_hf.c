/* Hugging Face folders: safetensors or torch files, single or listed by an index. */
#include "lib/ckpt/model.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "lib/base/base.h"

enum { MAX_INDEX = 256 << 20 };

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
        size_t len = strlen(name), suffix_len = strlen(suffix);
        if (name[0] != '.' && len > suffix_len && strcmp(name + len - suffix_len, suffix) == 0) {
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

/* boxes by their offsets, from the DCP_SHARDING_INFO of a header; NULL: whole tensors */
struct sharding {
    const json_t *info;
};

static int read_offsets(const struct sharding *sharding, const struct s2s_st_tensor *st,
                        int64_t *offset, struct s2s_error *err)
{
    memset(offset, 0, S2S_MAX_DIMS * sizeof *offset);
    if (!sharding->info)
        return 0;
    const json_t *list =
        json_object_get(json_object_get(sharding->info, st->name), "saved_offsets");
    if (!list)
        return 0;
    if (!json_is_array(list) || json_array_size(list) != (size_t)st->n_dims)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: saved_offsets of another rank", st->name);
    for (int d = 0; d < st->n_dims; d++) {
        const json_t *value = json_array_get(list, (size_t)d);
        offset[d] = json_integer_value(value);
        if (!json_is_integer(value) || offset[d] < 0 || offset[d] > INT64_MAX / 2)
            return s2s_error_set(err, S2S_E_FORMAT, "%s: bad saved_offsets", st->name);
    }
    return 0;
}

static int add_st_tensor(struct s2s_ckpt *ckpt, const struct s2s_st_tensor *st, int file,
                         int64_t pos, const char *prefix, const struct sharding *sharding,
                         struct s2s_error *err)
{
    struct s2s_ckpt_tensor *tensor;
    static const int64_t zeros[S2S_MAX_DIMS];
    int64_t offset[S2S_MAX_DIMS];
    char *name = s2s_xasprintf("%s%s", prefix, st->name);
    int rc = ckpt_add_tensor(ckpt, &tensor, name, strlen(name), err);
    free(name);
    if (rc == 0)
        rc = read_offsets(sharding, st, offset, err);
    if (rc < 0)
        return rc;
    tensor->dtype = st->dtype;
    tensor->n_dims = st->n_dims;
    tensor->shape = ckpt_arena_ints(ckpt, st->shape, st->n_dims);
    tensor->n_chunks = 1;
    tensor->chunks = ckpt_arena(ckpt, sizeof *tensor->chunks);
    *tensor->chunks = (struct ckpt_chunk){
        .offset = sharding->info ? ckpt_arena_ints(ckpt, offset, st->n_dims) : zeros,
        .size = tensor->shape,
        .file = file,
        .located = true,
        .data = pos,
        .store_pos = pos,
        .store_len = (int64_t)st->len_bytes};
    return 0;
}

static int read_file(struct s2s_ckpt *ckpt, const char *name, const char *prefix, bool sharded,
                     struct s2s_error *err)
{
    struct s2s_safetensors st;
    int64_t data_pos;
    int file = ckpt_add_file(ckpt, name, err);
    int fd = file < 0 ? file : ckpt_file_fd(ckpt, file, err);
    if (fd < 0)
        return fd;
    int rc = s2s_safetensors_read_header(&st, fd, &data_pos, err);
    if (rc < 0)
        return s2s_error_add(err, ckpt_hint_bytes(ckpt, name, rc, err), "%s", name);
    const char *info = sharded ? s2s_safetensors_meta(&st, "DCP_SHARDING_INFO") : NULL;
    json_t *boxes = info ? json_loads(info, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (info && !json_is_object(boxes))
        rc = s2s_error_set(err, S2S_E_FORMAT, "DCP_SHARDING_INFO is not JSON");
    struct sharding sharding = {boxes};
    for (size_t i = 0; rc == 0 && i < st.n_tensors; i++)
        rc = add_st_tensor(ckpt, &st.tensors[i], file, data_pos + (int64_t)st.begins[i], prefix,
                           &sharding, err);
    json_decref(boxes);
    s2s_safetensors_release(&st);
    return rc < 0 ? s2s_error_add(err, rc, "%s", name) : 0;
}

int ckpt_read_safetensors(struct s2s_ckpt *ckpt, const char *file, const char *prefix,
                          struct s2s_error *err)
{
    return read_file(ckpt, file, prefix, false, err);
}

/* ---- index ---- */

/* The file of each name. There may be a hundred thousand of them, which take much more as JSON. */
struct index {
    struct s2s_blocks arena;
    struct index_entry {
        const char *name, *file;
    } * entries;
    size_t n; /* 0: there is no index */
};

static void release_index(struct index *index)
{
    s2s_blocks_release(&index->arena);
    free(index->entries);
}

static void fill_index(struct index *index, const json_t *weights)
{
    const char *key, *last = "";
    json_t *file;
    index->entries = s2s_xcalloc(json_object_size(weights), sizeof *index->entries);
    json_object_foreach((json_t *)weights, key, file)
    {
        const char *name = json_string_value(file);
        if (strcmp(name, last) != 0) /* many tensors lie in one file */
            last = s2s_blocks_text(&index->arena, name, strlen(name));
        index->entries[index->n++] =
            (struct index_entry){s2s_blocks_text(&index->arena, key, strlen(key)), last};
    }
}

/* Gives: release_index, also on failure. */
static int load_index(struct s2s_ckpt *ckpt, const char *name, struct index *index,
                      struct s2s_error *err)
{
    char *bytes;
    size_t len;
    *index = (struct index){.n = 0};
    if (faccessat(ckpt->dir_fd, name, F_OK, 0) < 0)
        return 0;
    int rc = ckpt_slurp(ckpt->dir_fd, name, MAX_INDEX, &bytes, &len, err);
    if (rc < 0)
        return rc;
    json_error_t at;
    json_t *root = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, &at);
    free(bytes);
    if (!root)
        return s2s_error_set(err, S2S_E_FORMAT, "%s:%d: %s", name, at.line, at.text);
    json_t *weights = json_object_get(root, "weight_map");
    const char *key;
    json_t *file;
    if (!json_is_object(weights))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: no object weight_map", name);
    json_object_foreach(weights, key,
                        file) if (rc == 0 && (!json_is_string(file) ||
                                              !ckpt_name_is_plain(json_string_value(file),
                                                                  json_string_length(file)))) rc =
        s2s_error_set(err, S2S_E_FORMAT,
                      "%s: %s is said to be in what is no plain file name: refused", name, key);
    if (rc == 0 && json_object_size(weights) == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: weight_map is empty", name);
    if (rc == 0)
        fill_index(index, weights);
    json_decref(root);
    return rc;
}

/* the distinct files of an index, in its order. Gives: free each and the list. */
static void index_files(const struct index *index, const char *folder, char ***files, size_t *n)
{
    json_t *seen = json_object();
    const char *key;
    json_t *file;
    size_t cap = 0;
    *files = NULL;
    *n = 0;
    for (size_t i = 0; i < index->n; i++)
        if (i == 0 || index->entries[i].file != index->entries[i - 1].file)
            json_object_set_new(seen, index->entries[i].file, json_null());
    json_object_foreach(seen, key, file)
    {
        s2s_grow(files, *n, &cap, sizeof **files);
        (*files)[(*n)++] = s2s_xasprintf("%s%s", folder, key);
    }
    json_decref(seen);
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

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const struct s2s_ckpt_tensor *)a)->name,
                  ((const struct s2s_ckpt_tensor *)b)->name);
}

/* is the tensor's neighbour of the same name? sorted from `first` on */
static bool twice(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *t, size_t first)
{
    const struct s2s_ckpt_tensor *begin = ckpt->tensors + first,
                                 *end = ckpt->tensors + ckpt->n_tensors;
    return (t > begin && strcmp(t[-1].name, t->name) == 0) ||
           (t + 1 < end && strcmp(t[1].name, t->name) == 0);
}

static int by_entry_name(const void *a, const void *b)
{
    return strcmp(((const struct index_entry *)a)->name, ((const struct index_entry *)b)->name);
}

static bool index_has(const struct index *index, const char *name)
{
    struct index_entry key = {.name = name};
    return bsearch(&key, index->entries, index->n, sizeof key, by_entry_name) != NULL;
}

/* every name of the index must be in its file; what is in a file and not in the index is dropped,
 * as the libraries do, with a warning */
static int check_index(struct s2s_ckpt *ckpt, struct index *index, size_t first, const char *folder,
                       const char *prefix, struct s2s_error *err)
{
    size_t n = ckpt->n_tensors - first, kept = first;
    if (n)
        qsort(ckpt->tensors + first, n, sizeof *ckpt->tensors, by_tensor_name);
    qsort(index->entries, index->n, sizeof *index->entries, by_entry_name);
    for (size_t i = 0; i < index->n; i++) {
        const char *key = index->entries[i].name, *file = index->entries[i].file;
        char *name = s2s_xasprintf("%s%s", prefix, key);
        struct s2s_ckpt_tensor want = {.name = name};
        const struct s2s_ckpt_tensor *found =
            n ? bsearch(&want, ckpt->tensors + first, n, sizeof want, by_tensor_name) : NULL;
        free(name);
        if (found && twice(ckpt, found, first))
            return s2s_error_set(err, S2S_E_FORMAT, "tensor %s is in two of the index's files",
                                 key);
        if (!found || strcmp(ckpt->files[found->chunks->file].name + strlen(folder), file) != 0)
            return s2s_error_set(err, S2S_E_NOTFOUND,
                                 "the index says that %s is in %s%s: it is not", key, folder, file);
    }
    for (size_t i = first; i < ckpt->n_tensors; i++) {
        if (index_has(index, ckpt->tensors[i].name + strlen(prefix)))
            ckpt->tensors[kept++] = ckpt->tensors[i];
        else
            s2s_warn("ckpt", "%s: not in the index, left out", ckpt->tensors[i].name);
    }
    ckpt->n_tensors = kept;
    return 0;
}

int ckpt_read_hf(struct s2s_ckpt *ckpt, const char *folder, const char *prefix,
                 struct s2s_error *err)
{
    char *index = s2s_xasprintf("%smodel.safetensors.index.json", folder);
    char *single = s2s_xasprintf("%smodel.safetensors", folder), **files = NULL;
    size_t n = 0, first = ckpt->n_tensors;
    struct index map;
    int rc = load_index(ckpt, index, &map, err);
    if (rc == 0 && map.n)
        index_files(&map, folder, &files, &n);
    else if (rc == 0 && faccessat(ckpt->dir_fd, single, F_OK, 0) == 0) {
        rc = read_file(ckpt, single, prefix, false, err);
        if (rc == 0)
            rc = warn_of_others(ckpt, folder, ".safetensors", &single, 1,
                                "beside model.safetensors", err);
    } else if (rc == 0)
        rc = list_suffix(ckpt, folder, ".safetensors", &files, &n, err);
    if (rc == 0 && !map.n)
        rc = ckpt_check_parts(files, n, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_file(ckpt, files[i], prefix, false, err);
    if (rc == 0 && map.n)
        rc = warn_of_others(ckpt, folder, ".safetensors", files, n, "not in the index", err);
    if (rc == 0 && map.n)
        rc = check_index(ckpt, &map, first, folder, prefix, err);
    free_list(files, n);
    release_index(&map);
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
    char **files = NULL;
    size_t n = 0;
    struct index map;
    int rc = load_index(ckpt, "pytorch_model.bin.index.json", &map, err);
    if (rc == 0 && map.n)
        index_files(&map, "", &files, &n);
    else if (rc == 0)
        rc = list_bin(ckpt, &files, &n, err);
    if (rc == 0 && !map.n)
        rc = ckpt_check_parts(files, n, err);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct ckpt_torch_source source = {.file = files[i], .prefix = "", .len_bytes = -1};
        if ((rc = ckpt_read_torch(ckpt, &source, err)) < 0)
            ckpt_hint_bytes(ckpt, files[i], rc, err);
    }
    if (rc == 0 && map.n)
        rc = check_index(ckpt, &map, 0, "", "", err);
    free_list(files, n);
    release_index(&map);
    return rc;
}

/* ---- torch.distributed.checkpoint with safetensors: boxes of one tensor in several files ---- */

/* chunks of the same name, sorted together, become one tensor; its shape is where they end */
static void join_boxes(struct s2s_ckpt *ckpt)
{
    size_t kept = 0;
    qsort(ckpt->tensors, ckpt->n_tensors, sizeof *ckpt->tensors, by_tensor_name);
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
        joined.shape = ckpt_arena_ints(ckpt, shape, joined.n_dims);
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

/* What an index names must be there: without it a box at a tensor's end would not be missed. The
 * tensors are in the order of their names. */
static int check_box_index(struct s2s_ckpt *ckpt, const struct index *index, char **files, size_t n,
                           struct s2s_error *err)
{
    const char *last = NULL;
    for (size_t i = 0; i < index->n; i++) {
        const char *key = index->entries[i].name, *name = index->entries[i].file;
        struct s2s_ckpt_tensor want = {.name = key};
        if (name != last && !has_share(files, n, name))
            return s2s_error_set(err, S2S_E_NOTFOUND,
                                 "%s is missing: the index says that %s is in it", name, key);
        last = name;
        if (!ckpt->n_tensors ||
            !bsearch(&want, ckpt->tensors, ckpt->n_tensors, sizeof *ckpt->tensors, by_tensor_name))
            return s2s_error_set(err, S2S_E_NOTFOUND, "the index says that %s is in %s: it is not",
                                 key, name);
    }
    return 0;
}

int ckpt_read_dcp_hf(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    char **files;
    size_t n;
    struct index index = {.n = 0};
    int rc = list_suffix(ckpt, "", ".safetensors", &files, &n, err);
    if (rc == 0)
        rc = ckpt_check_parts(files, n, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_file(ckpt, files[i], "", true, err);
    if (rc == 0 && ckpt->n_tensors)
        join_boxes(ckpt);
    if (rc == 0)
        rc = load_index(ckpt, "model.safetensors.index.json", &index, err);
    if (rc == 0)
        rc = check_box_index(ckpt, &index, files, n, err);
    release_index(&index);
    free_list(files, n);
    return rc;
}
