/* Allocation that cannot fail, growing arrays, and byte buffers. */
#include "lib/base/mem.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/error.h"

static _Noreturn void out_of_memory(size_t n, size_t size_bytes)
{
    /* not with stdio, which is silent in a thread that decodes audio; nor exit(), whose destructors
     * unload libraries that other threads still use */
    dprintf(STDERR_FILENO, "%s: out of memory: %zu x %zu bytes; free some\n",
            program_invocation_short_name, n, size_bytes);
    quick_exit(1);
}

void s2s_no_memory(void)
{
    dprintf(STDERR_FILENO, "%s: out of memory; free some\n", program_invocation_short_name);
    quick_exit(1);
}

void s2s_out_of_memory(const struct s2s_error *err)
{
    dprintf(STDERR_FILENO, "%s: %s%s%s\n", program_invocation_short_name, err->text,
            err->hint[0] ? "; " : "", err->hint);
    quick_exit(1);
}

void *s2s_xmalloc(size_t len_bytes)
{
    void *ptr = malloc(len_bytes ? len_bytes : 1);
    if (!ptr)
        out_of_memory(1, len_bytes);
    return ptr;
}

void *s2s_xcalloc(size_t n, size_t size_bytes)
{
    void *ptr = calloc(n ? n : 1, size_bytes ? size_bytes : 1);
    if (!ptr)
        out_of_memory(n, size_bytes);
    return ptr;
}

void *s2s_xrealloc(void *ptr, size_t n, size_t size_bytes)
{
    size_t total;
    if (__builtin_mul_overflow(n, size_bytes, &total))
        out_of_memory(n, size_bytes);
    void *grown = realloc(ptr, total ? total : 1);
    if (!grown)
        out_of_memory(n, size_bytes);
    return grown;
}

char *s2s_xstrdup(const char *s)
{
    return s2s_xstrndup(s, strlen(s));
}

char *s2s_xstrndup(const char *s, size_t len)
{
    len = strnlen(s, len);
    char *copy = s2s_xmalloc(len + 1);
    memcpy(copy, s, len);
    copy[len] = 0;
    return copy;
}

ssize_t s2s_xgetline(char **line, size_t *cap, FILE *file)
{
    errno = 0;
    const ssize_t len = getline(line, cap, file);
    if (len < 0 && errno == ENOMEM)
        s2s_no_memory();
    return len;
}

char *s2s_xasprintf(const char *fmt, ...)
{
    char *text;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        out_of_memory(1, strlen(fmt));
    va_end(ap);
    return text;
}

void *s2s_try_calloc(size_t n, size_t size_bytes, const char *what, struct s2s_error *err)
{
    size_t total;
    void *ptr = NULL;
    if (!__builtin_mul_overflow(n, size_bytes, &total))
        ptr = calloc(1, total ? total : 1);
    if (!ptr)
        s2s_error_set(err, S2S_E_NOMEM, "cannot allocate %zu x %zu bytes for %s", n, size_bytes,
                      what);
    return ptr;
}

enum { HUGE_BYTES = 2 << 20 };

void *s2s_xalloc_aligned(size_t len_bytes)
{
    const size_t align = len_bytes < 2 * HUGE_BYTES ? 64 : HUGE_BYTES;
    const size_t rounded = (len_bytes + align - 1) / align * align;
    void *ptr = rounded >= len_bytes ? aligned_alloc(align, rounded ? rounded : align) : NULL;
    if (!ptr)
        out_of_memory(1, len_bytes);
    s2s_wish_huge(ptr, rounded);
    return ptr;
}

