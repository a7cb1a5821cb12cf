/*
 * The one model of a checkpoint that every format is read into: files, tensors cut into chunks,
 * objects. The readers (read_*.c) fill it; ckpt.c serves it.
 */
#ifndef CKPT_MODEL_H
#define CKPT_MODEL_H

#include "lib/ckpt/ckpt.h"
#include "lib/ckpt/ckpt_internal.h"
#include "lib/ckpt/pickle/pickle.h"
#include "lib/ckpt/pickle/view.h"
#include "lib/io/zip.h"

/* A box of a tensor, made for who asks for it. Element [i0, i1, ..] of the box lies at
 * data + sum(i * stride) * itemsize; stride and data are known when the place is located. */
struct ckpt_chunk {
    const int64_t *offset, *size; /* [n_dims] */
    const int64_t *stride;        /* [n_dims], in elements; NULL: contiguous */
    int64_t data;                 /* position of element 0 in the file */
    struct ckpt_location place;
};

struct ckpt_chunk ckpt_chunk_at(const struct s2s_ckpt_tensor *tensor, size_t k);
/* What is known of where a chunk lies, and grows while it is read. */
struct ckpt_location *ckpt_place_at(const struct s2s_ckpt_tensor *tensor, size_t k);
/* The same with its stride and data, which may make it plain no longer; its box stays. */
void ckpt_put_chunk(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor, size_t k,
                    const struct ckpt_chunk *chunk);
/* Gives a tensor of a known shape these chunks and no others. */
void ckpt_set_chunks(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                     const struct ckpt_chunk *chunks, size_t n_chunks);
/* The same in two steps: boxes [n_chunks][2][n_dims] (keeps them: ckpt_arena_ints), then room for
 * their places, in no file (-1), where there is none yet. */
void ckpt_set_boxes(struct s2s_ckpt_tensor *tensor, const int64_t *boxes, size_t n_chunks);
void ckpt_make_places(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor);
/* A tensor of the same name, dtype, shape and boxes, whose places are still to be made. */
struct s2s_ckpt_tensor ckpt_cut_like(const struct s2s_ckpt_tensor *like);
/* What s2s_ckpt_orig_shape (NULL: nothing) and ckpt_stored say from now on. */
void ckpt_keep_orig_shape(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                          const int64_t *shape);
void ckpt_keep_stored(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                      const struct s2s_ckpt_tensor *stored);
/* NULL, or what it is a view of (s2s_ckpt_unflattened, ckpt_transposed). */
const struct s2s_ckpt_tensor *ckpt_stored(const struct s2s_ckpt_tensor *tensor);

/* A file that is read. Few of perhaps thousands are open at a time (ckpt_file_fd). */
struct ckpt_source_file {
    char *name; /* relative to the folder; the path, if the checkpoint is a single file */
    int fd;     /* -1: not open now */
    int64_t len_bytes;
    bool pinned; /* it has no name (was unlinked), so fd could not be opened again: stays open */
};

/* A file, or a member of an archive: len_bytes bytes from `begin` of files[file] on. */
struct ckpt_span {
    int file;
    int64_t begin, len_bytes;
};

/* A member of a .nemo ("model_weights/common.pt") and where it lies. */
struct ckpt_member {
    const char *name;
    struct ckpt_span span;
};

/* A tensor of the optimizer of one of Megatron's ranks. It becomes one of the checkpoint's tensors
 * only when the ranks are merged. */
struct ckpt_state {
    struct s2s_ckpt_tensor tensor; /* "mp_rank_00/optimizer.0.state.3.exp_avg" */
    const char *key;    /* what it is: "exp_avg", "step"; "fp32_param" for master weights */
    const char *param;  /* the name of the model's tensor that it belongs to; NULL: not known */
    const char *folder; /* "mp_rank_00" */
    size_t optimizer;   /* which of several optimizers */
};

/* The optimizer, or several, of one of Megatron's ranks. */
struct ckpt_rank_state {
    const char *folder;
    const char *why; /* why it is not known which parameters its tensors belong to; NULL: it is */
    json_t *parts;   /* an array: for each optimizer what it has beside tensors, as in its dict */
};

