/* Reads records to packs, and joins and cuts packs. */
#include "lib/train/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include <jansson.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"
#include "lib/thd/cp.h"
#include "lib/train/images.h"
#include "lib/train/split.h"

void s2s_pack_free(struct s2s_pack *pack)
{
    if (!pack)
        return;
    for (size_t i = 0; i < pack->n_blocks; i++)
        free(pack->blocks[i]);
    free(pack->blocks);
    for (size_t i = 0; i < pack->n_parts; i++) {
        free(pack->parts[i].ids);
        free(pack->parts[i].place);
    }
    free(pack->parts);
    free(pack->ids);
    free(pack->texts);
    free(pack->place);
    free(pack);
}

void *s2s_pack_alloc(struct s2s_pack *pack, int64_t n, size_t size)
{
    s2s_grow(&pack->blocks, pack->n_blocks, &pack->cap_blocks, sizeof *pack->blocks);
    void *block = s2s_xalloc_aligned((size_t)(n > 0 ? n : 1) * size);
    return pack->blocks[pack->n_blocks++] = block;
}

/* Counts what depends on the arrays: labels, real slots, longest sequence. */
static void pack_count(struct s2s_pack *pack)
{
    struct s2s_batch *b = &pack->batch;
    pack->n_labels = s2s_batch_n_labels(b);
    pack->n_real = 0;
    b->max_seqlen = 0;
    for (int64_t s = 0; s < b->n_seqs; s++) {
        int64_t len = b->cu_seqlens[s + 1] - b->cu_seqlens[s];
        b->max_seqlen = len > b->max_seqlen ? len : b->max_seqlen;
        pack->n_real += b->seq_lens ? b->seq_lens[s] : len;
    }
}

/* Each clip fills slots one after the other. */
static void place_clips(struct s2s_pack *pack)
{
    struct s2s_media *clips = &pack->batch.media[0];
    int32_t *slots = s2s_pack_alloc(pack, s2s_media_n_rows(clips), sizeof *slots);
    s2s_media_slots(slots, pack->clip_slot, clips->rows, clips->n);
    clips->slot_of_row = slots;
    train_images_count(&pack->batch);
}

/* ---- from a record ---- */

const void *train_pack_copy(struct s2s_pack *pack, const struct s2s_st_tensor *t)
{
    if (!t)
        return NULL;
    void *copy = s2s_pack_alloc(pack, (int64_t)t->len_bytes, 1);
    memcpy(copy, t->data, t->len_bytes);
    return copy;
}

static const void *copy_named(struct s2s_pack *pack, const struct s2s_safetensors *st,
                              const char *name)
{
    return train_pack_copy(pack, s2s_safetensors_find(st, name));
}

static char *copy_meta(const struct s2s_safetensors *st, const char *key)
{
    const char *text = s2s_safetensors_meta(st, key);
    return text ? s2s_xstrdup(text) : NULL;
}

/* mcore streams store no positions: they restart where bounds are. */
static const int32_t *make_positions(struct s2s_pack *pack, const struct s2s_schema *schema)
{
    const struct s2s_batch *b = &pack->batch;
    const int cp_size = (int)schema->cp_size;
    const int64_t n = b->n_tokens * cp_size;
    int32_t *out = s2s_pack_alloc(pack, n, sizeof *out);
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t s = 0; s < b->n_seqs; s++)
        for (int32_t t = b->cu_seqlens[s]; t < b->cu_seqlens[s + 1]; t++)
            out[t] = t - b->cu_seqlens[s];
    if (cp_size == 1)
        return out;
    int32_t *mine = s2s_pack_alloc(pack, b->n_tokens, sizeof *mine);
    s2s_thd_cp_split(mine, out, sizeof *mine, b->cu_seqlens, (size_t)b->n_seqs, cp_size,
                     (int)schema->cp_rank);
    return mine;
}

/* Layout rl has the id itself as label (packing-cp-encode.md 2.1): the model predicts the next. */
static void shift_labels(struct s2s_batch *b)
{
    int32_t *labels = (int32_t *)b->labels;
    for (int64_t s = 0; s < b->n_seqs; s++) {
        int32_t begin = b->cu_seqlens[s], end = b->cu_seqlens[s + 1];
        for (int32_t t = begin; t < end; t++)
            labels[t] = t + 1 < end ? labels[t + 1] : -100;
    }
}

