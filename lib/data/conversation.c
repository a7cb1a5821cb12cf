/* Parses conversations and texts to samples. */
#include "lib/data/conversation.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/line_json.h"
#include "lib/data/texts.h"

/* ---- what all share ---- */

static char *lower(const char *text)
{
    char *out = s2s_xstrdup(text);
    for (char *c = out; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return out;
}

static int take_id(struct s2s_sample *s, const json_t *object, const struct s2s_line *line,
                   struct s2s_error *err)
{
    const json_t *id = json_object_get(object, "id");
    if (json_is_integer(id)) {
        s->id = s2s_xasprintf("%lld", (long long)json_integer_value(id));
        return 0;
    }
    int rc = data_get_string(&s->id, object, "id", err);
    if (rc == 0)
        s->id = s2s_xasprintf("%lld", (long long)line->number);
    return rc < 0 ? rc : 0;
}

/* The list under a key: 1; 0: there is none. */
static int get_list(const json_t **list, const json_t *object, const char *key,
                    struct s2s_error *err)
{
    *list = json_object_get(object, key);
    if (!*list || json_is_null(*list))
        return 0;
    return json_is_array(*list) ? 1 : s2s_error_set(err, S2S_E_FORMAT, "'%s' is no list", key);
}

static int bad_turn(size_t i, const char *what, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT, "conversations[%zu]: %s", i, what);
}

/* Adds a turn of sound in a file; takes source. */
static struct s2s_sound *add_sound(struct s2s_sample *s, const char *role, char *source,
                                   const struct s2s_manifest_options *opt)
{
    struct s2s_sound *sound = &s2s_sample_add(s, role, NULL)->sound;
    sound->source = source;
    sound->path = data_resolve(source, opt->path);
    return sound;
}

/* The last answer is what is known of the sample as a text. */
static int finish(struct s2s_sample *s, struct s2s_error *err)
{
    if (s->n_turns == 0)
        return s2s_error_set(err, S2S_E_FORMAT, "sample '%s' has no turn", s->id);
    for (size_t i = s->n_turns; i-- > 0 && !s->text;)
        if (s->turns[i].text && !strcmp(s->turns[i].role, "assistant"))
            s->text = s2s_xstrdup(s->turns[i].text);
    if (!s->text) {
        int rc =
            s2s_error_set(err, S2S_E_FORMAT, "sample '%s' has no turn of the assistant", s->id);
        return s2s_error_hint(err, rc, "turns have \"from\": \"Assistant\"");
    }
    return 1;
}

typedef int parse_turns(struct s2s_sample *s, const json_t *object, const struct s2s_line *line,
                        const struct s2s_manifest_options *opt, struct s2s_error *err);

/* Parses the line with `turns`, which returns 0 for a line to be skipped. */
static int parse(struct s2s_sample *sample, const struct s2s_line *line, parse_turns *turns,
                 const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    json_t *object = data_load_object(line, err);
    if (!object)
        return S2S_E_FORMAT;
    int rc = take_id(sample, object, line, err);
    if (rc == 0)
        rc = turns(sample, object, line, opt, err);
    if (rc > 0)
        rc = finish(sample, err);
    json_decref(object);
    if (rc <= 0)
        s2s_sample_release(sample);
    return rc;
}

/* ---- NeMo's multimodal conversations ---- */

static int sound_turn(struct s2s_sample *s, const json_t *turn, const char *role, char *value,
                      const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    struct s2s_sound *sound = add_sound(s, role, value, opt);
    double offset_s = 0;
    int rc = data_get_number(&sound->duration_s, turn, "duration", 0, err);
    if (rc >= 0)
        rc = data_get_number(&offset_s, turn, "offset", 0, err);
    if (rc > 0) {
        sound->has_range = true;
        sound->offset_s = offset_s;
    }
    return rc < 0 ? rc : 0;
}

