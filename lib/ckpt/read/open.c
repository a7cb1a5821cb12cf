/* Recognises the format of a checkpoint and reads it: the first entry of a table that matches. */

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

static bool has(const struct s2s_ckpt *ckpt, const char *name)
{
    return s2s_is_there(ckpt->dir_fd, name);
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

/* ---- tests ---- */

enum { HEAD_BYTES = 262 }; /* up to "ustar" in a tar's first header */

/* What a format is recognised by: the names in a folder, or the first bytes of a file. */
struct clues {
    const struct s2s_ckpt *ckpt;
    char backend[64]; /* sharded_backend of metadata.json, or "" */
    char **names;     /* sorted, without hidden ones: macOS puts a "._NAME" beside each file it
                       * copies */
    size_t n_names;
    unsigned char head[HEAD_BYTES]; /* padded with zeros */
};

/* The first name with this prefix and suffix; NULL: none. */
static const char *name_like(const struct clues *clues, const char *prefix, const char *suffix)
{
    for (size_t i = 0; i < clues->n_names; i++)
        if (s2s_starts_with(clues->names[i], prefix) && strlen(clues->names[i]) > strlen(suffix) &&
            s2s_ends_with(clues->names[i], suffix))
            return clues->names[i];
    return NULL;
}

static int is_dcp(const struct clues *clues, struct s2s_error *err)
{
    if (strcmp(clues->backend, "zarr") == 0 || !has(clues->ckpt, ".metadata"))
        return 0;
    /* plain torch writes no metadata.json */
    return !*clues->backend || ckpt_has_word("fsdp_dtensor torch_dcp", clues->backend)
               ? 1
               : s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "metadata.json: sharded_backend \"%s\" is not known here; "
                               "torch_dist, torch_dcp and fsdp_dtensor are",
                               clues->backend);
}

/* zarr has a folder per tensor. A folder that may not be searched is not taken for one. */
static int is_zarr(const struct clues *clues, struct s2s_error *err)
{
    bool found = strcmp(clues->backend, "zarr") == 0;
    for (size_t i = 0; i < clues->n_names && !found; i++) {
        char *path = s2s_xasprintf("%s/.zarray", clues->names[i]);
        found = faccessat(clues->ckpt->dir_fd, path, F_OK, 0) == 0;
        free(path);
    }
    return found;
}

static int has_bins(const struct clues *clues, struct s2s_error *err)
{
    return name_like(clues, "pytorch_model", ".bin") || has(clues->ckpt, "adapter_model.bin");
}

/* pytorch_model_fsdp_0_rank3.bin, whose tensors have the names that those of other ranks have, and
 * no pytorch_model.bin, which is sorted before it */
static int is_accelerate_ranks(const struct clues *clues, struct s2s_error *err)
{
    const char *name = name_like(clues, "pytorch_model", ".bin");
    return name && s2s_starts_with(name, "pytorch_model_fsdp") && strstr(name, "_rank");
}

static int is_deepspeed(const struct clues *clues, struct s2s_error *err)
{
    if (name_like(clues, "", CKPT_DEEPSPEED_RANK) || name_like(clues, "", "_optim_states.pt"))
        return 1;
    /* transformers' Trainer saves the whole model beside DeepSpeed's state */
    return has(clues->ckpt, "latest") && name_like(clues, "global_step", "") &&
           !name_like(clues, "", ".safetensors") && !has_bins(clues, err);
}

/* Are the safetensors files those of torch.distributed.checkpoint? Either all of a folder are or
 * none, so one header tells. One that is damaged or unreadable counts as no: it may not belong to
 * the checkpoint. */
static int has_boxes(const struct clues *clues, struct s2s_error *err)
{
    struct s2s_safetensors st;
    int64_t data_pos;
    const int at = clues->ckpt->dir_fd;
    const char *name = name_like(clues, "", ".safetensors");
    int fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && (errno == EACCES || !s2s_is_there(at, name)))
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

static int is_legacy_torch(const struct clues *clues, struct s2s_error *err)
{
    return ckpt_is_legacy_torch(clues->head);
}

static int is_gzip(const struct clues *clues, struct s2s_error *err)
{
    return ckpt_is_gzip(clues->head);
}

/* ---- signs of more than one save ---- */

/* Nothing in a .distcp file tells which save it is of, so one of another save may be read without
 * an error and have other values. */

