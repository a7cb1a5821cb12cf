/*
 * Makes the tokenizer and processor of transformers' Parakeet from a SentencePiece model:
 * tokenizer.json, tokenizer_config.json and processor_config.json. As in transformers'
 * ParakeetConverter and convert_nemo_to_hf.py, pairs of pieces that join to a piece are the merges
 * of a BPE, in order of score, whatever kind the model was; the blank is a token after the pieces.
 */
#include <math.h>

#include "lib/base/base.h"
#include "lib/base/utf8.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/nemo/from_nemo.h"
#include "lib/ckpt/nemo/spm.h"

/* Limit for the length of a piece, as every split of it is tried; SentencePiece's own limit is 16
 * characters. */
enum { PIECE_MAX = 512 };

static const char SPACE[] = "\xe2\x96\x81";

struct merge {
    float score;
    size_t piece, cut;       /* cut: length of the left part, in bytes */
    int left_len, right_len; /* characters */
    json_int_t left, right;
};

struct merges {
    struct merge *v;
    size_t n, cap;
};

/* By best score, then longest left and right parts, then order of pieces. */
static int by_rank(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_len != y->left_len)
        return y->left_len - x->left_len;
    if (x->right_len != y->right_len)
        return y->right_len - x->right_len;
    if (x->piece != y->piece)
        return x->piece < y->piece ? -1 : 1;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return (x->right > y->right) - (x->right < y->right);
}

static int n_characters(const char *text, const char *end)
{
    int n = 0;
    for (; text < end; n++)
        text += s2s_utf8_len(text, end);
    return n;
}

static void add_merges(struct merges *merges, const json_t *vocab, const struct ckpt_spm *spm,
                       size_t i)
{
    const struct ckpt_spm_piece *piece = &spm->pieces[i];
    const char *end = piece->text + piece->len, *at = piece->text;
    for (int len = 1, whole = n_characters(at, end); len < whole; len++) {
        at += s2s_utf8_len(at, end);
        const json_t *left = json_object_getn(vocab, piece->text, (size_t)(at - piece->text));
        const json_t *right = left ? json_object_getn(vocab, at, (size_t)(end - at)) : NULL;
        if (!right)
            continue;
        s2s_grow(&merges->v, merges->n, &merges->cap, sizeof *merges->v);
        merges->v[merges->n++] = (struct merge){.score = piece->score,
                                                .piece = i,
                                                .cut = (size_t)(at - piece->text),
                                                .left_len = len,
                                                .right_len = whole - len,
                                                .left = json_integer_value(left),
                                                .right = json_integer_value(right)};
    }
}

static json_t *merges_of(const struct ckpt_spm *spm, const json_t *vocab)
{
    struct merges merges = {.n = 0};
    json_t *out = json_array();
    for (size_t i = 0; i < spm->n_pieces; i++)
        add_merges(&merges, vocab, spm, i);
    if (merges.n)
        qsort(merges.v, merges.n, sizeof *merges.v, by_rank);
    for (size_t i = 0; i < merges.n; i++) {
        const struct merge *m = &merges.v[i];
        const struct ckpt_spm_piece *piece = &spm->pieces[m->piece];
        json_array_append_new(out, json_pack("[s%, s%]", piece->text, m->cut, piece->text + m->cut,
                                             piece->len - m->cut));
    }
    free(merges.v);
    return out;
}

/* An object: text of a piece -> id; NULL: pieces that a tokenizer cannot have. SentencePiece's own
 * tables end at a NUL, and many JSON parsers refuse one in a key. */
static json_t *vocab_of(const struct ckpt_spm *spm)
{
    json_t *vocab = json_object();
    for (size_t i = 0; i < spm->n_pieces; i++) {
        const struct ckpt_spm_piece *piece = &spm->pieces[i];
        if (piece->len > PIECE_MAX || memchr(piece->text, 0, piece->len) || isnan(piece->score) ||
            json_object_getn(vocab, piece->text, piece->len)) {
            json_decref(vocab);
            return NULL;
        }
        json_object_setn_new(vocab, piece->text, piece->len, json_integer((json_int_t)i));
    }
    return vocab;
}

/* ---- added tokens ---- */

static void add_token(json_t *tokens, json_int_t id, const json_t *content, bool special)
{
    json_array_append_new(tokens, json_pack("{s:I, s:O, s:b, s:b, s:b, s:b, s:b}", "id", id,
                                            "content", content, "single_word", 0, "lstrip", 0,
                                            "rstrip", 0, "normalized", 0, "special", special));
}

/* Control and user-defined pieces, the unknown token, `pad`; in order of ids, the blank last. */
static json_t *tokens_of(const struct ckpt_spm *spm, const char *pad, const char *blank)
{
    json_t *tokens = json_array(), *content;
    for (size_t i = 0; i < spm->n_pieces; i++) {
        const struct ckpt_spm_piece *piece = &spm->pieces[i];
        const bool unknown = piece->len == spm->unknown.len &&
                             memcmp(piece->text, spm->unknown.text, piece->len) == 0;
        const bool is_pad = piece->len == strlen(pad) && memcmp(piece->text, pad, piece->len) == 0;
        if (piece->type != CKPT_SPM_CONTROL && piece->type != CKPT_SPM_USER && !unknown && !is_pad)
            continue;
        content = json_stringn(piece->text, piece->len);
        add_token(tokens, (json_int_t)i, content,
                  unknown || is_pad || piece->type == CKPT_SPM_CONTROL);
        json_decref(content);
    }
    content = json_string(blank);
    add_token(tokens, (json_int_t)spm->n_pieces, content, true);
    json_decref(content);
    return tokens;
}

/* ---- tokenizer.json ---- */

