/* Inside lib/text: the parts of a tokenizer. A text goes through added tokens, normalizers,
 * pre-tokenizers (pieces) and the model (ids), in this order; decoders go back. */
#ifndef S2S_TEXT_INTERNAL_H
#define S2S_TEXT_INTERNAL_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/base.h"
#include "lib/text/tokenizer.h"

/* A stretch [begin, end) of bytes of some text. */
struct text_span {
    size_t begin, end;
};

struct text_spans {
    struct text_span *data;
    size_t len, cap;
};

void text_spans_add(struct text_spans *spans, size_t begin, size_t end);

enum text_form { TEXT_NFC, TEXT_NFD, TEXT_NFKC, TEXT_NFKD };

/* ---- UTF-8 (the text is known to be valid) ---- */

/* Code point at text, and the bytes it takes. */
uint32_t text_utf8_get(const char *text, size_t *n_bytes);
/* Offset of the first byte that is not UTF-8, or len. */
size_t text_utf8_check(const char *text, size_t len);
/* Appends bytes, each maximal part that is not UTF-8 as U+FFFD (Unicode 3.9; Rust's
 * from_utf8_lossy).
 */
void text_utf8_add_lossy(struct s2s_buf *out, const char *bytes, size_t len);
void text_utf8_add(struct s2s_buf *out, uint32_t cp);
bool text_is_space(uint32_t cp);       /* White_Space */
bool text_is_word(uint32_t cp);        /* as Rust's \w */
bool text_is_punctuation(uint32_t cp); /* P* of an older Unicode, and ASCII's signs */
bool text_is_number(uint32_t cp);      /* N* */
bool text_is_mark(uint32_t cp);        /* as the library's StripAccents has it */
bool text_is_nonspacing(uint32_t cp);  /* Mn, as its Bert has it */
bool text_is_other(uint32_t cp);       /* C*, unassigned ones too, as its Bert has it */
/* Appends the lower case of a character. */
void text_add_lower(struct s2s_buf *out, uint32_t cp);
/* Appends a normal form. 0, or NOMEM. */
int text_add_form(struct s2s_buf *out, enum text_form form, const char *text, size_t len,
                  struct s2s_error *err);

/* Code points first..last of a general category, as two letters. */
struct text_range {
    uint32_t first, last;
    char category[3];
};

struct text_span32 {
    uint32_t first, last;
};

struct text_lower {
    uint32_t cp, to[2]; /* to[1]: 0, or a second character */
};

/* Sorted tables. Characters that the library's patterns know and PCRE2 may not; classes of
 * characters as the library's other parts know them; characters that came after its normal forms,
 * for which those are whole and stay where they are; where its lower case is not utf8proc's. */
extern const struct text_range text_new_characters[];
extern const struct text_span32 text_words[], text_numbers[], text_punctuation[], text_marks[],
    text_nonspacing[], text_others[], text_not_in_forms[];
extern const struct text_lower text_lower_cases[];
extern const size_t text_n_new_characters, text_n_words, text_n_numbers, text_n_punctuation,
    text_n_marks, text_n_nonspacing, text_n_others, text_n_not_in_forms, text_n_lower_cases;

/* Whether text holds text_new_characters. */
bool text_has_new_characters(const char *text, size_t len);

/* ---- patterns: Oniguruma's syntax (as HF tokenizers use it), matched by PCRE2 ---- */

struct text_pattern;
struct text_matcher; /* match data and JIT stack of one thread, for all patterns */

int text_pattern_compile(struct text_pattern **pattern, const char *regex, size_t len,
                         struct s2s_error *err);
void text_pattern_free(struct text_pattern *pattern);
struct text_matcher *text_matcher_new(void);
void text_matcher_free(struct text_matcher *matcher);
/* Next match in text [len] at or behind `from`. has_new: the text holds text_new_characters. 1
 * found, 0 none, negative on error. */
int text_pattern_find(const struct text_pattern *pattern, struct text_matcher *matcher,
                      struct text_span *match, const char *text, size_t len, size_t from,
                      bool has_new, struct s2s_error *err);

/* ---- normalizers ---- */

