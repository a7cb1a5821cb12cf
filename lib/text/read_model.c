/* Reads the model of a tokenizer.json: its vocabulary, merges or scores. */
#include <jansson.h>

#include "lib/text/text_internal.h"

/* Ids index tables: they may have holes, but not so that a small file asks for much memory. */
static int check_id(const struct text_reader *reader, json_int_t id, size_t n_vocab,
                    const char *what)
{
    json_int_t limit = (json_int_t)(8 * n_vocab + 1000000);
    if (id < 0 || id >= limit)
        return text_reader_fail(reader, S2S_E_RANGE, "vocab",
                                "id %lld of %.60s is not in [0, %lld)", (long long)id, what,
                                (long long)limit);
    return 0;
}

/* The key by which pieces are looked up: where they stay bytes, what the token stands for. */
static void set_word(struct text_reader *reader, const char *token, size_t len, int32_t id)
{
    struct s2s_tokenizer *tok = reader->tok;
    if (!reader->is_bytes) {
        text_vocab_set(tok->model.vocab, token, len, id);
        return;
    }
    char *bytes = s2s_xmalloc(len + 1);
    size_t n = text_bytes_of_token(bytes, token, len);
    if (n > 0)
        text_vocab_set(tok->model.vocab, bytes, n, id);
    free(bytes);
}

static int read_vocab(struct text_reader *reader, const json_t *vocab)
{
    struct s2s_tokenizer *tok = reader->tok;
    const char *token;
    json_t *value;
    size_t n_vocab = json_object_size(vocab), len;
    if (n_vocab == 0)
        return text_reader_fail(reader, S2S_E_FORMAT, "vocab", "not an object with tokens");
    json_object_keylen_foreach((json_t *)(uintptr_t)vocab, token, len, value)
    {
        if (!json_is_integer(value))
            return text_reader_fail(reader, S2S_E_FORMAT, "vocab", "id of %.60s is not an integer",
                                    token);
        json_int_t id = json_integer_value(value);
        int rc = check_id(reader, id, n_vocab, token);
        if (rc < 0)
            return rc;
        if (id < tok->n_tokens && tok->tokens[id].content)
            return text_reader_fail(reader, S2S_E_FORMAT, "vocab", "two tokens have the id %lld",
                                    (long long)id);
        text_tokenizer_set_token(tok, (int32_t)id, token, len);
        set_word(reader, token, len, (int32_t)id);
    }
    return 0;
}

/* unk_token's id, -1 where the model names none, -2 where it is no token. */
static int read_unk(struct text_reader *reader, const json_t *model)
{
    const json_t *unk = json_object_get(model, "unk_token");
    reader->tok->model.unk = -1;
    if (!unk || json_is_null(unk))
        return 0;
    if (!json_is_string(unk))
        return text_reader_fail(reader, S2S_E_FORMAT, "unk_token", "not a string");
    int32_t id =
        text_vocab_get(reader->tok->contents, json_string_value(unk), json_string_length(unk));
    reader->tok->model.unk = id >= 0 ? id : -2;
    return 0;
}

/* ---- BPE ---- */

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

static void add_border(struct text_bpe *bpe, const char *left, size_t left_len, const char *right)
{
    size_t n, last = left_len - 1;
    while (last > 0 && (left[last] & 0xc0) == 0x80)
        last--;
    text_bpe_add_border(bpe, text_utf8_get(left + last, &n), text_utf8_get(right, &n));
}

static int read_merges(struct text_reader *reader, const json_t *merges, size_t prefix_len)
{
    const struct s2s_tokenizer *tok = reader->tok;
    struct s2s_buf whole = S2S_BUF_INIT;
    size_t i;
    json_t *merge;
    int rc = 0;
    if (!json_is_array(merges))
        return text_reader_fail(reader, S2S_E_FORMAT, "merges", "not an array");
    json_array_foreach(merges, i, merge)
    {
        const char *side[2];
        size_t len[2];
        if (!merge_sides(merge, side, len) || len[0] == 0 || len[1] <= prefix_len) {
            rc = text_reader_fail(reader, S2S_E_FORMAT, "merges", "[%zu] is not a pair of tokens",
                                  i);
            break;
        }
        s2s_buf_clear(&whole);
        s2s_buf_add(&whole, side[0], len[0]);
        s2s_buf_add(&whole, side[1] + prefix_len, len[1] - prefix_len);
        int32_t left = text_vocab_get(tok->contents, side[0], len[0]);
        int32_t right = text_vocab_get(tok->contents, side[1], len[1]);
        int32_t merged = text_vocab_get(tok->contents, whole.data, whole.len);
        if (left < 0 || right < 0 || merged < 0) {
            rc = text_reader_fail(reader, S2S_E_FORMAT, "merges",
                                  "[%zu]: %.60s is not in the vocabulary", i,
                                  left < 0    ? side[0]
                                  : right < 0 ? side[1]
                                              : whole.data);
            break;
        }
        text_bpe_add_merge(tok->model.bpe, left, right, (int32_t)i, merged);
        add_border(tok->model.bpe, side[0], len[0], side[1]);
    }
    s2s_buf_release(&whole);
    return rc;
}

