/* tokenizer.json of Hugging Face tokenizers into a struct s2s_tokenizer: what is not understood is
 * refused by name, nothing is skipped silently. */
#include <jansson.h>

#include "lib/text/text_internal.h"

static const char GPT2_SPLIT[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static const char *type_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "(no type)";
}

static int unsupported(struct s2s_error *err, const char *what, const char *type)
{
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s of type %s is not supported", what, type);
    return s2s_error_hint(err, rc, "only tokenizers of the byte-level BPE kind are read");
}

static int bad_key(struct s2s_error *err, const char *key, const char *want)
{
    return s2s_error_set(err, S2S_E_FORMAT, "%s is not %s", key, want);
}

/* Absent and null are `missing`. */
static int get_bool(bool *out, const json_t *object, const char *key, bool missing,
                    struct s2s_error *err)
{
    const json_t *value = json_object_get(object, key);
    *out = value && !json_is_null(value) ? json_is_true(value) : missing;
    return !value || json_is_null(value) || json_is_boolean(value) ? 0
                                                                   : bad_key(err, key, "a boolean");
}

/* ---- normalizer ---- */

static int load_normalizer(struct s2s_tokenizer *tok, const json_t *part, struct s2s_error *err)
{
    if (!part || json_is_null(part))
        return 0;
    const char *type = type_of(part);
    if (!strcmp(type, "Sequence")) {
        size_t i;
        json_t *step;
        json_array_foreach(json_object_get(part, "normalizers"), i, step)
        {
            int rc = load_normalizer(tok, step, err);
            if (rc < 0)
                return rc;
        }
        return 0;
    }
    if (strcmp(type, "NFC"))
        return unsupported(err, "normalizer", type);
    tok->nfc = true;
    return 0;
}

/* ---- pre-tokenizer ---- */

static struct text_split *add_split(struct s2s_tokenizer *tok)
{
    struct text_splits *splits = &tok->splits;
    s2s_grow(&splits->data, splits->len, &splits->cap, sizeof *splits->data);
    splits->data[splits->len] = (struct text_split){.behavior = TEXT_SPLIT_ISOLATED};
    return &splits->data[splits->len++];
}

/* A literal string as a pattern. */
static int compile_literal(struct text_split *split, const char *text, size_t len,
                           struct s2s_error *err)
{
    struct s2s_buf regex = S2S_BUF_INIT;
    for (size_t i = 0; i < len; i++) {
        if (strchr("\\^$.|?*+()[]{}-#&~", text[i]) && text[i])
            s2s_buf_putc(&regex, '\\');
        s2s_buf_putc(&regex, text[i]);
    }
    int rc = text_pattern_compile(&split->pattern, regex.data ? regex.data : "", regex.len, err);
    s2s_buf_release(&regex);
    return rc;
}

static int load_split(struct s2s_tokenizer *tok, const json_t *part, struct s2s_error *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    struct text_split *split = add_split(tok);
    const char *behavior = json_string_value(json_object_get(part, "behavior"));
    size_t b = 0;
    while (b < 5 && (!behavior || strcmp(behavior, names[b])))
        b++;
    if (b == 5)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "Split: behavior %s is not supported",
                             behavior ? behavior : "(none)");
    split->behavior = (enum text_split_behavior)b;
    int rc = get_bool(&split->invert, part, "invert", false, err);
    if (rc < 0)
        return rc;
    const json_t *pattern = json_object_get(part, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *literal = json_object_get(pattern, "String");
    if (json_is_string(regex))
        return text_pattern_compile(&split->pattern, json_string_value(regex),
                                    json_string_length(regex), err);
    if (json_is_string(literal))
        return compile_literal(split, json_string_value(literal), json_string_length(literal), err);
    return bad_key(err, "Split: pattern", "a Regex or a String");
}

