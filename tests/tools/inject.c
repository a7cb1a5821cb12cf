/*
 * A library to preload that makes the n-th call of one function fail:
 *
 *   S2S_INJECT=CALL:N:HOW LD_PRELOAD=inject.so program ...
 *
 * CALL is write, read, pread, fsync, rename (with renameat2 and linkat), mkdir, unlink (with
 * unlinkat), open (for writing), openat, faccessat (with access and stat), fstatat, readdir,
 * scandirat, flock, close, thread (pthread_create), malloc (with calloc, realloc and
 * posix_memalign) or aligned
 * (aligned_alloc: what buffers for data are made with). HOW is the name of an errno (ENOSPC, EIO,
 * EDQUOT, EINTR), SHORT (half of the bytes), CUT (of pread: the file loses what follows the middle
 * of what is asked for, as if somebody had cut it while it is read), LOSE (the call works, and
 * somebody has removed the file that S2S_INJECT_LOSE names), RUN (the call works, behind the shell
 * command S2S_INJECT_RUN), SLOW (this call and those after it work, but take 30 ms), HOLD (the call
 * works once the file that S2S_INJECT_HOLD names is gone) or KILL. When the call was reached, the
 * file that S2S_INJECT_MARK names is made, so that a test can count up until nothing fails any
 * more. At the end the number of calls is written into the file that S2S_INJECT_COUNT names.
 *
 * S2S_INJECT_TRACE=FILE: what becomes durable and what gets a name is noted there, a line a call
 * that succeeded: "write INODE" and "fsync INODE" of a descriptor, "name INODE TO" of rename and
 * link.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
/* those of the leak sanitizer, where liblsan is preloaded behind this library */
extern void *__interceptor_malloc(size_t) __attribute__((weak));
extern void *__interceptor_calloc(size_t, size_t) __attribute__((weak));
extern void *__interceptor_realloc(void *, size_t) __attribute__((weak));
extern void *__interceptor_memalign(size_t, size_t) __attribute__((weak));

enum how { NONE, FAIL, SHORT, CUT };

static char wanted[16];
static long countdown;
static int error_number, is_short, is_cut, is_kill, is_lose, is_run, is_hold, is_slow;
static atomic_long n_calls;
static _Thread_local int of_sanitizer; /* what the leak sanitizer asks for is not to fail */

__attribute__((constructor)) static void read_environment(void)
{
    static const struct {
        const char *name;
        int number;
    } errors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},         {"EDQUOT", EDQUOT},
                  {"EINTR", EINTR},   {"EACCES", EACCES},   {"ENOMEM", ENOMEM},
                  {"EPERM", EPERM},   {"ENOTSUP", ENOTSUP}, {"EAGAIN", EAGAIN}};
    const char *text = getenv("S2S_INJECT");
    char how[16] = "";
    long n = 0;
    if (!text || sscanf(text, "%15[^:]:%ld:%15s", wanted, &n, how) != 3) {
        wanted[0] = 0;
        return;
    }
    is_short = !strcmp(how, "SHORT");
    is_cut = !strcmp(how, "CUT");
    is_kill = !strcmp(how, "KILL");
    is_lose = !strcmp(how, "LOSE");
    is_run = !strcmp(how, "RUN");
    is_hold = !strcmp(how, "HOLD");
    is_slow = !strcmp(how, "SLOW");
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (!strcmp(errors[i].name, how))
            error_number = errors[i].number;
    countdown = n; /* last: from here on calls count */
}

__attribute__((destructor)) static void write_count(void)
{
    const char *file = getenv("S2S_INJECT_COUNT");
    char text[24];
    if (!file || !wanted[0])
        return;
    const int len = snprintf(text, sizeof text, "%ld\n", atomic_load(&n_calls));
    const long fd = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd >= 0 && syscall(SYS_write, fd, text, len) == len)
        syscall(SYS_close, fd);
}

static enum how reached(const char *call)
{
    if (countdown == 0 || of_sanitizer || strcmp(call, wanted) != 0)
        return NONE;
    const long n = atomic_fetch_add(&n_calls, 1) + 1;
    if (is_slow && n >= countdown)
        usleep(30000);
    if (n != countdown || is_slow)
        return NONE;
    const char *mark = getenv("S2S_INJECT_MARK");
    if (mark) {
        long fd = syscall(SYS_openat, AT_FDCWD, mark, O_WRONLY | O_CREAT, 0666);
        if (fd >= 0)
            syscall(SYS_close, fd);
    }
    if (is_kill)
        raise(SIGKILL);
    if (is_hold) {
        while (syscall(SYS_faccessat, AT_FDCWD, getenv("S2S_INJECT_HOLD"), F_OK, 0) == 0)
            usleep(5000);
        return NONE;
    }
    if (is_lose) {
        syscall(SYS_unlinkat, AT_FDCWD, getenv("S2S_INJECT_LOSE"), 0);
        return NONE;
    }
    if (is_run) {
        const char *command = getenv("S2S_INJECT_RUN");
        unsetenv("LD_PRELOAD"); /* no fault is the command's */
        if (!command || system(command) != 0)
            abort();
        return NONE;
    }
    errno = error_number;
    return is_short ? SHORT : is_cut ? CUT : FAIL;
}

/* a call of fd, or of what at/path names */
static void trace(const char *call, int fd, int at, const char *path)
{
    const char *file = getenv("S2S_INJECT_TRACE");
    struct stat st;
    char line[512];
    if (!file || (path ? fstatat(at, path, &st, AT_SYMLINK_NOFOLLOW) : fstat(fd, &st)) < 0)
        return;
    int len = snprintf(line, sizeof line, "%s %llu %s\n", call, (unsigned long long)st.st_ino,
                       path ? path : "");
    long out = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (out < 0 || len >= (int)sizeof line || syscall(SYS_write, out, line, len) != len)
        abort();
    syscall(SYS_close, out);
}

