/* Hints for a user who gave a path that is not a checkpoint. */

#include <fcntl.h>
#include <unistd.h>

#include "lib/base/base.h"
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