static int load_byte_level(struct s2s_tokenizer *tok, const json_t *part, bool *seen,
                           struct s2s_error *err)
{
    bool add_prefix_space = true, use_regex = true;
    int rc = get_bool(&add_prefix_space, part, "add_prefix_space", true, err);
    if (rc == 0)
        rc = get_bool(&use_regex, part, "use_regex", true, err);
    if (rc < 0)
        return rc;
    if (*seen)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "two ByteLevel pre-tokenizers");
    *seen = true;
    if (!add_prefix_space && !use_regex)
        return 0;
    struct text_split *split = add_split(tok);
    split->add_prefix_space = add_prefix_space;
    return use_regex ? text_pattern_compile(&split->pattern, GPT2_SPLIT, strlen(GPT2_SPLIT), err)
                     : 0;
}

static int load_digits(struct s2s_tokenizer *tok, const json_t *part, struct s2s_error *err)
{
    bool individual = false;
    struct text_split *split = add_split(tok);
    int rc = get_bool(&individual, part, "individual_digits", false, err);
    split->behavior = individual ? TEXT_SPLIT_ISOLATED : TEXT_SPLIT_CONTIGUOUS;
    struct s2s_buf regex = S2S_BUF_INIT;
    s2s_buf_puts(&regex, "[\\p{N}");
    for (size_t i = 0; i < text_n_new_digits; i++)
        s2s_buf_printf(&regex, "\\x{%x}-\\x{%x}", text_new_digits[i].first,
                       text_new_digits[i].last);
    s2s_buf_putc(&regex, ']');
    if (rc == 0)
        rc = text_pattern_compile(&split->pattern, regex.data, regex.len, err);
    s2s_buf_release(&regex);
    return rc;
}

static int load_pre_tokenizer(struct s2s_tokenizer *tok, const json_t *part, bool *byte_level,
                              struct s2s_error *err)
{
    const char *type = type_of(part);
    if (!part || json_is_null(part))
        return 0;
    if (!strcmp(type, "Sequence")) {
        size_t i;
        json_t *step;
        json_array_foreach(json_object_get(part, "pretokenizers"), i, step)
        {
            int rc = load_pre_tokenizer(tok, step, byte_level, err);
            if (rc < 0)
                return rc;
        }
        return 0;
    }
    /* behind ByteLevel the text is its alphabet's characters, which no other step here expects */
    if (*byte_level && strcmp(type, "ByteLevel"))
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "pre-tokenizer %s behind ByteLevel", type);
    if (!strcmp(type, "Split"))
        return load_split(tok, part, err);
    if (!strcmp(type, "Digits"))
        return load_digits(tok, part, err);
    if (!strcmp(type, "ByteLevel"))
        return load_byte_level(tok, part, byte_level, err);
    return unsupported(err, "pre-tokenizer", type);
}

/* ---- model ---- */

/* Token contents to ids while loading: a chained table over the token list. */
struct contents {
    const struct s2s_tokenizer *tok;
    int32_t *slots; /* id, or -1 */
    size_t n_slots;
};

static size_t content_hash(const char *content, size_t len)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)content[i]) * UINT64_C(0x100000001b3);
    return (size_t)(h ^ (h >> 32));
}

static int32_t *content_slot(const struct contents *contents, const char *content, size_t len)
{
    size_t i = content_hash(content, len) & (contents->n_slots - 1);
    for (;; i = (i + 1) & (contents->n_slots - 1)) {
        int32_t id = contents->slots[i];
        if (id < 0 || (contents->tok->tokens[id].content_len == len &&
                       !memcmp(contents->tok->tokens[id].content, content, len)))
            return &contents->slots[i];
    }
}

static void contents_init(struct contents *contents, const struct s2s_tokenizer *tok,
                          size_t n_tokens)
{
    contents->tok = tok;
    for (contents->n_slots = 1024; contents->n_slots < 2 * n_tokens;)
        contents->n_slots *= 2;
    contents->slots = s2s_xmalloc(contents->n_slots * sizeof *contents->slots);
    memset(contents->slots, 0xff, contents->n_slots * sizeof *contents->slots);
}

/* Ids index tables: they may have holes, but not so that a small file asks for much memory. */
static int check_id(json_int_t id, size_t n_vocab, const char *what, struct s2s_error *err)
{
    json_int_t limit = (json_int_t)(8 * n_vocab + 1000000);
    if (id < 0 || id >= limit)
        return s2s_error_set(err, S2S_E_RANGE, "id %lld of %.60s is not in [0, %lld)",
                             (long long)id, what, (long long)limit);
    return 0;
}

