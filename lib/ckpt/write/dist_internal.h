/* Shared by the writers of torch_dist: s2s_dist_finish with a common.pt of arbitrary bytes, and the
 * two halves of s2s_dist_commit. */
#ifndef CKPT_DIST_INTERNAL_H
#define CKPT_DIST_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "lib/ckpt/write/manifest.h"
#include "lib/ckpt/write/side_files.h"

struct s2s_buf;
struct s2s_ckpt;
struct s2s_error;

/* The callback that writes common.pt. */
struct ckpt_dist_common {
    ckpt_file_fill *fill;
    const void *ctx;
};
/* As s2s_dist_finish. common NULL: writes neither common.pt nor metadata.json, so that the folder
 * is plain torch.distributed.checkpoint. beside: further files of the folder. names: NULL, or the
 * checkpoint that knows the paths of names (ckpt_path_of). */
int ckpt_dist_finish(const char *dir, const struct s2s_buf *items, size_t n_ranks,
                     const struct ckpt_dist_common *common, const struct ckpt_side_files *beside,
                     const struct s2s_ckpt *names, struct s2s_error *err);
/* Adds such files of a torch_dist source; dist_beside.c lists them. FORMAT, UNSUPPORTED, DIGEST:
 * one of them is corrupt, or its pickle would run code; IO. */
int ckpt_dist_take_beside(struct ckpt_side_files *files, struct s2s_ckpt *ckpt,
                          struct s2s_error *err);
/* Writes them into dir; adds those that are not in a subfolder to manifest (borrowed). IO. */
int ckpt_dist_write_beside(const char *dir, const struct ckpt_side_files *files, json_t *manifest,
                           struct s2s_error *err);
/* Renames the finished folder to its final name, then replaces the tracker. IO. */
int ckpt_dist_publish(const char *root, int64_t iteration, struct s2s_error *err);
/* The path of the folder before that. Gives: free. */
char *ckpt_dist_tmp_dir(const char *root, int64_t iteration);

#endif
