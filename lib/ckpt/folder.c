/* Lists, removes and renames folders, and judges symbolic links. */
#include "lib/ckpt/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt_files.h"
#include "lib/io/durable.h"

int ckpt_sync_dir(const char *dir, struct s2s_error *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = 0;
    if (fd < 0 || s2s_durable_sync(fd) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: sync of the folder", dir);
    if (fd >= 0)
        close(fd);
    return rc;
}

DIR *ckpt_open_dir(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && !dir)
        close(fd);
    return dir;
}

struct dirent *s2s_ckpt_next_entry(DIR *dir, const char *path, int *rc, struct s2s_error *err)
{
    struct dirent *entry;
    do {
        errno = 0;
        entry = readdir(dir);
    } while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    if (!entry && errno)
        *rc = s2s_error_errno(err, S2S_E_IO, "%s: list folder", path);
    return entry;
}

static int remove_entries(int fd, const char *path, struct s2s_error *err)
{
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return s2s_error_errno(err, S2S_E_IO, "%s: list folder", path);
    }
    int rc = 0;
    struct dirent *entry;
    while (rc == 0 && (entry = s2s_ckpt_next_entry(dir, path, &rc, err))) {
        if (unlinkat(dirfd(dir), entry->d_name, 0) == 0)
            continue;
        char *below = s2s_xasprintf("%s/%s", path, entry->d_name);
        int sub =
            openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (sub >= 0)
            rc = remove_entries(sub, below, err);
        if (rc == 0 && unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR) < 0)
            rc = s2s_error_errno(err, S2S_E_IO, "%s: remove", below);
        free(below);
    }
    closedir(dir);
    return rc;
}

int s2s_ckpt_remove_tree(const char *path, struct s2s_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    int rc =
        fd < 0 ? s2s_error_errno(err, S2S_E_IO, "%s: open", path) : remove_entries(fd, path, err);
    if (rc == 0 && rmdir(path) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: remove", path);
    return rc;
}

int s2s_ckpt_rename_tree(const char *from, const char *to, struct s2s_error *err)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) < 0 &&
        (errno != EINVAL || rename(from, to) < 0))
        return s2s_error_errno(err, S2S_E_IO, "%s: rename to %s", from, to);
    return s2s_durable_sync_name(to, err);
}

/* Where a link leads; false: it is none. */
static bool read_link(int fd, const char *name, char to[PATH_MAX])
{
    ssize_t len = readlinkat(fd, name, to, PATH_MAX - 1);
    to[len < 0 ? 0 : len] = 0;
    return len >= 0;
}

/* (../)*blobs/NAME */
static bool is_of_hub(const char *to)
{
    static const char blobs[] = "blobs/";
    const char *at = to;
    while (s2s_starts_with(at, "../"))
        at += 3;
    return at > to && s2s_starts_with(at, blobs) && !strchr(at + strlen(blobs), '/');
}

bool ckpt_is_strange_link(int fd, const char *name)
{
    char to[PATH_MAX];
    return read_link(fd, name, to) && strchr(to, '/') && !is_of_hub(to);
}

const char *ckpt_in_hub(int fd, const char *name, char to[PATH_MAX])
{
    return read_link(fd, name, to) && is_of_hub(to) ? to : name;
}
