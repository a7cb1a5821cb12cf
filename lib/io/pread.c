/* Reads all bytes of a range, or says that the file became shorter. */
#include "lib/io/pread.h"

#include <errno.h>
#include <unistd.h>

#include "lib/base/base.h"

int s2s_pread(int fd, void *out, size_t len, int64_t pos, struct s2s_error *err)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pread(fd, (char *)out + done, len - done, pos + (int64_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return s2s_error_errno(err, S2S_E_IO, "read at %lld", (long long)pos);
        if (n == 0)
            return s2s_error_set(err, S2S_E_TRUNCATED, "ends at %lld, %zu bytes too early",
                                 (long long)pos + (long long)done, len - done);
        done += (size_t)n;
    }
    return 0;
}
