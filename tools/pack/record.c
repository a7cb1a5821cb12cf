/* Makes the tensors of a record from the rows of a pack. */
#include "tools/pack/record.h"

#include "tools/pack/duplex.h"

/* ---- tensors ---- */

void pack_record_add(struct pack_record *r, const char *name, enum s2s_dtype dtype,
                     const void *data, int n_dims, int64_t rows, int64_t width)
{
    struct s2s_st_tensor *t = &r->tensors[r->n_tensors++];
    *t = (struct s2s_st_tensor){
        .name = name, .dtype = dtype, .n_dims = n_dims, .shape = {rows, width}, .data = data};
    t->len_bytes =
        s2s_dtype_size(dtype) * (size_t)(n_dims > 0 ? rows : 1) * (size_t)(n_dims > 1 ? width : 1);
}

static void add_i32(struct pack_record *r, const char *name, const int32_t *data, size_t n)
{
    pack_record_add(r, name, S2S_I32, data, 1, (int64_t)n, 0);
}

static void add_layout(struct pack_record *r)
{
    const struct s2s_salm_pack *p = &r->pack;
    r->num_examples = (int64_t)p->n_seqs;
    add_i32(r, "input_ids", p->input_ids, p->n_slots);
    add_i32(r, "labels", p->labels, p->n_slots);
    if (p->position_ids)
        add_i32(r, "position_ids", p->position_ids, p->n_slots);
    if (p->loss_mask)
        pack_record_add(r, "loss_mask", S2S_U8, p->loss_mask, 1, (int64_t)p->n_slots, 0);
    if (p->cu_seqlens_padded)
        add_i32(r, "cu_seqlens_padded", p->cu_seqlens_padded, p->n_seqs + 1);
    add_i32(r, "seq_lens", p->seq_lens, p->n_seqs);
    add_i32(r, "seq_lens_padded", p->seq_lens_padded, p->n_seqs);
    add_i32(r, "cu_seqlens", p->cu_seqlens, p->n_seqs + 1);
    add_i32(r, "audio_slot", p->audio_slot, p->n_clips);
    add_i32(r, "audio_frames", p->audio_frames, p->n_clips);
    pack_record_add(r, "max_seqlen", S2S_I32, &p->max_seqlen, 0, 0, 0);
    pack_record_add(r, "num_tokens", S2S_I64, &p->num_tokens, 0, 0, 0);
    pack_record_add(r, "num_examples", S2S_I64, &r->num_examples, 0, 0, 0);
}

/* ---- clips: those of the rows, one behind the other ---- */

/* Clip k of the row, or NULL behind the last one. */
static const struct pack_clip *clip_of(const struct pack_row *row, size_t k)
{
    return k < row->n_clips && k < row->thd.n_clips ? &row->clips[k] : NULL;
}

static void add_audio(struct pack_record *r, const struct pack_row *rows, size_t n_rows,
                      const struct pack_loader *loader, bool exact16)
{
    const struct pack_clip *clip;
    const void *data = r->audio.len ? r->audio.data : "";
    size_t at = 0;
    if (loader->audio == S2S_AUDIO_NONE || loader->audio == S2S_AUDIO_PATH)
        return;
    r->cu_audio = s2s_xcalloc(r->pack.n_clips + 1, sizeof *r->cu_audio);
    for (size_t i = 0; i < n_rows; i++)
        for (size_t k = 0; (clip = clip_of(&rows[i], k)); k++) {
            r->cu_audio[at + 1] = r->cu_audio[at] + clip->len;
            at++;
        }
    const int64_t n = r->cu_audio[r->pack.n_clips];
    const char *cu = "audio_cu_samples";
    if (loader->audio == S2S_AUDIO_MEL) {
        pack_record_add(r, "audio_mel", S2S_F32, data, 2, n, loader->mel_config.n_mels);
        cu = "audio_cu_mel";
    } else if (loader->audio == S2S_AUDIO_FLAC) {
        pack_record_add(r, "audio_bytes", S2S_U8, data, 1, n, 0);
        cu = "audio_cu_bytes";
    } else {
        pack_record_add(r, "audio_pcm", exact16 ? S2S_I16 : S2S_F32, data, 1, n, 0);
    }
    pack_record_add(r, cu, S2S_I64, r->cu_audio, 1, (int64_t)r->pack.n_clips + 1, 0);
}

