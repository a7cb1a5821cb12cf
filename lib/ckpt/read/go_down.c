/*
 * Finds the checkpoint below the folder that was given, which may be the output folder of a
 * training run, an entry of the Hugging Face hub's cache, or a trainer's folder. Where nothing
 * leads to weights, a hint lists what looks like a checkpoint.
 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/folder.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

enum { MAX_NAMED = 4, MAX_LOOKED_AT = 4096 };

static const char LATEST[] = "LATEST";

static bool has(const struct s2s_ckpt *ckpt, const char *name)
{
    return s2s_is_there(ckpt->dir_fd, name);
}

/* What files of checkpoints are named: how the names begin and end. Hidden ones count by the whole
 * name alone. */
static const char *const of_checkpoints[][2] = {
    {".metadata", ""}, {CKPT_TRACKER, ""},        {"common.pt", ""},
    {"mp_rank_", ""},  {CKPT_FSDP_RANK, ""},      {"", ".safetensors"},
    {"", ".distcp"},   {"", CKPT_DEEPSPEED_RANK}, {"pytorch_model", ".bin"}};

static bool is_of_checkpoint(const char *name)
{
    if (name[0] == '.')
        return strcmp(name, of_checkpoints[0][0]) == 0;
    for (size_t i = 1; i < sizeof of_checkpoints / sizeof *of_checkpoints; i++)
        if (s2s_starts_with(name, of_checkpoints[i][0]) &&
            s2s_ends_with(name, of_checkpoints[i][1]))
            return true;
    return false;
}

/* Does the folder at/name directly contain files of a checkpoint? */
static bool has_weights(int at, const char *name)
{
    DIR *dir = ckpt_open_dir(at, name);
    bool found = false;
    for (struct dirent *item; dir && !found && (item = readdir(dir)) != NULL;)
        found = is_of_checkpoint(item->d_name);
    if (dir)
        closedir(dir);
    return found;
}

/* Folders that trainers wrap around weights. A folder of so general a name as model/ leads to
 * weights only beside a trainer's own files, or in such a folder: otherwise it may be anything. */
enum { N_AROUND = 6, N_BESIDE = 4, LEVELS = 4 };
static const struct {
    const char *name, *beside[N_BESIDE]; /* beside: one of these must be there */
} around[N_AROUND] = {
    {.name = "weights"}, /* NeMo 2 */
    /* of Automodel */
    {"model", {"optim", "config.yaml", "model/.hf_metadata", "model/.metadata"}},
    {.name = "policy"},               /* of policy/weights/ of NeMo RL */
    {.name = "actor"},                /* of actor/dist_ckpt/ of verl */
    {.name = "dist_ckpt"},            /* the same */
    {.name = "pytorch_model_fsdp_0"}, /* of Accelerate, which is transformers' Trainer's */
};

/* Does the folder at/name have weights in it, or in such folders of so many levels? Looks into at
 * most *left folders, which it counts down: links may lead in circles. */
static bool leads_to_weights(int at, const char *name, int levels, int *left)
{
    bool found = (*left)-- > 0 && has_weights(at, name);
    for (int i = 0; !found && levels && *left > 0 && i < N_AROUND; i++) {
        char *deeper = s2s_xasprintf("%s/%s", name, around[i].name);
        found =
            faccessat(at, deeper, F_OK, 0) == 0 && leads_to_weights(at, deeper, levels - 1, left);
        free(deeper);
    }
    return found;
}

int ckpt_open_folder(int at, const char *name, enum s2s_errc otherwise, struct s2s_error *err)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && faccessat(fd, ".", X_OK, AT_EACCESS) == 0)
        return fd;
    int rc = s2s_error_errno(err, errno == EACCES ? S2S_E_OPEN : otherwise, "%s", name);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Descends into a subfolder. */
