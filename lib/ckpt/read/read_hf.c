/* Hugging Face folders: safetensors or torch files, single or listed by an index. */

#include <dirent.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/read/read_internal.h"

int ckpt_list_suffix(struct s2s_ckpt *ckpt, const char *folder, const char *suffix, char ***names,
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

/* Context while the tensors of one safetensors file are added. */
struct st_reader {
    struct s2s_ckpt *ckpt;
    int file;
    int64_t data_pos;
    const char *prefix; /* prepended to every name */
};

static int add_st_tensor(void *ctx, const struct s2s_st_tensor *st, size_t begin,
                         struct s2s_error *err)
{
    const struct st_reader *r = ctx;
    struct s2s_ckpt *ckpt = r->ckpt;
    struct s2s_ckpt_tensor *tensor;
    char *name = *r->prefix ? s2s_xasprintf("%s%s", r->prefix, st->name) : NULL;
    const char *full = name ? name : st->name;
    int rc = ckpt_add_tensor(ckpt, &tensor, full, strlen(full), err);
    free(name);
    if (rc < 0)
        return rc;
    tensor->dtype = st->dtype;
    tensor->n_dims = st->n_dims;
    tensor->shape = ckpt_arena_ints(ckpt, st->shape, st->n_dims);
    const struct ckpt_chunk chunk = {.offset = ckpt_origin,
                                     .size = tensor->shape,
                                     .data = r->data_pos + (int64_t)begin,
                                     .place = {.file = r->file,
                                               .located = true,
                                               .store_pos = r->data_pos + (int64_t)begin,
                                               .store_len = (int64_t)st->len_bytes}};
    ckpt_set_chunks(ckpt, tensor, &chunk, 1);
    return 0;
}

/* The tensor of that name among these n, which are sorted; or NULL. */
static const struct s2s_ckpt_tensor *find_among(const struct s2s_ckpt_tensor *tensors, size_t n,
                                                const char *name)
{
    const struct s2s_ckpt_tensor want = {.name = name};
    return n ? bsearch(&want, tensors, n, sizeof want, ckpt_by_tensor_name) : NULL;
}

/* safetensors' save_model, which the hub's own and NeMo's models are saved with, writes a tensor
 * with several names once, and maps each of its other names to that one in the metadata. */
static void keep_other_names(struct s2s_ckpt *ckpt, const struct s2s_safetensors *st, size_t first,
                             const char *prefix)
{
    const size_t n = ckpt->n_tensors - first;
    if (n == 0 || st->n_meta == 0 || (st->n_meta == 1 && strcmp(st->meta[0].key, "format") == 0))
        return;
    s2s_sort(ckpt->tensors + first, n, sizeof *ckpt->tensors, ckpt_by_tensor_name);
    for (size_t i = 0; i < st->n_meta; i++) {
        char *other = s2s_xasprintf("%s%s", prefix, st->meta[i].key);
        char *written = s2s_xasprintf("%s%s", prefix, st->meta[i].value);
        if (find_among(ckpt->tensors + first, n, written)) {
            if (!ckpt->other_names)
                ckpt->other_names = json_object();
            json_object_set_new(ckpt->other_names, other, json_string(written));
        }
        free(other);
        free(written);
    }
}

int s2s_ckpt_add_other_names(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    const char *other;
    json_t *written;
    const size_t n = ckpt->n_tensors;
    int rc = 0;
    json_object_foreach(ckpt->other_names, other, written)
    {
        struct s2s_ckpt_tensor *added;
        json_object_del(ckpt->texts, other); /* the tensors say it now */
        const struct s2s_ckpt_tensor *found =
            find_among(ckpt->tensors, n, json_string_value(written));
        if (!found || find_among(ckpt->tensors, n, other))
            continue;
        const struct s2s_ckpt_tensor same = *found; /* adding may move it */
        rc = ckpt_add_tensor(ckpt, &added, other, strlen(other), err);
        if (rc < 0)
            return rc;
        const char *name = added->name;
        *added = same;
        added->name = name;
    }
    json_decref(ckpt->other_names);
    ckpt->other_names = NULL;
    rc = ckpt_seal(ckpt, err);
    return rc < 0 ? rc : ckpt_check_total(ckpt, err);
}

int ckpt_read_safetensors(struct s2s_ckpt *ckpt, const char *file, const char *prefix,
                          struct s2s_error *err)
{
    struct s2s_safetensors st;
    struct st_reader r = {.ckpt = ckpt, .file = ckpt_add_file(ckpt, file, err), .prefix = prefix};
    const size_t first = ckpt->n_tensors;
    int fd = ckpt_file_fd(ckpt, r.file, err);
    if (fd < 0)
        return fd;
    int rc = s2s_safetensors_read_header(&st, fd, &r.data_pos, add_st_tensor, &r, err);
    if (rc == 0) {
        keep_other_names(ckpt, &st, first, prefix);
        rc = ckpt_keep_texts(ckpt, &st, fd, prefix, err);
        s2s_safetensors_release(&st);
    }
    return rc < 0 ? s2s_error_add(err, ckpt_hint_bytes(ckpt, file, rc, err), "%s", file) : 0;
}

/* ---- sets of numbered files: "model-00002-of-00003.safetensors" ---- */

/* torch names a rank's shard of such a file "shard-00004-model-00002-of-00003.safetensors". A rank
 * without data writes none, so any rank will do. */
static const char *without_rank(const char *name, long *rank)
{
    static const char prefix[] = "shard-";
    size_t n = strlen(prefix), digits;
    *rank = 0;
    if (strncmp(name, prefix, n) != 0)
        return name;
    digits = strspn(name + n, "0123456789");
    if (digits < 1 || digits > 9 || name[n + digits] != '-')
        return name;
    *rank = strtol(name + n, NULL, 10);
    return name + n + digits + 1;
}

/* STEM-K-of-N.SUFFIX */
struct part {
    const char *name, *suffix; /* suffix: from the dot on; the stem is what precedes the first digit
                                */
    size_t stem_len, n_digits;
    long k, n;
    long rank; /* from 1; 0: none in the name */
};

static bool parse_part(struct part *part, const char *path)
{
    const char *slash = strrchr(path, '/'), *name;
    long rank;
    name = without_rank(slash ? slash + 1 : path, &rank);
    const char *of = strstr(name, "-of-"), *k = of;
    char *end;
    for (const char *next = of; next; next = strstr(of + 1, "-of-"))
        of = next;
    if (!of)
        return false;
    for (k = of; k > name && k[-1] >= '0' && k[-1] <= '9';)
        k--;
    size_t n_digits = (size_t)(of - k);
    /* nine digits fit in a long */
    if (!n_digits || n_digits > 9 || k == name || k[-1] != '-' ||
        strspn(of + strlen("-of-"), "0123456789") - 1 > 8)
        return false;
    *part = (struct part){.name = name,
                          .stem_len = (size_t)(k - name),
                          .n_digits = n_digits,
                          .k = strtol(k, NULL, 10),
                          .rank = rank,
                          .n = strtol(of + strlen("-of-"), &end, 10)};
    part->suffix = end;
    return *end == '.';
}

static int order(const struct part *a, const struct part *b)
{
    size_t len = a->stem_len < b->stem_len ? a->stem_len : b->stem_len;
    int by = memcmp(a->name, b->name, len);
    if (by == 0)
        by = (a->stem_len > b->stem_len) - (a->stem_len < b->stem_len);
    if (by == 0)
        by = (a->n > b->n) - (a->n < b->n);
    return by ? by : strcmp(a->suffix, b->suffix);
}

static int by_set_and_number(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    int by = order(x, y);
    if (by == 0)
        by = (x->k > y->k) - (x->k < y->k);
    return by ? by : (x->rank > y->rank) - (x->rank < y->rank);
}

/*
 * Nothing records how many ranks there were, nor the full length of a tensor: its last rows are
 * where the file of its last rank ends. If other files of the set have shards of more ranks than
 * one has, the missing shards may be lost, or may never have existed.
 */
static void warn_of_ranks(const struct part *parts, size_t n)
{
    for (size_t first = 0, i; first < n; first = i) {
        long most = 0;
        for (i = first; i < n && order(&parts[i], &parts[first]) == 0; i++)
            most = parts[i].rank > most ? parts[i].rank : most;
        for (size_t j = first; j < i; j++) {
            const struct part *p = &parts[j];
            if ((j + 1 == i || p[1].k != p->k) && p->rank > 0 && p->rank < most) {
                s2s_warn("ckpt",
                         "%s: the last share is of rank %ld, that of other files of rank %ld; if "
                         "one was lost, so were the last rows of its tensors",
                         p->name, p->rank, most);
                return;
            }
        }
    }
}

void ckpt_warn_of_part(const char *path)
{
    struct part part;
    const char *slash = strrchr(path, '/');
    if (s2s_starts_with(slash ? slash + 1 : path, CKPT_FSDP_RANK))
        s2s_warn("ckpt",
                 "%s: by its name one of a file for each rank, and read alone; name the folder "
                 "for whole tensors",
                 path);
    else if (parse_part(&part, path) && part.n > 1)
        s2s_warn("ckpt",
                 "%s: by its name one of %ld files, and read alone; name the folder for all", path,
                 part.n);
}

int ckpt_check_parts(char **files, size_t n_files, struct s2s_error *err)
{
    struct part *parts = s2s_xcalloc(n_files + 1, sizeof *parts);
    size_t n = 0;
    long before = 0, end = 0; /* last number of the set so far; first number past its end */
    int rc = 0;
    for (size_t i = 0; i < n_files; i++)
        n += parse_part(&parts[n], files[i]);
    if (n)
        qsort(parts, n, sizeof *parts, by_set_and_number);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct part *p = &parts[i];
        bool first = i == 0 || order(p, &parts[i - 1]) != 0;
        bool last = i + 1 == n || order(p, &parts[i + 1]) != 0;
        if (first) { /* some sets count from 0 */
            before = p->k == 0 ? -1 : 0;
            end = p->n + (p->k > 0);
        }
        long absent = p->k > before + 1 ? before + 1 : last ? p->k + 1 : end;
        before = p->k;
        if (absent < end)
            rc = s2s_error_set(err, S2S_E_NOTFOUND,
                               "%.*s%0*ld-of-%0*ld%s is missing: %s says that there are %ld",
                               (int)p->stem_len, p->name, (int)p->n_digits, absent,
                               (int)p->n_digits, p->n, p->suffix, p->name, p->n);
    }
    if (rc == 0)
        warn_of_ranks(parts, n);
    free(parts);
    return rc < 0 ? s2s_error_hint(err, rc, "copy the whole folder") : 0;
}