enum text_normal_kind {
    TEXT_NORMAL_FORM,
    TEXT_NORMAL_LOWERCASE,
    TEXT_NORMAL_STRIP,
    TEXT_NORMAL_STRIP_ACCENTS,
    TEXT_NORMAL_BERT,
    TEXT_NORMAL_NMT,
    TEXT_NORMAL_CHARSMAP,
    TEXT_NORMAL_REPLACE,
    TEXT_NORMAL_PREPEND,
    TEXT_NORMAL_BYTES,
};

/* A string, or a pattern, to look for. */
struct text_needle {
    struct text_pattern *pattern; /* NULL: the string */
    char *string;
    size_t len;
};

void text_needle_release(struct text_needle *needle);

struct text_charsmap; /* sentencepiece's table of replacements */

struct text_normal {
    enum text_normal_kind kind;
    enum text_form form;
    bool left, right;                         /* of STRIP */
    bool clean, chinese, accents, lower_case; /* of BERT */
    struct text_needle needle;                /* of REPLACE */
    char *content;                            /* of REPLACE and PREPEND */
    size_t content_len;
    struct text_charsmap *charsmap;
};

struct text_normals {
    struct text_normal *data;
    size_t len, cap;
};

/* Text that steps change in turn; `first` of its bytes stem from the first character of the text
 * that was given, as the library's offsets say it. */
struct text_normal_work {
    struct s2s_buf text, next;
    size_t first;
    struct text_matcher *matcher;
};

/* Runs all steps; the result is work->text. `first` bytes of the text are followed; 0: those of its
 * first character. */
int text_normals_run(const struct text_normals *normals, struct text_normal_work *work,
                     const char *text, size_t len, size_t first, struct s2s_error *err);
void text_normals_release(struct text_normals *normals);

/* From the bytes of a file's precompiled_charsmap. FORMAT. */
int text_charsmap_new(struct text_charsmap **map, const char *bytes, size_t len,
                      struct s2s_error *err);
void text_charsmap_free(struct text_charsmap *map);
/* Appends text with the map applied; returns how many bytes of it stem from the first `first`. */
size_t text_charsmap_add(const struct text_charsmap *map, struct s2s_buf *out, const char *text,
                         size_t len, size_t first);

/* ---- pre-tokenizers ---- */

enum text_split_behavior {
    TEXT_SPLIT_REMOVED,
    TEXT_SPLIT_ISOLATED,
    TEXT_SPLIT_PREVIOUS,
    TEXT_SPLIT_NEXT,
    TEXT_SPLIT_CONTIGUOUS,
};

enum text_split_kind {
    TEXT_SPLIT_WHOLE,  /* no cut */
    TEXT_SPLIT_NEEDLE, /* at a string or a pattern */
    TEXT_SPLIT_CLASS,  /* at every character of a class */
    TEXT_SPLIT_WORDS,  /* runs of word characters, runs of others that are no space */
    TEXT_SPLIT_FIXED,  /* every so many characters */
    TEXT_SPLIT_BYTES,  /* no cut: bytes become the characters of their alphabet */
};

/* What is put in front of a piece that does not begin with it. */
enum text_prefix { TEXT_PREFIX_NEVER, TEXT_PREFIX_FIRST, TEXT_PREFIX_ALWAYS };

/* One step: cut every piece. Before that spaces are replaced and a prefix is put in front, where
 * asked for. */
struct text_split {
    enum text_split_kind kind;
    struct text_needle needle;
    bool (*in_class)(uint32_t cp, uint32_t delimiter);
    uint32_t delimiter;
    size_t n_characters; /* of FIXED */
    enum text_split_behavior behavior;
    bool invert;
    enum text_prefix prefix;
    char space[5]; /* what replaces ' ' and is the prefix; "": no replacement, ' ' is the prefix */
};

struct text_splits {
    struct text_split *data;
    size_t len, cap;
};

/* A piece of work->text; `first` of its bytes stem from the first character of all. */
struct text_piece {
    size_t begin, end, first;
};

struct text_pieces {
    struct text_piece *data;
    size_t len, cap;
};

struct text_split_work {
    struct text_pieces pieces, next;
    struct text_spans matches;
    bool *is_match; /* of matches */
    size_t is_match_cap;
    struct s2s_buf text; /* the text, and changed copies of pieces */
    bool has_new;        /* it holds text_new_characters */
    bool is_followed;    /* `first` bytes are of another place, and begins says what they told */
    bool begins;         /* the text is the beginning of all */
    struct text_matcher *matcher;
};

/* Cuts text, of which `first` bytes are those of the first character, into work->pieces, spans of
 * work->text. */
