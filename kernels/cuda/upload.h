/*
 * Where host memory is kept on its way to the device, so that who hands it over need not wait.
 * Copies stay in the order of their queue: what they write was read by kernels before them, and a
 * stream of their own would have to wait for these.
 */
#ifndef S2S_KERNELS_CUDA_UPLOAD_H
#define S2S_KERNELS_CUDA_UPLOAD_H

#include <stddef.h>

enum { UPLOAD_CHUNKS = 8 };

/* Begins as zeros. */
struct upload {
    char *chunks[UPLOAD_CHUNKS]; /* pinned; all but the last are full */
    size_t caps[UPLOAD_CHUNKS];
    int n;
    size_t at;   /* in the last chunk */
    size_t used; /* since the queue was waited for */
    size_t cap;  /* of the next chunk at least */
};

/* Pinned memory that is the caller's until the queue is waited for. NULL: too much is on its way,
 * or there is no more; the copy has to wait. */
void *upload_room(struct upload *upload, size_t bytes);
/* The queue has been waited for: the room is free again, and one chunk if it was several. */
void upload_arrived(struct upload *upload);
void upload_release(struct upload *upload);

#endif
