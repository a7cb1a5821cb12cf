/* lib/thd/salm: the worked example, each error by its name, truncation, counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/thd/salm.h"

enum { X = S2S_IGNORE };

static const int32_t ids0[] = {7, 100, 1, 2, 100, 3}, ids1[] = {0, 0, 4, 100, 5, 6};
static const uint8_t mask0[] = {0, 0, 0, 0, 0, 1}, mask1[] = {0, 0, 0, 0, 1, 1};
static const struct s2s_thd_clip clips0[] = {{1, 4}, {4, 3}}, clips1[] = {{3, 2}};
static const struct s2s_thd_row example[] = {{"u0", ids0, mask0, 6, clips0, 2},
                                             {"u1", ids1, mask1, 6, clips1, 1}};

static struct s2s_salm_options options(int cp_size, int tp_size)
{
    struct s2s_salm_options opt = S2S_SALM_OPTIONS_DEFAULT;
    opt.audio_id = 100;
    opt.cp_size = cp_size;
    opt.tp_size = tp_size;
    return opt;
}

static void expect_i32(const int32_t *got, const int32_t *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("entry %zu is %d, %d expected", i, got[i], want[i]);
}

static void worked_example(void **state)
{
    static const int32_t labels[] = {X, X, X, X, X, X, X, X, X, 3, X, X, X, 5, 6, X};
    static const int32_t input_ids[] = {7,   100, 100, 100, 100, 1,   2, 100,
                                        100, 100, 3,   4,   100, 100, 5, 6};
    static const int32_t bounds[] = {0, 11, 16}, slots[] = {1, 7, 12}, frames[] = {4, 3, 2};
    struct s2s_salm_options opt = options(1, 1);
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_pack pack;
    assert_int_equal(s2s_salm_pack(&pack, example, 2, &opt, &err), 0);
    assert_int_equal(pack.n_slots, 16);
    assert_int_equal(pack.max_seqlen, 11);
    assert_int_equal(pack.num_tokens, 16);
    expect_i32(pack.labels, labels, 16);
    expect_i32(pack.input_ids, input_ids, 16);
    expect_i32(pack.cu_seqlens, bounds, 3);
    expect_i32(pack.audio_slot, slots, 3);
    expect_i32(pack.audio_frames, frames, 3);
    assert_int_equal(pack.position_ids[11], 0);
    s2s_salm_pack_release(&pack);
}

/* padded lengths of the example for cp, tp */
static void expect_padded(int cp_size, int tp_size, int32_t first, int32_t second)
{
    struct s2s_salm_options opt = options(cp_size, tp_size);
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_pack pack;
    assert_int_equal(s2s_salm_pack(&pack, example, 2, &opt, &err), 0);
    assert_int_equal(pack.seq_lens_padded[0], first);
    assert_int_equal(pack.seq_lens_padded[1], second);
    assert_int_equal(pack.n_slots, first + second);
    s2s_salm_pack_release(&pack);
}

static void lengths_are_rounded_and_the_last_one_raised(void **state)
{
    expect_padded(2, 1, 12, 8);
    expect_padded(2, 6, 12, 12);
    expect_padded(1, 3, 11, 7);
}

static void strict_sp_raises_until_each_rank_divides(void **state)
{
    static const int32_t ids[] = {5, 6, 7};
    const struct s2s_thd_row row = {"a", ids, NULL, 3, NULL, 0};
    struct s2s_salm_options opt = S2S_SALM_OPTIONS_DEFAULT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_pack pack;
    opt.cp_size = 2;
    opt.tp_size = 4;
    assert_int_equal(s2s_salm_pack(&pack, &row, 1, &opt, &err), 0);
    assert_int_equal(pack.n_slots, 4);
    assert_int_equal(pack.counts.sp_misaligned, 1);
    s2s_salm_pack_release(&pack);
    opt.strict_sp = true;
    assert_int_equal(s2s_salm_pack(&pack, &row, 1, &opt, &err), 0);
    assert_int_equal(pack.n_slots, 8);
    assert_int_equal(pack.counts.sp_misaligned, 0);
    s2s_salm_pack_release(&pack);
}

