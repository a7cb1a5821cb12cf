/* Output files that get their name only when they are complete. */
#include "lib/io/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/io/behind.h"
#include "lib/io/durable.h"
#include "lib/io/temps.h"
#include "lib/io/unnamed.h"

enum { PIPE_BYTES = 1024 * 1024 };

/* Bytes that are written before writeback is started, so that little is left for the fsync. */
enum { WRITEBACK_BYTES = 16 << 20 };

struct s2s_outfile {
    char *path;                /* as given, for messages */
    char *target;              /* the final name; NULL: written in place */
    char *temp;                /* the temporary name; NULL: none */
    int fd;                    /* STDOUT_FILENO is not closed here, but in lib/base/tool */
    int slot;                  /* in the list of lib/io/temps.h */
    int64_t offset;            /* bytes passed to s2s_outfile_write */
    bool is_temp_file;         /* a new regular file, not written in place */
    bool is_unnamed;           /* has no name yet */
    struct s2s_behind *behind; /* buffers and writes, possibly on a thread, which owns these: */
    int64_t written;           /* bytes passed to write(2) */
    int64_t synced;            /* of those, whose writeback to disk was started */
};

/* ---- writing ---- */

/* Dies of SIGPIPE, quietly, as cat does when its reader exits early. */
static void die_of_sigpipe(void)
{
    s2s_temps_remove_files();
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
}

/* Starts writeback of written bytes, without waiting for it. */
static void start_writeback(struct s2s_outfile *out)
{
    if (!out->is_temp_file || out->written - out->synced < WRITEBACK_BYTES)
        return;
    s2s_durable_begin(out->fd, out->synced, out->written);
    out->synced = out->written;
}

static int write_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    struct s2s_outfile *out = ctx;
    size_t done = 0;
    while (done < len) {
        size_t want = len - done;
        /* pieces of its own size are fastest for a pipe; a file takes all at once */
        if (!out->is_temp_file && want > S2S_BEHIND_PIECE)
            want = S2S_BEHIND_PIECE;
        ssize_t n = write(out->fd, (const char *)bytes + done, want);
        if (n > 0) {
            done += (size_t)n;
        } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
            if (n == 0)
                errno = ENOSPC; /* POSIX does not define 0 here; nothing was written */
            if (errno == EPIPE)
                die_of_sigpipe();
            return s2s_error_errno(err, S2S_E_IO,
                                   "%s: cannot write %zu bytes at offset %lld (%zu were written)",
                                   out->path, len, (long long)out->written, done);
        }
    }
    out->written += (int64_t)len;
    start_writeback(out);
    return 0;
}

int s2s_outfile_flush(struct s2s_outfile *out, struct s2s_error *err)
{
    return s2s_behind_flush(out->behind, err);
}

int s2s_outfile_write(struct s2s_outfile *out, const void *bytes, size_t len, struct s2s_error *err)
{
    out->offset += (int64_t)len;
    return s2s_behind_add(out->behind, bytes, len, err);
}

/* ---- opening ---- */

static void outfile_free(struct s2s_outfile *out)
{
    s2s_temp_drop(out->slot);
    free(out->path);
    free(out->target);
    free(out->temp);
    s2s_behind_free(out->behind);
    free(out);
}

static int create_temp(struct s2s_outfile *out, const char *temp)
{
    out->fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return out->fd < 0 ? -1 : 0;
}

static int link_temp(struct s2s_outfile *out, const char *temp)
{
    return s2s_unnamed_link(out->fd, temp);
}

