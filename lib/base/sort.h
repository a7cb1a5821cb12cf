/* Sorting of large arrays. */
#ifndef S2S_BASE_SORT_H
#define S2S_BASE_SORT_H

#include <stddef.h>

/* As qsort, and equal elements stay in their order; but the memory it takes meanwhile is 8 bytes an
 * element, however large one is, and none where they are sorted already. */
void s2s_sort(void *base, size_t n, size_t size_bytes,
              int (*compare)(const void *a, const void *b));

#endif
