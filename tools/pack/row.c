/* Loads a sample: its line, ids, and audio. */
#include "tools/pack/row.h"

#include <math.h>
#include <sys/stat.h>

#include "lib/data/blend.h"
#include "lib/data/expand.h"
#include "lib/data/shar.h"
#include "lib/data/tar_source.h"
#include "lib/data/webdataset.h"
#include "lib/io/digest.h"
#include "tools/pack/duplex.h"

/* ---- what all rows share ---- */

/* Reads hop and factor from an encoder's folder (config.json, perhaps settings of its features) or
 * from a config file alone. */
static int read_encoder(struct pack_loader *loader, const char *path, struct s2s_error *err)
{
    struct stat st;
    const bool is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    char *config = is_folder ? s2s_xasprintf("%s/config.json", path) : s2s_xstrdup(path);
    json_error_t at;
    int rc = 0;
    json_t *json = json_load_file(config, 0, &at);
    if (!json) {
        bool absent = stat(config, &st) != 0;
        rc = absent ? s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", config)
                    : s2s_error_set(err, S2S_E_FORMAT, "%s:%d: %s", config, at.line, at.text);
        goto out;
    }
    /* a composite keeps the encoder's part under a key */
    const json_t *part = json_object_get(json, "encoder_config");
    const json_t *from = json_is_object(part) ? part : json;
    const json_t *factor = json_object_get(from, "subsampling_factor");
    const json_t *n_mels = json_object_get(from, "num_mel_bins");
    if (!json_is_integer(factor) || json_integer_value(factor) < 1 ||
        json_integer_value(factor) > 1024) {
        rc = s2s_error_set(err, S2S_E_FORMAT,
                           "%s: 'subsampling_factor' is no number from 1 to 1024", config);
        goto out;
    }
    loader->factor = (int)json_integer_value(factor);
    loader->causal = json_is_true(json_object_get(from, "causal_downsampling"));
    if (json_is_integer(n_mels) && json_integer_value(n_mels) >= 1 &&
        json_integer_value(n_mels) <= 1024)
        loader->mel_config.n_mels = (int)json_integer_value(n_mels);
    if (is_folder)
        rc = s2s_mel_config_find(&loader->mel_config, path, err);
    loader->hop = loader->mel_config.hop;
out:
    json_decref(json);
    free(config);
    return rc;
}

static int read_frames(struct pack_loader *loader, const char *text, struct s2s_error *err)
{
    int hop, factor, end = 0;
    loader->mel_config = (struct s2s_mel_config)S2S_MEL_CONFIG_DEFAULT;
    loader->hop = loader->mel_config.hop;
    loader->factor = 8;
    if (!text)
        return 0;
    if (sscanf(text, "%d,%d%n", &hop, &factor, &end) != 2 || text[end])
        return read_encoder(loader, text, err);
    if (hop < 1 || hop > 1 << 20 || factor < 1 || factor > 1024)
        return s2s_error_set(err, S2S_E_ARG, "--encoder-frames %s: HOP,FACTOR is out of range",
                             text);
    loader->hop = loader->mel_config.hop = hop;
    loader->factor = factor;
    return 0;
}

/* The tokenizer's pad, else its unk, else 0. */
static int32_t default_pad(const struct s2s_tokenizer *tok)
{
    static const char *const unknown[] = {"<unk>", "[UNK]", "<|unk|>"};
    if (!tok)
        return 0;
    int32_t pad = s2s_tokenizer_pad(tok);
    for (size_t i = 0; pad < 0 && i < sizeof unknown / sizeof *unknown; i++)
        pad = s2s_tokenizer_id(tok, unknown[i]);
    if (pad < 0)
        s2s_warn("pack", "the tokenizer has neither a pad nor an unk token: --pad-id 0 is used");
    return pad < 0 ? 0 : pad;
}

static int open_text(struct pack_loader *loader, const struct pack_options *opt,
                     struct s2s_error *err)
{
    if (opt->kind == PACK_INPUT_IDS)
        return 0;
    int rc = s2s_tokenizer_open(&loader->tok, opt->tokenizer, err);
    if (rc == 0)
        rc = s2s_prompt_open(&loader->prompt, opt->prompt ? opt->prompt : "plain", loader->tok,
                             NULL, err);
    if (rc == 0)
        loader->salm.audio_id = s2s_prompt_audio_id(loader->prompt);
    return rc;
}

