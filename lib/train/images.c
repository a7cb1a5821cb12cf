/* Images of packs. */
#include "lib/train/images.h"

#include <math.h>
#include <string.h>

#include "lib/base/base.h"

void train_images_count(struct s2s_batch *batch)
{
    batch->n_media = batch->media[TRAIN_IMAGES].n > 0 ? TRAIN_IMAGES + 1 : batch->media[0].n > 0;
}

/* ---- from a record ---- */

/* The tensors of the images. */
struct found {
    const struct s2s_st_tensor *slot, *rows, *grid, *patches;
};

static int find(struct found *f, const struct s2s_safetensors *st, struct s2s_error *err)
{
    const struct {
        const struct s2s_st_tensor **to;
        const char *name;
        int n_dims;
    } list[] = {{&f->slot, "image_slot", 1},
                {&f->rows, "image_rows", 1},
                {&f->grid, "image_grid", 2},
                {&f->patches, "image_patches", 2}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const struct s2s_st_tensor *t = *list[i].to = s2s_safetensors_find(st, list[i].name);
        if (!t)
            return s2s_error_set(err, S2S_E_NOTFOUND, "images without %s", list[i].name);
        const bool fits = list[i].to == &f->patches ? t->dtype == S2S_F32 || t->dtype == S2S_U8
                                                    : t->dtype == S2S_I32;
        if (!fits)
            return s2s_error_set(err, S2S_E_DTYPE, "%s is %s", t->name, s2s_dtype_name(t->dtype));
        if (t->n_dims != list[i].n_dims)
            return s2s_error_set(err, S2S_E_SHAPE, "%s has %d dimensions, expected %d", t->name,
                                 t->n_dims, list[i].n_dims);
    }
    if (f->grid->shape[0] != f->rows->shape[0] || f->grid->shape[1] != 2)
        return s2s_error_set(err, S2S_E_SHAPE, "image_grid is [%lld, %lld]; there are %lld images",
                             (long long)f->grid->shape[0], (long long)f->grid->shape[1],
                             (long long)f->rows->shape[0]);
    return 0;
}

/* Patches of each image, and whether numbers of patches and rows come out. */
static int bound(struct s2s_pack *pack, struct s2s_media *m, const struct found *f,
                 struct s2s_error *err)
{
    const int64_t n_patches = f->patches->shape[0];
    int64_t *cu = s2s_pack_alloc(pack, m->n + 1, sizeof *cu), n = 0, n_rows = 0;
    cu[0] = 0;
    /* up to the first that is too many: numbers of a file may not overflow */
    for (int64_t i = 0; i < m->n && n <= n_patches; i++) {
        const int64_t height = m->grid[2 * i], width = m->grid[2 * i + 1];
        if (height < 1 || width < 1 || m->rows[i] < 1)
            return s2s_error_set(err, S2S_E_RANGE, "image %lld has %lld x %lld patches, %d rows",
                                 (long long)i, (long long)height, (long long)width, m->rows[i]);
        cu[i + 1] = n += height * width;
        n_rows += m->rows[i];
    }
    m->cu = cu;
    if (n != n_patches)
        return s2s_error_set(err, S2S_E_SHAPE, "image_patches has %lld; image_grid says %lld",
                             (long long)n_patches, (long long)n);
    if (n_rows != f->slot->shape[0])
        return s2s_error_set(err, S2S_E_SHAPE, "image_slot has %lld; image_rows says %lld",
                             (long long)f->slot->shape[0], (long long)n_rows);
    return 0;
}

/* Utterance by utterance: where the real slots of the one that holds this slot end; -1: none. */
static int64_t end_of_utterance(const struct s2s_batch *b, int64_t slot, int64_t *seq)
{
    while (*seq < b->n_seqs && slot >= b->cu_seqlens[*seq + 1])
        ++*seq;
    if (*seq == b->n_seqs)
        return -1;
    const int64_t end =
        b->seq_lens ? b->cu_seqlens[*seq] + b->seq_lens[*seq] : b->cu_seqlens[*seq + 1];
    return slot < end ? end : -1;
}

static int check_slots(const struct s2s_batch *b, const struct s2s_media *m, struct s2s_error *err)
{
    const int32_t *slot = m->slot_of_row;
    int64_t before = -1, seq = 0;
    for (int64_t i = 0; i < m->n; i++) {
        int64_t end = INT64_MAX;
        for (int32_t k = 0; k < m->rows[i]; k++, slot++) {
            if (*slot <= before)
                return s2s_error_set(err, S2S_E_RANGE,
                                     "row %d of image %lld is in slot %d, not behind slot %lld", k,
                                     (long long)i, *slot, (long long)before);
            before = *slot;
            if (k == 0)
                end = end_of_utterance(b, *slot, &seq);
            if (*slot >= end)
                return s2s_error_set(err, S2S_E_RANGE,
                                     "slot %d, of image %lld, is not in the image's utterance",
                                     *slot, (long long)i);
        }
    }
    return 0;
}

/* Pixels as numbers from 0 to 1. */
static int read_pixels(struct s2s_pack *pack, struct s2s_media *m, const struct s2s_st_tensor *t,
                       struct s2s_error *err)
{
    const int64_t n = s2s_st_numel(t);
    float *out = s2s_pack_alloc(pack, n, sizeof *out);
    if (t->dtype == S2S_F32)
        memcpy(out, t->data, t->len_bytes);
    for (int64_t i = 0; t->dtype == S2S_U8 && i < n; i++)
        out[i] = (float)((const uint8_t *)t->data)[i] / 255;
    m->data = out;
    m->width = t->shape[1];
    return train_pack_check_finite(pack, m, m->cu, "image_patches of image", err);
}

