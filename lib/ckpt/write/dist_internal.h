/* Between the writers of torch_dist: s2s_dist_finish, with a common.pt of any bytes, and the two
 * halves of s2s_dist_commit. */
#ifndef CKPT_DIST_INTERNAL_H
#define CKPT_DIST_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "lib/ckpt/write/manifest.h"

struct s2s_buf;
struct s2s_ckpt_plan;
struct s2s_error;

/* What common.pt is filled with. */
struct ckpt_dist_common {
    ckpt_file_fill *fill;
    const void *ctx;
};
/* plan: NULL, or that of what was written: it knows its names, and its source their paths. */
int ckpt_dist_finish(const char *dir, const struct s2s_buf *items, size_t n_ranks,
                     const struct ckpt_dist_common *common, const struct s2s_ckpt_plan *plan,
                     struct s2s_error *err);
/* The folder that was finished gets its final name, then the tracker names it. */
int ckpt_dist_publish(const char *root, int64_t iteration, struct s2s_error *err);
/* The folder that is written into before that. Gives: free it. */
char *ckpt_dist_tmp_dir(const char *root, int64_t iteration);

#endif
