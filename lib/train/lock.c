/* Locks a run directory, and makes the folders it needs. */
#include "lib/train/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"

struct s2s_run_lock {
    char *path;
    int fd;
};

int s2s_make_dirs(const char *path, struct s2s_error *err)
{
    char *copy = s2s_xstrdup(path);
    int rc = 0;
    for (char *at = copy + 1; rc == 0 && *copy; at++) {
        if (*at != '/' && *at != 0)
            continue;
        char was = *at;
        *at = 0;
        if (mkdir(copy, 0777) < 0 && errno != EEXIST)
            rc = s2s_error_errno(err, S2S_E_OPEN, "cannot create the folder %s", copy);
        *at = was;
        if (!was)
            break;
    }
    free(copy);
    return rc;
}

static int refuse(int fd, const char *dir, struct s2s_error *err)
{
    char owner[256];
    ssize_t len = pread(fd, owner, sizeof owner - 1, 0);
    owner[len > 0 ? len : 0] = 0;
    owner[strcspn(owner, "\n")] = 0;
    int rc = s2s_error_set(err, S2S_E_RULE, "%s is in use by %s", dir,
                           *owner ? owner : "another process");
    return s2s_error_hint(err, rc, "wait for it, or give another run=DIR");
}

/* The file we locked may have been removed by the owner before us in the meantime. */
static int is_current(int fd, const char *path)
{
    struct stat ours, there;
    return fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino &&
           ours.st_dev == there.st_dev;
}

int s2s_run_lock(struct s2s_run_lock **out, const char *dir, struct s2s_error *err)
{
    int rc = s2s_make_dirs(dir, err), fd;
    if (rc < 0)
        return rc;
    char *path = s2s_xasprintf("%s/lock", dir);
    for (;;) {
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) {
            rc = s2s_error_errno(err, S2S_E_OPEN, "%s", path);
            break;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            rc = errno == EWOULDBLOCK ? refuse(fd, dir, err)
                                      : s2s_error_errno(err, S2S_E_IO, "%s: cannot lock", path);
            close(fd);
            break;
        }
        if (is_current(fd, path))
            break;
        close(fd);
    }
    if (rc < 0) {
        free(path);
        return rc;
    }
    char host[200] = "?", owner[256];
    if (gethostname(host, sizeof host - 1) < 0)
        host[0] = '?';
    int len = snprintf(owner, sizeof owner, "process %d on %s\n", (int)getpid(), host);
    /* only a message for others depends on this write */
    if (ftruncate(fd, 0) < 0 || pwrite(fd, owner, (size_t)len, 0) != len)
        s2s_warn("train", "%s: cannot write the owner: %s", path, strerror(errno));
    struct s2s_run_lock *lock = s2s_xcalloc(1, sizeof *lock);
    lock->path = path;
    lock->fd = fd;
    *out = lock;
    return 0;
}

void s2s_run_unlock(struct s2s_run_lock *lock)
{
    if (!lock)
        return;
    unlink(lock->path);
    close(lock->fd);
    free(lock->path);
    free(lock);
}