/* What a mask beside the labels leaves out has none (packed SFT keeps them all). */
static void mask_labels(struct s2s_batch *b, const struct s2s_safetensors *st)
{
    const struct s2s_st_tensor *mask = s2s_safetensors_find(st, "loss_mask");
    for (int64_t t = 0; mask && t < b->n_tokens; t++)
        if (!((const uint8_t *)mask->data)[t])
            ((int32_t *)b->labels)[t] = -100;
}

static int read_slots(struct s2s_pack *pack, const struct s2s_schema *schema,
                      const struct s2s_safetensors *st, struct s2s_error *err)
{
    struct s2s_batch *b = &pack->batch;
    const struct s2s_st_tensor *ids = s2s_safetensors_find(st, "input_ids");
    const char *bounds =
        s2s_safetensors_find(st, "cu_seqlens_padded") ? "cu_seqlens_padded" : "cu_seqlens";
    const struct s2s_st_tensor *cu = s2s_safetensors_find(st, bounds);
    b->n_tokens = s2s_st_numel(ids);
    b->n_seqs = s2s_st_numel(cu) - 1;
    b->input_ids = train_pack_copy(pack, ids);
    b->labels = copy_named(pack, st, "labels");
    b->cu_seqlens = train_pack_copy(pack, cu);
    b->seq_lens = copy_named(pack, st, "seq_lens");
    if (!b->labels)
        return s2s_error_set(err, S2S_E_NOTFOUND, "no labels");
    b->position_ids = copy_named(pack, st, "position_ids");
    if (!b->position_ids)
        b->position_ids = make_positions(pack, schema);
    mask_labels(b, st);
    if (schema->layout == S2S_LAYOUT_RL)
        shift_labels(b);
    const struct s2s_st_tensor *slot = s2s_safetensors_find(st, "audio_slot");
    struct s2s_media *clips = &b->media[0];
    clips->n = slot ? s2s_st_numel(slot) : 0;
    if (clips->n > 0) {
        pack->clip_slot = train_pack_copy(pack, slot);
        clips->rows = copy_named(pack, st, "audio_frames");
    }
    pack_count(pack);
    int rc = train_images_read(pack, st, err);
    if (rc < 0)
        return rc;
    if (schema->cp_size > 1) {
        s2s_pack_take_part(pack, (int)schema->cp_size, (int)schema->cp_rank, schema->has_embed);
        return 0;
    }
    place_clips(pack);
    /* the placeholder is never looked up, and its id may lie outside the model's vocabulary */
    for (int64_t k = 0; k < clips->n; k++)
        memset((int32_t *)b->input_ids + pack->clip_slot[k], 0, (size_t)clips->rows[k] * 4);
    return 0;
}

int train_pack_check_finite(const struct s2s_pack *pack, const struct s2s_media *media,
                            const int64_t *cu, const char *what, struct s2s_error *err)
{
    for (int64_t k = 0; k < media->n; k++) {
        const float *row = media->data + cu[k] * media->width;
        float sum = 0;
        for (int64_t i = 0; i < (cu[k + 1] - cu[k]) * media->width; i++)
            sum += row[i] * 0;
        if (sum != 0) /* 0 * Inf and 0 * NaN are NaN */
            return s2s_error_set(err, S2S_E_RANGE, "%s %lld holds NaN or Inf (samples %.300s)",
                                 what, (long long)k, pack->ids ? pack->ids : "without ids");
    }
    return 0;
}

static int read_embeds(struct s2s_pack *pack, const struct s2s_schema *schema,
                       const struct s2s_safetensors *st, struct s2s_error *err)
{
    struct s2s_media *clips = &pack->batch.media[0];
    const struct s2s_st_tensor *t = s2s_safetensors_find(st, "audio_embeds");
    if (!t || t->n_dims != 2)
        return s2s_error_set(err, S2S_E_NOTFOUND, "no audio_embeds");
    const int64_t n = s2s_st_numel(t);
    float *out = s2s_pack_alloc(pack, n, sizeof *out);
    if (t->dtype == S2S_F32) {
        memcpy(out, t->data, t->len_bytes);
    } else {
        for (int64_t i = 0; i < n; i++) {
            uint16_t bits;
            memcpy(&bits, (const char *)t->data + 2 * i, 2);
            out[i] = s2s_bf16_to_f32(bits);
        }
    }
    clips->data = out;
    clips->width = t->shape[1];
    clips->projected = schema->projected;
    int64_t *cu = s2s_xcalloc((size_t)clips->n + 1, sizeof *cu);
    for (int64_t k = 0; k < clips->n; k++)
        cu[k + 1] = cu[k] + clips->rows[k];
    int rc = train_pack_check_finite(pack, clips, cu, "the embedding of clip", err);
    free(cu);
    return rc;
}