/* Files of lines, or with tars. */
static int open_files(struct pack_loader *loader, const struct pack_options *opt,
                      const struct s2s_source_options *how, struct s2s_error *err)
{
    static const enum s2s_lines_kind kinds[] = {[PACK_INPUT_MANIFEST] = S2S_LINES_NEMO,
                                                [PACK_INPUT_CUTS] = S2S_LINES_CUTS,
                                                [PACK_INPUT_IDS] = S2S_LINES_IDS,
                                                [PACK_INPUT_CONVERSATIONS] = S2S_LINES_CONVERSATION,
                                                [PACK_INPUT_SHARE_GPT] = S2S_LINES_SHARE_GPT,
                                                [PACK_INPUT_SFT] = S2S_LINES_SFT,
                                                [PACK_INPUT_TEXT] = S2S_LINES_TEXT,
                                                [PACK_INPUT_TEXT_JSONL] = S2S_LINES_TEXT_JSONL};
    char **paths = NULL, **tars = NULL;
    size_t n_paths = 0, n_tars = 0;
    int rc = 0;
    if (opt->kind == PACK_INPUT_SHAR) /* expands what is behind FIELD= */
        return s2s_source_open_shar(&loader->source, opt->inputs, opt->n_inputs, how, err);
    for (size_t i = 0; rc == 0 && i < opt->n_inputs; i++)
        rc = s2s_data_expand(&paths, &n_paths, opt->inputs[i], err);
    for (size_t i = 0; rc == 0 && i < opt->n_tars; i++)
        rc = s2s_data_expand(&tars, &n_tars, opt->tars[i], err);
    if (rc == 0 && opt->kind == PACK_INPUT_WEBDATASET)
        rc = s2s_source_open_webdataset(&loader->source, (const char *const *)paths, n_paths, how,
                                        err);
    else if (rc == 0 && n_tars > 0)
        rc = s2s_source_open_tars(&loader->source, kinds[opt->kind], (const char *const *)paths,
                                  n_paths, (const char *const *)tars, n_tars, how, err);
    else if (rc == 0)
        rc = s2s_source_open_lines(&loader->source, kinds[opt->kind], (const char *const *)paths,
                                   n_paths, how, err);
    for (size_t i = 0; i < n_paths; i++)
        free(paths[i]);
    for (size_t i = 0; i < n_tars; i++)
        free(tars[i]);
    free(paths);
    free(tars);
    return rc;
}

static int open_source(struct pack_loader *loader, const struct pack_options *opt,
                       struct s2s_error *err)
{
    struct s2s_blend_options blend = {.source = S2S_SOURCE_OPTIONS_DEFAULT};
    struct s2s_source_options *how = &blend.source;
    how->text_field = opt->text_field;
    how->lang_field = opt->lang_field;
    how->audio_field = opt->audio_field;
    how->said_field = opt->duplex.on ? opt->duplex.target_field : NULL;
    how->pad_id = loader->salm.pad_id;
    how->shuffle = opt->shuffle_shards;
    how->seed = (uint64_t)opt->common.seed;
    how->skip_missing = opt->skip_missing;
    how->window = opt->window;
    const int64_t n_samples = opt->n_packs > 0 ? INT64_MAX : opt->n_samples;
    blend.n_samples = n_samples;
    blend.run_pipes = opt->run_pipes;
    if (opt->kind == PACK_INPUT_CFG)
        return s2s_source_open_input_cfg(&loader->source, opt->inputs[0], &blend, err);
    int rc = open_files(loader, opt, how, err);
    if (rc < 0 || n_samples == 0)
        return rc;
    struct s2s_blend_node *root = s2s_blend_leaf(loader->source);
    root->repeat = true;
    loader->source = s2s_source_open_blend(root, n_samples, NULL, 0);
    return 0;
}