/* Warns of bytes that belong to no item: torch writes items without gaps. */
static void warn_gaps(const struct s2s_ckpt *ckpt)
{
    int64_t *unused = s2s_xcalloc(ckpt->n_files + 1, sizeof *unused);
    size_t first = 0, n_found = 0;
    for (size_t i = 0; i < ckpt->n_files; i++)
        unused[i] = ckpt->files[i].len_bytes;
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        for (size_t k = 0; k < ckpt->tensors[i].n_chunks; k++) {
            const struct ckpt_location *place = ckpt_place_at(&ckpt->tensors[i], k);
            unused[place->file] -= place->store_len;
        }
    for (size_t i = 0; i < ckpt->n_objects; i++) {
        const json_t *file = json_object_get(ckpt->file_idx, ckpt->objects[i].file);
        unused[json_integer_value(file)] -= ckpt->objects[i].len_bytes;
    }
    for (size_t i = 0; i < ckpt->n_files; i++)
        if (unused[i] > 0 && s2s_ends_with(ckpt->files[i].name, ".distcp") && n_found++ == 0)
            first = i;
    if (n_found)
        s2s_warn("ckpt",
                 "%s: %s%s: %lld of its %lld bytes belong to nothing that .metadata names: one of "
                 "the two may be of another save",
                 ckpt->path, ckpt->files[first].name, n_found > 1 ? " (as in other files)" : "",
                 (long long)unused[first], (long long)ckpt->files[first].len_bytes);
    free(unused);
}

/* Warns of files that nothing is in. Empty ones are of ranks that had nothing to write. */
static void warn_strays(struct s2s_ckpt *ckpt)
{
    struct s2s_error ignored = S2S_ERROR_INIT; /* the folder was listed before */
    char **names = NULL;
    size_t n = 0, n_strays = 0;
    const char *first = "";
    struct stat st;
    if (ckpt_list_suffix(ckpt, "", ".distcp", &names, &n, &ignored) < 0)
        n = 0;
    for (size_t i = 0; i < n; i++)
        if (!json_object_get(ckpt->file_idx, names[i]) &&
            fstatat(ckpt->dir_fd, names[i], &st, 0) == 0 && st.st_size > 0 && n_strays++ == 0)
            first = names[i];
    if (n_strays)
        s2s_warn(
            "ckpt",
            "%s: .metadata names nothing in %zu of the .distcp files (%s%s): they or it may be "
            "of another save",
            ckpt->path, n_strays, first, n_strays > 1 ? ".." : "");
    ckpt_free_list(names, n);
}

static void warn_mixed(struct s2s_ckpt *ckpt)
{
    warn_gaps(ckpt);
    warn_strays(ckpt);
}

/* ---- readers ---- */

static int read_distributed(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    ckpt->no_links = true;
    int rc = ckpt_read_dcp(ckpt, err);
    if (rc == 0)
        warn_mixed(ckpt);
    return rc;
}

static void call_unfinished(struct s2s_ckpt *ckpt)
{
    ckpt->unfinished = true;
    s2s_warn("ckpt", "%s: %s", ckpt->path, CKPT_UNFINISHED);
}

static int read_unfinished(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    call_unfinished(ckpt);
    return read_distributed(ckpt, err);
}

static int read_state(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    int rc = ckpt_read_common(ckpt, err);
    if (rc < 0)
        return rc;
    ckpt_read_args(ckpt);
    ckpt_read_run_config(ckpt);
    return 0;
}

/* Without metadata.json. Megatron-Core from 0.17 on writes no common.pt by which to know its
 * folder, but an object. */
