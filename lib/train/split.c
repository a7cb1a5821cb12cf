/* Packs cut over ranks: arrays are padded, cut, and clips told which of their rows are here. */
#include "lib/train/split.h"

#include <string.h>

#include "lib/base/base.h"
#include "lib/thd/cp.h"
#include "lib/train/images.h"

/* One pack on its way: bounds of the sequences as they are and padded, for one of the ranks. */
struct cut {
    struct s2s_pack *pack;
    const int32_t *cu; /* [n_seqs + 1] */
    int32_t *padded;   /* [n_seqs + 1] */
    int cp_size, cp_rank;
};

static int64_t n_padded(const struct cut *c)
{
    return c->padded[c->pack->batch.n_seqs];
}

static int64_t real_len(const struct s2s_batch *b, const int32_t *cu, int64_t s)
{
    return b->seq_lens ? b->seq_lens[s] : cu[s + 1] - cu[s];
}

static void pad_bounds(struct cut *c)
{
    const int64_t n_seqs = c->pack->batch.n_seqs;
    const int32_t multiple = 2 * c->cp_size;
    c->padded = s2s_pack_alloc(c->pack, n_seqs + 1, sizeof *c->padded);
    c->padded[0] = 0;
    for (int64_t s = 0; s < n_seqs; s++)
        c->padded[s + 1] =
            c->padded[s] + (c->cu[s + 1] - c->cu[s] + multiple - 1) / multiple * multiple;
}

/* What the rank has of an array: real slots as they are, padding made of `pad`, or of counting on
 * (positions). */
static const int32_t *cut_array(const struct cut *c, const int32_t *array, int32_t pad,
                                bool counts_on)
{
    const struct s2s_batch *b = &c->pack->batch;
    int32_t *whole = s2s_xmalloc((size_t)(n_padded(c) + 1) * sizeof *whole);
    int32_t *mine = s2s_pack_alloc(c->pack, n_padded(c) / c->cp_size, sizeof *mine);
    for (int64_t s = 0; s < b->n_seqs; s++) {
        const int32_t *from = array + c->cu[s];
        int32_t *to = whole + c->padded[s];
        const int64_t n = real_len(b, c->cu, s), len = c->padded[s + 1] - c->padded[s];
        memcpy(to, from, (size_t)n * sizeof *to);
        for (int64_t i = n; i < len; i++)
            to[i] = counts_on ? (int32_t)i : pad;
    }
    s2s_thd_cp_split(mine, whole, sizeof *mine, c->padded, (size_t)b->n_seqs, c->cp_size,
                     c->cp_rank);
    free(whole);
    return mine;
}

/* Slots of clips among the padded ones. */
static int32_t *padded_slots(const struct cut *c)
{
    const struct s2s_batch *b = &c->pack->batch;
    int32_t *slots = s2s_pack_alloc(c->pack, b->media[0].n, sizeof *slots);
    int64_t s = 0;
    for (int64_t k = 0; k < b->media[0].n; k++) {
        while (s + 1 < b->n_seqs && c->pack->clip_slot[k] >= c->cu[s + 1])
            s++;
        slots[k] = c->pack->clip_slot[k] - c->cu[s] + c->padded[s];
    }
    return slots;
}

/* mine [n_padded]: where the rank has a slot; -1: it has not. Gives: free. */
static int32_t *find_own(const struct cut *c)
{
    const int64_t n = n_padded(c);
    int32_t *mine = s2s_xmalloc((size_t)(n + 1) * sizeof *mine);
    int32_t *index = s2s_xmalloc((size_t)(n / c->cp_size + 1) * sizeof *index);
    s2s_thd_cp_index(index, c->padded, (size_t)c->pack->batch.n_seqs, c->cp_size, c->cp_rank);
    for (int64_t i = 0; i < n; i++)
        mine[i] = -1;
    for (int64_t i = 0; i < n / c->cp_size; i++)
        mine[index[i]] = (int32_t)i;
    free(index);
    return mine;
}

/* All rows of the clips, of which some have no slot here. */
static void mark_rows(const struct cut *c, const int32_t *slots, const int32_t *mine)
{
    struct s2s_media *clips = &c->pack->batch.media[0];
    int32_t *slot_of_row = s2s_pack_alloc(c->pack, s2s_media_n_rows(clips), sizeof *slot_of_row);
    int64_t row = 0;
    for (int64_t k = 0; k < clips->n; k++)
        for (int32_t i = 0; i < clips->rows[k]; i++)
            slot_of_row[row++] = mine[slots[k] + i];
    clips->slot_of_row = slot_of_row;
}

/* The rows that have a slot here, alone: those of a clip, maybe none, follow each other. Data that
 * is not there yet comes so. */
