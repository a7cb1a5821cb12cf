/*
 * torch.distributed.checkpoint with Hugging Face storage: a tensor is split into boxes in several
 * safetensors files. The offsets of a file's boxes are in its metadata entry DCP_SHARDING_INFO, a
 * JSON object as a string.
 */

#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

/* ---- offsets of boxes ---- */

/* The boxes of one file. */
struct boxes {
    struct s2s_ckpt *ckpt;
    struct s2s_ckpt_tensor *tensors; /* tensors of this file, sorted by name */
    size_t n;
    bool *placed;           /* [n] */
    bool has_info, in_info; /* DCP_SHARDING_INFO exists; the current string is it */
    struct s2s_buf info;    /* its text */
};

static int place_box(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor, const json_t *list,
                     struct s2s_error *err)
{
    int64_t offset[S2S_MAX_DIMS];
    if (!list)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: no saved_offsets", tensor->name);
    if (!json_is_array(list) || json_array_size(list) != (size_t)tensor->n_dims)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: saved_offsets with another number of axes",
                             tensor->name);
    for (int d = 0; d < tensor->n_dims; d++) {
        const json_t *value = json_array_get(list, (size_t)d);
        offset[d] = json_integer_value(value);
        if (!json_is_integer(value) || offset[d] < 0 || offset[d] > INT64_MAX - tensor->shape[d])
            return s2s_error_set(err, S2S_E_FORMAT, "%s: bad saved_offsets", tensor->name);
    }
    struct ckpt_chunk chunk = ckpt_chunk_at(tensor, 0);
    chunk.offset = offset;
    ckpt_set_chunks(ckpt, tensor, &chunk, 1);
    return 0;
}

static int take_entry(struct boxes *b, const char *name, const json_t *info, struct s2s_error *err)
{
    const struct s2s_ckpt_tensor key = {.name = name};
    const json_t *list = json_object_get(info, "saved_offsets");
    struct s2s_ckpt_tensor *end = b->tensors + b->n, *tensor = NULL;
    int rc = 0;
    if (b->n)
        tensor = bsearch(&key, b->tensors, b->n, sizeof key, ckpt_by_tensor_name);
    if (!tensor)
        return 0;
    /* a name that is in the file twice: both get the offset, and are found to overlap */
    while (tensor > b->tensors && strcmp(tensor[-1].name, name) == 0)
        tensor--;
    b->placed[tensor - b->tensors] = true;
    for (; rc == 0 && tensor < end && strcmp(tensor->name, name) == 0; tensor++)
        rc = place_box(b->ckpt, tensor, list, err);
    return rc;
}

static int take_text(void *ctx, const char *key, const char *piece, struct s2s_error *err)
{
    struct boxes *b = ctx;
    if (key)
        b->in_info = strcmp(key, "DCP_SHARDING_INFO") == 0;
    b->has_info |= b->in_info;
    if (b->in_info)
        s2s_buf_puts(&b->info, piece);
    return 0;
}

static int take_info(struct boxes *b, struct s2s_error *err)
{
    const char *name;
    json_t *entry;
    int rc = 0;
    json_t *info =
        json_loadb(b->info.data ? b->info.data : "", b->info.len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(info))
        rc = s2s_error_set(err, S2S_E_FORMAT, "DCP_SHARDING_INFO is not JSON");
    json_object_foreach(info, name, entry)
    {
        if (rc == 0)
            rc = take_entry(b, name, entry, err);
    }
    json_decref(info);
    return rc;
}

/* Checks that every box has an offset: PyTorch refuses a file without it, too. */
static int check_all_placed(const struct boxes *b, struct s2s_error *err)
{
    for (size_t i = 0; i < b->n; i++)
        if (!b->placed[i] && (i == 0 || strcmp(b->tensors[i - 1].name, b->tensors[i].name) != 0))
            return s2s_error_set(err, S2S_E_FORMAT, "%s: not in DCP_SHARDING_INFO",
                                 b->tensors[i].name);
    return 0;
}

static int read_boxes(struct s2s_ckpt *ckpt, int fd, size_t first, struct s2s_error *err)
{
    struct boxes b = {.ckpt = ckpt, .tensors = ckpt->tensors + first, .n = ckpt->n_tensors - first};
    b.placed = s2s_xcalloc(b.n + 1, sizeof *b.placed);
    if (b.n)
        s2s_sort(b.tensors, b.n, sizeof *b.tensors, ckpt_by_tensor_name);
    int rc = s2s_safetensors_read_texts(fd, take_text, &b, err);
    if (rc == 0 && b.has_info)
        rc = take_info(&b, err);
    if (rc == 0 && b.has_info)
        rc = check_all_placed(&b, err);
    s2s_buf_release(&b.info);
    free(b.placed);
    return rc;
}

static int read_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err)
{
    const size_t first = ckpt->n_tensors;
    int rc = ckpt_read_safetensors(ckpt, name, "", err);
    if (rc < 0)
        return rc;
    int fd = ckpt_file_fd(ckpt, ckpt_add_file(ckpt, name, err), err);
    if (fd < 0)
        return fd;
    rc = read_boxes(ckpt, fd, first, err);
    return rc < 0 ? s2s_error_add(err, rc, "%s", name) : 0;
}

/* ---- tensors ---- */

