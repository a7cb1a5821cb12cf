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

/* A box of a tensor. Element [i0, i1, ..] of the box lies at data + sum(i * stride) * itemsize;
 * stride and data are known when the place is located. There may be a million. */
struct ckpt_chunk {
    const int64_t *offset, *size; /* [n_dims] */
    const int64_t *stride;        /* [n_dims], in elements; NULL: contiguous */
    int64_t data;                 /* position of element 0 in the file */
    struct ckpt_location place;
};

/* Most tensors are plain and have no chunk in memory: it is made for who asks for it. */
struct ckpt_chunk ckpt_chunk_at(const struct s2s_ckpt_tensor *tensor, size_t k);
/* What is known of where a chunk lies, and grows while it is read. */
struct ckpt_location *ckpt_place_at(const struct s2s_ckpt_tensor *tensor, size_t k);
/* Its chunks, to be changed: it is plain no longer. */
struct ckpt_chunk *ckpt_own_chunks(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor);
/* Gives it these chunks and no others: keeps several, copies one. */
void ckpt_set_chunks(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor,
                     struct ckpt_chunk *chunks, size_t n);
/* NULL, or what it is a view of (s2s_ckpt_unflattened, ckpt_transposed). */
const struct s2s_ckpt_tensor *ckpt_stored(const struct s2s_ckpt_tensor *tensor);

struct ckpt_source_file {
    char *name; /* relative to the folder; a path for single files */
    int fd;     /* -1: not open now */
    int64_t len_bytes;
    bool pinned; /* fd cannot be opened again (an unlinked file): it stays open */
};

/* A file inside a file, or a file itself: len_bytes bytes from begin of files[file]. */
struct ckpt_span {
    int file;
    int64_t begin, len_bytes;
};

/* Of a .nemo: "model_weights/common.pt" and where it lies. */
struct ckpt_member {
    const char *name;
    struct ckpt_span span;
};

/* A tensor of the optimizer of a Megatron rank, which is none of the checkpoint's before the ranks
 * are merged. */
struct ckpt_state {
    struct s2s_ckpt_tensor tensor; /* "mp_rank_00/optimizer.0.state.3.exp_avg" */
    const char *key;               /* "exp_avg", "step"; "fp32_param": of the master weights */
    const char *param;  /* NULL, or the name of the tensor of the model to which it belongs */
    const char *folder; /* "mp_rank_00" */
    size_t optimizer;   /* of several, which */
};

/* The optimizer of a Megatron rank. */
struct ckpt_rank_state {
    const char *folder;
    const char *why; /* NULL, or why nobody can know which parameters its tensors are of */
    json_t *parts;   /* for each optimizer what it has beside tensors, as in Megatron's dict */
};