static void capacity_leaves_room_for_raising(void **state)
{
    struct s2s_salm_options opt = S2S_SALM_OPTIONS_DEFAULT;
    opt.cp_size = 2;
    assert_int_equal(s2s_salm_capacity(35, &opt), 35);
    opt.tp_size = 6;
    assert_int_equal(s2s_salm_capacity(35, &opt), 24);
    assert_int_equal(s2s_salm_capacity(11, &opt), 0);
    opt.strict_sp = true;
    assert_int_equal(s2s_salm_capacity(35, &opt), 24);
    opt.cp_size = 4;
    assert_int_equal(s2s_salm_capacity(35, &opt), 24);
}

static void expect_refused(const struct s2s_thd_row *rows, size_t n, const char *name)
{
    struct s2s_salm_options opt = options(1, 1);
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_pack pack;
    assert_true(s2s_salm_pack(&pack, rows, n, &opt, &err) < 0);
    if (!strstr(err.text, name))
        fail_msg("'%s' does not name %s", err.text, name);
    if (n && !strstr(err.text, rows[0].id))
        fail_msg("'%s' does not name the utterance", err.text);
}

static void each_error_has_its_name(void **state)
{
    static const int32_t ids[] = {100, 100}, pads[] = {0, 0, 7};
    static const struct s2s_thd_clip one[] = {{0, 2}}, none[] = {{0, 0}, {1, 0}};
    static const struct s2s_thd_clip stripped[] = {{1, 2}}, behind[] = {{0, 1}, {2, 1}};
    const struct s2s_thd_row empty = {"e", ids, NULL, 0, NULL, 0};
    const struct s2s_thd_row silent = {"s", ids, NULL, 2, none, 2};
    const struct s2s_thd_row few = {"f", ids, NULL, 2, one, 1};
    const struct s2s_thd_row many = {"m", ids, NULL, 2, behind, 2};
    const struct s2s_thd_row lost = {"l", pads, NULL, 3, stripped, 1};
    expect_refused(NULL, 0, "E_EMPTY_BATCH");
    expect_refused(&empty, 1, "E_EMPTY_ROW");
    expect_refused(&silent, 1, "E_EMPTY_UTT");
    expect_refused(&few, 1, "E_AUDIO_COUNT: 2 placeholders, 1 clips");
    expect_refused(&many, 1, "E_AUDIO_COUNT");
    expect_refused(&lost, 1, "E_AUDIO_COUNT");
}

static void a_row_of_padding_keeps_its_last_slot(void **state)
{
    static const int32_t pads[] = {0, 0, 0};
    const struct s2s_thd_row row = {"p", pads, NULL, 3, NULL, 0};
    struct s2s_salm_options opt = S2S_SALM_OPTIONS_DEFAULT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_pack pack;
    assert_int_equal(s2s_salm_pack(&pack, &row, 1, &opt, &err), 0);
    assert_int_equal(pack.n_slots, 1);
    assert_int_equal(pack.input_ids[0], 0);
    assert_int_equal(pack.labels[0], S2S_IGNORE);
    s2s_salm_pack_release(&pack);
}

/* A placeholder is known by its place: its id may be that of the padding, in front too. */
static void a_placeholder_is_no_padding(void **state)
{
    static const int32_t ids[] = {0, 0, 7};
    static const struct s2s_thd_clip clip[] = {{1, 2}};
    const struct s2s_thd_row row = {"c", ids, NULL, 3, clip, 1};
    struct s2s_salm_options opt = S2S_SALM_OPTIONS_DEFAULT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_pack pack;
    assert_int_equal(s2s_salm_pack(&pack, &row, 1, &opt, &err), 0);
    assert_int_equal(pack.n_slots, 3);
    assert_int_equal(pack.audio_slot[0], 0);
    assert_int_equal(pack.audio_frames[0], 2);
    assert_int_equal(pack.labels[1], 7);
    s2s_salm_pack_release(&pack);
}