static int load_vocab(struct s2s_tokenizer *tok, struct contents *contents, const json_t *vocab,
                      struct s2s_error *err)
{
    const char *token;
    json_t *value;
    size_t n_vocab = json_object_size(vocab);
    json_object_foreach((json_t *)(uintptr_t)vocab, token, value)
    {
        size_t len = strlen(token);
        if (!json_is_integer(value))
            return s2s_error_set(err, S2S_E_FORMAT, "model.vocab: id of %.60s is not an integer",
                                 token);
        json_int_t id = json_integer_value(value);
        int rc = check_id(id, n_vocab, token, err);
        if (rc < 0)
            return rc;
        if (id < tok->n_tokens && tok->tokens[id].content)
            return s2s_error_set(err, S2S_E_FORMAT, "model.vocab: two tokens have the id %lld",
                                 (long long)id);
        bool of_bytes = text_tokenizer_set_token(tok, (int32_t)id, token, len, false);
        *content_slot(contents, token, len) = (int32_t)id;
        if (of_bytes)
            text_bpe_add_word(tok->bpe, tok->tokens[id].bytes, tok->tokens[id].bytes_len,
                              (int32_t)id);
    }
    return 0;
}

/* "a b" or ["a", "b"] */
static bool merge_sides(const json_t *merge, const char *side[2], size_t len[2])
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' '))
            return false;
        side[0] = text;
        len[0] = (size_t)(space - text);
        side[1] = space + 1;
        len[1] = json_string_length(merge) - len[0] - 1;
        return true;
    }
    for (size_t k = 0; k < 2; k++) {
        const json_t *text = json_array_get(merge, k);
        if (!json_is_string(text))
            return false;
        side[k] = json_string_value(text);
        len[k] = json_string_length(text);
    }
    return json_array_size(merge) == 2;
}

static int load_merges(struct s2s_tokenizer *tok, const struct contents *contents,
                       const json_t *merges, struct s2s_error *err)
{
    struct s2s_buf whole = S2S_BUF_INIT;
    size_t i;
    json_t *merge;
    int rc = 0;
    json_array_foreach(merges, i, merge)
    {
        const char *side[2];
        size_t len[2];
        if (!merge_sides(merge, side, len)) {
            rc = s2s_error_set(err, S2S_E_FORMAT, "model.merges[%zu] is not a pair of tokens", i);
            break;
        }
        s2s_buf_clear(&whole);
        s2s_buf_add(&whole, side[0], len[0]);
        s2s_buf_add(&whole, side[1], len[1]);
        int32_t left = *content_slot(contents, side[0], len[0]);
        int32_t right = *content_slot(contents, side[1], len[1]);
        int32_t merged = *content_slot(contents, whole.data ? whole.data : "", whole.len);
        if (left < 0 || right < 0 || merged < 0) {
            rc = s2s_error_set(err, S2S_E_FORMAT,
                               "model.merges[%zu]: %.60s is not in the vocabulary", i,
                               left < 0    ? side[0]
                               : right < 0 ? side[1]
                                           : whole.data);
            break;
        }
        text_bpe_add_merge(tok->bpe, left, right, (int32_t)i, merged);
    }
    s2s_buf_release(&whole);
    return rc;
}

static int refuse_options(const json_t *model, struct s2s_error *err)
{
    static const char *const strings[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_object_get(model, strings[i]);
        if (json_string_length(value) > 0)
            return s2s_error_set(err, S2S_E_UNSUPPORTED, "model.%s is not supported", strings[i]);
    }
    if (json_number_value(json_object_get(model, "dropout")) != 0)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "model.dropout is not supported");
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return unsupported(err, "model", "BPE with byte_fallback (as sentencepiece has it)");
    return 0;
}

