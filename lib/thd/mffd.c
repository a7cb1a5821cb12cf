/*
 * Modified first-fit decreasing (Johnson and Garey 1985) as NeMo-RL has it: items over half, a
 * third and a sixth of the capacity and the rest (L, M, S, T); one bin an L item, then M, pairs of
 * S and whatever fits beside them; the remainder goes by size to the emptiest bin.
 *
 * Items of equal length are one group, a queue by index: "the largest that fits" is then a search
 * for a group that is not empty.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/thd/thd_internal.h"

struct group {
    int32_t len;
    uint32_t head, tail; /* items[head .. tail) are left */
};

struct mffd {
    struct bins_open *open;
    int64_t capacity;
    uint32_t *items;      /* by length, then index, ascending */
    struct group *groups; /* by length ascending */
    uint32_t *below; /* below[g + 1]: the last group <= g that may have items, plus 1; 0: none */
    size_t n_groups;
    size_t n_placed;
    int32_t *room; /* of each bin */
};

/* ---- groups ---- */

static void make_groups(struct mffd *m, const int32_t *lens, size_t n)
{
    size_t n_groups = 0;
    for (size_t i = 0; i < n; i++)
        n_groups += i == 0 || lens[m->items[i]] != lens[m->items[i - 1]];
    m->groups = s2s_xcalloc(n_groups + 1, sizeof *m->groups);
    m->below = s2s_xcalloc(n_groups + 1, sizeof *m->below);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || lens[m->items[i]] != lens[m->items[i - 1]])
            m->groups[m->n_groups++] =
                (struct group){.len = lens[m->items[i]], .head = (uint32_t)i};
        m->groups[m->n_groups - 1].tail = (uint32_t)i + 1;
    }
    for (size_t g = 0; g <= m->n_groups; g++)
        m->below[g] = (uint32_t)g;
}

/* Number of groups (from the first) whose length is at most len. */
static size_t groups_up_to(const struct mffd *m, int64_t len)
{
    size_t lo = 0, hi = m->n_groups;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (m->groups[mid].len <= len)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The last group before `end` that has items, or NULL; empty ones are skipped for good. */
static struct group *last_before(struct mffd *m, size_t end)
{
    size_t at = end;
    for (;;) {
        size_t next = m->below[at];
        if (next == 0)
            return NULL;
        if (next == at && m->groups[at - 1].head < m->groups[at - 1].tail)
            return &m->groups[at - 1];
        if (next == at)
            m->below[at] = (uint32_t)(next = at - 1);
        else if (m->below[next] != next)
            m->below[at] = m->below[next]; /* halve the way for the next search */
        at = next;
    }
}

static void put(struct mffd *m, size_t bin, uint32_t item, int32_t len)
{
    m->open->order[m->n_placed] = item;
    m->open->bin[m->n_placed++] = (uint32_t)bin;
    m->room[bin] -= len;
}

static void put_first(struct mffd *m, size_t bin, struct group *group)
{
    put(m, bin, m->items[group->head++], group->len);
}

/* ---- phases ---- */

static void place_large(struct mffd *m, size_t first_large)
{
    for (size_t g = m->n_groups; g-- > first_large;)
        while (m->groups[g].head < m->groups[g].tail) {
            m->room[m->open->n_bins] = (int32_t)m->capacity;
            put_first(m, m->open->n_bins++, &m->groups[g]);
        }
}

/* At most one M beside each L, the largest that fits; *has_medium [n_bins] says where. */
static void place_medium(struct mffd *m, size_t first_medium, bool *has_medium)
{
    for (size_t b = 0; b < m->open->n_bins; b++) {
        struct group *g = last_before(m, groups_up_to(m, m->room[b]));
        /* L is used up, so the last group that fits is M or smaller */
        if (!g || g < m->groups + first_medium)
            continue;
        put_first(m, b, g);
        has_medium[b] = true;
    }
}

/* From the last bin on, where no M is: the smallest S and the largest that fits beside it. */
static void place_pairs(struct mffd *m, size_t first_small, size_t end_small,
                        const bool *has_medium)
{
    size_t smallest = first_small, n_left = 0;
    for (size_t g = first_small; g < end_small; g++)
        n_left += m->groups[g].tail - m->groups[g].head;
    for (size_t b = m->open->n_bins; b-- > 0 && n_left >= 2;) {
        if (has_medium[b])
            continue;
        while (m->groups[smallest].head == m->groups[smallest].tail)
            smallest++;
        struct group *first = &m->groups[smallest];
        size_t second = smallest;
        if (first->tail - first->head < 2)
            do
                second++;
            while (m->groups[second].head == m->groups[second].tail);
        if (first->len + m->groups[second].len > m->room[b])
            continue;
        put_first(m, b, first);
        size_t end = groups_up_to(m, m->room[b]);
        struct group *g = last_before(m, end < end_small ? end : end_small);
        put(m, b, m->items[--g->tail], g->len);
        n_left -= 2;
    }
}

static void place_rest(struct mffd *m)
{
    for (size_t b = 0; b < m->open->n_bins; b++) {
        struct group *g;
        while ((g = last_before(m, groups_up_to(m, m->room[b]))) != NULL)
            put_first(m, b, g);
    }
}

/* ---- the tail: a heap of bins by load, of equal loads the one that got it first ---- */

struct tail_bin {
    uint64_t key; /* load, then when it was reached */
    uint32_t bin;
};

static void sift_down(struct tail_bin *heap, size_t n, size_t at, struct tail_bin value)
{
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1].key < heap[child].key)
            child++;
        if (heap[child].key >= value.key)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = value;
}

