/*
 * Reads checkpoints of any format. A checkpoint is a set of named tensors, each split into boxes
 * (chunks) that are stored somewhere in its files, of byte objects, and of a small common state.
 * Opening reads only names and shapes; data is read box by box, so memory does not grow with the
 * checkpoint. Nothing in a file is ever executed (lib/ckpt/pickle/pickle.h).
 *
 * Formats, recognised by their bytes (doc/CHECKPOINT.md describes what s2s-train writes):
 *
 *   - torch_dist: Megatron-Core's .metadata, *.distcp, common.pt, metadata.json
 *   - dcp: torch.distributed.checkpoint's .metadata, *.distcp
 *   - dcp_hf: the same with Hugging Face storage (safetensors files with sharding info)
 *   - hf: Hugging Face folder of safetensors, single or with index; also a composite of parts
 *   - hf_bin: Hugging Face folder of pytorch_model*.bin
 *   - safetensors: one file
 *   - torch: one torch.save file (zip)
 *   - torch_legacy: one torch.save file of torch before 1.6
 *   - mp_rank: Megatron's folder per model-parallel rank
 *   - fsdp_rank: a torch.save file for each FSDP rank, of DTensors (verl, SkyRL)
 *   - nemo: NeMo's archive (.nemo) of one torch.save file and its configuration
 */
#ifndef S2S_CKPT_H
#define S2S_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/base/dtype.h"
#include "lib/io/safetensors.h"

struct s2s_error;
struct s2s_ckpt;
struct s2s_ckpt_write; /* lib/ckpt/plan.h */

/* Where the bytes of a chunk are; for lib/ckpt only. */
struct ckpt_location {
    int file : 28;    /* index in files; -1: not known */
    bool located : 1; /* the members below, which describe the storage in it, are known */
    bool checked : 1; /* the storage's CRC-32 was verified */
    bool has_crc : 1;
    bool is_view : 1; /* a view: it has `stored` instead of a storage */
    uint32_t crc;     /* of the storage */
    union {
        struct {
            int64_t store_pos, store_len; /* the storage; before it is located, the torch archive
                                           * that contains it */
        };
        struct {
            /* index of the chunk of the tensor's `stored` that contains it, and position of its
             * first element there (unflatten.c); NULL: the same element, with the last two axes
             * exchanged */
            size_t stored_idx;
            const int64_t *stored_at;
        };
    };
};

/* A tensor. Members after the first four are for lib/ckpt only (model.h). */
struct s2s_ckpt_tensor {
    const char *name;
    const int64_t *shape; /* [n_dims], of the whole tensor */
    uint32_t n_chunks;
    enum s2s_dtype dtype : 8;
    int n_dims : 8;
    struct ckpt_chunk *chunks;            /* [n_chunks] */
    const int64_t *orig_shape;            /* what s2s_ckpt_orig_shape returns */
    const struct s2s_ckpt_tensor *stored; /* what ckpt_stored returns */
};
/* The shape that the tensor had before Megatron-Core flattened it, n_dims - 1 axes, lent until
 * close; NULL: not flattened. The stored shape is [grid..., local]: for each original axis the
 * number of shards along it, then the elements of a shard. */
const int64_t *s2s_ckpt_orig_shape(const struct s2s_ckpt_tensor *tensor);

/* A stored object that is not a tensor: a module's extra state, random states, plain values. */
struct s2s_ckpt_object {
    const char *name;
    int64_t len_bytes; /* as stored; -1: it has no bytes of its own (in a torch.save file) */
    const char *file;  /* the file; NULL: no bytes of its own */
    int64_t pos;       /* offset of its first byte in the file */
    json_t *value;     /* its value, if that was read with the names; else NULL */
    /* For values that JSON cannot represent (bytes, nan, ..): the pickle opcodes that make them;
     * else NULL. */
    const char *pickle;
    size_t pickle_len;
    const char *lost;     /* its class, if it contains tensors, which are not read; else NULL */
    const uint16_t *path; /* its path in nested dicts (ckpt_keep_path); NULL: unknown */
};

/*
 * Opens the checkpoint at path: a file, its folder, or a folder above that leads to it (with
 * latest_checkpointed_iteration.txt or LATEST, or one that trainers wrap around weights). Checks
 * that every tensor's chunks cover it exactly. Gives: s2s_ckpt_close. OPEN: it does not exist, or
 * may not be read; FORMAT, TRUNCATED, SHAPE: damaged, or no checkpoint; UNSUPPORTED: a known format
 * that is not read.
 */
