/*
 * Distributes a conversion over the ranks of a launch: all ranks make the same calls, each file of
 * weights is written by one rank, and rank 0 writes metadata and small files. The bytes do not
 * depend on the number of ranks. If how->mesh is NULL, this process does everything.
 */
#ifndef CKPT_SHARE_H
#define CKPT_SHARE_H

#include "lib/ckpt/plan.h"

/* This process's rank, and the number of ranks. */
int ckpt_share_rank(const struct s2s_ckpt_write *how);
int ckpt_share_size(const struct s2s_ckpt_write *how);
/* Collective. Returns 0 if all ranks pass 0; otherwise, on every rank, the code and error of the
 * lowest rank that failed. */
int ckpt_share_agree(const struct s2s_ckpt_write *how, int rc, struct s2s_error *err);
/* Collective. Merges the entries of how->manifest of all ranks into that of each. */
void ckpt_share_manifest(const struct s2s_ckpt_write *how);
/* Collective. s2s_ckpt_plan_verify with the storages distributed over the ranks; all ranks return
 * the same result. */
int ckpt_share_verify(struct s2s_ckpt_plan *plan, const struct s2s_ckpt_write *how,
                      struct s2s_error *err);

#endif