int pack_loader_open(struct pack_loader *loader, const struct pack_options *opt,
                     struct s2s_error *err)
{
    *loader = (struct pack_loader){.kind = opt->kind, .salm = S2S_SALM_OPTIONS_DEFAULT};
    loader->audio = opt->audio >= 0               ? (enum s2s_audio_form)opt->audio
                    : opt->kind == PACK_INPUT_IDS ? S2S_AUDIO_NONE
                                                  : S2S_AUDIO_PCM;
    loader->salm.cp_size = opt->cp_size;
    loader->salm.tp_size = opt->tp_size;
    loader->salm.strict_sp = opt->strict_sp;
    loader->layout = opt->layout;
    loader->duplex = opt->duplex;
    loader->tolerance_s = opt->tolerance_s;
    loader->trust_durations = opt->trust_durations;
    loader->refuses_silence = opt->bad[PACK_FAULT_SILENT] != PACK_KEEP;
    loader->perturb = opt->perturb;
    loader->pad_to_s = opt->pad_to_s;
    loader->seed = (uint64_t)opt->common.seed;
    loader->salm.keep_pad_labels = !opt->drop_pad_labels;
    /* what is tokenized here has no padding */
    loader->salm.no_left_padding = opt->kind != PACK_INPUT_IDS && !opt->drop_pad_labels;
    loader->known = s2s_audio_known_new();
    int rc = s2s_layout_check(&loader->layout, &loader->salm, err);
    if (rc == 0)
        rc = read_frames(loader, opt->encoder_frames, err);
    if (rc == 0)
        rc = open_text(loader, opt, err);
    if (rc == 0 && loader->duplex.on)
        rc = pack_duplex_check(loader, err);
    if (rc == 0 && loader->audio == S2S_AUDIO_PATH && loader->pad_to_s > 0)
        rc = s2s_error_set(err, S2S_E_ARG,
                           "--pad-duration changes sound, of which --audio path stores but a name");
    if (rc == 0 && loader->audio == S2S_AUDIO_MEL)
        rc = s2s_mel_new(&loader->mel, &loader->mel_config, err);
    if (rc == 0)
        loader->salm.pad_id = opt->pad_id >= 0 ? (int32_t)opt->pad_id : default_pad(loader->tok);
    if (rc == 0)
        rc = open_source(loader, opt, err);
    if (rc < 0)
        pack_loader_close(loader);
    return rc;
}

void pack_loader_close(struct pack_loader *loader)
{
    s2s_source_close(loader->source);
    s2s_prompt_free(loader->prompt);
    s2s_tokenizer_free(loader->tok);
    s2s_mel_free(loader->mel);
    s2s_audio_known_free(loader->known);
    *loader = (struct pack_loader){.kind = PACK_INPUT_NONE};
}

/* ---- one row ---- */

/* A difference is worth a word from here on: manifests round. */
#define WORTH_A_WORD_S 0.025

/* A file that a manifest names and that cannot be opened is a bad sample, not a bad command line.
 */
static int bad_sample(int rc, struct s2s_error *err)
{
    if (rc == S2S_E_OPEN)
        rc = err->code = S2S_E_NOTFOUND;
    return rc;
}

static struct s2s_waves_options waves_options(const struct pack_loader *loader)
{
    return (struct s2s_waves_options){loader->tolerance_s, loader->known};
}

#define MAX_TRUSTED_S 1e9 /* more is no duration */

static int info_of(struct pack_clip *clip, const struct pack_loader *loader, struct s2s_error *err)
{
    const struct s2s_sound *sound = clip->sound;
    const struct s2s_waves_options how = waves_options(loader);
    const double declared_s = sound->offset_s + sound->duration_s;
    if (loader->trust_durations && sound->duration_s > 0 && declared_s < MAX_TRUSTED_S) {
        const int rate_hz = loader->mel_config.rate_hz;
        clip->info = (struct s2s_audio_info){rate_hz, 1, llround(declared_s * rate_hz), false};
        return 0;
    }
    if (sound->cut && loader->audio != S2S_AUDIO_PATH) {
        clip->info =
            (struct s2s_audio_info){sound->cut->rate_hz, 1, s2s_cut_n_samples(sound->cut), false};
        return bad_sample(s2s_cut_check(sound->cut, &how, err), err);
    }
    if (!sound->tar && sound->path)
        return bad_sample(s2s_audio_info_file(&clip->info, sound->path, loader->known, err), err);
    if (loader->audio == S2S_AUDIO_PATH) {
        int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s is no file of its own", sound->source);
        return s2s_error_hint(err, rc, "give --audio pcm or mel, or unpack the tar");
    }
    int rc = s2s_sound_read(sound, &clip->bytes, &clip->len_bytes, err);
    if (rc == 0)
        rc = s2s_audio_info_bytes(&clip->info, clip->bytes, clip->len_bytes, err);
    return rc;
}

