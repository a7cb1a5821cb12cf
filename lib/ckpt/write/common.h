/* common.pt: what all ranks of a distributed checkpoint share. */
#ifndef CKPT_WRITE_COMMON_H
#define CKPT_WRITE_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/io/zip.h"

/* How the common state of one checkpoint becomes that of another. */
struct ckpt_common_change {
    bool listed; /* it comes as the only entry of a list, as in a byte object: taken out of it */
    /* NULL, or a key of its dict that is set to value (borrowed) */
    const char *key;
    const json_t *value;
};
/* Writes the archive at source to sink as a common.pt, changed as `how` says; every other byte
 * stays as it is. FORMAT, DIGEST; UNSUPPORTED: its pickle is none of torch.save's. */
int ckpt_common_change(s2s_zip_sink *sink, void *ctx, const struct s2s_zip_source *source,
                       const struct ckpt_common_change *how, struct s2s_error *err);
/* Reads what ckpt_common_change made of a listed one. FORMAT, UNSUPPORTED: it is no dict, so what
 * it was made of was no list with a dict in it. */
int ckpt_common_check(const struct s2s_zip_source *source, struct s2s_error *err);
/* Together these write a file of torch.save's: first _begin, with its pickle; then for each
 * storage, counted from 0, _begin_storage, whose bytes the caller writes and ends with s2s_zip_end;
 * at last _end, which sets *len to the length of the archive. Errors are the sink's. */
int ckpt_torch_begin(struct s2s_zip_writer *zip, const struct s2s_buf *pickle,
                     struct s2s_error *err);
int ckpt_torch_begin_storage(struct s2s_zip_writer *zip, size_t number, struct s2s_error *err);
int ckpt_torch_end(struct s2s_zip_writer *zip, int64_t *len, struct s2s_error *err);
/* Writes one that has a pickle and no storages. */
int ckpt_pickle_archive(s2s_zip_sink *sink, void *ctx, const struct s2s_buf *pickle, int64_t *len,
                        struct s2s_error *err);
/* Appends a common.pt to out: its dict has the keys and values of a JSON object, "args" becomes an
 * argparse.Namespace, and what CKPT_SMALL_TENSOR describes a tensor. */
void ckpt_common_make(struct s2s_buf *out, const json_t *common);

#endif