struct s2s_ckpt {
    const char *format;
    char *path;        /* of the folder or file */
    int dir_fd;        /* of the folder; AT_FDCWD for a single file */
    int64_t iteration; /* -1: not known */
    bool release;      /* Megatron's word for weights that no training is to go on from */
    struct ckpt_source_file *files;
    size_t n_files, cap_files, n_open;
    json_t *file_idx;            /* of each name in files */
    struct ckpt_member *members; /* of a .nemo, sorted by name */
    size_t n_members, cap_members;
    const char *root;   /* the folder of the model among them: "" or "NAME/" */
    const char *inside; /* what stands before the names of a distributed checkpoint among them */
    struct s2s_ckpt_tensor *tensors;
    size_t n_tensors, cap_tensors;
    struct ckpt_chunk *chunks; /* NULL, or those of a .metadata, in a map of so many bytes */
    size_t chunks_bytes;
    const uint16_t **paths; /* NULL, or of each tensor its path (paths.c); NULL: flat */
    struct s2s_ckpt_object *objects;
    size_t n_objects, cap_objects;
    bool unfinished;         /* Megatron-Core's, without the metadata.json that it writes last */
    json_t *common;          /* with small tensors as CKPT_SMALL_TENSOR says */
    json_t *run_args;        /* "args" from elsewhere than common (ckpt_read_args, .._run_config) */
    struct s2s_blocks arena; /* names, shapes, boxes */
    /* NULL, or whose names serve for equal ones here, and which is expected next */
    const struct s2s_ckpt *like;
    size_t like_idx;
    /* own tensors, sorted, whose names serve likewise */
    size_t first_sorted, n_sorted, sorted_idx;
    struct {
        const int64_t *v;
        int n;
    } shapes[16]; /* that were kept last: most are those of others */
    unsigned n_shapes;
    size_t chunk_idx;               /* from which a box was read last */
    void *scratch;                  /* CKPT_SCRATCH bytes, of s2s_ckpt_read */
    struct ckpt_crc *crcs;          /* NULL, or of storages that are read in order (read.c) */
    struct ckpt_verified *verified; /* NULL, or storages whose CRC-32 was compared (verify.c) */
    char *piece;                    /* some times as much, of s2s_ckpt_stream */
    bool no_links;                  /* files of this format are never links: refuse them */
    bool told_no_crc;               /* ckpt_warn_no_crc */
    const char *part;               /* NULL, or which part of a model this is ("llm") */
    size_t name_bytes;              /* of all tensors and objects */
    struct ckpt_state *states;
    size_t n_states, cap_states;
    struct ckpt_rank_state *rank_states; /* of the rank folders with an optimizer */
    size_t n_rank_states, cap_rank_states;
    size_t n_left_states;         /* rank folders whose optimizer is not read */
    struct ckpt_reduced *reduced; /* NULL, or what s2s_ckpt_reduce left of the tensors */
};

enum { CKPT_SCRATCH = S2S_CKPT_PIECE };
/* at least CKPT_SCRATCH bytes, lent until the next call that streams */
char *ckpt_piece(struct s2s_ckpt *ckpt);
/* Puts "FOLDER: NAME: " before an error of reading; a single file has said its path already. */
int ckpt_at_name(const struct s2s_ckpt *ckpt, const char *name, int rc, struct s2s_error *err);

/* Frees what was read, tensors and objects and common state; the files remain. */
void ckpt_drop_tables(struct s2s_ckpt *ckpt);
void ckpt_reduced_free(struct ckpt_reduced *reduced); /* NULL is a no-op */

/* A file of the checkpoint by its name there: of the folder, or a member. NOTFOUND, FORMAT. */
int ckpt_find_span(struct s2s_ckpt *ckpt, const char *name, struct ckpt_span *span,
                   struct s2s_error *err);
bool ckpt_has(const struct s2s_ckpt *ckpt, const char *name);
/* All bytes of a span (at most max_len). Gives: free *bytes; a zero byte follows. */
int ckpt_slurp_span(struct s2s_ckpt *ckpt, const struct ckpt_span *span, int64_t max_len,
                    char **bytes, struct s2s_error *err);
/* A member by its name, or NULL; their order, for qsort. */
const struct ckpt_member *ckpt_find_member(const struct s2s_ckpt *ckpt, const char *name);
int ckpt_by_member_name(const void *a, const void *b);

/* Memory that lives as long as the checkpoint. */
void *ckpt_arena(struct s2s_ckpt *ckpt, size_t len);
char *ckpt_arena_text(struct s2s_ckpt *ckpt, const char *s, size_t len);
int64_t *ckpt_arena_ints(struct s2s_ckpt *ckpt, const int64_t *v, int n);
/* The same, which may be another's equal ones: a layer's shapes are those of the next. */
const int64_t *ckpt_arena_shape(struct s2s_ckpt *ckpt, const int64_t *v, int n);
/* The same; but `like` itself where that is equal. */
const int64_t *ckpt_arena_box(struct s2s_ckpt *ckpt, const int64_t *v, int n, const int64_t *like);