static int load_model(struct s2s_tokenizer *tok, const json_t *model, struct s2s_error *err)
{
    const char *type = type_of(model);
    const json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    const json_t *unk = json_object_get(model, "unk_token");
    bool ignore_merges = false, fuse_unk = false;
    /* files of old have no type; only BPE has merges */
    if (strcmp(type, "BPE") && (json_object_get(model, "type") || !merges))
        return unsupported(err, "model", type);
    int rc = refuse_options(model, err);
    if (rc == 0)
        rc = get_bool(&ignore_merges, model, "ignore_merges", false, err);
    if (rc == 0)
        rc = get_bool(&fuse_unk, model, "fuse_unk", false, err);
    if (rc == 0 && (!json_is_object(vocab) || json_object_size(vocab) == 0))
        rc = bad_key(err, "model.vocab", "an object with tokens");
    if (rc == 0 && !json_is_array(merges))
        rc = bad_key(err, "model.merges", "an array");
    if (rc < 0)
        return rc;
    const json_t *unk_id =
        json_is_string(unk) ? json_object_get(vocab, json_string_value(unk)) : NULL;
    if (unk_id && (!json_is_integer(unk_id) || json_integer_value(unk_id) > INT32_MAX))
        return bad_key(err, "id of model.unk_token", "an integer");
    tok->bpe =
        text_bpe_new(ignore_merges, unk_id ? (int32_t)json_integer_value(unk_id) : -1, fuse_unk);
    struct contents contents;
    contents_init(&contents, tok, json_object_size(vocab));
    rc = load_vocab(tok, &contents, vocab, err);
    if (rc == 0)
        rc = load_merges(tok, &contents, merges, err);
    free(contents.slots);
    return rc;
}

/* ---- added tokens ---- */

static int load_one_added(struct s2s_tokenizer *tok, const json_t *item, size_t n_vocab,
                          struct s2s_error *err)
{
    const json_t *content = json_object_get(item, "content"), *id = json_object_get(item, "id");
    if (!json_is_string(content) || !json_is_integer(id))
        return s2s_error_set(err, S2S_E_FORMAT, "content or id is missing");
    struct text_added added = {.content = (char *)(uintptr_t)json_string_value(content),
                               .len = json_string_length(content)};
    int rc = check_id(json_integer_value(id), n_vocab, added.content, err);
    if (rc == 0)
        rc = get_bool(&added.single_word, item, "single_word", false, err);
    if (rc == 0)
        rc = get_bool(&added.lstrip, item, "lstrip", false, err);
    if (rc == 0)
        rc = get_bool(&added.rstrip, item, "rstrip", false, err);
    if (rc == 0)
        rc = get_bool(&added.special, item, "special", false, err);
    if (rc == 0)
        rc = get_bool(&added.normalized, item, "normalized", !added.special, err);
    if (rc < 0)
        return rc;
    added.id = (int32_t)json_integer_value(id);
    if (added.len == 0)
        return 0; /* as the library: an empty token is never found */
    const struct text_token *token = added.id < tok->n_tokens ? &tok->tokens[added.id] : NULL;
    if (token && token->content &&
        (token->content_len != added.len || memcmp(token->content, added.content, added.len)))
        return s2s_error_set(err, S2S_E_FORMAT, "id %d belongs to %.60s and to %.60s", added.id,
                             token->content, added.content);
    return text_tokenizer_add(tok, &added, err);
}

static int load_added(struct s2s_tokenizer *tok, const json_t *list, struct s2s_error *err)
{
    size_t i, n_vocab = (size_t)tok->n_tokens;
    json_t *item;
    if (list && !json_is_null(list) && !json_is_array(list))
        return bad_key(err, "added_tokens", "an array");
    json_array_foreach(list, i, item)
    {
        int rc = load_one_added(tok, item, n_vocab + json_array_size(list), err);
        if (rc < 0)
            return s2s_error_add(err, rc, "added_tokens[%zu]", i);
    }
    return 0;
}

/* ---- post-processor and decoder ---- */

