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
            struct ckpt_chunk *chunks;
            const int64_t *orig_shape;            /* s2s_ckpt_orig_shape */
            const struct s2s_ckpt_tensor *stored; /* ckpt_stored */
        };
    };
};
/* NULL, or the shape before Megatron-Core flattened it, of n_dims - 1 axes: stored is [grid...,
 * local]. */
const int64_t *s2s_ckpt_orig_shape(const struct s2s_ckpt_tensor *tensor);

/* Something stored that is no tensor (extra state, random states, plain values). */
struct s2s_ckpt_object {
    const char *name;
    int64_t len_bytes; /* as stored; -1: it has no bytes of its own (inside a torch.save file) */
    const char *file;  /* NULL when it has no bytes of its own */
    int64_t pos;
    json_t *value; /* NULL, or the value where it came with the names */
    /* NULL, or where JSON has no such value (bytes, nan, ..) the opcodes of a pickle that make it
     */
    const char *pickle;
    size_t pickle_len;
    const char *lost; /* the class, when it holds tensors that are not read; NULL */
    const uint16_t *path;
};

/*
 * Opens a file, a checkpoint's folder, or the folder above it with
 * latest_checkpointed_iteration.txt or LATEST, or one that a trainer put around it. OPEN when it is
 * not there; FORMAT, TRUNCATED, UNSUPPORTED (named formats that are not read) otherwise. Every
 * tensor's chunks are checked to cover it exactly.
 */
int s2s_ckpt_open(struct s2s_ckpt **out, const char *path, struct s2s_error *err);
/* The same beside another one (keeps; NULL: none), whose names it does not have again in memory. */
int s2s_ckpt_open_like(struct s2s_ckpt **out, const char *path, const struct s2s_ckpt *like,
                       struct s2s_error *err);
void s2s_ckpt_close(struct s2s_ckpt *ckpt); /* NULL is a no-op */

/*
 * Of a checkpoint opened like another, that only the other's weights are wanted from now on: of
 * each that is here in the same dtype and shape a few bytes are kept, which are shared with one of
 * n_others that were reduced before where both have all in the same places. Nothing that was lent
 * lives on; its files are known as before.
 */
void s2s_ckpt_reduce(struct s2s_ckpt *ckpt, struct s2s_ckpt *const *others, size_t n_others);
/* Of such a checkpoint what the other's tensor, or view of a tensor, is here; lent until the next
 * call. NULL: it is not here. */
const struct s2s_ckpt_tensor *s2s_ckpt_counterpart(struct s2s_ckpt *ckpt,
                                                   const struct s2s_ckpt_tensor *tensor);

/*
 * Of a checkpoint of Megatron's rank folders (format mp_rank): from now on its tensors are those of
 * the whole model, with the names and shapes of torch_dist, its common state that of the first
 * rank without random states; extra states are dropped. with_optimizer: the optimizers of the ranks
 * are merged too, as Megatron-Core's own torch_dist has them; where it is not certain which of its
 * tensors belong to which parameters they are left out, and a warning says why. Other formats stay
 * as they are. NOTFOUND: a rank is missing; SHAPE or FORMAT names tensors that do not fit together
 * or should be copies and differ (these are read). After an error the checkpoint can only be
 * closed.
 */
int s2s_ckpt_merge_ranks(struct s2s_ckpt *ckpt, bool with_optimizer, struct s2s_error *err);
/* Of such a checkpoint: is each rank there that its arguments and the other folders speak of, and
 * are all of one run? NOTFOUND, SHAPE, FORMAT. Nothing is changed. */
int s2s_ckpt_check_ranks(const struct s2s_ckpt *ckpt, struct s2s_error *err);

/*
 * From now on the checkpoint is one part of its model: the tensors whose names begin with `part`
 * and a dot ("llm", "language_model."; names without the "module." of wrappers), without that
 * beginning; no objects, no optimizer. NOTFOUND: there are none.
 */
int s2s_ckpt_select(struct s2s_ckpt *ckpt, const char *part, struct s2s_error *err);
/* A configuration as a tree, also with Python's Infinity and NaN, and a tree as its text; flags are
 * json_loadb's. Give: json_decref, free. NULL: it is no JSON, `at` (may be NULL) says where; of
 * NULL there is no text. */
