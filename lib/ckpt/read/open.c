/* Which format is it? The first test that holds decides. */
#include "lib/ckpt/model.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"

static const char LATEST[] = "LATEST";

static bool has(const struct s2s_ckpt *ckpt, const char *name)
{
    return ckpt_is_there(ckpt->dir_fd, name);
}

/* The names in the folder, sorted, but for hidden ones, which are nobody's weights: macOS puts a
 * "._NAME" beside what it copies. */
struct listing {
    char **names;
    size_t n;
};

/* The first one that starts and ends so; NULL: none. */
static const char *find_name(const struct listing *list, const char *prefix, const char *suffix)
{
    for (size_t i = 0; i < list->n; i++)
        if (s2s_starts_with(list->names[i], prefix) && strlen(list->names[i]) > strlen(suffix) &&
            s2s_ends_with(list->names[i], suffix))
            return list->names[i];
    return NULL;
}

static bool has_like(const struct listing *list, const char *prefix, const char *suffix)
{
    return find_name(list, prefix, suffix) != NULL;
}

/* A descriptor of a folder whose files may be opened: one that may only be listed would look like
 * one without them. */
static int open_folder(int at, const char *name, enum s2s_errc otherwise, struct s2s_error *err)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && faccessat(fd, ".", X_OK, AT_EACCESS) == 0)
        return fd;
    int rc = s2s_error_errno(err, errno == EACCES ? S2S_E_OPEN : otherwise, "%s", name);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* goes into a folder below */
static int enter(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err)
{
    int fd = open_folder(ckpt->dir_fd, name, S2S_E_NOTFOUND, err);
    if (fd < 0)
        return fd;
    char *path = s2s_xasprintf("%s/%s", ckpt->path, name);
    close(ckpt->dir_fd);
    free(ckpt->path);
    ckpt->dir_fd = fd;
    ckpt->path = path;
    return 0;
}

/* What a small file of the folder says, without the white space around it. Gives: free *text. */
static int read_word(const struct s2s_ckpt *ckpt, const char *file, char **text, size_t *len,
                     struct s2s_error *err)
{
    int rc = ckpt_slurp(ckpt->dir_fd, file, NAME_MAX, text, len, err);
    if (rc < 0)
        return rc;
    while (*len && memchr(" \r\n\t", (*text)[*len - 1], 4))
        (*text)[--*len] = 0;
    size_t n_space = strspn(*text, " \r\n\t");
    *len -= n_space;
    memmove(*text, *text + n_space, *len + 1);
    return 0;
}

static int follow_tracker(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    char *text, name[40];
    size_t len;
    int rc = read_word(ckpt, CKPT_TRACKER, &text, &len, err);
    if (rc < 0)
        return rc;
    ckpt->release = strcmp(text, "release") == 0;
    if (strlen(text) != len)
        rc = s2s_error_set(err, S2S_E_FORMAT, "a NUL behind \"%s\"", text);
    else if (ckpt->release)
        snprintf(name, sizeof name, "release");
    else if (s2s_parse_i64(&ckpt->iteration, text, 0, INT64_MAX, NULL) < 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "\"%s\" is no iteration", text);
    else
        snprintf(name, sizeof name, "iter_%07lld", (long long)ckpt->iteration);
    free(text);
    if (rc == 0)
        rc = enter(ckpt, name, err);
    if (rc == S2S_E_NOTFOUND)
        ckpt_hint_folder(ckpt, rc, err); /* the last one that was completed */
    return rc < 0 ? s2s_error_add(err, rc, "%s", CKPT_TRACKER) : 0;
}

int ckpt_parse_backend(const char *json, size_t len, char text[64], struct s2s_error *err)
{
    static const char *const versions[] = {"sharded_backend_version", "common_backend_version"};
    json_error_t at;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &at);
    const char *backend = json_string_value(json_object_get(root, "sharded_backend"));
    int rc = root ? 0 : s2s_error_set(err, S2S_E_FORMAT, "metadata.json:%d: %s", at.line, at.text);
    for (size_t i = 0; rc == 0 && i < sizeof versions / sizeof *versions; i++) {
        const json_int_t version = json_integer_value(json_object_get(root, versions[i]));
        if (version > 1)
            rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "metadata.json: %s %lld; none past 1 is known", versions[i],
                               (long long)version);
    }
    snprintf(text, 64, "%s", rc == 0 && backend ? backend : "");
    json_decref(root);
    return rc;
}

