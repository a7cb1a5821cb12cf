/* Hints for a user who gave a path that is not a checkpoint. */

#include <fcntl.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/folder.h"
#include "lib/ckpt/read/read_internal.h"

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