/* ---- index ---- */

int ckpt_read_index(struct s2s_ckpt *ckpt, const char *index, json_t **map, struct s2s_error *err)
{
    enum { MAX_INDEX = 256 << 20 };
    json_error_t at;
    char *text;
    size_t len;
    const char *key;
    json_t *file;
    *map = NULL;
    if (!s2s_is_there(ckpt->dir_fd, index))
        return 0;
    int rc = ckpt_slurp(ckpt->dir_fd, index, MAX_INDEX, &text, &len, err);
    if (rc < 0)
        return rc;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &at);
    free(text);
    if (!root)
        return s2s_error_set(err, S2S_E_FORMAT, "%s:%d: %s", index, at.line, at.text);
    *map = json_incref(json_object_get(root, "weight_map"));
    json_decref(root);
    if (!json_is_object(*map))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: no object weight_map", index);
    else if (json_object_size(*map) == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: weight_map is empty", index);
    json_object_foreach(*map, key, file)
    {
        if (rc == 0 && (!json_is_string(file) ||
                        !ckpt_name_is_plain(json_string_value(file), json_string_length(file))))
            rc = s2s_error_set(err, S2S_E_FORMAT,
                               "%s: %s is said to be in what is not a plain file name: refused",
                               index, key);
    }
    if (rc == 0)
        return 1;
    json_decref(*map);
    *map = NULL;
    return rc;
}

