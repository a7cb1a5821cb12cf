/* Reads the tokenizer.json of Hugging Face tokenizers: what is not understood is refused with its
 * place in the file, nothing is skipped silently. */
#include <jansson.h>

#include "lib/text/text_internal.h"

/* ---- values of a part ---- */

int text_reader_fail(const struct text_reader *reader, int code, const char *key, const char *fmt,
                     ...)
{
    va_list args;
    char text[500];
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return s2s_error_set(reader->err, code, "%s%s%s%s%s", reader->place,
                         key && *reader->place ? "." : "", key ? key : "",
                         key && text[0] == '[' ? "" : ": ", text);
}

const char *text_reader_type(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "(none)";
}

int text_reader_bool(const struct text_reader *reader, bool *out, const json_t *part,
                     const char *key, bool missing)
{
    const json_t *value = json_object_get(part, key);
    *out = value && !json_is_null(value) ? json_is_true(value) : missing;
    if (!value || json_is_null(value) || json_is_boolean(value))
        return 0;
    return text_reader_fail(reader, S2S_E_FORMAT, key, "not a boolean");
}

int text_reader_string(const struct text_reader *reader, char **out, size_t *len,
                       const json_t *part, const char *key, const char *missing)
{
    const json_t *value = json_object_get(part, key);
    if ((!value || json_is_null(value)) && missing) {
        *out = s2s_xstrdup(missing);
        *len = strlen(missing);
        return 0;
    }
    if (!json_is_string(value))
        return text_reader_fail(reader, S2S_E_FORMAT, key, "not a string");
    *len = json_string_length(value);
    *out = s2s_xmalloc(*len + 1);
    memcpy(*out, json_string_value(value), *len + 1);
    return 0;
}

int text_reader_size(const struct text_reader *reader, size_t *out, const json_t *part,
                     const char *key, int64_t missing)
{
    const json_t *value = json_object_get(part, key);
    json_int_t number = value ? json_integer_value(value) : missing;
    if ((value && !json_is_integer(value)) || number < 0)
        return text_reader_fail(reader, S2S_E_FORMAT, key, "not a whole number from 0 on");
    *out = (size_t)number;
    return 0;
}

int text_reader_character(const struct text_reader *reader, char *out, const json_t *part,
                          const char *key, const char *missing)
{
    const json_t *value = json_object_get(part, key);
    const char *text = json_string_value(value);
    size_t len = json_string_length(value), n = 0;
    if (!value && missing) {
        text = missing;
        len = strlen(missing);
    }
    if (len > 0)
        text_utf8_get(text, &n);
    if (n == 0 || n != len || *text == 0)
        return text_reader_fail(reader, S2S_E_FORMAT, key, "not one character");
    memcpy(out, text, n + 1);
    return 0;
}

/* Runs `read` with the place of a key inside the present one. */
static int read_at(struct text_reader *reader, const json_t *part,
                   int (*read)(struct text_reader *reader, const json_t *part), const char *fmt,
                   ...) __attribute__((format(printf, 4, 5)));

static int read_at(struct text_reader *reader, const json_t *part,
                   int (*read)(struct text_reader *reader, const json_t *part), const char *fmt,
                   ...)
{
    size_t len = strlen(reader->place);
    va_list args;
    va_start(args, fmt);
    snprintf(reader->place + len, sizeof reader->place - len, "%s", len > 0 ? "." : "");
    size_t at = strlen(reader->place);
    vsnprintf(reader->place + at, sizeof reader->place - at, fmt, args);
    va_end(args);
    int rc = json_is_object(part) ? read(reader, part)
                                  : text_reader_fail(reader, S2S_E_FORMAT, NULL, "not an object");
    reader->place[len] = 0;
    return rc;
}