int text_split_run(const struct text_splits *splits, struct text_split_work *work, const char *text,
                   size_t len, size_t first, struct s2s_error *err);
void text_splits_release(struct text_splits *splits);

/* ---- the byte alphabet (GPT-2): every byte has a printable character ---- */

uint32_t text_byte_char(unsigned char byte);
/* Turns a token's characters into the bytes they stand for (at most len); returns their number, 0
 * when one stands for none. */
size_t text_bytes_of_token(char *bytes, const char *token, size_t len);

/* ---- tables of strings ---- */

struct text_vocab; /* strings (which may hold NUL) to ids */

struct text_vocab *text_vocab_new(void);
void text_vocab_free(struct text_vocab *vocab);
void text_vocab_set(struct text_vocab *vocab, const char *key, size_t len, int32_t id);
int32_t text_vocab_get(const struct text_vocab *vocab, const char *key, size_t len); /* or -1 */

struct text_lexicon; /* a trie of strings that are all known when it is made */

struct text_entry {
    const char *key; /* borrowed */
    size_t len;
    int32_t value;
};

/* Sorts entries; of equal keys the last one's value counts. Empty keys are left out. */
struct text_lexicon *text_lexicon_new(struct text_entry *entries, size_t n);
void text_lexicon_free(struct text_lexicon *lexicon);
/* The node behind `byte`, -1 when there is none; the root is 0. *value: of the key that ends there,
 * or -1. */
int32_t text_lexicon_step(const struct text_lexicon *lexicon, int32_t node, unsigned char byte,
                          int32_t *value);

/* ---- models: ids of one piece ---- */

enum text_model_kind { TEXT_BPE, TEXT_UNIGRAM, TEXT_WORDPIECE, TEXT_WORDLEVEL };

struct text_bpe;
struct text_unigram;

struct text_wordpiece {
    struct text_lexicon *start, *rest; /* of a word's first part, and of the others */
    size_t max_characters;
};

struct text_model {
    enum text_model_kind kind;
    struct text_vocab *vocab; /* of the model alone, contents as pieces have them */
    int32_t unk;              /* -1: none, -2: its token is not in the vocabulary */
    struct text_bpe *bpe;
    struct text_unigram *unigram;
    struct text_wordpiece wordpiece;
};

struct text_model_work; /* ids of words that were seen, and other memory of one thread */

void text_model_release(struct text_model *model);
struct text_model_work *text_model_work_new(void);
void text_model_work_free(struct text_model_work *work);
/* Appends the ids of a piece and, unless it is NULL, to lens how many bytes of the piece each
 * stands for (0: for those of the id before). NOTFOUND where a character has no token and there is
 * none for unknown ones. */
int text_model_encode(const struct text_model *model, struct text_model_work *work,
                      struct s2s_ids *ids, struct s2s_ids *lens, const char *piece, size_t len,
                      struct s2s_error *err);

/* How a BPE begins: the tokens of single characters, or, with is_bytes, of bytes. */
struct text_bpe_options {
    bool is_bytes, ignore_merges, fuse_unk, byte_fallback;
    char *prefix, *suffix; /* of characters that do not begin, and that end a word; NULL: none */
};

/* vocab is kept, the strings of options are taken. */
struct text_bpe *text_bpe_new(const struct text_bpe_options *options,
                              const struct text_vocab *vocab, int32_t unk);
void text_bpe_free(struct text_bpe *bpe);
/* A merge of rank `rank` of tokens that are left [left_len] and right [right_len]; of equal pairs
 * the last counts. */
void text_bpe_add_merge(struct text_bpe *bpe, int32_t left, int32_t right, int32_t rank,
                        int32_t merged);
/* Says that a token may end with `left` before one that begins with `right`, both characters. */
void text_bpe_add_border(struct text_bpe *bpe, uint32_t left, uint32_t right);
struct text_bpe_work *text_bpe_work_new(void);
void text_bpe_work_free(struct text_bpe_work *work);
bool text_bpe_ignores_merges(const struct text_bpe *bpe);
/* End of the part that begins at `begin`: no merge crosses it. */
size_t text_bpe_part(const struct text_bpe *bpe, const char *piece, size_t len, size_t begin);
/* Appends the ids of one part; whole: it is a piece. 0, or -1 when a character has no token and
 * neither is there one for unknown ones. */