int train_images_read(struct s2s_pack *pack, const struct s2s_safetensors *st,
                      struct s2s_error *err)
{
    struct s2s_batch *b = &pack->batch;
    struct s2s_media *m = &b->media[TRAIN_IMAGES];
    struct found f;
    if (!s2s_safetensors_find(st, "image_slot"))
        return 0;
    int rc = find(&f, st, err);
    if (rc < 0 || f.rows->shape[0] == 0)
        return rc;
    *m = (struct s2s_media){.kind = S2S_MEDIA_IMAGE,
                            .n = f.rows->shape[0],
                            .rows = train_pack_copy(pack, f.rows),
                            .grid = train_pack_copy(pack, f.grid),
                            .slot_of_row = train_pack_copy(pack, f.slot)};
    if ((rc = bound(pack, m, &f, err)) < 0 || (rc = check_slots(b, m, err)) < 0 ||
        (rc = read_pixels(pack, m, f.patches, err)) < 0)
        return rc;
    train_images_count(b);
    return 0;
}

/* ---- joined ---- */

void train_images_join(struct s2s_pack *to, struct s2s_pack *const *packs, size_t n)
{
    struct s2s_media *all = &to->batch.media[TRAIN_IMAGES];
    int64_t n_images = 0, n_rows = 0, n_numbers = 0, t = 0;
    for (size_t i = 0; i < n; i++) {
        const struct s2s_media *m = &packs[i]->batch.media[TRAIN_IMAGES];
        n_images += m->n;
        n_rows += s2s_media_n_rows(m);
        n_numbers += m->n > 0 ? m->cu[m->n] * m->width : 0;
    }
    if (n_images == 0)
        return;
    int32_t *rows = s2s_pack_alloc(to, n_images, sizeof *rows),
            *grid = s2s_pack_alloc(to, 2 * n_images, sizeof *grid),
            *slots = s2s_pack_alloc(to, n_rows, sizeof *slots);
    int64_t *cu = s2s_pack_alloc(to, n_images + 1, sizeof *cu), *end = cu;
    float *data = s2s_pack_alloc(to, n_numbers, sizeof *data);
    *all = (struct s2s_media){.kind = S2S_MEDIA_IMAGE,
                              .n = n_images,
                              .rows = rows,
                              .grid = grid,
                              .slot_of_row = slots,
                              .cu = cu,
                              .data = data};
    *end = 0;
    for (size_t i = 0; i < n; i++) {
        const struct s2s_batch *b = &packs[i]->batch;
        const struct s2s_media *m = &b->media[TRAIN_IMAGES];
        const int64_t own_rows = s2s_media_n_rows(m),
                      numbers = m->n > 0 ? m->cu[m->n] * m->width : 0;
        for (int64_t k = 0; k < m->n; k++, end++) {
            end[1] = *end + m->cu[k + 1] - m->cu[k];
            *rows++ = m->rows[k];
            *grid++ = m->grid[2 * k];
            *grid++ = m->grid[2 * k + 1];
        }
        for (int64_t k = 0; k < own_rows; k++)
            *slots++ = m->slot_of_row[k] < 0 ? -1 : (int32_t)t + m->slot_of_row[k];
        if (numbers > 0)
            memcpy(data, m->data, (size_t)numbers * sizeof *data);
        data += numbers;
        all->width = m->n > 0 ? m->width : all->width;
        t += b->n_tokens;
    }
    train_images_count(&to->batch);
}

/* ---- cut ---- */

void train_images_move(struct s2s_pack *to, const struct s2s_pack *from, int64_t first, int64_t end,
                       const int32_t *moved)
{
    const struct s2s_media *m = &from->batch.media[TRAIN_IMAGES];
    struct s2s_media own = {.kind = S2S_MEDIA_IMAGE, .width = m->width};
    int32_t *rows = s2s_pack_alloc(to, m->n, sizeof *rows),
            *grid = s2s_pack_alloc(to, 2 * m->n, sizeof *grid),
            *slots = s2s_pack_alloc(to, s2s_media_n_rows(m), sizeof *slots), *slot = slots;
    int64_t *cu = s2s_pack_alloc(to, m->n + 1, sizeof *cu), row = 0, begin = -1;
    cu[0] = 0;
    for (int64_t i = 0; i < m->n; row += m->rows[i++]) {
        const int32_t *at = m->slot_of_row + row;
        if (m->rows[i] == 0 || at[0] < first || at[m->rows[i] - 1] >= end)
            continue;
        begin = begin < 0 ? m->cu[i] : begin; /* they follow each other */
        rows[own.n] = m->rows[i];
        memcpy(grid + 2 * own.n, m->grid + 2 * i, 2 * sizeof *grid);
        for (int32_t k = 0; k < m->rows[i]; k++)
            *slot++ = moved[at[k] - first];
        cu[own.n + 1] = cu[own.n] + m->cu[i + 1] - m->cu[i];
        own.n++;
    }
    float *data = s2s_pack_alloc(to, cu[own.n] * m->width, sizeof *data);
    if (own.n > 0)
        memcpy(data, m->data + begin * m->width, (size_t)(cu[own.n] * m->width) * sizeof *data);
    own.rows = rows;
    own.grid = grid;
    own.slot_of_row = slots;
    own.cu = cu;
    own.data = data;
    to->batch.media[TRAIN_IMAGES] = own;
    train_images_count(&to->batch);
}