struct s2s_ckpt {
    const char *format;
    char *path;        /* of the folder or file */
    int dir_fd;        /* of the folder; AT_FDCWD, which is below 0, for a single file */
    int64_t iteration; /* -1: not known */
    bool release;      /* Megatron's word for weights without a step, to start from */
    struct ckpt_source_file *files;
    size_t n_files, cap_files, n_open;
    json_t *file_idx;            /* an object: the index in files of each name */
    struct ckpt_member *members; /* of a .nemo, sorted by name */
    size_t n_members, cap_members;
    const char *root; /* which folder of the members the model is: "" or "NAME/" */
    /* where among the members a distributed checkpoint lies, put in front of its names; or NULL */
    const char *inside;
    struct s2s_ckpt_tensor *tensors;
    size_t n_tensors, cap_tensors;
    const uint16_t **paths; /* NULL, or [n_tensors]: the path of each, NULL: none (paths.c) */
    struct s2s_ckpt_object *objects;
    size_t n_objects, cap_objects;
    bool unfinished;  /* Megatron-Core's, without the metadata.json that it writes last */
    json_t *common;   /* the common state; small tensors in it as CKPT_SMALL_TENSOR says */
    json_t *run_args; /* "args" that common lacks (ckpt_read_args, ckpt_read_run_config); or NULL */
    struct s2s_blocks arena;     /* names, shapes, boxes, places */
    struct ckpt_vector *vectors; /* NULL, or the shapes and boxes in it (arena.c) */
    /* names that are there already are used again: those of `like` (NULL: none), where the next is
     * expected at like_idx; */
    const struct s2s_ckpt *like;
    size_t like_idx;
    /* and those of our own n_sorted tensors from first_sorted on, which are in order, where the
     * next is expected at sorted_idx */
    size_t first_sorted, n_sorted, sorted_idx;
    size_t chunk_idx;      /* of the chunk that s2s_ckpt_read read last: the next box is near it */
    void *scratch;         /* CKPT_SCRATCH bytes, of s2s_ckpt_read; NULL until wanted */
    char *piece;           /* ckpt_piece; NULL until wanted */
    struct ckpt_crc *crcs; /* NULL, or the sums of storages being read in order (read.c) */
    struct ckpt_verified *verified; /* NULL, or storages whose CRC-32 was compared (verify.c) */
    bool no_links;                  /* files of this format are never links: refuse them */
    bool told_no_crc;               /* ckpt_warn_no_crc has warned */
    char *told_opaque;              /* NULL, or the classes of objects last warned of (verify.c) */
    const char *part;               /* NULL, or which part of a model this is ("llm") */
    size_t name_bytes;              /* of all tensors' and objects' names */
    struct ckpt_state *states;      /* tensors of the ranks' optimizers */
    size_t n_states, cap_states;
    struct ckpt_rank_state *rank_states; /* one for each rank folder that has an optimizer */
    size_t n_rank_states, cap_rank_states;
    size_t n_left_states;         /* rank folders whose optimizer is not among the tensors */
    struct ckpt_reduced *reduced; /* NULL, or what s2s_ckpt_reduce left of the tensors */
};

enum { CKPT_SCRATCH = S2S_CKPT_PIECE };
/* Memory for at least CKPT_SCRATCH bytes, lent until the next call that streams. */
char *ckpt_piece(struct s2s_ckpt *ckpt);
/* Adds what was being read to an error: "FOLDER: NAME: "; of a single file, whose path the error
 * has already, "NAME: ". Returns rc. */
int ckpt_at_name(const struct s2s_ckpt *ckpt, const char *name, int rc, struct s2s_error *err);

/* Forgets tensors, objects, members and common state, and frees their memory. What is known of the
 * files remains. */
void ckpt_drop_tables(struct s2s_ckpt *ckpt);
void ckpt_reduced_free(struct ckpt_reduced *reduced); /* NULL is a no-op */

/* Where the file called name lies: in the folder, or among a .nemo's members. NOTFOUND, FORMAT,
 * OPEN, IO. */
