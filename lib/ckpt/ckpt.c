/* An open checkpoint: its tables of files, members, tensors and objects. */
#include "lib/ckpt/model.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/io/digest.h"
#include "lib/base/utf8.h"

/* names may repeat a string of the file a million times */
enum { MAX_OPEN = 200, MAX_NAMES = 128 << 20 };

/* ---- files ---- */

/* By errno: no permission, or an I/O fault. */
static enum s2s_errc cannot_open(void)
{
    return errno == EACCES || errno == EPERM ? S2S_E_OPEN : S2S_E_IO;
}

int ckpt_add_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err)
{
    struct stat st;
    char to[PATH_MAX];
    const json_t *known = json_object_get(ckpt->file_idx, name);
    if (known)
        return (int)json_integer_value(known);
    const char *at = ckpt->no_links ? ckpt_in_hub(ckpt->dir_fd, name, to) : name;
    if (fstatat(ckpt->dir_fd, at, &st, ckpt->no_links ? AT_SYMLINK_NOFOLLOW : 0) < 0)
        return errno == ENOENT ? s2s_error_set(err, S2S_E_NOTFOUND, "%s is missing", name)
                               : s2s_error_errno(err, cannot_open(), "%s", name);
    if (!S_ISREG(st.st_mode))
        return s2s_error_set(err, S2S_E_FORMAT, "%s: %s", name,
                             S_ISLNK(st.st_mode) ? "a link, which this format never has: refused"
                                                 : "not a plain file");
    s2s_grow(&ckpt->files, ckpt->n_files, &ckpt->cap_files, sizeof *ckpt->files);
    ckpt->files[ckpt->n_files] =
        (struct ckpt_source_file){.name = s2s_xstrdup(name), .fd = -1, .len_bytes = st.st_size};
    if (!ckpt->file_idx)
        ckpt->file_idx = json_object();
    json_object_set_new_nocheck(ckpt->file_idx, name, json_integer((json_int_t)ckpt->n_files));
    return (int)ckpt->n_files++;
}

/* The limit for open files; leaves some for outputs and other checkpoints. */
static size_t most_open(void)
{
    struct rlimit limit;
    size_t share = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? (size_t)limit.rlim_cur / 16 : MAX_OPEN;
    return share < 2 ? 2 : share < MAX_OPEN ? share : MAX_OPEN;
}

/* Closes files that can be opened again. */
static void close_files(struct s2s_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->n_files; i++)
        if (ckpt->files[i].fd >= 0 && !ckpt->files[i].pinned) {
            close(ckpt->files[i].fd);
            ckpt->files[i].fd = -1;
            ckpt->n_open--;
        }
}

int ckpt_file_fd(struct s2s_ckpt *ckpt, int file, struct s2s_error *err)
{
    if (file < 0)
        return file;
    struct ckpt_source_file *f = &ckpt->files[file];
    if (f->fd >= 0)
        return f->fd;
    if (ckpt->n_open >= most_open())
        close_files(ckpt);
    char to[PATH_MAX];
    f->fd = openat(ckpt->dir_fd, ckpt->no_links ? ckpt_in_hub(ckpt->dir_fd, f->name, to) : f->name,
                   O_RDONLY | O_CLOEXEC | O_NONBLOCK | (ckpt->no_links ? O_NOFOLLOW : 0));
    if (f->fd < 0)
        return s2s_error_errno(err, cannot_open(), "%s", f->name);
    ckpt->n_open++;
    return f->fd;
}

int ckpt_by_member_name(const void *a, const void *b)
{
    return strcmp(((const struct ckpt_member *)a)->name, ((const struct ckpt_member *)b)->name);
}

const struct ckpt_member *ckpt_find_member(const struct s2s_ckpt *ckpt, const char *name)
{
    struct ckpt_member key = {.name = name};
    return ckpt->n_members
               ? bsearch(&key, ckpt->members, ckpt->n_members, sizeof key, ckpt_by_member_name)
               : NULL;
}

static const struct ckpt_member *find_inside(const struct s2s_ckpt *ckpt, const char *name)
{
    char *full = s2s_xasprintf("%s%s", ckpt->inside ? ckpt->inside : "", name);
    const struct ckpt_member *member = ckpt_find_member(ckpt, full);
    free(full);
    return member;
}

