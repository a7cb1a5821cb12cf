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
    bool requires_grad;  /* of a CKPT_TENSOR */
};

/* Sets key, lengths and dtype (NONE: untyped) of view to those of the storage that a persistent id
 * refers to. FORMAT, UNSUPPORTED. */
int ckpt_storage_of(const struct ckpt_node *persid, struct ckpt_view *view, struct s2s_error *err);
/* 1: node is a tensor, described by *view, within its storage; 0: not a tensor. FORMAT,
 * UNSUPPORTED: a tensor that cannot be read. */
int ckpt_view_of(const struct ckpt_node *node, struct ckpt_view *view, struct s2s_error *err);

/* Is it the record of a plain tensor, by its arguments? If these can be read, and it is not empty,
 * it becomes a CKPT_TENSOR. */
bool ckpt_view_is_plain(const struct ckpt_node *node);
/* The arguments of the record that the view of a CKPT_TENSOR was made of. Gives a reference. */
json_t *ckpt_view_args(const struct ckpt_view *view);

#endif