/* chunks of the same name, sorted together, become one tensor; its shape is where they end */
static void join_boxes(struct s2s_ckpt *ckpt)
{
    size_t kept = 0;
    s2s_sort(ckpt->tensors, ckpt->n_tensors, sizeof *ckpt->tensors, ckpt_by_tensor_name);
    for (size_t i = 0, next; i < ckpt->n_tensors; i = next) {
        struct s2s_ckpt_tensor joined = ckpt->tensors[i];
        int64_t shape[S2S_MAX_DIMS] = {0};
        next = i + 1;
        while (next < ckpt->n_tensors && strcmp(ckpt->tensors[next].name, joined.name) == 0 &&
               ckpt->tensors[next].n_dims == joined.n_dims &&
               ckpt->tensors[next].dtype == joined.dtype)
            next++;
        const size_t n = next - i;
        struct ckpt_chunk *chunks = s2s_xcalloc(n, sizeof *chunks);
        for (size_t k = 0; k < n; k++) {
            chunks[k] = ckpt_chunk_at(&ckpt->tensors[i + k], 0);
            for (int d = 0; d < joined.n_dims; d++) {
                int64_t end = chunks[k].offset[d] + chunks[k].size[d];
                shape[d] = end > shape[d] ? end : shape[d];
            }
        }
        joined.shape = ckpt_arena_ints(ckpt, shape, joined.n_dims);
        ckpt_set_chunks(ckpt, &joined, chunks, n);
        free(chunks);
        ckpt->tensors[kept++] = joined;
    }
    ckpt->n_tensors = kept;
}

/* Is `name`, or a rank's shard of it ("shard-00001-" is prepended), one of the files? */
static bool has_shard(char **files, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(files[i], name) == 0 ||
            (s2s_starts_with(files[i], "shard-") && s2s_has_tail(files[i], '-', name)))
            return true;
    return false;
}

/* Checks that the files and tensors of the index exist; otherwise a missing box at a tensor's end
 * would go unnoticed. Tensors are sorted by name. */
static int check_box_index(struct s2s_ckpt *ckpt, char **files, size_t n, struct s2s_error *err)
{
    const char *key, *last = NULL; /* the file that was found last */
    json_t *map, *value;
    int rc = ckpt_read_index(ckpt, "model.safetensors.index.json", &map, err);
    json_object_foreach(map, key, value)
    {
        const char *file = json_string_value(value);
        if ((!last || strcmp(last, file) != 0) && !has_shard(files, n, file))
            rc = s2s_error_set(err, S2S_E_NOTFOUND,
                               "%s is missing: the index says that %s is in it", file, key);
        else if (!s2s_ckpt_find(ckpt, key))
            rc = s2s_error_set(err, S2S_E_NOTFOUND, "the index says that %s is in %s: it is not",
                               key, file);
        if (rc < 0)
            break;
        last = file;
    }
    json_decref(map);
    return rc < 0 ? rc : 0;
}

/* NeMo Automodel lists the tensors that its shards are to be merged into, including names that were
 * not saved (tied weights): so names without a tensor are only a warning. */
static void warn_of_absent(struct s2s_ckpt *ckpt)
{
    static const char name[] = ".hf_metadata/fqn_to_file_index_mapping.json";
    struct s2s_error err = S2S_ERROR_INIT;
    const char *key, *first = NULL;
    size_t n_absent = 0;
    json_t *names, *file;
    if (!s2s_is_there(ckpt->dir_fd, name))
        return;
    if (ckpt_read_json(&names, ckpt, name, &err) < 0)
        s2s_warn("ckpt", "not used: %s", err.text);
    json_object_foreach(names, key, file)
    {
        if (!s2s_ckpt_find(ckpt, key) && n_absent++ == 0)
            first = key;
    }
    if (n_absent)
        s2s_warn("ckpt",
                 "%s: no file has %zu of the tensors that %s names, such as %s: unless they are "
                 "tied to others, a rank's share is missing",
                 ckpt->path, n_absent, name, first);
    json_decref(names);
}

static bool has_words(const char *name)
{
    static const char *const parts[] = {"embed_tokens.weight", "embeddings.weight", "wte.weight",
                                        "word_embeddings.weight", "lm_head.weight"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (s2s_has_tail(name, '.', parts[i]))
            return true;
    return false;
}

/* NeMo Automodel writes no index, so nothing records the number of ranks: without the last rank's
 * shard all tensors would simply be shorter. The vocabulary size in config.json gives the expected
 * rows of one of them. */
static int check_words(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct s2s_error ignored = S2S_ERROR_INIT; /* reported by verify */
    const struct s2s_ckpt_tensor *most = NULL;
    json_t *config;
    if (ckpt_read_json(&config, ckpt, "config.json", &ignored) < 0)
        return 0;
    const json_t *words = json_object_get(ckpt_text_config(config), "vocab_size");
    const int64_t vocab = json_is_integer(words) ? json_integer_value(words) : 0;
    json_decref(config);
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const struct s2s_ckpt_tensor *t = &ckpt->tensors[i];
        if (t->n_dims == 2 && has_words(t->name) && (!most || t->shape[0] > most->shape[0]))
            most = t;
    }
    if (!most || most->shape[0] >= vocab)
        return 0;
    int rc = s2s_error_set(err, S2S_E_NOTFOUND,
                           "%s ends with row %lld; config.json says %lld: the last rank's share is "
                           "missing",
                           most->name, (long long)most->shape[0], (long long)vocab);
    return s2s_error_hint(err, rc, "copy the whole folder");
}

int ckpt_read_dcp_hf(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    char **files;
    size_t n;
    int rc = ckpt_list_suffix(ckpt, "", ".safetensors", &files, &n, err);
    if (rc == 0)
        rc = ckpt_check_parts(files, n, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_file(ckpt, files[i], err);
    if (rc == 0 && ckpt->n_tensors)
        join_boxes(ckpt);
    if (rc == 0)
        rc = check_box_index(ckpt, files, n, err);
    if (rc == 0)
        rc = check_words(ckpt, err);
    if (rc == 0)
        warn_of_absent(ckpt);
    ckpt_free_list(files, n);
    return rc;
}
