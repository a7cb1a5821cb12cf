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

/* Who writes the content of common.pt. */
struct ckpt_dist_common {
    ckpt_file_fill *fill;
    const void *ctx;
};
/* As s2s_dist_finish. beside: files that go into the folder, too. plan: NULL, or the plan of what
 * was written: items may refer to its names, and its source knows their paths (ckpt_path_of). */
int ckpt_dist_finish(const char *dir, const struct s2s_buf *items, size_t n_ranks,
                     const struct ckpt_dist_common *common, const struct ckpt_side_files *beside,
                     const struct s2s_ckpt_plan *plan, struct s2s_error *err);
/* Adds such files of a source that is torch_dist; dist_beside.c says which. FORMAT, UNSUPPORTED,
 * DIGEST: one of them is damaged, or would run code; IO. */
int ckpt_dist_take_beside(struct ckpt_side_files *files, struct s2s_ckpt *ckpt,
                          struct s2s_error *err);
/* Writes them into dir; those that are in no folder there are noted in manifest (borrowed). IO. */
int ckpt_dist_write_beside(const char *dir, const struct ckpt_side_files *files, json_t *manifest,
                           struct s2s_error *err);
/* Gives the finished folder its final name, then makes the tracker name it. IO. */
int ckpt_dist_publish(const char *root, int64_t iteration, struct s2s_error *err);
/* The path of the folder until then. Gives: free. */
char *ckpt_dist_tmp_dir(const char *root, int64_t iteration);

#endif