/* Gives the file a temporary name in the same folder: rename works only within a file system. */
static int take_temp(struct s2s_outfile *out, int (*take)(struct s2s_outfile *, const char *),
                     struct s2s_error *err)
{
    const char *slash = strrchr(out->target, '/');
    const char *base = slash ? slash + 1 : out->target;
    int dir_len = (int)(base - out->target);
    for (int attempt = 0; attempt < 1000; attempt++) {
        /* the name may have the maximal length already, so only its start is used */
        char *temp = s2s_xasprintf("%.*s.%.180s.%ld-%d.tmp", dir_len, out->target, base,
                                   (long)getpid(), attempt);
        out->slot = s2s_temp_add(temp, false);
        if (out->slot < 0) {
            free(temp);
            return s2s_error_set(err, S2S_E_IO, "%s: more than %d files open for writing",
                                 out->path, S2S_MAX_TEMPS);
        }
        if (take(out, temp) == 0) {
            out->temp = temp;
            return 0;
        }
        int saved = errno;
        s2s_temp_drop(out->slot);
        out->slot = -1;
        free(temp);
        errno = saved;
        if (errno != EEXIST && errno != EINTR)
            break;
    }
    return s2s_error_errno(err, S2S_E_IO, "%s: cannot create the file", out->path);
}

static int open_target(struct s2s_outfile *out, struct s2s_error *err)
{
    out->is_temp_file = true;
    out->fd = s2s_unnamed_open(out->target);
    out->is_unnamed = out->fd >= 0;
    if (out->fd < 0 && s2s_unnamed_is_failure(errno))
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot create the file", out->path);
    return out->is_unnamed ? 0 : take_temp(out, create_temp, err);
}

static int open_path(struct s2s_outfile *out, struct s2s_error *err)
{
    struct stat st;
    bool exists = stat(out->path, &st) == 0;
    /* such as a name that is too long: better before hours of writing than after */
    if (!exists && errno != ENOENT)
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot create the file", out->path);
    /* the file would replace the link, not be created at its target */
    if (!exists && lstat(out->path, &st) == 0)
        return s2s_error_set(err, S2S_E_IO, "%s: is a link to nothing", out->path);
    if (exists && !S_ISREG(st.st_mode)) {
        if (S_ISDIR(st.st_mode))
            return s2s_error_set(err, S2S_E_IO, "%s: is a folder, not a file", out->path);
        /* devices and named pipes are written in place */
        do
            out->fd = open(out->path, O_WRONLY | O_CLOEXEC);
        while (out->fd < 0 && errno == EINTR);
        return out->fd < 0
                   ? s2s_error_errno(err, S2S_E_IO, "%s: cannot open for writing", out->path)
                   : 0;
    }
    /* replace the target of a link, not the link */
    char resolved[PATH_MAX];
    out->target = s2s_xstrdup(realpath(out->path, resolved) ? resolved : out->path);
    return open_target(out, err);
}

static int open_outfile(struct s2s_outfile **result, const char *path, bool is_threaded,
                        struct s2s_error *err)
{
    bool is_stdout = !path || !strcmp(path, "-");
    if (path && !*path)
        return s2s_error_set(err, S2S_E_ARG, "the name of an output is empty");
    struct s2s_outfile *out = s2s_xcalloc(1, sizeof *out);
    out->slot = -1;
    out->fd = STDOUT_FILENO;
    out->path = s2s_xstrdup(is_stdout ? "stdout" : path);
    if (!is_stdout) {
        int rc = open_path(out, err);
        if (rc < 0) {
            outfile_free(out);
            return rc;
        }
    } else {
        fflush(stdout);
    }
    if (!out->is_temp_file)
        (void)fcntl(out->fd, F_SETPIPE_SZ, PIPE_BYTES); /* may fail if it is not a pipe */
    out->behind = s2s_behind_new(write_sink, out, is_threaded);
    *result = out;
    return 0;
}

int s2s_outfile_open(struct s2s_outfile **out, const char *path, struct s2s_error *err)
{
    return open_outfile(out, path, false, err);
}

int s2s_outfile_open_behind(struct s2s_outfile **out, const char *path, struct s2s_error *err)
{
    return open_outfile(out, path, true, err);
}

int64_t s2s_outfile_offset(const struct s2s_outfile *out)
{
    return out->offset;
}

/* ---- commit and abort ---- */

static int sync_file(struct s2s_outfile *out, struct s2s_error *err)
{
    if (!out->is_temp_file || s2s_durable_sync(out->fd) == 0)
        return 0;
    return s2s_error_errno(err, S2S_E_IO, "%s: cannot sync %lld bytes", out->path,
                           (long long)out->offset);
}

