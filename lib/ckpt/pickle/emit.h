/* Writes pickles of protocol 2, as torch.save does. */
#ifndef CKPT_PICKLE_EMIT_H
#define CKPT_PICKLE_EMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/base/base.h"

struct ckpt_file;
struct ckpt_node;

/* A pickle being written. */
struct ckpt_emitter {
    struct s2s_buf buf;
    struct ckpt_file *file; /* NULL, or the file that ckpt_emit_drain appends to */
    char **memo;            /* keys of objects written so far, to which later uses refer */
    size_t n_memo, cap_memo;
};

/* Initialises *out and writes PROTO. */
void ckpt_emit_begin(struct ckpt_emitter *out);
/* Writes STOP: buf then holds the pickle, or what was not drained yet. */
void ckpt_emit_end(struct ckpt_emitter *out);
void ckpt_emit_release(struct ckpt_emitter *out);
/* Appends buf to file and empties it, if it is large. IO. */
int ckpt_emit_drain(struct ckpt_emitter *out, struct s2s_error *err);
void ckpt_emit_op(struct ckpt_emitter *out, const char *ops); /* opcodes, verbatim */
void ckpt_emit_int(struct ckpt_emitter *out, int64_t value);
void ckpt_emit_str(struct ckpt_emitter *out, const char *s);
void ckpt_emit_strn(struct ckpt_emitter *out, const char *s, size_t len);
/* The global module.name; a memo reference from the second use on. */
void ckpt_emit_global(struct ckpt_emitter *out, const char *module, const char *name);
/* For objects to be written only once. true: a reference to the object with this key was written;
 * false: there is none, so the caller writes the object and calls ckpt_emit_remember with the same
 * key (copied). */
bool ckpt_emit_recall(struct ckpt_emitter *out, const char *key);
void ckpt_emit_remember(struct ckpt_emitter *out, const char *key);
void ckpt_emit_ints(struct ckpt_emitter *out, const int64_t *v, int n); /* a tuple */
void ckpt_emit_json(struct ckpt_emitter *out, const json_t *value);
/* Writes a value that JSON cannot represent, as it was read: bytes, a bytearray, io.BytesIO, a
 * dtype, nan, an integer of more than 64 bits. false: another kind of value, or not in memory;
 * nothing was written. */
bool ckpt_emit_node(struct ckpt_emitter *out, const struct ckpt_node *node);
/* A contiguous tensor of shape size [n_dims], which is all of the storage data/KEY in the archive.
 */
void ckpt_emit_tensor(struct ckpt_emitter *out, const char *key, enum s2s_dtype dtype, int n_dims,
                      const int64_t *size);
/* A JSON object as an argparse.Namespace. */
void ckpt_emit_namespace(struct ckpt_emitter *out, const json_t *value);

#endif
