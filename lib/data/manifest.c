/* Parses lines of NeMo manifests and of Lhotse cuts. */
#include "lib/data/manifest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/line_json.h"

/* The transcript as the assistant's turn. */
static void add_answer(struct s2s_sample *sample)
{
    if (sample->text)
        s2s_sample_add(sample, "assistant", s2s_xstrdup(sample->text));
}

/* ---- NeMo ---- */

static int nemo_audio(struct s2s_sample *sample, struct s2s_sound *s, const json_t *object,
                      struct s2s_error *err)
{
    double offset_s = 0;
    int rc = data_get_string(&s->source, object, "audio_filepath", err);
    if (rc >= 0 && (rc == 0 || !*s->source))
        return s2s_error_set(err, S2S_E_FORMAT, "'audio_filepath' is missing");
    if (rc >= 0)
        rc = data_get_number(&s->duration_s, object, "duration", 0, err);
    if (rc == 0)
        return s2s_error_set(err, S2S_E_FORMAT, "'duration' is missing");
    if (rc > 0)
        rc = data_get_int(&s->rate_hz, object, "sampling_rate", 1, err);
    if (rc >= 0)
        rc = data_get_number(&offset_s, object, "offset", 0, err);
    if (rc < 0)
        return rc;
    sample->id = data_stem_of(s->source);
    if (rc > 0) {
        s->has_range = true;
        s->offset_s = offset_s;
        char *id = s2s_xasprintf("%s-%06.0f-%06.0f", sample->id, nearbyint(offset_s * 1e2),
                                 nearbyint(s->duration_s * 1e2));
        free(sample->id);
        sample->id = id;
    }
    return 0;
}

/* Text and language of the line, or of an entry of its alt_text. */
static int nemo_text(struct s2s_sample *s, const json_t *object, int variant,
                     const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    const char *text_key = opt->text_field ? opt->text_field : "text";
    const char *lang_key = opt->lang_field ? opt->lang_field : "lang";
    json_t *alt = json_object_get(object, "alt_text");
    if (alt && !json_is_null(alt) && !json_is_object(alt))
        return s2s_error_set(err, S2S_E_FORMAT, "'alt_text' is no map");
    const int n_variants = 1 + (int)json_object_size(alt);
    if (variant >= n_variants)
        return s2s_error_set(err, S2S_E_RANGE, "'alt_text' has no entry %d", variant);
    if (variant > 0) {
        void *iter = json_object_iter(alt);
        for (int i = 1; i < variant; i++)
            iter = json_object_iter_next(alt, iter);
        object = json_object_iter_value(iter);
        if (!json_is_object(object))
            return s2s_error_set(err, S2S_E_FORMAT, "'alt_text.%s' is no map",
                                 json_object_iter_key(iter));
        text_key = "text";
        lang_key = "lang";
    }
    int rc = data_get_string(&s->text, object, text_key, err);
    if (rc >= 0)
        rc = data_get_string(&s->lang, object, lang_key, err);
    return rc < 0 ? rc : n_variants;
}

static void nemo_custom(struct s2s_sample *s, const json_t *object,
                        const struct s2s_manifest_options *opt)
{
    static const char *const known[] = {"audio_filepath", "duration", "offset",
                                        "sampling_rate",  "_skipme",  "alt_text"};
    s->custom = json_copy((json_t *)object);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        json_object_del(s->custom, known[i]);
    json_object_del(s->custom, opt->text_field ? opt->text_field : "text");
    json_object_del(s->custom, opt->lang_field ? opt->lang_field : "lang");
    if (json_object_size(s->custom) == 0) {
        json_decref(s->custom);
        s->custom = NULL;
    }
}

int s2s_data_parse_nemo(struct s2s_sample *sample, const struct s2s_line *line, int variant,
                        const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    json_t *object = data_load_object(line, err);
    struct s2s_sound *sound;
    if (!object)
        return S2S_E_FORMAT;
    int rc = 0;
    if (data_is_truthy(json_object_get(object, "_skipme")))
        goto out;
    sound = &s2s_sample_add(sample, "user", NULL)->sound;
    rc = nemo_audio(sample, sound, object, err);
    if (rc == 0)
        rc = nemo_text(sample, object, variant, opt, err);
    if (rc < 0)
        goto out;
    nemo_custom(sample, object, opt);
    sound->path = data_resolve(sound->source, opt->path);
    add_answer(sample);
out:
    json_decref(object);
    if (rc < 0)
        s2s_sample_release(sample);
    return rc;
}

/* ---- Lhotse ---- */

