#include "lib/ckpt/read/gzip.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include "lib/base/base.h"

enum { BLOCK = 1 << 16, MAX_BEHIND = 64 << 20 };

struct ckpt_gzip {
    gzFile file;
    char block[BLOCK];
};

/* NULL: none, or only that it is at its end */
static const char *fault(struct ckpt_gzip *gzip)
{
    int code = Z_OK;
    const char *text = gzerror(gzip->file, &code);
    const char *behind = text ? strstr(text, ">: ") : NULL; /* "<fd:5>: " says nothing */
    text = behind ? behind + 3 : text;
    return code == Z_OK || code == Z_STREAM_END ? NULL
           : text && *text                      ? text
                                                : "cannot be inflated";
}

static la_ssize_t read_block(struct archive *in, void *ctx, const void **bytes)
{
    struct ckpt_gzip *gzip = ctx;
    int n = gzread(gzip->file, gzip->block, BLOCK);
    const char *why = n > 0 ? NULL : fault(gzip);
    if (why) {
        archive_set_error(in, EIO, "%s", why);
        return -1;
    }
    *bytes = gzip->block;
    return n;
}

struct ckpt_gzip *ckpt_gzip_open(struct archive *in, int fd)
{
    struct ckpt_gzip *gzip = s2s_xcalloc(1, sizeof *gzip);
    int own = lseek(fd, 0, SEEK_SET) == 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    gzip->file = own >= 0 ? gzdopen(own, "rb") : NULL;
    if (gzip->file && gzbuffer(gzip->file, BLOCK) == 0 &&
        archive_read_open(in, gzip, NULL, read_block, NULL) == ARCHIVE_OK)
        return gzip;
    if (!gzip->file && own >= 0)
        close(own);
    ckpt_gzip_close(gzip);
    return NULL;
}

const char *ckpt_gzip_finish(struct ckpt_gzip *gzip)
{
    int n = 1;
    for (int behind = 0; n > 0 && behind < MAX_BEHIND; behind += n)
        n = gzread(gzip->file, gzip->block, BLOCK);
    return n > 0 ? NULL : fault(gzip);
}

void ckpt_gzip_close(struct ckpt_gzip *gzip)
{
    if (gzip && gzip->file)
        gzclose(gzip->file);
    free(gzip);
}
