/* What somebody who named the wrong file or folder probably meant. */
#include "lib/ckpt/model.h"

#include <fcntl.h>
#include <unistd.h>

#include "lib/base/base.h"

enum { MAX_NAMED = 4, MAX_LOOKED_AT = 4096 };

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

static bool is_of_checkpoint(const char *name)
{
    if (name[0] == '.')
        return strcmp(name, ".metadata") == 0;
    return strcmp(name, CKPT_TRACKER) == 0 || s2s_starts_with(name, "mp_rank_") ||
           s2s_ends_with(name, ".safetensors") || s2s_ends_with(name, ".distcp") ||
           (s2s_starts_with(name, "pytorch_model") && s2s_ends_with(name, ".bin"));
}

bool ckpt_folder_has_weights(int at, const char *name)
{
    DIR *dir = ckpt_open_dir(at, name);
    bool found = false;
    for (struct dirent *item; dir && !found && (item = readdir(dir)) != NULL;)
        found = is_of_checkpoint(item->d_name);
    if (dir)
        closedir(dir);
    return found;
}

const char *const ckpt_around[CKPT_N_AROUND] = {"weights", "model", "policy"};

bool ckpt_folder_is_around(int at, const char *name)
{
    bool found = false;
    for (int i = 0; !found && i < CKPT_N_AROUND; i++) {
        char *path = s2s_xasprintf("%s/%s", name, ckpt_around[i]);
        char *deeper = s2s_xasprintf("%s/model", path), *policy = s2s_xasprintf("%s/weights", path);
        found = ckpt_folder_has_weights(at, path) || ckpt_folder_has_weights(at, deeper) ||
                faccessat(at, policy, F_OK, 0) == 0;
        free(path);
        free(deeper);
        free(policy);
    }
    return found;
}

static int by_name(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

int ckpt_hint_folder(const struct s2s_ckpt *ckpt, int rc, struct s2s_error *err)
{
    static const char *const files[] = {".pt", ".pth", ".ckpt", ".nemo", ".bin"};
    DIR *dir = ckpt_open_dir(ckpt->dir_fd, ".");
    char **names = NULL;
    size_t n = 0, cap = 0;
    struct dirent *item;
    for (int i = 0; dir && i < MAX_LOOKED_AT && (item = readdir(dir)) != NULL; i++) {
        bool named = false;
        if (item->d_name[0] == '.' || !ckpt_name_is_plain(item->d_name, strlen(item->d_name)))
            continue;
        for (size_t k = 0; k < sizeof files / sizeof *files; k++)
            named |= s2s_ends_with(item->d_name, files[k]);
        if (!named && !ckpt_folder_has_weights(dirfd(dir), item->d_name) &&
            !ckpt_folder_is_around(dirfd(dir), item->d_name))
            continue;
        s2s_grow(&names, n, &cap, sizeof *names);
        names[n++] = s2s_xstrdup(item->d_name);
    }
    if (dir)
        closedir(dir);
    struct s2s_buf list = S2S_BUF_INIT;
    if (n)
        qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n; i++) {
        if (i < MAX_NAMED)
            s2s_buf_printf(&list, "%s%s", i ? ", " : "", names[i]);
        free(names[i]);
    }
    if (n)
        rc = s2s_error_hint(err, rc, "name one that is in it: %.*s%s", (int)list.len, list.data,
                            n > MAX_NAMED ? ", .." : "");
    s2s_buf_release(&list);
    free(names);
    return rc;
}
