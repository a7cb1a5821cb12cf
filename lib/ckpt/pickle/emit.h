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

/* Remembers globals and shared objects so that they are written once. */
struct ckpt_emitter {
    struct s2s_buf buf;
    struct ckpt_file *file; /* NULL, or where ckpt_emit_drain puts what buf holds */
    char **memo;
    size_t n_memo, cap_memo;
};

void ckpt_emit_begin(struct ckpt_emitter *out);
void ckpt_emit_end(struct ckpt_emitter *out); /* STOP; buf holds the pickle */
void ckpt_emit_release(struct ckpt_emitter *out);
/* Hands a large buf on to the file and empties it. */
int ckpt_emit_drain(struct ckpt_emitter *out, struct s2s_error *err);
void ckpt_emit_op(struct ckpt_emitter *out, const char *ops); /* opcodes as they are */
void ckpt_emit_int(struct ckpt_emitter *out, int64_t value);
void ckpt_emit_str(struct ckpt_emitter *out, const char *s);
void ckpt_emit_strn(struct ckpt_emitter *out, const char *s, size_t len);
/* "module name", written once, then fetched from the memo */
void ckpt_emit_global(struct ckpt_emitter *out, const char *module, const char *name);
/* true: the object with this key was fetched from the memo; false: the caller writes it now and
 * then calls ckpt_emit_remember with the same key. */
bool ckpt_emit_recall(struct ckpt_emitter *out, const char *key);
void ckpt_emit_remember(struct ckpt_emitter *out, const char *key);
void ckpt_emit_ints(struct ckpt_emitter *out, const int64_t *v, int n); /* a tuple */
void ckpt_emit_json(struct ckpt_emitter *out, const json_t *value);
/* What JSON has no value for, as it was: bytes, a bytearray, io.BytesIO, a dtype, nan, an integer
 * past 64 bits. false: another value, or one that is not in memory; nothing is written. */
bool ckpt_emit_node(struct ckpt_emitter *out, const struct ckpt_node *node);
/* a contiguous tensor over the whole storage data/KEY of the archive */
void ckpt_emit_tensor(struct ckpt_emitter *out, const char *key, enum s2s_dtype dtype, int n_dims,
                      const int64_t *size);
/* key of a dict as argparse.Namespace */
void ckpt_emit_namespace(struct ckpt_emitter *out, const json_t *value);

#endif
