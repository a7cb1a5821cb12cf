/* lib/thd/cp: worked examples, the inverse, rows of clips, refusals; properties over random bounds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/thd/cp.h"

static void worked_examples(void **state)
{
    static const int32_t even[] = {0, 8, 16}, odd[] = {0, 8, 12};
    static const int32_t first[] = {0, 1, 6, 7, 8, 9, 14, 15};
    static const int32_t second[] = {2, 3, 4, 5, 10, 11, 12, 13};
    static const int32_t inverse[] = {0, 1, 6, 7, 8, 9, 2, 3, 4, 10, 11, 5};
    int32_t got[16];
    s2s_thd_cp_index(got, even, 2, 2, 0);
    assert_memory_equal(got, first, sizeof first);
    s2s_thd_cp_index(got, even, 2, 2, 1);
    assert_memory_equal(got, second, sizeof second);
    s2s_thd_cp_inverse(got, odd, 2, 2);
    assert_memory_equal(got, inverse, sizeof inverse);
}

static void bad_bounds_are_refused(void **state)
{
    static const struct {
        int32_t cu[4];
        size_t n_seqs;
        int64_t n_slots;
        int cp_size, cp_rank, code;
    } cases[] = {
        {{0, 8, 12}, 2, 12, 2, 0, 0},
        {{0, 8, 13}, 2, 13, 2, 0, S2S_E_SHAPE},
        {{0, 8, 13}, 2, 13, 1, 0, 0},
        {{4, 8}, 1, 8, 2, 0, S2S_E_SHAPE},
        {{0, 8, 4}, 2, 4, 2, 0, S2S_E_SHAPE},
        {{0, 8}, 1, 12, 2, 0, S2S_E_SHAPE}, /* slots past the last bound */
        {{0, 0}, 1, 0, 2, 0, S2S_E_SHAPE},
        {{0}, 0, 0, 1, 0, S2S_E_SHAPE},
        {{0, 8}, 1, 8, 0, 0, S2S_E_RANGE},
        {{0, 8}, 1, 8, 2, 2, S2S_E_RANGE},
        {{0, 8}, 1, 8, 2, -1, S2S_E_RANGE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct s2s_error err = S2S_ERROR_INIT;
        int rc = s2s_thd_cp_check(cases[i].cu, cases[i].n_seqs, cases[i].n_slots, cases[i].cp_size,
                                  cases[i].cp_rank, &err);
        if (rc != cases[i].code)
            fail_msg("case %zu gives %d (%s)", i, rc, err.text);
    }
}

enum { MAX_SEQS = 7, MAX_SLOTS = 4096 };

/* Bounds for cp_size: some utterances empty, one sometimes long. */
static size_t random_bounds(int32_t *cu, int cp_size, uint64_t key)
{
    size_t n_seqs = 1 + s2s_rng_below(key, 0, MAX_SEQS);
    const int32_t unit = cp_size > 1 ? 2 * cp_size : 1;
    cu[0] = 0;
    for (size_t i = 0; i < n_seqs; i++)
        cu[i + 1] = cu[i] + unit * (int32_t)s2s_rng_below(key, 2 * i + 1, i == 2 ? 60 : 6);
    if (cu[n_seqs] == 0)
        cu[n_seqs] = unit;
    return n_seqs;
}

/* The closed form of TransformerEngine's kernel, token by token. */
static int32_t closed_form(const int32_t *cu, int cp_size, int rank, int32_t k)
{
    int32_t d = 0;
    if (cp_size == 1)
        return k;
    while (cu[d + 1] / cp_size <= k)
        d++;
    const int32_t n = (cu[d + 1] - cu[d]) / cp_size, i = k - cu[d] / cp_size;
    return i + cu[d] + n / 2 * (i < n / 2 ? rank : 2 * (cp_size - 1) - rank);
}

