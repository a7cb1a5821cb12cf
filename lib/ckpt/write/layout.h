/* Assigns tensors, or rows of them, to .distcp files before any byte is written, so that any rank
 * can write any file. */
#ifndef CKPT_LAYOUT_H
#define CKPT_LAYOUT_H

#include "lib/ckpt/plan.h"

/* A position in the sequence of all rows of all targets. */
struct ckpt_place {
    size_t target; /* index in the plan; n_targets: the end */
    int64_t row;   /* on the target's first axis */
};

struct ckpt_layout {
    /* [n_files + 1]: file i has the rows from start[i] to before start[i + 1] */
    struct ckpt_place *start;
    size_t n_files;
};

/* If how->n_files is set: that many files of equal size, with tensors split between rows where
 * needed. Otherwise files of at most how->max_shard_bytes (or with a single larger tensor), in
 * which no tensor is split. Gives: ckpt_layout_release. */
void ckpt_layout_make(struct ckpt_layout *layout, const struct s2s_ckpt_plan *plan,
                      const struct s2s_ckpt_write *how);
void ckpt_layout_release(struct ckpt_layout *layout);

/* Is the byte object of this name written? The one with the common state is not: it becomes
 * common.pt, which all releases of Megatron-Core read, and a second copy could contradict it. */
bool ckpt_layout_keeps(const struct s2s_ckpt_write *how, const char *name);
/* Is the target a flattened tensor (s2s_ckpt_orig_shape) exactly as stored? It is then written in
 * one piece, with its original shape in the metadata. */
bool ckpt_target_is_flattened(const struct s2s_ckpt_target *target);
/* The number of rows that a target may be split into; 1: it is never split. */
int64_t ckpt_target_rows(const struct s2s_ckpt_target *target, const struct s2s_ckpt_write *how);
/* Is the place this row of this target? */
bool ckpt_place_is(const struct ckpt_place *place, size_t target, int64_t row);

#endif
