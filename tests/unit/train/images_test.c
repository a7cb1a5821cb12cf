/* Images of packs: joined, cut over ranks and into utterances, and sent as bytes, each row stays in
 * its slot and each image with its pixels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/train/feed_internal.h"
#include "lib/train/images.h"
#include "lib/train/split.h"

enum { WIDTH = 3, N_ROWS = 7, N_IMAGES = 3 };

/* Two utterances of 14 and 9 slots, the first with two slots of padding behind it; in it a clip in
 * slots 3 and 4, and images before and behind it, whose rows do not follow each other. The id of a
 * slot is its number + 1000 first, and a patch holds the number of its image + first. */
static struct s2s_pack *make(int32_t first)
{
    static const int32_t slots[N_ROWS] = {1, 2, 6, 8, 9, 17, 19}, rows[N_IMAGES] = {2, 3, 2},
                         grid[2 * N_IMAGES] = {2, 4, 6, 2, 4, 2}, cu[] = {0, 16, 25},
                         lens[] = {14, 9};
    struct s2s_pack *p = s2s_xcalloc(1, sizeof *p);
    struct s2s_batch *b = &p->batch;
    int32_t *ids = s2s_pack_alloc(p, 25, 4), *labels = s2s_pack_alloc(p, 25, 4),
            *positions = s2s_pack_alloc(p, 25, 4), *clip = s2s_pack_alloc(p, 1, 4),
            *frames = s2s_pack_alloc(p, 1, 4), *of_clip = s2s_pack_alloc(p, 2, 4);
    int64_t *patches = s2s_pack_alloc(p, N_IMAGES + 1, 8), *mel_cu = s2s_pack_alloc(p, 2, 8);
    for (int32_t i = 0; i < 25; i++) {
        ids[i] = 1000 * first + i;
        labels[i] = i == 12 || i == 22 ? 5 : -100;
        positions[i] = i < 16 ? i : i - 16;
    }
    patches[0] = mel_cu[0] = 0;
    mel_cu[1] = 4;
    for (int i = 0; i < N_IMAGES; i++)
        patches[i + 1] = patches[i] + (int64_t)grid[2 * i] * grid[2 * i + 1];
    float *pixels = s2s_pack_alloc(p, patches[N_IMAGES] * WIDTH, sizeof *pixels),
          *mel = s2s_pack_alloc(p, 4, sizeof *mel);
    for (int i = 0; i < N_IMAGES; i++)
        for (int64_t k = patches[i] * WIDTH; k < patches[i + 1] * WIDTH; k++)
            pixels[k] = (float)(10 * first + i);
    memset(mel, 0, 4 * sizeof *mel);
    clip[0] = of_clip[0] = 3;
    of_clip[1] = 4;
    frames[0] = 2;
    p->clip_slot = clip;
    p->place = s2s_xstrdup("here");
    *b = (struct s2s_batch){.n_tokens = 25,
                            .n_seqs = 2,
                            .input_ids = ids,
                            .labels = labels,
                            .position_ids = positions,
                            .cu_seqlens = cu,
                            .seq_lens = lens,
                            .max_seqlen = 16};
    b->media[0] = (struct s2s_media){
        .n = 1, .rows = frames, .slot_of_row = of_clip, .data = mel, .cu = mel_cu, .width = 1};
    b->media[TRAIN_IMAGES] = (struct s2s_media){.kind = S2S_MEDIA_IMAGE,
                                                .n = N_IMAGES,
                                                .rows = rows,
                                                .grid = grid,
                                                .slot_of_row = slots,
                                                .cu = patches,
                                                .data = pixels,
                                                .width = WIDTH};
    train_images_count(b);
    assert_int_equal(b->n_media, 2);
    return p;
}

/* Image i of the pack is image `of` of make(first). */
static void expect_image(const struct s2s_pack *p, int64_t i, const struct s2s_pack *from, int of)
{
    const struct s2s_media *m = &p->batch.media[TRAIN_IMAGES],
                           *w = &from->batch.media[TRAIN_IMAGES];
    assert_int_equal(m->rows[i], w->rows[of]);
    assert_int_equal(m->grid[2 * i], w->grid[2 * of]);
    assert_int_equal(m->grid[2 * i + 1], w->grid[2 * of + 1]);
    assert_int_equal(m->cu[i + 1] - m->cu[i], w->cu[of + 1] - w->cu[of]);
    assert_int_equal(m->width, WIDTH);
    for (int64_t k = 0; k < (m->cu[i + 1] - m->cu[i]) * WIDTH; k++)
        assert_true(m->data[m->cu[i] * WIDTH + k] == w->data[w->cu[of] * WIDTH + k]);
}

/* The slots of all rows hold these ids. */
static void expect_ids(const struct s2s_pack *p, const int32_t *ids, int64_t n)
{
    const struct s2s_media *m = &p->batch.media[TRAIN_IMAGES];
    assert_int_equal(s2s_media_n_rows(m), n);
    for (int64_t r = 0; r < n; r++)
        assert_int_equal(p->batch.input_ids[m->slot_of_row[r]], ids[r]);
}

