/*
 * The room's door for writing torch_dist checkpoints: folders that torch.distributed.checkpoint and
 * Megatron-Core load, and that s2s_ckpt_open reads.
 *
 *   ROOT/latest_checkpointed_iteration.txt     "1000", replaced last
 *   ROOT/iter_0001000/                         appears by rename, complete
 *        __R_0.distcp .metadata common.pt metadata.json
 *
 * S2S_DIST_RELEASE as the iteration: the tracker says "release", the folder is ROOT/release/.
 *
 * Who does what, with several ranks (no call of this header communicates; what the caller does in
 * between stands in brackets):
 *
 *   rank 0    s2s_dist_begin(root, iteration)          makes ROOT/iter_0001000.tmp
 *   all       [barrier; agree that it went well]
 *   all       s2s_dist_open(&w, root, iteration, rank)
 *             s2s_dist_write_tensor / s2s_dist_write_object ...
 *             s2s_dist_close(w, &items)                file synced; what it holds, as bytes
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
    /* of weights that say none, as Megatron-LM's own converters number them: it takes no 0 as the
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

/* One box of one tensor. offset NULL: zeros; size NULL: the whole tensor. All borrowed. */
struct s2s_dist_chunk {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    const int64_t *shape, *offset, *size;
    /* NULL, or what the tensor is before Megatron-Core flattened it to [grid.., local]: it has one
     * axis less */
    const int64_t *orig_shape;
    size_t name_number; /* lib/ckpt only: 0, or of the plan's target, from 1, that has the name */
    /* NULL, or the CRC-32 that the box's bytes will have; not compared */
    const uint32_t *crc;
};

/* data: the box, row-major and contiguous. */
int s2s_dist_write_tensor(struct s2s_dist_writer *writer, const struct s2s_dist_chunk *chunk,
                          const void *data, struct s2s_error *err);
/* A byte object whose value is this JSON (a dict, list, number, ...): as Megatron-Core has it, in a
 * list of one, under a name of its own, "rng_state/shard_0.0_1.1" (a key, offsets, shape), else as
 * torch.distributed.checkpoint has it. */
int s2s_dist_write_object(struct s2s_dist_writer *writer, const char *name, const json_t *value,
                          struct s2s_error *err);
/* The same of a value that JSON does not have, as the opcodes that make it. */
int s2s_dist_write_pickle(struct s2s_dist_writer *writer, const char *name, const char *opcodes,
                          size_t len, struct s2s_error *err);
/* Both step by step, for data that is made on the way: a tensor's box, or the stored bytes of an
 * object (a torch.save archive); then its data in order, then the end (SHAPE when it was too much
 * or too little). */
int s2s_dist_begin_tensor(struct s2s_dist_writer *writer, const struct s2s_dist_chunk *chunk,
                          struct s2s_error *err);
void s2s_dist_begin_bytes(struct s2s_dist_writer *writer, const char *name);
int s2s_dist_data(struct s2s_dist_writer *writer, const void *bytes, size_t len,
                  struct s2s_error *err);
int s2s_dist_end(struct s2s_dist_writer *writer, struct s2s_error *err);

/* Syncs and closes the file (a rank that wrote nothing leaves none); what it holds is appended to
 * items, to be gathered. Frees writer, also on failure. */
int s2s_dist_close(struct s2s_dist_writer *writer, struct s2s_buf *items, struct s2s_error *err);
void s2s_dist_discard(struct s2s_dist_writer *writer); /* closes, keeps nothing; NULL is a no-op */

/*
 * Rank 0: writes common.pt (common: a JSON object, borrowed; its "args" becomes a Namespace),
 * .metadata and, last, metadata.json into dir, all synced. items: those of every rank. SHAPE or
 * DTYPE when chunks leave holes, overlap or disagree: names the tensor.
 */
int s2s_dist_finish(const char *dir, const struct s2s_buf *items, size_t n_ranks,
                    const json_t *common, struct s2s_error *err);
/* The same in the folder of s2s_dist_begin; then renames it to its final name (replacing a
 * checkpoint of the same iteration) and the tracker. From here on the checkpoint exists. */
int s2s_dist_commit(const char *root, int64_t iteration, const struct s2s_buf *items,
                    size_t n_ranks, const json_t *common, struct s2s_error *err);

/* What killed saves left in root (which may be absent): half-written folders go, a checkpoint that
 * had stepped aside comes back. */
int s2s_dist_clean(const char *root, struct s2s_error *err);

/* The newest iteration in root before the one that the tracker names, -1 when there is none. */
int64_t s2s_dist_previous(const char *root);

/* Removes all but the newest `keep` checkpoints of root (keep >= 1), never the one the tracker
 * names. */
int s2s_dist_prune(const char *root, int keep, struct s2s_error *err);

#endif
