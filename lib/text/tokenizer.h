/*
 * Tokenizers, read from the tokenizer.json of Hugging Face tokenizers: models BPE (of bytes, of
 * characters, with byte fallback), Unigram, WordPiece and WordLevel, all its normalizers and
 * post-processors, all pre-tokenizers but UnicodeScripts, all decoders, added tokens with all their
 * flags. Ids and texts are those of the library, 0 differences
 * (tests/oracle/tokenizer/check_tokenizers.py). What is not read is refused with its place in the
 * file. Texts are UTF-8 and may hold NUL: lengths are explicit.
 */
#ifndef S2S_TEXT_TOKENIZER_H
#define S2S_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_buf;
struct s2s_error;
struct s2s_tokenizer;

/* A growing list of token ids. */
struct s2s_ids {
    int32_t *data;
    size_t len, cap;
};

#define S2S_IDS_INIT \
    { \
        NULL, 0, 0 \
    }

void s2s_ids_add(struct s2s_ids *ids, int32_t id);
void s2s_ids_clear(struct s2s_ids *ids);   /* empties, keeps the memory */
void s2s_ids_release(struct s2s_ids *ids); /* frees the memory */

/*
 * Reads tokenizer.json, a tokenizer.model of sentencepiece (by its own library, with its ids and
 * texts, no bos or eos added), or that of a folder; a tokenizer_config.json beside it names bos,
 * eos and pad and has a chat template, unless there is a chat_template.jinja. OPEN, FORMAT,
 * UNSUPPORTED (names the place in the file and what it asks for). Gives: free with
 * s2s_tokenizer_free.
 */
int s2s_tokenizer_open(struct s2s_tokenizer **tok, const char *path, struct s2s_error *err);
/* The same from bytes (borrowed); bos, eos and pad are those of well-known names. */
int s2s_tokenizer_parse(struct s2s_tokenizer **tok, const char *json, size_t len,
                        struct s2s_error *err);
void s2s_tokenizer_free(struct s2s_tokenizer *tok);

/*
 * Appends the ids of text to ids; `special` adds the tokens of the post-processor (BOS, ...), which
 * prompt formats leave out. FORMAT when text is not UTF-8 (names the byte), NOTFOUND when it holds
 * what has no token and the model has none for that. Any number of threads may encode with one
 * tokenizer; words are cached.
 */
int s2s_tokenizer_encode(const struct s2s_tokenizer *tok, struct s2s_ids *ids, const char *text,
                         size_t len, bool special, struct s2s_error *err);
/*
 * Appends the text of ids to out; always UTF-8 (bytes that are none become U+FFFD, as the library
 * does it). Special tokens are left out with skip_special. RANGE for an id that no token has.
 */
int s2s_tokenizer_decode(const struct s2s_tokenizer *tok, struct s2s_buf *out, const int32_t *ids,
                         size_t n_ids, bool skip_special, struct s2s_error *err);

/* Id of a token by its content as the file spells it, -1 when there is none; and back (lent, NULL
 * when there is none, len may be NULL). */
int32_t s2s_tokenizer_id(const struct s2s_tokenizer *tok, const char *token);
const char *s2s_tokenizer_token(const struct s2s_tokenizer *tok, int32_t id, size_t *len);
bool s2s_tokenizer_is_special(const struct s2s_tokenizer *tok, int32_t id);
int32_t s2s_tokenizer_size(const struct s2s_tokenizer *tok); /* largest id + 1 */

/* Ids of the roles, -1 when the tokenizer has none. */
int32_t s2s_tokenizer_bos(const struct s2s_tokenizer *tok);
int32_t s2s_tokenizer_eos(const struct s2s_tokenizer *tok);
int32_t s2s_tokenizer_pad(const struct s2s_tokenizer *tok);

/* Text of the chat template (Jinja) that came with the tokenizer, NULL when there is none; lent. */
const char *s2s_tokenizer_chat_template(const struct s2s_tokenizer *tok);

/*
 * Makes `token` a special token and returns its id: the one it has, or the next free one
 * (s2s_tokenizer_size before). Not while other threads encode. ARG when empty or not UTF-8.
 */
int32_t s2s_tokenizer_add_special(struct s2s_tokenizer *tok, const char *token,
                                  struct s2s_error *err);

/* XXH3-128 of the bytes of tokenizer.json, 32 hex digits; lent. */
const char *s2s_tokenizer_digest(const struct s2s_tokenizer *tok);

#endif