static int conversation_turn(struct s2s_sample *s, const json_t *turn, size_t i,
                             const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    char *from = NULL, *type = NULL, *value = NULL;
    int rc = json_is_object(turn) ? 0 : bad_turn(i, "is no map", err);
    if (rc == 0)
        rc = data_get_string(&from, turn, "from", err);
    if (rc >= 0)
        rc = data_get_string(&type, turn, "type", err);
    if (rc >= 0)
        rc = data_get_string(&value, turn, "value", err);
    char *role = from ? lower(from) : NULL;
    if (rc >= 0 && (!role || !value))
        rc = bad_turn(i, role ? "'value' is missing" : "'from' is missing", err);
    else if (rc >= 0 && type && !strcmp(type, "image"))
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "conversations[%zu]: a turn of type 'image'", i);
    else if (rc >= 0 && (!type || !strcmp(type, "text")))
        s2s_sample_add(s, role, s2s_xstrdup(value));
    else if (rc >= 0)
        rc = sound_turn(s, turn, role, s2s_xstrdup(value), opt, err);
    free(from);
    free(type);
    free(value);
    free(role);
    return rc < 0 ? rc : 0;
}

static int conversation_turns(struct s2s_sample *s, const json_t *object,
                              const struct s2s_line *line, const struct s2s_manifest_options *opt,
                              struct s2s_error *err)
{
    const json_t *custom = json_object_get(object, "custom"), *list;
    if (data_is_truthy(json_object_get(custom, "_skipme")))
        return 0;
    int rc = get_list(&list, object, "conversations", err);
    if (rc == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "'conversations' is missing");
    for (size_t i = 0; rc >= 0 && i < json_array_size(list); i++)
        rc = conversation_turn(s, json_array_get(list, i), i, opt, err);
    s->custom = json_is_object(custom) ? json_copy((json_t *)custom) : NULL;
    return rc < 0 ? rc : 1;
}

int s2s_data_parse_conversation(struct s2s_sample *sample, const struct s2s_line *line,
                                const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    return parse(sample, line, conversation_turns, opt, err);
}

/* ---- ShareGPT ---- */

/* Text without white space around it; NULL if nothing is left. Gives: free. */
static char *stripped(const char *text, size_t len)
{
    data_strip(&text, &len);
    return len > 0 ? s2s_xstrndup(text, len) : NULL;
}

/* Text before and behind the first placeholder, with the sound between them; a second one of its
 * kind ends the text, as upstream splits the turn. */
static void split_turn(struct s2s_sample *s, const char *role, const char *value, const char *mark,
                       const char *source, const struct s2s_manifest_options *opt)
{
    const char *at = strstr(value, mark), *behind = at + strlen(mark);
    const char *again = strstr(behind, mark);
    char *before = stripped(value, (size_t)(at - value));
    char *after = stripped(behind, again ? (size_t)(again - behind) : strlen(behind));
    if (before)
        s2s_sample_add(s, role, before);
    if (source)
        add_sound(s, role, s2s_xstrdup(source), opt);
    if (after)
        s2s_sample_add(s, role, after);
}

/* What stands for sound in the text; NULL: nothing does. */
static const char *find_mark(const char *value, const json_t *marks)
{
    static const char *const usual[] = {"<sound>", "<speech>"};
    const size_t n = marks ? json_array_size(marks) : sizeof usual / sizeof *usual;
    for (size_t k = 0; k < n; k++) {
        const char *mark = marks ? json_string_value(json_array_get(marks, k)) : usual[k];
        if (strstr(value, mark))
            return mark;
    }
    return NULL;
}

