/*
 * Writes torch_dist checkpoints: folders that torch.distributed.checkpoint and Megatron-Core load,
 * and that s2s_ckpt_open reads.
 *
 *   ROOT/latest_checkpointed_iteration.txt     "1000", replaced last
 *   ROOT/iter_0001000/                         appears by rename, complete
 *        __R_0.distcp .metadata common.pt metadata.json
 *
 * With S2S_DIST_RELEASE as the iteration the tracker is "release" and the folder ROOT/release/.
 *
 * Sequence of calls with several ranks (no function of this header communicates; the caller's own
 * steps are in brackets):
 *
 *   rank 0    s2s_dist_begin(root, iteration)          makes ROOT/iter_0001000.tmp
 *   all       [barrier; agree on success]
 *   all       s2s_dist_open(&w, root, iteration, rank)
 *             s2s_dist_write_tensor / s2s_dist_write_object ...
 *             s2s_dist_close(w, &items)                file synced; its contents as a list
 *   all       [gather items on rank 0; agree]
 *   rank 0    s2s_dist_commit(root, iteration, items, n_ranks, common)
 *   all       [agree]; on any failure rank 0 calls s2s_dist_abort(root, iteration)
 *
 * Each chunk of a tensor is written by exactly one rank; commit checks that the chunks cover every
 * tensor exactly and that ranks agree on its shape and dtype. Equal content gives equal bytes.
 */
#ifndef S2S_CKPT_DIST_H
#define S2S_CKPT_DIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/base/dtype.h"
#include "lib/base/mem.h"

struct s2s_error;
struct s2s_dist_writer;

enum {
    S2S_DIST_RELEASE = -1,
    /* for weights without an iteration, as Megatron-LM's own converters do: it rejects 0 as the
     * latest iteration ("error parsing metadata file") */
    S2S_DIST_UNKNOWN = 1,
};

/* Rank 0: makes root if needed, removes what killed saves left there (iter_*.tmp), and makes the
 * folder that the ranks write into. */
int s2s_dist_begin(const char *root, int64_t iteration, struct s2s_error *err);
/* Rank 0, after a failure: removes that folder. */
void s2s_dist_abort(const char *root, int64_t iteration);

/* Opens this rank's file in the folder that s2s_dist_begin made. */
int s2s_dist_open(struct s2s_dist_writer **out, const char *root, int64_t iteration, int rank,
                  struct s2s_error *err);
/* The same in any folder that exists (s2s_dist_finish completes it). */
int s2s_dist_open_dir(struct s2s_dist_writer **out, const char *dir, int rank,
                      struct s2s_error *err);

/* A box of a tensor. offset NULL: zeros; size NULL: the whole tensor. All pointers are borrowed. */
struct s2s_dist_chunk {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    const int64_t *shape, *offset, *size;
    /* NULL, or [n_dims - 1]: the shape before Megatron-Core flattened it to [grid.., local] */
    const int64_t *orig_shape;
    /* NULL, or the CRC-32 of the box's bytes, which is not verified */
    const uint32_t *crc;
};

/* Writes a box. data: row-major, contiguous. */
int s2s_dist_write_tensor(struct s2s_dist_writer *writer, const struct s2s_dist_chunk *chunk,
                          const void *data, struct s2s_error *err);
/* Writes a byte object whose value is this JSON (a dict, list, number, ...). Under a name like
 * "rng_state/shard_0.0_1.1" (key, offsets, shape) it is the only element of a list, as in
 * Megatron-Core; under others it is as in torch.distributed.checkpoint. */
int s2s_dist_write_object(struct s2s_dist_writer *writer, const char *name, const json_t *value,
                          struct s2s_error *err);
/* The same for a value that JSON cannot represent, given as the pickle opcodes that build it. */
int s2s_dist_write_pickle(struct s2s_dist_writer *writer, const char *name, const char *opcodes,
                          size_t len, struct s2s_error *err);
/* The same in steps, for data that is produced incrementally: begin with a tensor's box or a byte
 * object (a torch.save archive), then the data in order, then the end. SHAPE: too many or too few
 * bytes. */
int s2s_dist_begin_tensor(struct s2s_dist_writer *writer, const struct s2s_dist_chunk *chunk,
                          struct s2s_error *err);
void s2s_dist_begin_bytes(struct s2s_dist_writer *writer, const char *name);
int s2s_dist_data(struct s2s_dist_writer *writer, const void *bytes, size_t len,
                  struct s2s_error *err);
int s2s_dist_end(struct s2s_dist_writer *writer, struct s2s_error *err);

/* Syncs and closes the file (a rank that wrote nothing leaves none), and appends its list of
 * contents to items, to be gathered on rank 0. Frees writer, also on failure. */
int s2s_dist_close(struct s2s_dist_writer *writer, struct s2s_buf *items, struct s2s_error *err);
/* Closes without a result; NULL is a no-op. */
void s2s_dist_discard(struct s2s_dist_writer *writer);

/*
 * On rank 0: writes common.pt (common: a JSON object, borrowed; its "args" becomes a Namespace),
 * .metadata and finally metadata.json into dir, all synced. items: [n_ranks], of every rank. SHAPE,
 * DTYPE: chunks of a tensor leave holes, overlap or contradict each other.
 */
int s2s_dist_finish(const char *dir, const struct s2s_buf *items, size_t n_ranks,
                    const json_t *common, struct s2s_error *err);
/* The same in the folder of s2s_dist_begin, which then gets its final name (replacing a checkpoint
 * of the same iteration); finally replaces the tracker. After that the checkpoint exists. */
int s2s_dist_commit(const char *root, int64_t iteration, const struct s2s_buf *items,
                    size_t n_ranks, const json_t *common, struct s2s_error *err);

/* Cleans up after killed saves in root (which may be absent): removes incomplete folders, and
 * restores a checkpoint that was moved aside. */
int s2s_dist_clean(const char *root, struct s2s_error *err);

/* The newest iteration in root before the tracker's; -1: none. */
int64_t s2s_dist_previous(const char *root);

/* Removes all but the newest `keep` checkpoints of root (keep >= 1), but never the tracker's. */
int s2s_dist_prune(const char *root, int keep, struct s2s_error *err);

#endif