int text_bpe_merge(const struct text_bpe *bpe, struct text_bpe_work *work, struct s2s_ids *ids,
                   struct s2s_ids *lens, const char *part, size_t len);

struct text_unigram_work;

/* pieces [n] are borrowed for the call, scores are kept (taken); vocab is kept. */
struct text_unigram *text_unigram_new(struct text_entry *pieces, double *scores, size_t n,
                                      const struct text_vocab *vocab, int32_t unk,
                                      bool byte_fallback);
void text_unigram_free(struct text_unigram *unigram);
struct text_unigram_work *text_unigram_work_new(void);
void text_unigram_work_free(struct text_unigram_work *work);
/* Appends the ids of the best path; 0, or -1 as text_bpe_merge. */
int text_unigram_encode(const struct text_unigram *unigram, struct text_unigram_work *work,
                        struct s2s_ids *ids, struct s2s_ids *lens, const char *piece, size_t len);

/* ---- decoders ---- */

enum text_decoder_kind {
    TEXT_DECODE_BYTES,
    TEXT_DECODE_REPLACE,
    TEXT_DECODE_METASPACE,
    TEXT_DECODE_BYTE_FALLBACK,
    TEXT_DECODE_FUSE,
    TEXT_DECODE_STRIP,
    TEXT_DECODE_WORDPIECE,
    TEXT_DECODE_SUFFIX,
    TEXT_DECODE_CTC,
};

struct text_decoder {
    enum text_decoder_kind kind;
    struct text_needle needle; /* of REPLACE */
    char *content;             /* REPLACE: what replaces; WORDPIECE: prefix; SUFFIX; CTC: pad */
    size_t content_len;
    char *delimiter; /* of words, CTC */
    size_t delimiter_len;
    char sign[5];          /* of METASPACE and STRIP: a character */
    size_t n_start, n_end; /* of STRIP */
    bool clean, drop_first;
};

struct text_decoders {
    struct text_decoder *data;
    size_t len, cap;
};

/* A list of strings in one memory. */
struct text_strings {
    struct s2s_buf bytes;
    size_t *ends;
    size_t len, cap;
};

void text_strings_end(struct text_strings *strings); /* ends the one that is being appended */
void text_strings_clear(struct text_strings *strings);
void text_strings_release(struct text_strings *strings);
/* Runs all steps over strings, which it changes. */
int text_decoders_run(const struct text_decoders *decoders, struct text_strings *strings,
                      struct s2s_error *err);
void text_decoders_release(struct text_decoders *decoders);

/* ---- added tokens ---- */

struct text_added {
    char *content;
    size_t len;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};

struct text_trie; /* finds the leftmost longest of a set of strings */

struct text_trie *text_trie_new(void);
void text_trie_free(struct text_trie *trie);
void text_trie_add(struct text_trie *trie, const char *key, size_t len, int32_t value);
/* The leftmost, then longest key at or behind `from`: its value, or -1. */
int32_t text_trie_find(const struct text_trie *trie, struct text_span *match, const char *text,
                       size_t len, size_t from);

/* ---- tokenizer.model of sentencepiece, by its own library ---- */

struct text_sp;

/* From the bytes of the file; gives the tokens to tok, too. UNSUPPORTED: the library is not there;
 * FORMAT. */
int text_sp_open(struct s2s_tokenizer *tok, const char *bytes, size_t len, struct s2s_error *err);
void text_sp_close(struct text_sp *sp);
/* Appends the ids of text and, unless NULL, where in it each one's bytes end. */
int text_sp_encode(const struct text_sp *sp, struct s2s_ids *ids, struct s2s_ids *ends,
                   const char *text, size_t len, struct s2s_error *err);
/* Appends the text of ids, which are all of the model. */
int text_sp_decode(const struct text_sp *sp, struct s2s_buf *out, const int32_t *ids, size_t n,
                   struct s2s_error *err);
int32_t text_sp_size(const struct text_sp *sp);
/* Prompts write control pieces as text, which sentencepiece itself never takes for them: from now
 * on they are found. Nothing where tok is no model of sentencepiece. */
int text_sp_find_controls(struct s2s_tokenizer *tok, struct s2s_error *err);

/* ---- the whole ---- */

