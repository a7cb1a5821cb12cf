/* The backend of one process: nothing to say to nobody. Collectives of size 1 never come here. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/mesh/mesh_internal.h"

struct letter {
    struct letter *next;
    size_t len_bytes;
    char bytes[];
};

static void self_split(struct s2s_comm *comm, const int *world_ranks, int n)
{
    (void)world_ranks;
    (void)n;
    comm->impl = NULL;
}

/* A message to oneself waits in a list until it is received. */
void mesh_self_put(struct s2s_comm *comm, const struct s2s_transfer *t)
{
    const size_t len = (size_t)t->n * s2s_dtype_size(t->dtype);
    struct letter *letter = s2s_xmalloc(sizeof *letter + len);
    letter->next = NULL;
    letter->len_bytes = len;
    if (len > 0)
        memcpy(letter->bytes, t->buf, len);
    struct letter **last = (struct letter **)&comm->impl;
    while (*last)
        last = &(*last)->next;
    *last = letter;
}

void mesh_self_take(struct s2s_comm *comm, const struct s2s_transfer *t)
{
    const size_t len = (size_t)t->n * s2s_dtype_size(t->dtype);
    struct letter *letter = comm->impl;
    if (!letter || letter->len_bytes != len)
        S2S_BUG("%s waits for a message of %zu bytes to itself, which it did not send", comm->name,
                len);
    if (len > 0)
        memcpy(t->buf, letter->bytes, len);
    comm->impl = letter->next;
    free(letter);
}

static void self_exchange(struct s2s_comm *comm, const struct s2s_transfer *list, int n)
{
    for (int i = 0; i < n; i++)
        if (list[i].send)
            mesh_self_put(comm, &list[i]);
    for (int i = 0; i < n; i++)
        if (!list[i].send)
            mesh_self_take(comm, &list[i]);
}

void mesh_self_free(struct s2s_comm *comm)
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
    .exchange = self_exchange,
    .split = self_split,
    .free = mesh_self_free,
    .abort = self_abort,
};
