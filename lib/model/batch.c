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

/* May the slot hold any id? The placeholder of audio is not looked up and may be new. *clip is the
 * first clip that does not end before the slot. */
static bool is_audio_slot(const struct s2s_batch *b, int64_t slot, int64_t *clip)
{
    if (!b->audio_slot)
        return false;
    while (*clip < b->n_clips && b->audio_slot[*clip] + b->audio_frames[*clip] <= slot)
        ++*clip;
    return *clip < b->n_clips && b->audio_slot[*clip] <= slot;
}

static int check_ids(const struct s2s_batch *b, int64_t vocab, struct s2s_error *err)
{
    int64_t clip = 0;
    for (int64_t i = 0; i < b->n_tokens; i++) {
        bool audio = is_audio_slot(b, i, &clip);
        if (b->input_ids && !audio && (b->input_ids[i] < -1 || b->input_ids[i] >= vocab))
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

static int check_clips(const struct s2s_batch *b, struct s2s_error *err)
{
    int64_t end = 0;
    for (int64_t i = 0; b->audio_slot && i < b->n_clips; i++) {
        int64_t slot = b->audio_slot[i], frames = b->audio_frames[i];
        if (slot < end || frames < 0 || slot + frames > b->n_tokens)
            return s2s_error_set(err, S2S_E_RANGE,
                                 "clip %lld with slots [%lld, %lld) of %lld overlaps or leaves the "
                                 "pack",
                                 (long long)i, (long long)slot, (long long)(slot + frames),
                                 (long long)b->n_tokens);
        end = slot + frames;
    }
    for (int64_t i = 0; b->cu_mel && i < b->n_clips; i++)
        if (b->cu_mel[i + 1] < b->cu_mel[i])
            return s2s_error_set(err, S2S_E_RANGE, "clip %lld has less than no mel frames",
                                 (long long)i);
    return 0;
}

int model_check_batch(const struct s2s_batch *batch, int64_t vocab_size, struct s2s_error *err)
{
    int rc = 0;
    if (batch->cu_seqlens && (rc = check_bounds(batch, err)) < 0)
        return rc;
    if ((rc = check_clips(batch, err)) < 0)
        return rc;
    return vocab_size > 0 ? check_ids(batch, vocab_size, err) : 0;
}

int64_t model_n_audio_frames(const struct s2s_batch *batch)
{
    int64_t n = 0;
    for (int64_t k = 0; k < batch->n_clips; k++)
        n += batch->audio_frames[k];
    return n;
}

struct s2s_tensor *model_audio_slots(struct s2s_tape *tape, const struct s2s_batch *batch)
{
    int64_t n = model_n_audio_frames(batch), at = 0;
    int32_t *idx = s2s_xmalloc((size_t)(n + 1) * sizeof *idx);
    for (int64_t k = 0; k < batch->n_clips; k++)
        for (int32_t i = 0; i < batch->audio_frames[k]; i++)
            idx[at++] = batch->audio_slot[k] + i;
    struct s2s_tensor *slots = s2s_tape_upload_i32(tape, idx, n);
    free(idx);
    return slots;
}

struct s2s_tensor *model_audio_embeds(struct s2s_tape *tape, const struct s2s_batch *batch)
{
    int64_t shape[] = {model_n_audio_frames(batch), batch->embed_dim};
    return s2s_tape_upload(tape, S2S_F32, 2, shape, batch->audio_embeds);
}