/* The distinct files of an index, in its order. Gives: ckpt_free_list. */
static void list_files(const json_t *map, const char *folder, char ***names, size_t *n)
{
    json_t *seen = json_object();
    const char *key;
    json_t *file;
    size_t cap = 0;
    json_object_foreach((json_t *)map, key, file)
    {
        if (json_object_get(seen, json_string_value(file)))
            continue;
        json_object_set_new(seen, json_string_value(file), json_null());
        s2s_grow(names, *n, &cap, sizeof **names);
        (*names)[(*n)++] = s2s_xasprintf("%s%s", folder, json_string_value(file));
    }
    json_decref(seen);
}

/* Warns of safetensors files that are not in the index, or beside model.safetensors: like
 * transformers, this does not read them. */
static int warn_of_others(struct s2s_ckpt *ckpt, const char *folder, char **known, size_t n_known,
                          const char *why, struct s2s_error *err)
{
    char **files;
    size_t n;
    int rc = ckpt_list_suffix(ckpt, folder, ".safetensors", &files, &n, err);
    qsort(known, n_known, sizeof *known, ckpt_by_text);
    for (size_t i = 0; i < n; i++)
        if (!bsearch(&files[i], known, n_known, sizeof *known, ckpt_by_text))
            s2s_warn("ckpt", "%s: %s, not read", files[i], why);
    ckpt_free_list(files, n);
    return rc;
}

/* Has another tensor of the file the same name? Sorted from `first` on. */
static bool has_duplicate(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *t,
                          size_t first)
{
    const struct s2s_ckpt_tensor *begin = ckpt->tensors + first,
                                 *end = ckpt->tensors + ckpt->n_tensors;
    return (t > begin && strcmp(t[-1].name, t->name) == 0) ||
           (t + 1 < end && strcmp(t[1].name, t->name) == 0);
}

/* Checks that a name of the index is in its file, among the tensors from `first` on. Gives the
 * tensor's index. */
