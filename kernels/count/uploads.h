/*
 * Host copies of the small arrays that went to a device: bounds of sequences and the like, which
 * say how much work a kernel has, but lie where nobody can read them.
 */
#ifndef S2S_COUNT_UPLOADS_H
#define S2S_COUNT_UPLOADS_H

#include <stddef.h>

struct s2s_upload;

struct s2s_uploads {
    struct s2s_upload *list; /* by address, none over another one */
    size_t n, cap;
};

/* Keeps what is now at dst, in place of what was there; arrays above 256 KiB only replace. */
void s2s_uploads_add(struct s2s_uploads *uploads, const void *dst, const void *host, size_t bytes);
/* The `bytes` that were uploaded to src; NULL: not known. Lent until the next add. */
const void *s2s_uploads_find(const struct s2s_uploads *uploads, const void *src, size_t bytes);
void s2s_uploads_release(struct s2s_uploads *uploads);

#endif
