/* The edit distance of two names, by dynamic programming over three rows. */
#include "lib/base/distance.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 256 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

int s2s_name_distance(const char *a, const char *b, int most)
{
    const size_t a_len = strlen(a), b_len = strlen(b);
    int rows[3][MAX_NAME + 1], *two_up = rows[0], *up = rows[1], *row = rows[2], up_best = 0;
    if (a_len > MAX_NAME || b_len > MAX_NAME || abs((int)a_len - (int)b_len) > most)
        return most + 1;
    for (size_t j = 0; j <= b_len; j++)
        up[j] = (int)j;
    for (size_t i = 1; i <= a_len; i++) {
        int best = row[0] = (int)i;
        for (size_t j = 1; j <= b_len; j++) {
            row[j] = least(least(up[j], row[j - 1]) + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], two_up[j - 2] + 1);
            best = least(best, row[j]);
        }
        if (best > most && up_best > most) /* no later row can be better than both */
            return most + 1;
        int *const free_row = two_up;
        two_up = up;
        up = row;
        row = free_row;
        up_best = best;
    }
    return least(up[b_len], most + 1);
}