void s2s_wish_huge(void *block, size_t len_bytes)
{
    const uintptr_t begin = ((uintptr_t)block + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1);
    const uintptr_t end = ((uintptr_t)block + len_bytes) & ~(uintptr_t)(HUGE_BYTES - 1);
    if (block && end > begin + HUGE_BYTES)
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

void s2s_grow(void *ptr_to_array, size_t n, size_t *cap, size_t elem_bytes)
{
    if (n < *cap)
        return;
    void *array;
    memcpy(&array, ptr_to_array, sizeof array);
    *cap = *cap ? *cap * 2 : 16;
    array = s2s_xrealloc(array, *cap, elem_bytes);
    memcpy(ptr_to_array, &array, sizeof array);
}

void s2s_buf_reserve(struct s2s_buf *buf, size_t extra_bytes)
{
    size_t need;
    if (__builtin_add_overflow(buf->len, extra_bytes, &need) || need == SIZE_MAX)
        out_of_memory(1, extra_bytes);
    if (need + 1 <= buf->cap)
        return;
    size_t cap = buf->cap ? buf->cap : 64;
    while (cap < need + 1)
        cap = cap > SIZE_MAX / 2 ? need + 1 : cap * 2;
    buf->data = s2s_xrealloc(buf->data, cap, 1);
    s2s_wish_huge(buf->data + buf->len, cap - buf->len);
    buf->cap = cap;
}

void s2s_buf_add(struct s2s_buf *buf, const void *bytes, size_t len)
{
    s2s_buf_reserve(buf, len);
    if (len)
        memcpy(buf->data + buf->len, bytes, len);
    buf->len += len;
    buf->data[buf->len] = 0;
}

void s2s_buf_puts(struct s2s_buf *buf, const char *s)
{
    s2s_buf_add(buf, s, strlen(s));
}

void s2s_buf_putc(struct s2s_buf *buf, char c)
{
    if (buf->cap - buf->len < 2) /* for it and the NUL */
        s2s_buf_reserve(buf, 1);
    buf->data[buf->len++] = c;
    buf->data[buf->len] = 0;
}

void s2s_buf_put_le(struct s2s_buf *buf, uint64_t value, int n_bytes)
{
    char bytes[8];
    for (int i = 0; i < n_bytes; i++)
        bytes[i] = (char)(value >> 8 * i & 0xFF);
    s2s_buf_add(buf, bytes, (size_t)n_bytes);
}

void s2s_buf_printf(struct s2s_buf *buf, const char *fmt, ...)
{
    va_list ap;
    const size_t room = buf->cap - buf->len;
    va_start(ap, fmt);
    int len = vsnprintf(room ? buf->data + buf->len : NULL, room, fmt, ap);
    va_end(ap);
    if (len < 0)
        S2S_BUG("bad format %s", fmt);
    if ((size_t)len >= room) {
        s2s_buf_reserve(buf, (size_t)len);
        va_start(ap, fmt);
        vsnprintf(buf->data + buf->len, (size_t)len + 1, fmt, ap);
        va_end(ap);
    }
    buf->len += (size_t)len;
}

int s2s_buf_read(struct s2s_buf *buf, int fd, size_t max_len, struct s2s_error *err)
{
    enum { PIECE = 64 << 10 };
    ssize_t n;
    do {
        s2s_buf_reserve(buf, PIECE);
        n = read(fd, buf->data + buf->len, buf->cap - buf->len - 1);
        if (n < 0 && errno != EINTR)
            return s2s_error_errno(err, S2S_E_IO, "cannot read");
        buf->len += n > 0 ? (size_t)n : 0;
        buf->data[buf->len] = 0;
        if (buf->len > max_len)
            return s2s_error_set(err, S2S_E_FORMAT, "more than %zu MiB, the most that is read",
                                 max_len >> 20);
    } while (n != 0);
    return 0;
}

void s2s_buf_clear(struct s2s_buf *buf)
{
    buf->len = 0;
    if (buf->data)
        buf->data[0] = 0;
}

void s2s_buf_release(struct s2s_buf *buf)
{
    free(buf->data);
    *buf = (struct s2s_buf)S2S_BUF_INIT;
}

int64_t s2s_peak_memory_bytes(void)
{
    char line[128];
    long long kib = 0;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %lld", &kib) == 1)
            break;
    if (status)
        fclose(status);
    return kib * 1024;
}