static int read_bpe_options(struct text_reader *reader, struct text_bpe_options *options,
                            const json_t *model)
{
    size_t len;
    int rc = text_reader_bool(reader, &options->ignore_merges, model, "ignore_merges", false);
    if (rc == 0)
        rc = text_reader_bool(reader, &options->fuse_unk, model, "fuse_unk", false);
    if (rc == 0)
        rc = text_reader_bool(reader, &options->byte_fallback, model, "byte_fallback", false);
    if (rc == 0)
        rc = text_reader_string(reader, &options->prefix, &len, model, "continuing_subword_prefix",
                                "");
    if (rc == 0)
        rc = text_reader_string(reader, &options->suffix, &len, model, "end_of_word_suffix", "");
    if (rc == 0 && json_number_value(json_object_get(model, "dropout")) != 0)
        rc = text_reader_fail(reader, S2S_E_UNSUPPORTED, "dropout",
                              "merges left out at random are not supported");
    if (options->prefix && !*options->prefix) {
        free(options->prefix);
        options->prefix = NULL;
    }
    if (options->suffix && !*options->suffix) {
        free(options->suffix);
        options->suffix = NULL;
    }
    return rc;
}

static int read_bpe(struct text_reader *reader, const json_t *model)
{
    struct s2s_tokenizer *tok = reader->tok;
    struct text_bpe_options options = {.is_bytes = false};
    tok->model.kind = TEXT_BPE;
    int rc = read_bpe_options(reader, &options, model);
    /* ByteLevel as the last step makes characters that all stand for bytes: pieces may stay bytes,
     * unless the model looks at more than their tokens */
    struct text_splits *splits = &tok->splits;
    if (rc == 0 && splits->len > 0 && splits->data[splits->len - 1].kind == TEXT_SPLIT_BYTES &&
        !options.byte_fallback && !options.prefix && !options.suffix) {
        splits->len--;
        reader->is_bytes = options.is_bytes = true;
    }
    if (rc == 0)
        rc = read_vocab(reader, json_object_get(model, "vocab"));
    if (rc == 0)
        rc = read_unk(reader, model);
    if (rc < 0) {
        free(options.prefix);
        free(options.suffix);
        return rc;
    }
    size_t prefix_len = options.prefix ? strlen(options.prefix) : 0;
    tok->model.bpe = text_bpe_new(&options, tok->model.vocab, tok->model.unk);
    return read_merges(reader, json_object_get(model, "merges"), prefix_len);
}

/* ---- Unigram ---- */

static int read_pieces(struct text_reader *reader, struct text_entry *pieces, double *scores,
                       const json_t *vocab)
{
    size_t i;
    json_t *item;
    json_array_foreach(vocab, i, item)
    {
        const json_t *piece = json_array_get(item, 0), *score = json_array_get(item, 1);
        if (!json_is_string(piece) || !json_is_number(score))
            return text_reader_fail(reader, S2S_E_FORMAT, "vocab", "[%zu] is not [piece, score]",
                                    i);
        pieces[i] =
            (struct text_entry){json_string_value(piece), json_string_length(piece), (int32_t)i};
        scores[i] = json_number_value(score);
        text_tokenizer_set_token(reader->tok, (int32_t)i, pieces[i].key, pieces[i].len);
        text_vocab_set(reader->tok->model.vocab, pieces[i].key, pieces[i].len, (int32_t)i);
    }
    return 0;
}

