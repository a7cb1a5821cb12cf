/* Loads a sample: its line, ids, and audio. */
#include "tools/pack/row.h"

#include <math.h>
#include <sys/stat.h>

#include "lib/io/digest.h"

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
    loader->tolerance_s = opt->tolerance_s;
    loader->perturb = opt->perturb;
    loader->seed = (uint64_t)opt->common.seed;
    loader->salm.keep_pad_labels = !opt->drop_pad_labels;
    /* what is tokenized here has no padding */
    loader->salm.no_left_padding = opt->kind != PACK_INPUT_IDS && !opt->drop_pad_labels;
    loader->inputs = s2s_xcalloc(opt->n_inputs + 1, sizeof *loader->inputs);
    loader->known = s2s_audio_known_new();
    int rc = read_frames(loader, opt->encoder_frames, err);
    if (rc == 0)
        rc = open_text(loader, opt, err);
    if (rc == 0 && loader->audio == S2S_AUDIO_MEL)
        rc = s2s_mel_new(&loader->mel, &loader->mel_config, err);
    while (rc == 0 && loader->n_inputs < opt->n_inputs) {
        rc = s2s_lines_open(&loader->inputs[loader->n_inputs], opt->inputs[loader->n_inputs], err);
        loader->n_inputs += rc == 0;
    }
    if (rc == 0)
        loader->salm.pad_id = opt->pad_id >= 0 ? (int32_t)opt->pad_id : default_pad(loader->tok);
    if (rc < 0)
        pack_loader_close(loader);
    return rc;
}