static int enter(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err)
{
    int fd = ckpt_open_folder(ckpt->dir_fd, name, S2S_E_NOTFOUND, err);
    if (fd < 0)
        return fd;
    char *path = s2s_xasprintf("%s/%s", ckpt->path, name);
    close(ckpt->dir_fd);
    free(ckpt->path);
    ckpt->dir_fd = fd;
    ckpt->path = path;
    return 0;
}

/* Reads a small text file, without leading and trailing white space. Gives: free *text. */
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
        rc = s2s_error_set(err, S2S_E_FORMAT, "\"%s\" is not an iteration", text);
    else
        snprintf(name, sizeof name, "iter_%07lld", (long long)ckpt->iteration);
    if (rc == 0 && !ckpt->release && !has(ckpt, name)) {
        char step[sizeof name]; /* verl's */
        snprintf(step, sizeof step, "global_step_%lld", (long long)ckpt->iteration);
        if (has(ckpt, step))
            memcpy(name, step, sizeof name);
    }
    free(text);
    if (rc == 0)
        rc = enter(ckpt, name, err);
    if (rc == S2S_E_NOTFOUND || rc == S2S_E_FORMAT)
        ckpt_hint_folder(ckpt, rc, err); /* such as the last one completed */
    return rc < 0 ? s2s_error_add(err, rc, "%s", CKPT_TRACKER) : 0;
}

/* LATEST (a symbolic link) or LATEST.txt (a name) of NeMo Automodel: the newest checkpoint beside
 * it */
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

/* epoch_0_step_20 */
static int64_t step_of(const char *path)
{
    const char *at = strrchr(path, '/'), *step = strstr(at ? at : path, "step_");
    int64_t n;
    return step && s2s_parse_i64(&n, step + 5, 0, INT64_MAX, NULL) == 0 ? n : -1;
}

/* models--OWNER--NAME, an entry of the Hugging Face hub's cache: refs/main names the current one of
 * snapshots/. */
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

/* ---- folders that lead to weights ---- */

/* Names that may be meant, and how many more entries are looked at. */
struct meant {
    char **names;
    size_t n, cap;
    int left, looks; /* looks: of leads_to_weights */
};

static void add_meant(struct meant *meant, char *name)
{
    s2s_grow(&meant->names, meant->n, &meant->cap, sizeof *meant->names);
    meant->names[meant->n++] = name;
}

/* The next entry that a user may name; NULL: none. */
static const char *next_named(struct meant *meant, DIR *dir)
{
    struct dirent *item = NULL;
    while (dir && meant->left-- > 0 && (item = readdir(dir)) != NULL)
        if (item->d_name[0] != '.' && ckpt_name_is_plain(item->d_name, strlen(item->d_name)))
            break;
    return item && meant->left >= 0 ? item->d_name : NULL;
}

/* Adds the subfolders of at/path that lead to a checkpoint, or else those so many levels below. */
static void add_folders(struct meant *meant, int at, const char *path, int levels)
{
    const size_t had = meant->n;
    const char *before = *path ? path : ".", *name;
    DIR *dir = ckpt_open_dir(at, before);
    for (int deeper = 0; deeper < 2 && meant->n == had && (!deeper || levels); deeper++) {
        while ((name = next_named(meant, dir)) != NULL) {
            char *below = s2s_xasprintf("%s%s%s", path, *path ? "/" : "", name);
            if (deeper)
                add_folders(meant, at, below, levels - 1);
            else if (leads_to_weights(at, below, LEVELS, &meant->looks))
                add_meant(meant, s2s_xstrdup(below));
            free(below);
        }
        if (dir)
            rewinddir(dir);
    }
    if (dir)
        closedir(dir);
}