/* The samples of clip k, at the rate of the features; gives: free. */
static int clip_pcm(float **pcm, size_t *n, const struct s2s_schema *schema,
                    const struct s2s_safetensors *st, int64_t k, int rate_hz, struct s2s_error *err)
{
    const bool flac = schema->audio == S2S_AUDIO_FLAC;
    const struct s2s_st_tensor *t = s2s_safetensors_find(st, flac ? "audio_bytes" : "audio_pcm");
    const struct s2s_st_tensor *cu_t =
        s2s_safetensors_find(st, flac ? "audio_cu_bytes" : "audio_cu_samples");
    int64_t cu[2];
    memcpy(cu, (const char *)cu_t->data + k * 8, sizeof cu);
    const char *data = (const char *)t->data + cu[0] * (int64_t)s2s_dtype_size(t->dtype);
    *n = (size_t)(cu[1] - cu[0]);
    if (flac) {
        struct s2s_audio_options opt = S2S_AUDIO_OPTIONS_DEFAULT;
        struct s2s_audio audio = S2S_AUDIO_INIT;
        opt.rate_hz = rate_hz;
        int rc = s2s_audio_decode_bytes(&audio, data, *n, &opt, err);
        *pcm = audio.data;
        *n = audio.n_samples;
        return rc;
    }
    *pcm = s2s_xmalloc((*n + 1) * sizeof **pcm);
    if (t->dtype == S2S_F32) {
        memcpy(*pcm, data, *n * sizeof **pcm);
        return 0;
    }
    int16_t *aligned = s2s_xmalloc((*n + 1) * sizeof *aligned);
    memcpy(aligned, data, *n * sizeof *aligned);
    s2s_audio_from_s16(*pcm, aligned, *n);
    free(aligned);
    return 0;
}

/* For each utterance the key of what is drawn for it, whichever pack it is in. Gives: free. */
static uint64_t *sample_keys(const struct s2s_pack *pack, uint64_t key)
{
    const int64_t n = pack->batch.n_seqs;
    uint64_t *keys = s2s_xcalloc((size_t)n + 1, sizeof *keys);
    json_t *ids = pack->ids ? json_loads(pack->ids, 0, NULL) : NULL;
    for (int64_t s = 0; s < n; s++) {
        char *id = json_dumps(json_array_get(ids, (size_t)s), JSON_ENCODE_ANY | JSON_SORT_KEYS);
        keys[s] = S2S_RNG_KEY(key, id ? s2s_rng_name(id) : (uint64_t)s);
        free(id);
    }
    json_decref(ids);
    return keys;
}

/* For each clip, counted within its utterance. Gives: free. */
static uint64_t *clip_keys(const struct s2s_pack *pack, const uint64_t *keys)
{
    const struct s2s_batch *b = &pack->batch;
    const int64_t n = b->media[0].n;
    uint64_t *own = s2s_xcalloc((size_t)n + 1, sizeof *own);
    for (int64_t k = 0, s = 0, first = 0; k < n; k++) {
        for (; s + 1 < b->n_seqs && pack->clip_slot[k] >= b->cu_seqlens[s + 1]; s++)
            first = k;
        own[k] = S2S_RNG_KEY(keys[s], (uint64_t)(k - first));
    }
    return own;
}