static int load_template(struct s2s_tokenizer *tok, const json_t *part, struct s2s_error *err)
{
    const json_t *single = json_object_get(part, "single");
    const json_t *specials = json_object_get(part, "special_tokens");
    size_t i, k;
    json_t *item, *id;
    if (tok->post)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "two TemplateProcessing post-processors");
    if (!json_is_array(single) || json_array_size(single) == 0)
        return bad_key(err, "TemplateProcessing: single", "an array of pieces");
    json_array_foreach(single, i, item)
    {
        s2s_grow(&tok->post, tok->n_post, &tok->post_cap, sizeof *tok->post);
        struct text_post_piece *piece = &tok->post[tok->n_post++];
        *piece = (struct text_post_piece){json_object_get(item, "Sequence") != NULL, S2S_IDS_INIT};
        if (piece->is_text)
            continue;
        const char *name =
            json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        const json_t *ids = json_object_get(name ? json_object_get(specials, name) : NULL, "ids");
        if (!json_is_array(ids))
            return s2s_error_set(err, S2S_E_FORMAT, "TemplateProcessing: no ids for %s",
                                 name ? name : "a piece without a name");
        json_array_foreach(ids, k, id)
        {
            json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
            if (value < 0 || value >= tok->n_tokens || !tok->tokens[value].content)
                return s2s_error_set(err, S2S_E_FORMAT,
                                     "TemplateProcessing: %s has an id that no token has", name);
            s2s_ids_add(&piece->ids, (int32_t)value);
        }
    }
    return 0;
}

static int load_post_processor(struct s2s_tokenizer *tok, const json_t *part, struct s2s_error *err)
{
    if (!part || json_is_null(part))
        return 0;
    const char *type = type_of(part);
    if (!strcmp(type, "Sequence")) {
        size_t i;
        json_t *step;
        json_array_foreach(json_object_get(part, "processors"), i, step)
        {
            int rc = load_post_processor(tok, step, err);
            if (rc < 0)
                return rc;
        }
        return 0;
    }
    if (!strcmp(type, "ByteLevel"))
        return 0; /* changes offsets only */
    if (!strcmp(type, "TemplateProcessing"))
        return load_template(tok, part, err);
    return unsupported(err, "post-processor", type);
}

static int load_decoder(const json_t *part, struct s2s_error *err)
{
    const char *type = type_of(part);
    const json_t *steps = json_object_get(part, "decoders");
    if (!strcmp(type, "Sequence") && json_array_size(steps) == 1)
        return load_decoder(json_array_get(steps, 0), err);
    return strcmp(type, "ByteLevel") ? unsupported(err, "decoder", type) : 0;
}

static int load_root(struct s2s_tokenizer *tok, const json_t *root, struct s2s_error *err)
{
    bool byte_level = false;
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(model))
        return bad_key(err, "model", "an object: this is no tokenizer.json");
    /* the model first: its kind is what a user knows a tokenizer by */
    int rc = load_model(tok, model, err);
    if (rc == 0)
        rc = load_normalizer(tok, json_object_get(root, "normalizer"), err);
    if (rc == 0)
        rc = load_pre_tokenizer(tok, json_object_get(root, "pre_tokenizer"), &byte_level, err);
    if (rc == 0 && !byte_level)
        rc = unsupported(err, "pre-tokenizer", "(no ByteLevel in it)");
    if (rc == 0)
        rc = load_added(tok, json_object_get(root, "added_tokens"), err);
    if (rc == 0)
        rc = load_post_processor(tok, json_object_get(root, "post_processor"), err);
    if (rc == 0)
        rc = load_decoder(json_object_get(root, "decoder"), err);
    for (int i = 0; i < 2 && rc == 0; i++) {
        const char *key = i ? "padding" : "truncation";
        const json_t *value = json_object_get(root, key);
        if (value && !json_is_null(value))
            s2s_warn("text", "the tokenizer's %s is not applied", key);
    }
    return rc;
}

int text_tokenizer_load(struct s2s_tokenizer *tok, const char *json, size_t len,
                        struct s2s_error *err)
{
    json_error_t at;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);
    if (!root)
        return s2s_error_set(err, S2S_E_FORMAT, "line %d: %s", at.line, at.text);
    int rc = load_root(tok, root, err);
    json_decref(root);
    return rc;
}
