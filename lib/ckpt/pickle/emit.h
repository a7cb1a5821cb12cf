/* Pickles, written: protocol 2, as torch.save makes them. */
#ifndef CKPT_PICKLE_EMIT_H
#define CKPT_PICKLE_EMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/base/base.h"

struct ckpt_file;
struct ckpt_node;

/* A pickle that is being written. */
struct ckpt_emitter {
    struct s2s_buf buf;
    struct ckpt_file *file; /* NULL, or where ckpt_emit_drain puts what buf holds */
    char **memo;            /* keys of what was written once and is referred to from then on */
    size_t n_memo, cap_memo;
};

/* Sets up *out and writes the protocol. */
void ckpt_emit_begin(struct ckpt_emitter *out);
/* Writes STOP: buf holds the pickle, or what of it was not drained yet. */
void ckpt_emit_end(struct ckpt_emitter *out);
void ckpt_emit_release(struct ckpt_emitter *out);
/* If buf is large by now, appends it to file and empties it. IO. */
int ckpt_emit_drain(struct ckpt_emitter *out, struct s2s_error *err);
void ckpt_emit_op(struct ckpt_emitter *out, const char *ops); /* opcodes as they are */
void ckpt_emit_int(struct ckpt_emitter *out, int64_t value);
void ckpt_emit_str(struct ckpt_emitter *out, const char *s);
void ckpt_emit_strn(struct ckpt_emitter *out, const char *s, size_t len);
/* The global module.name; from the second time on a reference to the first. */
void ckpt_emit_global(struct ckpt_emitter *out, const char *module, const char *name);
/* For objects that are to be written only once. true: a reference to the one with this key was
 * written; false: there is none yet, so the caller writes it and then calls ckpt_emit_remember with
 * the same key (copied). */
bool ckpt_emit_recall(struct ckpt_emitter *out, const char *key);
void ckpt_emit_remember(struct ckpt_emitter *out, const char *key);
void ckpt_emit_ints(struct ckpt_emitter *out, const int64_t *v, int n); /* a tuple */
void ckpt_emit_json(struct ckpt_emitter *out, const json_t *value);
/* Writes a value that JSON lacks just as it was read: bytes, a bytearray, io.BytesIO, a dtype, nan,
 * an integer of more than 64 bits. false: it is another kind of value, or not in memory, and
 * nothing was written. */
bool ckpt_emit_node(struct ckpt_emitter *out, const struct ckpt_node *node);
/* A contiguous tensor of shape size [n_dims] that fills the storage data/KEY of the archive. */
void ckpt_emit_tensor(struct ckpt_emitter *out, const char *key, enum s2s_dtype dtype, int n_dims,
                      const int64_t *size);
/* A JSON object as an argparse.Namespace. */
void ckpt_emit_namespace(struct ckpt_emitter *out, const json_t *value);

#endif