static int compute_mel(struct s2s_pack *pack, struct s2s_pack_reader *reader,
                       const struct s2s_schema *schema, const struct s2s_safetensors *st,
                       const uint64_t *keys, struct s2s_error *err)
{
    struct s2s_media *clips = &pack->batch.media[0];
    const struct s2s_mel_config *config = s2s_mel_config(reader->mel);
    int64_t *cu = s2s_pack_alloc(pack, clips->n + 1, sizeof *cu);
    float *mel = NULL;
    size_t cap = 0;
    int rc = 0;
    cu[0] = 0;
    for (int64_t k = 0; k < clips->n && rc == 0; k++) {
        float *pcm = NULL;
        size_t n;
        if ((rc = clip_pcm(&pcm, &n, schema, st, k, config->rate_hz, err)) < 0)
            break;
        if (reader->dither > 0)
            s2s_audio_dither(pcm, n, reader->dither, keys[k]);
        int64_t frames = s2s_mel_frames(reader->mel, n);
        cu[k + 1] = cu[k] + frames;
        size_t need = (size_t)(cu[k + 1] * config->n_mels);
        if (need > cap)
            mel = s2s_xrealloc(mel, cap = 2 * need, sizeof *mel);
        s2s_mel_compute(reader->mel, reader->work, mel + cu[k] * config->n_mels, pcm, n);
        free(pcm);
    }
    s2s_grow(&pack->blocks, pack->n_blocks, &pack->cap_blocks, sizeof *pack->blocks);
    pack->blocks[pack->n_blocks++] = mel;
    clips->data = mel;
    clips->cu = cu;
    clips->width = config->n_mels;
    return rc;
}

static int read_mel(struct s2s_pack *pack, struct s2s_pack_reader *reader,
                    const struct s2s_schema *schema, const struct s2s_safetensors *st,
                    const uint64_t *keys, struct s2s_error *err)
{
    struct s2s_media *clips = &pack->batch.media[0];
    int rc = 0;
    switch (schema->audio) {
    case S2S_AUDIO_MEL: {
        const struct s2s_st_tensor *t = s2s_safetensors_find(st, "audio_mel");
        clips->data = train_pack_copy(pack, t);
        clips->cu = copy_named(pack, st, "audio_cu_mel");
        clips->width = t->shape[1];
        break;
    }
    case S2S_AUDIO_PCM:
    case S2S_AUDIO_FLAC:
        if (!reader->mel)
            return s2s_error_set(err, S2S_E_UNSUPPORTED, "clips of sound, but no features are set");
        rc = compute_mel(pack, reader, schema, st, keys, err);
        break;
    default:
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%lld clips, but the stream holds no sound",
                           (long long)clips->n);
        return s2s_error_hint(err, rc, "pack with --audio pcm or --audio mel");
    }
    return rc < 0 ? rc : train_pack_check_finite(pack, clips, clips->cu, "the sound of clip", err);
}

void s2s_pack_name(const struct s2s_pack *pack, int64_t seq, struct s2s_buf *id, const char **place)
{
    const char *ids = pack->ids;
    *place = pack->place;
    for (size_t i = 0; i < pack->n_parts; i++) {
        ids = pack->parts[i].ids;
        *place = pack->parts[i].place;
        if (seq < pack->parts[i].n_seqs)
            break;
        seq -= pack->parts[i].n_seqs;
    }
    json_t *list = ids ? json_loads(ids, 0, NULL) : NULL;
    const json_t *name = json_array_get(list, (size_t)seq);
    char *text = json_is_string(name) ? s2s_xstrdup(json_string_value(name))
                                      : json_dumps(name, JSON_ENCODE_ANY | JSON_SORT_KEYS);
    if (text)
        s2s_buf_puts(id, text);
    else
        s2s_buf_printf(id, "sequence %lld", (long long)seq);
    free(text);
    json_decref(list);
}

static void augment(struct s2s_pack *pack, const struct s2s_spec_augment *how, const uint64_t *keys)
{
    const struct s2s_media *mel = &pack->batch.media[0];
    for (int64_t k = 0; mel->data && mel->cu && k < mel->n; k++)
        s2s_spec_augment((float *)mel->data + mel->cu[k] * mel->width, mel->cu[k + 1] - mel->cu[k],
                         (int)mel->width, how, keys[k]);
}

