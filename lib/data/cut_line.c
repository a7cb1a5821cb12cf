/* Makes samples of lines of Lhotse's CutSets. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/cut.h"
#include "lib/data/line_json.h"
#include "lib/data/manifest.h"

/* The sound as it lies in a file, of which the cut is a part. */
static void take_plain(struct s2s_sound *sound, struct s2s_sound *from, int channel,
                       const struct s2s_cut *cut)
{
    const struct s2s_track *track = &cut->tracks[0];
    *sound = *from;
    *from = (struct s2s_sound)S2S_SOUND_INIT;
    sound->has_range = true;
    sound->offset_s = track->start_s;
    sound->duration_s = track->duration_s;
    sound->rate_hz = track->rate_hz;
    sound->channel = channel;
    sound->fits = true;
}

/* The first file, to say where the sound is from. */
static const char *name_of(const struct s2s_cut *cut)
{
    for (size_t i = 0; i < cut->n_tracks; i++)
        if (cut->tracks[i].recording && cut->tracks[i].recording->sources[0].sound.source)
            return cut->tracks[i].recording->sources[0].sound.source;
    return "";
}

void s2s_sound_take_cut(struct s2s_sound *sound, struct s2s_cut *cut)
{
    int channel = -1;
    struct s2s_sound *plain = s2s_cut_plain(cut, &channel);
    if (plain && (plain->path || plain->bytes)) {
        take_plain(sound, plain, channel, cut);
        s2s_cut_free(cut);
        return;
    }
    sound->source = s2s_xstrdup(name_of(cut));
    sound->duration_s = cut->duration_s;
    sound->rate_hz = cut->rate_hz;
    sound->offset_s = cut->is_mixed ? 0 : cut->tracks[0].start_s;
    sound->cut = cut;
}

int s2s_sample_of_cut(struct s2s_sample *sample, const json_t *json, struct s2s_cut *cut,
                      struct s2s_error *err)
{
    struct s2s_cut_words words;
    int rc = s2s_cut_words(&words, json, err);
    if (rc < 0) {
        s2s_cut_free(cut);
        return rc;
    }
    sample->id = s2s_xstrdup(cut->id);
    sample->text = words.text;
    sample->lang = words.lang;
    sample->speaker = words.speaker;
    sample->custom = s2s_cut_custom(json);
    s2s_sound_take_cut(&s2s_sample_add(sample, "user", NULL)->sound, cut);
    s2s_sample_answer(sample);
    return 1;
}

int s2s_sample_of_duplex(struct s2s_sample *sample, const json_t *json, struct s2s_cut *heard,
                         struct s2s_cut *said, struct s2s_error *err)
{
    sample->id = s2s_xstrdup(heard->id);
    sample->custom = s2s_cut_custom(json);
    sample->is_duplex = true;
    sample->duration_s = heard->duration_s;
    s2s_sound_take_cut(&s2s_sample_add(sample, "user", NULL)->sound, heard);
    s2s_sound_take_cut(&s2s_sample_add(sample, "assistant", NULL)->sound, said);
    int rc = s2s_cut_said(sample, json, err);
    return rc < 0 ? rc : 1;
}

static int make_duplex(struct s2s_sample *sample, const json_t *json, struct s2s_cut *heard,
                       const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    struct s2s_cut *said;
    int rc = s2s_cut_parse(&said, json, opt->said_field, opt->path, err);
    if (rc == 0)
        return s2s_sample_of_duplex(sample, json, heard, said, err);
    s2s_cut_free(heard);
    return rc;
}

int s2s_data_parse_cut(struct s2s_sample *sample, const struct s2s_line *line,
                       const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    struct s2s_cut *cut;
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    json_t *json = data_load_object(line, err);
    if (!json)
        return S2S_E_FORMAT;
    int rc = s2s_cut_parse(&cut, json, opt->audio_field, opt->path, err);
    if (rc == 0 && opt->said_field)
        rc = make_duplex(sample, json, cut, opt, err);
    else if (rc == 0)
        rc = s2s_sample_of_cut(sample, json, cut, err);
    json_decref(json);
    if (rc < 0)
        s2s_sample_release(sample);
    return rc;
}

static bool is_one_of(const char *word, const char *const *words)
{
    while (*words && strcmp(*words, word) != 0)
        words++;
    return *words;
}

/* The part of the cut that a supervision covers, as a turn of sound. */
static int add_part(struct s2s_sample *sample, const json_t *json, const struct s2s_said *said,
                    const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    const double start_s = json_number_value(json_object_get(json, "start"));
    const double duration_s = json_number_value(json_object_get(json, "duration"));
    const double end_s = said->end_s < duration_s ? said->end_s : duration_s;
    struct s2s_cut *cut;
    json_t *part = json_copy((json_t *)json);
    json_object_set_new(part, "start", json_real(start_s + said->start_s));
    json_object_set_new(part, "duration", json_real(end_s - said->start_s));
    int rc = s2s_cut_parse(&cut, part, opt->audio_field, opt->path, err);
    json_decref(part);
    if (rc == 0)
        s2s_sound_take_cut(&s2s_sample_add(sample, "user", NULL)->sound, cut);
    return rc;
}

/* 1; 0: the speaker has no role. */
static int add_turn(struct s2s_sample *sample, const json_t *json, const struct s2s_said *said,
                    const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    static const char *const heard[] = {"user", "User", NULL};
    static const char *const answers[] = {"assistant", "Assistant", "agent", "Agent", NULL};
    const char *speaker = said->speaker ? said->speaker : "";
    struct s2s_buf text = S2S_BUF_INIT;
    if (is_one_of(speaker, heard)) {
        int rc = add_part(sample, json, said, opt, err);
        return rc < 0 ? rc : 1;
    }
    if (!is_one_of(speaker, answers)) {
        s2s_warn("data", "cut '%s' is left out: speaker '%s' is neither user nor agent", sample->id,
                 speaker);
        return 0;
    }
    if (!said->text)
        return s2s_error_set(err, S2S_E_FORMAT, "a turn of '%s' has no text", speaker);
    s2s_data_clean_text(&text, said->text);
    free(sample->text);
    sample->text = s2s_xstrdup(text.data ? text.data : "");
    s2s_sample_add(sample, "assistant", s2s_xstrdup(sample->text));
    s2s_buf_release(&text);
    return 1;
}

static int make_turns(struct s2s_sample *sample, const json_t *json,
                      const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    if (type && !strcmp(type, "MixedCut"))
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "turns of a MixedCut");
    int rc = data_get_string(&sample->id, json, "id", err);
    if (rc == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "'id' is missing");
    if (rc > 0)
        rc = s2s_cut_said(sample, json, err);
    sample->custom = s2s_cut_custom(json);
    for (size_t i = 0; rc >= 0 && i < sample->n_said; i++) {
        rc = add_turn(sample, json, &sample->said[i], opt, err);
        if (rc == 0)
            return 0;
    }
    if (rc >= 0 && !sample->text)
        rc = s2s_error_set(err, S2S_E_FORMAT, "sample '%s' has no turn of the assistant",
                           sample->id);
    return rc < 0 ? rc : 1;
}

int s2s_data_parse_turns(struct s2s_sample *sample, const struct s2s_line *line,
                         const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    json_t *json = data_load_object(line, err);
    if (!json)
        return S2S_E_FORMAT;
    int rc = make_turns(sample, json, opt, err);
    json_decref(json);
    if (rc <= 0)
        s2s_sample_release(sample);
    return rc;
}
