/* Ranks that compute on the same packs: who of them reads which, and packs as bytes. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/train/feed_internal.h"
#include "lib/train/images.h"

/* ---- who reads what ---- */

int64_t train_place_microbatches(const struct train_place *at, int64_t n, int64_t together)
{
    const int64_t all = (n + together - 1) / together;
    return at->dp < 0 ? 0 : (all + at->n_dp - 1) / at->n_dp;
}

bool train_place_has(const struct train_place *at, int64_t i, int64_t together, int64_t *nth)
{
    const int64_t microbatch = i / together;
    if (at->dp < 0 || microbatch % at->n_dp != at->dp)
        return false;
    *nth = microbatch / at->n_dp * together + i % together;
    return true;
}

bool train_place_reads(const struct train_place *at, int64_t i, int64_t together)
{
    int64_t nth;
    return train_place_has(at, i, together, &nth) && nth % at->n_peers == at->peer;
}

/* ---- packs as bytes ---- */

/* The struct as it is, the sizes of what it points to (-1: NULL), then that, each at a multiple of
 * ALIGN from the first. Both ends are the same program. */
enum { N_PARTS = 20, ALIGN = 64 };

static int64_t padded(int64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static int64_t text_bytes(const char *text)
{
    return text ? (int64_t)strlen(text) + 1 : 0;
}

/* What a pack points to, in the order of train_pack_take. */
static void list_parts(const void *parts[N_PARTS], int64_t bytes[N_PARTS], const struct s2s_pack *p)
{
    const struct s2s_batch *b = &p->batch;
    const struct s2s_media *clips = &b->media[0], *images = &b->media[TRAIN_IMAGES];
    const int64_t n_rows = s2s_media_n_rows(clips),
                  n_data = clips->cu ? clips->cu[clips->n] : n_rows,
                  n_pixels = images->n > 0 ? images->cu[images->n] * images->width : 0;
    const struct {
        const void *part;
        int64_t bytes;
    } list[N_PARTS] = {
        {b->input_ids, b->n_tokens * 4},    {b->labels, b->n_tokens * 4},
        {b->position_ids, b->n_tokens * 4}, {b->cu_seqlens, (b->n_seqs + 1) * 4},
        {b->seq_lens, b->n_seqs * 4},       {p->clip_slot, clips->n * 4},
        {clips->rows, clips->n * 4},        {clips->slot_of_row, n_rows * 4},
        {clips->cu, (clips->n + 1) * 8},    {clips->data, n_data * clips->width * 4},
        {images->rows, images->n * 4},      {images->slot_of_row, s2s_media_n_rows(images) * 4},
        {images->grid, images->n * 8},      {images->cu, (images->n + 1) * 8},
        {images->data, n_pixels * 4},       {p->ids, text_bytes(p->ids)},
        {p->texts, text_bytes(p->texts)},   {p->place, text_bytes(p->place)},
        {b->draws, b->n_seqs * 8},          {clips->draws, clips->n * 8},
    };
    for (int i = 0; i < N_PARTS; i++) {
        parts[i] = list[i].part;
        bytes[i] = list[i].part ? list[i].bytes : -1;
    }
}

void train_pack_write(struct s2s_buf *to, const struct s2s_pack *pack)
{
    static const char zeros[ALIGN];
    const void *parts[N_PARTS];
    int64_t bytes[N_PARTS];
    list_parts(parts, bytes, pack);
    s2s_buf_add(to, pack, sizeof *pack);
    s2s_buf_add(to, bytes, sizeof bytes);
    for (int i = 0; i < N_PARTS; i++)
        if (bytes[i] > 0) {
            s2s_buf_add(to, parts[i], (size_t)bytes[i]);
            s2s_buf_add(to, zeros, (size_t)(padded(bytes[i]) - bytes[i]));
        }
}

/* The next part of a pack's one block. */
static void *next_part(char **at, const int64_t **bytes)
{
    const int64_t len = *(*bytes)++;
    char *part = *at;
    if (len < 0)
        return NULL;
    *at += padded(len);
    return part;
}

static char *next_text(char **at, const int64_t **bytes)
{
    const char *text = next_part(at, bytes);
    return text ? s2s_xstrdup(text) : NULL;
}

struct s2s_pack *train_pack_take(const char **from)
{
    struct s2s_pack *p = s2s_xmalloc(sizeof *p);
    int64_t sizes[N_PARTS], total = 0;
    const int64_t *bytes = sizes;
    memcpy(p, *from, sizeof *p);
    memcpy(sizes, *from + sizeof *p, sizeof sizes);
    for (int i = 0; i < N_PARTS; i++)
        total += sizes[i] > 0 ? padded(sizes[i]) : 0;
    *from += sizeof *p + sizeof sizes;
    char *at = s2s_xalloc_aligned((size_t)total);
    memcpy(at, *from, (size_t)total);
    *from += total;
    p->blocks = s2s_xcalloc(1, sizeof *p->blocks);
    p->blocks[0] = at;
    p->n_blocks = p->cap_blocks = 1;
    struct s2s_batch *b = &p->batch;
    struct s2s_media *clips = &b->media[0], *images = &b->media[TRAIN_IMAGES];
    b->input_ids = next_part(&at, &bytes);
    b->labels = next_part(&at, &bytes);
    b->position_ids = next_part(&at, &bytes);
    b->cu_seqlens = next_part(&at, &bytes);
    b->seq_lens = next_part(&at, &bytes);
    p->clip_slot = next_part(&at, &bytes);
    clips->rows = next_part(&at, &bytes);
    clips->slot_of_row = next_part(&at, &bytes);
    clips->cu = next_part(&at, &bytes);
    clips->data = next_part(&at, &bytes);
    images->rows = next_part(&at, &bytes);
    images->slot_of_row = next_part(&at, &bytes);
    images->grid = next_part(&at, &bytes);
    images->cu = next_part(&at, &bytes);
    images->data = next_part(&at, &bytes);
    p->ids = next_text(&at, &bytes);
    p->texts = next_text(&at, &bytes);
    p->place = next_text(&at, &bytes);
    b->draws = next_part(&at, &bytes);
    clips->draws = next_part(&at, &bytes);
    return p;
}