static int read_backend(struct s2s_ckpt *ckpt, char text[64], struct s2s_error *err)
{
    char *bytes;
    size_t len;
    text[0] = 0;
    if (!has(ckpt, "metadata.json"))
        return 0;
    int rc = ckpt_slurp(ckpt->dir_fd, "metadata.json", 1 << 20, &bytes, &len, err);
    if (rc < 0)
        return rc;
    rc = ckpt_parse_backend(bytes, len, text, err);
    free(bytes);
    return rc;
}

/* zarr: a folder a tensor. Of a folder that may not be searched nothing is known. */
static bool has_zarr(const struct s2s_ckpt *ckpt, const struct listing *list)
{
    bool found = false;
    for (size_t i = 0; i < list->n && !found; i++) {
        char *path = s2s_xasprintf("%s/.zarray", list->names[i]);
        found = faccessat(ckpt->dir_fd, path, F_OK, 0) == 0;
        free(path);
    }
    return found;
}

static int refuse_format(struct s2s_error *err, const char *what, const char *hint)
{
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s", what);
    return s2s_error_hint(err, rc, "%s", hint);
}

static int read_composite(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    int rc = ckpt_read_hf(ckpt, "encoder/", "encoder.", err);
    if (rc == 0)
        rc = ckpt_read_hf(ckpt, "llm/", "llm.", err);
    if (rc == 0 && has(ckpt, "projection.safetensors"))
        rc = ckpt_read_safetensors(ckpt, "projection.safetensors", "", err);
    return rc;
}

/* 1: a header holds the boxes of torch.distributed.checkpoint, as all of a folder do or none; 0.
 * A header that is damaged, or not ours to read, has none: it may be no part of the checkpoint. IO:
 * nobody can know. */
static int has_boxes(const struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err)
{
    struct s2s_safetensors st;
    int64_t data_pos;
    int fd = openat(ckpt->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && (errno == EACCES || !ckpt_is_there(ckpt->dir_fd, name)))
        return 0;
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s", name);
    int rc = s2s_safetensors_read_header(&st, fd, &data_pos, NULL, NULL, err);
    if (rc == 0) {
        rc = s2s_safetensors_meta(&st, "DCP_SHARDING_INFO") != NULL;
        s2s_safetensors_release(&st);
    } else if (rc == S2S_E_IO) {
        s2s_error_add(err, rc, "%s", name);
    } else {
        s2s_error_clear(err);
        rc = 0;
    }
    close(fd);
    return rc;
}

static int read_distributed(struct s2s_ckpt *ckpt, const char *backend, struct s2s_error *err)
{
    /* torch alone has no common state */
    ckpt->unfinished = !*backend && has(ckpt, "common.pt");
    ckpt->format = ckpt->unfinished || strcmp(backend, "torch_dist") == 0 ? "torch_dist" : "dcp";
    ckpt->no_links = true;
    if (ckpt->unfinished)
        s2s_warn("ckpt", "%s: %s", ckpt->path, CKPT_UNFINISHED);
    if (*backend && strcmp(backend, "torch_dist") != 0 && strcmp(backend, "fsdp_dtensor") != 0 &&
        strcmp(backend, "torch_dcp") != 0)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "metadata.json: sharded_backend \"%s\"",
                             backend);
    int rc = ckpt_read_dcp(ckpt, err);
    if (rc == 0)
        rc = ckpt_seal(ckpt, err);
    if (rc == 0)
        rc = ckpt_read_common(ckpt, err);
    if (rc == 0) {
        ckpt_read_args(ckpt);
        ckpt_read_run_config(ckpt);
    }
    return rc;
}

/* an unpacked .nemo */
static bool is_nemo(const struct s2s_ckpt *ckpt)
{
    static const char *const weights[] = {
        "model_weights.ckpt", "model_weights/.metadata", "model_weights/metadata.json",
        "mp_rank_00/model_weights.ckpt", "tp_rank_00_pp_rank_000/model_weights.ckpt"};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (has(ckpt, weights[i]))
            return true;
    return false;
}

/* LATEST or LATEST.txt of NeMo Automodel: a link to, or the name of, a folder beside it */
static int follow_latest(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    char name[NAME_MAX + 1], *text = NULL;
    ssize_t len = readlinkat(ckpt->dir_fd, LATEST, name, sizeof name - 1);
    if (len < 0 && has(ckpt, "LATEST.txt")) {
        size_t n;
        int rc = read_word(ckpt, "LATEST.txt", &text, &n, err);
        if (rc < 0)
            return rc;
        memcpy(name, text, n);
        len = (ssize_t)n;
        free(text);
    }
    if (len < 0)
        return 0;
    if (!ckpt_name_is_plain(name, (size_t)len))
        return s2s_error_hint(
            err, s2s_error_set(err, S2S_E_FORMAT, "LATEST does not name a folder beside it"),
            "give the path of the folder that is meant");
    name[len] = 0;
    return enter(ckpt, name, err);
}