static void images_of_joined_packs_stand_behind_each_other(void **state)
{
    struct s2s_pack *packs[] = {make(1), make(2)}, *all = s2s_pack_join(packs, 2);
    static const int32_t ids[] = {1001, 1002, 1006, 1008, 1009, 1017, 1019,
                                  2001, 2002, 2006, 2008, 2009, 2017, 2019};
    assert_int_equal(all->batch.n_media, 2);
    assert_int_equal(all->batch.media[TRAIN_IMAGES].n, 2 * N_IMAGES);
    expect_ids(all, ids, 2 * N_ROWS);
    for (int i = 0; i < 2 * N_IMAGES; i++)
        expect_image(all, i, packs[i / N_IMAGES], i % N_IMAGES);
    for (int i = 0; i < 2; i++)
        s2s_pack_free(packs[i]);
    s2s_pack_free(all);
}

static void rows_of_a_pack_that_is_cut_are_on_one_rank_each(void **state)
{
    static const int32_t ids[] = {1001, 1002, 1006, 1008, 1009, 1017, 1019};
    for (int cp = 2; cp <= 3; cp++) {
        int seen[N_ROWS] = {0};
        for (int rank = 0; rank < cp; rank++) {
            struct s2s_pack *whole = make(1), *part = make(1);
            s2s_pack_split(part, cp, rank);
            const struct s2s_media *m = &part->batch.media[TRAIN_IMAGES];
            assert_int_equal(part->batch.n_media, 2);
            for (int i = 0; i < N_IMAGES; i++)
                expect_image(part, i, whole, i);
            for (int r = 0; r < N_ROWS; r++) {
                if (m->slot_of_row[r] < 0)
                    continue;
                assert_int_equal(part->batch.input_ids[m->slot_of_row[r]], ids[r]);
                seen[r]++;
            }
            s2s_pack_free(whole);
            s2s_pack_free(part);
        }
        for (int r = 0; r < N_ROWS; r++)
            assert_int_equal(seen[r], 1);
    }
}

static void an_utterance_has_its_own_images(void **state)
{
    static const int32_t first[] = {1001, 1002, 1006, 1008, 1009}, second[] = {1017, 1019};
    struct s2s_pack *p = make(1), *u = s2s_pack_utterance(p, 0, NULL);
    assert_int_equal(u->batch.n_tokens, 14);
    assert_int_equal(u->batch.media[TRAIN_IMAGES].n, 2);
    expect_ids(u, first, 5);
    expect_image(u, 0, p, 0);
    expect_image(u, 1, p, 1);
    s2s_pack_free(u);
    u = s2s_pack_utterance(p, 1, NULL);
    assert_int_equal(u->batch.n_media, 2);
    assert_int_equal(u->batch.media[0].n, 0);
    assert_int_equal(u->batch.media[TRAIN_IMAGES].n, 1);
    assert_int_equal(u->batch.media[TRAIN_IMAGES].slot_of_row[0], 1);
    expect_ids(u, second, 2);
    expect_image(u, 0, p, 2);
    s2s_pack_free(u);
    s2s_pack_free(p);
}

/* What stands behind another one's sound moves along with its slots. */
static void images_move_with_the_sound_of_another(void **state)
{
    static const int32_t ids[] = {1001, 1002, 1006, 1008, 1009};
    struct s2s_pack *p = make(1), *donor = make(2);
    ((int32_t *)donor->batch.media[0].rows)[0] = 5;
    struct s2s_pack *u = s2s_pack_utterance(p, 0, donor);
    assert_int_equal(u->batch.n_tokens, 17);
    expect_ids(u, ids, 5);
    s2s_pack_free(u);
    s2s_pack_free(donor);
    s2s_pack_free(p);
}

static void packs_with_images_go_as_bytes(void **state)
{
    static const int32_t ids[] = {1001, 1002, 1006, 1008, 1009, 1017, 1019};
    struct s2s_pack *p = make(1);
    struct s2s_buf bytes = S2S_BUF_INIT;
    train_pack_write(&bytes, p);
    const char *at = bytes.data;
    struct s2s_pack *got = train_pack_take(&at);
    assert_ptr_equal(at, bytes.data + bytes.len);
    expect_ids(got, ids, N_ROWS);
    for (int i = 0; i < N_IMAGES; i++)
        expect_image(got, i, p, i);
    s2s_buf_release(&bytes);
    s2s_pack_free(got);
    s2s_pack_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_of_joined_packs_stand_behind_each_other),
        cmocka_unit_test(rows_of_a_pack_that_is_cut_are_on_one_rank_each),
        cmocka_unit_test(an_utterance_has_its_own_images),
        cmocka_unit_test(images_move_with_the_sound_of_another),
        cmocka_unit_test(packs_with_images_go_as_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