/* How messages call a clip. */
static const char *name_of(const struct s2s_sound *sound)
{
    return sound->tar || !sound->path ? sound->source : sound->path;
}

/* What is there against what was declared: decoders of MP3 and Opus count their padding each in its
 * own way, so some is forgiven; more means that something is lost. */
static int check_declared(struct pack_clip *clip, const struct pack_loader *loader,
                          struct s2s_error *err)
{
    const struct s2s_sound *s = clip->sound;
    const double file_s = (double)clip->info.n_samples / clip->info.rate_hz;
    const double declared_s = s->offset_s + s->duration_s;
    if (s->has_range && !(s->duration_s > 0))
        return s2s_error_set(err, S2S_E_RANGE, "%s: duration 0 at an offset", name_of(s));
    clip->shorter = file_s < declared_s - WORTH_A_WORD_S;
    clip->longer = !s->has_range && declared_s > 0 && file_s > declared_s + WORTH_A_WORD_S;
    if (file_s >= declared_s - loader->tolerance_s)
        return 0;
    int rc = s2s_error_set(err, S2S_E_TRUNCATED, "%s: %g s long, the manifest says %g s",
                           name_of(s), file_s, declared_s);
    return s2s_error_hint(err, rc, "--duration-tolerance %g takes what is there",
                          ceil(10 * (declared_s - file_s) - 1e-6) / 10);
}

/* A part that lasts about as long as the file is all of it, wherever it begins: as NeMo takes what
 * is in tars. */
static void take_whole(struct pack_clip *clip)
{
    struct s2s_sound *s = clip->sound;
    const double file_s = (double)clip->info.n_samples / clip->info.rate_hz;
    if (fabs(s->duration_s - file_s) >= s->whole_within_s)
        return;
    s->has_range = false;
    s->offset_s = 0;
    s->duration_s = file_s;
    clip->range.offset_s = clip->range.duration_s = 0;
}

static int measure_clip(struct pack_clip *clip, const struct pack_loader *loader,
                        struct s2s_error *err)
{
    const struct s2s_sound *s = clip->sound;
    clip->range.channel = s->channel;
    clip->range.digest = true;
    clip->range.known = loader->known;
    clip->range.tolerance_s = loader->tolerance_s;
    clip->range.fits = s->fits || s->cut;
    if (s->has_range)
        clip->range.offset_s = s->offset_s;
    if (s->has_range || s->cut)
        clip->range.duration_s = s->duration_s;
    int rc = info_of(clip, loader, err);
    if (rc == 0 && clip->sound->whole_within_s > 0)
        take_whole(clip);
    if (rc == 0 && !s->cut)
        rc = check_declared(clip, loader, err);
    if (rc < 0)
        return rc;
    rc = s2s_audio_measure(&clip->n_decoded, &clip->info, &clip->range, err);
    if (rc < 0)
        return s2s_error_add(err, rc, "%s", name_of(s));
    const int64_t least = s2s_audio_n_samples(loader->pad_to_s, clip->range.rate_hz);
    clip->n_samples = clip->n_decoded > least ? clip->n_decoded : least;
    return 0;
}

/* ceil(v / factor): what the stages of stride 2 make of v mel frames, also of v = 0; causal ones
 * one more of an even number. */
static int64_t frames_of(const struct pack_loader *loader, int64_t v)
{
    if (!loader->causal)
        return (v + loader->factor - 1) / loader->factor;
    for (int stage = loader->factor; stage > 1 && v > 0; stage /= 2)
        v = v / 2 + 1;
    return v;
}