/* Does the folder `name` hold a checkpoint, or one of the folders that trainers put around one?
 * Somebody's model/ alone is not meant: the trainer's own files lie beside it. */
static bool leads_down(const struct s2s_ckpt *ckpt, const char *name, bool inside)
{
    if (strcmp(name, "model") == 0 && !inside && !has(ckpt, "optim") && !has(ckpt, "config.yaml") &&
        !has(ckpt, "model/.hf_metadata"))
        return false;
    return ckpt_folder_has_weights(ckpt->dir_fd, name) || ckpt_folder_is_around(ckpt->dir_fd, name);
}

/* epoch_0_step_20 */
static int64_t step_of(const char *path)
{
    const char *at = strrchr(path, '/'), *step = strstr(at ? at : path, "step_");
    int64_t n;
    return step && s2s_parse_i64(&n, step + 5, 0, INT64_MAX, NULL) == 0 ? n : -1;
}

/* models--OWNER--NAME, the cache of Hugging Face's hub: refs/main says which of snapshots/ is meant
 */
static int follow_hub(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    static const char main_ref[] = "refs/main";
    char *text;
    size_t len;
    if (!has(ckpt, "snapshots") || !has(ckpt, "blobs"))
        return 0;
    if (!has(ckpt, main_ref))
        return s2s_error_hint(err,
                              s2s_error_set(err, S2S_E_NOTFOUND,
                                            "a cache of the Hugging Face hub without %s", main_ref),
                              "name one of the folders in snapshots");
    int rc = read_word(ckpt, main_ref, &text, &len, err);
    if (rc < 0)
        return rc;
    if (!ckpt_name_is_plain(text, len))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s names no snapshot", main_ref);
    if (rc == 0)
        rc = enter(ckpt, "snapshots", err);
    if (rc == 0)
        rc = enter(ckpt, text, err);
    free(text);
    return rc;
}

static int go_down(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    /* Automodel's and NeMo RL's optimizer, and the model beside a policy that judges what it does
     */
    static const char *const beside[] = {"optim", "optimizer/optim", "value"};
    enum { LEVELS = 4 };
    const char *next = "";
    int rc = follow_hub(ckpt, err);
    for (int level = 0; rc == 0 && next && level < LEVELS; level++) {
        if (has(ckpt, CKPT_TRACKER)) {
            rc = follow_tracker(ckpt, err);
            continue;
        }
        if (has(ckpt, ".incomplete"))
            return s2s_error_hint(
                err,
                s2s_error_set(err, S2S_E_TRUNCATED, "an unfinished save: .incomplete is there"),
                "remove .incomplete if its files are known to be complete");
        if (ckpt_folder_has_weights(ckpt->dir_fd, "."))
            return 0;
        if (ckpt->iteration < 0)
            ckpt->iteration = step_of(ckpt->path);
        next = NULL;
        for (size_t i = 0; !next && i < CKPT_N_AROUND; i++)
            next = leads_down(ckpt, ckpt_around[i], level > 0) ? ckpt_around[i] : NULL;
        for (size_t i = 0; next && i < sizeof beside / sizeof *beside; i++)
            if (ckpt_folder_has_weights(ckpt->dir_fd, beside[i]) ||
                ckpt_folder_is_around(ckpt->dir_fd, beside[i]))
                s2s_warn("ckpt", "%s: %s/ is read; %s/ beside it is a checkpoint of its own",
                         ckpt->path, next, beside[i]);
        if (!next && level == 0 && (has(ckpt, LATEST) || has(ckpt, "LATEST.txt")))
            next = LATEST;
        if (next)
            rc = next == LATEST ? follow_latest(ckpt, err) : enter(ckpt, next, err);
    }
    return rc;
}

