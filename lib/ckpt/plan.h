/*
 * What a conversion writes. A plan is a list of target tensors; the bytes of each are boxes of
 * source tensors, row-major, concatenated and cast. Every split, merge and stacking between
 * families of models has that form. All shapes and dtypes are known, and checked, before a byte is
 * written.
 */
#ifndef CKPT_PLAN_H
#define CKPT_PLAN_H

#include <stdatomic.h>

#include "lib/base/blocks.h"
#include "lib/ckpt/ckpt.h"

struct s2s_mesh;
struct ckpt_journal;

/* A box of a source tensor; or zeros: source is NULL, and size[0] is their number. begin and size
 * point to the source's own numbers if equal; otherwise they are in the plan's arena. */
struct s2s_ckpt_piece {
    const struct s2s_ckpt_tensor *source;
    const int64_t *begin, *size; /* [n_dims of source]: first element, extent */
};

/* A tensor to write. What it points to lives as long as the plan. */
struct s2s_ckpt_target {
    const char *name;
    const int64_t *shape;          /* [n_dims] */
    struct s2s_ckpt_piece *pieces; /* [n_pieces] */
    uint32_t n_pieces;
    enum s2s_dtype dtype : 8; /* as it is written */
    unsigned n_dims : 8;
};
static inline const char *s2s_ckpt_target_name(const struct s2s_ckpt_target *target)
{
    return target->name;
}
static inline const int64_t *s2s_ckpt_target_shape(const struct s2s_ckpt_target *target)
{
    return target->shape;
}
/* The k-th piece of a target, k < n_pieces. */
static inline struct s2s_ckpt_piece s2s_ckpt_target_piece(const struct s2s_ckpt_target *target,
                                                          size_t k)
{
    return target->pieces[k];
}
/* The source tensor of a target that has one piece; NULL for others, and for zeros. */
static inline const struct s2s_ckpt_tensor *s2s_ckpt_target_source(
    const struct s2s_ckpt_target *target)
{
    return target->n_pieces == 1 ? target->pieces[0].source : NULL;
}

struct s2s_ckpt_plan {
    struct s2s_ckpt *source;
    /* For an average: the other checkpoints (kept). Floating tensors are the mean of source and
     * these, which have the same weights. */
    struct s2s_ckpt **others;
    size_t n_others;
    struct s2s_ckpt_target *targets;
    size_t n_targets, cap_targets;
    bool with_texts;         /* safetensors: with the texts of the source's metadata */
    double *sums;            /* scratch for means; NULL until needed */
    size_t n_overflows;      /* streams in which casting to float16 overflowed */
    struct s2s_blocks arena; /* names, shapes, pieces */
};

/* Adds a target without pieces. name and shape [n_dims] are copied. Lent until the next target is
 * added. */
struct s2s_ckpt_target *s2s_ckpt_plan_add(struct s2s_ckpt_plan *plan, const char *name,
                                          enum s2s_dtype dtype, int n_dims, const int64_t *shape);
/* Adds a box of source (kept) to a target of the plan. begin NULL: from the first element on every
 * axis; size NULL: to the end. source NULL: size[0] zeros. */
void s2s_ckpt_plan_piece(struct s2s_ckpt_plan *plan, struct s2s_ckpt_target *target,
                         const struct s2s_ckpt_tensor *source, const int64_t *begin,
                         const int64_t *size);
/* Adds a target that is all of a source tensor (kept), under this name. Lent as above. */
struct s2s_ckpt_target *s2s_ckpt_plan_copy(struct s2s_ckpt_plan *plan, const char *name,
                                           const struct s2s_ckpt_tensor *source);
/* The target of this name, or NULL. A linear search: not to be called for each target. */
const struct s2s_ckpt_target *s2s_ckpt_plan_find(const struct s2s_ckpt_plan *plan,
                                                 const char *name);
/* Sets the dtype of floating targets (F64, F32, F16, BF16). Other dtypes stay, and so does
 * optimizer state: moments and master weights are only useful in their own precision. Expert biases
 * of routers and quantisation scales are never narrowed. */