/* Index of a file by its name, added (and its size taken) when it is new. NOTFOUND when it is not
 * there; IO; FORMAT: no plain file, or a link where the format has none. */
int ckpt_add_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err);
/* A descriptor, opened when needed (few stay open); valid until the next call. What
 * ckpt_add_file failed with is passed on. */
int ckpt_file_fd(struct s2s_ckpt *ckpt, int file, struct s2s_error *err);

/* FORMAT: longer than a name may be. A name that is made of the file's own is held against it
 * before it is complete, for it may be made of a thousand others. */
enum { CKPT_MAX_NAME = 4096 };
int ckpt_check_name_len(const char *name, size_t len, struct s2s_error *err);
/* Adds an empty tensor or object; lent until the next. name is copied. FORMAT: not UTF-8, too
 * long, too many bytes of names together. */
int ckpt_add_tensor(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor **tensor, const char *name,
                    size_t len, struct s2s_error *err);
/* The same of a zero-ended name that lives as long as the checkpoint. */
int ckpt_add_tensor_named(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor **tensor, const char *name,
                          size_t len, struct s2s_error *err);
int ckpt_add_object(struct s2s_ckpt *ckpt, struct s2s_ckpt_object **object, const char *name,
                    size_t len, struct s2s_error *err);
/* Sorts; refuses names that are there twice; checks that chunks tile. Every reader ends with it. */
int ckpt_seal(struct s2s_ckpt *ckpt, struct s2s_error *err);

/* Which of the checkpoint's tensors it is, or is a view of. */
size_t ckpt_tensor_index(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor);
/* The order of sorted tensors, for qsort and bsearch. */
int ckpt_by_tensor_name(const void *a, const void *b);
/* By name, or NULL (sorted: after ckpt_seal). */
struct s2s_ckpt_object *ckpt_find_object(const struct s2s_ckpt *ckpt, const char *name);

/* The storage of a chunk in its open file. */
struct ckpt_store {
    struct s2s_ckpt *ckpt;
    struct ckpt_location *place;
    int fd;
    const char *path;
};
/*
 * Reads len of its bytes, from pos of the file on. When a storage is read from its begin to its end
 * (whole tensors are), its CRC-32 is computed on the way and compared at the end: DIGEST.
 */
int ckpt_read_store(const struct ckpt_store *store, int64_t pos, void *out, size_t len,
                    struct s2s_error *err);

/* Finds where a chunk's data lies, if that is not known yet. */
int ckpt_locate(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                struct s2s_error *err);
/* The same for a chunk of a view. */
int ckpt_locate_view(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                     struct s2s_error *err);
/* Says what a tensor was before it was flattened, n axes: n < 0 is no shape. FORMAT: that was said;
 * SHAPE, TRUNCATED: it cannot have been. */
int ckpt_set_orig_shape(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor, const int64_t *shape,
                        int n, struct s2s_error *err);
/* The tensor with its last two axes exchanged, as a view of it; itself where it has less than two.
 * Lives as long as the checkpoint. */
const struct s2s_ckpt_tensor *ckpt_transposed(struct s2s_ckpt *ckpt,
                                              const struct s2s_ckpt_tensor *tensor);

/* ---- torch archives (torch_zip.c) ---- */

/* The archive of a span of a file, with its data.pkl parsed. */
struct ckpt_archive {
    struct s2s_zip zip;
    struct ckpt_pickle pickle;
    char *bytes; /* of data.pkl, into which the pickle points; NULL: it is large */
};
/* FORMAT, TRUNCATED; UNSUPPORTED: not of torch.save, of big-endian bytes, or (STRICT) with classes
 * that are not known. Gives: ckpt_archive_release, only after success. */
int ckpt_archive_open(struct ckpt_archive *archive, const struct s2s_zip_source *source,
                      enum ckpt_pickle_mode mode, struct s2s_error *err);
