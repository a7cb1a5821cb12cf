/*
 * The room's door for reading: checkpoints of whatever format. A checkpoint is a set of named
 * tensors, each cut into boxes (chunks) that lie somewhere in its files, of byte objects, and of a
 * small common state. Opening reads names and shapes only; data is read box by box, so memory does
 * not grow with the checkpoint. Nothing in a file is ever executed (lib/ckpt/pickle/pickle.h).
 *
 * Formats, found from the bytes (doc/CHECKPOINT.md says what s2s-train writes):
 *
 *   - torch_dist: Megatron-Core's .metadata, *.distcp, common.pt, metadata.json
 *   - dcp: torch.distributed.checkpoint's .metadata, *.distcp
 *   - dcp_hf: the same with Hugging Face storage (safetensors files with sharding info)
 *   - hf: Hugging Face folder of safetensors, single or with index; also a composite of parts
 *   - hf_bin: Hugging Face folder of pytorch_model*.bin
 *   - safetensors: one file
 *   - torch: one torch.save file (zip)
 *   - torch_legacy: one torch.save file of before 1.6
 *   - mp_rank: Megatron's folder per model-parallel rank
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

/* Where the bytes of a chunk lie; lib/ckpt only. */
struct ckpt_location {
    int file : 28;    /* index in files; -1: not known */
    bool located : 1; /* which bytes of it is known, and of its storage what is below */
    bool checked : 1; /* the storage's CRC-32 was compared and is right */
    bool has_crc : 1;
    bool is_view : 1; /* it has `stored` in place of a storage */
    uint32_t crc;     /* of the storage */
    union {
        struct {
            int64_t store_pos, store_len; /* the storage; before it is located, the torch archive
                                           * that holds it */
        };
        struct {
            /* which chunk of the tensor's `stored` it lies in, and where its first element is there
             * (unflatten.c); NULL: the same element, the last two axes exchanged */
            size_t stored_idx;
            const int64_t *stored_at;
        };
    };
};

/* There may be hundreds of thousands. All but the first four are lib/ckpt's own (model.h). */
struct s2s_ckpt_tensor {
    const char *name;
    const int64_t *shape; /* [n_dims], of the whole tensor */
    uint32_t n_chunks;
    enum s2s_dtype dtype : 8;
    int n_dims : 8;
    bool is_plain : 1; /* its one chunk is all of it, row-major, from the begin of a storage */
    union {
        struct ckpt_location place; /* is_plain */
        struct {
            const int64_t *boxes;         /* [n_chunks][2][n_dims]: their offsets and sizes */
            struct ckpt_location *places; /* [n_chunks] */
            struct ckpt_odd *odd;         /* NULL, or what few have (chunk.c) */
        };
    };
};
/* The shape that the tensor had before Megatron-Core flattened it, n_dims - 1 axes, lent until
 * close; NULL for a tensor that was not flattened. What is stored has the shape [grid..., local]:
 * one axis for each axis of the original (into how many shards it was cut), and one for the
 * elements of a shard. */
const int64_t *s2s_ckpt_orig_shape(const struct s2s_ckpt_tensor *tensor);

/* Something stored that is no tensor: a module's extra state, random states, plain values. */
struct s2s_ckpt_object {
    const char *name;
    int64_t len_bytes; /* as stored; -1: it has no bytes of its own (inside a torch.save file) */
    const char *file;  /* in which file; NULL when it has no bytes of its own */
    int64_t pos;       /* of its first byte in that file */
    json_t *value;     /* what it is, where that was read together with the names; else NULL */
    /* Where JSON has no such value (bytes, nan, ..): the opcodes of a pickle that makes it. Else
     * NULL. */
    const char *pickle;
    size_t pickle_len;
    const char *lost;     /* its class, if it holds tensors, which then are not read; else NULL */
    const uint16_t *path; /* where it stands in nested dicts (ckpt_keep_path); NULL: not said */
};

/*
 * Opens the checkpoint at path: a file, its folder, or a folder above that leads to it (with
 * latest_checkpointed_iteration.txt or LATEST, or one of those that trainers put around weights).
 * Every tensor's chunks are checked to cover it exactly. Gives: s2s_ckpt_close.
 * OPEN: it is not there, or must not be read; FORMAT, TRUNCATED, SHAPE: damaged, or no checkpoint;
 * UNSUPPORTED: a format that is known by name and not read.
 */