static int share_gpt_turn(struct s2s_sample *s, const json_t *turn, size_t i, const char *source,
                          const json_t *marks, const struct s2s_manifest_options *opt,
                          struct s2s_error *err)
{
    const char *from = json_string_value(json_object_get(turn, "from"));
    const char *value = json_string_value(json_object_get(turn, "value"));
    if (!from || !value)
        return bad_turn(i, "'from' or 'value' is missing or no string", err);
    const char *role = strcasecmp(from, "human") == 0 ? "user" : "assistant", *mark;
    mark = find_mark(value, marks);
    if (mark)
        split_turn(s, role, value, mark, source, opt);
    else
        s2s_sample_add(s, role, s2s_xstrdup(value));
    return 0;
}

int s2s_data_parse_share_gpt(struct s2s_sample *sample, const struct s2s_line *line,
                             const struct s2s_manifest_options *opt, const json_t *placeholders,
                             struct s2s_error *err)
{
    const json_t *list = NULL;
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    json_t *object = data_load_object(line, err);
    if (!object)
        return S2S_E_FORMAT;
    const char *sound = json_string_value(json_object_get(object, "sound"));
    if (!sound || !*sound)
        sound = json_string_value(json_object_get(object, "ori_sound"));
    int rc = take_id(sample, object, line, err);
    if (rc == 0)
        rc = get_list(&list, object, "conversations", err);
    if (rc == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "'conversations' is missing");
    for (size_t i = 0; rc >= 0 && i < json_array_size(list); i++)
        rc = share_gpt_turn(sample, json_array_get(list, i), i, sound, placeholders, opt, err);
    if (rc >= 0)
        rc = finish(sample, err);
    json_decref(object);
    if (rc < 0)
        s2s_sample_release(sample);
    return rc;
}

/* ---- tuning of language models ---- */

static int sft_conversation(struct s2s_sample *s, const json_t *list, struct s2s_error *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *turn = json_array_get(list, i);
        const char *from = json_string_value(json_object_get(turn, "from"));
        const char *value = json_string_value(json_object_get(turn, "value"));
        if (!from || !value)
            return bad_turn(i, "'from' or 'value' is missing or no string", err);
        const bool is_user = !strcasecmp(from, "user") || !strcasecmp(from, "human");
        const bool is_system = !strcasecmp(from, "system");
        s2s_sample_add(s,
                       is_system ? "system"
                       : is_user ? "user"
                                 : "assistant",
                       s2s_xstrdup(value));
    }
    return 1;
}

/* A part of a message: a text, or a file of sound. */
static int message_part(struct s2s_sample *s, const char *role, const json_t *part, size_t i,
                        const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    static const char *const keys[] = {"audio", "path", "value"};
    const char *type = json_string_value(json_object_get(part, "type")), *file = NULL;
    const char *text = json_string_value(json_object_get(part, "text"));
    if (type && !strcmp(type, "text") && text) {
        s2s_sample_add(s, role, s2s_xstrdup(text));
        return 0;
    }
    for (size_t k = 0; k < sizeof keys / sizeof *keys && !file; k++)
        file = json_string_value(json_object_get(part, keys[k]));
    if (!type || strcmp(type, "audio") != 0 || !file)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "messages[%zu]: a part of type '%s', text or audio expected", i,
                             type ? type : "");
    add_sound(s, role, s2s_xstrdup(file), opt);
    return 0;
}

static int sft_messages(struct s2s_sample *s, const json_t *list,
                        const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        const json_t *message = json_array_get(list, i);
        const json_t *content = json_object_get(message, "content");
        const char *from = json_string_value(json_object_get(message, "role"));
        if (!from || (!json_is_string(content) && !json_is_array(content)))
            return s2s_error_set(err, S2S_E_FORMAT, "messages[%zu]: 'role' or 'content' is missing",
                                 i);
        char *role = lower(from);
        if (json_is_string(content))
            s2s_sample_add(s, role, s2s_xstrdup(json_string_value(content)));
        for (size_t k = 0; rc == 0 && k < json_array_size(content); k++)
            rc = message_part(s, role, json_array_get(content, k), i, opt, err);
        free(role);
    }
    return rc < 0 ? rc : 1;
}