/* What dropout draws by. */
static void keep_draws(struct s2s_pack *pack, const uint64_t *keys, const uint64_t *clips)
{
    enum { SITE_DROPOUT = 0x64726f70 };
    struct s2s_batch *b = &pack->batch;
    struct s2s_media *media = &b->media[0];
    uint64_t *seqs = s2s_pack_alloc(pack, b->n_seqs, sizeof *seqs),
             *own = s2s_pack_alloc(pack, media->n, sizeof *own);
    for (int64_t s = 0; s < b->n_seqs; s++)
        seqs[s] = S2S_RNG_KEY(keys[s], SITE_DROPOUT);
    for (int64_t k = 0; k < media->n; k++)
        own[k] = S2S_RNG_KEY(clips[k], SITE_DROPOUT);
    b->draws = seqs;
    media->draws = own;
}

/*
 * Hides tokens of the answer from the model that is to predict what follows them, so that it cannot
 * lean on the text alone (word dropout: Bowman et al. 2016, "Generating sentences from a
 * continuous space", 3.2). Slot t holds one when slot t - 1 had to predict it.
 */
static void drop_tokens(struct s2s_pack *pack, float share, const uint64_t *keys)
{
    enum { SITE_TOKENS = 0x746f6b656e73 };
    const struct s2s_batch *b = &pack->batch;
    for (int64_t s = 0; s < b->n_seqs; s++) {
        const uint64_t site = S2S_RNG_KEY(keys[s], SITE_TOKENS);
        const int32_t begin = b->cu_seqlens[s];
        for (int32_t t = begin + 1; t < b->cu_seqlens[s + 1]; t++)
            if (b->labels[t - 1] >= 0 && s2s_rng_uniform(site, (uint64_t)(t - begin)) < share)
                ((int32_t *)b->input_ids)[t] = -1;
    }
}

static bool draws(const struct s2s_pack_reader *reader)
{
    return reader->token_dropout > 0 || reader->augment || reader->draws || reader->dither > 0;
}

int s2s_pack_read(struct s2s_pack **out, struct s2s_pack_reader *reader,
                  const struct s2s_schema *schema, const struct s2s_safetensors *st,
                  const char *place, uint64_t key, struct s2s_error *err)
{
    struct s2s_pack *pack = s2s_xcalloc(1, sizeof *pack);
    pack->place = s2s_xstrdup(place);
    pack->ids = copy_meta(st, "ids");
    pack->texts = copy_meta(st, "texts");
    const char *parent = s2s_safetensors_meta(st, "parent");
    pack->parent = parent ? XXH3_64bits(parent, strlen(parent)) : 0;
    int rc = read_slots(pack, schema, st, err);
    uint64_t *keys = NULL, *clips = NULL;
    if (rc == 0 && draws(reader)) {
        keys = sample_keys(pack, key);
        clips = clip_keys(pack, keys);
    }
    if (rc == 0 && reader->draws)
        keep_draws(pack, keys, clips);
    if (rc == 0 && reader->token_dropout > 0)
        drop_tokens(pack, reader->token_dropout, keys);
    if (rc == 0 && pack->batch.media[0].n > 0 && (reader->need_audio || schema->has_embed)) {
        rc = schema->has_embed ? read_embeds(pack, schema, st, err)
                               : read_mel(pack, reader, schema, st, clips, err);
        if (rc == 0 && reader->augment)
            augment(pack, reader->augment, clips);
    }
    free(keys);
    free(clips);
    if (rc < 0) {
        s2s_pack_free(pack);
        return s2s_error_add(err, rc, "%s", place);
    }
    *out = pack;
    return 0;
}

/* ---- joined ---- */

static void join_ids(struct s2s_pack *to, struct s2s_pack *const *packs, size_t n)
{
    struct s2s_batch *b = &to->batch;
    int32_t *ids = s2s_pack_alloc(to, b->n_tokens, 4), *labels = s2s_pack_alloc(to, b->n_tokens, 4),
            *positions = s2s_pack_alloc(to, b->n_tokens, 4),
            *cu = s2s_pack_alloc(to, b->n_seqs + 1, 4), *lens = s2s_pack_alloc(to, b->n_seqs, 4);
    int64_t t = 0, s = 0;
    cu[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const struct s2s_batch *p = &packs[i]->batch;
        size_t bytes = (size_t)p->n_tokens * 4;
        memcpy(ids + t, p->input_ids, bytes);
        memcpy(labels + t, p->labels, bytes);
        memcpy(positions + t, p->position_ids, bytes);
        for (int64_t k = 0; k < p->n_seqs; k++, s++) {
            cu[s + 1] = (int32_t)t + p->cu_seqlens[k + 1];
            lens[s] = p->seq_lens ? p->seq_lens[k] : p->cu_seqlens[k + 1] - p->cu_seqlens[k];
        }
        t += p->n_tokens;
    }
    b->input_ids = ids;
    b->labels = labels;
    b->position_ids = positions;
    b->cu_seqlens = cu;
    b->seq_lens = lens;
}

