/* Pinned memory in chunks, which become one when they are empty: a step like the last allocates
 * nothing. */
#include "kernels/cuda/upload.h"

#include "kernels/cuda/rt.h"

static const size_t FIRST = 1 << 20, MOST = 64 << 20;

static bool add_chunk(struct upload *u, size_t bytes)
{
    size_t cap = u->cap > FIRST ? u->cap : FIRST;
    cap = bytes > cap ? bytes : cap;
    char *chunk = u->n < UPLOAD_CHUNKS ? (char *)rt_alloc_host(cap) : NULL;
    if (!chunk)
        return false;
    u->chunks[u->n] = chunk;
    u->caps[u->n++] = cap;
    u->at = 0;
    u->cap = 2 * cap;
    return true;
}

void *upload_room(struct upload *u, size_t bytes)
{
    bytes = (bytes + 255) / 256 * 256;
    if (u->used + bytes > MOST)
        return NULL;
    if ((u->n == 0 || u->caps[u->n - 1] - u->at < bytes) && !add_chunk(u, bytes))
        return NULL;
    char *room = u->chunks[u->n - 1] + u->at;
    u->at += bytes;
    u->used += bytes;
    return room;
}

void upload_arrived(struct upload *u)
{
    if (u->n > 1) {
        size_t cap = 0;
        for (int i = 0; i < u->n; i++)
            cap += u->caps[i];
        upload_release(u);
        u->cap = cap < MOST ? cap : MOST;
        add_chunk(u, 0);
    }
    u->at = 0;
    u->used = 0;
}

void upload_release(struct upload *u)
{
    while (u->n > 0)
        rt_free_host(u->chunks[--u->n]);
    u->at = 0;
}
