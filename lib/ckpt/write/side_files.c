/* Takes along the small files beside weights. */
#include "lib/ckpt/write/side_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/base/utf8.h"
#include "lib/ckpt/map/map.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/manifest.h"

void ckpt_side_add(struct ckpt_side_files *files, const char *path, const void *bytes, size_t len)
{
    if (ckpt_side_find(files, path))
        return;
    s2s_grow(&files->v, files->n, &files->cap, sizeof *files->v);
    char *copy = s2s_xmalloc(len + 1);
    if (len)
        memcpy(copy, bytes, len);
    copy[len] = 0;
    files->len_bytes += len;
    files->v[files->n++] = (struct ckpt_side_file){s2s_xstrdup(path), copy, len};
}

void ckpt_side_add_text(struct ckpt_side_files *files, const char *path, const char *text)
{
    ckpt_side_add(files, path, text, strlen(text));
}

void ckpt_side_add_json(struct ckpt_side_files *files, const char *path, const json_t *text)
{
    if (json_is_string(text))
        ckpt_side_add(files, path, json_string_value(text), json_string_length(text));
}

int ckpt_side_take(struct ckpt_side_files *files, int dir_fd, const char *name, const char *path,
                   struct s2s_error *err)
{
    char *bytes;
    size_t len;
    if (ckpt_is_strange_link(dir_fd, name)) {
        s2s_warn("ckpt", "%s: a link to a file elsewhere, left out", name);
        return 0;
    }
    int rc = ckpt_slurp(dir_fd, name, CKPT_MAX_SIDE_FILE, &bytes, &len, err);
    if (rc < 0)
        return rc;
    if (files->n >= CKPT_MAX_SIDE_FILES || files->len_bytes + len > CKPT_MAX_SIDE_BYTES)
        rc = s2s_error_set(err, S2S_E_FORMAT,
                           "%s: more than %d small files, or %d MiB of them, beside the weights",
                           name, CKPT_MAX_SIDE_FILES, CKPT_MAX_SIDE_BYTES >> 20);
    else
        ckpt_side_add(files, path, bytes, len);
    free(bytes);
    return rc < 0 ? rc : 1;
}

int ckpt_side_take_member(struct ckpt_side_files *files, struct s2s_ckpt *ckpt,
                          const struct ckpt_member *member, const char *path, struct s2s_error *err)
{
    const int64_t len = member->span.len_bytes;
    char *bytes;
    if (files->n >= CKPT_MAX_SIDE_FILES || len > CKPT_MAX_SIDE_FILE - (int64_t)files->len_bytes)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "%s: more than %d files, or %d MiB of them, beside the weights (%s)",
                             ckpt->path, CKPT_MAX_SIDE_FILES, CKPT_MAX_SIDE_FILE >> 20,
                             member->name);
    int rc = ckpt_slurp_span(ckpt, &member->span, len, &bytes, err);
    if (rc < 0)
        return s2s_error_add(err, rc, "%s", member->name);
    ckpt_side_add(files, path, bytes, (size_t)len);
    free(bytes);
    return 0;
}

bool ckpt_is_adapter(const struct s2s_ckpt *ckpt)
{
    return ckpt->n_files && s2s_starts_with(ckpt->files[0].name, "adapter_model");
}

/* Is it a file that a writer of checkpoints makes anew: an index, a manifest? */
static bool is_remade(const char *name)
{
    static const char *const names[] = {"metadata.json", "common.pt", "integrity.json",
                                        CKPT_TRACKER};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    /* model.safetensors.index.fp16.json is the index of a variant */
    return s2s_ends_with(name, CKPT_MANIFEST) ||
           (strstr(name, ".index.") && s2s_ends_with(name, ".json"));
}

bool ckpt_side_is_one(const char *name)
{
    static const char *const suffixes[] = {".json", ".jinja", ".txt",      ".model", ".py",   ".md",
                                           ".yaml", ".jsonl", ".tiktoken", ".spm",   ".vocab"};
    if (name[0] == '.' || is_remade(name))
        return false;
    if (s2s_starts_with(name, "LICENSE") || s2s_starts_with(name, "NOTICE"))
        return true;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (s2s_ends_with(name, suffixes[i]))
            return true;
    return false;
}

/* Is the entry to be copied? 1; 0: no, with a warning; a negative code if that cannot be
 * determined: an I/O error must not lead to a missing file. */
static int is_taken(int dir_fd, const char *name, const char *path, struct s2s_error *err)
{
    struct stat st;
    /* neither a manifest nor a common state could hold this name */
    if (!ckpt_name_is_plain(name, strlen(name)) || !s2s_utf8_valid(name, strlen(name))) {
        s2s_warn("ckpt", "%s: a name with bytes that are not text, left out", name);
        return 0;
    }
    if (fstatat(dir_fd, name, &st, 0) == 0) {
        if (!S_ISREG(st.st_mode))
            s2s_warn("ckpt", "%s: not a plain file, left out", name);
        return S_ISREG(st.st_mode);
    }
    if (s2s_is_there(dir_fd, name))
        return s2s_error_errno(err, S2S_E_IO, "%s", path);
    s2s_warn("ckpt", "%s: %s, left out", name,
             errno == ENOENT ? "a link to nothing" : strerror(errno));
    return 0;
}