int s2s_ckpt_open(struct s2s_ckpt **out, const char *path, struct s2s_error *err);
void s2s_ckpt_close(struct s2s_ckpt *ckpt); /* NULL is a no-op */

/* safetensors' save_model writes a tensor with several names (tied matrices) under the one that
 * sorts first, and the others into the metadata. Adds them to the tensors, over the same bytes, for
 * whoever looks for names that a model has. */
int s2s_ckpt_add_other_names(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Texts in the metadata of safetensors files, without the format: an object; NULL: none. */
const json_t *s2s_ckpt_texts(const struct s2s_ckpt *ckpt);
/* The keys of such texts that an output lacks, as a list; kept: names are kept
 * and it is safetensors too, so that it has the others. NULL: none. Gives: free. */
char *s2s_ckpt_lost_texts(const struct s2s_ckpt *ckpt, bool kept);

/*
 * Merges Megatron's rank folders (format mp_rank) into the whole model: from now on tensors have
 * the names and shapes of torch_dist, and the common state is that of the first rank without its
 * random states. Extra states lose their content. Optimizers are left out: torch.optim numbers the
 * parameters and does not name them. Does nothing for other formats. NOTFOUND: a rank is missing.
 * SHAPE, FORMAT: the ranks' tensors do not fit together, or copies of one tensor differ.
 * UNSUPPORTED: a model, or a kind of sharding, that cannot be merged. After an error the checkpoint
 * can only be closed.
 */
int s2s_ckpt_merge_ranks(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Only checks: do all ranks exist that the saved arguments and the other folders imply, and are
 * they of the same run? NOTFOUND, SHAPE, FORMAT. 0 for other formats. */
int s2s_ckpt_check_ranks(struct s2s_ckpt *ckpt, struct s2s_error *err);

/*
 * Narrows the checkpoint to one part of its model: the tensors whose names, without the "module."
 * of wrappers, start with `part` and a dot ("llm", "language_model."). This prefix is removed from
 * them; objects and optimizer are dropped. NOTFOUND: no such name.
 */
int s2s_ckpt_select(struct s2s_ckpt *ckpt, const char *part, struct s2s_error *err);
/* Parses the JSON text of a configuration; Python's Infinity and NaN, which are not JSON, are
 * allowed. flags are json_loadb's. Gives: json_decref. NULL: not JSON, and *at (unless at is NULL)
 * says where. */
json_t *s2s_ckpt_parse_config(const char *text, size_t len, size_t flags, json_error_t *at);
/* The inverse: a tree as text. Gives: free. NULL for NULL. */
char *s2s_ckpt_config_text(const json_t *root);
/* Replaces the checkpoint's NeMo configuration by the text of a model_config.yaml; name is its name
 * for errors. FORMAT: not a NeMo configuration. */
int s2s_ckpt_take_nemo_config(struct s2s_ckpt *ckpt, const char *text, const char *name,
                              struct s2s_error *err);

/* The format's name, as in the list above ("torch_dist"). */
const char *s2s_ckpt_format(const struct s2s_ckpt *ckpt);
/* The folder or file that is read, which may be below the one opened; lent until close. */
const char *s2s_ckpt_path(const struct s2s_ckpt *ckpt);
/* Total bytes of all files that are read; 128 bits, because sparse files can have any length. */
__int128 s2s_ckpt_files_bytes(const struct s2s_ckpt *ckpt);
/* The training step at which it was saved; -1: unknown. */
int64_t s2s_ckpt_iteration(const struct s2s_ckpt *ckpt);

/* All tensors, or objects, sorted by name; *n is their number. Lent until close. */
const struct s2s_ckpt_tensor *s2s_ckpt_tensors(const struct s2s_ckpt *ckpt, size_t *n);
const struct s2s_ckpt_object *s2s_ckpt_objects(const struct s2s_ckpt *ckpt, size_t *n);
/* The tensor of this name, lent until close; NULL: none. */
const struct s2s_ckpt_tensor *s2s_ckpt_find(const struct s2s_ckpt *ckpt, const char *name);
/* Number of elements of a tensor. */
int64_t s2s_ckpt_numel(const struct s2s_ckpt_tensor *tensor);
/* Their size in bytes. */
int64_t s2s_ckpt_bytes(const struct s2s_ckpt_tensor *tensor);

/*
 * The common state (common.pt, or the values of a torch.save file) as JSON, lent until close; NULL:
 * none. Tuples are arrays, a Namespace or record is an object, bytes and unknown classes are
 * strings.
 */
const json_t *s2s_ckpt_common(const struct s2s_ckpt *ckpt);
/* Number of Megatron's rank folders with an optimizer, which is not read. */
size_t s2s_ckpt_rank_states(const struct s2s_ckpt *ckpt);
/* Values of merged rank folders that the common state lacks (rng_state, ..), by name, with the
 * number of folders that had one; lent until close, NULL: none. */
const json_t *s2s_ckpt_rank_values(const struct s2s_ckpt *ckpt);
/* The number of values beside a Megatron rank's model that hold tensors, such as averages, which
 * are left out; a warning named each. */
size_t s2s_ckpt_left_values(const struct s2s_ckpt *ckpt);

/*
 * Reads the box [begin, begin + size) of a tensor, row-major, into out, which has room for
 * numel(size) elements. begin NULL: from the first element on every axis; size NULL: to the end.
 * RANGE: the box leaves the tensor; IO, TRUNCATED, DIGEST, and what finding the bytes failed with.
 * Several threads may read different checkpoints, not one and the same.
 */
int s2s_ckpt_read(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, const int64_t *begin,
                  const int64_t *size, void *out, struct s2s_error *err);

/* Have two tensors the same dtype, shape and bytes? 1, 0, or an error of reading. It reads up to
 * the first difference. */
int s2s_ckpt_is_copy(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *a,
                     const struct s2s_ckpt_tensor *b, struct s2s_error *err);

/* Bytes per piece of a stream. A piece, and those waiting to be written (lib/io/behind.h), must fit
 * into the cores' L2 caches: with 1 MiB each, data goes through memory twice (2 GB took 2.5 times
 * as long while other cores were busy); with 64 or 128 KiB, system calls cost 1.2 to 1.6 times as
 * much. */
enum { S2S_CKPT_PIECE = 256 << 10 };

/* Iterates over a box in smaller boxes of at most S2S_CKPT_PIECE bytes, in row-major order. */
struct s2s_ckpt_walk {
    /* after each s2s_ckpt_walk_next: offset of the small box in the large one, and its size */
    int64_t begin[S2S_MAX_DIMS], box[S2S_MAX_DIMS];
    int64_t size[S2S_MAX_DIMS], rows; /* the following is internal */
    int n_dims, axis;
    bool started, done;
};
/* size [n_dims]: of the large box; itemsize: bytes per element. */
void s2s_ckpt_walk_begin(struct s2s_ckpt_walk *walk, const int64_t *size, int n_dims,
                         size_t itemsize);
bool s2s_ckpt_walk_next(struct s2s_ckpt_walk *walk); /* false: end */

/* Receives the next piece of a stream: len <= S2S_CKPT_PIECE bytes, lent for the call. A negative
 * result ends the stream. */
typedef int s2s_ckpt_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err);
/*
 * Streams a box (as in s2s_ckpt_read) to sink in pieces, row-major. If a whole tensor is read, the
 * CRC-32 in torch's archives is verified, too (DIGEST). Errors as s2s_ckpt_read, or the sink's.
 */
int s2s_ckpt_stream(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                    const int64_t *begin, const int64_t *size, s2s_ckpt_sink *sink, void *ctx,
                    struct s2s_error *err);
/* A view of a flattened tensor (s2s_ckpt_orig_shape) in its original shape, lent until close, that
 * is read like any tensor. Other tensors are returned as they are. */
const struct s2s_ckpt_tensor *s2s_ckpt_unflattened(struct s2s_ckpt *ckpt,
                                                   const struct s2s_ckpt_tensor *tensor);
/* What another checkpoint has in place of this tensor, or view of one: of the same name, dtype and
 * shape; lent until its close. NULL: nothing. */
const struct s2s_ckpt_tensor *s2s_ckpt_counterpart(struct s2s_ckpt *other,
                                                   const struct s2s_ckpt_tensor *tensor);
/* Streams the stored bytes of an object (len_bytes) to sink. Only for objects that have some (file
 * is not NULL). */
int s2s_ckpt_stream_object(struct s2s_ckpt *ckpt, const struct s2s_ckpt_object *object,
                           s2s_ckpt_sink *sink, void *ctx, struct s2s_error *err);

/* ---- verification ---- */

/* The tensors sorted by the location of their first bytes. Gives: free. */
const struct s2s_ckpt_tensor **s2s_ckpt_by_place(const struct s2s_ckpt *ckpt);
/* Verifies the CRC-32 of every storage of the tensor; reads those that no stream has read
 * completely yet. DIGEST, IO. */
int s2s_ckpt_verify_tensor(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                           struct s2s_error *err);
/* Verifies what further FSDP ranks have of tensors: CRC-32s, and that it equals what the first of
 * them has. DIGEST, FORMAT, IO. */
int s2s_ckpt_verify_copies(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* After s2s_ckpt_verify_tensor: had all of it a CRC-32? */
bool s2s_ckpt_has_crc(const struct s2s_ckpt_tensor *tensor);
/* Sets *crc to the CRC-32 of the tensor's row-major bytes, if an archive stores them in this order,
 * with a CRC-32; it is verified when the tensor is streamed completely, or verified. false: there
 * is none. */
bool s2s_ckpt_stored_crc(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                         uint32_t *crc);
/* Finds stored objects that contain tensors (torch.distributed.checkpoint stores tuples as
 * objects): sets their `lost`, with a warning each. Skips the optimizer's and Megatron's own. */
void s2s_ckpt_find_lost(struct s2s_ckpt *ckpt);
/* Checks that a stored object is a torch.save archive with correct CRC-32s and a valid pickle. */
int s2s_ckpt_verify_object(struct s2s_ckpt *ckpt, const struct s2s_ckpt_object *object,
                           struct s2s_error *err);
/* The same for the common state, if it is a file (common.pt); for Hugging Face folders, that
 * config.json is JSON. TRUNCATED: unfinished save; NOTFOUND: Megatron-Core's folder has no common
 * state. */
int s2s_ckpt_verify_common(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Checks the CRC-32s of all that is in the files of torch.save, also of what no tensor is read
 * from. *n_unchecked: increased by the files that have none, or are no such files. DIGEST. */
int s2s_ckpt_verify_archives(struct s2s_ckpt *ckpt, size_t *n_unchecked, struct s2s_error *err);
/* Reads all files completely: without checksums this at least shows that the disk returns every
 * byte. how: not NULL; only its progress is used. IO, TRUNCATED. */
int s2s_ckpt_read_files(struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                        struct s2s_error *err);

/* Identifies a checkpoint's state on disk: XXH3-128 of the names, lengths and times of the files
 * that are read, which changes when a file is written. IO. */
int s2s_ckpt_identity(const struct s2s_ckpt *ckpt, char hex[33], struct s2s_error *err);
/* Does `path` belong to the checkpoint, so that it must not be written? True for the files that are
 * read and for any other in its folder (configuration, tokenizer, ..). */
bool s2s_ckpt_reads(const struct s2s_ckpt *ckpt, const char *path);

/* ---- names ---- */

/* Is this the name of training state, not of a weight: an optimizer's (also with the prefixes of
 * several optimizers or branches of a heterogeneous model, "chained_0.optimizer.", and under any
 * key for torch.optim's dict, "opt.state.0.exp_avg"), random states ("mimo.llm.rng_state"), or
 * state of Lightning's callbacks? */
bool s2s_ckpt_is_state(const char *name);
/* Does the name have the form KEY/shard_OFFSETS_SHAPE of Megatron-Core's objects? Megatron-Core
 * refuses a checkpoint with an object of another name. */
bool s2s_ckpt_is_sharded(const char *name);

/* A tensor that a program requires: dtype S2S_DTYPE_NONE means any, n_dims -1 any shape. */
struct s2s_ckpt_want {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    const int64_t *shape; /* [n_dims] */
};
/* Checks that the n tensors exist as required. NOTFOUND, SHAPE: lists all that do not, with the
 * nearest existing name: the first in the error, the others in the log. */
int s2s_ckpt_check(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_want *wants, size_t n,
                   struct s2s_error *err);

#endif
