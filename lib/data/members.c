/* Walks and reads tars with libarchive. */
#include "lib/data/members.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <archive.h>
#include <archive_entry.h>

#include "lib/base/base.h"
#include "lib/data/spool.h"
#include "lib/io/pread.h"

enum { READ_BLOCK = 1 << 16 };

struct s2s_members {
    char *path;
    const char *name; /* for messages */
    int fd;           /* of the tar, not compressed; -1: opened for each use, as tars may be many */
    int64_t len_bytes;
    struct timespec mtime; /* of a file that is opened again */
    struct archive *in;    /* where the walk is; NULL: at its start */
    int walk_fd;
    int64_t from; /* where the walk begins */
    bool ended;
};

static int bad_tar(const struct s2s_members *tar, struct archive *in, struct s2s_error *err)
{
    const char *why = archive_error_string(in);
    if (why && strstr(why, "Unrecognized archive format")) {
        int rc = s2s_error_set(err, S2S_E_FORMAT, "%s: is no tar", tar->name);
        return s2s_error_hint(err, rc, "--tars takes tars, --manifest the lines about them");
    }
    const bool cut = why && (strstr(why, "runcated") || strstr(why, "End-of-file"));
    return s2s_error_set(err, cut ? S2S_E_TRUNCATED : S2S_E_FORMAT, "%s: damaged tar: %s",
                         tar->name, why ? why : "not readable");
}

/* ---- opening ---- */

/* 1: fd begins as a compressed file does. */
static int is_compressed(int fd, const char *name, struct s2s_error *err)
{
    static const struct {
        size_t len;
        unsigned char bytes[6];
    } kinds[] = {{2, {0x1f, 0x8b}},
                 {4, {0x28, 0xb5, 0x2f, 0xfd}},
                 {6, {0xfd, '7', 'z', 'X', 'Z', 0}},
                 {3, {'B', 'Z', 'h'}}};
    unsigned char head[6];
    int rc = s2s_pread(fd, head, sizeof head, 0, err);
    if (rc == S2S_E_TRUNCATED)
        return s2s_error_set(err, S2S_E_TRUNCATED, "%s: too short for a tar", name);
    if (rc < 0)
        return s2s_error_add(err, rc, "%s", name);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!memcmp(head, kinds[i].bytes, kinds[i].len))
            return 1;
    return 0;
}

static int copy_raw(struct s2s_members *tar, struct archive *in, int to, struct s2s_error *err)
{
    struct archive_entry *entry;
    const void *bytes;
    size_t len;
    la_int64_t at;
    int status = archive_read_next_header(in, &entry), rc = 0;
    while (status == ARCHIVE_OK && rc == 0) {
        status = archive_read_data_block(in, &bytes, &len, &at);
        if (status == ARCHIVE_OK)
            rc = s2s_spool_write(to, bytes, len, tar->name, err);
    }
    return rc < 0 || status == ARCHIVE_EOF ? rc : bad_tar(tar, in, err);
}

/* Returns a descriptor of what `from` holds, decompressed. */
static int unpacked(struct s2s_members *tar, int from, struct s2s_error *err)
{
    struct archive *in = archive_read_new();
    int to = s2s_spool_temporary(tar->name, err);
    if (!in || to < 0) {
        archive_read_free(in);
        return in ? to : s2s_error_set(err, S2S_E_NOMEM, "%s: no memory for a tar", tar->name);
    }
    archive_read_support_filter_all(in);
    archive_read_support_format_raw(in);
    int rc = archive_read_open_fd(in, from, READ_BLOCK) == ARCHIVE_OK ? copy_raw(tar, in, to, err)
                                                                      : bad_tar(tar, in, err);
    archive_read_free(in);
    if (rc == 0)
        return to;
    close(to);
    return rc;
}

static int look_at(struct s2s_members *tar, int fd, struct s2s_error *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s", tar->name);
    tar->len_bytes = st.st_size;
    tar->mtime = st.st_mtim;
    return 0;
}

