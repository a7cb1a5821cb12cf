/* Decompresses a tar for libarchive, and stops at a decompression bomb. */
#include "lib/ckpt/read/inflate.h"

#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include "lib/base/base.h"

enum {
    BLOCK = 1 << 16,
    MAX_BEHIND = 64 << 20,
    MAX_HEADER = 1 << 20,
    MAX_RATIO = 100,
    FREE_BYTES = 256 << 20 /* the ratio is not checked below this */
};

struct ckpt_inflate {
    gzFile gzip;        /* NULL: not gzip */
    struct archive *in; /* for the other compressions, reading a raw stream */
    int64_t packed_len, inflated;
    int64_t header; /* bytes of the current tar header so far; -1: outside of a header */
    char block[BLOCK];
};

bool ckpt_inflates_too_much(int64_t packed_len, int64_t len_bytes)
{
    return len_bytes > FREE_BYTES && len_bytes / MAX_RATIO > packed_len;
}

/* zlib's error message; NULL: no error, or only the end of the stream */
static const char *fault(struct ckpt_inflate *inflate)
{
    int code = Z_OK;
    const char *text = gzerror(inflate->gzip, &code);
    const char *behind = text ? strstr(text, ">: ") : NULL; /* strip the useless "<fd:5>: " */
    text = behind ? behind + 3 : text;
    return code == Z_OK || code == Z_STREAM_END ? NULL
           : text && *text                      ? text
                                                : "cannot be inflated";
}

static la_ssize_t fail(struct archive *in, const char *why)
{
    archive_set_error(in, EIO, "%s", why ? why : "cannot be inflated");
    return -1;
}

static la_ssize_t read_gzip(struct archive *in, struct ckpt_inflate *inflate, const void **bytes)
{
    int n = gzread(inflate->gzip, inflate->block, BLOCK);
    const char *why = n > 0 ? NULL : fault(inflate);
    *bytes = inflate->block;
    return why ? fail(in, why) : n;
}

static la_ssize_t read_other(struct archive *in, struct ckpt_inflate *inflate, const void **bytes)
{
    la_int64_t at;
    size_t n = 0;
    int status = archive_read_data_block(inflate->in, bytes, &n, &at);
    return status == ARCHIVE_EOF ? 0
           : status == ARCHIVE_OK || status == ARCHIVE_WARN
               ? (la_ssize_t)n
               : fail(in, archive_error_string(inflate->in));
}

static la_ssize_t read_block(struct archive *in, void *ctx, const void **bytes)
{
    struct ckpt_inflate *inflate = ctx;
    /* checked before reading: one block of lz4 may be larger, and include what follows the header
     */
    if (inflate->header > MAX_HEADER)
        return fail(in, "a header of more than 1 MiB");
    la_ssize_t n = inflate->gzip ? read_gzip(in, inflate, bytes) : read_other(in, inflate, bytes);
    if (n <= 0)
        return n;
    inflate->inflated += n;
    if (ckpt_inflates_too_much(inflate->packed_len, inflate->inflated))
        return fail(in, "it is made to fill the disk");
    if (inflate->header >= 0)
        inflate->header += n;
    return n;
}

/* Only these: for some others libarchive starts external programs. */
static void add_filters(struct archive *in)
{
    archive_read_support_filter_bzip2(in);
    archive_read_support_filter_xz(in);
    archive_read_support_filter_lz4(in);
    archive_read_support_filter_zstd(in);
}

static bool open_other(struct ckpt_inflate *inflate, struct archive *in, int fd)
{
    struct archive_entry *entry;
    inflate->in = archive_read_new();
    if (!inflate->in)
        return false;
    add_filters(inflate->in);
    archive_read_support_format_raw(inflate->in);
    if (archive_read_open_fd(inflate->in, fd, BLOCK) == ARCHIVE_OK &&
        archive_read_next_header(inflate->in, &entry) == ARCHIVE_OK)
        return true;
    fail(in, archive_error_string(inflate->in));
    return false;
}

struct ckpt_inflate *ckpt_inflate_open(struct archive *in, int fd, bool is_gzip, int64_t packed_len)
{
    struct ckpt_inflate *inflate = s2s_xcalloc(1, sizeof *inflate);
    inflate->packed_len = packed_len;
    bool opened = lseek(fd, 0, SEEK_SET) == 0;
    if (opened && is_gzip) {
        int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        inflate->gzip = own >= 0 ? gzdopen(own, "rb") : NULL;
        opened = inflate->gzip && gzbuffer(inflate->gzip, BLOCK) == 0;
        if (!inflate->gzip && own >= 0)
            close(own);
    } else if (opened) {
        opened = open_other(inflate, in, fd);
    }
    if (opened && archive_read_open(in, inflate, NULL, read_block, NULL) == ARCHIVE_OK)
        return inflate;
    ckpt_inflate_close(inflate);
    return NULL;
}

void ckpt_inflate_header(struct ckpt_inflate *inflate, bool begins)
{
    inflate->header = begins ? 0 : -1;
}

const char *ckpt_inflate_finish(struct ckpt_inflate *inflate)
{
    const void *bytes;
    la_int64_t at;
    size_t n = 1;
    int status = ARCHIVE_OK, got = 1;
    for (size_t behind = 0; behind < MAX_BEHIND && got > 0 && status == ARCHIVE_OK; behind += n) {
        if (inflate->in)
            status = archive_read_data_block(inflate->in, &bytes, &n, &at);
        else
            n = (size_t)(got = gzread(inflate->gzip, inflate->block, BLOCK));
    }
    if (inflate->in)
        return status == ARCHIVE_OK || status == ARCHIVE_EOF ? NULL
                                                             : archive_error_string(inflate->in);
    return got > 0 ? NULL : fault(inflate);
}

void ckpt_inflate_close(struct ckpt_inflate *inflate)
{
    if (inflate && inflate->gzip)
        gzclose(inflate->gzip);
    if (inflate && inflate->in)
        archive_read_free(inflate->in);
    free(inflate);
}
