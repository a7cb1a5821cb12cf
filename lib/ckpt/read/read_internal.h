/* Between the readers: the way to the weights, a reader a format, where the bytes of a chunk lie.
 */
#ifndef CKPT_READ_INTERNAL_H
#define CKPT_READ_INTERNAL_H

#include "lib/ckpt/model.h"
#include "lib/ckpt/pickle/pickle.h"

/* What users are told of a checkpoint that is `unfinished`. */
#define CKPT_UNFINISHED \
    "metadata.json, which Megatron-Core writes last, is missing or names no backend: an " \
    "unfinished save, or a damaged one"

/* ---- the way to the weights ---- */

/* Opens the folder at/name; returns a descriptor. OPEN: its files must not be opened. (If it may
 * still be listed, files would seem to be missing.) Other failures have the code `otherwise`. */
int ckpt_open_folder(int at, const char *name, enum s2s_errc otherwise, struct s2s_error *err);
/* Goes from the folder that was opened down to the one with the weights: by trackers, by links, and
 * into the folders that trainers put around weights. Sets path, dir_fd and, if it is known then,
 * the iteration. 0 also where nothing leads further. TRUNCATED: an unfinished save; FORMAT,
 * NOTFOUND: a tracker or link names what is not there. */
int ckpt_go_down(struct s2s_ckpt *ckpt, struct s2s_error *err);

/* ---- hints for what cannot be opened: each may add one to err, and returns rc ---- */

/* The file may be a part of a checkpoint, whose folder is meant. */
int ckpt_hint_file(const char *path, int rc, struct s2s_error *err);
/* The folder may hold checkpoints: names some. */
int ckpt_hint_folder(const struct s2s_ckpt *ckpt, int rc, struct s2s_error *err);
/* The file may not be weights at all, but a pointer of Git LFS's, or a web page. */
int ckpt_hint_bytes(const struct s2s_ckpt *ckpt, const char *name, int rc, struct s2s_error *err);

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
 * Keeps such a path (ckpt_path_of), if the name is one of the checkpoint's; else does nothing. No
 * pickle can make more of it than the name is long. After ckpt_seal. FORMAT: the name has one
 * already.
 */
int ckpt_keep_path(struct s2s_ckpt *ckpt, const struct ckpt_node *name,
                   const struct ckpt_node *parts, struct s2s_error *err);
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
 * end with suffix, sorted; hidden ones are left out, and one that is only the suffix. Gives:
 * ckpt_free_list. OPEN. */
int ckpt_list_suffix(struct s2s_ckpt *ckpt, const char *folder, const char *suffix, char ***names,
                     size_t *n, struct s2s_error *err);
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

/* ---- where bytes lie ---- */

/* Adds what was being read to an error: "FOLDER: NAME: "; of a single file, whose path the error
 * has already, "NAME: ". Returns rc. */
int ckpt_at_name(const struct s2s_ckpt *ckpt, const char *name, int rc, struct s2s_error *err);
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

#endif
