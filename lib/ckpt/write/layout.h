/* Which tensors, or rows of them, each .distcp file of a checkpoint holds: known before a byte is
 * written, so that files can be written in any order and by any rank. */
#ifndef CKPT_LAYOUT_H
#define CKPT_LAYOUT_H

#include "lib/ckpt/plan.h"

struct ckpt_place {
    size_t target; /* of the plan */
    int64_t row;   /* of its first axis */
};

struct ckpt_layout {
    /* [n_files + 1]: file i holds what lies from start[i] to start[i + 1]; the last is the end */
    struct ckpt_place *start;
    size_t n_files;
};

/* how->n_files of equal size, tensors cut between rows where needed; else files of at most
 * how->max_shard_bytes in which no tensor is cut. Gives: ckpt_layout_release. */
void ckpt_layout_make(struct ckpt_layout *layout, const struct s2s_ckpt_plan *plan,
                      const struct s2s_ckpt_write *how);
void ckpt_layout_release(struct ckpt_layout *layout);

/* Does the byte object come along? The one that is the common state does not: that becomes
 * common.pt, which all releases read, and the two could differ. */
bool ckpt_layout_keeps(const struct s2s_ckpt_write *how, const char *name);
/* Is it a tensor that Megatron-Core flattened, as it was stored? Then it is written so, in one
 * piece, with the shape that it had before. */
bool ckpt_target_is_flattened(const struct s2s_ckpt_target *target);
/* Rows between which a target may be cut; 1 when it is never cut. */
int64_t ckpt_target_rows(const struct s2s_ckpt_target *target, const struct s2s_ckpt_write *how);
bool ckpt_place_is(const struct ckpt_place *place, size_t target, int64_t row);

#endif