void ckpt_archive_release(struct ckpt_archive *archive);
/* The CRC-32 of each member of torch's archive that is no storage. DIGEST, IO. */
int ckpt_archive_check_notes(const struct s2s_zip *zip, struct s2s_error *err);
/* Says, once a checkpoint, that an archive's storage has no CRC-32 to compare: PyTorch leaves them
 * out where it is told to (torch.serialization.set_crc32_options). */
void ckpt_warn_no_crc(struct s2s_ckpt *ckpt, const struct s2s_zip_member *member);

/* common.pt, where there is one: its CRC-32s, and that its pickle is understood. */
int ckpt_verify_common_file(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* The same of a file of torch.save's that is no part of the checkpoint's own format. */
int ckpt_verify_torch_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err);

/* The journal in a folder that is being written (lib/ckpt/write/journal.h). */
#define CKPT_JOURNAL "s2s-resume"

/* Beside Megatron's iter_0001000/: "1000", or "release", says which of them is the latest. */
#define CKPT_TRACKER "latest_checkpointed_iteration.txt"

/* A small tensor in the optimizer of the common state (a step, a loss scale), which JSON has not:
 * {CKPT_SMALL_TENSOR "F32": 1.0}, of one axis a list of values. */
#define CKPT_SMALL_TENSOR "tensor "
/* Of what dtypes it can be. */
static inline bool ckpt_is_small_dtype(enum s2s_dtype dtype)
{
    return dtype == S2S_F32 || dtype == S2S_I32 || dtype == S2S_I64;
}

/* What is said of an `unfinished` one. */
#define CKPT_UNFINISHED \
    "metadata.json, which Megatron-Core writes last, is missing or names no backend: an " \
    "unfinished save, or a damaged one"

/* A byte object that holds what older checkpoints have as common.pt. */
#define CKPT_COMMON_OBJECT "common_state/shard_0_1"

/* ---- hints of open: all add to a failure and return its rc ---- */

int ckpt_hint_file(const char *path, int rc, struct s2s_error *err); /* a part of a checkpoint */
int ckpt_hint_folder(const struct s2s_ckpt *ckpt, int rc, struct s2s_error *err); /* one above it */
/* no file of weights, but a pointer of Git LFS or a web page in its place */
int ckpt_hint_bytes(const struct s2s_ckpt *ckpt, const char *name, int rc, struct s2s_error *err);

/* A descriptor of a folder whose files may be opened: one that may only be listed would look like
 * one without them. OPEN where it may not be; what else fails is `otherwise`. */
int ckpt_open_folder(int at, const char *name, enum s2s_errc otherwise, struct s2s_error *err);
/* From the folder that was opened to the one with the weights, by trackers, links and the folders
 * that trainers put around them: sets path, dir_fd and what is known of the iteration. 0 also where
 * nothing leads on. TRUNCATED: an unfinished save; FORMAT, NOTFOUND: what leads on leads nowhere.
 */
int ckpt_go_down(struct s2s_ckpt *ckpt, struct s2s_error *err);

/* ---- readers: each fills a new ckpt whose path and dir_fd are set; the caller seals it ---- */

