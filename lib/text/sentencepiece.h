/* What lib/text/sentencepiece.cc, a library of its own, does for C: the calls of sentencepiece that
 * a tokenizer.model needs. */
#ifndef S2S_TEXT_SENTENCEPIECE_H
#define S2S_TEXT_SENTENCEPIECE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of the library, got with text_sentencepiece_table. Texts and lists of ids are given
 * to `take`, on which nothing of C++ may be thrown. */
struct text_sentencepiece {
    /* NULL with a message [message_len] where the bytes are no model. */
    void *(*open)(const char *bytes, size_t len, char *message, size_t message_len);
    void (*close)(void *model);
    int (*size)(void *model);
    const char *(*piece)(void *model, int id, size_t *len); /* lent */
    int (*is_control)(void *model, int id);                 /* or the unknown piece */
    int (*role)(void *model, char role);                    /* id of 'b'os, 'e'os, 'p'ad; or -1 */
    /* ends: of the bytes of the text that each id stands for; NULL unless want_ends */
    int (*encode)(void *model, const char *text, size_t len, int want_ends, void *ctx,
                  void (*take)(void *ctx, const int *ids, const int *ends, size_t n));
    int (*decode)(void *model, const int *ids, size_t n, void *ctx,
                  void (*take)(void *ctx, const char *text, size_t len));
};

const struct text_sentencepiece *text_sentencepiece_table(void);

/* Nobody catches what C++ throws where memory is out: from here on the program ends instead, with
 * the message of s2s_xmalloc. Before the library is opened, which allocates. */
void text_end_without_memory(void);

#ifdef __cplusplus
}
#endif

#endif