struct text_token {
    char *content; /* as the file spells it; NULL: no such id */
    size_t content_len;
    char *bytes; /* what decoders get; with the ByteLevel decoder alone, what it makes of it */
    size_t bytes_len;
    bool special;
    bool skipped; /* when special tokens are left out of a text */
};

struct text_post_piece {
    bool is_text;
    struct s2s_ids ids; /* of special tokens */
};

struct s2s_tokenizer {
    struct text_token *tokens; /* [n_tokens], by id */
    int32_t n_tokens;
    size_t tokens_cap;
    struct text_vocab *contents; /* ids of tokens by content */
    struct text_normals normals;
    struct text_splits splits;
    struct text_model model;
    struct text_sp
        *sp; /* does the work of normalizers, pre-tokenizers, model and decoders; or NULL */
    struct text_decoders decoders;
    bool has_decoder, decodes_bytes; /* decodes_bytes: by ByteLevel alone */
    struct text_added *added;
    size_t n_added, added_cap;
    struct text_trie *raw_trie, *normalized_trie; /* values index `added` */
    struct text_post_piece *post;                 /* NULL: the text alone */
    size_t n_post, post_cap;
    int32_t bos, eos, pad;
    json_t *names;       /* of tokenizer_config.json: "bos_token" and its like to contents */
    char *chat_template; /* its template of conversations, or NULL */
    char digest[33];
    struct text_pool *pool; /* of the buffers that encoding threads borrow */
};

/* From the parsed file into an empty tokenizer. */
int text_tokenizer_load(struct s2s_tokenizer *tok, const char *json, size_t len,
                        struct s2s_error *err);
/* Token `id` is content [len]. */
void text_tokenizer_set_token(struct s2s_tokenizer *tok, int32_t id, const char *content,
                              size_t len);
/* What decoding begins with, of all tokens: behind the last of them, and the decoders. */
void text_tokenizer_set_bytes(struct s2s_tokenizer *tok);
int text_tokenizer_add(struct s2s_tokenizer *tok, const struct text_added *added,
                       struct s2s_error *err);

/* Appends the ids of text, and to learned, for each id, 1 if it belongs to one of the stretches:
 * from the first that holds a byte of a stretch's first character to the first of its last one, as
 * transformers counts them. */
int text_tokenizer_encode_learned(const struct s2s_tokenizer *tok, struct s2s_ids *ids,
                                  struct s2s_buf *learned, const char *text, size_t len,
                                  const struct text_spans *stretches, struct s2s_error *err);

/* ---- reading a tokenizer.json: where in the file a reader is ---- */

struct text_reader {
    struct s2s_tokenizer *tok;
    char place[200]; /* "pre_tokenizer.pretokenizers[1]" */
    bool is_bytes;   /* the last pre-tokenizer is ByteLevel, whose pieces stay bytes */
    struct s2s_error *err;
};

/* Fails with "PLACE.KEY: text", or "PLACE: text" where key is NULL. */
int text_reader_fail(const struct text_reader *reader, int code, const char *key, const char *fmt,
                     ...) __attribute__((format(printf, 4, 5)));
const char *text_reader_type(const json_t *part);
/* Absent and null are `missing`, where it is allowed: a string or whole number of the part. */
int text_reader_bool(const struct text_reader *reader, bool *out, const json_t *part,
                     const char *key, bool missing);
int text_reader_string(const struct text_reader *reader, char **out, size_t *len,
                       const json_t *part, const char *key, const char *missing);
int text_reader_size(const struct text_reader *reader, size_t *out, const json_t *part,
                     const char *key, int64_t missing);
/* A key that is one character; out [5]. */
int text_reader_character(const struct text_reader *reader, char *out, const json_t *part,
                          const char *key, const char *missing);
/* "pattern": {"String": ..} or {"Regex": ..} */
int text_reader_needle(const struct text_reader *reader, struct text_needle *needle,
                       const json_t *part);
/* Each reads one part, which may be a Sequence. */
int text_read_normalizer(struct text_reader *reader, const json_t *part);
int text_read_pre_tokenizer(struct text_reader *reader, const json_t *part);
int text_read_decoder(struct text_reader *reader, const json_t *part);
int text_read_model(struct text_reader *reader, const json_t *model);
/* Reads the items of a Sequence's list by `read`. */
int text_read_sequence(struct text_reader *reader, const json_t *part, const char *key,
                       int (*read)(struct text_reader *reader, const json_t *item));

#endif