/* Of all of them or of none. */
static void join_draws(struct s2s_pack *to, struct s2s_pack *const *packs, size_t n)
{
    struct s2s_batch *b = &to->batch;
    if (n == 0 || !packs[0]->batch.draws)
        return;
    uint64_t *seqs = s2s_pack_alloc(to, b->n_seqs, sizeof *seqs),
             *clips = s2s_pack_alloc(to, b->media[0].n, sizeof *clips);
    b->draws = seqs;
    b->media[0].draws = clips;
    for (size_t i = 0; i < n; i++) {
        const struct s2s_batch *from = &packs[i]->batch;
        memcpy(seqs, from->draws, (size_t)from->n_seqs * sizeof *seqs);
        memcpy(clips, from->media[0].draws, (size_t)from->media[0].n * sizeof *clips);
        seqs += from->n_seqs;
        clips += from->media[0].n;
    }
}

/* Rows of features or embeddings of all clips. */
static int64_t n_data_rows(const struct s2s_media *clips)
{
    return clips->cu ? clips->cu[clips->n] : s2s_media_n_rows(clips);
}

static void join_data(struct s2s_pack *to, struct s2s_pack *const *packs, size_t n)
{
    struct s2s_media *all = &to->batch.media[0];
    int64_t n_rows = 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        const struct s2s_media *clips = &packs[i]->batch.media[0];
        if (!clips->data)
            continue;
        n_rows += n_data_rows(clips);
        all->width = clips->width;
        all->projected = clips->projected;
    }
    float *data = s2s_pack_alloc(to, n_rows * all->width, sizeof *data);
    for (size_t i = 0; i < n; i++) {
        const struct s2s_media *clips = &packs[i]->batch.media[0];
        const int64_t len = clips->data ? n_data_rows(clips) * all->width : 0;
        if (len > 0)
            memcpy(data + at, clips->data, (size_t)len * sizeof *data);
        at += len;
    }
    all->data = all->width > 0 ? data : NULL;
}

/* Rows that have no slot (of a pack that is cut over ranks) still have none. */
static void join_rows(struct s2s_pack *to, struct s2s_pack *const *packs, size_t n)
{
    struct s2s_media *all = &to->batch.media[0];
    int32_t *slots = s2s_pack_alloc(to, s2s_media_n_rows(all), sizeof *slots), *at = slots, t = 0;
    for (size_t i = 0; i < n; i++) {
        const struct s2s_media *clips = &packs[i]->batch.media[0];
        const int64_t n_rows = s2s_media_n_rows(clips);
        for (int64_t r = 0; r < n_rows; r++)
            *at++ = clips->slot_of_row[r] < 0 ? -1 : t + clips->slot_of_row[r];
        t += (int32_t)packs[i]->batch.n_tokens;
    }
    all->slot_of_row = slots;
    train_images_count(&to->batch);
}

static void join_clips(struct s2s_pack *to, struct s2s_pack *const *packs, size_t n)
{
    struct s2s_media *all = &to->batch.media[0];
    int32_t *slot = s2s_pack_alloc(to, all->n, 4), *rows = s2s_pack_alloc(to, all->n, 4);
    int64_t *cu = s2s_pack_alloc(to, all->n + 1, 8), n_mel = 0, t = 0, k = 0;
    for (size_t i = 0; i < n; i++) {
        const struct s2s_media *clips = &packs[i]->batch.media[0];
        for (int64_t c = 0; c < clips->n; c++, k++) {
            slot[k] = (int32_t)t + packs[i]->clip_slot[c];
            rows[k] = clips->rows[c];
            cu[k] = n_mel + (clips->cu ? clips->cu[c] : 0);
        }
        n_mel += clips->cu ? clips->cu[clips->n] : 0;
        t += packs[i]->batch.n_tokens;
        all->cu = clips->cu ? cu : all->cu;
    }
    cu[all->n] = n_mel;
    to->clip_slot = slot;
    all->rows = rows;
    join_rows(to, packs, n);
    join_data(to, packs, n);
}

