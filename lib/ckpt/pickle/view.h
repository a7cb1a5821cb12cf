/* Tensors as torch's pickles spell them: calls of functions that rebuild them out of storages. */
#ifndef CKPT_PICKLE_VIEW_H
#define CKPT_PICKLE_VIEW_H

#include "lib/ckpt/pickle/pickle.h"

#include "lib/io/safetensors.h"

/* A tensor inside an archive: a view of one storage. */
struct ckpt_view {
    enum s2s_dtype dtype;
    int n_dims;
    int64_t size[S2S_MAX_DIMS], stride[S2S_MAX_DIMS];
    int64_t offset;  /* elements, in the storage */
    const char *key; /* of the storage, not zero-ended */
    size_t key_len;
    int64_t store_numel; /* elements of the storage */
    int64_t store_len;   /* bytes */
};

/* What a storage's id says: key, numel, bytes, dtype (NONE: untyped). */
int ckpt_storage_of(const struct ckpt_node *persid, struct ckpt_view *view, struct s2s_error *err);
/* 1: node is a tensor and view describes it (bounds checked against its storage); 0: it is none. */
int ckpt_view_of(const struct ckpt_node *node, struct ckpt_view *view, struct s2s_error *err);

/*
 * A plain tensor's record becomes a CKPT_TENSOR in its place, of a tenth of the memory, which lives
 * in kept. False: it is no such record, and stays.
 */
bool ckpt_view_pack(struct ckpt_node *node, struct s2s_blocks *kept);
/* The arguments of a packed one as its record has them. Gives a reference. */
json_t *ckpt_view_args(const struct ckpt_node *packed);

#endif