__int128 s2s_ckpt_files_bytes(const struct s2s_ckpt *ckpt)
{
    __int128 bytes = 0;
    for (size_t i = 0; i < ckpt->n_files; i++)
        bytes += ckpt->files[i].len_bytes;
    return bytes;
}

int ckpt_check_told(const struct s2s_ckpt *ckpt, const char *what, __int128 told, int times,
                    struct s2s_error *err)
{
    enum { SMALL = 4 << 20 };
    const __int128 there = s2s_ckpt_files_bytes(ckpt);
    return told <= times * (there + SMALL)
               ? 0
               : s2s_error_set(err, S2S_E_FORMAT,
                               "%s of %.3g bytes in files of %lld: absurd, the same again and "
                               "again",
                               what, (double)told, (long long)there);
}

bool ckpt_has(const struct s2s_ckpt *ckpt, const char *name)
{
    return ckpt->n_members ? find_inside(ckpt, name) != NULL : s2s_is_there(ckpt->dir_fd, name);
}

int ckpt_find_span(struct s2s_ckpt *ckpt, const char *name, struct ckpt_span *span,
                   struct s2s_error *err)
{
    if (ckpt->n_members) {
        const struct ckpt_member *member = find_inside(ckpt, name);
        if (!member)
            return s2s_error_set(err, S2S_E_NOTFOUND, "%s%s is missing",
                                 ckpt->inside ? ckpt->inside : "", name);
        *span = member->span;
        return 0;
    }
    int file = ckpt_add_file(ckpt, name, err);
    if (file < 0)
        return file;
    *span = (struct ckpt_span){.file = file, .len_bytes = ckpt->files[file].len_bytes};
    return 0;
}

int ckpt_slurp_span(struct s2s_ckpt *ckpt, const struct ckpt_span *span, int64_t max_len,
                    char **bytes, struct s2s_error *err)
{
    const char *path = ckpt->files[span->file].name;
    int fd = ckpt_file_fd(ckpt, span->file, err);
    *bytes = NULL;
    if (fd < 0)
        return fd;
    if (span->len_bytes > max_len)
        return s2s_error_set(err, S2S_E_FORMAT, "has %lld bytes, at most %lld are expected",
                             (long long)span->len_bytes, (long long)max_len);
    *bytes = s2s_try_calloc((size_t)span->len_bytes + 1, 1, path, err);
    if (!*bytes)
        return S2S_E_NOMEM;
    int rc = ckpt_pread(fd, *bytes, (size_t)span->len_bytes, span->begin, path, err);
    if (rc < 0) {
        free(*bytes);
        *bytes = NULL;
    }
    return rc;
}

void ckpt_drop_tables(struct s2s_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->n_objects; i++)
        json_decref(ckpt->objects[i].value);
    json_decref(ckpt->common);
    json_decref(ckpt->rank_values);
    json_decref(ckpt->run_args);
    free(ckpt->members);
    free(ckpt->tensors);
    free(ckpt->paths);
    free(ckpt->objects);
    free(ckpt->copies);
    s2s_blocks_release(&ckpt->arena);
    ckpt->root = ckpt->inside = ckpt->part = NULL; /* they pointed into the arena */
    ckpt->common = ckpt->run_args = ckpt->rank_values = NULL;
    ckpt->members = NULL;
    ckpt->tensors = NULL;
    ckpt->paths = NULL;
    ckpt->objects = NULL;
    ckpt->copies = NULL;
    ckpt->n_members = ckpt->n_tensors = ckpt->n_objects = 0;
    ckpt->n_copies = 0;
}

void s2s_ckpt_close(struct s2s_ckpt *ckpt)
{
    if (!ckpt)
        return;
    for (size_t i = 0; i < ckpt->n_files; i++) {
        if (ckpt->files[i].fd >= 0)
            close(ckpt->files[i].fd);
        free(ckpt->files[i].name);
    }
    if (ckpt->dir_fd >= 0)
        close(ckpt->dir_fd);
    ckpt_drop_tables(ckpt);
    json_decref(ckpt->file_idx);
    json_decref(ckpt->other_names);
    json_decref(ckpt->texts);
    json_decref(ckpt->lost_texts);
    free(ckpt->files);
    free(ckpt->path);
    free(ckpt->scratch);
    free(ckpt->piece);
    free(ckpt->verified);
    free(ckpt->warned_opaque);
    free(ckpt->crcs);
    free(ckpt);
}