int ckpt_find_span(struct s2s_ckpt *ckpt, const char *name, struct ckpt_span *span,
                   struct s2s_error *err);
/* Some of what ("items", ..) a checkpoint is made of may share bytes. FORMAT: together they have so
 * many more bytes than its files that reading them all is a bomb of time. */
int ckpt_check_told(const struct s2s_ckpt *ckpt, const char *what, __int128 told,
                    struct s2s_error *err);
/* Is there such a file? */
bool ckpt_has(const struct s2s_ckpt *ckpt, const char *name);
/* Reads all bytes of a span; a zero byte follows. Gives: free *bytes. FORMAT: more than max_len;
 * IO, TRUNCATED, NOMEM. */
int ckpt_slurp_span(struct s2s_ckpt *ckpt, const struct ckpt_span *span, int64_t max_len,
                    char **bytes, struct s2s_error *err);
/* The member of this name, once they are sorted; NULL: there is none. */
const struct ckpt_member *ckpt_find_member(const struct s2s_ckpt *ckpt, const char *name);
/* The order of members, for qsort. */
int ckpt_by_member_name(const void *a, const void *b);

/* Memory that lives as long as the checkpoint, until ckpt_arena_release frees it (arena.c): len
 * bytes, zeroed; a copy of len bytes and a zero byte. */
void *ckpt_arena(struct s2s_ckpt *ckpt, size_t len);
char *ckpt_arena_text(struct s2s_ckpt *ckpt, const char *s, size_t len);
/* A copy of n numbers, never to be changed: equal ones that are kept are used again, for a layer
 * has the shapes and boxes of the one before it. */
const int64_t *ckpt_arena_ints(struct s2s_ckpt *ckpt, const int64_t *v, size_t n);
void ckpt_arena_release(struct s2s_ckpt *ckpt);

/* The index in files of the file called name, which is added if it is not among them. NOTFOUND;
 * FORMAT: no plain file, or a link where the format has none; OPEN: it must not be read; IO. */
int ckpt_add_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err);
/* The descriptor of files[file], opened if need be; valid until the next call, which may close it.
 * A negative file is returned as it is, so that a failure of ckpt_add_file can be handed on. OPEN,
 * IO. */
int ckpt_file_fd(struct s2s_ckpt *ckpt, int file, struct s2s_error *err);

/* FORMAT: the name is longer than CKPT_MAX_NAME bytes. Who puts a name together from parts of a
 * file calls this after each part: a small file can ask for a very long name. */
enum { CKPT_MAX_NAME = 4096 };
int ckpt_check_name_len(const char *name, size_t len, struct s2s_error *err);
/* Adds a tensor that has a name and nothing else yet; name [len] is copied. Lent until the next is
 * added. FORMAT: the name is not UTF-8 or too long, or all names together are. */
int ckpt_add_tensor(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor **tensor, const char *name,
                    size_t len, struct s2s_error *err);
/* The same for a zero-ended name that is kept, not copied: it lives as long as the checkpoint. */
int ckpt_add_tensor_named(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor **tensor, const char *name,
                          size_t len, struct s2s_error *err);
/* Adds an object in the same way; name is copied. */
int ckpt_add_object(struct s2s_ckpt *ckpt, struct s2s_ckpt_object **object, const char *name,
                    size_t len, struct s2s_error *err);
/* Sorts tensors and objects by name and checks them: to be called when all were added. FORMAT: a
 * name is there twice; SHAPE: chunks do not cover their tensor exactly, or a size is absurd. */
int ckpt_seal(struct s2s_ckpt *ckpt, struct s2s_error *err);

/* The index of one of the checkpoint's tensors; of a view, that of the tensor it shows. */
size_t ckpt_tensor_index(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor);
/* The order of sorted tensors, for qsort and bsearch. */
int ckpt_by_tensor_name(const void *a, const void *b);
/* The object of this name, or NULL. After ckpt_seal. */
struct s2s_ckpt_object *ckpt_find_object(const struct s2s_ckpt *ckpt, const char *name);

