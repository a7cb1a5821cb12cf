/* Reads normalizers, pre-tokenizers and decoders of a tokenizer.json. */
#include <jansson.h>

#include "lib/text/text_internal.h"

static const char GPT2_SPLIT[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static int unsupported(const struct text_reader *reader, const json_t *part)
{
    return text_reader_fail(reader, S2S_E_UNSUPPORTED, "type", "%s is not supported",
                            text_reader_type(part));
}

/* ---- what parts share ---- */

int text_reader_needle(const struct text_reader *reader, struct text_needle *needle,
                       const json_t *part)
{
    const json_t *pattern = json_object_get(part, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *string = json_object_get(pattern, "String");
    if (json_is_string(string) && json_string_length(string) > 0) {
        needle->len = json_string_length(string);
        needle->string = s2s_xmalloc(needle->len + 1);
        memcpy(needle->string, json_string_value(string), needle->len + 1);
        return 0;
    }
    if (json_is_string(string)) /* found everywhere */
        return text_pattern_compile(&needle->pattern, "", 0, reader->err);
    if (!json_is_string(regex))
        return text_reader_fail(reader, S2S_E_FORMAT, "pattern", "not a Regex or a String");
    int rc = text_pattern_compile(&needle->pattern, json_string_value(regex),
                                  json_string_length(regex), reader->err);
    return rc < 0 ? s2s_error_add(reader->err, rc, "%s.pattern.Regex", reader->place) : 0;
}

/* ---- normalizers ---- */

static struct text_normal *add_normal(struct text_reader *reader, enum text_normal_kind kind)
{
    struct text_normals *normals = &reader->tok->normals;
    s2s_grow(&normals->data, normals->len, &normals->cap, sizeof *normals->data);
    normals->data[normals->len] = (struct text_normal){.kind = kind};
    return &normals->data[normals->len++];
}

static int read_bert(struct text_reader *reader, const json_t *part)
{
    struct text_normal *normal = add_normal(reader, TEXT_NORMAL_BERT);
    int rc = text_reader_bool(reader, &normal->clean, part, "clean_text", true);
    if (rc == 0)
        rc = text_reader_bool(reader, &normal->chinese, part, "handle_chinese_chars", true);
    if (rc == 0)
        rc = text_reader_bool(reader, &normal->lower_case, part, "lowercase", true);
    if (rc == 0)
        rc = text_reader_bool(reader, &normal->accents, part, "strip_accents", normal->lower_case);
    return rc;
}

static int value_of_base64(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static int read_charsmap(struct text_reader *reader, const json_t *part)
{
    const json_t *text = json_object_get(part, "precompiled_charsmap");
    struct s2s_buf bytes = S2S_BUF_INIT;
    struct text_normal *normal = add_normal(reader, TEXT_NORMAL_CHARSMAP);
    if (!json_is_string(text))
        return text_reader_fail(reader, S2S_E_FORMAT, "precompiled_charsmap", "not a string");
    const char *in = json_string_value(text);
    size_t len = json_string_length(text);
    uint32_t bits = 0;
    int n_bits = 0;
    while (len > 0 && in[len - 1] == '=')
        len--;
    for (size_t i = 0; i < len; i++) {
        int value = value_of_base64(in[i]);
        if (value < 0) {
            s2s_buf_release(&bytes);
            return text_reader_fail(reader, S2S_E_FORMAT, "precompiled_charsmap",
                                    "character %zu is not base64", i);
        }
        bits = bits << 6 | (uint32_t)value;
        n_bits += 6;
        if (n_bits >= 8)
            s2s_buf_putc(&bytes, (char)(bits >> (n_bits -= 8)));
    }
    int rc =
        text_charsmap_new(&normal->charsmap, bytes.data ? bytes.data : "", bytes.len, reader->err);
    s2s_buf_release(&bytes);
    return rc < 0 ? s2s_error_add(reader->err, rc, "%s.precompiled_charsmap", reader->place) : 0;
}

static int read_replace(struct text_reader *reader, const json_t *part)
{
    struct text_normal *normal = add_normal(reader, TEXT_NORMAL_REPLACE);
    int rc = text_reader_needle(reader, &normal->needle, part);
    return rc < 0 ? rc
                  : text_reader_string(reader, &normal->content, &normal->content_len, part,
                                       "content", NULL);
}

static int read_strip(struct text_reader *reader, const json_t *part)
{
    struct text_normal *normal = add_normal(reader, TEXT_NORMAL_STRIP);
    int rc = text_reader_bool(reader, &normal->left, part, "strip_left", true);
    return rc < 0 ? rc : text_reader_bool(reader, &normal->right, part, "strip_right", true);
}

int text_read_normalizer(struct text_reader *reader, const json_t *part)
{
    static const char *const forms[] = {
        [TEXT_NFC] = "NFC", [TEXT_NFD] = "NFD", [TEXT_NFKC] = "NFKC", [TEXT_NFKD] = "NFKD"};
    static const struct {
        const char *type;
        enum text_normal_kind kind;
    } plain[] = {{"Lowercase", TEXT_NORMAL_LOWERCASE},
                 {"StripAccents", TEXT_NORMAL_STRIP_ACCENTS},
                 {"Nmt", TEXT_NORMAL_NMT},
                 {"ByteLevel", TEXT_NORMAL_BYTES}};
    const char *type = text_reader_type(part);
    for (size_t i = 0; i < 4; i++) {
        if (!strcmp(type, forms[i])) {
            add_normal(reader, TEXT_NORMAL_FORM)->form = (enum text_form)i;
            return 0;
        }
        if (!strcmp(type, plain[i].type)) {
            add_normal(reader, plain[i].kind);
            return 0;
        }
    }
    if (!strcmp(type, "Sequence"))
        return text_read_sequence(reader, part, "normalizers", text_read_normalizer);
    if (!strcmp(type, "BertNormalizer"))
        return read_bert(reader, part);
    if (!strcmp(type, "Precompiled"))
        return read_charsmap(reader, part);
    if (!strcmp(type, "Replace"))
        return read_replace(reader, part);
    if (!strcmp(type, "Strip"))
        return read_strip(reader, part);
    if (!strcmp(type, "Prepend")) {
        struct text_normal *normal = add_normal(reader, TEXT_NORMAL_PREPEND);
        return text_reader_string(reader, &normal->content, &normal->content_len, part, "prepend",
                                  NULL);
    }
    return unsupported(reader, part);
}

/* ---- pre-tokenizers ---- */

static struct text_split *add_split(struct text_reader *reader, enum text_split_kind kind)
{
    struct text_splits *splits = &reader->tok->splits;
    s2s_grow(&splits->data, splits->len, &splits->cap, sizeof *splits->data);
    splits->data[splits->len] = (struct text_split){.kind = kind, .behavior = TEXT_SPLIT_ISOLATED};
    return &splits->data[splits->len++];
}

static int read_behavior(struct text_reader *reader, struct text_split *split, const json_t *part,
                         bool is_needed)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const json_t *value = json_object_get(part, "behavior");
    if (!value && !is_needed)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && json_is_string(value); i++)
        if (!strcmp(json_string_value(value), names[i])) {
            split->behavior = (enum text_split_behavior)i;
            return 0;
        }
    return text_reader_fail(reader, S2S_E_UNSUPPORTED, "behavior", "%s is not supported",
                            json_is_string(value) ? json_string_value(value) : "(none)");
}

static int read_split(struct text_reader *reader, const json_t *part)
{
    struct text_split *split = add_split(reader, TEXT_SPLIT_NEEDLE);
    int rc = read_behavior(reader, split, part, true);
    if (rc == 0)
        rc = text_reader_bool(reader, &split->invert, part, "invert", false);
    return rc < 0 ? rc : text_reader_needle(reader, &split->needle, part);
}

static int read_byte_level(struct text_reader *reader, const json_t *part)
{
    bool add_prefix_space, use_regex;
    int rc = text_reader_bool(reader, &add_prefix_space, part, "add_prefix_space", true);
    if (rc == 0)
        rc = text_reader_bool(reader, &use_regex, part, "use_regex", true);
    if (rc < 0)
        return rc;
    if (add_prefix_space || use_regex) {
        struct text_split *split =
            add_split(reader, use_regex ? TEXT_SPLIT_NEEDLE : TEXT_SPLIT_WHOLE);
        split->prefix = add_prefix_space ? TEXT_PREFIX_ALWAYS : TEXT_PREFIX_NEVER;
        if (use_regex)
            rc = text_pattern_compile(&split->needle.pattern, GPT2_SPLIT, strlen(GPT2_SPLIT),
                                      reader->err);
    }
    add_split(reader, TEXT_SPLIT_BYTES);
    return rc;
}

static int read_metaspace(struct text_reader *reader, const json_t *part)
{
    static const char *const schemes[] = {"never", "first", "always"};
    struct text_split *split = add_split(reader, TEXT_SPLIT_WHOLE);
    const json_t *scheme = json_object_get(part, "prepend_scheme");
    bool add_prefix_space, is_cut;
    int rc = text_reader_character(reader, split->space, part, "replacement", "\xe2\x96\x81");
    if (rc == 0)
        rc = text_reader_bool(reader, &add_prefix_space, part, "add_prefix_space", true);
    if (rc == 0)
        rc = text_reader_bool(reader, &is_cut, part, "split", true);
    if (rc < 0)
        return rc;
    split->prefix = add_prefix_space ? TEXT_PREFIX_ALWAYS : TEXT_PREFIX_NEVER;
    for (int i = 0; i < 3 && json_is_string(scheme); i++)
        if (!strcmp(json_string_value(scheme), schemes[i])) {
            split->prefix = (enum text_prefix)i;
            scheme = NULL;
        }
    if (scheme)
        return text_reader_fail(reader, S2S_E_UNSUPPORTED, "prepend_scheme",
                                "not never, first or always");
    if (!add_prefix_space && split->prefix != TEXT_PREFIX_NEVER)
        return text_reader_fail(reader, S2S_E_FORMAT, "add_prefix_space",
                                "it contradicts prepend_scheme");
    if (!is_cut)
        return 0;
    split->kind = TEXT_SPLIT_NEEDLE;
    split->needle.len = strlen(split->space);
    split->needle.string = s2s_xstrdup(split->space);
    split->behavior = TEXT_SPLIT_NEXT;
    return 0;
}

static bool is_space(uint32_t cp, uint32_t delimiter)
{
    return text_is_space(cp);
}

static bool is_punctuation(uint32_t cp, uint32_t delimiter)
{
    return text_is_punctuation(cp);
}

static bool is_number(uint32_t cp, uint32_t delimiter)
{
    return text_is_number(cp);
}

static bool is_delimiter(uint32_t cp, uint32_t delimiter)
{
    return cp == delimiter;
}

static void add_class(struct text_reader *reader, bool (*in_class)(uint32_t cp, uint32_t delimiter),
                      enum text_split_behavior behavior)
{
    struct text_split *split = add_split(reader, TEXT_SPLIT_CLASS);
    split->in_class = in_class;
    split->behavior = behavior;
}

static int read_digits(struct text_reader *reader, const json_t *part)
{
    bool each;
    int rc = text_reader_bool(reader, &each, part, "individual_digits", false);
    add_class(reader, is_number, each ? TEXT_SPLIT_ISOLATED : TEXT_SPLIT_CONTIGUOUS);
    return rc;
}

static int read_delimiter(struct text_reader *reader, const json_t *part)
{
    char sign[5];
    size_t n;
    int rc = text_reader_character(reader, sign, part, "delimiter", NULL);
    if (rc < 0)
        return rc;
    add_class(reader, is_delimiter, TEXT_SPLIT_REMOVED);
    reader->tok->splits.data[reader->tok->splits.len - 1].delimiter = text_utf8_get(sign, &n);
    return 0;
}

int text_read_pre_tokenizer(struct text_reader *reader, const json_t *part)
{
    const char *type = text_reader_type(part);
    if (!strcmp(type, "Sequence"))
        return text_read_sequence(reader, part, "pretokenizers", text_read_pre_tokenizer);
    if (!strcmp(type, "Split"))
        return read_split(reader, part);
    if (!strcmp(type, "ByteLevel"))
        return read_byte_level(reader, part);
    if (!strcmp(type, "Metaspace"))
        return read_metaspace(reader, part);
    if (!strcmp(type, "Digits"))
        return read_digits(reader, part);
    if (!strcmp(type, "CharDelimiterSplit"))
        return read_delimiter(reader, part);
    if (!strcmp(type, "WhitespaceSplit")) {
        add_class(reader, is_space, TEXT_SPLIT_REMOVED);
        return 0;
    }
    if (!strcmp(type, "BertPreTokenizer")) {
        add_class(reader, is_space, TEXT_SPLIT_REMOVED);
        add_class(reader, is_punctuation, TEXT_SPLIT_ISOLATED);
        return 0;
    }
    if (!strcmp(type, "Punctuation")) {
        add_class(reader, is_punctuation, TEXT_SPLIT_ISOLATED);
        return read_behavior(reader, &reader->tok->splits.data[reader->tok->splits.len - 1], part,
                             false);
    }
    if (!strcmp(type, "Whitespace")) {
        struct text_split *split = add_split(reader, TEXT_SPLIT_WORDS);
        split->invert = true;
        split->behavior = TEXT_SPLIT_REMOVED;
        return 0;
    }
    if (!strcmp(type, "FixedLength")) {
        struct text_split *split = add_split(reader, TEXT_SPLIT_FIXED);
        int rc = text_reader_size(reader, &split->n_characters, part, "length", 5);
        return rc == 0 && split->n_characters == 0
                   ? text_reader_fail(reader, S2S_E_FORMAT, "length", "0 characters")
                   : rc;
    }
    return unsupported(reader, part);
}

/* ---- decoders ---- */

static int read_one_decoder(struct text_reader *reader, struct text_decoder *decoder,
                            const json_t *part)
{
    int rc = 0;
    switch (decoder->kind) {
    case TEXT_DECODE_REPLACE:
        rc = text_reader_needle(reader, &decoder->needle, part);
        return rc < 0 ? rc
                      : text_reader_string(reader, &decoder->content, &decoder->content_len, part,
                                           "content", NULL);
    case TEXT_DECODE_METASPACE: {
        const char *scheme = json_string_value(json_object_get(part, "prepend_scheme"));
        bool add_prefix_space;
        rc = text_reader_character(reader, decoder->sign, part, "replacement", "\xe2\x96\x81");
        if (rc == 0)
            rc = text_reader_bool(reader, &add_prefix_space, part, "add_prefix_space", true);
        decoder->drop_first = scheme ? strcmp(scheme, "never") != 0 : add_prefix_space;
        return rc;
    }
    case TEXT_DECODE_STRIP:
        rc = text_reader_character(reader, decoder->sign, part, "content", NULL);
        if (rc == 0)
            rc = text_reader_size(reader, &decoder->n_start, part, "start", -1);
        return rc < 0 ? rc : text_reader_size(reader, &decoder->n_end, part, "stop", -1);
    case TEXT_DECODE_WORDPIECE:
        rc = text_reader_string(reader, &decoder->content, &decoder->content_len, part, "prefix",
                                "##");
        return rc < 0 ? rc : text_reader_bool(reader, &decoder->clean, part, "cleanup", true);
    case TEXT_DECODE_SUFFIX:
        return text_reader_string(reader, &decoder->content, &decoder->content_len, part, "suffix",
                                  "</w>");
    case TEXT_DECODE_CTC:
        rc = text_reader_string(reader, &decoder->content, &decoder->content_len, part, "pad_token",
                                "<pad>");
        if (rc == 0)
            rc = text_reader_string(reader, &decoder->delimiter, &decoder->delimiter_len, part,
                                    "word_delimiter_token", "|");
        return rc < 0 ? rc : text_reader_bool(reader, &decoder->clean, part, "cleanup", true);
    default:
        return 0;
    }
}

int text_read_decoder(struct text_reader *reader, const json_t *part)
{
    static const struct {
        const char *type;
        enum text_decoder_kind kind;
    } known[] = {{"ByteLevel", TEXT_DECODE_BYTES},
                 {"Replace", TEXT_DECODE_REPLACE},
                 {"Metaspace", TEXT_DECODE_METASPACE},
                 {"ByteFallback", TEXT_DECODE_BYTE_FALLBACK},
                 {"Fuse", TEXT_DECODE_FUSE},
                 {"Strip", TEXT_DECODE_STRIP},
                 {"WordPiece", TEXT_DECODE_WORDPIECE},
                 {"BPEDecoder", TEXT_DECODE_SUFFIX},
                 {"CTC", TEXT_DECODE_CTC}};
    const char *type = text_reader_type(part);
    struct text_decoders *decoders = &reader->tok->decoders;
    if (!strcmp(type, "Sequence"))
        return text_read_sequence(reader, part, "decoders", text_read_decoder);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(type, known[i].type))
            continue;
        s2s_grow(&decoders->data, decoders->len, &decoders->cap, sizeof *decoders->data);
        decoders->data[decoders->len] = (struct text_decoder){.kind = known[i].kind};
        return read_one_decoder(reader, &decoders->data[decoders->len++], part);
    }
    return unsupported(reader, part);
}
