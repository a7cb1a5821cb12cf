/* Tensors in torch's pickles: calls of functions that rebuild them from storages. */
#ifndef CKPT_PICKLE_VIEW_H
#define CKPT_PICKLE_VIEW_H

#include "lib/ckpt/pickle/pickle.h"

#include "lib/io/safetensors.h"

/* A tensor inside an archive: a view of one storage. */
struct ckpt_view {
    enum s2s_dtype dtype;
    int n_dims;
    int64_t size[S2S_MAX_DIMS], stride[S2S_MAX_DIMS]; /* strides in elements */
    int64_t offset;                                   /* of its first element in the storage, in
                                                       * elements */
    const char *key; /* the storage's name in the archive: key_len bytes, not zero-terminated */
    size_t key_len;
    int64_t store_numel; /* elements of the storage */
    int64_t store_len;   /* bytes of the storage */
};

/* Sets key, lengths and dtype (NONE: untyped) of view to those of the storage that a persistent id
 * refers to. FORMAT, UNSUPPORTED. */
int ckpt_storage_of(const struct ckpt_node *persid, struct ckpt_view *view, struct s2s_error *err);
/* 1: node is a tensor, described by *view, within its storage; 0: not a tensor. FORMAT,
 * UNSUPPORTED: a tensor that cannot be read. */
int ckpt_view_of(const struct ckpt_node *node, struct ckpt_view *view, struct s2s_error *err);

/* ---- packed tensors: the text of a CKPT_TENSOR ---- */

enum { CKPT_MAX_PACKED = 768 };
/* Is it the record of a plain tensor, by its arguments? */
bool ckpt_view_is_plain(const struct ckpt_node *node);
/* Appends such a tensor, packed. false: it cannot be read, is empty, or has a storage with a long
 * name. */
bool ckpt_view_put(struct s2s_buf *out, const struct ckpt_node *node);
/* Appends a view, with up to 255 bytes that ckpt_view_more gives back. false: its storage has a
 * long name. */
bool ckpt_view_put_more(struct s2s_buf *out, const struct ckpt_view *view, bool requires_grad,
                        const struct s2s_buf *more);
/* Those bytes of a CKPT_TENSOR; NULL: none. */
const char *ckpt_view_more(const struct ckpt_node *packed);
/* The arguments of the record that a CKPT_TENSOR was made of. Gives a reference. */
json_t *ckpt_view_args(const struct ckpt_node *packed);

#endif