/* The storage of a chunk in its open file. */
struct ckpt_store {
    struct s2s_ckpt *ckpt;
    struct ckpt_location *place;
    int fd;
    const char *path;
};
/*
 * Reads len bytes of a storage, from position pos of its file on. If the calls read it in order
 * from its first byte to its last, as those for a whole tensor do, its CRC-32 is computed on the
 * way and compared at the end: DIGEST. IO, TRUNCATED.
 */
int ckpt_read_store(const struct ckpt_store *store, int64_t pos, void *out, size_t len,
                    struct s2s_error *err);

/* Finds where the data of a tensor's k-th chunk lies, if that is not known yet: for a .distcp file
 * that means opening the archive there. FORMAT, TRUNCATED, UNSUPPORTED, SHAPE, DTYPE, IO. */
int ckpt_locate(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                struct s2s_error *err);
/* The same; of an item of a .distcp file it also checks what no reader looks at, the notes beside
 * the tensor. */
int ckpt_locate_whole(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                      struct s2s_error *err);
/* Finds it for a tensor that is a view. */
int ckpt_locate_view(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                     struct s2s_error *err);
/* Sets the shape [n] that a tensor had before it was flattened (s2s_ckpt_orig_shape). FORMAT: it
 * was set before; SHAPE (also for n < 0), TRUNCATED: the tensor cannot have had it. */
int ckpt_set_orig_shape(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor, const int64_t *shape,
                        int n, struct s2s_error *err);
/* A view of the tensor with its last two axes exchanged, which lives as long as the checkpoint; the
 * tensor itself if it has fewer than two. */
const struct s2s_ckpt_tensor *ckpt_transposed(struct s2s_ckpt *ckpt,
                                              const struct s2s_ckpt_tensor *tensor);

/* ---- torch archives (torch_zip.c) ---- */

/* Members of an item of a .distcp file, at most: it holds one tensor or one object. */
enum { CKPT_ITEM_MEMBERS = 65536 };

/* An archive of torch.save's, with its data.pkl parsed. */
struct ckpt_archive {
    struct s2s_zip zip;
    struct ckpt_pickle pickle;
    char *bytes; /* of data.pkl, into which the pickle points; NULL: so large that it is not kept */
};
/* Opens the archive at source. Gives: ckpt_archive_release, only after success. FORMAT, TRUNCATED;
 * UNSUPPORTED: it is not one of torch.save's, its bytes are big-endian, or (with CKPT_STRICT) its
 * pickle names classes that are not known. */
int ckpt_archive_open(struct ckpt_archive *archive, const struct s2s_zip_source *source,
                      enum ckpt_pickle_mode mode, struct s2s_error *err);
void ckpt_archive_release(struct ckpt_archive *archive);
/* Compares the CRC-32 of each member of an archive that is no storage (data.pkl, byteorder, ..).
 * DIGEST, IO. */
int ckpt_archive_check_notes(const struct s2s_zip *zip, struct s2s_error *err);
/* Warns, once a checkpoint, if this storage of an archive has no CRC-32 to compare: PyTorch can be
 * told not to write them (torch.serialization.set_crc32_options). */
void ckpt_warn_no_crc(struct s2s_ckpt *ckpt, const struct s2s_zip_member *member);

/* Checks common.pt, if there is one: its CRC-32s, and that its pickle is understood. DIGEST,
 * FORMAT, TRUNCATED, UNSUPPORTED, IO. */
int ckpt_verify_common_file(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* The same for any other file of torch.save's in the checkpoint's folder. */
int ckpt_verify_torch_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err);

/* The journal in a folder that is being written (lib/ckpt/write/journal.h). */
#define CKPT_JOURNAL "s2s-resume"

/* A file beside Megatron's folders iter_0001000/ and release/: it says "1000", or "release", for
 * the one that is the latest. */
#define CKPT_TRACKER "latest_checkpointed_iteration.txt"

/* How the common state, which is JSON, has a small tensor of the optimizer (a step, a loss scale):
 * as an object of one key that begins so and names the dtype, {"tensor F32": 1.0}. A tensor of one
 * axis has a list of values. */