static void keep_rows(const struct cut *c, const int32_t *slots, const int32_t *mine)
{
    struct s2s_media *clips = &c->pack->batch.media[0];
    const size_t row_bytes = (size_t)clips->width * sizeof *clips->data,
                 n_seqs = (size_t)c->pack->batch.n_seqs;
    const struct s2s_thd_clips all = {slots, clips->rows, (size_t)clips->n};
    const int64_t n = s2s_thd_cp_rows(&all, c->padded, n_seqs, c->cp_size, c->cp_rank);
    float *data = clips->data ? s2s_pack_alloc(c->pack, n * clips->width, sizeof *data) : NULL;
    int32_t *rows = s2s_pack_alloc(c->pack, clips->n, sizeof *rows);
    int32_t *slot_of_row = s2s_pack_alloc(c->pack, n, sizeof *slot_of_row), *at = slot_of_row;
    if (data)
        s2s_thd_cp_split_rows(data, clips->data, row_bytes, &all, c->padded, n_seqs, c->cp_size,
                              c->cp_rank);
    for (int64_t k = 0; k < clips->n; k++) {
        rows[k] = 0;
        for (int32_t i = 0; i < clips->rows[k]; i++)
            if (mine[slots[k] + i] >= 0) {
                *at++ = mine[slots[k] + i];
                rows[k]++;
            }
    }
    clips->data = data;
    clips->rows = rows;
    clips->slot_of_row = slot_of_row;
}

/* All images, as clips with features: of their rows some have no slot here. */
static void cut_images(const struct cut *c)
{
    const struct s2s_batch *b = &c->pack->batch;
    struct s2s_media *images = &c->pack->batch.media[TRAIN_IMAGES];
    const int64_t n = s2s_media_n_rows(images);
    if (images->n == 0)
        return;
    int32_t *mine = find_own(c), *slots = s2s_pack_alloc(c->pack, n, sizeof *slots);
    int64_t s = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t slot = images->slot_of_row[i];
        while (s + 1 < b->n_seqs && slot >= c->cu[s + 1])
            s++;
        slots[i] = mine[slot - c->cu[s] + c->padded[s]];
    }
    images->slot_of_row = slots;
    free(mine);
}

/* Bounds of the rank's parts are those of the padded sequences divided by the ranks, so that a slot
 * divided by them is in the part of its sequence. */
static void cut_clips(const struct cut *c, bool embeds)
{
    const int64_t n = c->pack->batch.media[0].n;
    cut_images(c);
    if (n == 0)
        return;
    int32_t *slots = padded_slots(c), *mine = find_own(c);
    if (embeds)
        keep_rows(c, slots, mine);
    else
        mark_rows(c, slots, mine);
    free(mine);
    for (int64_t k = 0; k < n; k++)
        slots[k] /= c->cp_size;
    c->pack->clip_slot = slots;
    train_images_count(&c->pack->batch);
}

static void bound_own(const struct cut *c)
{
    struct s2s_batch *b = &c->pack->batch;
    int32_t *cu = s2s_pack_alloc(c->pack, b->n_seqs + 1, sizeof *cu);
    b->max_seqlen = 0;
    cu[0] = 0;
    for (int64_t s = 1; s <= b->n_seqs; s++) {
        cu[s] = c->padded[s] / c->cp_size;
        if (cu[s] - cu[s - 1] > b->max_seqlen)
            b->max_seqlen = cu[s] - cu[s - 1];
    }
    b->cu_seqlens = cu;
    b->seq_lens = NULL;
    b->n_tokens = cu[b->n_seqs];
}

void s2s_pack_split(struct s2s_pack *pack, int cp_size, int cp_rank)
{
    struct s2s_batch *b = &pack->batch;
    struct cut c = {.pack = pack, .cu = b->cu_seqlens, .cp_size = cp_size, .cp_rank = cp_rank};
    if (cp_size == 1)
        return;
    pad_bounds(&c);
    b->input_ids = cut_array(&c, b->input_ids, -1, false);
    b->labels = cut_array(&c, b->labels, -100, false);
    b->position_ids = cut_array(&c, b->position_ids, 0, true);
    cut_clips(&c, b->media[0].data && !b->media[0].cu);
    bound_own(&c);
    pack->n_labels = s2s_batch_n_labels(b);
}

/* Ids of padding, which the stream has, become zero rows. */
static void hide_padding(const struct cut *c)
{
    struct s2s_batch *b = &c->pack->batch;
    int32_t *index = s2s_xmalloc((size_t)(b->n_tokens + 1) * sizeof *index);
    s2s_thd_cp_index(index, c->padded, (size_t)b->n_seqs, c->cp_size, c->cp_rank);
    int64_t s = 0;
    for (int64_t i = 0; i < b->n_tokens; i++) {
        while (index[i] >= c->padded[s + 1])
            s++;
        if (index[i] - c->padded[s] >= real_len(b, c->padded, s))
            ((int32_t *)b->input_ids)[i] = -1;
    }
    free(index);
}

void s2s_pack_take_part(struct s2s_pack *pack, int cp_size, int cp_rank, bool embeds)
{
    const int32_t *cu = pack->batch.cu_seqlens;
    const struct cut c = {
        .pack = pack, .cu = cu, .padded = (int32_t *)cu, .cp_size = cp_size, .cp_rank = cp_rank};
    hide_padding(&c);
    cut_clips(&c, embeds);
    bound_own(&c);
}