int text_read_sequence(struct text_reader *reader, const json_t *part, const char *key,
                       int (*read)(struct text_reader *reader, const json_t *item))
{
    const json_t *list = json_object_get(part, key);
    size_t i;
    json_t *item;
    if (!json_is_array(list))
        return text_reader_fail(reader, S2S_E_FORMAT, key, "not an array");
    if (strlen(reader->place) + strlen(key) + 24 > sizeof reader->place)
        return text_reader_fail(reader, S2S_E_FORMAT, NULL, "sequences in sequences, too deep");
    json_array_foreach(list, i, item)
    {
        int rc = read_at(reader, item, read, "%s[%zu]", key, i);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- added tokens ---- */

/* The id of an added token: the vocabulary's, where it has the content, else the file's. */
static int id_of_added(const struct text_reader *reader, int32_t *id, const char *content,
                       size_t len, json_int_t in_file, size_t n_vocab)
{
    const struct s2s_tokenizer *tok = reader->tok;
    json_int_t limit = (json_int_t)(8 * n_vocab + 1000000);
    *id = text_vocab_get(tok->contents, content, len);
    if (*id >= 0) {
        if (*id != in_file)
            s2s_warn("text", "%s: %.60s has the id %d of the vocabulary, not %lld", reader->place,
                     content, *id, (long long)in_file);
        return 0;
    }
    if (in_file < 0 || in_file >= limit)
        return text_reader_fail(reader, S2S_E_RANGE, "id", "%lld of %.60s is not in [0, %lld)",
                                (long long)in_file, content, (long long)limit);
    *id = (int32_t)in_file;
    if (*id < tok->n_tokens && tok->tokens[*id].content)
        return text_reader_fail(reader, S2S_E_FORMAT, "id", "%d belongs to %.60s and to %.60s", *id,
                                tok->tokens[*id].content, content);
    return 0;
}

static int read_added(struct text_reader *reader, const json_t *item)
{
    const json_t *content = json_object_get(item, "content"), *id = json_object_get(item, "id");
    if (!json_is_string(content) || !json_is_integer(id))
        return text_reader_fail(reader, S2S_E_FORMAT, NULL, "content or id is missing");
    struct text_added added = {.content = (char *)(uintptr_t)json_string_value(content),
                               .len = json_string_length(content)};
    int rc = text_reader_bool(reader, &added.single_word, item, "single_word", false);
    if (rc == 0)
        rc = text_reader_bool(reader, &added.lstrip, item, "lstrip", false);
    if (rc == 0)
        rc = text_reader_bool(reader, &added.rstrip, item, "rstrip", false);
    if (rc == 0)
        rc = text_reader_bool(reader, &added.special, item, "special", false);
    if (rc == 0)
        rc = text_reader_bool(reader, &added.normalized, item, "normalized", !added.special);
    if (rc < 0 || added.len == 0) /* as the library: an empty token is never found */
        return rc;
    rc = id_of_added(reader, &added.id, added.content, added.len, json_integer_value(id),
                     (size_t)reader->tok->n_tokens);
    return rc < 0 ? rc : text_tokenizer_add(reader->tok, &added, reader->err);
}

/* ---- post-processors ---- */

static struct text_post_piece *add_post(struct text_reader *reader, bool is_text)
{
    struct s2s_tokenizer *tok = reader->tok;
    s2s_grow(&tok->post, tok->n_post, &tok->post_cap, sizeof *tok->post);
    tok->post[tok->n_post] = (struct text_post_piece){is_text, S2S_IDS_INIT};
    return &tok->post[tok->n_post++];
}

static int add_special_id(struct text_reader *reader, struct text_post_piece *piece,
                          const json_t *id, const char *key)
{
    const struct s2s_tokenizer *tok = reader->tok;
    json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < 0 || value >= tok->n_tokens || !tok->tokens[value].content)
        return text_reader_fail(reader, S2S_E_FORMAT, key, "an id that no token has");
    s2s_ids_add(&piece->ids, (int32_t)value);
    return 0;
}

static int read_template(struct text_reader *reader, const json_t *part)
{
    const json_t *single = json_object_get(part, "single");
    const json_t *specials = json_object_get(part, "special_tokens");
    size_t i, k;
    json_t *item, *id;
    if (!json_is_array(single) || json_array_size(single) == 0)
        return text_reader_fail(reader, S2S_E_FORMAT, "single", "not an array of pieces");
    json_array_foreach(single, i, item)
    {
        struct text_post_piece *piece = add_post(reader, json_object_get(item, "Sequence") != NULL);
        if (piece->is_text)
            continue;
        const char *name =
            json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        const json_t *ids = json_object_get(name ? json_object_get(specials, name) : NULL, "ids");
        if (!json_is_array(ids))
            return text_reader_fail(reader, S2S_E_FORMAT, "special_tokens", "no ids for %s",
                                    name ? name : "a piece without a name");
        json_array_foreach(ids, k, id)
        {
            int rc = add_special_id(reader, piece, id, "special_tokens");
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

/* "cls": ["<s>", 0] before and "sep": ["</s>", 2] behind the text */
static int read_cls_sep(struct text_reader *reader, const json_t *part)
{
    for (int i = 0; i < 3; i++) {
        const char *key = i == 0 ? "cls" : "sep";
        struct text_post_piece *piece = add_post(reader, i == 1);
        int rc = i == 1 ? 0
                        : add_special_id(reader, piece,
                                         json_array_get(json_object_get(part, key), 1), key);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Puts what the processors before made in the place of this one's text. */
static void compose(struct s2s_tokenizer *tok, struct text_post_piece *before, size_t n_before)
{
    struct text_post_piece *own = tok->post;
    size_t n_own = tok->n_post;
    if (n_before == 0)
        return;
    tok->post = NULL;
    tok->n_post = tok->post_cap = 0;
    for (size_t i = 0; i < n_own; i++) {
        for (size_t k = 0; k < (own[i].is_text ? n_before : 1); k++) {
            const struct text_post_piece *from = own[i].is_text ? &before[k] : &own[i];
            s2s_grow(&tok->post, tok->n_post, &tok->post_cap, sizeof *tok->post);
            struct text_post_piece *to = &tok->post[tok->n_post++];
            *to = (struct text_post_piece){from->is_text, S2S_IDS_INIT};
            for (size_t j = 0; j < from->ids.len; j++)
                s2s_ids_add(&to->ids, from->ids.data[j]);
        }
        s2s_ids_release(&own[i].ids);
    }
    for (size_t k = 0; k < n_before; k++)
        s2s_ids_release(&before[k].ids);
    free(own);
    free(before);
}

static int read_post_processor(struct text_reader *reader, const json_t *part)
{
    struct s2s_tokenizer *tok = reader->tok;
    const char *type = text_reader_type(part);
    bool is_pair = !strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing");
    if (!strcmp(type, "Sequence"))
        return text_read_sequence(reader, part, "processors", read_post_processor);
    if (!strcmp(type, "ByteLevel"))
        return 0; /* changes offsets only */
    if (strcmp(type, "TemplateProcessing") && !is_pair)
        return text_reader_fail(reader, S2S_E_UNSUPPORTED, "type", "%s is not supported", type);
    struct text_post_piece *before = tok->post;
    size_t n_before = tok->n_post;
    if (n_before > 64)
        return text_reader_fail(reader, S2S_E_UNSUPPORTED, NULL, "more than 64 special tokens");
    tok->post = NULL;
    tok->n_post = tok->post_cap = 0;
    int rc = is_pair ? read_cls_sep(reader, part) : read_template(reader, part);
    compose(tok, before, n_before);
    return rc;
}

/* ---- the whole ---- */

static int read_optional(struct text_reader *reader, const json_t *root, const char *key,
                         int (*read)(struct text_reader *reader, const json_t *part))
{
    const json_t *part = json_object_get(root, key);
    return !part || json_is_null(part) ? 0 : read_at(reader, part, read, "%s", key);
}

static int read_root(struct text_reader *reader, const json_t *root)
{
    struct s2s_tokenizer *tok = reader->tok;
    const json_t *model = json_object_get(root, "model");
    const json_t *decoder = json_object_get(root, "decoder");
    const json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_object(model))
        return text_reader_fail(reader, S2S_E_FORMAT, "model",
                                "not an object: this is no tokenizer.json");
    int rc = read_optional(reader, root, "normalizer", text_read_normalizer);
    if (rc == 0)
        rc = read_optional(reader, root, "pre_tokenizer", text_read_pre_tokenizer);
    if (rc == 0)
        rc = read_at(reader, model, text_read_model, "model");
    if (rc == 0)
        rc = read_optional(reader, root, "decoder", text_read_decoder);
    tok->has_decoder = decoder && !json_is_null(decoder);
    tok->decodes_bytes = tok->decoders.len == 1 && tok->decoders.data[0].kind == TEXT_DECODE_BYTES;
    if (rc == 0 && added && !json_is_null(added))
        rc = text_read_sequence(reader, root, "added_tokens", read_added);
    if (rc == 0)
        rc = read_optional(reader, root, "post_processor", read_post_processor);
    for (int i = 0; i < 2 && rc == 0; i++) {
        const char *key = i ? "padding" : "truncation";
        const json_t *value = json_object_get(root, key);
        if (value && !json_is_null(value))
            s2s_warn("text", "the tokenizer's %s is not applied", key);
    }
    text_tokenizer_set_bytes(tok);
    return rc;
}

int text_tokenizer_load(struct s2s_tokenizer *tok, const char *json, size_t len,
                        struct s2s_error *err)
{
    json_error_t at;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);
    if (!root)
        return s2s_error_set(err, S2S_E_FORMAT, "line %d: %s", at.line, at.text);
    struct text_reader reader = {tok, "", false, err};
    int rc = read_root(&reader, root);
    json_decref(root);
    return rc;
}
