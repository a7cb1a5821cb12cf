/* Names: of files and tensors that come from a checkpoint, and lists of them. */
#ifndef CKPT_NAMES_H
#define CKPT_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CKPT_MAX_LAYERS = 10000 };
/* Splits "decoder.layers.7.mlp.linear_fc2.weight" at its layer number: *prefix_len is 15, the
 * length of "decoder.layers."; *layer is 7, or -1 if no number follows; *rest points at "mlp.." in
 * name. false: no component of the name is "layers", or the number is CKPT_MAX_LAYERS or more. */
bool ckpt_name_layer(const char *name, size_t *prefix_len, int64_t *layer, const char **rest);
/* May this untrusted name be used for a file in a folder? No if it is empty, longer than 255 bytes,
 * "." or "..", or contains a slash, backslash or control character. */
bool ckpt_name_is_plain(const char *name, size_t len);
/* Is word one of words, which are separated by single spaces? */
bool ckpt_has_word(const char *words, const char *word);
/* For "%.*s" in messages: the length of an untrusted text, limited to `most`. */
static inline int ckpt_shown_len(size_t len, int most)
{
    return len < (size_t)most ? (int)len : most;
}

/* Compares two elements of an array of char *, for qsort and bsearch. */
int ckpt_by_text(const void *a, const void *b);
/* Frees an array of n strings. */
void ckpt_free_list(char **names, size_t n);

#endif
