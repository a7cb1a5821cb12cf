/* The common state of a distributed checkpoint (common.pt), and archives in torch.save's format. */
#ifndef CKPT_WRITE_COMMON_H
#define CKPT_WRITE_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/io/zip.h"

/* How to convert the common state of one checkpoint for another. */
struct ckpt_common_change {
    bool listed; /* it is the only element of a list, as in a byte object: unwrap it */
    /* NULL, or a key of its dict to set to value (borrowed) */
    const char *key;
    const json_t *value;
};
/* Writes the archive at source to sink as a common.pt, changed according to `how`; all other bytes
 * are copied. FORMAT, DIGEST; UNSUPPORTED: its pickle is not as torch.save writes it. */
int ckpt_common_change(s2s_zip_sink *sink, void *ctx, const struct s2s_zip_source *source,
                       const struct ckpt_common_change *how, struct s2s_error *err);
/* Checks the archive that ckpt_common_change made of a listed one. FORMAT, UNSUPPORTED: not a dict,
 * because the source was not a list with a dict as its only element. */
int ckpt_common_check(const struct s2s_zip_source *source, struct s2s_error *err);
/* Together these write a file in torch.save's format: _begin with its pickle, then for each
 * storage, numbered from 0, _begin_storage, the bytes (s2s_zip_write) and s2s_zip_end, finally
 * _end, which sets *len to the length of the archive. Errors are the sink's. */
int ckpt_torch_begin(struct s2s_zip_writer *zip, const struct s2s_buf *pickle,
                     struct s2s_error *err);
int ckpt_torch_begin_storage(struct s2s_zip_writer *zip, size_t number, struct s2s_error *err);
int ckpt_torch_end(struct s2s_zip_writer *zip, int64_t *len, struct s2s_error *err);
/* Writes a file that has a pickle and no storages. */
int ckpt_pickle_archive(s2s_zip_sink *sink, void *ctx, const struct s2s_buf *pickle, int64_t *len,
                        struct s2s_error *err);
/* Appends a common.pt to out: a dict with the keys and values of a JSON object, in which "args"
 * becomes an argparse.Namespace, and what CKPT_SMALL_TENSOR describes becomes a tensor. */
void ckpt_common_make(struct s2s_buf *out, const json_t *common);

#endif