static void split_and_join_are_the_map_and_its_inverse(void **state)
{
    static int32_t global[MAX_SLOTS], local[MAX_SLOTS], joined[MAX_SLOTS], index[MAX_SLOTS];
    static int32_t inverse[MAX_SLOTS];
    for (uint64_t key = 0; key < 300; key++) {
        const int cp_size = 1 + (int)(key % 5);
        int32_t cu[MAX_SEQS + 1];
        const size_t n_seqs = random_bounds(cu, cp_size, key);
        const int32_t n_slots = cu[n_seqs], n_local = n_slots / cp_size;
        struct s2s_error err = S2S_ERROR_INIT;
        assert_int_equal(s2s_thd_cp_check(cu, n_seqs, n_slots, cp_size, 0, &err), 0);
        for (int32_t i = 0; i < n_slots; i++)
            global[i] = 1000 + i;
        memset(joined, 0, sizeof joined);
        s2s_thd_cp_inverse(inverse, cu, n_seqs, cp_size);
        for (int rank = 0; rank < cp_size; rank++) {
            s2s_thd_cp_index(index, cu, n_seqs, cp_size, rank);
            s2s_thd_cp_split(local, global, sizeof *local, cu, n_seqs, cp_size, rank);
            for (int32_t k = 0; k < n_local; k++) {
                assert_int_equal(index[k], closed_form(cu, cp_size, rank, k));
                assert_int_equal(local[k], 1000 + index[k]);
                assert_int_equal(inverse[index[k]], rank * n_local + k);
            }
            s2s_thd_cp_join(joined, local, sizeof *local, cu, n_seqs, cp_size, rank);
        }
        assert_memory_equal(joined, global, (size_t)n_slots * sizeof *global);
    }
}

static void rows_of_clips_follow_their_slots(void **state)
{
    static int32_t row_of[MAX_SLOTS], local[MAX_SLOTS], global[MAX_SLOTS], joined[MAX_SLOTS];
    static int32_t index[MAX_SLOTS];
    for (uint64_t key = 0; key < 300; key++) {
        const int cp_size = 1 + (int)(key % 4);
        int32_t cu[MAX_SEQS + 1], slot[64], frames[64], n_rows = 0, at = 0, n_all = 0;
        const size_t n_seqs = random_bounds(cu, cp_size, 7777 + key);
        struct s2s_thd_clips clips = {slot, frames, 0};
        for (int32_t i = 0; i < cu[n_seqs]; i++)
            row_of[i] = -1;
        while (clips.n_clips < 60) { /* clips one after the other, some without frames */
            uint64_t i = clips.n_clips;
            at += (int32_t)s2s_rng_below(key, 100 + 2 * i, 5);
            int32_t n = (int32_t)s2s_rng_below(key, 101 + 2 * i, 9);
            if (at + n > cu[n_seqs])
                break;
            slot[i] = at;
            frames[i] = n;
            for (int32_t f = 0; f < n; f++)
                row_of[at++] = n_rows++;
            clips.n_clips++;
        }
        for (int32_t r = 0; r < n_rows; r++)
            global[r] = 500 + r;
        memset(joined, 0, sizeof joined);
        for (int rank = 0; rank < cp_size; rank++) {
            int32_t n = 0;
            s2s_thd_cp_index(index, cu, n_seqs, cp_size, rank);
            s2s_thd_cp_split_rows(local, global, sizeof *local, &clips, cu, n_seqs, cp_size, rank);
            for (int32_t k = 0; k < cu[n_seqs] / cp_size; k++)
                if (row_of[index[k]] >= 0)
                    assert_int_equal(local[n++], 500 + row_of[index[k]]);
            assert_int_equal(s2s_thd_cp_rows(&clips, cu, n_seqs, cp_size, rank), n);
            s2s_thd_cp_join_rows(joined, local, sizeof *local, &clips, cu, n_seqs, cp_size, rank);
            n_all += n;
        }
        assert_int_equal(n_all, n_rows);
        assert_memory_equal(joined, global, (size_t)n_rows * sizeof *global);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_examples),
        cmocka_unit_test(bad_bounds_are_refused),
        cmocka_unit_test(split_and_join_are_the_map_and_its_inverse),
        cmocka_unit_test(rows_of_clips_follow_their_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
