/* A batch is checked once, where it enters a model: everything below trusts it. */
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/model/model_internal.h"

int64_t s2s_batch_n_labels(const struct s2s_batch *batch)
{
    int64_t n = 0;
    for (int64_t i = 0; batch->labels && i < batch->n_tokens; i++)
        n += batch->labels[i] >= 0;
    return n;
}

static int check_bounds(const struct s2s_batch *b, struct s2s_error *err)
{
    int64_t longest = 0;
    if (b->cu_seqlens[0] != 0 || b->cu_seqlens[b->n_seqs] != b->n_tokens)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "cu_seqlens runs from %d to %d; there are %lld slots",
                             b->cu_seqlens[0], b->cu_seqlens[b->n_seqs], (long long)b->n_tokens);
    for (int64_t i = 0; i < b->n_seqs; i++) {
        int64_t len = (int64_t)b->cu_seqlens[i + 1] - b->cu_seqlens[i];
        if (len < 0)
            return s2s_error_set(
                err, S2S_E_RANGE, "cu_seqlens[%lld] = %d is less than cu_seqlens[%lld] = %d",
                (long long)i + 1, b->cu_seqlens[i + 1], (long long)i, b->cu_seqlens[i]);
        if (b->seq_lens && (b->seq_lens[i] < 0 || b->seq_lens[i] > len))
            return s2s_error_set(err, S2S_E_RANGE, "seq_lens[%lld] = %d does not fit %lld slots",
                                 (long long)i, b->seq_lens[i], (long long)len);
        longest = len > longest ? len : longest;
    }
    if (b->max_seqlen != longest)
        return s2s_error_set(err, S2S_E_RANGE, "max_seqlen is %lld; the longest sequence has %lld",
                             (long long)b->max_seqlen, (long long)longest);
    return 0;
}

static const char *const names[] = {"clip", "image"}; /* by enum s2s_media_kind */

/* The slots of one list, each taken once; taken [n_tokens] is marked. */
static int check_slots(const struct s2s_batch *b, const struct s2s_media *m, bool *taken,
                       struct s2s_error *err)
{
    const int32_t *slot = m->slot_of_row;
    const char *what = names[m->kind];
    if (m->rows && !slot && m->n > 0)
        return s2s_error_set(err, S2S_E_ARG, "%ss without slots", what);
    for (int64_t k = 0; m->rows && k < m->n; k++) {
        if (m->rows[k] < 0)
            return s2s_error_set(err, S2S_E_RANGE, "%s %lld has %d slots", what, (long long)k,
                                 m->rows[k]);
        for (int32_t i = 0; i < m->rows[k]; i++, slot++) {
            if (*slot == -1)
                continue;
            if (*slot < 0 || *slot >= b->n_tokens || taken[*slot])
                return s2s_error_set(
                    err, S2S_E_RANGE, "row %d of %s %lld goes to slot %d, which is %s", i, what,
                    (long long)k, *slot, *slot < 0 || *slot >= b->n_tokens ? "not there" : "taken");
            taken[*slot] = true;
        }
    }
    return 0;
}

static int check_media(const struct s2s_batch *b, bool *taken, struct s2s_error *err)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < b->n_media; i++) {
        const struct s2s_media *m = &b->media[i];
        if (model_media(b, m->kind) != m)
            return s2s_error_set(err, S2S_E_UNSUPPORTED, "two lists of %ss in one batch",
                                 names[m->kind]);
        for (int64_t k = 0; m->cu && k < m->n; k++)
            if (m->cu[k + 1] < m->cu[k])
                return s2s_error_set(err, S2S_E_RANGE, "%s %lld has less than no features",
                                     names[m->kind], (long long)k);
        rc = check_slots(b, m, taken, err);
    }
    return rc;
}