static void keep_parts(struct s2s_pack *to, struct s2s_pack *const *packs, size_t n)
{
    to->parts = s2s_xcalloc(n + 1, sizeof *to->parts);
    to->n_parts = n;
    for (size_t i = 0; i < n; i++)
        to->parts[i] = (struct s2s_pack_part){
            packs[i]->batch.n_seqs, packs[i]->ids ? s2s_xstrdup(packs[i]->ids) : NULL,
            s2s_xstrdup(packs[i]->place ? packs[i]->place : "a pack")};
}

struct s2s_pack *s2s_pack_join(struct s2s_pack *const *packs, size_t n)
{
    struct s2s_pack *to = s2s_xcalloc(1, sizeof *to);
    struct s2s_buf place = S2S_BUF_INIT;
    for (size_t i = 0; i < n; i++) {
        to->batch.n_tokens += packs[i]->batch.n_tokens;
        to->batch.n_seqs += packs[i]->batch.n_seqs;
        to->batch.media[0].n += packs[i]->batch.media[0].n;
        to->parent = 31 * to->parent + packs[i]->parent;
        s2s_buf_printf(&place, "%s%s", i ? ", " : "", packs[i]->place);
    }
    to->place = place.data ? place.data : s2s_xstrdup("nothing");
    keep_parts(to, packs, n);
    join_ids(to, packs, n);
    join_draws(to, packs, n);
    if (to->batch.media[0].n > 0)
        join_clips(to, packs, n);
    train_images_join(to, packs, n);
    pack_count(to);
    to->n_real = 0;
    for (size_t i = 0; i < n; i++)
        to->n_real += packs[i]->n_real;
    return to;
}

/* ---- cut into utterances ---- */

/* Rows of features or embeddings that belong to clip k. */
static const float *clip_rows(const struct s2s_media *clips, int64_t k, int64_t *n_rows)
{
    int64_t begin = 0;
    *n_rows = 0;
    if (!clips->data)
        return NULL;
    if (clips->cu) {
        begin = clips->cu[k];
        *n_rows = clips->cu[k + 1] - begin;
    } else {
        for (int64_t c = 0; c < k; c++)
            begin += clips->rows[c];
        *n_rows = clips->rows[k];
    }
    return clips->data + begin * clips->width;
}

/* Copies slots [from, to) of the source behind those that are there. */
static void add_slots(struct s2s_batch *to, const struct s2s_batch *b, int64_t from, int64_t n)
{
    if (n <= 0)
        return;
    memcpy((int32_t *)to->input_ids + to->n_tokens, b->input_ids + from, (size_t)n * 4);
    memcpy((int32_t *)to->labels + to->n_tokens, b->labels + from, (size_t)n * 4);
    to->n_tokens += n;
}

/* A clip of `frames` slots; only the last one may carry a label. */
static void add_clip(struct s2s_pack *to, int32_t last_label, int64_t frames)
{
    struct s2s_batch *b = &to->batch;
    int64_t k = b->media[0].n++;
    ((int32_t *)to->clip_slot)[k] = (int32_t)b->n_tokens;
    ((int32_t *)b->media[0].rows)[k] = (int32_t)frames;
    for (int64_t i = 0; i < frames; i++) {
        ((int32_t *)b->input_ids)[b->n_tokens] = 0;
        ((int32_t *)b->labels)[b->n_tokens++] = i + 1 < frames ? -100 : last_label;
    }
}

static void add_rows(struct s2s_pack *to, const struct s2s_media *from, int64_t clip, float *rows,
                     int64_t *cu)
{
    int64_t n, k = to->batch.media[0].n - 1;
    const float *src = clip_rows(from, clip, &n);
    if (n > 0)
        memcpy(rows + cu[k] * from->width, src, (size_t)(n * from->width) * sizeof *rows);
    cu[k + 1] = cu[k] + n;
}

