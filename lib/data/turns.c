/* Makes conversations of cuts. */
#include "lib/data/turns.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/line_json.h"

/* Is the word in the list, or where there is none among the usual ones? */
static bool is_one_of(const char *word, const json_t *list, const char *const *usual)
{
    if (!list) {
        while (*usual && strcmp(*usual, word) != 0)
            usual++;
        return *usual;
    }
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), word))
            return true;
    return false;
}

/* The part of the cut that a supervision covers, as a turn of sound. */
static int add_part(struct s2s_sample *sample, const json_t *json, const struct s2s_said *said,
                    const struct data_cut_maker *maker, struct s2s_error *err)
{
    const double start_s = json_number_value(json_object_get(json, "start"));
    const double duration_s = json_number_value(json_object_get(json, "duration"));
    const double end_s = said->end_s < duration_s ? said->end_s : duration_s;
    struct s2s_cut *cut;
    json_t *part = json_copy((json_t *)json);
    json_object_set_new(part, "start", json_real(start_s + said->start_s));
    json_object_set_new(part, "duration", json_real(end_s - said->start_s));
    int rc = maker->make(&cut, part, maker->ctx, err);
    json_decref(part);
    if (rc == 0)
        s2s_sound_take_cut(&s2s_sample_add(sample, "user", NULL)->sound, cut);
    return rc;
}

static void add_answer(struct s2s_sample *sample, const char *said, bool keep_stamps)
{
    struct s2s_buf text = S2S_BUF_INIT;
    if (!keep_stamps)
        s2s_data_clean_text(&text, said);
    free(sample->text);
    sample->text = s2s_xstrdup(keep_stamps ? said : text.data ? text.data : "");
    s2s_sample_add(sample, "assistant", s2s_xstrdup(sample->text));
    s2s_buf_release(&text);
}

/* 1; 0: the speaker has no role. */
static int add_turn(struct s2s_sample *sample, const json_t *json, const struct s2s_said *said,
                    const struct s2s_turn_rules *rules, const struct data_cut_maker *maker,
                    struct s2s_error *err)
{
    static const char *const heard[] = {"user", "User", NULL};
    static const char *const answers[] = {"assistant", "Assistant", "agent", "Agent", NULL};
    const char *speaker = said->speaker ? said->speaker : "";
    if (is_one_of(speaker, rules->input_roles, heard)) {
        int rc = add_part(sample, json, said, maker, err);
        return rc < 0 ? rc : 1;
    }
    if (!is_one_of(speaker, rules->output_roles, answers)) {
        s2s_warn("data", "cut '%s' is left out: speaker '%s' is neither user nor agent", sample->id,
                 speaker);
        return 0;
    }
    if (!said->text)
        return s2s_error_set(err, S2S_E_FORMAT, "a turn of '%s' has no text", speaker);
    add_answer(sample, said->text, rules->keep_stamps);
    return 1;
}

int data_turns_of_cut(struct s2s_sample *sample, const json_t *json,
                      const struct s2s_turn_rules *rules, const struct data_cut_maker *maker,
                      struct s2s_error *err)
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
        rc = add_turn(sample, json, &sample->said[i], rules, maker, err);
        if (rc == 0)
            return 0;
    }
    if (rc >= 0 && !sample->text)
        rc = s2s_error_set(err, S2S_E_FORMAT, "sample '%s' has no turn of the assistant",
                           sample->id);
    return rc < 0 ? rc : 1;
}

static int parse_part(struct s2s_cut **cut, json_t *json, void *ctx, struct s2s_error *err)
{
    const struct s2s_manifest_options *opt = ctx;
    return s2s_cut_parse(cut, json, opt->audio_field, opt->path, err);
}

int data_parse_turns(struct s2s_sample *sample, const struct s2s_line *line,
                     const struct s2s_manifest_options *opt, const struct s2s_turn_rules *rules,
                     struct s2s_error *err)
{
    const struct data_cut_maker maker = {parse_part, (void *)opt};
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    json_t *json = data_load_object(line, err);
    if (!json)
        return S2S_E_FORMAT;
    int rc = data_turns_of_cut(sample, json, rules, &maker, err);
    json_decref(json);
    if (rc <= 0)
        s2s_sample_release(sample);
    return rc;
}