int ckpt_read_dcp(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* "sharded_backend" of a metadata.json into text, empty where there is none. Versions that came
 * after those known are refused, as Megatron-Core itself does. */
int ckpt_parse_backend(const char *json, size_t len, char text[64], struct s2s_error *err);
/* Sets `common` out of common.pt or the byte object that stands for it; neither is no failure.
 * After ckpt_seal. */
int ckpt_read_common(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Megatron's arguments where they are an object of their own beside the tensors (torch_dcp,
 * fsdp_dtensor). What cannot be read is warned of. */
void ckpt_read_args(struct s2s_ckpt *ckpt);
/* Megatron-Bridge's run_config.yaml or NeMo's ../context/model.yaml, where the common state has no
 * arguments. One that cannot be read is no error: it is warned of. (run_config.c) */
void ckpt_read_run_config(struct s2s_ckpt *ckpt);
/* Arguments out of the model_config.yaml of a language model of NeMo 1's; false: it is of none. */
bool ckpt_read_nemo_args(struct s2s_ckpt *ckpt, const json_t *config);
/* Does a pair of planner_data say where a name stands in nested dicts and lists? (paths.c) */
bool ckpt_is_path(const struct ckpt_node *name, const struct ckpt_node *parts);
/*
 * Keeps it, if it does, and the name is one of the checkpoint's. After ckpt_seal. A path as it is
 * kept: how many parts, then twice the length of each (the last one's does not count: it is the
 * rest of the name), plus one where the part is an int. Joined by dots the parts are the name, so
 * that no pickle can make more of them than it spells out.
 */
int ckpt_keep_path(struct s2s_ckpt *ckpt, const struct ckpt_node *name,
                   const struct ckpt_node *parts, struct s2s_error *err);
/* What was kept of a name, lent until close; NULL: nothing. */
const uint16_t *ckpt_path_of(const struct s2s_ckpt *ckpt, const char *name);
/* The arguments that shaped a Megatron model, by the names of its scripts; lent, NULL: unknown. */
const json_t *ckpt_args(const struct s2s_ckpt *ckpt);
/* Bytes of a small file beside the weights, at most. */
enum { CKPT_MAX_SIDE_FILE = 256 << 20 };
/* A JSON file of the checkpoint's folder; NULL without an error where there is none. FORMAT names
 * the line. Gives: json_decref. */
int ckpt_read_json(json_t **value, const struct s2s_ckpt *ckpt, const char *name,
                   struct s2s_error *err);
/* The text of a YAML file as JSON, NULL where JSON has no such value; name is for errors. FORMAT
 * names the line. Gives: json_decref. */
int ckpt_parse_yaml(json_t **tree, const char *text, size_t len, const char *name,
                    struct s2s_error *err);
/* One safetensors file; every name gets the prefix. */
int ckpt_read_safetensors(struct s2s_ckpt *ckpt, const char *file, const char *prefix,
                          struct s2s_error *err);
/* A folder of them, single or with index; `folder` is "" or "llm/". */
int ckpt_read_hf(struct s2s_ckpt *ckpt, const char *folder, const char *prefix,
                 struct s2s_error *err);
/* Calls visit with each name of a folder's index and the file in which it is said to be (a plain
 * name), in the index's order; both lent. 0: there is no such index, 1: it was read. FORMAT, IO, or
 * what visit returns below 0. A name that is there twice may be told twice. (index.c) */
typedef int ckpt_index_visit(void *ctx, const char *name, const char *file, struct s2s_error *err);
int ckpt_index_each(struct s2s_ckpt *ckpt, const char *index, ckpt_index_visit *visit, void *ctx,
                    struct s2s_error *err);
/* Names of a folder ("" or "llm/", which stands before each) that end in suffix, sorted. Gives:
 * ckpt_free_list. */
int ckpt_list_suffix(struct s2s_ckpt *ckpt, const char *folder, const char *suffix, char ***names,
                     size_t *n, struct s2s_error *err);
void ckpt_free_list(char **names, size_t n);
/* Files named "model-00002-of-00003.safetensors" must be all there. NOTFOUND names the first that
 * is not. */
int ckpt_check_parts(char **files, size_t n_files, struct s2s_error *err);
/* Says so where somebody named one of such files. */
void ckpt_warn_of_part(const char *path);
/* Files whose boxes are in their headers (torch.distributed.checkpoint with HF storage). */
int ckpt_read_dcp_hf(struct s2s_ckpt *ckpt, struct s2s_error *err);

/*
 * One torch.save file (zip or legacy, told by its bytes), or a span of a file. Its tree is
 * flattened with "." between keys; names get the prefix. model_only: of a Megatron rank file only
 * `model` (model0, ..) gives tensors and objects, the rest goes to common under the prefix.
 */
struct ckpt_torch_source {
    const char *file, *prefix;
    int64_t begin, len_bytes; /* len_bytes -1: the whole file */
    bool model_only;
};
enum { CKPT_TORCH_HEAD = 24 };
bool ckpt_is_legacy_torch(const unsigned char head[CKPT_TORCH_HEAD]);
int ckpt_read_torch(struct s2s_ckpt *ckpt, const struct ckpt_torch_source *source,
                    struct s2s_error *err);
int ckpt_read_hf_bin(struct s2s_ckpt *ckpt, struct s2s_error *err);
int ckpt_read_mp_rank(struct s2s_ckpt *ckpt, struct s2s_error *err);
#define CKPT_NEMO_CONFIG "model_config.yaml"
#define CKPT_NEMO_WEIGHTS "model_weights.ckpt"
/* A .nemo archive, which is the checkpoint's file 0, or the folder of an unpacked one:
 * tensors by NeMo's names; "model_config" of the common state is its configuration. Sets the
 * format: "mp_rank" where each rank has weights of its own. */
int ckpt_read_nemo(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Its members (nemo_members.c). A compressed archive is inflated into an unlinked file first, which
 * takes the place of file 0. */
int ckpt_nemo_members(struct s2s_ckpt *ckpt, struct s2s_error *err);
int ckpt_nemo_folder(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* gzip, zstd, xz, bzip2 or lz4, by the first 6 bytes. */
bool ckpt_is_compressed(const unsigned char head[6]);

/* What transformers' Parakeet has beside its weights, as texts; NULL where NeMo's configuration
 * does not say. */
struct ckpt_nemo_texts {
    char *config, *features, *generation; /* config.json, preprocessor_config.json, .. */
    char *tokenizer, *tokenizer_config, *processor;
};
/* The first three of texts, out of NeMo's configuration of a model (all; NULL: there is none), for
 * the head of that family of names. any: config.json is not wanted, so the encoder may be any.
 * UNSUPPORTED: an encoder that Parakeet has not. Gives: free all three. */
int ckpt_nemo_config(struct ckpt_nemo_texts *texts, const struct s2s_ckpt *ckpt, const json_t *all,
                     const char *family, bool any, struct s2s_error *err);
/* config.json of transformers' Parakeet encoder, out of NeMo's section `encoder` (references
 * followed) and the weights, which must agree. UNSUPPORTED: Parakeet has no such encoder; SHAPE;
 * NOTFOUND (mel bins). Gives a reference. */
int ckpt_nemo_encoder(json_t **config, const struct s2s_ckpt *ckpt, const json_t *encoder,
                      struct s2s_error *err);
/* The last three of texts, out of a SentencePiece model, the model's config.json and the features;
 * none for an encoder alone. FORMAT: no such model; SHAPE: not this model's. Gives: free all
 * three. */
int ckpt_nemo_tokenizer(struct ckpt_nemo_texts *texts, const json_t *config, const void *bytes,
                        size_t len, struct s2s_error *err);
/* preprocessor_config.json out of a model_config.yaml; NULL: it has no preprocessor. Gives a
 * reference. */
json_t *ckpt_nemo_features(const char **odd, const json_t *model_config);
/* The same of the section `preprocessor`. *odd: NULL, or the key whose value is one that
 * transformers' features have not, so that these would be others. */
json_t *ckpt_nemo_mel(const char **odd, const json_t *preprocessor);

/* Of a part of a model, by what it is called ("vision_model"): is it the language model, to which
 * the saved arguments belong? What config.json says of it alone; NULL: nothing. */
bool ckpt_part_has_words(const char *part);
const json_t *ckpt_part_config(const json_t *config, const char *part);

#endif
