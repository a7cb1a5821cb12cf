/*
 * Best fit decreasing by counters: each item, the longest first, into the fullest bin that has room
 * for it. Bins with the same room are one queue and rooms that there are stand in a bitmap of
 * 64-bit words under two more, so the smallest room of at least a length is three words away. Of
 * items of one length a bin takes as many as it can, because what it has left is the smallest room
 * again; so the work is that of moving bins between queues, not of placing items.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/thd/thd_internal.h"

enum { NONE = -1 };

struct rooms {
    struct thd_bitmap set; /* rooms with a bin */
    int32_t *head, *tail;  /* [capacity + 1] bins of a room, first in, first out */
    int32_t *next;         /* [n_items] the bin behind this one */
};

static void push(struct rooms *rooms, int32_t room, int32_t bin)
{
    rooms->next[bin] = NONE;
    if (rooms->head[room] == NONE) {
        rooms->head[room] = bin;
        thd_bitmap_set(&rooms->set, (uint32_t)room);
    } else {
        rooms->next[rooms->tail[room]] = bin;
    }
    rooms->tail[room] = bin;
}

static int32_t pop(struct rooms *rooms, int32_t room)
{
    const int32_t bin = rooms->head[room];
    rooms->head[room] = rooms->next[bin];
    if (rooms->head[room] == NONE)
        thd_bitmap_clear(&rooms->set, (uint32_t)room);
    return bin;
}

/* Items i .. end of one length, which is not 0. */
static void place_run(struct bins_open *open, struct rooms *rooms, size_t i, size_t end,
                      int32_t len, int32_t capacity)
{
    while (i < end) {
        const int64_t found = thd_bitmap_next(&rooms->set, (uint32_t)len);
        const int32_t room = found < 0 ? capacity : (int32_t)found;
        const int32_t bin = found < 0 ? (int32_t)open->n_bins++ : pop(rooms, room);
        size_t n = (size_t)(room / len);
        n = n < end - i ? n : end - i;
        for (const size_t stop = i + n; i < stop; i++)
            open->bin[i] = (uint32_t)bin;
        const int32_t left = room - (int32_t)n * len;
        if (left > 0)
            push(rooms, left, bin);
    }
}

void thd_best_fit(struct bins_open *open, const int32_t *lens, int64_t capacity)
{
    struct rooms rooms = {.set = thd_bitmap_new((uint32_t)capacity + 1)};
    const size_t n_rooms = (size_t)capacity + 1;
    rooms.head = s2s_xmalloc(n_rooms * sizeof *rooms.head);
    rooms.tail = s2s_xmalloc(n_rooms * sizeof *rooms.tail);
    rooms.next = s2s_xmalloc((open->n_items + 1) * sizeof *rooms.next);
    memset(rooms.head, 0xff, n_rooms * sizeof *rooms.head);
    open->n_bins = 0;
    for (size_t i = 0; i < open->n_items;) {
        const int32_t len = lens[open->order[i]];
        size_t end = i + 1;
        while (end < open->n_items && lens[open->order[end]] == len)
            end++;
        if (len > 0) {
            place_run(open, &rooms, i, end, len, (int32_t)capacity);
        } else { /* the last ones, anywhere */
            open->n_bins += open->n_bins == 0;
            for (; i < end; i++)
                open->bin[i] = 0;
        }
        i = end;
    }
    thd_bitmap_free(&rooms.set);
    free(rooms.head);
    free(rooms.tail);
    free(rooms.next);
}