/* ---- what is in it ---- */

int ckpt_check_name_len(const char *name, size_t len, struct s2s_error *err)
{
    return len <= CKPT_MAX_NAME ? 0
                                : s2s_error_set(err, S2S_E_FORMAT,
                                                "%.60s..: a name of %zu bytes, at most %d are read",
                                                name, len, CKPT_MAX_NAME);
}

static int check_name(struct s2s_ckpt *ckpt, const char *name, size_t len, struct s2s_error *err)
{
    int rc = ckpt_check_name_len(name, len, err);
    if (rc < 0)
        return rc;
    ckpt->name_bytes += len;
    if (ckpt->name_bytes > MAX_NAMES)
        return s2s_error_set(err, S2S_E_FORMAT, "names of more than %d MiB together",
                             MAX_NAMES >> 20);
    if (memchr(name, 0, len))
        return s2s_error_set(err, S2S_E_FORMAT, "%.60s..: a name of %zu bytes with a NUL in it",
                             name, len);
    if (!s2s_utf8_valid(name, len))
        return s2s_error_set(err, S2S_E_FORMAT, "a name of %zu bytes is not UTF-8 text", len);
    return 0;
}

int ckpt_add_tensor(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor **tensor, const char *name,
                    size_t len, struct s2s_error *err)
{
    int rc = check_name(ckpt, name, len, err);
    if (rc < 0)
        return rc;
    s2s_grow(&ckpt->tensors, ckpt->n_tensors, &ckpt->cap_tensors, sizeof *ckpt->tensors);
    *tensor = &ckpt->tensors[ckpt->n_tensors++];
    **tensor = (struct s2s_ckpt_tensor){.name = ckpt_arena_text(ckpt, name, len)};
    return 0;
}

int ckpt_add_object(struct s2s_ckpt *ckpt, struct s2s_ckpt_object **object, const char *name,
                    size_t len, struct s2s_error *err)
{
    int rc = check_name(ckpt, name, len, err);
    if (rc < 0)
        return rc;
    s2s_grow(&ckpt->objects, ckpt->n_objects, &ckpt->cap_objects, sizeof *ckpt->objects);
    *object = &ckpt->objects[ckpt->n_objects++];
    **object = (struct s2s_ckpt_object){.name = ckpt_arena_text(ckpt, name, len), .len_bytes = -1};
    return 0;
}

int ckpt_by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const struct s2s_ckpt_tensor *)a)->name,
                  ((const struct s2s_ckpt_tensor *)b)->name);
}

static int by_object_name(const void *a, const void *b)
{
    return strcmp(((const struct s2s_ckpt_object *)a)->name,
                  ((const struct s2s_ckpt_object *)b)->name);
}

static int check_tiles(const struct s2s_ckpt_tensor *tensor, struct s2s_error *err)
{
    struct ckpt_box one, *boxes = &one;
    if (tensor->n_chunks > 1)
        boxes = s2s_xmalloc(tensor->n_chunks * sizeof *boxes);
    for (size_t i = 0; i < tensor->n_chunks; i++) {
        const struct ckpt_chunk chunk = ckpt_chunk_at(tensor, i);
        boxes[i] = (struct ckpt_box){chunk.offset, chunk.size};
    }
    int rc =
        ckpt_boxes_tile(tensor->name, tensor->shape, tensor->n_dims, boxes, tensor->n_chunks, err);
    if (boxes != &one)
        free(boxes);
    return rc;
}

/* "" if unknown, as while .metadata is read */
static const char *file_of(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor)
{
    const int file = tensor->n_chunks ? ckpt_place_at(tensor, 0)->file : -1;
    return file >= 0 ? ckpt->files[file].name : "";
}

static int refuse_twice(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *a,
                        const struct s2s_ckpt_tensor *b, struct s2s_error *err)
{
    const char *in = file_of(ckpt, a), *and_in = file_of(ckpt, b);
    const int order = strcmp(in, and_in);
    if (!*in || !*and_in || !order)
        return s2s_error_set(err, S2S_E_FORMAT, "tensor %s is there twice", a->name);
    return s2s_error_set(err, S2S_E_FORMAT, "tensor %s is there twice, in %s and in %s", a->name,
                         order < 0 ? in : and_in, order < 0 ? and_in : in);
}

