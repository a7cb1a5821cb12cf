/*
 * A conversion shared by the ranks of a launch: every rank makes the same calls, each file of
 * weights is written by one of them, rank 0 writes what is about all files. The bytes are those
 * that one process writes. With how->mesh NULL, and with one rank, all of it is that process's.
 */
#ifndef CKPT_SHARE_H
#define CKPT_SHARE_H

#include "lib/ckpt/plan.h"

/* This process's rank, and how many ranks there are. */
int ckpt_share_rank(const struct s2s_ckpt_write *how);
int ckpt_share_size(const struct s2s_ckpt_write *how);
/* Collective. Returns 0 if all ranks pass 0; else, on every rank, the code and error of the lowest
 * rank that failed. */
int ckpt_share_agree(const struct s2s_ckpt_write *how, int rc, struct s2s_error *err);
/* Collective. Afterwards how->manifest of each rank has the entries of all ranks'. */
void ckpt_share_manifest(const struct s2s_ckpt_write *how);
/* Collective. s2s_ckpt_plan_verify with the storages shared out among the ranks; all have the same
 * result. */
int ckpt_share_verify(struct s2s_ckpt_plan *plan, const struct s2s_ckpt_write *how,
                      struct s2s_error *err);

#endif
