/*
 * Memory. s2s_x* are for sizes that our code chose: they end the program with a message if out of
 * memory. A size read from a file is first compared with the bytes that remain, then allocated with
 * s2s_try_calloc, which can fail.
 */
#ifndef S2S_BASE_MEM_H
#define S2S_BASE_MEM_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct s2s_error;

/* Ends the program with the message of s2s_xmalloc and status 1, where the memory was another
 * library's to ask for. */
_Noreturn void s2s_no_memory(void);

/* Ends the program with the error's text and hint, and status 1: for memory that is out where no
 * error can be returned. */
_Noreturn void s2s_out_of_memory(const struct s2s_error *err);

void *s2s_xmalloc(size_t len_bytes) __attribute__((malloc, returns_nonnull));
void *s2s_xcalloc(size_t n, size_t size_bytes) __attribute__((malloc, returns_nonnull));
/* n * size_bytes with overflow check; ptr may be NULL */
void *s2s_xrealloc(void *ptr, size_t n, size_t size_bytes) __attribute__((returns_nonnull));
char *s2s_xstrdup(const char *s) __attribute__((malloc, returns_nonnull));
char *s2s_xstrndup(const char *s, size_t len) __attribute__((malloc, returns_nonnull));
/* getline, which says of a line that finds no memory only what it says of the end. */
ssize_t s2s_xgetline(char **line, size_t *cap, FILE *file);
char *s2s_xasprintf(const char *fmt, ...)
    __attribute__((malloc, returns_nonnull, format(printf, 1, 2)));

/* n * size_bytes, zeroed; or NULL with err set (NOMEM; the message names `what`). Gives: free. */
void *s2s_try_calloc(size_t n, size_t size_bytes, const char *what, struct s2s_error *err);

/* Aligned to 64 bytes, or to huge pages, which are wished for, from 4 MiB on; not zeroed; ends the
 * program if out of memory. Gives: free. */
void *s2s_xalloc_aligned(size_t len_bytes) __attribute__((malloc, returns_nonnull));

/* Wishes that a large block, not touched yet, comes in huge pages: one costs less than the 512
 * small ones in its place, and the first touch of memory costs more than what is then done to it.
 * Nothing is done for less than some megabytes, or NULL. */
void s2s_wish_huge(void *block, size_t len_bytes);

/* Makes room for one more element of an array, doubling its capacity if needed: `s2s_grow(&v, n,
 * &cap, sizeof *v)` before v[n++] = x. */
void s2s_grow(void *ptr_to_array, size_t n, size_t *cap, size_t elem_bytes);

/* A growing byte string. Once anything was added data[len] is 0, so it is also a C string. */
struct s2s_buf {
    char *data;
    size_t len, cap;
};

#define S2S_BUF_INIT \
    { \
        NULL, 0, 0 \
    }

void s2s_buf_reserve(struct s2s_buf *buf, size_t extra_bytes);
void s2s_buf_add(struct s2s_buf *buf, const void *bytes, size_t len);
void s2s_buf_puts(struct s2s_buf *buf, const char *s);
void s2s_buf_putc(struct s2s_buf *buf, char c);
/* Appends the low n_bytes bytes of a number, little-endian. */
void s2s_buf_put_le(struct s2s_buf *buf, uint64_t value, int n_bytes);
void s2s_buf_printf(struct s2s_buf *buf, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Reads a file or pipe to its end. IO; FORMAT: more than max_len bytes. Messages do not name it. */
int s2s_buf_read(struct s2s_buf *buf, int fd, size_t max_len, struct s2s_error *err);
void s2s_buf_clear(struct s2s_buf *buf);   /* empties it, keeps the memory */
void s2s_buf_release(struct s2s_buf *buf); /* frees the memory */

/* Peak resident memory of this program in bytes; 0: unknown. Unlike getrusage, it does not include
 * the program that started this one. */
int64_t s2s_peak_memory_bytes(void);

#endif
