/* Packs cut over ranks: every real slot, label and row of sound is on one rank, where it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/thd/cp.h"
#include "lib/train/split.h"

enum { MAX_SEQS = 8, MAX_CP = 4, WIDTH = 2, MAX_SLOTS = 128 };
enum form { SLOTS_ALONE, FEATURES, EMBEDS };

/* Sequences of these lengths, with padding behind some; the id of a slot is its number. */
struct problem {
    int64_t n_seqs, n_clips;
    int32_t lens[MAX_SEQS], padding[MAX_SEQS];
    int32_t slot[4], rows[4];
};

/* 2 cp +- 1 of cp 2 and 3, one slot, none; clips over the chunks' borders, one of no row, one that
 * fills its sequence. */
static const struct problem problem = {.n_seqs = 8,
                                       .n_clips = 4,
                                       .lens = {3, 1, 0, 5, 7, 23, 8, 2},
                                       .padding = {0, 1, 0, 3, 0, 2, 4, 0},
                                       .slot = {1, 24, 35, 45},
                                       .rows = {0, 11, 0, 8}};

static struct s2s_pack *make(const struct problem *p, enum form form)
{
    struct s2s_pack *pack = s2s_xcalloc(1, sizeof *pack);
    struct s2s_batch *b = &pack->batch;
    struct s2s_media *clips = &b->media[0];
    int32_t *cu = s2s_pack_alloc(pack, p->n_seqs + 1, 4),
            *lens = s2s_pack_alloc(pack, p->n_seqs, 4);
    cu[0] = 0;
    for (int64_t s = 0; s < p->n_seqs; s++) {
        lens[s] = p->lens[s];
        cu[s + 1] = cu[s] + lens[s] + p->padding[s];
        pack->n_real += lens[s];
    }
    const int32_t n = cu[p->n_seqs];
    int32_t *ids = s2s_pack_alloc(pack, n, 4), *labels = s2s_pack_alloc(pack, n, 4),
            *positions = s2s_pack_alloc(pack, n, 4);
    for (int64_t s = 0; s < p->n_seqs; s++)
        for (int32_t i = cu[s]; i < cu[s + 1]; i++) {
            ids[i] = i;
            positions[i] = i - cu[s];
            labels[i] = positions[i] < lens[s] && i % 3 ? 1000 + i : -100;
        }
    *b = (struct s2s_batch){.n_tokens = n,
                            .n_seqs = p->n_seqs,
                            .input_ids = ids,
                            .labels = labels,
                            .position_ids = positions,
                            .cu_seqlens = cu,
                            .seq_lens = lens};
    pack->n_labels = s2s_batch_n_labels(b);
    int32_t *slot = s2s_pack_alloc(pack, p->n_clips, 4),
            *rows = s2s_pack_alloc(pack, p->n_clips, 4);
    memcpy(slot, p->slot, sizeof p->slot);
    memcpy(rows, p->rows, sizeof p->rows);
    *clips = (struct s2s_media){.n = p->n_clips, .rows = rows, .width = WIDTH};
    const int64_t n_rows = s2s_media_n_rows(clips);
    int32_t *slot_of_row = s2s_pack_alloc(pack, n_rows, 4);
    int64_t *bounds = s2s_pack_alloc(pack, p->n_clips + 1, 8);
    float *data = s2s_pack_alloc(pack, n_rows * WIDTH, sizeof *data);
    memset(bounds, 0, (size_t)(p->n_clips + 1) * 8);
    s2s_media_slots(slot_of_row, slot, rows, p->n_clips);
    for (int64_t r = 0; r < n_rows * WIDTH; r++)
        data[r] = (float)slot_of_row[r / WIDTH]; /* a row holds the slot that it is for */
    clips->slot_of_row = slot_of_row;
    clips->data = form == SLOTS_ALONE ? NULL : data;
    clips->cu = form == FEATURES ? bounds : NULL;
    pack->clip_slot = slot;
    b->n_media = 1;
    return pack;
}

/* How often each slot of the whole was found, and each row of sound in its slot. */
struct seen {
    int slots[MAX_SLOTS], rows[MAX_SLOTS];
};

/* The rank's part against the whole, of which it is every slot that s2s_thd_cp_index says. */
static void check_part(const struct s2s_pack *part, const struct s2s_pack *whole, int cp, int rank,
                       struct seen *seen)
{
    const struct s2s_batch *b = &part->batch, *w = &whole->batch;
    int32_t padded[MAX_SEQS + 1] = {0}, index[MAX_SLOTS];
    int64_t longest = 0, n_labels = 0;
    for (int64_t s = 0; s < w->n_seqs; s++) {
        const int32_t len = w->cu_seqlens[s + 1] - w->cu_seqlens[s];
        padded[s + 1] = padded[s] + (len + 2 * cp - 1) / (2 * cp) * 2 * cp;
        assert_int_equal(b->cu_seqlens[s + 1], padded[s + 1] / cp);
        longest =
            (padded[s + 1] - padded[s]) / cp > longest ? (padded[s + 1] - padded[s]) / cp : longest;
    }
    assert_int_equal(b->n_tokens, padded[w->n_seqs] / cp);
    assert_int_equal(b->max_seqlen, longest);
    assert_null(b->seq_lens);
    s2s_thd_cp_index(index, padded, (size_t)w->n_seqs, cp, rank);
    int64_t s = 0;
    for (int64_t i = 0; i < b->n_tokens; i++) {
        while (index[i] >= padded[s + 1])
            s++;
        const int32_t position = index[i] - padded[s], slot = w->cu_seqlens[s] + position;
        assert_int_equal(b->position_ids[i], position);
        if (position >= w->seq_lens[s]) {
            assert_int_equal(b->input_ids[i], -1);
            assert_int_equal(b->labels[i], -100);
            continue;
        }
        assert_int_equal(b->input_ids[i], slot);
        assert_int_equal(b->labels[i], w->labels[slot]);
        seen->slots[slot]++;
        n_labels += b->labels[i] >= 0;
    }
    assert_int_equal(part->n_labels, n_labels);
    assert_int_equal(part->n_real, whole->n_real);
}

