/* Opens files without a name, and gives them one. */
#include "lib/io/unnamed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"

enum { PROC_PATH = 32 };

/* linkat(fd, "", .., AT_EMPTY_PATH) requires a capability; this does not */
static const char *proc_path(char path[PROC_PATH], int fd)
{
    snprintf(path, PROC_PATH, "/proc/self/fd/%d", fd);
    return path;
}

static bool can_be_linked(int fd)
{
    char path[PROC_PATH];
    struct stat st, by_path;
    return fstat(fd, &st) == 0 && stat(proc_path(path, fd), &by_path) == 0 &&
           st.st_dev == by_path.st_dev && st.st_ino == by_path.st_ino;
}

int s2s_unnamed_open(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? s2s_xstrndup(path, (size_t)(slash - path) + 1) : s2s_xstrdup(".");
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    free(folder);
    if (fd >= 0 && !can_be_linked(fd)) {
        close(fd);
        fd = -1;
        errno = EOPNOTSUPP;
    }
    return fd;
}

int s2s_unnamed_temporary(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
        return fd;
    char *name = s2s_xasprintf("%s/s2s-XXXXXX", folder);
    fd = mkostemp(name, O_CLOEXEC);
    if (fd >= 0)
        unlink(name);
    free(name);
    return fd;
}

bool s2s_unnamed_is_failure(int error)
{
    return error == EIO || error == ENOSPC || error == EDQUOT || error == EACCES || error == EROFS;
}

int s2s_unnamed_link(int fd, const char *path)
{
    char from[PROC_PATH];
    return linkat(AT_FDCWD, proc_path(from, fd), AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

int s2s_unnamed_copy(int fd, int to)
{
    off_t at = 0;
    for (;;) {
        ssize_t n = sendfile(to, fd, &at, 1 << 20);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -1;
    }
}