int s2s_members_open(struct s2s_members **out, const char *path, struct s2s_error *err)
{
    struct s2s_members *tar = s2s_xcalloc(1, sizeof *tar);
    tar->path = s2s_xstrdup(path);
    tar->name = s2s_spool_name(tar->path);
    tar->walk_fd = -1;
    tar->fd = s2s_spool_open(path, err);
    int rc = tar->fd < 0 ? tar->fd : is_compressed(tar->fd, tar->name, err);
    const bool is_file = rc == 0 && strcmp(path, "-") != 0 && !s2s_spool_is_pipe(path);
    if (rc > 0) {
        int plain = unpacked(tar, tar->fd, err);
        close(tar->fd);
        rc = tar->fd = plain;
    }
    if (rc >= 0)
        rc = look_at(tar, tar->fd, err);
    if (rc < 0) {
        s2s_members_close(tar);
        return rc;
    }
    if (is_file) {
        close(tar->fd);
        tar->fd = -1;
    }
    *out = tar;
    return 0;
}

int s2s_members_share(struct s2s_members **out, const struct s2s_members *other,
                      struct s2s_error *err)
{
    int fd = other->fd < 0 ? -1 : fcntl(other->fd, F_DUPFD_CLOEXEC, 0);
    if (other->fd >= 0 && fd < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot open again", other->name);
    struct s2s_members *tar = s2s_xcalloc(1, sizeof *tar);
    *tar = (struct s2s_members){.path = s2s_xstrdup(other->path),
                                .fd = fd,
                                .walk_fd = -1,
                                .len_bytes = other->len_bytes,
                                .mtime = other->mtime};
    tar->name = s2s_spool_name(tar->path);
    *out = tar;
    return 0;
}

void s2s_members_close(struct s2s_members *tar)
{
    if (!tar)
        return;
    s2s_members_rewind(tar);
    if (tar->fd >= 0)
        close(tar->fd);
    free(tar->path);
    free(tar);
}

/* A descriptor of its own, so that threads do not move each other's place. */
static int reopen(const struct s2s_members *tar, struct s2s_error *err)
{
    char name[64];
    struct stat st;
    snprintf(name, sizeof name, "/proc/self/fd/%d", tar->fd);
    int fd = open(tar->fd < 0 ? tar->path : name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot open", tar->name);
    if (fstat(fd, &st) == 0 && st.st_size == tar->len_bytes &&
        (tar->fd >= 0 ||
         (st.st_mtim.tv_sec == tar->mtime.tv_sec && st.st_mtim.tv_nsec == tar->mtime.tv_nsec)))
        return fd;
    close(fd);
    return s2s_error_set(err, S2S_E_IO, "%s: has changed while it was read", tar->name);
}

/* ---- walking ---- */

static int begin(const struct s2s_members *tar, struct archive **in, int fd, int64_t at,
                 struct s2s_error *err)
{
    *in = archive_read_new();
    if (!*in)
        return s2s_error_set(err, S2S_E_NOMEM, "%s: no memory for a tar", tar->name);
    archive_read_support_format_tar(*in);
    if (lseek(fd, at, SEEK_SET) != at)
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot seek", tar->name);
    if (archive_read_open_fd(*in, fd, READ_BLOCK) != ARCHIVE_OK)
        return bad_tar(tar, *in, err);
    return 0;
}

void s2s_members_rewind(struct s2s_members *tar)
{
    archive_read_free(tar->in);
    if (tar->walk_fd >= 0)
        close(tar->walk_fd);
    tar->in = NULL;
    tar->walk_fd = -1;
    tar->ended = false;
}

void s2s_members_rewind_to(struct s2s_members *tar, int64_t at)
{
    s2s_members_rewind(tar);
    tar->from = at;
}

int64_t s2s_members_len_bytes(const struct s2s_members *tar)
{
    return tar->len_bytes;
}

/* Behind the last member are zeros; where they are missing the tar was cut there. */
static int check_end(const struct s2s_members *tar, struct s2s_error *err)
{
    if (archive_filter_bytes(tar->in, 0) > archive_read_header_position(tar->in))
        return 0;
    return s2s_error_set(err, S2S_E_TRUNCATED, "%s: the tar has no end mark: truncated", tar->name);
}

static int next_entry(struct s2s_members *tar, struct s2s_member *member, struct s2s_error *err)
{
    struct archive_entry *entry;
    for (;;) {
        int status = archive_read_next_header(tar->in, &entry);
        if (status == ARCHIVE_EOF)
            return check_end(tar, err);
        if (status != ARCHIVE_OK && status != ARCHIVE_WARN)
            return bad_tar(tar, tar->in, err);
        if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry))
            continue;
        *member = (struct s2s_member){archive_entry_pathname(entry),
                                      tar->from + archive_read_header_position(tar->in),
                                      archive_entry_size(entry)};
        if (!member->name || !archive_entry_size_is_set(entry) || member->len_bytes < 0)
            return s2s_error_set(err, S2S_E_FORMAT, "%s: a member with an invalid header",
                                 tar->name);
        if (member->len_bytes > tar->len_bytes - member->at)
            return s2s_error_set(err, S2S_E_TRUNCATED, "%s: %s leaves the tar", tar->name,
                                 member->name);
        return 1;
    }
}

