/* Clips shared out over ranks by number, and their rows gathered, padded to the most that a rank
 * has. */
#include "lib/nn/spread.h"

#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"

static void share_of(int64_t *begin, int64_t *end, int64_t n, int size, int rank)
{
    const int64_t per = (n + size - 1) / size;
    *begin = per * rank < n ? per * rank : n;
    *end = n - *begin < per ? n : *begin + per;
}

void s2s_nn_spread(int64_t *begin, int64_t *end, int64_t n, const struct s2s_group *group)
{
    share_of(begin, end, n, s2s_group_size(group), s2s_group_rank(group));
}

/* counts [size]: rows of each rank's clips; gives the most of them. */
static int64_t count_rows(int64_t *counts, const int32_t *rows, int64_t n, int size)
{
    int64_t most = 0;
    for (int r = 0; r < size; r++) {
        int64_t k, end;
        share_of(&k, &end, n, size, r);
        for (counts[r] = 0; k < end; k++)
            counts[r] += rows[k];
        most = counts[r] > most ? counts[r] : most;
    }
    return most;
}

/* Rows [0, n) of x, then zero rows up to `most`. */
static struct s2s_tensor *pad(struct s2s_tape *tape, struct s2s_tensor *x, int64_t most)
{
    const int64_t n = s2s_tensor_rows(x);
    int32_t *idx = s2s_xmalloc((size_t)(most + 1) * sizeof *idx);
    for (int64_t i = 0; i < most; i++)
        idx[i] = i < n ? (int32_t)i : -1;
    struct s2s_tensor *y = s2s_op_gather_rows(tape, x, s2s_tape_upload_i32(tape, idx, most));
    free(idx);
    return y;
}

/* What ranks padded, without that. */
static struct s2s_tensor *unpad(struct s2s_tape *tape, struct s2s_tensor *x, const int64_t *counts,
                                int64_t most, int size)
{
    int32_t *idx = s2s_xmalloc((size_t)(most * size + 1) * sizeof *idx);
    int64_t n = 0;
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < counts[r]; i++)
            idx[n++] = (int32_t)(r * most + i);
    struct s2s_tensor *y = s2s_op_gather_rows(tape, x, s2s_tape_upload_i32(tape, idx, n));
    free(idx);
    return y;
}

struct s2s_tensor *s2s_nn_spread_gather(struct s2s_tape *tape, struct s2s_tensor *x,
                                        const int32_t *rows, int64_t n,
                                        const struct s2s_group *group)
{
    const int size = s2s_group_size(group);
    if (size == 1)
        return x;
    int64_t *counts = s2s_xcalloc((size_t)size, sizeof *counts);
    const int64_t most = count_rows(counts, rows, n, size), mine = counts[group->rank];
    if (s2s_tensor_rows(x) != mine)
        S2S_BUG("%s: %lld rows of clips that have %lld", tape->layer, (long long)s2s_tensor_rows(x),
                (long long)mine);
    x = s2s_op_all_gather(tape, pad(tape, x, most), group, false);
    x = unpad(tape, x, counts, most, size);
    free(counts);
    return x;
}
