/* Parses lines of NeMo manifests. */
#include "lib/data/manifest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/flat_json.h"
#include "lib/data/line_json.h"

/* The range that an offset begins, and the id with it. */
static void take_range(struct s2s_sample *sample, struct s2s_sound *s, double offset_s)
{
    s->has_range = true;
    s->offset_s = offset_s;
    char *id = s2s_xasprintf("%s-%06.0f-%06.0f", sample->id, nearbyint(offset_s * 1e2),
                             nearbyint(s->duration_s * 1e2));
    s2s_sample_free(sample, sample->id);
    sample->id = id;
}

/* Reads the line's sound, or the window of it that the variant is. Returns how many windows it has.
 */
static int nemo_audio(struct s2s_sample *sample, struct s2s_sound *s, const json_t *object,
                      const struct s2s_window *window, int variant, struct s2s_error *err)
{
    double offset_s = 0;
    int n_windows;
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
    n_windows = data_window_count(window, s->duration_s, err);
    if (n_windows < 0)
        return n_windows;
    const bool is_part = data_window_part(window, variant % n_windows, &offset_s, &s->duration_s);
    if (rc > 0 || is_part)
        take_range(sample, s, offset_s);
    const json_t *channel = json_object_get(object, "channel");
    if (!json_is_integer(channel)) /* a word is some other's key, and stays in `custom` */
        return n_windows;
    if (json_integer_value(channel) < 0 || json_integer_value(channel) > INT32_MAX)
        return s2s_error_set(err, S2S_E_RANGE, "'channel' is no number from 0 on");
    s->channel = (int)json_integer_value(channel);
    return n_windows;
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
    if (json_is_integer(json_object_get(s->custom, "channel")))
        json_object_del(s->custom, "channel");
    json_object_del(s->custom, opt->text_field ? opt->text_field : "text");
    json_object_del(s->custom, opt->lang_field ? opt->lang_field : "lang");
    if (json_object_size(s->custom) == 0) {
        json_decref(s->custom);
        s->custom = NULL;
    }
}

/* Adds a value to the keys that are kept. */
static void keep_flat(struct s2s_sample *s, const struct data_flat *v)
{
    json_t *value = v->kind == DATA_FLAT_STRING ? json_stringn_nocheck(v->text, v->text_len)
                    : v->kind == DATA_FLAT_INT  ? json_integer(v->whole)
                    : v->kind == DATA_FLAT_REAL ? json_real(v->real)
                    : v->kind == DATA_FLAT_BOOL ? json_boolean(v->whole)
                                                : json_null();
    s->custom = s->custom ? s->custom : json_object();
    json_object_set_new_nocheck(s->custom, v->key, value);
}

static bool is_key(const struct data_flat *v, const char *key, size_t len)
{
    return v->key_len == len && !memcmp(v->key, key, len);
}

enum { NEMO_SOURCE, NEMO_DURATION, NEMO_TEXT, NEMO_LANG, NEMO_OFFSET, NEMO_RATE, N_NEMO_KEYS };

/* Is each value that has a meaning there as it should be, or not there at all? */
static bool are_plain(const struct data_flat *const found[N_NEMO_KEYS])
{
    static const bool is_text[N_NEMO_KEYS] = {
        [NEMO_SOURCE] = true, [NEMO_TEXT] = true, [NEMO_LANG] = true};
    for (int k = 0; k < N_NEMO_KEYS; k++) {
        const struct data_flat *v = found[k];
        if (!v)
            continue;
        if (is_text[k] ? v->kind != DATA_FLAT_STRING
                       : (v->kind != DATA_FLAT_INT && v->kind != DATA_FLAT_REAL) || !(v->real >= 0))
            return false;
    }
    const struct data_flat *rate = found[NEMO_RATE];
    return found[NEMO_SOURCE] && *found[NEMO_SOURCE]->text && found[NEMO_DURATION] &&
           (!rate || (rate->kind == DATA_FLAT_INT && rate->whole > 0 && rate->whole <= INT32_MAX));
}

/* Copies len bytes to where *room begins, and a NUL. */
static char *put_text(char **room, const char *text, size_t len)
{
    char *copy = *room;
    memcpy(copy, text, len);
    copy[len] = 0;
    *room += len + 1;
    return copy;
}