#define CKPT_SMALL_TENSOR "tensor "
/* The dtypes that such a tensor can have. */
static inline bool ckpt_is_small_dtype(enum s2s_dtype dtype)
{
    return dtype == S2S_F32 || dtype == S2S_I32 || dtype == S2S_I64;
}

/* What users are told of a checkpoint that is `unfinished`. */
#define CKPT_UNFINISHED \
    "metadata.json, which Megatron-Core writes last, is missing or names no backend: an " \
    "unfinished save, or a damaged one"

/* The name of the byte object that newer checkpoints have in place of common.pt. */
#define CKPT_COMMON_OBJECT "common_state/shard_0_1"

/* ---- hints for what cannot be opened: each may add one to err, and returns rc ---- */

/* The file may be a part of a checkpoint, whose folder is meant. */
int ckpt_hint_file(const char *path, int rc, struct s2s_error *err);
/* The folder may hold checkpoints: names some. */
int ckpt_hint_folder(const struct s2s_ckpt *ckpt, int rc, struct s2s_error *err);
/* The file may not be weights at all, but a pointer of Git LFS's, or a web page. */
int ckpt_hint_bytes(const struct s2s_ckpt *ckpt, const char *name, int rc, struct s2s_error *err);

/* Opens the folder at/name; returns a descriptor. OPEN: its files must not be opened. (If it may
 * still be listed, files would seem to be missing.) Other failures have the code `otherwise`. */
int ckpt_open_folder(int at, const char *name, enum s2s_errc otherwise, struct s2s_error *err);
/* Goes from the folder that was opened down to the one with the weights: by trackers, by links, and
 * into the folders that trainers put around weights. Sets path, dir_fd and, if it is known then,
 * the iteration. 0 also where nothing leads further. TRUNCATED: an unfinished save; FORMAT,
 * NOTFOUND: a tracker or link names what is not there. */
int ckpt_go_down(struct s2s_ckpt *ckpt, struct s2s_error *err);

/* ---- readers: each fills a new ckpt whose path and dir_fd are set; the caller seals it ----
 *
 * All fail with FORMAT, TRUNCATED or SHAPE where the files are damaged, UNSUPPORTED where they hold
 * what is not read, NOTFOUND, OPEN, IO. */

