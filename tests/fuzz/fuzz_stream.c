/* Any bytes as a stream, plain or zstd: as a file (in order and by number) and through a pipe,
 * where records are looked at before their digests are known. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/stream/stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const char *path)
{
    struct s2s_stream *in = NULL;
    struct s2s_record rec;
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_stream_open(&in, path, &err) < 0)
        return;
    int64_t n_records = s2s_stream_n_records(in, &err);
    for (int64_t i = n_records; i-- > 0;)
        (void)s2s_stream_read_at(in, i, &rec, &err);
    while (s2s_stream_next(in, &rec, &err) != 0 && !s2s_stream_is_broken(in))
        continue;
    s2s_stream_close(in);
}

static void read_pipe(const uint8_t *data, size_t size)
{
    char path[40];
    int ends[2];
    if (pipe(ends) < 0)
        return;
    (void)fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    (void)fcntl(ends[1], F_SETFL, O_NONBLOCK); /* what does not fit is a cut */
    ssize_t n = write(ends[1], data, size);
    close(ends[1]);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    if (n >= 0)
        read_all(path);
    close(ends[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[40];
    int fd = memfd_create("stream", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        S2S_BUG("no memory file");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    read_all(path);
    close(fd);
    read_pipe(data, size);
    return 0;
}