/* Some file systems report write errors only here. */
static int close_fd(struct s2s_outfile *out, int fd, struct s2s_error *err)
{
    return close(fd) == 0 || errno == EINTR
               ? 0
               : s2s_error_errno(err, S2S_E_IO, "%s: cannot close", out->path);
}

/* Copies the file to a named one, as the file system can create files without a name but not link
 * them. */
static int copy_to_temp(struct s2s_outfile *out, struct s2s_error *err)
{
    int unnamed = out->fd;
    out->fd = -1;
    int rc = take_temp(out, create_temp, err);
    if (rc == 0 && s2s_unnamed_copy(unnamed, out->fd) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: cannot write %lld bytes", out->path,
                             (long long)out->offset);
    close(unnamed);
    return rc < 0 ? rc : sync_file(out, err);
}

/* Links the file to its name or, if that exists, to a temporary name to be renamed. */
static int link_unnamed(struct s2s_outfile *out, struct s2s_error *err)
{
    int twin = fcntl(out->fd, F_DUPFD_CLOEXEC, 0), rc = 0;
    if (twin >= 0) /* fd itself is needed for the link */
        rc = close_fd(out, twin, err);
    if (rc < 0)
        return rc;
    out->is_unnamed = false;
    if (s2s_unnamed_link(out->fd, out->target) == 0)
        return 0;
    if (errno == EEXIST)
        return take_temp(out, link_temp, err);
    if (s2s_unnamed_is_failure(errno))
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot create the file", out->path);
    return copy_to_temp(out, err);
}

static int rename_temp(struct s2s_outfile *out, struct s2s_error *err)
{
    if (rename(out->temp, out->target) < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot rename %s", out->path, out->temp);
    s2s_temp_drop(out->slot);
    out->slot = -1;
    return 0;
}

static int commit(struct s2s_outfile *out, bool syncs_name, struct s2s_error *err)
{
    int rc = s2s_outfile_flush(out, err);
    if (rc == 0)
        rc = sync_file(out, err);
    if (rc == 0 && out->is_unnamed)
        rc = link_unnamed(out, err);
    if (rc == 0 && out->fd != STDOUT_FILENO) {
        int fd = out->fd;
        out->fd = -1;
        rc = close_fd(out, fd, err);
    }
    if (rc == 0 && out->temp)
        rc = rename_temp(out, err);
    if (rc == 0 && out->target && syncs_name) /* otherwise a crash could restore the old file */
        rc = s2s_durable_sync_name(out->target, err);
    if (rc < 0)
        s2s_outfile_abort(out);
    else
        outfile_free(out);
    return rc;
}

int s2s_outfile_commit(struct s2s_outfile *out, struct s2s_error *err)
{
    return commit(out, true, err);
}

int s2s_outfile_commit_in(struct s2s_outfile *out, struct s2s_error *err)
{
    return commit(out, false, err);
}

void s2s_outfile_abort(struct s2s_outfile *out)
{
    if (!out)
        return;
    s2s_behind_free(out->behind); /* ends the thread, which uses fd */
    out->behind = NULL;
    if (out->fd >= 0 && out->fd != STDOUT_FILENO)
        close(out->fd);
    if (out->temp && out->slot >= 0)
        unlink(out->temp);
    outfile_free(out);
}

bool s2s_outfile_is(const char *out, const char *input)
{
    struct stat a, b;
    return out && input && strcmp(out, "-") != 0 && stat(out, &a) == 0 && S_ISREG(a.st_mode) &&
           stat(input, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

int s2s_outfile_spares(const char *out, const char *input, struct s2s_error *err)
{
    return s2s_outfile_is(out, input)
               ? s2s_error_set(err, S2S_E_ARG, "%s: is part of the input: choose another OUT", out)
               : 0;
}

int s2s_outfile_spares_each(const char *out, const char *const *inputs, size_t n,
                            struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = s2s_outfile_spares(out, inputs[i], err);
    return rc;
}