/* .metadata and *.distcp: torch_dist and dcp. */
int ckpt_read_dcp(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Sets text to the "sharded_backend" that a metadata.json [len] names; "": it names none. FORMAT:
 * no JSON. UNSUPPORTED: a version later than those that are known, which Megatron-Core refuses,
 * too. */
int ckpt_parse_backend(const char *json, size_t len, char text[64], struct s2s_error *err);
/* Sets ckpt->common from common.pt or, without one, from the byte object in its place. It is no
 * failure if there is neither. After ckpt_seal. */
int ckpt_read_common(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Sets ckpt->run_args if Megatron's arguments are a byte object of their own (torch_dcp,
 * fsdp_dtensor). One that cannot be read only gets a warning. */
void ckpt_read_args(struct s2s_ckpt *ckpt);
/* Sets ckpt->run_args from Megatron-Bridge's run_config.yaml or NeMo's ../context/model.yaml, if
 * the common state has no arguments. One that cannot be read only gets a warning. (run_config.c) */
void ckpt_read_run_config(struct s2s_ckpt *ckpt);
/* Sets ckpt->run_args from the model_config.yaml (config) of a language model of NeMo 1. false: it
 * is that of another model, and nothing is set. */
bool ckpt_read_nemo_args(struct s2s_ckpt *ckpt, const json_t *config);
/* Is this pair of planner_data's a name and a tuple that says where it stands in nested dicts and
 * lists? (paths.c) */
bool ckpt_is_path(const struct ckpt_node *name, const struct ckpt_node *parts);
/*
 * Keeps such a path, if the name is one of the checkpoint's; else does nothing. After ckpt_seal.
 * FORMAT: the name has a path already. Joined by dots the parts are the name, so only where it is
 * to be cut needs to be kept, and no pickle can make more of it than the name is long: the first
 * number is how many parts there are, then comes one for each, twice its length, plus 1 if the part
 * is an int. (The last part is the rest of the name, whatever its length says.)
 */
int ckpt_keep_path(struct s2s_ckpt *ckpt, const struct ckpt_node *name,
                   const struct ckpt_node *parts, struct s2s_error *err);
/* The path that was kept of a name, in that form; lent until close. NULL: none was. */
const uint16_t *ckpt_path_of(const struct s2s_ckpt *ckpt, const char *name);
/* The arguments that Megatron's training script was started with ("num_layers", ..), which shaped
 * the model; lent until close. NULL: not known. */
const json_t *ckpt_args(const struct s2s_ckpt *ckpt);
/* At most so many bytes are read of a small file beside the weights. */
enum { CKPT_MAX_SIDE_FILE = 256 << 20 };
/* Reads a JSON file of the checkpoint's folder. *value is NULL where there is none, which is no
 * error. Gives: json_decref. FORMAT names the line. */
int ckpt_read_json(json_t **value, const struct s2s_ckpt *ckpt, const char *name,
                   struct s2s_error *err);
/* Parses the text [len] of a YAML file called name into a JSON tree; *tree is NULL, which is no
 * error, if it has a value that JSON lacks. Gives: json_decref. FORMAT names the line. */
int ckpt_parse_yaml(json_t **tree, const char *text, size_t len, const char *name,
                    struct s2s_error *err);
/* One safetensors file. prefix is put before every tensor's name. */
int ckpt_read_safetensors(struct s2s_ckpt *ckpt, const char *file, const char *prefix,
                          struct s2s_error *err);
/* The safetensors files in a folder of the checkpoint's ("": its own; or "llm/"), a single one or
 * several with an index. */
int ckpt_read_hf(struct s2s_ckpt *ckpt, const char *folder, const char *prefix,
                 struct s2s_error *err);
/* Is called with a tensor's name and the file (a plain name) that an index says it is in; both lent
 * for the call. What it returns below 0 ends the reading. */
typedef int ckpt_index_visit(void *ctx, const char *name, const char *file, struct s2s_error *err);
/* Reads the file `index` ("model.safetensors.index.json") and calls visit for each entry, in the
 * file's order. A name that is there twice may come twice. Returns 1; 0 if there is no such file;
 * FORMAT, IO, or what visit returned. (index.c) */
int ckpt_index_each(struct s2s_ckpt *ckpt, const char *index, ckpt_index_visit *visit, void *ctx,
                    struct s2s_error *err);
/* Lists the files and folders of a folder ("" or "llm/", which then begins each name) whose names
 * end with suffix, sorted; hidden ones are left out, and one that is only the
 * suffix. Gives: ckpt_free_list. OPEN. */
int ckpt_list_suffix(struct s2s_ckpt *ckpt, const char *folder, const char *suffix, char ***names,
                     size_t *n, struct s2s_error *err);
void ckpt_free_list(char **names, size_t n);
/* Are all parts there, where files are named like "model-00002-of-00003.safetensors"? NOTFOUND
 * names the first that is not. */
int ckpt_check_parts(char **files, size_t n_files, struct s2s_error *err);
/* Warns if path is one such part, which somebody named alone. */
void ckpt_warn_of_part(const char *path);
/* dcp_hf: safetensors files of torch.distributed.checkpoint's, whose headers say which box of a
 * tensor each entry is. */
int ckpt_read_dcp_hf(struct s2s_ckpt *ckpt, struct s2s_error *err);

/* What torch.save wrote, as a file or as a part of one; whether it is a zip or the format of before
 * 1.6 is told by its bytes. The keys of its nested dicts, with dots between them, are the names of
 * tensors and objects. */
struct ckpt_torch_source {
    const char *file, *prefix; /* prefix: is put before every name */
    int64_t begin, len_bytes;  /* where it lies in the file; len_bytes -1: it is the whole file */
    /* a file of one of Megatron's ranks: only "model" (model0, ..) has tensors and objects, the
     * rest goes into the common state, under the prefix */
    bool model_only;
};
enum { CKPT_TORCH_HEAD = 24 };
/* Is a file that begins with these bytes one of torch.save's before 1.6? */
bool ckpt_is_legacy_torch(const unsigned char head[CKPT_TORCH_HEAD]);
int ckpt_read_torch(struct s2s_ckpt *ckpt, const struct ckpt_torch_source *source,
                    struct s2s_error *err);
/* pytorch_model*.bin, or an adapter's. */
int ckpt_read_hf_bin(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Megatron's rank folders. */
int ckpt_read_mp_rank(struct s2s_ckpt *ckpt, struct s2s_error *err);
#define CKPT_NEMO_CONFIG "model_config.yaml"
#define CKPT_NEMO_WEIGHTS "model_weights.ckpt"
/* A .nemo archive (the checkpoint's file 0), or the folder of an unpacked one. Tensors have NeMo's
 * names; the common state has its configuration as "model_config". The format becomes "mp_rank" if
 * each rank has weights of its own in it. */
int ckpt_read_nemo(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Lists the members of the archive, or of the folder of an unpacked one, in ckpt->members. A
 * compressed archive is first inflated into a file without a name, which becomes file 0.
 * (nemo_members.c) */
int ckpt_nemo_members(struct s2s_ckpt *ckpt, struct s2s_error *err);
int ckpt_nemo_folder(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Is a file that begins with these bytes compressed: gzip, zstd, xz, bzip2 or lz4? */
bool ckpt_is_compressed(const unsigned char head[6]);

/* The files that transformers' Parakeet has beside its weights, as texts; NULL where NeMo's
 * configuration does not determine one. */
struct ckpt_nemo_texts {
    char *config, *features, *generation; /* config.json, preprocessor_config.json, .. */
    char *tokenizer, *tokenizer_config, *processor;
};
/* Sets config, features and generation of texts, from NeMo's configuration of a model (`all`; NULL:
 * there is none). family: that of the name map, which says what head the model has. any:
 * config.json is not wanted, so the encoder may be of any kind. Gives: free all three. UNSUPPORTED:
 * transformers' Parakeet has no such encoder. */
int ckpt_nemo_config(struct ckpt_nemo_texts *texts, const struct s2s_ckpt *ckpt, const json_t *all,
                     const char *family, bool any, struct s2s_error *err);
/* Sets *config to the config.json of transformers' Parakeet encoder, from NeMo's section `encoder`
 * (without references) and the weights, which have to agree. Gives a reference. UNSUPPORTED:
 * Parakeet has no such encoder; SHAPE: they do not agree; NOTFOUND: the number of mel bins is not
 * said. */
int ckpt_nemo_encoder(json_t **config, const struct s2s_ckpt *ckpt, const json_t *encoder,
                      struct s2s_error *err);
/* Sets tokenizer, tokenizer_config and processor of texts, from a SentencePiece model (bytes
 * [len]), the model's config.json and texts->features. For an encoder alone nothing is set. Gives:
 * free all three. FORMAT: no SentencePiece model; SHAPE: one of another model. */
int ckpt_nemo_tokenizer(struct ckpt_nemo_texts *texts, const json_t *config, const void *bytes,
                        size_t len, struct s2s_error *err);
/* The preprocessor_config.json that belongs to a model_config.yaml; NULL: that has no section
 * `preprocessor`. *odd: NULL, or the key of that section whose value transformers' features cannot
 * follow, so that they would be other features. Gives a reference. */
json_t *ckpt_nemo_features(const char **odd, const json_t *model_config);
/* The same from the section `preprocessor` itself. */
json_t *ckpt_nemo_mel(const char **odd, const json_t *preprocessor);

/* Is the part of a model that has this name ("vision_model") the language model? The saved
 * arguments are about that one. */
bool ckpt_part_has_words(const char *part);
/* The section of a config.json that is about this part alone; lent, NULL: there is none. */
const json_t *ckpt_part_config(const json_t *config, const char *part);

#endif
