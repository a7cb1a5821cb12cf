/* The backend of one process: nothing to say to nobody. Collectives of size 1 never come here. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/mesh/mesh_internal.h"

struct letter {
    struct letter *next;
    int64_t len_bytes;
    char bytes[];
};

static void self_split(struct s2s_comm *comm, const int *world_ranks, int n)
{
    (void)world_ranks;
    (void)n;
    comm->impl = NULL;
}

/* A message to oneself waits in a list until it is received. */
static void self_send(struct s2s_comm *comm, const char *buf, int64_t len_bytes, int to)
{
    if (to != 0)
        S2S_BUG("send to rank %d of %s, which has 1", to, comm->name);
    struct letter *letter = s2s_xmalloc(sizeof *letter + (size_t)len_bytes);
    letter->next = NULL;
    letter->len_bytes = len_bytes;
    if (len_bytes > 0)
        memcpy(letter->bytes, buf, (size_t)len_bytes);
    struct letter **last = (struct letter **)&comm->impl;
    while (*last)
        last = &(*last)->next;
    *last = letter;
}

static void self_recv(struct s2s_comm *comm, char *buf, int64_t len_bytes, int from)
{
    struct letter *letter = comm->impl;
    if (from != 0 || !letter || letter->len_bytes != len_bytes)
        S2S_BUG("receive of %lld bytes from rank %d of %s, which sent none", (long long)len_bytes,
                from, comm->name);
    if (len_bytes > 0)
        memcpy(buf, letter->bytes, (size_t)len_bytes);
    comm->impl = letter->next;
    free(letter);
}

static void self_free(struct s2s_comm *comm)
{
    while (comm->impl) {
        struct letter *letter = comm->impl;
        comm->impl = letter->next;
        free(letter);
    }
}

static _Noreturn void self_abort(int status)
{
    _exit(status);
}

const struct mesh_backend mesh_backend_self = {
    .name = "self",
    .send = self_send,
    .recv = self_recv,
    .split = self_split,
    .free = self_free,
    .abort = self_abort,
};