void s2s_ckpt_plan_cast(struct s2s_ckpt_plan *plan, enum s2s_dtype dtype);
/* Sorts the targets by name, numbers by value ("layers.2" before "layers.10"), and checks them.
 * FORMAT: duplicate names; SHAPE: pieces do not fill their target; DTYPE: pieces cannot be cast to
 * it. */
int s2s_ckpt_plan_seal(struct s2s_ckpt_plan *plan, struct s2s_error *err);
/* UNSUPPORTED names a target that safetensors cannot store: with a dtype that it lacks, or named
 * "__metadata__". */
int s2s_ckpt_plan_for_safetensors(const struct s2s_ckpt_plan *plan, struct s2s_error *err);
/* Bytes of a target's data, as written. */
int64_t s2s_ckpt_target_bytes(const struct s2s_ckpt_target *target);
/* Frees the plan's members; its source and others stay. */
void s2s_ckpt_plan_release(struct s2s_ckpt_plan *plan);

/* ---- writing ---- */

/* How to write a plan; all pointers are borrowed. */
struct s2s_ckpt_write {
    int64_t max_shard_bytes; /* size limit of a file of weights; 0: one file */
    int64_t n_files;         /* torch_dist: this many files of equal size instead; 0: as above */
    /* NULL, or called with the number of bytes written (or read, to verify) since the last call */
    void (*progress)(void *ctx, int64_t bytes);
    void *ctx; /* of progress */
    /* NULL, or set by a signal handler: once not 0, everything ends with INTERRUPTED */
    atomic_int *stop;
    int64_t *n_infinite; /* NULL, or counts the values that the cast to float16 made infinite */
    /* torch_dist: which byte objects to write; NULL: all */
    bool (*keep_object)(const char *name);
    const json_t *common; /* torch_dist: the common state; NULL: the source's */
    bool dcp; /* without the files that make torch_dist of it: common.pt, metadata.json */
    /* torch_dist: NULL, or the common state's new "content_metadata" */
    const json_t *metadata;
    struct ckpt_journal *journal; /* NULL, or a journal of what is done (lib/ckpt/write/journal.h)
                                   */
    /* NULL, or the ranks that distribute the files: all make the same calls
     * (lib/ckpt/write/share.h) */
    struct s2s_mesh *mesh;
    int turn; /* the rank that writes the first file (set by lib/ckpt/write/to_hf.c) */
    /* NULL, or an object to which an entry is added for each file (lib/ckpt/write/manifest.h) */
    json_t *manifest;
};

/* Sets *out to the part of a target that covers its bytes [begin_bytes, end_bytes). Pieces are
 * split between rows, so the part may start earlier: returns the number of bytes of its stream
 * before begin_bytes. out borrows the target's name and shape. Gives: free out->pieces. */
int64_t s2s_ckpt_target_part(struct s2s_ckpt_target *out, const struct s2s_ckpt_target *target,
                             int64_t begin_bytes, int64_t end_bytes);
/* Streams the bytes of a target, as s2s_ckpt_stream does for a tensor. NOTFOUND: one of the others
 * of a mean lacks the tensor; INTERRUPTED. */
int s2s_ckpt_target_stream(struct s2s_ckpt_plan *plan, const struct s2s_ckpt_target *target,
                           const struct s2s_ckpt_write *how, s2s_ckpt_sink *sink, void *ctx,
                           struct s2s_error *err);
/* Verifies the CRC-32 of every source storage that streaming did not verify because it was not read
 * completely. DIGEST, IO. */
int s2s_ckpt_plan_verify(const struct s2s_ckpt_plan *plan, struct s2s_error *err);
/* The same for one source tensor and those of its name in the others of a mean. */
int ckpt_plan_verify_source(const struct s2s_ckpt_plan *plan, const struct s2s_ckpt_tensor *source,
                            struct s2s_error *err);

#endif