int s2s_members_next(struct s2s_members *tar, struct s2s_member *member, struct s2s_error *err)
{
    int rc = 0;
    if (tar->ended)
        return 0;
    if (!tar->in) {
        rc = tar->walk_fd = reopen(tar, err);
        if (rc >= 0)
            rc = begin(tar, &tar->in, tar->walk_fd, tar->from, err);
    }
    if (rc >= 0)
        rc = next_entry(tar, member, err);
    if (rc <= 0) {
        s2s_members_rewind(tar);
        tar->ended = true;
    }
    return rc;
}

/* ---- one member ---- */

static int read_entry(const struct s2s_members *tar, struct archive *in, const char *name,
                      void **bytes, size_t *len_bytes, struct s2s_error *err)
{
    struct archive_entry *entry;
    int status = archive_read_next_header(in, &entry);
    const char *found = status >= ARCHIVE_WARN ? archive_entry_pathname(entry) : NULL;
    if (status == ARCHIVE_EOF || !found || strcmp(found, name) != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: %s is not at its place", tar->name, name);
    const int64_t len = archive_entry_size(entry);
    if (len < 0 || len > tar->len_bytes)
        return s2s_error_set(err, S2S_E_TRUNCATED, "%s: %s leaves the tar", tar->name, name);
    *bytes = s2s_try_calloc((size_t)len + 1, 1, "a member of a tar", err);
    if (!*bytes)
        return s2s_error_add(err, S2S_E_NOMEM, "%s: %s", tar->name, name);
    const la_ssize_t n = archive_read_data(in, *bytes, (size_t)len);
    if (n == len) {
        *len_bytes = (size_t)len;
        return 0;
    }
    free(*bytes);
    *bytes = NULL;
    if (n < 0)
        return bad_tar(tar, in, err);
    return s2s_error_set(err, S2S_E_TRUNCATED, "%s: %s is cut", tar->name, name);
}

int s2s_members_read(const struct s2s_members *tar, int64_t at, const char *name, void **bytes,
                     size_t *len_bytes, struct s2s_error *err)
{
    struct archive *in = NULL;
    *bytes = NULL;
    int fd = reopen(tar, err);
    int rc = fd < 0 ? fd : begin(tar, &in, fd, at, err);
    if (rc == 0)
        rc = read_entry(tar, in, name, bytes, len_bytes, err);
    archive_read_free(in);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Where the next file of this name begins, behind the first member; -1: there is none. Names that
 * are no text have none here. */
static int64_t find_next(struct archive *in, const char *name)
{
    struct archive_entry *entry;
    for (bool first = true;; first = false) {
        const int status = archive_read_next_header(in, &entry);
        if (status == ARCHIVE_EOF || status < ARCHIVE_WARN)
            return -1;
        const char *found = archive_entry_pathname(entry);
        if (!first && archive_entry_filetype(entry) == AE_IFREG && found && !strcmp(found, name))
            return archive_read_header_position(in);
    }
}

int s2s_members_find(const struct s2s_members *tar, int64_t *at, const char *name,
                     struct s2s_error *err)
{
    struct archive *in = NULL;
    int fd = reopen(tar, err);
    int rc = fd < 0 ? fd : begin(tar, &in, fd, *at, err);
    const int64_t behind = rc < 0 ? -1 : find_next(in, name);
    if (rc == 0 && behind < 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: %s is not there", tar->name, name);
    if (rc == 0) {
        *at += behind;
        rc = 1;
    }
    archive_read_free(in);
    if (fd >= 0)
        close(fd);
    return rc;
}
