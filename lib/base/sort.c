/* Sorts indices stably, then moves each element once. */
#include "lib/base/sort.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

struct sorting {
    char *base;
    size_t size;
    int (*compare)(const void *, const void *);
};

static char *at(const struct sorting *s, size_t i)
{
    return s->base + i * s->size;
}

static int by_element(const void *a, const void *b, void *ctx)
{
    const struct sorting *s = ctx;
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const int order = s->compare(at(s, x), at(s, y));
    return order ? order : (x > y) - (x < y);
}

/* Permutes the elements: place i gets the element from[i]. Each cycle is followed once. */
static void move(const struct sorting *s, uint32_t *from, size_t n, char *element)
{
    for (size_t i = 0; i < n; i++) {
        size_t to = i;
        if (from[i] == i)
            continue;
        memcpy(element, at(s, i), s->size);
        while (from[to] != i) {
            const uint32_t next = from[to];
            memcpy(at(s, to), at(s, next), s->size);
            from[to] = (uint32_t)to;
            to = next;
        }
        memcpy(at(s, to), element, s->size);
        from[to] = (uint32_t)to;
    }
}

void s2s_sort(void *base, size_t n, size_t size_bytes, int (*compare)(const void *, const void *))
{
    struct sorting s = {base, size_bytes, compare};
    size_t n_sorted = 1;
    while (n_sorted < n && compare(at(&s, n_sorted - 1), at(&s, n_sorted)) <= 0)
        n_sorted++;
    if (n_sorted >= n)
        return;
    if (n > UINT32_MAX)
        S2S_BUG("%zu elements to sort", n);
    uint32_t *from = s2s_xmalloc(n * sizeof *from);
    char *element = s2s_xmalloc(size_bytes);
    for (size_t i = 0; i < n; i++)
        from[i] = (uint32_t)i;
    qsort_r(from, n, sizeof *from, by_element, &s);
    move(&s, from, n, element);
    free(element);
    free(from);
}
