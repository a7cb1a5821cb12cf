/* Opens files, and copies pipes to temporary ones. */
#include "lib/data/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/io/unnamed.h"

enum { COPY_BYTES = 1 << 16 };

#define PIPE_PREFIX "pipe:"

bool s2s_spool_is_pipe(const char *path)
{
    return s2s_starts_with(path, PIPE_PREFIX);
}

const char *s2s_spool_name(const char *path)
{
    return strcmp(path, "-") != 0 ? path : "stdin";
}

int s2s_spool_temporary(const char *path, struct s2s_error *err)
{
    const char *folder = getenv("TMPDIR");
    folder = folder && *folder ? folder : "/tmp";
    int fd = s2s_unnamed_temporary(folder);
    return fd < 0 ? s2s_error_errno(err, S2S_E_IO, "%s: cannot make a temporary file in %s", path,
                                    folder)
                  : fd;
}

int s2s_spool_write(int fd, const void *bytes, size_t len, const char *path, struct s2s_error *err)
{
    const char *from = bytes;
    while (len > 0) {
        ssize_t n = write(fd, from, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return s2s_error_errno(err, S2S_E_IO, "%s: cannot copy to a temporary file", path);
        from += n;
        len -= (size_t)n;
    }
    return 0;
}

static int read_some(int fd, char *block)
{
    ssize_t n;
    do
        n = read(fd, block, COPY_BYTES);
    while (n < 0 && errno == EINTR);
    return (int)n;
}

/* Copies what cannot be read twice; returns the copy's descriptor. */
static int copy_of(int from, const char *path, struct s2s_error *err)
{
    int fd = s2s_spool_temporary(path, err), rc = 0, n = 0;
    if (fd < 0)
        return fd;
    char *block = s2s_xmalloc(COPY_BYTES);
    while (rc == 0 && (n = read_some(from, block)) > 0)
        rc = s2s_spool_write(fd, block, (size_t)n, path, err);
    if (n < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: cannot read", path);
    free(block);
    if (rc == 0 && lseek(fd, 0, SEEK_SET) == 0)
        return fd;
    close(fd);
    return rc;
}

/* What became of the command. */
static int check_status(int status, const char *path, struct s2s_error *err)
{
    if (status < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s: cannot wait for the command", path);
    if (WIFSIGNALED(status))
        return s2s_error_set(err, S2S_E_IO, "%s: the command was ended by signal %d", path,
                             WTERMSIG(status));
    if (WEXITSTATUS(status) != 0)
        return s2s_error_set(err, S2S_E_IO, "%s: the command failed with exit status %d", path,
                             WEXITSTATUS(status));
    return 0;
}

static int open_pipe(const char *path, struct s2s_error *err)
{
    FILE *pipe = popen(path + sizeof PIPE_PREFIX - 1, "re");
    if (!pipe)
        return s2s_error_errno(err, S2S_E_OPEN, "%s: cannot start the command", path);
    int fd = copy_of(fileno(pipe), path, err);
    int rc = check_status(pclose(pipe), path, fd < 0 ? NULL : err);
    if (fd >= 0 && rc < 0) {
        close(fd);
        return rc;
    }
    return fd;
}

int s2s_spool_open(const char *path, struct s2s_error *err)
{
    const bool is_stdin = !strcmp(path, "-");
    const char *name = s2s_spool_name(path);
    struct stat st;
    if (s2s_spool_is_pipe(path))
        return open_pipe(path, err);
    int fd = is_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        int rc = s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", name);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    if (S_ISDIR(st.st_mode)) {
        close(fd);
        return s2s_error_set(err, S2S_E_OPEN, "%s: is a folder", name);
    }
    /* stdin that is a file may have been read from already: it is taken from where it stands */
    if (S_ISREG(st.st_mode) && (!is_stdin || lseek(fd, 0, SEEK_CUR) == 0))
        return fd;
    int copy = copy_of(fd, name, err);
    close(fd);
    return copy;
}