/* One sequence, whose positions count from 0. */
static void bound_utterance(struct s2s_pack *to)
{
    struct s2s_batch *u = &to->batch;
    int32_t *positions = s2s_pack_alloc(to, u->n_tokens, 4), *bounds = s2s_pack_alloc(to, 3, 4);
    for (int64_t i = 0; i < u->n_tokens; i++)
        positions[i] = (int32_t)i;
    bounds[0] = 0;
    bounds[1] = bounds[2] = (int32_t)u->n_tokens;
    u->n_seqs = 1;
    u->position_ids = positions;
    u->cu_seqlens = bounds;
    u->seq_lens = bounds + 2;
}

/* The images of the slots [slots[0], slots[1]), behind the clips (first and number) that became
 * those of `sound`, maybe longer or shorter. */
static void move_images(struct s2s_pack *to, const struct s2s_pack *pack, const int64_t slots[2],
                        const int64_t clips[2], const struct s2s_media *sound)
{
    const struct s2s_media *own = &pack->batch.media[0];
    const bool others = sound != own;
    int32_t *moved = s2s_xmalloc((size_t)(slots[1] - slots[0] + 1) * sizeof *moved);
    int64_t k = clips[0], shift = 0;
    for (int64_t t = slots[0]; t < slots[1]; t++) {
        for (; k < clips[0] + clips[1] && t >= pack->clip_slot[k] + own->rows[k]; k++)
            shift += sound->rows[others ? 0 : k] - own->rows[k];
        moved[t - slots[0]] = (int32_t)(t - slots[0] + shift);
    }
    train_images_move(to, pack, slots[0], slots[1], moved);
    free(moved);
}

struct s2s_pack *s2s_pack_utterance(const struct s2s_pack *pack, int64_t seq,
                                    const struct s2s_pack *donor)
{
    const struct s2s_batch *b = &pack->batch;
    const struct s2s_media *own = &b->media[0], *sound = donor ? &donor->batch.media[0] : own;
    if (donor && sound->n == 0)
        return NULL;
    const int64_t begin = b->cu_seqlens[seq],
                  end = begin + (b->seq_lens ? b->seq_lens[seq]
                                             : b->cu_seqlens[seq + 1] - b->cu_seqlens[seq]);
    int64_t first = 0, n_clips = 0, room = end - begin, n_rows = 0, n;
    for (int64_t k = 0; k < own->n; k++) {
        if (pack->clip_slot[k] < begin || pack->clip_slot[k] >= end)
            continue;
        first = n_clips++ ? first : k;
        clip_rows(sound, donor ? 0 : k, &n);
        n_rows += n;
        room += sound->rows[donor ? 0 : k];
    }
    struct s2s_pack *to = s2s_xcalloc(1, sizeof *to);
    struct s2s_batch *u = &to->batch;
    struct s2s_media *clips = &u->media[0];
    u->input_ids = s2s_pack_alloc(to, room, 4);
    u->labels = s2s_pack_alloc(to, room, 4);
    to->clip_slot = s2s_pack_alloc(to, n_clips, 4);
    clips->rows = s2s_pack_alloc(to, n_clips, 4);
    float *rows = s2s_pack_alloc(to, n_rows * sound->width, sizeof *rows);
    int64_t *cu = s2s_pack_alloc(to, n_clips + 1, sizeof *cu), at = begin;
    cu[0] = 0;
    for (int64_t k = first; k < first + n_clips; k++) {
        int64_t slot = pack->clip_slot[k], frames = own->rows[k], from = donor ? 0 : k;
        add_slots(u, b, at, slot - at);
        add_clip(to, frames > 0 ? b->labels[slot + frames - 1] : -100, sound->rows[from]);
        add_rows(to, sound, from, rows, cu);
        at = slot + frames;
    }
    add_slots(u, b, at, end - at);
    clips->data = sound->data ? rows : NULL;
    clips->cu = sound->cu ? cu : NULL;
    clips->width = sound->width;
    clips->projected = sound->projected;
    place_clips(to);
    move_images(to, pack, (const int64_t[]){begin, end}, (const int64_t[]){first, n_clips}, sound);
    bound_utterance(to);
    to->place = pack->batch.n_seqs > 1
                    ? s2s_xasprintf("%s, utterance %lld", pack->place, (long long)seq)
                    : s2s_xstrdup(pack->place);
    pack_count(to);
    return to;
}