int s2s_ckpt_open(struct s2s_ckpt **out, const char *path, struct s2s_error *err);
/* The same, to be compared with another checkpoint `like` (kept; may be NULL): names that both have
 * are in memory only once. */
int s2s_ckpt_open_like(struct s2s_ckpt **out, const char *path, const struct s2s_ckpt *like,
                       struct s2s_error *err);
void s2s_ckpt_close(struct s2s_ckpt *ckpt); /* NULL is a no-op */

/*
 * Makes a checkpoint that was opened like another one small: of each weight that it shares with
 * that one, in the same dtype and shape, it keeps only where the bytes lie (some ten bytes of
 * memory). Of the rest only its files stay known. From then on s2s_ckpt_counterpart is the only way
 * to its tensors; whatever it lent before is gone. others: checkpoints reduced before (n_others of
 * them, borrowed); where one of these has everything in the same places, both use one table.
 */
void s2s_ckpt_reduce(struct s2s_ckpt *ckpt, struct s2s_ckpt *const *others, size_t n_others);
/* The tensor of a reduced checkpoint that belongs to this tensor (or view of one) of the checkpoint
 * that it was opened like; lent until the next call. NULL: it has none. */
const struct s2s_ckpt_tensor *s2s_ckpt_counterpart(struct s2s_ckpt *ckpt,
                                                   const struct s2s_ckpt_tensor *tensor);

/*
 * Turns Megatron's rank folders (format mp_rank) into the whole model: from now on the tensors have
 * the names and shapes of torch_dist, and the common state is that of the first rank without its
 * random states. Extra states lose their content. with_optimizer: the ranks' optimizers are merged
 * too, into what Megatron-Core's own torch_dist has; where it is not certain to which parameter
 * each of their tensors belongs, they are left out and a warning says why.
 * Checkpoints of other formats stay as they are. NOTFOUND: a rank is missing. SHAPE, FORMAT: the
 * ranks' tensors do not fit together, or copies of one tensor (which are compared) differ.
 * UNSUPPORTED: a model, or a way to cut it, that is not merged. After an error the checkpoint can
 * only be closed.
 */
int s2s_ckpt_merge_ranks(struct s2s_ckpt *ckpt, bool with_optimizer, struct s2s_error *err);
/* Checks, and changes nothing: are all ranks there of which the saved arguments and the other
 * folders speak, and all of the same run? NOTFOUND, SHAPE, FORMAT. 0 for other formats. */
int s2s_ckpt_check_ranks(struct s2s_ckpt *ckpt, struct s2s_error *err);

/*
 * Narrows the checkpoint to one part of its model: the tensors whose names begin with `part` and a
 * dot ("llm", "language_model."), once the "module." of wrappers is taken off. They lose that
 * beginning; objects and optimizer are gone. NOTFOUND: no name begins so.
 */
int s2s_ckpt_select(struct s2s_ckpt *ckpt, const char *part, struct s2s_error *err);
/* The text of a configuration as a tree; Python's Infinity and NaN, which JSON lacks, are allowed.
 * flags are json_loadb's. Gives: json_decref. NULL: it is no JSON, and *at (unless at is NULL) says
 * where. */
json_t *s2s_ckpt_parse_config(const char *text, size_t len, size_t flags, json_error_t *at);
/* The way back: a tree as text. Gives: free. NULL for NULL. */
char *s2s_ckpt_config_text(const json_t *root);
/* Replaces NeMo's configuration of the checkpoint by this one, the text of a model_config.yaml;
 * name is what errors call it. FORMAT: it is none. */
int s2s_ckpt_take_nemo_config(struct s2s_ckpt *ckpt, const char *text, const char *name,
                              struct s2s_error *err);

/* The format's name, as in the list above ("torch_dist"). */
const char *s2s_ckpt_format(const struct s2s_ckpt *ckpt);
/* The folder or file that is read, which may lie below the one that was opened; lent until close.
 */
const char *s2s_ckpt_path(const struct s2s_ckpt *ckpt);
/* Bytes of all files that are read; 128 bits, because sparse files may have any length. */
__int128 s2s_ckpt_files_bytes(const struct s2s_ckpt *ckpt);
/* The training step at which it was saved; -1: not known. */
int64_t s2s_ckpt_iteration(const struct s2s_ckpt *ckpt);

