/* Sorting of large arrays. */
#ifndef S2S_BASE_SORT_H
#define S2S_BASE_SORT_H

#include <stddef.h>

/* As qsort, but stable, and with 8 bytes of extra memory per element, whatever its size; none if
 * the array is sorted already. */
void s2s_sort(void *base, size_t n, size_t size_bytes,
              int (*compare)(const void *a, const void *b));

#endif