static int check_entry(const struct s2s_ckpt *ckpt, size_t first, const char *folder,
                       const char *prefix, const char *key, const char *file, size_t *idx,
                       struct s2s_error *err)
{
    const size_t n = ckpt->n_tensors - first;
    char *name = s2s_xasprintf("%s%s", prefix, key);
    const struct s2s_ckpt_tensor *found = n ? find_among(ckpt->tensors + first, n, name) : NULL;
    free(name);
    if (found && has_duplicate(ckpt, found, first))
        return s2s_error_set(err, S2S_E_FORMAT, "tensor %s is in two of the index's files", key);
    if (!found ||
        strcmp(ckpt->files[ckpt_place_at(found, 0)->file].name + strlen(folder), file) != 0)
        return s2s_error_set(err, S2S_E_NOTFOUND, "the index says that %s is in %s%s: it is not",
                             key, folder, file);
    *idx = (size_t)(found - (ckpt->tensors + first));
    return 0;
}

/* Checks that every name of the index is in its file. Tensors that are not in the index are read,
 * as transformers does, with a warning. first: the first tensor of these files. */
static int check_index(struct s2s_ckpt *ckpt, const json_t *map, size_t first, const char *folder,
                       const char *prefix, struct s2s_error *err)
{
    const size_t n = ckpt->n_tensors - first;
    const char *key;
    json_t *file;
    size_t idx = 0;
    int rc = 0;
    bool *named = s2s_xcalloc(n + 1, sizeof *named);
    if (n)
        s2s_sort(ckpt->tensors + first, n, sizeof *ckpt->tensors, ckpt_by_tensor_name);
    json_object_foreach((json_t *)map, key, file)
    {
        rc = check_entry(ckpt, first, folder, prefix, key, json_string_value(file), &idx, err);
        if (rc < 0)
            break;
        named[idx] = true;
    }
    for (size_t i = 0; i < n && rc == 0; i++)
        if (!named[i])
            s2s_warn("ckpt", "%s: not in the index, but read", ckpt->tensors[first + i].name);
    free(named);
    return rc;
}

int ckpt_read_hf(struct s2s_ckpt *ckpt, const char *folder, const char *prefix,
                 struct s2s_error *err)
{
    char *index = s2s_xasprintf("%smodel.safetensors.index.json", folder);
    char *single = s2s_xasprintf("%smodel.safetensors", folder), **files = NULL;
    size_t n = 0, first = ckpt->n_tensors;
    json_t *map;
    int rc = ckpt_read_index(ckpt, index, &map, err);
    const bool indexed = rc > 0;
    rc = rc < 0 ? rc : 0;
    if (indexed)
        list_files(map, folder, &files, &n);
    if (rc == 0 && !indexed && s2s_is_there(ckpt->dir_fd, single)) {
        rc = ckpt_read_safetensors(ckpt, single, prefix, err);
        if (rc == 0)
            rc = warn_of_others(ckpt, folder, &single, 1, "beside model.safetensors", err);
    } else if (rc == 0 && !indexed) {
        rc = ckpt_list_suffix(ckpt, folder, ".safetensors", &files, &n, err);
    }
    if (rc == 0 && !indexed)
        rc = ckpt_check_parts(files, n, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = ckpt_read_safetensors(ckpt, files[i], prefix, err);
    if (rc == 0 && indexed)
        rc = warn_of_others(ckpt, folder, files, n, "not in the index", err);
    if (rc == 0 && indexed)
        rc = check_index(ckpt, map, first, folder, prefix, err);
    json_decref(map);
    ckpt_free_list(files, n);
    free(index);
    free(single);
    return rc;
}

/* Is it what Accelerate saves of FSDP to resume from (pytorch_model_fsdp.bin), beside the model's
 * own files? They come first in the order of names. */
static bool is_copy(const char *name, char **files, size_t n)
{
    static const char fsdp[] = "pytorch_model_fsdp";
    return n && s2s_starts_with(name, fsdp) && !s2s_starts_with(files[0], fsdp);
}

/* Lists files of weights only: training_args.bin and the like lie beside them. */
static int list_bin(struct s2s_ckpt *ckpt, char ***files, size_t *n, struct s2s_error *err)
{
    size_t kept = 0;
    int rc = ckpt_list_suffix(ckpt, "", ".bin", files, n, err);
    for (size_t i = 0; i < *n; i++) {
        char *name = (*files)[i];
        if ((s2s_starts_with(name, "pytorch_model") && !is_copy(name, *files, kept)) ||
            strcmp(name, "adapter_model.bin") == 0)
            (*files)[kept++] = name;
        else
            free(name);
    }
    *n = kept;
    return rc;
}

int ckpt_read_hf_bin(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    static const char index[] = "pytorch_model.bin.index.json";
    char **files = NULL;
    size_t n = 0;
    json_t *map;
    int rc = ckpt_read_index(ckpt, index, &map, err);
    const bool indexed = rc > 0;
    if (indexed)
        list_files(map, "", &files, &n);
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
        rc = check_index(ckpt, map, 0, "", "", err);
    json_decref(map);
    ckpt_free_list(files, n);
    return rc;
}