int ckpt_seal(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    int64_t bytes;
    if (ckpt->n_tensors)
        s2s_sort(ckpt->tensors, ckpt->n_tensors, sizeof *ckpt->tensors, ckpt_by_tensor_name);
    if (ckpt->n_objects)
        qsort(ckpt->objects, ckpt->n_objects, sizeof *ckpt->objects, by_object_name);
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        struct s2s_ckpt_tensor *t = &ckpt->tensors[i];
        if (i && strcmp(t[-1].name, t->name) == 0)
            return refuse_twice(ckpt, t - 1, t, err);
        int rc = check_tiles(t, err);
        if (rc < 0)
            return rc;
        if (__builtin_mul_overflow(s2s_ckpt_numel(t), (int64_t)s2s_dtype_size(t->dtype), &bytes))
            return s2s_error_set(err, S2S_E_SHAPE, "%s: absurd size", t->name);
    }
    for (size_t i = 1; i < ckpt->n_objects; i++)
        if (strcmp(ckpt->objects[i - 1].name, ckpt->objects[i].name) == 0)
            return s2s_error_set(err, S2S_E_FORMAT, "object %s is there twice",
                                 ckpt->objects[i].name);
    return 0;
}

const char *s2s_ckpt_format(const struct s2s_ckpt *ckpt)
{
    return ckpt->format;
}

const char *s2s_ckpt_path(const struct s2s_ckpt *ckpt)
{
    return ckpt->path;
}

int64_t s2s_ckpt_iteration(const struct s2s_ckpt *ckpt)
{
    return ckpt->iteration;
}

const struct s2s_ckpt_tensor *s2s_ckpt_tensors(const struct s2s_ckpt *ckpt, size_t *n)
{
    *n = ckpt->n_tensors;
    return ckpt->tensors;
}

const struct s2s_ckpt_object *s2s_ckpt_objects(const struct s2s_ckpt *ckpt, size_t *n)
{
    *n = ckpt->n_objects;
    return ckpt->objects;
}

const struct s2s_ckpt_tensor *s2s_ckpt_find(const struct s2s_ckpt *ckpt, const char *name)
{
    struct s2s_ckpt_tensor key = {.name = name};
    return ckpt->n_tensors
               ? bsearch(&key, ckpt->tensors, ckpt->n_tensors, sizeof key, ckpt_by_tensor_name)
               : NULL;
}

size_t ckpt_tensor_index(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor)
{
    tensor = ckpt_stored(tensor) ? ckpt_stored(tensor) : tensor;
    if (tensor < ckpt->tensors || tensor >= ckpt->tensors + ckpt->n_tensors)
        S2S_BUG("%s is no tensor of %s", tensor->name, ckpt->path);
    return (size_t)(tensor - ckpt->tensors);
}

struct s2s_ckpt_object *ckpt_find_object(const struct s2s_ckpt *ckpt, const char *name)
{
    struct s2s_ckpt_object key = {.name = name};
    return ckpt->n_objects
               ? bsearch(&key, ckpt->objects, ckpt->n_objects, sizeof key, by_object_name)
               : NULL;
}

int64_t s2s_ckpt_numel(const struct s2s_ckpt_tensor *tensor)
{
    return ckpt_box_numel(tensor->shape, tensor->n_dims);
}

int64_t s2s_ckpt_bytes(const struct s2s_ckpt_tensor *tensor)
{
    return s2s_ckpt_numel(tensor) * (int64_t)s2s_dtype_size(tensor->dtype);
}

const json_t *s2s_ckpt_common(const struct s2s_ckpt *ckpt)
{
    return ckpt->common;
}

size_t s2s_ckpt_left_values(const struct s2s_ckpt *ckpt)
{
    return ckpt->n_left_values;
}

size_t s2s_ckpt_rank_states(const struct s2s_ckpt *ckpt)
{
    return ckpt->n_left_states;
}

const json_t *s2s_ckpt_rank_values(const struct s2s_ckpt *ckpt)
{
    return ckpt->rank_values;
}

/* Is `name`, from `at` on, part of a torch.optim state dict, whatever the dict around it is called
 * ("optimizer_0" is PyTorch Lightning's)? It is if it has "param_groups", or "state", a parameter's
 * name and the name of a state. */
