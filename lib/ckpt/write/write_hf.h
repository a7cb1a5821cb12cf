/* Writes a plan as safetensors: one file, or a folder. */
#ifndef CKPT_WRITE_HF_H
#define CKPT_WRITE_HF_H

#include "lib/ckpt/plan.h"

struct s2s_outfile;

/* Writes the targets [begin, end) as one safetensors file to out, which the caller commits or
 * aborts. Tensors of wide dtypes come first, so that all are aligned. digest: NULL, or for the
 * XXH3-128 of the file. UNSUPPORTED: the header would be longer than readers accept. */
int s2s_ckpt_write_safetensors(struct s2s_ckpt_plan *plan, size_t begin, size_t end,
                               struct s2s_outfile *out, const struct s2s_ckpt_write *how,
                               char digest[33], struct s2s_error *err);
/* Writes model.safetensors, or shards and (rank 0) their index, into an existing folder. Called by
 * every rank of how->mesh; each returns its own result, and the caller makes them agree, and syncs
 * the folder. */
int s2s_ckpt_write_hf(struct s2s_ckpt_plan *plan, const char *dir, const struct s2s_ckpt_write *how,
                      struct s2s_error *err);
/* A file of weights in a folder. */
struct ckpt_shard {
    const char *name;
    size_t begin, end; /* of its targets in the plan */
    size_t number;     /* among the files that are distributed over the ranks, from 0 */
};
/* Writes a file into the folder dir: the rank whose turn it is writes it and adds it to
 * how->manifest and how->journal, the others return 0 at once. The caller syncs dir. */
int ckpt_write_shard(struct s2s_ckpt_plan *plan, const struct ckpt_shard *shard, const char *dir,
                     const struct s2s_ckpt_write *how, struct s2s_error *err);

#endif
