/* Names of dtypes in torch. */
#ifndef CKPT_PICKLE_TORCH_DTYPE_H
#define CKPT_PICKLE_TORCH_DTYPE_H

#include "lib/base/base.h"

const char *ckpt_torch_dtype(enum s2s_dtype dtype);   /* "bfloat16" */
const char *ckpt_torch_storage(enum s2s_dtype dtype); /* "BFloat16Storage", NULL: only untyped */
enum s2s_dtype ckpt_dtype_of_torch(const char *name, size_t len);   /* NONE when unknown */
enum s2s_dtype ckpt_dtype_of_storage(const char *name, size_t len); /* NONE when unknown */
struct ckpt_node;
/* The dtype that a global such as torch.bfloat16 names; NONE: it is something else. */
enum s2s_dtype ckpt_dtype_of_global(const struct ckpt_node *node);

#endif