static bool is_torch_optim(const char *at, const char *last)
{
    static const char *const kept[] = {
        "exp_avg",  "exp_avg_sq", "max_exp_avg_sq", "exp_inf",     "momentum_buffer", "square_avg",
        "grad_avg", "acc_delta",  "mu_product",     "step",        "row_var",         "col_var",
        "sum",      "prev",       "step_size",      "master_param"};
    static const char groups[] = "param_groups", state[] = "state.";
    if (s2s_starts_with(at, groups) && strchr(".", at[strlen(groups)])) /* or its end */
        return true;
    if (!s2s_starts_with(at, state) || last <= at + strlen(state))
        return false;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (strcmp(last, kept[i]) == 0)
            return true;
    return false;
}

bool s2s_ckpt_is_state(const char *name)
{
    static const char *const state[] = {"optimizer.", "optim.", "optimizer_state", "optimizers.",
                                        "grad_scaler"};
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    if (strstr(name, "rng_state") || s2s_starts_with(name, "callbacks.") ||
        s2s_starts_with(name, "train_state.")) /* torchtitan's step */
        return true;
    for (const char *at = name; at; at = strchr(at, '.'), at = at ? at + 1 : NULL) {
        for (size_t i = 0; i < sizeof state / sizeof *state; i++)
            if (s2s_starts_with(at, state[i]))
                return true;
        if (is_torch_optim(at, last))
            return true;
    }
    return false;
}

bool s2s_ckpt_is_sharded(const char *name)
{
    return strstr(name, "/shard_") != NULL;
}

static bool note_identity(struct s2s_buf *all, int dir_fd, const char *name)
{
    struct stat st;
    if (fstatat(dir_fd, name, &st, 0) < 0)
        return false;
    s2s_buf_printf(all, "%s\n%lld %lld.%09ld %llu\n", name, (long long)st.st_size,
                   (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (unsigned long long)st.st_ino);
    return true;
}

int s2s_ckpt_identity(const struct s2s_ckpt *ckpt, char hex[33], struct s2s_error *err)
{
    /* what says how tensors are cut and named: another one makes other weights */
    static const char *const beside[] = {".metadata",
                                         "common.pt",
                                         "config.json",
                                         "model.safetensors.index.json",
                                         "run_config.yaml",
                                         "../context/model.yaml",
                                         "../huggingface/config.json",
                                         "huggingface/config.json",
                                         "llm_backbone/config.json"};
    struct s2s_buf all = S2S_BUF_INIT;
    int rc = 0;
    for (size_t i = 0; i < ckpt->n_files && rc == 0; i++)
        if (!note_identity(&all, ckpt->dir_fd, ckpt->files[i].name))
            rc = s2s_error_errno(err, S2S_E_IO, "%s", ckpt->files[i].name);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        (void)note_identity(&all, ckpt->dir_fd, beside[i]); /* if it exists */
    s2s_xxh3_128_hex(hex, all.data ? all.data : "", all.len);
    s2s_buf_release(&all);
    return rc;
}

/* Is the file in the checkpoint's folder, or below? The folder may have another name there: a mount
 * of it, or of one above. */
static bool is_inside(const struct s2s_ckpt *ckpt, const char *path)
{
    struct stat folder, above;
    char *file = realpath(path, NULL), *slash;
    bool inside = false;
    if (file && stat(ckpt->path, &folder) == 0 && S_ISDIR(folder.st_mode))
        while (!inside && (slash = strrchr(file, '/')) != NULL) {
            *slash = '\0';
            inside = stat(*file ? file : "/", &above) == 0 && above.st_dev == folder.st_dev &&
                     above.st_ino == folder.st_ino;
        }
    free(file);
    return inside;
}

bool s2s_ckpt_reads(const struct s2s_ckpt *ckpt, const char *path)
{
    struct stat out, in;
    if (stat(path, &out) < 0)
        return false;
    if (S_ISREG(out.st_mode) && is_inside(ckpt, path))
        return true;
    for (size_t i = 0; i < ckpt->n_files; i++)
        if (fstatat(ckpt->dir_fd, ckpt->files[i].name, &in, 0) == 0 && in.st_dev == out.st_dev &&
            in.st_ino == out.st_ino)
            return true;
    return false;
}
