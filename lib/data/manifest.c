/* Parses lines of NeMo manifests. */
#include "lib/data/manifest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/line_json.h"

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
    s2s_sample_answer(sample);
out:
    json_decref(object);
    if (rc < 0)
        s2s_sample_release(sample);
    return rc;
}