static int sft_pair(struct s2s_sample *s, const json_t *object, struct s2s_error *err)
{
    static const char *const keys[][2] = {{"input", "output"}, {"prompt", "completion"}};
    for (size_t k = 0; k < 2; k++) {
        const char *asked = json_string_value(json_object_get(object, keys[k][0]));
        const char *answer = json_string_value(json_object_get(object, keys[k][1]));
        if (!asked || !answer)
            continue;
        s2s_sample_add(s, "user", s2s_xstrdup(asked));
        s2s_sample_add(s, "assistant", s2s_xstrdup(answer));
        return 1;
    }
    return s2s_error_set(err, S2S_E_FORMAT,
                         "none of 'conversations', 'messages', 'input' and 'output', 'prompt' and "
                         "'completion' is there");
}

static int sft_turns(struct s2s_sample *s, const json_t *object, const struct s2s_line *line,
                     const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    const json_t *custom = json_object_get(object, "custom"), *list;
    const char *system = json_string_value(json_object_get(object, "system"));
    if (data_is_truthy(json_object_get(custom, "_skipme")) ||
        data_is_truthy(json_object_get(object, "_skipme")))
        return 0;
    if (system && *system)
        s2s_sample_add(s, "system", s2s_xstrdup(system));
    int rc = get_list(&list, object, "conversations", err);
    if (rc != 0)
        return rc < 0 ? rc : sft_conversation(s, list, err);
    rc = get_list(&list, object, "messages", err);
    if (rc != 0)
        return rc < 0 ? rc : sft_messages(s, list, opt, err);
    return sft_pair(s, object, err);
}

int s2s_data_parse_sft(struct s2s_sample *sample, const struct s2s_line *line,
                       const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    return parse(sample, line, sft_turns, opt, err);
}

/* ---- text ---- */

static int text_turns(struct s2s_sample *s, const json_t *object, const struct s2s_line *line,
                      const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    const char *key = opt->text_field ? opt->text_field : "text";
    char *text = NULL;
    if (data_is_truthy(json_object_get(object, "_skipme")))
        return 0;
    int rc = data_get_string(&text, object, key, err);
    if (rc == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "'%s' is missing", key);
    if (rc > 0)
        s2s_sample_add(s, "assistant", text);
    return rc;
}

int s2s_data_parse_text(struct s2s_sample *sample, const struct s2s_line *line, bool is_json,
                        const struct s2s_manifest_options *opt, struct s2s_error *err)
{
    if (is_json)
        return parse(sample, line, text_turns, opt, err);
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    if (memchr(line->text, 0, line->len))
        return s2s_error_set(err, S2S_E_FORMAT, "a NUL in a line of text");
    sample->id = s2s_xasprintf("%lld", (long long)line->number);
    s2s_sample_add(sample, "assistant", s2s_xstrndup(line->text, line->len));
    return finish(sample, err);
}

int s2s_data_parse_pair(struct s2s_sample *sample, const struct s2s_line *question,
                        const struct s2s_line *answer, const char *before, size_t before_len,
                        struct s2s_error *err)
{
    *sample = (struct s2s_sample)S2S_SAMPLE_INIT;
    if (memchr(question->text, 0, question->len) || memchr(answer->text, 0, answer->len))
        return s2s_error_set(err, S2S_E_FORMAT, "a NUL in a line of text");
    char *asked = stripped(question->text, question->len);
    char *said = stripped(answer->text, answer->len);
    if (!asked || !said) {
        free(asked);
        free(said);
        return 0;
    }
    if (before) {
        char *whole = s2s_xasprintf("%.*s %s", (int)before_len, before, asked);
        free(asked);
        asked = whole;
    }
    sample->id = s2s_xasprintf("%lld", (long long)question->number);
    s2s_sample_add(sample, "user", asked);
    s2s_sample_add(sample, "assistant", said);
    return finish(sample, err);
}
