/* Makes records of duplex speech, as NeMo's DuplexS2SDataset makes its items. */
#include "tools/pack/duplex.h"

static struct s2s_duplex_options options_of(const struct pack_loader *loader)
{
    return (struct s2s_duplex_options){.frame_s = loader->duplex.frame_s,
                                       .rate_hz = loader->duplex.target_rate_hz,
                                       .bos = s2s_tokenizer_bos(loader->tok),
                                       .eos = s2s_tokenizer_eos(loader->tok),
                                       .pad = loader->salm.pad_id,
                                       .drop_overrun = loader->duplex.drop_overrun};
}

int pack_duplex_check(const struct pack_loader *loader, struct s2s_error *err)
{
    if (s2s_tokenizer_bos(loader->tok) >= 0 && s2s_tokenizer_eos(loader->tok) >= 0)
        return 0;
    return s2s_error_set(err, S2S_E_ARG, "--layout duplex needs a tokenizer with bos and eos");
}

/* ---- text ---- */

static bool is_in(const char *roles, const char *speaker)
{
    const size_t len = speaker ? strlen(speaker) : 0;
    while (len > 0 && *roles) {
        const size_t n = strcspn(roles, ",");
        if (n == len && !memcmp(roles, speaker, n))
            return true;
        roles += n + (roles[n] == ',');
    }
    return false;
}

/* What the supervisions of some speakers say, as turns of ids in one array. */
struct said {
    struct s2s_duplex_turn *turns; /* [n] */
    size_t *first;                 /* [n + 1] id of each, of ids */
    size_t n;
    struct s2s_ids ids;
    struct s2s_buf text; /* all with a space between them */
};

static int collect(struct said *to, const struct s2s_sample *sample, const char *roles,
                   const struct pack_loader *loader, struct s2s_error *err)
{
    int rc = 0;
    to->turns = s2s_xcalloc(sample->n_said + 1, sizeof *to->turns);
    to->first = s2s_xcalloc(sample->n_said + 1, sizeof *to->first);
    for (size_t i = 0; rc == 0 && i < sample->n_said; i++) {
        const struct s2s_said *said = &sample->said[i];
        struct s2s_buf text = S2S_BUF_INIT;
        if (!is_in(roles, said->speaker))
            continue;
        if (!said->text)
            return s2s_error_set(err, S2S_E_FORMAT, "supervision %zu, of '%s', has no text", i,
                                 said->speaker);
        s2s_data_clean_text(&text, said->text);
        rc = s2s_tokenizer_encode(loader->tok, &to->ids, text.data ? text.data : "", text.len,
                                  false, err);
        if (to->n > 0)
            s2s_buf_putc(&to->text, ' ');
        s2s_buf_add(&to->text, text.data ? text.data : "", text.len);
        s2s_buf_release(&text);
        to->turns[to->n++] = (struct s2s_duplex_turn){said->start_s, said->end_s, NULL, 0};
        to->first[to->n] = to->ids.len;
    }
    for (size_t i = 0; i < to->n; i++) {
        to->turns[i].ids = to->ids.data + to->first[i];
        to->turns[i].n_ids = to->first[i + 1] - to->first[i];
    }
    return rc;
}

static void release(struct said *said)
{
    free(said->turns);
    free(said->first);
    s2s_ids_release(&said->ids);
    s2s_buf_release(&said->text);
}

static int make_channel(struct pack_row *row, int which, const char *roles,
                        const struct pack_loader *loader, struct s2s_error *err)
{
    const struct s2s_duplex_options how = options_of(loader);
    struct said said = {.text = S2S_BUF_INIT};
    int rc = collect(&said, &row->sample, roles, loader, err);
    if (rc == 0) {
        row->channels[which] = s2s_xcalloc((size_t)row->n_frames + 1, sizeof(int32_t));
        s2s_duplex_channel(row->channels[which], row->n_frames, said.turns, said.n, &how,
                           &row->turns);
        row->thd.n_ids += said.ids.len;
    }
    if (rc == 0 && which == PACK_TARGET)
        row->sample.text = s2s_xstrdup(said.text.data ? said.text.data : "");
    release(&said);
    return rc;
}