/* All tensors, or objects, in the order of their names; *n is their number. Lent until close. */
const struct s2s_ckpt_tensor *s2s_ckpt_tensors(const struct s2s_ckpt *ckpt, size_t *n);
const struct s2s_ckpt_object *s2s_ckpt_objects(const struct s2s_ckpt *ckpt, size_t *n);
/* The tensor of this name, lent until close; NULL: there is none. */
const struct s2s_ckpt_tensor *s2s_ckpt_find(const struct s2s_ckpt *ckpt, const char *name);
/* How many elements a tensor has. */
int64_t s2s_ckpt_numel(const struct s2s_ckpt_tensor *tensor);
/* How many bytes those are. */
int64_t s2s_ckpt_bytes(const struct s2s_ckpt_tensor *tensor);

/*
 * The common state (common.pt, or the values of a torch.save file) as JSON, lent until close; NULL
 * when there is none. Tuples are arrays, a Namespace or record is an object, bytes and classes that
 * are not data are strings.
 */
const json_t *s2s_ckpt_common(const struct s2s_ckpt *ckpt);
/* Of how many of Megatron's rank folders an optimizer lies beside the model whose tensors are not
 * among the checkpoint's. */
size_t s2s_ckpt_rank_states(const struct s2s_ckpt *ckpt);

/*
 * Reads the box [begin, begin + size) of a tensor, row-major, into out, which has room for
 * numel(size) elements. begin NULL: from the first element on every axis; size NULL: to the end.
 * RANGE: the box leaves the tensor; IO, TRUNCATED, DIGEST, and what finding the bytes failed with.
 * Several threads may read different checkpoints, not one and the same.
 */
int s2s_ckpt_read(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, const int64_t *begin,
                  const int64_t *size, void *out, struct s2s_error *err);

/* How many bytes are on their way at a time. Three such pieces, between read and write, must fit
 * into a core's second-level cache: with 1 MiB each, everything goes through memory twice (2 GB
 * took 2.5 times as long while other cores were busy); with 64 or 128 KiB, system calls cost 1.2 to
 * 1.6 times as much. */
enum { S2S_CKPT_PIECE = 256 << 10 };

/* Walks through a box in smaller ones of at most S2S_CKPT_PIECE bytes each, which follow each other
 * in row-major order. */
struct s2s_ckpt_walk {
    /* after each s2s_ckpt_walk_next: where the small box begins in the large one, its size */
    int64_t begin[S2S_MAX_DIMS], box[S2S_MAX_DIMS];
    int64_t size[S2S_MAX_DIMS], rows; /* the rest is the walk's own */
    int n_dims, axis;
    bool started, done;
};
/* size [n_dims]: of the box to be walked through; itemsize: bytes of an element. */
void s2s_ckpt_walk_begin(struct s2s_ckpt_walk *walk, const int64_t *size, int n_dims,
                         size_t itemsize);
bool s2s_ckpt_walk_next(struct s2s_ckpt_walk *walk); /* false: there are no more */

/* Takes the next piece of a stream: len <= S2S_CKPT_PIECE bytes, lent for the call. What it returns
 * below 0 ends the stream. */
typedef int s2s_ckpt_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err);
/* Sees a piece before the sink does, perhaps on another thread: for a checksum, which then does not
 * delay the writing. */
typedef void s2s_ckpt_tap(void *ctx, const void *bytes, size_t len);
/*
 * The box that s2s_ckpt_read would read, as a row-major run of bytes that is handed to sink in
 * pieces. tap may be NULL; ctx goes to both. Large boxes are read by a second thread, which calls
 * tap; it has ended when this returns. Where a whole tensor is read, the CRC-32 that torch's
 * archives have of it is compared too (DIGEST). Errors as s2s_ckpt_read, or the sink's.
 */
int s2s_ckpt_stream(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                    const int64_t *begin, const int64_t *size, s2s_ckpt_tap *tap,
                    s2s_ckpt_sink *sink, void *ctx, struct s2s_error *err);
/* A flattened tensor (s2s_ckpt_orig_shape) in its original shape: a view, lent until close, that is
 * read like any tensor. Other tensors are returned as they are. */