static json_t *charsmap(const struct ckpt_spm *spm)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *from = spm->charsmap;
    struct s2s_buf text = S2S_BUF_INIT;
    for (size_t i = 0; i < spm->charsmap_len; i += 3) {
        const size_t left = spm->charsmap_len - i;
        const uint32_t bits = (uint32_t)from[i] << 16 |
                              (left > 1 ? (uint32_t)from[i + 1] << 8 : 0) |
                              (left > 2 ? from[i + 2] : 0);
        for (size_t k = 0; k < 4; k++)
            s2s_buf_putc(&text, k <= left ? digits[bits >> (18 - 6 * k) & 63] : '=');
    }
    json_t *out = json_pack("{s:s, s:s%}", "type", "Precompiled", "precompiled_charsmap", text.data,
                            text.len);
    s2s_buf_release(&text);
    return out;
}

static json_t *normalizer(const struct ckpt_spm *spm)
{
    json_t *steps = json_pack("[{s:s, s:b, s:b}, {s:s, s:{s:s}, s:s}]", "type", "Strip",
                              "strip_left", 0, "strip_right", 1, "type", "Replace", "pattern",
                              "Regex", " {2,}", "content", SPACE);
    if (spm->charsmap_len)
        json_array_insert_new(steps, 0, charsmap(spm));
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
}

static json_t *metaspace(void)
{
    return json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", SPACE,
                     "prepend_scheme", "always", "split", 1);
}

/* Adds no special tokens: a text unchanged, a pair concatenated. */
static json_t *post_processor(void)
{
    return json_pack("{s:s, s:[{s:{s:s, s:i}}], s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:{}}", "type",
                     "TemplateProcessing", "single", "Sequence", "id", "A", "type_id", 0, "pair",
                     "Sequence", "id", "A", "type_id", 0, "Sequence", "id", "B", "type_id", 1,
                     "special_tokens");
}

/* vocab: taken */
static char *tokenizer_json(const struct ckpt_spm *spm, json_t *vocab, const char *pad,
                            const char *blank)
{
    json_t *merges = merges_of(spm, vocab);
    json_t *model =
        json_pack("{s:s, s:n, s:s%, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                  "unk_token", spm->unknown.text, spm->unknown.len, "continuing_subword_prefix",
                  "end_of_word_suffix", "fuse_unk", 1, "byte_fallback", 1, "ignore_merges", 0,
                  "vocab", vocab, "merges", merges);
    json_t *out = json_pack(
        "{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
        "added_tokens", tokens_of(spm, pad, blank), "normalizer", normalizer(spm), "pre_tokenizer",
        metaspace(), "post_processor", post_processor(), "decoder", metaspace(), "model", model);
    char *text = json_dumps(out, JSON_INDENT(1));
    json_decref(out);
    return text;
}

static char *as_text(json_t *value)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(value);
    return text;
}

/* Kind of head, as processors call it; NULL: not a Parakeet with a head. */
static const char *kind_of(const json_t *config)
{
    static const char *const kinds[] = {"parakeet_ctc", "parakeet_tdt", "parakeet_rnnt"};
    const char *type = ckpt_config_type(config);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(type, kinds[i]) == 0)
            return kinds[i] + strlen("parakeet_");
    return NULL;
}

static void write_texts(struct ckpt_nemo_texts *texts, const struct ckpt_spm *spm, json_t *vocab,
                        const char *kind)
{
    /* CTC's blank is also the padding, unless the model has a <pad> of its own */
    const bool own_pad = json_object_get(vocab, "<pad>") != NULL;
    const char *blank = strcmp(kind, "ctc") == 0 && !own_pad ? "<pad>" : "<blank>";
    const char *pad = strcmp(kind, "tdt") == 0 && own_pad ? "<pad>" : blank;
    json_t *unknown = json_stringn(spm->unknown.text, spm->unknown.len);
    texts->tokenizer_config = as_text(json_pack(
        "{s:s, s:b, s:s, s:s, s:s, s:O}", "backend", "tokenizers", "clean_up_tokenization_spaces",
        0, "pad_token", pad, "processor_class", "ParakeetProcessor", "tokenizer_class",
        "ParakeetTokenizer", "unk_token", unknown));
    json_decref(unknown);
    json_t *features = texts->features ? json_loads(texts->features, 0, NULL) : NULL;
    json_t *processor = json_pack("{s:s, s:s, s:s}", "blank_token", blank, "decoder_type", kind,
                                  "processor_class", "ParakeetProcessor");
    if (features)
        json_object_set_new(processor, "feature_extractor", features);
    texts->processor = as_text(processor);
    texts->tokenizer = tokenizer_json(spm, json_incref(vocab), pad, blank);
}

int ckpt_nemo_tokenizer(struct ckpt_nemo_texts *texts, const json_t *config, const void *bytes,
                        size_t len, struct s2s_error *err)
{
    const char *kind = kind_of(config);
    const json_int_t classes = json_integer_value(json_object_get(config, "vocab_size"));
    struct ckpt_spm spm;
    if (!kind)
        return 0;
    int rc = ckpt_spm_read(&spm, bytes, len, err);
    if (rc < 0)
        return rc;
    json_t *vocab = vocab_of(&spm);
    if ((json_int_t)spm.n_pieces != classes - 1)
        rc = s2s_error_set(err, S2S_E_SHAPE, "it has %zu pieces, the head %lld classes and a blank",
                           spm.n_pieces, (long long)classes - 1);
    else if (!vocab || json_object_get(vocab, "<blank>"))
        rc = s2s_error_set(
            err, S2S_E_FORMAT,
            "a piece occurs twice, is absurdly long, holds a NUL byte or is called <blank>");
    else
        write_texts(texts, &spm, vocab, kind);
    json_decref(vocab);
    ckpt_spm_release(&spm);
    return rc;
}