/* one that torch.distributed.checkpoint did not write */
static int read_other_folder(struct s2s_ckpt *ckpt, const struct listing *list,
                             struct s2s_error *err)
{
    const char *file = find_name(list, "", ".safetensors");
    if (is_nemo(ckpt)) {
        ckpt->format = "nemo";
        return ckpt_read_nemo(ckpt, NULL, err);
    }
    /* transformers' Trainer has the whole model beside DeepSpeed's state */
    const bool bins = has_like(list, "pytorch_model", ".bin") || has(ckpt, "adapter_model.bin");
    if (has_like(list, "", "_model_states.pt") || has_like(list, "", "_optim_states.pt") ||
        (has(ckpt, "latest") && has_like(list, "global_step", "") && !file && !bins))
        return refuse_format(err, "a DeepSpeed checkpoint (a file a rank)",
                             "the zero_to_fp32.py that DeepSpeed put beside it makes one file of "
                             "it; without ZeRO 3 the weights are in mp_rank_00_model_states.pt");
    if (has_like(list, "mp_rank_", "")) {
        ckpt->format = "mp_rank";
        return ckpt_read_mp_rank(ckpt, err);
    }
    if (has(ckpt, "encoder") && has(ckpt, "llm")) {
        ckpt->format = "hf";
        return read_composite(ckpt, err);
    }
    if (file) {
        const int boxes = has_boxes(ckpt, file, err);
        if (boxes < 0)
            return boxes;
        ckpt->format = boxes ? "dcp_hf" : "hf";
        return boxes ? ckpt_read_dcp_hf(ckpt, err) : ckpt_read_hf(ckpt, "", "", err);
    }
    if (bins) {
        ckpt->format = "hf_bin";
        return ckpt_read_hf_bin(ckpt, err);
    }
    return ckpt_hint_folder(
        ckpt, s2s_error_set(err, S2S_E_FORMAT, "no checkpoint that is known here"), err);
}

/* without .metadata */
static int read_listed(struct s2s_ckpt *ckpt, const char *backend, const struct listing *list,
                       struct s2s_error *err)
{
    if (strcmp(backend, "zarr") == 0 || has_zarr(ckpt, list))
        return refuse_format(err, "a zarr checkpoint (Megatron-Core before 0.15)",
                             "load and save it with Megatron-Core 0.14 as torch_dist");
    if (has_like(list, "__", ".metadata"))
        return refuse_format(err, "one metadata file a rank (saved without collectives)",
                             "merge them with torch.distributed.checkpoint first");
    if (has_like(list, "", ".distcp"))
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "an unfinished save: there is .distcp data and no .metadata");
    return read_other_folder(ckpt, list, err);
}

static int read_folder(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    char backend[64];
    struct listing list;
    if (has(ckpt, CKPT_JOURNAL)) {
        int refused = s2s_error_set(err, S2S_E_TRUNCATED, "an unfinished conversion of s2s-ckpt");
        return s2s_error_hint(err, refused, "its command with --resume goes on from there");
    }
    int rc = go_down(ckpt, err);
    if (rc == 0)
        rc = read_backend(ckpt, backend, err);
    if (rc < 0)
        return rc;
    if (has(ckpt, ".metadata") && strcmp(backend, "zarr") != 0)
        return read_distributed(ckpt, backend, err);
    rc = ckpt_list_suffix(ckpt, "", "", &list.names, &list.n, err);
    if (rc == 0)
        rc = read_listed(ckpt, backend, &list, err);
    ckpt_free_list(list.names, list.n);
    return rc;
}

static int read_single(struct s2s_ckpt *ckpt, const char *path, struct s2s_error *err)
{
    unsigned char head[CKPT_TORCH_HEAD] = {0};
    char magic[5] = "";
    int file = ckpt_add_file(ckpt, path, err);
    int fd = ckpt_file_fd(ckpt, file, err);
    if (fd < 0)
        return fd;
    int64_t len = ckpt->files[file].len_bytes;
    int rc =
        ckpt_pread(fd, head, len < (int64_t)sizeof head ? (size_t)len : sizeof head, 0, path, err);
    if (rc < 0)
        return rc;
    struct ckpt_torch_source source = {.file = path, .prefix = "", .len_bytes = -1};
    if (len > 8 && head[8] == '{') {
        ckpt->format = "safetensors";
        return ckpt_read_safetensors(ckpt, path, "", err);
    }
    if (memcmp(head, "PK\3\4", 4) == 0 || ckpt_is_legacy_torch(head)) {
        ckpt->format = head[0] == 'P' ? "torch" : "torch_legacy";
        rc = ckpt_read_torch(ckpt, &source, err);
        return rc < 0 ? ckpt_hint_file(path, rc, err) : 0;
    }
    if (len > 262 && (rc = ckpt_pread(fd, magic, sizeof magic, 257, path, err)) < 0)
        return rc;
    if (memcmp(magic, "ustar", sizeof magic) == 0 || ckpt_is_compressed(head)) {
        ckpt->format = "nemo";
        return ckpt_read_nemo(ckpt, path, err);
    }
    rc = s2s_error_set(err, len < 16 ? S2S_E_TRUNCATED : S2S_E_FORMAT,
                       len == 0 ? "%s: is empty"
                                : "%s: neither safetensors, a torch.save file nor a .nemo archive",
                       path);
    return ckpt_hint_file(path, ckpt_hint_bytes(ckpt, path, rc, err), err);
}