int pack_duplex_channels(struct pack_row *row, const struct pack_loader *loader,
                         struct s2s_error *err)
{
    const struct s2s_duplex_options how = options_of(loader);
    if (!row->sample.is_duplex)
        return s2s_error_set(err, S2S_E_FORMAT, "is no cut, which --layout duplex takes alone");
    row->thd = (struct s2s_thd_row){.id = row->sample.id};
    row->n_frames = s2s_duplex_frames(row->sample.duration_s, &how);
    if (row->n_frames < 1 || row->n_frames > INT32_MAX)
        return s2s_error_set(err, S2S_E_RANGE, "%g s are %lld frames", row->sample.duration_s,
                             (long long)row->n_frames);
    int rc = make_channel(row, PACK_SOURCE, loader->duplex.input_roles, loader, err);
    return rc < 0 ? rc : make_channel(row, PACK_TARGET, loader->duplex.output_roles, loader, err);
}

/* ---- the record ---- */

static void add_text(struct pack_record *r, const char *key, char *text)
{
    r->meta_text[r->n_meta] = text;
    r->meta[r->n_meta++] = (struct s2s_st_meta){key, text};
}

void pack_duplex_record(struct pack_record *r, const struct pack_row *row,
                        const struct pack_loader *loader, bool exact16)
{
    static const char *const pcm_names[] = {"source_pcm", "target_pcm"};
    static const char *const token_names[] = {"source_tokens", "target_tokens"};
    const enum s2s_dtype dtype = exact16 ? S2S_I16 : S2S_F32;
    const char *pcm = r->audio.len ? r->audio.data : "";
    for (int k = 0; k < PACK_N_SIDES; k++) {
        const size_t n_bytes = (size_t)row->n_frames * sizeof(int32_t);
        r->channels[k] = s2s_xmalloc(n_bytes);
        memcpy(r->channels[k], row->channels[k], n_bytes);
        pack_record_add(r, pcm_names[k], dtype, pcm, 1, row->clips[k].len, 0);
        pcm += row->clips[k].len * (int64_t)s2s_dtype_size(dtype);
        pack_record_add(r, token_names[k], S2S_I32, r->channels[k], 1, row->n_frames, 0);
    }
    add_text(r, "id", s2s_xstrdup(row->sample.id));
    add_text(r, "text", s2s_xstrdup(row->sample.text));
    add_text(r, "duration", s2s_xasprintf("%.12g", row->sample.duration_s));
    add_text(r, "source", s2s_xstrdup(row->clips[PACK_SOURCE].sound->source));
    /* what is counted of packs */
    r->pack.n_slots = (size_t)row->n_frames;
    r->pack.n_seqs = 1;
    r->pack.num_tokens = row->n_frames;
    r->pack.seq_lens = s2s_xcalloc(1, sizeof *r->pack.seq_lens);
    r->pack.seq_lens[0] = (int32_t)row->n_frames;
}

json_t *pack_duplex_config(const struct pack_loader *loader)
{
    const struct s2s_duplex_options how = options_of(loader);
    return json_pack("{s:f, s:i, s:i, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:s}", "frame_length",
                     how.frame_s, "source_sampling_rate", loader->mel_config.rate_hz,
                     "target_sampling_rate", how.rate_hz, "target_field",
                     loader->duplex.target_field, "input_roles", loader->duplex.input_roles,
                     "output_roles", loader->duplex.output_roles, "overrun",
                     how.drop_overrun ? "drop" : "keep", "bos", how.bos, "eos", how.eos, "pad_id",
                     how.pad, "tokenizer", s2s_tokenizer_digest(loader->tok));
}
