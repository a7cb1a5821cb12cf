/* Syncs files and the names of files to disk. */
#include "lib/io/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/base.h"

static bool durable = true;

void s2s_durable_set(bool on)
{
    durable = on;
}

int s2s_durable_sync(int fd)
{
    int rc = 0;
    if (!durable)
        return 0;
    do
        rc = fsync(fd);
    while (rc < 0 && errno == EINTR);
    return rc < 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS ? -1 : 0;
}

int s2s_durable_sync_name(const char *path, struct s2s_error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == path
                       ? s2s_xstrdup("/")
                       : s2s_xstrndup(slash ? path : ".", slash ? (size_t)(slash - path) : 1);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = 0;
    free(folder);
    if (fd < 0 ? errno != EACCES : s2s_durable_sync(fd) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: is there, but its folder cannot be synced", path);
    if (fd >= 0)
        close(fd);
    return rc;
}

void s2s_durable_begin(int fd, int64_t begin, int64_t end)
{
    if (durable)
        (void)sync_file_range(fd, begin, end - begin, SYNC_FILE_RANGE_WRITE);
}
