/* Which tensors, or rows of them, go into which .distcp file. That is decided before a byte is
 * written, so that any rank can write any of the files. */
#ifndef CKPT_LAYOUT_H
#define CKPT_LAYOUT_H

#include "lib/ckpt/plan.h"

/* A row in the row of all rows of all targets. */
struct ckpt_place {
    size_t target; /* index in the plan; n_targets: behind the last */
    int64_t row;   /* on the target's first axis */
};

struct ckpt_layout {
    /* [n_files + 1]: file i holds everything from start[i] up to start[i + 1] */
    struct ckpt_place *start;
    size_t n_files;
};

/* If how->n_files is set: so many files of equal size, with tensors cut between rows where needed.
 * Else files of at most how->max_shard_bytes (or with a single tensor that is larger), in which no
 * tensor is cut. Gives: ckpt_layout_release. */
void ckpt_layout_make(struct ckpt_layout *layout, const struct s2s_ckpt_plan *plan,
                      const struct s2s_ckpt_write *how);
void ckpt_layout_release(struct ckpt_layout *layout);

/* Is the byte object of this name written, too? The one that holds the common state is not: that
 * becomes common.pt, which all releases read, and the two might contradict each other. */
bool ckpt_layout_keeps(const struct s2s_ckpt_write *how, const char *name);
/* Is the target a flattened tensor (s2s_ckpt_orig_shape) just as it was stored? Then it is written
 * so again, in one piece, and its original shape is noted. */
bool ckpt_target_is_flattened(const struct s2s_ckpt_target *target);
/* Into how many rows a target may be cut; 1: it is never cut. */
int64_t ckpt_target_rows(const struct s2s_ckpt_target *target, const struct s2s_ckpt_write *how);
/* Is the place this row of this target? */
bool ckpt_place_is(const struct ckpt_place *place, size_t target, int64_t row);

#endif