json_t *s2s_ckpt_parse_config(const char *text, size_t len, size_t flags, json_error_t *at);
char *s2s_ckpt_config_text(const json_t *root);
/* From now on NeMo's configuration is this text of a model_config.yaml; name is for errors. FORMAT:
 * it is none. */
int s2s_ckpt_take_nemo_config(struct s2s_ckpt *ckpt, const char *text, const char *name,
                              struct s2s_error *err);

const char *s2s_ckpt_format(const struct s2s_ckpt *ckpt);   /* "torch_dist" */
const char *s2s_ckpt_path(const struct s2s_ckpt *ckpt);     /* of the folder or file that is read */
__int128 s2s_ckpt_files_bytes(const struct s2s_ckpt *ckpt); /* of all that are read */
int64_t s2s_ckpt_iteration(const struct s2s_ckpt *ckpt);    /* -1: not known */

/* All tensors and objects in the order of their names; lent until close. */
const struct s2s_ckpt_tensor *s2s_ckpt_tensors(const struct s2s_ckpt *ckpt, size_t *n);
const struct s2s_ckpt_object *s2s_ckpt_objects(const struct s2s_ckpt *ckpt, size_t *n);
/* By name, or NULL. */
const struct s2s_ckpt_tensor *s2s_ckpt_find(const struct s2s_ckpt *ckpt, const char *name);
int64_t s2s_ckpt_numel(const struct s2s_ckpt_tensor *tensor);

/*
 * The common state (common.pt, or the values of a torch.save file) as JSON, lent until close; NULL
 * when there is none. Tuples are arrays, a Namespace or record is an object, bytes and classes that
 * are not data are strings.
 */
const json_t *s2s_ckpt_common(const struct s2s_ckpt *ckpt);
/* How many of Megatron's rank folders have an optimizer beside the model that is not among the
 * tensors. */
size_t s2s_ckpt_rank_states(const struct s2s_ckpt *ckpt);

/*
 * Reads the box [begin, begin + size) of a tensor, row-major, into out (numel(size) elements).
 * begin NULL: zeros; size NULL: to the end. Safe from several threads on different checkpoints.
 */
int s2s_ckpt_read(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, const int64_t *begin,
                  const int64_t *size, void *out, struct s2s_error *err);

/* A box as a row-major sequence of smaller ones of at most S2S_CKPT_PIECE bytes each: `begin` (from
 * the box's own) and `box` are those of the piece. Three pieces on their way from read to write
 * must stay in a core's second cache: with 1 MiB each, all goes through memory twice (2 GB took
 * 2.5 times as long where other cores are busy; 64 and 128 KiB lose 1.2 to 1.6 to system calls). */
enum { S2S_CKPT_PIECE = 256 << 10 };

struct s2s_ckpt_walk {
    int64_t begin[S2S_MAX_DIMS], box[S2S_MAX_DIMS];
    int64_t size[S2S_MAX_DIMS], rows;
    int n_dims, axis;
    bool started, done;
};
void s2s_ckpt_walk_begin(struct s2s_ckpt_walk *walk, const int64_t *size, int n_dims,
                         size_t itemsize);
bool s2s_ckpt_walk_next(struct s2s_ckpt_walk *walk); /* false: there are no more */

/* The same box as a row-major run of bytes, handed to sink in pieces of at most S2S_CKPT_PIECE
 * bytes, each lent for the call; a large one is read by a thread of its own, which shows each piece
 * to tap (NULL: none) before sink gets it: a digest need not keep the thread that writes from
 * writing. Nothing of a tap's runs after this has returned. A failure of the sink ends it and is
 * returned. Whole tensors are also checked against the CRC-32 of torch's archives (DIGEST). */
typedef int s2s_ckpt_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err);
typedef void s2s_ckpt_tap(void *ctx, const void *bytes, size_t len);
int s2s_ckpt_stream(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                    const int64_t *begin, const int64_t *size, s2s_ckpt_tap *tap,
                    s2s_ckpt_sink *sink, void *ctx, struct s2s_error *err);
/* A tensor with an orig_shape in that shape, lent until close: it is read like any other. Others
 * are returned as they are. */