static int read_state_of_dcp(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    if (ckpt_find_object(ckpt, CKPT_COMMON_OBJECT) && !has(ckpt, "metadata.json")) {
        ckpt->format = "torch_dist";
        call_unfinished(ckpt);
    }
    return read_state(ckpt, err);
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

static int read_hf(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    return ckpt_read_hf(ckpt, "", "", err);
}

static int read_safetensors(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    return ckpt_read_safetensors(ckpt, ckpt->path, "", err);
}

static int read_torch(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    const struct ckpt_torch_source whole = {.file = ckpt->path, .prefix = "", .len_bytes = -1};
    int rc = ckpt_read_torch(ckpt, &whole, err);
    return rc < 0 ? ckpt_hint_file(ckpt->path, rc, err) : 0;
}

static int refuse_folder(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    return ckpt_hint_folder(ckpt, s2s_error_set(err, S2S_E_FORMAT, "no known checkpoint here"),
                            err);
}

static int refuse_file(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    const char *path = ckpt->path;
    const int64_t len = ckpt->files[0].len_bytes;
    int rc =
        s2s_error_set(err, len < 16 ? S2S_E_TRUNCATED : S2S_E_FORMAT,
                      len == 0 ? "%s: is empty"
                               : "%s: neither safetensors, a torch.save file nor a .nemo archive",
                      path);
    return ckpt_hint_file(path, ckpt_hint_bytes(ckpt, path, rc, err), err);
}

/* ---- the table ---- */

/* An entry matches if all its conditions do. */
struct format {
    const char *name;    /* as in `ls --json` */
    const char *backend; /* NULL: any */
    /* of a folder: names that must all exist, names of which one must, prefix and suffix of a name
     * that must; NULL: no condition */
    const char *all[2], *one_of[5], *like[2];
    const char *magic; /* of a file: the bytes at magic_at */
    size_t magic_at;
    /* a further test, or NULL. 1: match; 0: not; negative: a match that is refused, or an error */
    int (*is)(const struct clues *clues, struct s2s_error *err);
    int (*read)(struct s2s_ckpt *ckpt, struct s2s_error *err);
    int (*read_sealed)(struct s2s_ckpt *ckpt, struct s2s_error *err); /* called after sealing; or
                                                                       * NULL */
    enum s2s_errc refusal; /* instead of read: the reason, and what to do (or NULL) */
    const char *why, *hint;
};

static const char no_metadata[] =
    "neither .metadata nor .distcp data are there: an unfinished save, or a damaged one";
static const char gguf[] = "GGUF, the format of llama.cpp";
static const char gguf_hint[] = "name the Hugging Face folder that it was made from";

static const struct format of_folders[] = {
    {"torch_dist", "torch_dist", .all = {".metadata"}, .read = read_distributed,
     .read_sealed = read_state},
    {"torch_dist", "", .all = {".metadata", "common.pt"}, .read = read_unfinished,
     .read_sealed = read_state},
    {"dcp", .is = is_dcp, .read = read_distributed, .read_sealed = read_state_of_dcp},
    {.is = is_zarr,
     .refusal = S2S_E_UNSUPPORTED,
     .why = "a zarr checkpoint (Megatron-Core before 0.15)",
     .hint = "load and save it with Megatron-Core 0.14 as torch_dist"},
    {.like = {"__", ".metadata"},
     .refusal = S2S_E_UNSUPPORTED,
     .why = "one metadata file a rank (saved without collectives)",
     .hint = "merge them with torch.distributed.checkpoint first"},
    {.like = {"", ".distcp"},
     .refusal = S2S_E_TRUNCATED,
     .why = "an unfinished save: there is .distcp data and no .metadata"},
    {.backend = "torch_dist", .refusal = S2S_E_TRUNCATED, .why = no_metadata},
    {"nemo",
     .one_of = {CKPT_NEMO_WEIGHTS, "model_weights/.metadata", "model_weights/metadata.json",
                "mp_rank_00/model_weights.ckpt", "tp_rank_00_pp_rank_000/model_weights.ckpt"},
     .read = ckpt_read_nemo},
    {.is = is_deepspeed,
     .refusal = S2S_E_UNSUPPORTED,
     .why = "a DeepSpeed checkpoint (a file a rank)",
     .hint = "the zero_to_fp32.py that DeepSpeed put beside it makes one file of it; without ZeRO "
             "3 the weights are in mp_rank_00_model_states.pt"},
    {"fsdp_rank", .like = {CKPT_FSDP_RANK, ".pt"}, .read = ckpt_read_fsdp},
    {"mp_rank", .like = {"mp_rank_", ""}, .read = ckpt_read_mp_rank},
    {"hf", .all = {"encoder", "llm"}, .read = read_composite},
    {"dcp_hf", .like = {"", ".safetensors"}, .is = has_boxes, .read = ckpt_read_dcp_hf},
    {"hf", .like = {"", ".safetensors"}, .read = read_hf},
    {.is = is_accelerate_ranks,
     .refusal = S2S_E_UNSUPPORTED,
     .why = "an FSDP checkpoint of Accelerate (a file a rank)",
     .hint = "save it as FULL_STATE_DICT, or as SHARDED_STATE_DICT by way of "
             "torch.distributed.checkpoint"},
    {"hf_bin", .is = has_bins, .read = ckpt_read_hf_bin},
    {.like = {"", ".gguf"}, .refusal = S2S_E_UNSUPPORTED, .why = gguf, .hint = gguf_hint},
    {.all = {"common.pt"}, .refusal = S2S_E_TRUNCATED, .why = no_metadata},
    {"", .read = refuse_folder},
};

static const struct format of_files[] = {
    {.magic = "GGUF", .refusal = S2S_E_UNSUPPORTED, .why = gguf, .hint = gguf_hint},
    {"safetensors", .magic = "{", .magic_at = 8, .read = read_safetensors},
    {"torch", .magic = "PK\3\4", .read = read_torch},
    {"torch_legacy", .is = is_legacy_torch, .read = read_torch},
    {"nemo", .magic = "ustar", .magic_at = 257, .read = ckpt_read_nemo},
    {"nemo", .is = is_gzip, .read = ckpt_read_nemo},
    {.magic = "\x28\xb5\x2f\xfd",
     .refusal = S2S_E_UNSUPPORTED,
     .why = "compressed by zstd, and only gzip is read",
     .hint = "unpack it first: zstd -d"},
    {.magic = "\xfd"
              "7zXZ",
     .refusal = S2S_E_UNSUPPORTED,
     .why = "compressed by xz, and only gzip is read",
     .hint = "unpack it first: xz -dk"},
    {.magic = "BZh",
     .refusal = S2S_E_UNSUPPORTED,
     .why = "compressed by bzip2, and only gzip is read",
     .hint = "unpack it first: bzip2 -dk"},
    {.magic = "\x04\x22\x4d\x18",
     .refusal = S2S_E_UNSUPPORTED,
     .why = "compressed by lz4, and only gzip is read",
     .hint = "unpack it first: lz4 -d"},
    {"", .read = refuse_file},
};

/* Does the entry match? Returns as `is`. */
static int fits(const struct format *f, const struct clues *clues, struct s2s_error *err)
{
    bool one = !f->one_of[0];
    for (size_t i = 0; i < sizeof f->all / sizeof *f->all; i++)
        if (f->all[i] && !has(clues->ckpt, f->all[i]))
            return 0;
    for (size_t i = 0; i < sizeof f->one_of / sizeof *f->one_of && !one; i++)
        one = f->one_of[i] && has(clues->ckpt, f->one_of[i]);
    if (!one || (f->backend && strcmp(f->backend, clues->backend) != 0) ||
        (f->like[0] && !name_like(clues, f->like[0], f->like[1])) ||
        (f->magic && memcmp(clues->head + f->magic_at, f->magic, strlen(f->magic)) != 0))
        return 0;
    return f->is ? f->is(clues, err) : 1;
}

/* Reads as the first matching entry of a table; the last one always matches. */
static int read_as(struct s2s_ckpt *ckpt, const struct format *format, const struct clues *clues,
                   struct s2s_error *err)
{
    int rc;
    while ((rc = fits(format, clues, err)) == 0)
        format++;
    if (rc < 0)
        return rc;
    if (format->refusal) {
        rc = s2s_error_set(err, format->refusal, "%s%s%s", ckpt->dir_fd < 0 ? ckpt->path : "",
                           ckpt->dir_fd < 0 ? ": " : "", format->why);
        return format->hint ? s2s_error_hint(err, rc, "%s", format->hint) : rc;
    }
    ckpt->format = format->name;
    rc = format->read(ckpt, err);
    if (rc == 0 && (rc = ckpt_seal(ckpt, err)) < 0 && ckpt->dir_fd < 0)
        s2s_error_add(err, rc, "%s", ckpt->path); /* for a folder the caller adds it */
    return rc == 0 && format->read_sealed ? format->read_sealed(ckpt, err) : rc;
}

static int read_folder(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct clues clues = {.ckpt = ckpt};
    if (has(ckpt, CKPT_JOURNAL)) {
        int refused = s2s_error_set(err, S2S_E_TRUNCATED, "an unfinished conversion of s2s-ckpt");
        return s2s_error_hint(err, refused, "its command with --resume continues from there");
    }
    int rc = ckpt_go_down(ckpt, err);
    if (rc == 0)
        rc = read_backend(ckpt, clues.backend, err);
    if (rc == 0)
        rc = ckpt_list_suffix(ckpt, "", "", &clues.names, &clues.n_names, err);
    if (rc == 0)
        rc = read_as(ckpt, of_folders, &clues, err);
    ckpt_free_list(clues.names, clues.n_names);
    return rc;
}

static int read_file(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct clues clues = {.ckpt = ckpt};
    const int file = ckpt_add_file(ckpt, ckpt->path, err), fd = ckpt_file_fd(ckpt, file, err);
    if (fd < 0)
        return fd;
    const int64_t len = ckpt->files[file].len_bytes;
    ckpt_warn_of_part(ckpt->path);
    int rc =
        ckpt_pread(fd, clues.head, len < HEAD_BYTES ? (size_t)len : HEAD_BYTES, 0, ckpt->path, err);
    return rc < 0 ? rc : read_as(ckpt, of_files, &clues, err);
}

/* Views may show one element a million times, and a million views one storage: what comes of a
 * small file must stay in proportion to it. */
int ckpt_check_total(const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    __int128 told = 0;
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        told += s2s_ckpt_bytes(&ckpt->tensors[i]);
    for (size_t i = 0; i < ckpt->n_objects; i++)
        told += ckpt->objects[i].len_bytes > 0 ? ckpt->objects[i].len_bytes : 0;
    int rc = ckpt_check_told(ckpt, "tensors and objects", told, 256, err);
    return rc < 0 ? s2s_error_add(err, rc, "%s", ckpt->path) : 0;
}

/* The folder's name has the iteration `named`; -1: it has none. */
static void warn_iteration(const struct s2s_ckpt *ckpt, int64_t named)
{
    const json_t *saved = json_object_get(ckpt->common, "iteration");
    if (named >= 0 && json_is_integer(saved) && json_integer_value(saved) != named)
        s2s_warn("ckpt",
                 "%s: the common state is of iteration %lld: it may be of another save, or the "
                 "folder was renamed",
                 ckpt->path, (long long)json_integer_value(saved));
}

/* Sets the iteration if no tracker file gave it: from the folder's name (iter_0001000), or from the
 * common state. */
static void find_iteration(struct s2s_ckpt *ckpt)
{
    int64_t named = -1;
    char *whole = ckpt->dir_fd >= 0 ? realpath(ckpt->path, NULL) : NULL;
    const char *name = whole ? strrchr(whole, '/') + 1 : "";
    const json_t *saved = json_object_get(ckpt->common, "iteration");
    ckpt->release |= strcmp(name, "release") == 0;
    if (!s2s_starts_with(name, "iter_") || s2s_parse_i64(&named, name + 5, 0, INT64_MAX, NULL) < 0)
        named = -1;
    warn_iteration(ckpt, named);
    if (ckpt->iteration < 0)
        ckpt->iteration = named;
    if (ckpt->iteration < 0 && json_is_integer(saved) && json_integer_value(saved) >= 0)
        ckpt->iteration = (int64_t)json_integer_value(saved);
    free(whole);
}

/* path: as given by the user, because "FILE/" is not a file */
static int read_path(struct s2s_ckpt *ckpt, const char *path, struct s2s_error *err)
{
    static const char no_pipe[] =
        "a checkpoint is not read in order, as a pipe would be: name a file or a folder";
    struct stat st;
    int rc;
    if (stat(path, &st) < 0) {
        rc = *path
                 ? s2s_error_errno(err, S2S_E_OPEN, "%s", path)
                 : s2s_error_set(err, S2S_E_OPEN,
                                 "the checkpoint's name is empty (an unset variable of a shell?)");
        return strcmp(path, "-") == 0 ? s2s_error_hint(err, rc, "%s", no_pipe) : rc;
    }
    if (S_ISFIFO(st.st_mode)) {
        rc = s2s_error_set(err, S2S_E_OPEN, "%s: is a pipe", path);
        return s2s_error_hint(err, rc, "%s", no_pipe);
    }
    if (!S_ISDIR(st.st_mode))
        return read_file(ckpt, err);
    if ((rc = ckpt_open_folder(AT_FDCWD, path, S2S_E_OPEN, err)) < 0)
        return rc;
    ckpt->dir_fd = rc;
    const size_t named = strlen(ckpt->path);
    rc = read_folder(ckpt, err);
    if (rc == 0)
        return 0;
    s2s_error_add(err, rc, "%s", ckpt->path); /* which may be a subfolder by now */
    return strlen(ckpt->path) > named ? ckpt_hint_iteration(ckpt, rc, err) : rc;
}

int s2s_ckpt_open(struct s2s_ckpt **out, const char *path, struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = s2s_xcalloc(1, sizeof *ckpt);
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    ckpt->path = s2s_xstrndup(path, len);
    ckpt->dir_fd = AT_FDCWD;
    ckpt->iteration = -1;
    ckpt->format = "";
    int rc = read_path(ckpt, path, err);
    if (rc == 0)
        rc = ckpt_check_total(ckpt, err);
    if (rc == 0)
        find_iteration(ckpt);
    if (rc < 0) {
        s2s_ckpt_close(ckpt);
        return rc;
    }
    *out = ckpt;
    return 0;
}