/* All n clips of a sample are changed in the same way. */
static int measure_clips(struct pack_row *row, const struct pack_loader *loader, size_t n,
                         uint32_t epoch, struct s2s_error *err)
{
    struct s2s_audio_options range = S2S_AUDIO_OPTIONS_DEFAULT;
    int rc = 0;
    s2s_audio_perturb_draw(&range.change, &loader->perturb, loader->seed, row->sample.id, epoch);
    row->clips = s2s_xcalloc(n + 1, sizeof *row->clips);
    while (rc >= 0 && row->n_clips < n) {
        const size_t k = row->n_clips++;
        struct pack_clip *clip = &row->clips[k];
        clip->sound = s2s_sample_sound(&row->sample, k);
        clip->range = range;
        clip->range.rate_hz = loader->duplex.on && k == PACK_TARGET ? loader->duplex.target_rate_hz
                                                                    : loader->mel_config.rate_hz;
        rc = measure_clip(clip, loader, err);
    }
    return rc < 0 ? rc : 0;
}

static int measure_audio(struct pack_row *row, const struct pack_loader *loader, uint32_t epoch,
                         struct s2s_error *err)
{
    int rc = measure_clips(row, loader, row->rendered.n_audio, epoch, err);
    if (rc < 0)
        return rc;
    row->frames = s2s_xcalloc(row->n_clips + 1, sizeof *row->frames);
    row->thd.clips = row->frames;
    for (size_t k = 0; k < row->n_clips; k++) {
        struct pack_clip *clip = &row->clips[k];
        const int64_t frames = frames_of(loader, clip->n_samples / loader->hop);
        if (frames > INT32_MAX)
            return s2s_error_set(err, S2S_E_RANGE, "%s: too long", name_of(clip->sound));
        row->frames[k] =
            (struct s2s_thd_clip){.pos = row->rendered.audio_pos[k], .frames = (int32_t)frames};
    }
    row->thd.n_clips = row->n_clips;
    return 0;
}

/* Turns of one role that follow each other are one turn of the prompt. */
static size_t join_turns(struct s2s_turn *turns, struct s2s_part *parts,
                         const struct s2s_sample *sample)
{
    size_t n = 0;
    for (size_t i = 0; i < sample->n_turns; i++) {
        const struct s2s_sample_turn *from = &sample->turns[i];
        parts[i] = (struct s2s_part){from->text, from->text ? strlen(from->text) : 0};
        if (n > 0 && !strcmp(turns[n - 1].role, from->role))
            turns[n - 1].n_parts++;
        else
            turns[n++] = (struct s2s_turn){.role = from->role, .parts = &parts[i], .n_parts = 1};
    }
    return n;
}

static int render(struct pack_row *row, const struct pack_loader *loader, uint32_t epoch,
                  struct s2s_error *err)
{
    const struct s2s_sample *s = &row->sample;
    struct s2s_part *parts = s2s_xcalloc(s->n_turns + 1, sizeof *parts);
    struct s2s_turn *turns = s2s_xcalloc(s->n_turns + 1, sizeof *turns);
    const size_t n_turns = join_turns(turns, parts, s);
    int rc = s2s_prompt_render(loader->prompt, &row->rendered, turns, n_turns, false, err);
    free(turns);
    free(parts);
    if (rc < 0)
        return rc;
    row->thd = (struct s2s_thd_row){.id = s->id,
                                    .ids = row->rendered.ids.data,
                                    .loss_mask = row->rendered.loss_mask,
                                    .n_ids = row->rendered.ids.len};
    return measure_audio(row, loader, epoch, err);
}

static int take_ids(struct pack_row *row)
{
    const struct s2s_ids_row *ids = &row->sample.ids;
    row->thd = (struct s2s_thd_row){.id = ids->id,
                                    .ids = ids->ids,
                                    .loss_mask = ids->loss_mask,
                                    .n_ids = ids->n_ids,
                                    .clips = ids->clips,
                                    .n_clips = ids->n_clips};
    return 0;
}

