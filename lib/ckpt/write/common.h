/* common.pt: what all ranks of a distributed checkpoint share. */
#ifndef CKPT_WRITE_COMMON_H
#define CKPT_WRITE_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/io/zip.h"

struct ckpt_common_change {
    bool listed;         /* the dict is the only entry of a list, as in a byte object */
    const char *key;     /* NULL, or what is set in it */
    const json_t *value; /* borrowed */
};
/* Writes a common.pt that is made of one or of such an object: all else stays as it was. FORMAT;
 * UNSUPPORTED: no pickle of torch.save's. */
int ckpt_common_change(s2s_zip_sink *sink, void *ctx, const struct s2s_zip_source *source,
                       const struct ckpt_common_change *how, struct s2s_error *err);
/* What was made of a listed one: FORMAT, UNSUPPORTED: it did not have that form, so this is not a
 * dict. */
int ckpt_common_check(const struct s2s_zip_source *source, struct s2s_error *err);
/* A file of torch.save's, whoever writes its storages: the pickle and the byte order, then for each
 * storage `number` a member, whose bytes and s2s_zip_end are the caller's, then the version. *len:
 * bytes of all. */
int ckpt_torch_begin(struct s2s_zip_writer *zip, const struct s2s_buf *pickle,
                     struct s2s_error *err);
int ckpt_torch_begin_storage(struct s2s_zip_writer *zip, size_t number, struct s2s_error *err);
int ckpt_torch_end(struct s2s_zip_writer *zip, int64_t *len, struct s2s_error *err);
/* Writes one without tensors. */
int ckpt_pickle_archive(s2s_zip_sink *sink, void *ctx, const struct s2s_buf *pickle, int64_t *len,
                        struct s2s_error *err);
/* Adds the bytes of a common.pt. */
void ckpt_common_make(struct s2s_buf *out, const json_t *common);

#endif