void pack_loader_close(struct pack_loader *loader)
{
    for (size_t i = 0; i < loader->n_inputs; i++)
        s2s_lines_close(&loader->inputs[i]);
    free(loader->inputs);
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

/* What is there against what was declared: decoders of MP3 and Opus count their padding each in its
 * own way, so some is forgiven; more means that something is lost. */
static int check_declared(struct pack_row *row, const struct pack_loader *loader,
                          struct s2s_error *err)
{
    const struct s2s_sample *s = &row->sample;
    const double file_s = (double)row->info.n_samples / row->info.rate_hz;
    const double declared_s = s->offset_s + s->duration_s;
    if (s->has_range && !(s->duration_s > 0))
        return s2s_error_set(err, S2S_E_RANGE, "%s: duration 0 at an offset", s->path);
    row->shorter = file_s < declared_s - WORTH_A_WORD_S;
    row->longer = !s->has_range && declared_s > 0 && file_s > declared_s + WORTH_A_WORD_S;
    if (file_s >= declared_s - loader->tolerance_s)
        return 0;
    int rc = s2s_error_set(err, S2S_E_TRUNCATED, "%s: %g s long, the manifest says %g s", s->path,
                           file_s, declared_s);
    return s2s_error_hint(err, rc, "--duration-tolerance %g takes what is there",
                          ceil(10 * (declared_s - file_s) - 1e-6) / 10);
}

static int measure_audio(struct pack_row *row, const struct pack_loader *loader, uint32_t epoch,
                         struct s2s_error *err)
{
    const struct s2s_sample *s = &row->sample;
    row->range = (struct s2s_audio_options)S2S_AUDIO_OPTIONS_DEFAULT;
    row->range.rate_hz = loader->mel_config.rate_hz;
    row->range.channel = s->channel;
    row->range.digest = true;
    row->range.known = loader->known;
    s2s_audio_perturb_draw(&row->range.change, &loader->perturb, loader->seed, s->id, epoch);
    row->range.tolerance_s = loader->tolerance_s;
    if (s->has_range) {
        row->range.offset_s = s->offset_s;
        row->range.duration_s = s->duration_s;
    }
    int rc = s2s_audio_info_file(&row->info, s->path, loader->known, err);
    if (rc < 0)
        return bad_sample(rc, err);
    if ((rc = check_declared(row, loader, err)) < 0)
        return rc;
    rc = s2s_audio_measure(&row->n_samples, &row->info, &row->range, err);
    if (rc < 0)
        return s2s_error_add(err, rc, "%s", s->path);
    /* ceil(v / factor): what the stages of stride 2 make of v, also of v = 0 */
    int64_t frames = (row->n_samples / loader->hop + loader->factor - 1) / loader->factor;
    if (frames > INT32_MAX)
        return s2s_error_set(err, S2S_E_RANGE, "%s: too long", s->path);
    row->clip = (struct s2s_thd_clip){.pos = row->rendered.audio_pos[0], .frames = (int32_t)frames};
    return 0;
}

static const char *custom_text(const struct s2s_sample *s, const char *key)
{
    return json_string_value(json_object_get(s->custom, key));
}

static int render(struct pack_row *row, const struct pack_loader *loader, uint32_t epoch,
                  struct s2s_error *err)
{
    const struct s2s_sample *s = &row->sample;
    if (!s->text)
        return s2s_error_set(err, S2S_E_FORMAT, "sample '%s' has no text", s->id);
    int rc = s2s_prompt_render_asr(loader->prompt, &row->rendered, custom_text(s, "system_prompt"),
                                   custom_text(s, "context"), s->text, err);
    if (rc < 0)
        return rc;
    row->thd = (struct s2s_thd_row){.id = s->id,
                                    .ids = row->rendered.ids.data,
                                    .loss_mask = row->rendered.loss_mask,
                                    .n_ids = row->rendered.ids.len,
                                    .clips = &row->clip,
                                    .n_clips = 1};
    return measure_audio(row, loader, epoch, err);
}

static int load_ids(struct pack_row *row, const struct pack_loader *loader,
                    const struct s2s_line *line, struct s2s_error *err)
{
    int rc = s2s_data_parse_ids(&row->ids, line, loader->salm.pad_id, err);
    row->thd = (struct s2s_thd_row){.id = row->ids.id,
                                    .ids = row->ids.ids,
                                    .loss_mask = row->ids.loss_mask,
                                    .n_ids = row->ids.n_ids,
                                    .clips = row->ids.clips,
                                    .n_clips = row->ids.n_clips};
    return rc < 0 ? rc : 1;
}

int pack_row_load(struct pack_row *row, const struct pack_loader *loader, uint32_t input,
                  const struct s2s_line *line, int variant, uint32_t epoch, struct s2s_error *err)
{
    const struct s2s_lines *lines = &loader->inputs[input];
    const struct s2s_manifest_options opt = {.path = lines->path};
    *row = (struct pack_row){.sample = S2S_SAMPLE_INIT, .rendered = S2S_RENDERED_INIT};
    int rc, n;
    if (loader->kind == PACK_INPUT_IDS)
        rc = n = load_ids(row, loader, line, err);
    else if (loader->kind == PACK_INPUT_CUTS)
        rc = n = s2s_data_parse_cut(&row->sample, line, &opt, err);
    else
        rc = n = s2s_data_parse_nemo(&row->sample, line, variant, &opt, err);
    if (rc > 0 && loader->kind != PACK_INPUT_IDS)
        rc = render(row, loader, epoch, err);
    if (rc >= 0)
        return n;
    pack_row_release(row);
    return s2s_data_line_error(rc, lines, line, err);
}

int pack_row_decode(struct pack_row *row, const struct pack_loader *loader, struct s2s_error *err)
{
    int rc;
    if (loader->kind == PACK_INPUT_IDS || loader->audio == S2S_AUDIO_NONE)
        return 0;
    if (loader->audio == S2S_AUDIO_PATH)
        return bad_sample(s2s_digest_file(row->xxh3, row->sample.path, err), err);
    if ((rc = s2s_audio_decode_file(&row->audio, row->sample.path, &row->range, err)) < 0)
        return bad_sample(rc, err);
    if ((int64_t)row->audio.n_samples != row->n_samples)
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "%s: %zu samples were decoded, the header promises %lld",
                             row->sample.path, row->audio.n_samples, (long long)row->n_samples);
    memcpy(row->xxh3, row->audio.xxh3, sizeof row->xxh3);
    return 0;
}

void pack_row_release(struct pack_row *row)
{
    s2s_ids_row_release(&row->ids);
    s2s_sample_release(&row->sample);
    s2s_rendered_release(&row->rendered);
    s2s_audio_release(&row->audio);
}

const char *pack_row_text(const struct pack_row *row)
{
    return row->ids.id ? row->ids.text : row->sample.text;
}