static int cut_supervision(struct s2s_sample *s, const json_t *cut, struct s2s_error *err)
{
    const json_t *list = json_object_get(cut, "supervisions");
    if (!list || json_is_null(list) || (json_is_array(list) && json_array_size(list) == 0))
        return 0;
    if (!json_is_array(list))
        return s2s_error_set(err, S2S_E_FORMAT, "'supervisions' is no list");
    if (json_array_size(list) > 1) {
        int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%zu supervisions, at most one expected",
                               json_array_size(list));
        return s2s_error_hint(err, rc, "cut it up with cuts.trim_to_supervisions()");
    }
    const json_t *one = json_array_get(list, 0);
    if (!json_is_object(one))
        return s2s_error_set(err, S2S_E_FORMAT, "'supervisions[0]' is no map");
    int rc = data_get_string(&s->text, one, "text", err);
    if (rc >= 0)
        rc = data_get_string(&s->lang, one, "language", err);
    return rc < 0 ? rc : data_get_string(&s->speaker, one, "speaker", err);
}

/* Nothing but another rate, which the sound gets when it is packed: as Lhotse's resample() leaves
 * it. What was cut off below the rate that speech is packed at would come back. */
static bool only_resamples(const json_t *transforms)
{
    enum { PACKED_HZ = 16000 };
    size_t n = json_array_size(transforms), n_same = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(transforms, i), *args = json_object_get(one, "kwargs");
        const char *name = json_string_value(json_object_get(one, "name"));
        n_same += name && !strcmp(name, "Resample") &&
                  json_number_value(json_object_get(args, "target_sampling_rate")) >= PACKED_HZ;
    }
    return n > 0 && n_same == n;
}

static int cut_recording(struct s2s_sound *s, const json_t *cut, struct s2s_error *err)
{
    const json_t *recording = json_object_get(cut, "recording");
    const json_t *sources = json_object_get(recording, "sources");
    if (!json_is_object(recording))
        return s2s_error_set(err, S2S_E_FORMAT, "'recording' is missing");
    if (!json_is_array(sources) || json_array_size(sources) != 1)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "the recording has %zu sources, one expected",
                             json_array_size(sources));
    const json_t *transforms = json_object_get(recording, "transforms");
    if (data_is_truthy(transforms) && !only_resamples(transforms)) {
        int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                               "the recording has 'transforms' (speed, volume, ..) to be applied");
        return s2s_error_hint(err, rc, "store the changed sound with cuts.save_audios()");
    }
    const json_t *source = json_array_get(sources, 0);
    const char *type = json_string_value(json_object_get(source, "type"));
    if (!type || strcmp(type, "file") != 0)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "the recording's source is of type '%s', 'file' expected",
                             type ? type : "");
    int rc = data_get_string(&s->source, source, "source", err);
    if (rc >= 0 && (rc == 0 || !*s->source))
        return s2s_error_set(err, S2S_E_FORMAT, "'recording.sources[0].source' is missing");
    return rc < 0 ? rc : data_get_int(&s->rate_hz, recording, "sampling_rate", 1, err);
}

static int cut_fields(struct s2s_sample *sample, struct s2s_sound *s, const json_t *cut,
                      struct s2s_error *err)
{
    const char *type = json_string_value(json_object_get(cut, "type"));
    if (type && strcmp(type, "MonoCut") != 0)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "a cut of type '%s', MonoCut expected", type);
    int rc = data_get_string(&sample->id, cut, "id", err);
    if (rc == 0)
        return s2s_error_set(err, S2S_E_FORMAT, "'id' is missing");
    if (rc > 0)
        rc = data_get_number(&s->offset_s, cut, "start", 0, err);
    if (rc >= 0)
        rc = data_get_number(&s->duration_s, cut, "duration", 0, err);
    if (rc == 0)
        return s2s_error_set(err, S2S_E_FORMAT, "'duration' is missing");
    if (rc > 0)
        rc = data_get_int(&s->channel, cut, "channel", 0, err);
    if (rc >= 0)
        rc = cut_recording(s, cut, err);
    s->has_range = true;
    return rc < 0 ? rc : cut_supervision(sample, cut, err);
}

int s2s_data_parse_cut(struct s2s_sample *sample, const struct s2s_line *line,
                       const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    json_t *cut = data_load_object(line, err);
    if (!cut)
        return S2S_E_FORMAT;
    struct s2s_sound *sound = &s2s_sample_add(sample, "user", NULL)->sound;
    int rc = cut_fields(sample, sound, cut, err);
    if (rc < 0) {
        s2s_sample_release(sample);
    } else {
        const json_t *custom = json_object_get(cut, "custom");
        sample->custom = json_is_object(custom) ? json_copy((json_t *)custom) : NULL;
        sound->path = data_resolve(sound->source, opt->path);
        add_answer(sample);
    }
    json_decref(cut);
    return rc < 0 ? rc : 1;
}
