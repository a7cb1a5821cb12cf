/* Inside lib/text: the parts of a tokenizer. A text goes through added tokens, normalizer,
 * pre-tokenizers (pieces) and BPE (ids), in this order. */
#ifndef S2S_TEXT_INTERNAL_H
#define S2S_TEXT_INTERNAL_H

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

/* ---- UTF-8 (the text is known to be valid) ---- */

/* Code point at text, and the bytes it takes. */
uint32_t text_utf8_get(const char *text, size_t *n_bytes);
/* Offset of the first byte that is not UTF-8, or len. */
size_t text_utf8_check(const char *text, size_t len);
/* Appends bytes, each maximal part that is not UTF-8 as U+FFFD (Unicode 3.9; Rust's
 * from_utf8_lossy).
 */
void text_utf8_add_lossy(struct s2s_buf *out, const char *bytes, size_t len);
bool text_is_space(uint32_t cp);        /* White_Space */
bool text_is_alphanumeric(uint32_t cp); /* Alphabetic, a mark, Nd or Pc: a word's character */
/* Appends the NFC form. 0, or NOMEM. */
int text_add_nfc(struct s2s_buf *out, const char *text, size_t len, struct s2s_error *err);

/* Code points first..last of a general category, as two letters, or one for all that begin so. */
struct text_range {
    uint32_t first, last;
    char category[3];
};

/* Sorted tables of where HF tokenizers know another Unicode than the libraries here: characters
 * that their patterns know and PCRE2 may not; digits that only their Digits knows; characters that
 * came after their NFC, for which those are whole and stay where they are. */
extern const struct text_range text_new_characters[], text_new_digits[], text_not_in_nfc[];
extern const size_t text_n_new_characters, text_n_new_digits, text_n_not_in_nfc;

bool text_in_ranges(uint32_t cp, const struct text_range *ranges, size_t n);
/* Offset of the first character of text that is in the ranges; len when none is. */
size_t text_find_in_ranges(const char *text, size_t len, const struct text_range *ranges, size_t n);

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

/* ---- pre-tokenizers ---- */

enum text_split_behavior {
    TEXT_SPLIT_REMOVED,
    TEXT_SPLIT_ISOLATED,
    TEXT_SPLIT_PREVIOUS,
    TEXT_SPLIT_NEXT,
    TEXT_SPLIT_CONTIGUOUS,
};

/* One step: cut every piece by a pattern, after putting a space in front where asked for. */
struct text_split {
    struct text_pattern *pattern; /* NULL: no cut */
    enum text_split_behavior behavior;
    bool invert;
    bool add_prefix_space;
};

struct text_splits {
    struct text_split *data;
    size_t len, cap;
};

struct text_split_work {
    struct text_spans pieces, next, matches;
    bool *is_match; /* of matches */
    size_t is_match_cap;
    struct s2s_buf text; /* the piece, and copies that begin with a space */
    bool has_new;        /* it holds text_new_characters */
    struct text_matcher *matcher;
};

/* Cuts text into work->pieces, spans of work->text. */
int text_split_run(const struct text_splits *splits, struct text_split_work *work, const char *text,
                   size_t len, struct s2s_error *err);
void text_splits_release(struct text_splits *splits);

/* ---- the byte alphabet (GPT-2): every byte has a printable character ---- */

uint32_t text_byte_char(unsigned char byte);
/* Turns a token's characters into the bytes they stand for (at most len); returns their number, 0
 * when one stands for none. */
size_t text_bytes_of_token(char *bytes, const char *token, size_t len);

/* ---- BPE over bytes ---- */

struct text_bpe;
struct text_bpe_work; /* word cache and queue of one thread */

struct text_bpe *text_bpe_new(bool ignore_merges, int32_t unk, bool fuse_unk);
void text_bpe_free(struct text_bpe *bpe);
/* The id of a whole word (its bytes). */
void text_bpe_add_word(struct text_bpe *bpe, const char *bytes, size_t len, int32_t id);
/* A merge of rank `rank`; of equal pairs the last counts. */
void text_bpe_add_merge(struct text_bpe *bpe, int32_t left, int32_t right, int32_t rank,
                        int32_t merged);
struct text_bpe_work *text_bpe_work_new(void);
void text_bpe_work_free(struct text_bpe_work *work);
/* Appends the ids of one word. */
void text_bpe_encode(const struct text_bpe *bpe, struct text_bpe_work *work, struct s2s_ids *ids,
                     const char *word, size_t len);

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

/* ---- the whole ---- */

struct text_token {
    char *content; /* as the file spells it; NULL: no such id */
    size_t content_len;
    char *bytes; /* what it decodes to */
    size_t bytes_len;
    bool special;
};

struct text_post_piece {
    bool is_text;
    struct s2s_ids ids; /* of a special token */
};

struct s2s_tokenizer {
    struct text_token *tokens; /* [n_tokens], by id */
    int32_t n_tokens;
    size_t tokens_cap;
    struct text_bpe *bpe;
    bool nfc;
    struct text_splits splits;
    struct text_added *added;
    size_t n_added, added_cap;
    struct text_trie *raw_trie, *normalized_trie; /* values index `added` */
    struct text_post_piece *post;                 /* NULL: the text alone */
    size_t n_post, post_cap;
    int32_t bos, eos, pad;
    char digest[33];
    struct text_pool *pool; /* of the buffers that encoding threads borrow */
};

/* From the parsed file into an empty tokenizer. */
int text_tokenizer_load(struct s2s_tokenizer *tok, const char *json, size_t len,
                        struct s2s_error *err);
/* Token `id` is content [len]. Whether all its characters stand for bytes. */
bool text_tokenizer_set_token(struct s2s_tokenizer *tok, int32_t id, const char *content,
                              size_t len, bool special);
int text_tokenizer_add(struct s2s_tokenizer *tok, const struct text_added *added,
                       struct s2s_error *err);

#endif
