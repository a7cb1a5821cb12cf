/* Packs from a window. */
#include "lib/thd/lookahead.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/thd/thd_internal.h"

enum { NONE = -1 };

struct held {
    uint32_t item;
    int32_t len;
    int32_t older, newer; /* in order of arrival; free ones: newer is the next of them */
    int32_t same;         /* the next of this length */
    int32_t same_before;
};

struct s2s_lookahead {
    struct held *held; /* [window] */
    size_t window, n_held;
    int64_t capacity;
    int32_t oldest, newest, unused;
    int32_t *first, *last;  /* [capacity + 1] by length, the oldest first */
    struct thd_bitmap lens; /* lengths that are held */
    uint32_t *pack;
    size_t cap_pack;
};

struct s2s_lookahead *s2s_lookahead_new(size_t window, int64_t capacity)
{
    struct s2s_lookahead *a = s2s_xcalloc(1, sizeof *a);
    const size_t n_lens = (size_t)capacity + 1;
    a->window = window;
    a->capacity = capacity;
    a->held = s2s_xmalloc(window * sizeof *a->held);
    a->first = s2s_xmalloc(n_lens * sizeof *a->first);
    a->last = s2s_xmalloc(n_lens * sizeof *a->last);
    memset(a->first, 0xff, n_lens * sizeof *a->first);
    a->lens = thd_bitmap_new((uint32_t)n_lens);
    a->oldest = a->newest = NONE;
    for (size_t i = 0; i < window; i++)
        a->held[i].newer = i + 1 < window ? (int32_t)i + 1 : NONE;
    return a;
}

void s2s_lookahead_free(struct s2s_lookahead *a)
{
    if (!a)
        return;
    thd_bitmap_free(&a->lens);
    free(a->held);
    free(a->first);
    free(a->last);
    free(a->pack);
    free(a);
}

bool s2s_lookahead_add(struct s2s_lookahead *a, uint32_t item, int32_t len)
{
    if (a->n_held == a->window || len < 1 || len > a->capacity)
        S2S_BUG("%zu samples of %zu held, length %d of %lld", a->n_held, a->window, len,
                (long long)a->capacity);
    const int32_t at = a->unused;
    struct held *h = &a->held[at];
    a->unused = h->newer;
    *h = (struct held){item, len, a->newest, NONE, NONE, NONE};
    if (a->newest == NONE)
        a->oldest = at;
    else
        a->held[a->newest].newer = at;
    a->newest = at;
    if (a->first[len] == NONE) {
        a->first[len] = at;
        thd_bitmap_set(&a->lens, (uint32_t)len);
    } else {
        h->same_before = a->last[len];
        a->held[a->last[len]].same = at;
    }
    a->last[len] = at;
    return ++a->n_held == a->window;
}

/* Takes a held sample out of all lists and puts it into the pack. */
static void put(struct s2s_lookahead *a, int32_t at, size_t *n, int64_t *room)
{
    struct held *h = &a->held[at];
    if (h->older == NONE)
        a->oldest = h->newer;
    else
        a->held[h->older].newer = h->newer;
    if (h->newer == NONE)
        a->newest = h->older;
    else
        a->held[h->newer].older = h->older;
    if (h->same_before == NONE)
        a->first[h->len] = h->same;
    else
        a->held[h->same_before].same = h->same;
    if (h->same == NONE)
        a->last[h->len] = h->same_before;
    else
        a->held[h->same].same_before = h->same_before;
    if (a->first[h->len] == NONE)
        thd_bitmap_clear(&a->lens, (uint32_t)h->len);
    s2s_grow(&a->pack, *n, &a->cap_pack, sizeof *a->pack);
    a->pack[(*n)++] = h->item;
    *room -= h->len;
    h->newer = a->unused;
    a->unused = at;
    a->n_held--;
}

/* Lengths in one or two parts that leave the least of the room; parts[1] is 0 for one, both for
 * none. Returns what is left. */
static int64_t best_parts(const struct s2s_lookahead *a, int64_t room, int32_t parts[2])
{
    int64_t best = room;
    parts[0] = parts[1] = 0;
    for (int64_t x = thd_bitmap_last(&a->lens, (uint32_t)room); x > 0 && best > 0;
         x = thd_bitmap_last(&a->lens, (uint32_t)x - 1)) {
        if (2 * x < room - best)
            return best; /* no pair of these comes nearer */
        int64_t y = thd_bitmap_last(&a->lens, (uint32_t)(room - x < x ? room - x : x));
        if (y == x && a->held[a->first[x]].same == NONE)
            y = thd_bitmap_last(&a->lens, (uint32_t)x - 1);
        y = y > 0 ? y : 0;
        if (room - x - y < best) {
            best = room - x - y;
            parts[0] = (int32_t)x;
            parts[1] = (int32_t)y;
        }
    }
    return best;
}

/* Fills the room up with what fits best: of three parts the first is one of the longest that leave
 * room for two. */
static void fill_up(struct s2s_lookahead *a, size_t *n, int64_t *room)
{
    enum { N_TRIES = 16 };
    int32_t parts[2], others[2], first = 0;
    while (*room > 0 && a->n_held > 0) {
        int64_t left = best_parts(a, *room, parts);
        if (parts[0] == 0)
            return;
        int64_t x = thd_bitmap_last(&a->lens, (uint32_t)parts[0]);
        first = 0;
        for (int i = 0; i < N_TRIES && left > 0 && x > 0; i++) {
            int64_t two = best_parts(a, *room - x, others);
            const bool twice = others[0] == x || others[1] == x;
            const bool thrice = others[0] == x && others[1] == x;
            const struct held *h = &a->held[a->first[x]];
            const bool enough =
                !twice || (h->same != NONE && (!thrice || a->held[h->same].same != NONE));
            if (two < left && enough) {
                left = two;
                first = (int32_t)x;
                memcpy(parts, others, sizeof parts);
            }
            x = thd_bitmap_last(&a->lens, (uint32_t)x - 1);
        }
        if (first > 0)
            put(a, a->first[first], n, room);
        for (int i = 0; i < 2 && parts[i] > 0; i++)
            put(a, a->first[parts[i]], n, room);
    }
}

size_t s2s_lookahead_take(struct s2s_lookahead *a, const uint32_t **items)
{
    int64_t room = a->capacity;
    size_t n = 0;
    *items = NULL;
    if (a->n_held == 0)
        return 0;
    /* in order until what is left is a matter of few samples */
    const int64_t longest = thd_bitmap_last(&a->lens, (uint32_t)a->capacity);
    put(a, a->oldest, &n, &room);
    while (a->oldest != NONE && room - a->held[a->oldest].len >= 2 * longest)
        put(a, a->oldest, &n, &room);
    fill_up(a, &n, &room);
    *items = a->pack;
    return n;
}