/* The placeholder of media is not looked up and may be new: a slot that is taken holds any id. */
static int check_ids(const struct s2s_batch *b, int64_t vocab, const bool *taken,
                     struct s2s_error *err)
{
    for (int64_t i = 0; i < b->n_tokens; i++) {
        if (b->input_ids && !taken[i] && (b->input_ids[i] < -1 || b->input_ids[i] >= vocab))
            return s2s_error_set(err, S2S_E_RANGE, "input_ids[%lld] = %d; the vocabulary has %lld",
                                 (long long)i, b->input_ids[i], (long long)vocab);
        if (b->labels && b->labels[i] >= vocab)
            return s2s_error_set(err, S2S_E_RANGE, "labels[%lld] = %d; the vocabulary has %lld",
                                 (long long)i, b->labels[i], (long long)vocab);
        if (b->position_ids && b->position_ids[i] < 0)
            return s2s_error_set(err, S2S_E_RANGE, "position_ids[%lld] = %d", (long long)i,
                                 b->position_ids[i]);
    }
    return 0;
}

int model_check_batch(const struct s2s_batch *batch, int64_t vocab_size, struct s2s_error *err)
{
    int rc = 0;
    if (batch->cu_seqlens && (rc = check_bounds(batch, err)) < 0)
        return rc;
    bool *taken = s2s_xcalloc((size_t)batch->n_tokens + 1, sizeof *taken);
    rc = check_media(batch, taken, err);
    if (rc == 0 && vocab_size > 0)
        rc = check_ids(batch, vocab_size, taken, err);
    free(taken);
    return rc;
}

/* ---- media ---- */

int64_t s2s_media_n_rows(const struct s2s_media *media)
{
    int64_t n = 0;
    for (int64_t k = 0; media->rows && k < media->n; k++)
        n += media->rows[k];
    return n;
}

void s2s_media_slots(int32_t *slot_of_row, const int32_t *slot, const int32_t *rows, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        for (int32_t i = 0; i < rows[k]; i++)
            *slot_of_row++ = slot[k] + i;
}

const struct s2s_media *model_media(const struct s2s_batch *batch, enum s2s_media_kind kind)
{
    for (int i = 0; i < batch->n_media; i++)
        if (batch->media[i].kind == kind)
            return &batch->media[i];
    return NULL;
}

bool model_has_features(const struct s2s_media *media)
{
    return media && media->data && media->cu;
}

bool model_has_embeds(const struct s2s_media *media)
{
    return media && media->data && !media->cu;
}

struct s2s_tensor *model_upload_embeds(struct s2s_tape *tape, const struct s2s_media *media)
{
    int64_t shape[] = {s2s_media_n_rows(media), media->width};
    return s2s_tape_upload_floats(tape, 2, shape, media->data);
}

/* Where n rows stand among the n_own rows of this rank; -1: at another one. */
static struct s2s_tensor *upload_slots(const struct s2s_pass *pass, const struct s2s_media *media,
                                       int64_t n, int64_t n_own)
{
    const int64_t first = pass->tp.sp ? s2s_group_rank(pass->tp.group) * n_own : 0;
    int32_t *slots = s2s_xmalloc((size_t)(n + 1) * sizeof *slots);
    for (int64_t i = 0; i < n; i++) {
        const int64_t slot = media->slot_of_row[i] - first;
        slots[i] = slot >= 0 && slot < n_own ? (int32_t)slot : -1;
    }
    struct s2s_tensor *idx = s2s_tape_upload_i32(pass->tape, slots, n);
    free(slots);
    return idx;
}

struct s2s_tensor *model_splice(const struct s2s_pass *pass, struct s2s_tensor *embeds,
                                struct s2s_tensor *rows, const struct s2s_media *media)
{
    const int64_t n = s2s_tensor_rows(rows);
    struct s2s_tensor *slots = upload_slots(pass, media, n, s2s_tensor_rows(embeds));
    if (n > 0 && media->kind == S2S_MEDIA_AUDIO)
        pass->fwd->audio_embeds = rows;
    if (n > 0 && media->kind == S2S_MEDIA_IMAGE)
        pass->fwd->image_embeds = rows;
    if (pass->tp.sp) /* each rank puts some of them somewhere */
        rows = s2s_op_copy_to_group(pass->tape, rows, pass->tp.group);
    return s2s_op_splice_rows(pass->tape, embeds, rows, slots);
}