static int by_name(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

/* ---- the way down ---- */

/* Warns of the checkpoints beside the folder that is read: optimizers, and other models, such as
 * the value and reward models of NeMo RL and verl. */
static void warn_of_others(const struct s2s_ckpt *ckpt, const char *taken)
{
    static const char optimizer[] = "optimizer/optim"; /* NeMo RL's */
    struct meant meant = {.left = MAX_LOOKED_AT, .looks = MAX_LOOKED_AT};
    struct s2s_buf list = S2S_BUF_INIT;
    size_t n = 0;
    add_folders(&meant, ckpt->dir_fd, "", 0);
    if (leads_to_weights(ckpt->dir_fd, optimizer, LEVELS, &meant.looks))
        add_meant(&meant, s2s_xstrdup(optimizer));
    if (meant.n)
        qsort(meant.names, meant.n, sizeof *meant.names, by_name);
    for (size_t i = 0; i < meant.n; i++)
        if (strcmp(meant.names[i], taken) != 0 && n++ < MAX_NAMED)
            s2s_buf_printf(&list, "%s%s/", n > 1 ? ", " : "", meant.names[i]);
    if (n)
        s2s_warn("ckpt", "%s: %s/ is read; %s%s beside it %s", ckpt->path, taken, list.data,
                 n > MAX_NAMED ? ", .." : "",
                 n > 1 ? "are checkpoints of their own" : "is a checkpoint of its own");
    s2s_buf_release(&list);
    ckpt_free_list(meant.names, meant.n);
}

/* The wrapping folder to descend into; NULL: none. inside: of such a folder. */
static const char *find_around(const struct s2s_ckpt *ckpt, bool inside)
{
    for (size_t i = 0; i < N_AROUND; i++) {
        bool may_be = inside || !around[i].beside[0];
        for (size_t k = 0; !may_be && k < N_BESIDE; k++)
            may_be = has(ckpt, around[i].beside[k]);
        int left = MAX_LOOKED_AT;
        if (may_be && leads_to_weights(ckpt->dir_fd, around[i].name, LEVELS, &left)) {
            warn_of_others(ckpt, around[i].name);
            return around[i].name;
        }
    }
    return NULL;
}

int ckpt_go_down(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    int rc = follow_hub(ckpt, err);
    for (int level = 0; rc == 0 && level < LEVELS; level++) {
        if (has(ckpt, CKPT_TRACKER)) {
            rc = follow_tracker(ckpt, err);
            continue;
        }
        if (has(ckpt, ".incomplete"))
            return s2s_error_hint(
                err,
                s2s_error_set(err, S2S_E_TRUNCATED, "an unfinished save: .incomplete is there"),
                "remove .incomplete if its files are known to be complete");
        if (has_weights(ckpt->dir_fd, "."))
            return 0;
        if (ckpt->iteration < 0)
            ckpt->iteration = step_of(ckpt->path);
        const char *next = find_around(ckpt, level > 0);
        if (next)
            rc = enter(ckpt, next, err);
        else if (level == 0 && (has(ckpt, LATEST) || has(ckpt, "LATEST.txt")))
            rc = follow_latest(ckpt, err);
        else
            return 0;
    }
    return rc;
}

/* ---- hints ---- */

enum { DEEPEST_HINT = 2 };

/* Adds the files that are named as torch's and NeMo's. */
static void add_files(struct meant *meant, int at)
{
    static const char *const ends[] = {".pt", ".pth", ".ckpt", ".nemo", ".bin"};
    const char *name;
    DIR *dir = ckpt_open_dir(at, ".");
    while ((name = next_named(meant, dir)) != NULL)
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
            if (s2s_ends_with(name, ends[i]) && !has_weights(at, name))
                add_meant(meant, s2s_xstrdup(name));
    if (dir)
        closedir(dir);
}

int ckpt_hint_folder(const struct s2s_ckpt *ckpt, int rc, struct s2s_error *err)
{
    if (s2s_is_there(ckpt->dir_fd, "params.json") &&
        (s2s_is_there(ckpt->dir_fd, "consolidated.00.pth") ||
         s2s_is_there(ckpt->dir_fd, "consolidated.safetensors")))
        return s2s_error_hint(err, rc,
                              "consolidated.* and params.json are Meta's and Mistral's own form: "
                              "take the Hugging Face form of the model, or make it with the "
                              "convert_*_weights_to_hf.py of transformers");
    struct meant meant = {.left = MAX_LOOKED_AT, .looks = MAX_LOOKED_AT};
    add_folders(&meant, ckpt->dir_fd, "", DEEPEST_HINT);
    const size_t n_folders = meant.n; /* come first */
    meant.left = MAX_LOOKED_AT;
    add_files(&meant, ckpt->dir_fd);
    if (meant.n) {
        qsort(meant.names, n_folders, sizeof *meant.names, by_name);
        qsort(meant.names + n_folders, meant.n - n_folders, sizeof *meant.names, by_name);
    }
    struct s2s_buf list = S2S_BUF_INIT;
    for (size_t i = 0; i < meant.n && i < MAX_NAMED; i++)
        s2s_buf_printf(&list, "%s%s", i ? ", " : "", meant.names[i]);
    if (meant.n)
        rc = s2s_error_hint(err, rc, "name one inside it: %.*s%s", (int)list.len, list.data,
                            meant.n > MAX_NAMED ? ", .." : "");
    s2s_buf_release(&list);
    ckpt_free_list(meant.names, meant.n);
    return rc;
}

int ckpt_hint_file(const char *path, int rc, struct s2s_error *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (strcmp(name, ".metadata") != 0 && strcmp(name, "metadata.json") != 0 &&
        strcmp(name, "config.json") != 0 && !s2s_ends_with(name, ".distcp") &&
        !s2s_ends_with(name, ".index.json"))
        return rc;
    return s2s_error_hint(err, rc, "it is part of a checkpoint: name the folder, %.*s",
                          slash ? (int)(slash - path) : 1, slash ? path : ".");
}

static bool is_complete(int run, const char *name)
{
    char path[NAME_MAX + 20];
    snprintf(path, sizeof path, "%s/metadata.json", name);
    if (!s2s_is_there(run, path))
        return false;
    snprintf(path, sizeof path, "%s/.metadata", name);
    return s2s_is_there(run, path);
}

int ckpt_hint_iteration(const struct s2s_ckpt *ckpt, int rc, struct s2s_error *err)
{
    static const char iter[] = "iter_";
    const char *slash = strrchr(ckpt->path, '/'), *own = slash ? slash + 1 : "";
    char newest[NAME_MAX + 1] = "";
    int64_t most = -1, n;
    if (!s2s_starts_with(own, iter))
        return rc;
    char *run = s2s_xstrndup(ckpt->path, (size_t)(own - ckpt->path));
    DIR *dir = ckpt_open_dir(AT_FDCWD, run);
    for (struct dirent *item; dir && (item = readdir(dir)) != NULL;)
        if (s2s_starts_with(item->d_name, iter) && strcmp(item->d_name, own) != 0 &&
            s2s_parse_i64(&n, item->d_name + strlen(iter), 0, INT64_MAX, NULL) == 0 && n > most &&
            is_complete(dirfd(dir), item->d_name)) {
            most = n;
            snprintf(newest, sizeof newest, "%s", item->d_name);
        }
    if (dir)
        closedir(dir);
    if (most >= 0)
        s2s_error_hint(err, rc, "name another one of the run: %s%s", run, newest);
    free(run);
    return rc;
}

int ckpt_hint_bytes(const struct s2s_ckpt *ckpt, const char *name, int rc, struct s2s_error *err)
{
    static const char *const pages[] = {"<!doctype", "<html", "<?xml"};
    static const char lfs[] = "version https://git-lfs.github.com/";
    char head[sizeof lfs] = "";
    int fd = openat(ckpt->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? pread(fd, head, sizeof head - 1, 0) : 0;
    if (fd >= 0)
        close(fd);
    head[n > 0 ? n : 0] = 0;
    if (strcmp(head, lfs) == 0)
        return s2s_error_hint(err, rc,
                              "it is a pointer of Git LFS in place of the file: git lfs pull "
                              "fetches that");
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strncasecmp(head, pages[i], strlen(pages[i])) == 0)
            return s2s_error_hint(err, rc, "it is a web page in place of the file: download again");
    return rc;
}
