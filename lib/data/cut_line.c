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

int s2s_data_parse_cut(struct s2s_sample *sample, const struct s2s_line *line, int variant,
                       const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    struct s2s_cut *cut;
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    json_t *json = data_load_object(line, err);
    if (!json)
        return S2S_E_FORMAT;
    const int n = opt->said_field ? 1 : data_window_cut(json, &opt->window, variant, err);
    int rc = n < 0 ? n : s2s_cut_parse(&cut, json, opt->audio_field, opt->path, err);
    if (rc == 0 && opt->said_field)
        rc = make_duplex(sample, json, cut, opt, err);
    else if (rc == 0)
        rc = s2s_sample_of_cut(sample, json, cut, err);
    json_decref(json);
    if (rc < 0)
        s2s_sample_release(sample);
    return rc < 0 ? rc : n;
}