/* Are there weights of an adapter? They may also be in model.safetensors or adapters.safetensors of
 * other programs, or among the model's tensors. */
static bool has_adapter(const struct s2s_ckpt *ckpt)
{
    bool has = ckpt->n_files && s2s_starts_with(ckpt->files[0].name, "adapter");
    for (size_t i = 0; i < ckpt->n_tensors && !has; i++)
        has = ckpt_map_is_adapted(ckpt->tensors[i].name);
    return has;
}

/* Is it a file of FSDP ranks, beside those of their models? */
static bool is_of_ranks(const struct s2s_ckpt *ckpt, const char *name)
{
    return strcmp(ckpt->format, "fsdp_rank") == 0 &&
           (strcmp(name, CKPT_FSDP_CONFIG) == 0 || s2s_starts_with(name, CKPT_FSDP_OPTIM) ||
            s2s_starts_with(name, CKPT_FSDP_EXTRA));
}

/* Adds the entry `name` of folder, which is open as fd, if it belongs to the model. */
static int take_entry(struct ckpt_side_files *files, const struct s2s_ckpt *ckpt,
                      const char *folder, int fd, const char *name, struct s2s_error *err)
{
    /* it would make transformers look for an adapter and for another base model */
    const bool of_other = strcmp(name, "adapter_config.json") == 0 && !has_adapter(ckpt);
    if (of_other)
        s2s_warn("ckpt", "%s: there are no weights of an adapter, left out", name);
    if (of_other || !ckpt_side_is_one(name) || is_of_ranks(ckpt, name))
        return 0;
    char *path = s2s_xasprintf("%s%s%s", folder, *folder ? "/" : "", name);
    int rc = is_taken(fd, name, path, err);
    if (rc > 0)
        rc = ckpt_side_take(files, fd, name, path, err);
    free(path);
    return rc < 0 ? rc : 0;
}

int ckpt_side_take_folder(struct ckpt_side_files *files, const struct s2s_ckpt *ckpt,
                          const char *folder, struct s2s_error *err)
{
    const char *name = *folder ? folder : ".";
    int fd = openat(ckpt->dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct dirent **entries;
    if (fd < 0 && errno != ENOENT && errno != ENOTDIR && errno != ELOOP)
        return s2s_error_errno(err, errno == EACCES ? S2S_E_OPEN : S2S_E_IO, "%s", name);
    if (fd < 0 && errno == ELOOP)
        s2s_warn("ckpt", "%s: %s, left out", folder, strerror(errno));
    if (fd < 0)
        return 0;
    int n = scandirat(fd, ".", &entries, NULL, alphasort);
    int rc = n < 0 ? s2s_error_errno(err, S2S_E_IO, "%s: list folder", name) : 0;
    for (int i = 0; i < n; i++) {
        if (rc == 0)
            rc = take_entry(files, ckpt, folder, fd, entries[i]->d_name, err);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    close(fd);
    return rc;
}

/* Files of which there may be thousands count as read: the readers warn of those that are not. */
static bool is_read(const struct s2s_ckpt *ckpt, const char *name)
{
    bool found = s2s_ends_with(name, ".safetensors") || s2s_ends_with(name, ".distcp") ||
                 is_of_ranks(ckpt, name);
    for (size_t i = 0; i < ckpt->n_files && !found; i++)
        found = strcmp(ckpt->files[i].name, name) == 0;
    return found;
}

int ckpt_side_warn_left(const struct ckpt_side_files *files, const struct s2s_ckpt *ckpt,
                        bool texts, struct s2s_error *err)
{
    enum { SHOWN = 1000 }; /* bytes of names */
    struct s2s_buf list = S2S_BUF_INIT;
    struct dirent **entries;
    struct stat st;
    size_t n_more = 0;
    const int n = scandirat(ckpt->dir_fd, ".", &entries, NULL, alphasort);
    if (n < 0)
        return s2s_error_errno(err, S2S_E_IO, "list folder");
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        const bool known = name[0] == '.' || is_remade(name) ||
                           (!texts && ckpt_side_is_one(name)) || ckpt_side_find(files, name) ||
                           is_read(ckpt, name);
        const bool left = !known && fstatat(ckpt->dir_fd, name, &st, 0) == 0 && S_ISREG(st.st_mode);
        if (left && list.len < SHOWN)
            s2s_buf_printf(&list, "%s%s", list.len ? ", " : "", name);
        else
            n_more += left;
        free(entries[i]);
    }
    free(entries);
    if (n_more)
        s2s_buf_printf(&list, " and %zu more", n_more);
    if (list.len)
        s2s_warn("ckpt", "%s: files beside the weights are left out: %s", ckpt->path, list.data);
    s2s_buf_release(&list);
    return 0;
}

const struct ckpt_side_file *ckpt_side_find(const struct ckpt_side_files *files, const char *path)
{
    for (size_t i = 0; i < files->n; i++)
        if (strcmp(files->v[i].path, path) == 0)
            return &files->v[i];
    return NULL;
}

void ckpt_side_release(struct ckpt_side_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        free(files->v[i].path);
        free(files->v[i].bytes);
    }
    free(files->v);
    *files = (struct ckpt_side_files){.n = 0};
}