static void sift_up(struct tail_bin *heap, size_t at, struct tail_bin value)
{
    while (at > 0 && heap[(at - 1) / 2].key > value.key) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = value;
}

static int by_key(const void *a, const void *b)
{
    const struct tail_bin *x = a, *y = b;
    return x->key < y->key ? -1 : 1;
}

/* What is left, the largest first, into the emptiest tail bin or a new one. Tail bins come in order
 * of load, so the bins are renumbered. */
static void place_tail(struct mffd *m, size_t n_items)
{
    const size_t n_large = m->open->n_bins, first = m->n_placed;
    size_t n = 0, cap = 0;
    struct tail_bin *heap = NULL;
    uint64_t moment = 0;
    for (size_t g = m->n_groups; g-- > 0;)
        while (m->groups[g].head < m->groups[g].tail) {
            const int32_t len = m->groups[g].len;
            if (n > 0 && (int64_t)(heap[0].key >> 32) + len <= m->capacity) {
                struct tail_bin bin = heap[0];
                put_first(m, bin.bin, &m->groups[g]);
                bin.key = ((bin.key >> 32) + (uint32_t)len) << 32 | moment++;
                sift_down(heap, n, 0, bin);
                continue;
            }
            s2s_grow(&heap, n, &cap, sizeof *heap);
            const uint32_t bin = (uint32_t)m->open->n_bins++;
            m->room[bin] = (int32_t)m->capacity;
            put_first(m, bin, &m->groups[g]);
            sift_up(heap, n, (struct tail_bin){(uint64_t)(uint32_t)len << 32 | moment++, bin});
            n++;
        }
    if (m->n_placed != n_items)
        S2S_BUG("%zu of %zu items placed", m->n_placed, n_items);
    if (n > 0) {
        uint32_t *rank = s2s_xmalloc(n * sizeof *rank);
        qsort(heap, n, sizeof *heap, by_key);
        for (size_t i = 0; i < n; i++)
            rank[heap[i].bin - n_large] = (uint32_t)(n_large + i);
        for (size_t i = first; i < n_items; i++)
            m->open->bin[i] = rank[m->open->bin[i] - n_large];
        free(rank);
    }
    free(heap);
}

void thd_mffd(struct bins_open *open, const int32_t *lens, size_t n, int64_t capacity)
{
    struct mffd m = {.open = open, .capacity = capacity};
    int32_t max = 0;
    for (size_t i = 0; i < n; i++)
        max = lens[i] > max ? lens[i] : max;
    m.items = s2s_xmalloc((n + 1) * sizeof *m.items);
    m.room = s2s_xmalloc((n + 1) * sizeof *m.room);
    thd_sort(m.items, lens, n, max);
    make_groups(&m, lens, n);
    /* L: 2 len > capacity, M: 3 len > capacity, S: 6 len > capacity */
    const size_t large = groups_up_to(&m, capacity / 2), medium = groups_up_to(&m, capacity / 3);
    const size_t small = groups_up_to(&m, capacity / 6);
    place_large(&m, large);
    bool *has_medium = s2s_xcalloc(open->n_bins + 1, sizeof *has_medium);
    place_medium(&m, medium, has_medium);
    place_pairs(&m, small, medium, has_medium);
    place_rest(&m);
    place_tail(&m, n);
    free(has_medium);
    free(m.items);
    free(m.room);
    free(m.groups);
    free(m.below);
}