/* The turns and texts of a plain line in one block; a text that is two things is there once. */
static void fill_plain(struct s2s_sample *sample, const struct data_flat *const found[N_NEMO_KEYS],
                       const struct s2s_manifest_options *opt)
{
    const struct data_flat *source = found[NEMO_SOURCE], *text = found[NEMO_TEXT],
                           *lang = found[NEMO_LANG];
    size_t stem_len;
    const char *stem = data_stem_find(source->text, source->text_len, &stem_len);
    sample->cap_turns = 2;
    sample->block_bytes = sample->cap_turns * sizeof *sample->turns + source->text_len + 1 +
                          stem_len + 1 + (text ? text->text_len + 1 : 0) +
                          (lang ? lang->text_len + 1 : 0);
    sample->block = s2s_xmalloc(sample->block_bytes);
    sample->turns = (struct s2s_sample_turn *)(void *)sample->block;
    char *room = sample->block + sample->cap_turns * sizeof *sample->turns;
    struct s2s_sound *sound = &s2s_sample_add(sample, "user", NULL)->sound;
    sound->source = put_text(&room, source->text, source->text_len);
    sound->path = data_is_resolved(sound->source, opt->path)
                      ? sound->source
                      : data_resolve(sound->source, opt->path);
    sample->id = put_text(&room, stem, stem_len);
    sample->text = text ? put_text(&room, text->text, text->text_len) : NULL;
    sample->lang = lang ? put_text(&room, lang->text, lang->text_len) : NULL;
    if (sample->text)
        s2s_sample_add(sample, "assistant", sample->text);
}

/*
 * The same of a line that has nothing but plain values, which is nearly every one, several times as
 * fast. False: it is something else, or it is wrong; the sample is then empty.
 */
static bool parse_plain_nemo(struct s2s_sample *sample, const struct s2s_line *line,
                             const struct s2s_manifest_options *opt)
{
    enum { MAX_VALUES = 48 };
    const char *const keys[N_NEMO_KEYS] = {"audio_filepath",
                                           "duration",
                                           opt->text_field ? opt->text_field : "text",
                                           opt->lang_field ? opt->lang_field : "lang",
                                           "offset",
                                           "sampling_rate"};
    const size_t lens[N_NEMO_KEYS] = {strlen(keys[NEMO_SOURCE]), strlen(keys[NEMO_DURATION]),
                                      strlen(keys[NEMO_TEXT]),   strlen(keys[NEMO_LANG]),
                                      strlen(keys[NEMO_OFFSET]), strlen(keys[NEMO_RATE])};
    struct data_flat values[MAX_VALUES];
    const struct data_flat *found[N_NEMO_KEYS] = {NULL};
    uint64_t has_meaning = 0;
    const int n = data_flat_parse(values, MAX_VALUES, line->text, line->len);
    for (int i = 0; i < n; i++) {
        if (is_key(&values[i], "_skipme", 7) || is_key(&values[i], "alt_text", 8) ||
            is_key(&values[i], "channel", 7))
            return false;
        for (int k = 0; k < N_NEMO_KEYS; k++)
            if (is_key(&values[i], keys[k], lens[k])) {
                if (has_meaning >> i & 1) /* two of them are one key */
                    return false;
                has_meaning |= UINT64_C(1) << i;
                found[k] = &values[i];
            }
    }
    if (n < 0 || !are_plain(found))
        return false;
    fill_plain(sample, found, opt);
    struct s2s_sound *sound = &sample->turns[0].sound;
    sound->duration_s = found[NEMO_DURATION]->real;
    sound->rate_hz = found[NEMO_RATE] ? (int)found[NEMO_RATE]->whole : 0;
    if (found[NEMO_OFFSET])
        take_range(sample, sound, found[NEMO_OFFSET]->real);
    for (int i = 0; i < n; i++)
        if (!(has_meaning >> i & 1))
            keep_flat(sample, &values[i]);
    return true;
}

int s2s_data_parse_nemo(struct s2s_sample *sample, const struct s2s_line *line, int variant,
                        const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    if (variant == 0 && !(opt->window.length_s > 0) && parse_plain_nemo(sample, line, opt))
        return 1;
    json_t *object = data_load_object(line, err);
    struct s2s_sound *sound;
    if (!object)
        return S2S_E_FORMAT;
    int rc = 0, n_windows;
    if (data_is_truthy(json_object_get(object, "_skipme")))
        goto out;
    sound = &s2s_sample_add(sample, "user", NULL)->sound;
    rc = n_windows = nemo_audio(sample, sound, object, &opt->window, variant, err);
    if (rc > 0)
        rc = nemo_text(sample, object, variant / n_windows, opt, err);
    if (rc < 0)
        goto out;
    rc *= n_windows;
    nemo_custom(sample, object, opt);
    sound->path = data_resolve(sound->source, opt->path);
    s2s_sample_answer(sample);
out:
    json_decref(object);
    if (rc < 0)
        s2s_sample_release(sample);
    return rc;
}