static int named(int rc, int at, const char *to)
{
    if (rc == 0)
        trace("name", -1, at, to);
    return rc;
}

ssize_t write(int fd, const void *bytes, size_t len)
{
    enum how how = fd == STDERR_FILENO ? NONE : reached("write");
    if (how == FAIL)
        return -1;
    trace("write", fd, -1, NULL);
    return syscall(SYS_write, fd, bytes, how == SHORT ? (len + 1) / 2 : len);
}

ssize_t read(int fd, void *bytes, size_t len)
{
    enum how how = reached("read");
    if (how == FAIL)
        return -1;
    return syscall(SYS_read, fd, bytes, how == SHORT ? (len + 1) / 2 : len);
}

ssize_t pread(int fd, void *bytes, size_t len, off_t pos)
{
    enum how how = reached("pread");
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (how == FAIL || (how == CUT && truncate(path, pos + (off_t)len / 2) < 0))
        return -1;
    return syscall(SYS_pread64, fd, bytes, how == SHORT ? (len + 1) / 2 : len, pos);
}

int fsync(int fd)
{
    int rc = reached("fsync") ? -1 : (int)syscall(SYS_fsync, fd);
    if (rc == 0)
        trace("fsync", fd, -1, NULL);
    return rc;
}

int flock(int fd, int operation)
{
    return reached("flock") ? -1 : (int)syscall(SYS_flock, fd, operation);
}

int close(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    int rc = (int)syscall(SYS_close, fd);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
        return rc; /* nothing is lost with it */
    return reached("close") ? -1 : rc;
}

int rename(const char *from, const char *to)
{
    return reached("rename") ? -1 : named((int)syscall(SYS_rename, from, to), AT_FDCWD, to);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    if (reached("rename"))
        return -1;
    return named((int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags), to_dir, to);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    if (reached("rename"))
        return -1;
    return named((int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags), to_dir, to);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg)
{
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        dlsym(RTLD_NEXT, "pthread_create");
    return reached("thread") ? error_number : next(thread, how, run, arg);
}

/* the leak sanitizer asks in each new thread, and aborts if that fails */
int pthread_getattr_np(pthread_t thread, pthread_attr_t *attr)
{
    int (*next)(pthread_t, pthread_attr_t *) = dlsym(RTLD_NEXT, "pthread_getattr_np");
    of_sanitizer = 1;
    const int rc = next(thread, attr);
    of_sanitizer = 0;
    return rc;
}

int mkdir(const char *path, mode_t mode)
{
    return reached("mkdir") ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int unlink(const char *path)
{
    return reached("unlink") ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int dir, const char *path, int flags)
{
    return reached("unlink") ? -1 : (int)syscall(SYS_unlinkat, dir, path, flags);
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int mode = va_arg(ap, int);
    va_end(ap);
    if ((flags & O_ACCMODE) != O_RDONLY && reached("open"))
        return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int mode = va_arg(ap, int);
    va_end(ap);
    return reached("openat") ? -1 : (int)syscall(SYS_openat, dir, path, flags, mode);
}

int faccessat(int dir, const char *path, int mode, int flags)
{
    static int (*real)(int, const char *, int, int);
    if (!real)
        real = (int (*)(int, const char *, int, int))dlsym(RTLD_NEXT, "faccessat");
    return reached("faccessat") ? -1 : real(dir, path, mode, flags);
}

int access(const char *path, int mode)
{
    return faccessat(AT_FDCWD, path, mode, 0);
}

int stat(const char *path, struct stat *st)
{
    return reached("faccessat") ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, 0);
}

int fstatat(int dir, const char *path, struct stat *st, int flags)
{
    return reached("fstatat") ? -1 : (int)syscall(SYS_newfstatat, dir, path, st, flags);
}

struct dirent *readdir(DIR *dir)
{
    static struct dirent *(*real)(DIR *);
    if (!real)
        real = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir");
    return reached("readdir") ? NULL : real(dir);
}

int scandirat(int dir, const char *path, struct dirent ***entries,
              int (*filter)(const struct dirent *),
              int (*order)(const struct dirent **, const struct dirent **))
{
    static __typeof__(&scandirat) real;
    if (!real)
        real = (__typeof__(&scandirat))dlsym(RTLD_NEXT, "scandirat");
    return reached("scandirat") ? -1 : real(dir, path, entries, filter, order);
}

static void *allocated(size_t len)
{
    return __interceptor_malloc ? __interceptor_malloc(len) : __libc_malloc(len);
}

static void *aligned(size_t alignment, size_t len)
{
    return __interceptor_memalign ? __interceptor_memalign(alignment, len)
                                  : __libc_memalign(alignment, len);
}

void *malloc(size_t len)
{
    return reached("malloc") ? NULL : allocated(len);
}

void *calloc(size_t n, size_t size)
{
    if (reached("malloc"))
        return NULL;
    return __interceptor_calloc ? __interceptor_calloc(n, size) : __libc_calloc(n, size);
}

void *aligned_alloc(size_t alignment, size_t len)
{
    return reached("aligned") ? NULL : aligned(alignment, len);
}

int posix_memalign(void **ptr, size_t align, size_t len)
{
    void *made = reached("malloc") ? NULL : aligned(align, len);
    if (!made)
        return ENOMEM;
    *ptr = made;
    return 0;
}

void *realloc(void *ptr, size_t len)
{
    if (reached("malloc"))
        return NULL;
    return __interceptor_realloc ? __interceptor_realloc(ptr, len) : __libc_realloc(ptr, len);
}
