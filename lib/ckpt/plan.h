/*
 * What a conversion writes: target tensors, each the row-major concatenation of boxes of source
 * tensors (every split, merge and stacking between the families is of that form), cast on the way.
 * All shapes and dtypes are known, and checked, before a byte is written.
 */
#ifndef CKPT_PLAN_H
#define CKPT_PLAN_H

#include "lib/base/blocks.h"
#include "lib/ckpt/ckpt.h"

struct s2s_mesh;
struct s2s_outfile;
struct ckpt_journal;

/* A box of a source tensor, or zeros (source NULL: size is their number). There may be a hundred
 * thousand pieces and as many targets: they, names and numbers are in the plan's arena, or the
 * source's where they are equal. */
struct s2s_ckpt_piece {
    const struct s2s_ckpt_tensor *source;
    const int64_t *begin, *size; /* [n_dims of source] */
};

struct s2s_ckpt_target {
    const char *name;
    const int64_t *shape; /* [n_dims] */
    union {
        struct s2s_ckpt_piece *pieces;
        const struct s2s_ckpt_tensor *copied; /* is_copy: the one piece is this whole tensor */
    };
    uint32_t n_pieces;
    enum s2s_dtype dtype : 8; /* as it is written */
    int n_dims : 8;
    bool is_copy : 1;
};
/* The k-th of its pieces; its numbers live as long as the plan. */
struct s2s_ckpt_piece s2s_ckpt_target_piece(const struct s2s_ckpt_target *target, size_t k);
/* The one source tensor of which it is made in one piece, or NULL. */
const struct s2s_ckpt_tensor *s2s_ckpt_target_source(const struct s2s_ckpt_target *target);

struct s2s_ckpt_plan {
    struct s2s_ckpt *source;
    /* Floating tensors are the mean of source and these (borrowed), which were opened like it, have
     * the same names and shapes, and were reduced. */
    struct s2s_ckpt **others;
    size_t n_others;
    struct s2s_ckpt_target *targets;
    size_t n_targets, cap_targets;
    size_t n_overflows; /* streams so far in which numbers became infinite, as was warned */
    struct s2s_blocks arena;
};

/* Adds a target without pieces; lent until the next. */
struct s2s_ckpt_target *s2s_ckpt_plan_add(struct s2s_ckpt_plan *plan, const char *name,
                                          enum s2s_dtype dtype, int n_dims, const int64_t *shape);
/* Adds a box to a target of the plan. begin NULL: zeros; size NULL: to the end. */
void s2s_ckpt_plan_piece(struct s2s_ckpt_plan *plan, struct s2s_ckpt_target *target,
                         const struct s2s_ckpt_tensor *source, const int64_t *begin,
                         const int64_t *size);
/* A target that is a whole source tensor under another name. */
struct s2s_ckpt_target *s2s_ckpt_plan_copy(struct s2s_ckpt_plan *plan, const char *name,
                                           const struct s2s_ckpt_tensor *source);
/* By name, NULL: there is none. Looks at each: for a few of a plan, sealed or not. */
const struct s2s_ckpt_target *s2s_ckpt_plan_find(const struct s2s_ckpt_plan *plan,
                                                 const char *name);
/* Floating targets (F64 F32 F16 BF16) get this dtype; others stay, and so does the optimizer's
 * state (moments and master weights are of use in their own precision only). A router's bias of
 * experts and the scales of quantised weights get no narrower. */
void s2s_ckpt_plan_cast(struct s2s_ckpt_plan *plan, enum s2s_dtype dtype);
/* Sorts by name, numbers by value ("layers.2" before "layers.10"); refuses a name twice, and pieces
 * that do not fill their target or cannot be cast to it. */
int s2s_ckpt_plan_seal(struct s2s_ckpt_plan *plan, struct s2s_error *err);
/* Refuses, by name, targets of a dtype that safetensors does not have. */
int s2s_ckpt_plan_for_safetensors(const struct s2s_ckpt_plan *plan, struct s2s_error *err);
int64_t s2s_ckpt_target_bytes(const struct s2s_ckpt_target *target);
void s2s_ckpt_plan_release(struct s2s_ckpt_plan *plan);

/* ---- carrying it out ---- */

struct s2s_ckpt_write {
    int64_t max_shard_bytes; /* of a file of weights; 0: one file */
    int64_t n_files;         /* torch_dist: this many of equal size instead; 0: does not matter */
    void (*progress)(void *ctx, int64_t bytes);
    void *ctx;
    volatile int *stop;                    /* not 0: give up (INTERRUPTED) */
    bool (*keep_object)(const char *name); /* NULL: all byte objects come along (torch_dist) */
    const json_t *common;                  /* torch_dist: the common state; NULL: the source's */
    const json_t *metadata; /* torch_dist: NULL, or the content metadata of the common state */
    struct ckpt_journal *journal; /* NULL, or what is done already (lib/ckpt/write/journal.h) */
    /* NULL, or whose ranks share the files: all of them make the same calls
     * (lib/ckpt/write/share.h) */
    struct s2s_mesh *mesh;
    int turn; /* the rank whose turn the first file is (set by lib/ckpt/write/to_hf.c) */
    /* NULL, or where the files of a folder are noted (lib/ckpt/write/manifest.h) */
    json_t *manifest;
};

/* What of a target lies between these bytes, or a little more: out borrows its name and shape and
 * gives out->pieces (free). Returns how many bytes of its stream are before begin_bytes. */
int64_t s2s_ckpt_target_part(struct s2s_ckpt_target *out, const struct s2s_ckpt_target *target,
                             int64_t begin_bytes, int64_t end_bytes);
/* Streams one target, as s2s_ckpt_stream does a tensor. */
int s2s_ckpt_target_stream(struct s2s_ckpt_plan *plan, const struct s2s_ckpt_target *target,
                           const struct s2s_ckpt_write *how, s2s_ckpt_tap *tap, s2s_ckpt_sink *sink,
                           void *ctx, struct s2s_error *err);
/* Compares the CRC-32 of every source storage that the streams did not read in order. */
int s2s_ckpt_plan_verify(const struct s2s_ckpt_plan *plan, struct s2s_error *err);
/* Compares the files of the source's folder with integrity.json, where it has one: each of them by
 * one of the ranks. Not agreed. DIGEST, NOTFOUND, FORMAT, UNSUPPORTED as s2s_ckpt_verify_manifest;
 * INTERRUPTED. */
int s2s_ckpt_verify_integrity(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                              struct s2s_error *err);
/* s2s_ckpt_plan_verify of one source tensor, and of those of its name that a mean takes beside it.
 */
int ckpt_plan_verify_source(const struct s2s_ckpt_plan *plan, const struct s2s_ckpt_tensor *source,
                            struct s2s_error *err);

/* One safetensors file of targets [begin, end); aligned, so tensors of wide types come first.
 * digest: NULL, or where the file's XXH3-128 goes. */
int s2s_ckpt_write_safetensors(struct s2s_ckpt_plan *plan, size_t begin, size_t end,
                               struct s2s_outfile *out, const struct s2s_ckpt_write *how,
                               char digest[33], struct s2s_error *err);
/* model.safetensors, or shards and their index (rank 0's), in a folder that exists. Not agreed. */
int s2s_ckpt_write_hf(struct s2s_ckpt_plan *plan, const char *dir, const struct s2s_ckpt_write *how,
                      struct s2s_error *err);

#endif
