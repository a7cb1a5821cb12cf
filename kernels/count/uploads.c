/* A sorted list of what was copied to a device. */
#include "kernels/count/uploads.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

enum { KEPT_BYTES = 256 << 10 };

struct s2s_upload {
    uintptr_t begin, end; /* on the device */
    char *host;
};

/* Index of the first upload that ends after `at`. */
static size_t after(const struct s2s_uploads *uploads, uintptr_t at)
{
    size_t lo = 0, hi = uploads->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (uploads->list[mid].end > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

void s2s_uploads_add(struct s2s_uploads *uploads, const void *dst, const void *host, size_t bytes)
{
    const uintptr_t begin = (uintptr_t)dst, end = begin + bytes;
    const size_t at = after(uploads, begin);
    size_t over = at;
    for (; over < uploads->n && uploads->list[over].begin < end; over++)
        free(uploads->list[over].host);
    struct s2s_upload *list = uploads->list;
    if (over > at)
        memmove(list + at, list + over, (uploads->n - over) * sizeof *list);
    uploads->n -= over - at;
    if (bytes == 0 || bytes > KEPT_BYTES)
        return;
    s2s_grow(&uploads->list, uploads->n, &uploads->cap, sizeof *uploads->list);
    list = uploads->list;
    memmove(list + at + 1, list + at, (uploads->n - at) * sizeof *list);
    list[at] = (struct s2s_upload){begin, end, s2s_xmalloc(bytes)};
    memcpy(list[at].host, host, bytes);
    uploads->n++;
}

const void *s2s_uploads_find(const struct s2s_uploads *uploads, const void *src, size_t bytes)
{
    const uintptr_t begin = (uintptr_t)src;
    if (!uploads || !src)
        return NULL;
    const size_t at = after(uploads, begin);
    if (at == uploads->n || uploads->list[at].begin > begin ||
        uploads->list[at].end < begin + bytes)
        return NULL;
    return uploads->list[at].host + (begin - uploads->list[at].begin);
}

void s2s_uploads_release(struct s2s_uploads *uploads)
{
    for (size_t i = 0; i < uploads->n; i++)
        free(uploads->list[i].host);
    free(uploads->list);
    *uploads = (struct s2s_uploads){0};
}