static int take_duplex(struct pack_row *row, const struct pack_loader *loader, uint32_t epoch,
                       struct s2s_error *err)
{
    int rc = pack_duplex_channels(row, loader, err);
    if (rc == 0)
        rc = measure_clips(row, loader, PACK_N_SIDES, epoch, err);
    row->thd.n_clips = row->n_clips;
    return rc;
}

int pack_row_load(struct pack_row *row, const struct pack_loader *loader,
                  const struct s2s_place *place, uint32_t epoch, struct s2s_error *err)
{
    *row = (struct pack_row){.sample = S2S_SAMPLE_INIT, .rendered = S2S_RENDERED_INIT};
    int n = s2s_source_load(loader->source, &row->sample, place, err);
    if (n <= 0)
        return n;
    int rc = loader->duplex.on     ? take_duplex(row, loader, epoch, err)
             : row->sample.has_ids ? take_ids(row)
                                   : render(row, loader, epoch, err);
    if (rc >= 0)
        return n;
    pack_row_release(row);
    return s2s_source_error(rc, loader->source, place, err);
}

static int load_clip(struct s2s_audio *audio, const struct pack_clip *clip,
                     const struct pack_loader *loader, const struct s2s_audio_options *range,
                     struct s2s_error *err)
{
    const struct s2s_sound *s = clip->sound;
    const struct s2s_waves_options how = waves_options(loader);
    if (clip->bytes)
        return s2s_audio_decode_bytes(audio, clip->bytes, clip->len_bytes, range, err);
    if (!s->cut)
        return s2s_audio_decode_file(audio, s->path, range, err);
    int rc = s2s_cut_load(audio, s->cut, &how, err);
    return rc < 0 ? rc : s2s_audio_finish(audio, range, err);
}

static int append_flac(struct s2s_buf *out, struct pack_clip *clip, const struct s2s_audio *audio,
                       struct s2s_error *err)
{
    void *flac = NULL;
    size_t len = 0;
    int rc = s2s_audio_encode(&flac, &len, audio, S2S_AUDIO_FILE_FLAC, err);
    if (rc < 0)
        return rc;
    s2s_buf_add(out, flac, len);
    clip->len = (int64_t)len;
    free(flac);
    return 0;
}

static void append_mel(struct s2s_buf *out, struct pack_clip *clip, const struct s2s_audio *audio,
                       const struct s2s_mel *mel, struct s2s_mel_work *work)
{
    clip->len = s2s_mel_frames(mel, audio->n_samples);
    const size_t len =
        (size_t)clip->len * (size_t)s2s_mel_config(mel)->n_mels * sizeof *audio->data;
    s2s_buf_reserve(out, len);
    s2s_mel_compute(mel, work, (float *)(void *)(out->data + out->len), audio->data,
                    audio->n_samples);
    out->len += len;
}

static void append_pcm(struct s2s_buf *out, struct pack_clip *clip, const struct s2s_audio *audio,
                       bool exact16)
{
    const size_t len = audio->n_samples * (exact16 ? sizeof(int16_t) : sizeof(float));
    clip->len = (int64_t)audio->n_samples;
    s2s_buf_reserve(out, len);
    if (exact16 && !audio->s16)
        s2s_audio_to_s16((int16_t *)(void *)(out->data + out->len), audio->data, audio->n_samples);
    else
        memcpy(out->data + out->len, exact16 ? (void *)audio->s16 : audio->data, len);
    out->len += len;
}

/* The sound with the silence behind it, in memory of its own. Gives. */
static struct s2s_audio padded(const struct s2s_audio *audio, int64_t n_samples)
{
    struct s2s_audio out = *audio;
    const size_t size = audio->s16 ? sizeof *out.s16 : sizeof *out.data;
    void *all = s2s_xcalloc((size_t)n_samples, size);
    memcpy(all, audio->s16 ? (void *)audio->s16 : audio->data, audio->n_samples * size);
    out.s16 = audio->s16 ? all : NULL;
    out.data = audio->s16 ? NULL : all;
    out.is_lent = false;
    out.n_samples = (size_t)n_samples;
    return out;
}