static void truncation_keeps_whole_clips(void **state)
{
    struct s2s_salm_options opt = options(1, 1);
    static const struct {
        int64_t max_len;
        size_t n_ids, n_clips;
    } cases[] = {{11, 6, 2}, {10, 5, 2}, {9, 4, 1}, {5, 2, 1}, {4, 1, 0}, {1, 1, 0}, {0, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n_ids, n_clips;
        s2s_salm_truncate(&n_ids, &n_clips, &example[0], &opt, cases[i].max_len);
        assert_int_equal(n_ids, cases[i].n_ids);
        assert_int_equal(n_clips, cases[i].n_clips);
    }
}

static void surprises_are_counted(void **state)
{
    /* begins with a token to be predicted, behind a clip without frames; 2 is padding and eos */
    static const int32_t ids[] = {100, 5, 2, 6}, longer[] = {9, 9, 9, 9, 9};
    static const uint8_t mask[] = {0, 1, 1, 1}, off[] = {0, 0, 0, 0, 0};
    static const struct s2s_thd_clip clip[] = {{0, 0}};
    const struct s2s_thd_row rows[] = {{"a", ids, mask, 4, clip, 1},
                                       {"b", longer, off, 5, NULL, 0}};
    struct s2s_salm_options opt = options(1, 1);
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_pack pack;
    opt.pad_id = 2;
    assert_int_equal(s2s_salm_pack(&pack, rows, 2, &opt, &err), 0);
    assert_int_equal(pack.counts.first_supervised, 1);
    assert_int_equal(pack.counts.pad_labels, 1);
    s2s_salm_pack_release(&pack);
    /* labels: 5 has none in front of it, 2 is dropped or kept, 6 */
    struct s2s_salm_shape shape;
    assert_int_equal(s2s_salm_measure(&shape, &rows[0], &opt, &err), 0);
    assert_int_equal(shape.n_labels, 1);
    opt.keep_pad_labels = true;
    assert_int_equal(s2s_salm_measure(&shape, &rows[0], &opt, &err), 0);
    assert_int_equal(shape.n_labels, 2);
    assert_int_equal(s2s_salm_pack(&pack, rows, 2, &opt, &err), 0);
    assert_int_equal(pack.counts.pad_labels, 0);
    assert_int_equal(pack.labels[0], 2);
    s2s_salm_pack_release(&pack);
}

static void an_id_of_padding_is_text_where_rows_have_none(void **state)
{
    static const int32_t ids[] = {2, 2, 5};
    const struct s2s_thd_row row = {"a", ids, NULL, 3, NULL, 0};
    struct s2s_salm_options opt = S2S_SALM_OPTIONS_DEFAULT;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_salm_shape shape;
    opt.pad_id = 2;
    assert_int_equal(s2s_salm_measure(&shape, &row, &opt, &err), 0);
    assert_int_equal(shape.len, 1);
    opt.no_left_padding = true;
    assert_int_equal(s2s_salm_measure(&shape, &row, &opt, &err), 0);
    assert_int_equal(shape.len, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_example),
        cmocka_unit_test(lengths_are_rounded_and_the_last_one_raised),
        cmocka_unit_test(strict_sp_raises_until_each_rank_divides),
        cmocka_unit_test(capacity_leaves_room_for_raising),
        cmocka_unit_test(each_error_has_its_name),
        cmocka_unit_test(a_row_of_padding_keeps_its_last_slot),
        cmocka_unit_test(a_placeholder_is_no_padding),
        cmocka_unit_test(truncation_keeps_whole_clips),
        cmocka_unit_test(surprises_are_counted),
        cmocka_unit_test(an_id_of_padding_is_text_where_rows_have_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