static void check_rows(const struct s2s_pack *part, const struct s2s_pack *whole, struct seen *seen)
{
    const struct s2s_media *m = &part->batch.media[0], *all = &whole->batch.media[0];
    const bool embeds = m->data && !m->cu;
    const int64_t n = s2s_media_n_rows(m);
    assert_int_equal(m->n, all->n);
    if (!embeds)
        assert_int_equal(n, s2s_media_n_rows(all));
    for (int64_t r = 0; r < n; r++) {
        const int32_t slot = m->slot_of_row[r];
        if (slot < 0) {
            assert_false(embeds);
            continue;
        }
        const int32_t was = part->batch.input_ids[slot];
        if (embeds)
            assert_true(m->data[r * WIDTH] == (float)was && m->data[r * WIDTH + 1] == (float)was);
        else
            assert_int_equal(was, all->slot_of_row[r]);
        seen->rows[was]++;
    }
}

static void every_slot_and_row_is_on_one_rank(void **state)
{
    for (int form = SLOTS_ALONE; form <= EMBEDS; form++)
        for (int cp = 2; cp <= MAX_CP; cp++) {
            struct s2s_pack *whole = make(&problem, (enum form)form);
            struct seen seen = {.slots = {0}};
            int64_t n_labels = 0;
            for (int rank = 0; rank < cp; rank++) {
                struct s2s_pack *part = make(&problem, (enum form)form);
                s2s_pack_split(part, cp, rank);
                check_part(part, whole, cp, rank, &seen);
                check_rows(part, whole, &seen);
                n_labels += part->n_labels;
                s2s_pack_free(part);
            }
            assert_int_equal(n_labels, whole->n_labels);
            const struct s2s_batch *w = &whole->batch;
            for (int64_t s = 0; s < w->n_seqs; s++)
                for (int32_t i = w->cu_seqlens[s]; i < w->cu_seqlens[s + 1]; i++)
                    assert_int_equal(seen.slots[i], i - w->cu_seqlens[s] < w->seq_lens[s]);
            for (int64_t r = 0; r < s2s_media_n_rows(&w->media[0]); r++)
                assert_int_equal(seen.rows[w->media[0].slot_of_row[r]], 1);
            s2s_pack_free(whole);
        }
}

static void one_rank_has_the_pack_as_it_is(void **state)
{
    struct s2s_pack *pack = make(&problem, FEATURES);
    const struct s2s_batch before = pack->batch;
    s2s_pack_split(pack, 1, 0);
    assert_memory_equal(&before, &pack->batch, sizeof before);
    s2s_pack_free(pack);
}

static void a_pack_of_nothing_is_cut_into_nothing(void **state)
{
    struct s2s_pack *pack = s2s_pack_join(NULL, 0);
    s2s_pack_split(pack, 4, 3);
    assert_int_equal(pack->batch.n_tokens, 0);
    assert_int_equal(pack->batch.n_seqs, 0);
    assert_int_equal(pack->n_labels, 0);
    s2s_pack_free(pack);
}

/* Packs that are cut are joined as whole ones: rows without a slot have none afterwards. */
static void parts_are_joined_as_packs_are(void **state)
{
    struct s2s_pack *parts[2];
    for (int i = 0; i < 2; i++) {
        parts[i] = make(&problem, FEATURES);
        s2s_pack_split(parts[i], 2, 1);
    }
    struct s2s_pack *joined = s2s_pack_join(parts, 2);
    const struct s2s_media *one = &parts[0]->batch.media[0], *all = &joined->batch.media[0];
    const int64_t n = s2s_media_n_rows(one);
    const int32_t first = (int32_t)parts[0]->batch.n_tokens;
    for (int64_t r = 0; r < n; r++) {
        assert_int_equal(all->slot_of_row[r], one->slot_of_row[r]);
        assert_int_equal(all->slot_of_row[n + r],
                         one->slot_of_row[r] < 0 ? -1 : first + one->slot_of_row[r]);
    }
    assert_int_equal(joined->n_real, 2 * parts[0]->n_real);
    assert_int_equal(joined->n_labels, 2 * parts[0]->n_labels);
    s2s_pack_free(joined);
    s2s_pack_free(parts[0]);
    s2s_pack_free(parts[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_slot_and_row_is_on_one_rank),
        cmocka_unit_test(one_rank_has_the_pack_as_it_is),
        cmocka_unit_test(a_pack_of_nothing_is_cut_into_nothing),
        cmocka_unit_test(parts_are_joined_as_packs_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