static int append_clip(struct s2s_buf *out, struct pack_clip *clip, const struct s2s_audio *audio,
                       const struct pack_loader *loader, bool exact16, struct pack_worker *worker,
                       struct s2s_error *err)
{
    if (loader->audio == S2S_AUDIO_FLAC)
        return append_flac(out, clip, audio, err);
    if (loader->audio == S2S_AUDIO_MEL)
        append_mel(out, clip, audio, loader->mel, worker->mel);
    else
        append_pcm(out, clip, audio, exact16);
    return 0;
}

/* Is the sound as long as was promised, and heard? */
static int check_decoded(struct pack_clip *clip, const struct s2s_audio *audio,
                         const struct pack_loader *loader, struct s2s_error *err)
{
    if ((int64_t)audio->n_samples != clip->n_decoded)
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "%s: %zu samples were decoded, the header promises %lld",
                             name_of(clip->sound), audio->n_samples, (long long)clip->n_decoded);
    memcpy(clip->xxh3, audio->xxh3, sizeof clip->xxh3);
    clip->is_silent = s2s_audio_is_silent(audio);
    if (clip->is_silent && loader->refuses_silence)
        return s2s_error_set(err, S2S_E_SILENT, "%s: nothing is heard in it", name_of(clip->sound));
    return 0;
}

static int decode_clip(struct s2s_buf *out, struct pack_clip *clip,
                       const struct pack_loader *loader, bool exact16, struct pack_worker *worker,
                       struct s2s_error *err)
{
    struct s2s_audio audio = S2S_AUDIO_INIT;
    struct s2s_audio_options range = clip->range;
    if (loader->audio == S2S_AUDIO_PATH)
        return bad_sample(s2s_digest_file(clip->xxh3, clip->sound->path, err), err);
    range.space = worker->space;
    range.s16 = loader->audio == S2S_AUDIO_PCM && exact16;
    int rc = load_clip(&audio, clip, loader, &range, err);
    if (rc < 0)
        return bad_sample(rc, err);
    rc = check_decoded(clip, &audio, loader, err);
    if (rc == 0 && clip->n_samples > clip->n_decoded) {
        const struct s2s_audio longer = padded(&audio, clip->n_samples);
        s2s_audio_release(&audio);
        audio = longer;
    }
    if (rc == 0)
        rc = append_clip(out, clip, &audio, loader, exact16, worker, err);
    s2s_audio_release(&audio);
    return rc;
}

int pack_row_decode(struct pack_row *row, const struct pack_loader *loader, bool exact16,
                    struct pack_worker *worker, struct s2s_buf *out, struct s2s_error *err)
{
    const size_t len = out->len;
    int rc = 0;
    if (row->sample.has_ids || loader->audio == S2S_AUDIO_NONE)
        return 0;
    for (size_t k = 0; rc == 0 && k < row->thd.n_clips; k++)
        rc = decode_clip(out, &row->clips[k], loader, exact16, worker, err);
    out->len = rc < 0 ? len : out->len;
    return rc;
}

void pack_row_release(struct pack_row *row)
{
    for (size_t k = 0; k < row->n_clips; k++)
        free(row->clips[k].bytes);
    free(row->clips);
    free(row->frames);
    for (int k = 0; k < PACK_N_SIDES; k++)
        free(row->channels[k]);
    s2s_sample_release(&row->sample);
    s2s_rendered_release(&row->rendered);
}

int64_t pack_row_silent(const struct pack_row *row)
{
    int64_t n = 0;
    for (size_t k = 0; k < row->thd.n_clips && row->clips; k++)
        n += row->clips[k].is_silent;
    return n;
}

int64_t pack_row_samples(const struct pack_row *row)
{
    int64_t n = 0;
    if (row->channels[PACK_SOURCE]) /* the other side is as long, and at another rate */
        return row->n_clips > 0 ? row->clips[PACK_SOURCE].n_samples : 0;
    for (size_t k = 0; k < row->n_clips && k < row->thd.n_clips; k++)
        n += row->clips[k].n_samples;
    return n;
}

const char *pack_row_text(const struct pack_row *row)
{
    return row->sample.text;
}