/* ---- metadata ---- */

static void add_meta(struct pack_record *r, const char *key, json_t *list)
{
    char *text = json_dumps(list, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(list);
    if (!text)
        S2S_BUG("'%s' cannot be written as JSON", key);
    r->meta_text[r->n_meta] = text;
    r->meta[r->n_meta++] = (struct s2s_st_meta){key, text};
}

static void describe_change(json_t *clip, const struct s2s_audio_change *change)
{
    const struct {
        const char *name;
        double value, none;
    } parts[] = {{"speed", change->speed, 1},
                 {"tempo", change->tempo, 1},
                 {"pitch", change->pitch, 0},
                 {"volume", change->volume, 1}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].value != 0 && parts[i].value != parts[i].none)
            json_object_set_new(clip, parts[i].name, json_real(parts[i].value));
}

/* Where a clip's sound is from: by the name of the manifest, for `path` by one that can be opened.
 */
static json_t *describe_clip(const struct pack_clip *from, const struct pack_loader *loader)
{
    const struct s2s_sound *s = from->sound;
    json_t *clip = json_object();
    double duration_s =
        s->has_range ? s->duration_s : (double)from->info.n_samples / from->info.rate_hz;
    json_object_set_new(clip, "source",
                        json_string(loader->audio == S2S_AUDIO_PATH ? s->path : s->source));
    json_object_set_new(clip, "offset", json_real(s->offset_s));
    json_object_set_new(clip, "duration", json_real(duration_s));
    describe_change(clip, &from->range.change);
    if (from->xxh3[0])
        json_object_set_new(clip, "xxh3", json_string(from->xxh3));
    return clip;
}

static void add_metadata(struct pack_record *r, const struct pack_row *rows, size_t n_rows,
                         const struct pack_loader *loader)
{
    json_t *ids = json_array(), *texts = json_array(), *clips = json_array();
    bool has_text = false;
    for (size_t i = 0; i < n_rows; i++) {
        const char *text = pack_row_text(&rows[i]);
        json_array_append_new(ids, json_string(rows[i].thd.id));
        json_array_append_new(texts, text ? json_string(text) : json_null());
        has_text = has_text || text;
        for (size_t k = 0; clip_of(&rows[i], k); k++)
            json_array_append_new(clips, describe_clip(clip_of(&rows[i], k), loader));
    }
    add_meta(r, "ids", ids);
    if (has_text)
        add_meta(r, "texts", texts);
    else
        json_decref(texts);
    if (loader->kind != PACK_INPUT_IDS)
        add_meta(r, "audio", clips);
    else
        json_decref(clips);
    r->meta[r->n_meta++] = (struct s2s_st_meta){"qkv_format", "thd"};
}

/* ---- the record ---- */

int pack_record_make(struct pack_record *r, const struct pack_row *rows, size_t n_rows,
                     const struct pack_loader *loader, bool exact16, struct s2s_error *err)
{
    if (loader->duplex.on) {
        pack_duplex_record(r, rows, loader, exact16); /* which are one */
        return 0;
    }
    struct s2s_thd_row *thd = s2s_xcalloc(n_rows + 1, sizeof *thd);
    for (size_t i = 0; i < n_rows; i++)
        thd[i] = rows[i].thd;
    int rc = s2s_layout_pack(&r->pack, thd, n_rows, &loader->layout, &loader->salm, err);
    free(thd);
    if (rc < 0)
        return rc;
    add_layout(r);
    add_audio(r, rows, n_rows, loader, exact16);
    add_metadata(r, rows, n_rows, loader);
    return 0;
}

void pack_record_release(struct pack_record *r)
{
    s2s_salm_pack_release(&r->pack);
    free(r->cu_audio);
    for (int k = 0; k < PACK_N_SIDES; k++)
        free(r->channels[k]);
    for (size_t i = 0; i < r->n_meta; i++)
        free(r->meta_text[i]);
    *r = (struct pack_record){.audio = r->audio};
}
