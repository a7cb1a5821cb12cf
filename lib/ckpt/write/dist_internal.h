/* Between the writers of torch_dist: s2s_dist_finish, with a common.pt of any bytes, and the two
 * halves of s2s_dist_commit. */
#ifndef CKPT_DIST_INTERNAL_H
#define CKPT_DIST_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "lib/ckpt/write/manifest.h"
#include "lib/ckpt/write/side_files.h"

struct s2s_buf;
struct s2s_ckpt;
struct s2s_ckpt_plan;
struct s2s_error;

/* What common.pt is filled with. */
struct ckpt_dist_common {
    ckpt_file_fill *fill;
    const void *ctx;
};
/* plan: NULL, or that of what was written: it knows its names, and its source their paths. beside:
 * files that lie with the tensors. */
int ckpt_dist_finish(const char *dir, const struct s2s_buf *items, size_t n_ranks,
                     const struct ckpt_dist_common *common, const struct ckpt_side_files *beside,
                     const struct s2s_ckpt_plan *plan, struct s2s_error *err);
/* Those files of the source, if it is torch_dist: dist_beside.c says which. FORMAT, UNSUPPORTED,
 * DIGEST: one of them is no data; IO. */
int ckpt_dist_take_beside(struct ckpt_side_files *files, struct s2s_ckpt *ckpt,
                          struct s2s_error *err);
int ckpt_dist_write_beside(const char *dir, const struct ckpt_side_files *files, json_t *manifest,
                           struct s2s_error *err);
/* The folder that was finished gets its final name, then the tracker names it. */
int ckpt_dist_publish(const char *root, int64_t iteration, struct s2s_error *err);
/* The folder that is written into before that. Gives: free it. */
char *ckpt_dist_tmp_dir(const char *root, int64_t iteration);

#endif