/* Views may show one element a million times, and a million views one storage: what comes of a
 * small file must stay in proportion to it. */
static int check_total(const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    enum { TIMES = 256 };
    const __int128 spare = 1 << 30;
    const __int128 there = ckpt_files_bytes(ckpt);
    __int128 told = 0;
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        told += (__int128)s2s_ckpt_numel(&ckpt->tensors[i]) *
                (__int128)s2s_dtype_size(ckpt->tensors[i].dtype);
    for (size_t i = 0; i < ckpt->n_objects; i++)
        told += ckpt->objects[i].len_bytes > 0 ? ckpt->objects[i].len_bytes : 0;
    return told <= TIMES * there + spare
               ? 0
               : s2s_error_set(err, S2S_E_FORMAT,
                               "%s: tensors and objects of %.3g bytes in files of %lld: absurd",
                               ckpt->path, (double)told, (long long)there);
}

/* Of one whose folder was named without the one above it: the folder's name says it, or what was
 * saved. -1: nothing does. */
static int64_t find_iteration(struct s2s_ckpt *ckpt)
{
    int64_t iteration = -1;
    char *whole = ckpt->dir_fd >= 0 ? realpath(ckpt->path, NULL) : NULL;
    const char *name = whole ? strrchr(whole, '/') + 1 : "";
    const json_t *saved = json_object_get(ckpt->common, "iteration");
    ckpt->release |= strcmp(name, "release") == 0;
    if (!s2s_starts_with(name, "iter_") ||
        s2s_parse_i64(&iteration, name + 5, 0, INT64_MAX, NULL) < 0)
        iteration = json_is_integer(saved) && json_integer_value(saved) >= 0
                        ? (int64_t)json_integer_value(saved)
                        : -1;
    free(whole);
    return iteration;
}

int s2s_ckpt_open(struct s2s_ckpt **out, const char *path, struct s2s_error *err)
{
    return s2s_ckpt_open_like(out, path, NULL, err);
}

int s2s_ckpt_open_like(struct s2s_ckpt **out, const char *path, const struct s2s_ckpt *like,
                       struct s2s_error *err)
{
    static const char no_pipe[] =
        "checkpoints are read in any order, which no pipe can give: name a "
        "file or a folder";
    struct s2s_ckpt *ckpt = s2s_xcalloc(1, sizeof *ckpt);
    ckpt->like = like;
    struct stat st;
    size_t len = strlen(path);
    ckpt->dir_fd = AT_FDCWD;
    ckpt->iteration = -1;
    ckpt->format = "";
    while (len > 1 && path[len - 1] == '/')
        len--;
    ckpt->path = s2s_xstrndup(path, len);
    int rc = 0;
    if (stat(path, &st) < 0) {
        rc = s2s_error_errno(err, S2S_E_OPEN, "%s", path);
        if (strcmp(path, "-") == 0)
            s2s_error_hint(err, rc, "%s", no_pipe);
    } else if (S_ISFIFO(st.st_mode)) {
        rc = s2s_error_set(err, S2S_E_OPEN, "%s: is a pipe", path);
        s2s_error_hint(err, rc, "%s", no_pipe);
    } else if (!S_ISDIR(st.st_mode)) {
        rc = read_single(ckpt, path, err);
    } else if ((rc = open_folder(AT_FDCWD, path, S2S_E_OPEN, err)) >= 0) {
        ckpt->dir_fd = rc;
        rc = read_folder(ckpt, err);
        if (rc < 0)
            s2s_error_add(err, rc, "%s", ckpt->path);
    }
    bool sealed = strcmp(ckpt->format, "dcp") == 0 || strcmp(ckpt->format, "torch_dist") == 0;
    if (rc == 0 && !sealed && (rc = ckpt_seal(ckpt, err)) < 0)
        s2s_error_add(err, rc, "%s", ckpt->path);
    if (rc == 0)
        rc = check_total(ckpt, err);
    if (rc == 0 && ckpt->iteration < 0)
        ckpt->iteration = find_iteration(ckpt);
    if (rc < 0) {
        s2s_ckpt_close(ckpt);
        return rc;
    }
    *out = ckpt;
    return 0;
}