const struct s2s_ckpt_tensor *s2s_ckpt_unflattened(struct s2s_ckpt *ckpt,
                                                   const struct s2s_ckpt_tensor *tensor);
/* The stored bytes of an object (len_bytes of them). */
int s2s_ckpt_stream_object(struct s2s_ckpt *ckpt, const struct s2s_ckpt_object *object,
                           s2s_ckpt_sink *sink, void *ctx, struct s2s_error *err);
/* Reads what of the tensor's storages was not read in order yet and compares the CRC-32 of all. */
int s2s_ckpt_verify_tensor(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                           struct s2s_error *err);

/* The same of the tensors of the optimizers in Megatron's rank folders. */
int s2s_ckpt_verify_rank_states(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* After s2s_ckpt_verify_tensor: did every box of it have a CRC-32 to compare? */
bool s2s_ckpt_has_crc(const struct s2s_ckpt_tensor *tensor);
/* The CRC-32 of the tensor's row-major bytes, where one archive holds them so and says it:
 * streaming the whole tensor, or s2s_ckpt_verify_tensor, compares it. false: nobody says it. */
bool s2s_ckpt_stored_crc(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor,
                         uint32_t *crc);
/* Marks the stored objects that hold tensors (torch.distributed.checkpoint takes tuples for values)
 * as lost, with a warning each, for who takes no objects; none of an optimizer's, none of
 * Megatron's. */
void s2s_ckpt_find_lost(struct s2s_ckpt *ckpt);
/* Opens a stored object's archive, checks its CRC-32s and that its pickle is understood. */
int s2s_ckpt_verify_object(struct s2s_ckpt *ckpt, const struct s2s_ckpt_object *object,
                           struct s2s_error *err);
/* The same for the common state, where it is a file (common.pt); of Hugging Face folders:
 * config.json is JSON. TRUNCATED, NOTFOUND: what Megatron-Core
 * writes last, or the common state of its folder, is not there. */
int s2s_ckpt_verify_common(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Compares the files of the folder with its manifests (s2s-manifest.json, integrity.json), or a
 * file with FILE.s2s-manifest.json; *n_files is how many were compared, 0 without a manifest. how:
 * NULL, or who is told of the bytes that were read and may stop it.
 * DIGEST, TRUNCATED, NOTFOUND: a file is not what was noted; FORMAT, UNSUPPORTED: the manifest
 * itself, or one that does not name a file that is read. */
int s2s_ckpt_verify_manifest(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                             size_t *n_files, struct s2s_error *err);

/* Reads all files from end to end: what has no digest shows so much that the disk gives it. IO,
 * TRUNCATED. */
int s2s_ckpt_read_files(struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                        struct s2s_error *err);

/* XXH3-128 of the names, lengths and times of the files that are read: the same while nobody wrote
 * to them. IO. */
int s2s_ckpt_identity(const struct s2s_ckpt *ckpt, char hex[33], struct s2s_error *err);
/* Is the file `path` one of those that are read, or any that is in the checkpoint's folder
 * (configuration, tokenizer, ..)? Then it must not be written. */
bool s2s_ckpt_reads(const struct s2s_ckpt *ckpt, const char *path);

/* Is this the name of optimizer or random state, also under the prefixes that several optimizers or
 * the branches of a heterogeneous model put in front ("chained_0.optimizer.",
 * "mimo.llm.rng_state"), and of torch.optim's own dicts under any name ("opt.state.0.exp_avg"); or
 * of what Lightning's callbacks keep, such as the best score of ModelCheckpoint? */
bool s2s_ckpt_is_state(const char *name);
/* Is this the name of one of Megatron-Core's objects, KEY/shard_OFFSETS_SHAPE? It takes any other
 * for damaged, where it lists what a checkpoint has. */
bool s2s_ckpt_is_sharded(const char *name);

/*
 * Strictness. Checks that every wanted name (n of them; dtype NONE or n_dims -1: any) is there with
 * that shape and dtype; NOTFOUND or SHAPE lists all that are not, with the nearest name found (the
 * first in the error, the others in the log).
 */
struct s2s_ckpt_want {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    const int64_t *shape;
};
int s2s_ckpt_check(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_want *wants, size_t n,
                   struct s2s_error *err);

#endif
