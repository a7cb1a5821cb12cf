#include "lib/io/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

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

void s2s_durable_begin(int fd, int64_t begin, int64_t end)
{
    if (durable)
        (void)sync_file_range(fd, begin, end - begin, SYNC_FILE_RANGE_WRITE);
}