static int read_unigram(struct text_reader *reader, const json_t *model)
{
    const json_t *vocab = json_object_get(model, "vocab");
    const json_t *unk = json_object_get(model, "unk_id");
    size_t n = json_array_size(vocab);
    bool byte_fallback;
    int rc = text_reader_bool(reader, &byte_fallback, model, "byte_fallback", false);
    reader->tok->model.kind = TEXT_UNIGRAM;
    if (rc < 0)
        return rc;
    if (n == 0)
        return text_reader_fail(reader, S2S_E_FORMAT, "vocab", "not an array with pieces");
    if (unk && !json_is_null(unk) &&
        (!json_is_integer(unk) || json_integer_value(unk) < 0 ||
         json_integer_value(unk) >= (json_int_t)n))
        return text_reader_fail(reader, S2S_E_FORMAT, "unk_id", "not the index of a piece");
    struct text_entry *pieces = s2s_xcalloc(n, sizeof *pieces);
    double *scores = s2s_xcalloc(n, sizeof *scores);
    rc = read_pieces(reader, pieces, scores, vocab);
    if (rc == 0) {
        struct text_model *m = &reader->tok->model;
        m->unk = json_is_integer(unk) ? (int32_t)json_integer_value(unk) : -1;
        m->unigram = text_unigram_new(pieces, scores, n, m->vocab, m->unk, byte_fallback);
    } else {
        free(scores);
    }
    free(pieces);
    return rc;
}

/* ---- WordPiece and WordLevel ---- */

static int read_wordpiece(struct text_reader *reader, const json_t *model)
{
    struct text_wordpiece *wordpiece = &reader->tok->model.wordpiece;
    const json_t *vocab = json_object_get(model, "vocab");
    size_t prefix_len = 0, n = 0, n_rest = 0, len;
    const char *token;
    char *prefix = NULL;
    json_t *value;
    reader->tok->model.kind = TEXT_WORDPIECE;
    int rc = read_vocab(reader, vocab);
    if (rc == 0)
        rc = read_unk(reader, model);
    if (rc == 0)
        rc = text_reader_size(reader, &wordpiece->max_characters, model, "max_input_chars_per_word",
                              100);
    if (rc == 0)
        rc = text_reader_string(reader, &prefix, &prefix_len, model, "continuing_subword_prefix",
                                "##");
    if (rc < 0)
        return rc;
    struct text_entry *all = s2s_xcalloc(json_object_size(vocab), sizeof *all);
    struct text_entry *rest = s2s_xcalloc(json_object_size(vocab), sizeof *rest);
    json_object_keylen_foreach((json_t *)(uintptr_t)vocab, token, len, value)
    {
        int32_t id = (int32_t)json_integer_value(value);
        all[n++] = (struct text_entry){token, len, id};
        if (len > prefix_len && (prefix_len == 0 || !memcmp(token, prefix, prefix_len)))
            rest[n_rest++] = (struct text_entry){token + prefix_len, len - prefix_len, id};
    }
    wordpiece->start = text_lexicon_new(all, n);
    wordpiece->rest = text_lexicon_new(rest, n_rest);
    free(all);
    free(rest);
    free(prefix);
    return 0;
}

static int read_wordlevel(struct text_reader *reader, const json_t *model)
{
    reader->tok->model.kind = TEXT_WORDLEVEL;
    int rc = read_vocab(reader, json_object_get(model, "vocab"));
    return rc < 0 ? rc : read_unk(reader, model);
}

int text_read_model(struct text_reader *reader, const json_t *model)
{
    const char *type = text_reader_type(model);
    /* files of old have no type */
    const bool untyped = !json_object_get(model, "type");
    reader->tok->model.vocab = text_vocab_new();
    if (!strcmp(type, "BPE") || (untyped && json_object_get(model, "merges")))
        return read_bpe(reader, model);
    if (!strcmp(type, "Unigram") || (untyped && json_is_array(json_object_get(model, "vocab"))))
        return read_unigram(reader, model);
    if (!strcmp(type, "WordPiece") ||
        (untyped && json_object_get(model, "continuing_subword_prefix")))
        return read_wordpiece(reader, model);
    if (!strcmp(type, "WordLevel") || untyped)
        return read_wordlevel(reader, model);
    return text_reader_fail(reader, S2S_E_UNSUPPORTED, "type", "%s is not supported", type);
}