const struct s2s_ckpt_tensor *s2s_ckpt_unflattened(struct s2s_ckpt *ckpt,
                                                   const struct s2s_ckpt_tensor *tensor);
/* Hands the stored bytes of an object (len_bytes of them) to sink. Only for objects that have some
 * (file is not NULL). */
int s2s_ckpt_stream_object(struct s2s_ckpt *ckpt, const struct s2s_ckpt_object *object,
                           s2s_ckpt_sink *sink, void *ctx, struct s2s_error *err);

/* ---- is it undamaged? ---- */

/* The tensors in the order in which their first bytes lie in the files. Gives: free. */
const struct s2s_ckpt_tensor **s2s_ckpt_by_place(const struct s2s_ckpt *ckpt);
/* Compares the CRC-32 of every storage of the tensor, for which it reads those that no stream has
 * read from end to end so far. DIGEST, IO. */
int s2s_ckpt_verify_tensor(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                           struct s2s_error *err);
/* The same for the tensors of the optimizers in Megatron's rank folders. */
int s2s_ckpt_verify_rank_states(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* After s2s_ckpt_verify_tensor: was there a CRC-32 for all of it? */
bool s2s_ckpt_has_crc(const struct s2s_ckpt_tensor *tensor);
/* Sets *crc to the CRC-32 of the tensor's row-major bytes, if one archive holds them in that order
 * and says it; it is compared when the tensor is streamed whole, or verified. false: nobody says
 * it. */
bool s2s_ckpt_stored_crc(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                         uint32_t *crc);
/* Looks for stored objects that hold tensors (torch.distributed.checkpoint stores tuples whole):
 * sets their `lost`, with a warning each. The optimizer's and Megatron's own are not looked at. */
void s2s_ckpt_find_lost(struct s2s_ckpt *ckpt);
/* Checks that a stored object is an archive of torch.save's, with the CRC-32s that it says and a
 * pickle that is understood. */
int s2s_ckpt_verify_object(struct s2s_ckpt *ckpt, const struct s2s_ckpt_object *object,
                           struct s2s_error *err);
/* The same of the common state, where that is a file (common.pt); of Hugging Face folders, that
 * config.json is JSON. TRUNCATED: the save was not finished; NOTFOUND: Megatron-Core's folder has
 * no common state. */
int s2s_ckpt_verify_common(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Reads all files from end to end: where there is no checksum, this at least shows that the disk
 * gives every byte. how: its progress (not NULL) is told, nothing else of it counts. IO, TRUNCATED.
 */
int s2s_ckpt_read_files(struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                        struct s2s_error *err);

/* Names a checkpoint's state on the disk: the XXH3-128 of the names, lengths and times of the files
 * that are read, which stays the same until somebody writes to them. IO. */
int s2s_ckpt_identity(const struct s2s_ckpt *ckpt, char hex[33], struct s2s_error *err);
/* Must `path` not be written, because the checkpoint lives there? True for the files that are read
 * and for any other in its folder (configuration, tokenizer, ..). */
bool s2s_ckpt_reads(const struct s2s_ckpt *ckpt, const char *path);

/* ---- names ---- */

/* Is this the name of training state, not of a weight: an optimizer's (also with what several
 * optimizers or branches of a heterogeneous model put in front, "chained_0.optimizer.", and under
 * whatever key torch.optim's dict was saved, "opt.state.0.exp_avg"), random states
 * ("mimo.llm.rng_state"), or what Lightning's callbacks keep? */
bool s2s_ckpt_is_state(const char *name);
/* Does the name have the form KEY/shard_OFFSETS_SHAPE, which Megatron-Core gives its objects? It
 * calls a checkpoint damaged that has an object of another name. */
bool s2s_ckpt_is_sharded(const char *name);

/* A tensor that a program needs: dtype S2S_DTYPE_NONE means any, n_dims -1 any shape. */
struct s2s_ckpt_want {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    const int64_t *shape; /* [n_dims] */
};
/* Is each of the n tensors there, as it is wanted? NOTFOUND, SHAPE: no. All that are not are listed
 * with the nearest name that there is: the first in the error, the others in the log. */
int s2s_ckpt_check(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_want *wants, size_t n,
                   struct s2s_error *err);

#endif
