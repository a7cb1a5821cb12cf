/* Shared by the readers: finding the weights, one reader per format, locating the bytes of a chunk.
 */
#ifndef CKPT_READ_INTERNAL_H
#define CKPT_READ_INTERNAL_H

#include "lib/ckpt/model.h"
#include "lib/ckpt/pickle/pickle.h"

/* The message for a checkpoint that is `unfinished`. */
#define CKPT_UNFINISHED \
    "metadata.json, which Megatron-Core writes last, is missing or names no backend: an " \
    "unfinished save, or a damaged one"

/* Names of the files that hold a rank's part of the model: those of verl and SkyRL begin so, those
 * of DeepSpeed end so. */
#define CKPT_FSDP_RANK "model_world_size_"
#define CKPT_DEEPSPEED_RANK "_model_states.pt"

/* ---- finding the weights ---- */

/* Opens the folder at/name; returns a descriptor. OPEN: it may not be searched (if it may still be
 * listed, its files would seem to be missing). Other failures have the code `otherwise`. */
int ckpt_open_folder(int at, const char *name, enum s2s_errc otherwise, struct s2s_error *err);
/* Descends from the folder that was opened to the one with the weights: through tracker files,
 * links, and the folders that trainers wrap around weights. Sets path, dir_fd and, if known by
 * then, the iteration. Returns 0 also if nothing leads further. TRUNCATED: an unfinished save;
 * FORMAT, NOTFOUND: a tracker or link names something that does not exist. */
int ckpt_go_down(struct s2s_ckpt *ckpt, struct s2s_error *err);

/* ---- hints for a path that cannot be opened; each returns rc ---- */

/* If path is a file inside a checkpoint: the hint names its folder. */
int ckpt_hint_file(const char *path, int rc, struct s2s_error *err);
/* If the folder contains checkpoints: the hint names some. */
int ckpt_hint_folder(const struct s2s_ckpt *ckpt, int rc, struct s2s_error *err);
/* If the checkpoint is an iteration of a run that has other complete ones: the hint names the
 * newest.
 */
int ckpt_hint_iteration(const struct s2s_ckpt *ckpt, int rc, struct s2s_error *err);
/* If the file is a Git LFS pointer or a web page: the hint says so. */
int ckpt_hint_bytes(const struct s2s_ckpt *ckpt, const char *name, int rc, struct s2s_error *err);

/* ---- readers ----
 *
 * Each fills a new ckpt whose path and dir_fd are set; the caller seals it. All fail with FORMAT,
 * TRUNCATED or SHAPE if files are damaged, UNSUPPORTED for what is not read, NOTFOUND, OPEN, IO. */

/* .metadata and *.distcp: torch_dist and dcp. */
int ckpt_read_dcp(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Sets text to the "sharded_backend" of a metadata.json [len]; "": it names none. FORMAT: not JSON.
 * UNSUPPORTED: a version newer than those known here, which Megatron-Core would refuse too. */
int ckpt_parse_backend(const char *json, size_t len, char text[64], struct s2s_error *err);
/* Sets ckpt->common from common.pt or, without one, from the byte object that replaces it. Returns
 * 0 if there is neither. After ckpt_seal. */
int ckpt_read_common(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Sets ckpt->run_args if Megatron's arguments are a byte object of their own (torch_dcp,
 * fsdp_dtensor). If it cannot be read, there is only a warning. */
void ckpt_read_args(struct s2s_ckpt *ckpt);
/* Sets ckpt->run_args from Megatron-Bridge's run_config.yaml or NeMo's ../context/model.yaml, if
 * the common state has no arguments. If it cannot be read, there is only a warning. (run_config.c)
 */
void ckpt_read_run_config(struct s2s_ckpt *ckpt);
/* Sets ckpt->run_args from the model_config.yaml (config) of a NeMo 1 language model. false: it
 * configures another kind of model, and nothing is set. */
bool ckpt_read_nemo_args(struct s2s_ckpt *ckpt, const json_t *config);
/* One safetensors file. prefix is prepended to every tensor's name. */
int ckpt_read_safetensors(struct s2s_ckpt *ckpt, const char *file, const char *prefix,
                          struct s2s_error *err);
/* Adds what the metadata of such a file says to the checkpoint's texts; below a prefix, only to
 * those that are left out. Errors of s2s_safetensors_read_texts. (texts.c) */
int ckpt_keep_texts(struct s2s_ckpt *ckpt, const struct s2s_safetensors *st, int fd,
                    const char *prefix, struct s2s_error *err);
/* The safetensors files in a folder relative to the checkpoint's ("" or "llm/"): a single one, or
 * several with an index. */
int ckpt_read_hf(struct s2s_ckpt *ckpt, const char *folder, const char *prefix,
                 struct s2s_error *err);
/* Reads the file `index` ("model.safetensors.index.json"): *map is its object of file names, all of
 * them plain, by tensors' names. Returns 1; 0 and NULL if there is no such file; FORMAT, IO. Gives:
 * json_decref. (read_hf.c) */
int ckpt_read_index(struct s2s_ckpt *ckpt, const char *index, json_t **map, struct s2s_error *err);
/* Lists the entries of a folder ("" or "llm/", which is prepended to each name) whose names end
 * with suffix, sorted; without hidden ones, and without one that is only the suffix. Gives:
 * ckpt_free_list. OPEN. */
int ckpt_list_suffix(struct s2s_ckpt *ckpt, const char *folder, const char *suffix, char ***names,
                     size_t *n, struct s2s_error *err);
/* For files named like "model-00002-of-00003.safetensors": is the set complete? NOTFOUND names the
 * first that is missing. */
int ckpt_check_parts(char **files, size_t n_files, struct s2s_error *err);
/* Warns if path, given alone, is one file of such a set. */
void ckpt_warn_of_part(const char *path);
/* dcp_hf: safetensors files of torch.distributed.checkpoint, whose headers say which box of a
 * tensor each entry is. */
int ckpt_read_dcp_hf(struct s2s_ckpt *ckpt, struct s2s_error *err);

/* Output of torch.save, as a file or as a part of one; both the zip format and the one before torch
 * 1.6 are recognised by their bytes. Keys of nested dicts, joined by dots, become the names of
 * tensors and objects. */
struct ckpt_torch_source {
    const char *file, *prefix; /* prefix: prepended to every name */
    int64_t begin, len_bytes;  /* range in the file; len_bytes -1: the whole file */
    /* a file of a Megatron rank: only "model" (model0, ..) gives tensors and objects; the rest goes
     * into the common state, under the prefix */
    bool model_only;
    struct ckpt_fsdp *fsdp; /* NULL, or: it is the file of an FSDP rank (fsdp_place.h) */
};
enum { CKPT_TORCH_HEAD = 24 };
/* Are these the first bytes of a torch.save file of torch before 1.6? */
bool ckpt_is_legacy_torch(const unsigned char head[CKPT_TORCH_HEAD]);
int ckpt_read_torch(struct s2s_ckpt *ckpt, const struct ckpt_torch_source *source,
                    struct s2s_error *err);
/* pytorch_model*.bin, or an adapter's. */
int ckpt_read_hf_bin(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Megatron's rank folders. */
int ckpt_read_mp_rank(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* model_world_size_N_rank_R.pt, a file for each FSDP rank. */
int ckpt_read_fsdp(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* A .nemo archive (file 0 of the checkpoint), or a folder into which one was unpacked. Tensors have
 * NeMo's names; the common state has its configuration as "model_config". The format becomes
 * "mp_rank" if it contains the weights of each rank separately. */
int ckpt_read_nemo(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Fill ckpt->members from the archive, or from the folder of an unpacked one. One in gzip is
 * first decompressed into an unnamed temporary file, which becomes file 0. (nemo_members.c) */
int ckpt_nemo_members(struct s2s_ckpt *ckpt, struct s2s_error *err);
int ckpt_nemo_folder(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* Are these the first bytes of a gzip file? */
bool ckpt_is_gzip(const unsigned char head[3]);

/* ---- where bytes lie ---- */

/* Prepends what was being read to an error: "FOLDER: NAME: ", or "NAME: " for a single file, whose
 * path the error already has. Returns rc. */
int ckpt_at_name(const struct s2s_ckpt *ckpt, const char *name, int rc, struct s2s_error *err);
/* The storage of a chunk in its open file. */
struct ckpt_store {
    struct s2s_ckpt *ckpt;
    struct ckpt_location *place;
    int fd;
    const char *path;
};
/*
 * Reads len bytes of a storage, at position pos of its file. When each byte of it was read once, in
 * order or, as for a tensor that becomes several, in parts of 4 KiB or more, its CRC-32 is
 * verified: DIGEST. Else it is still to be verified. IO, TRUNCATED.
 */
int ckpt_read_store(const struct ckpt_store *store, int64_t pos, void *out, size_t len,
                    struct s2s_error *err);
/* The storage is what its CRC-32 says: it is not read again for that. */
void ckpt_mark_verified(struct s2s_ckpt *ckpt, struct ckpt_location *place);

/* Finds where the data of a tensor's chunk k lies, unless that is known already: in a .distcp file
 * that means opening the archive there. FORMAT, TRUNCATED, UNSUPPORTED, SHAPE, DTYPE, IO. */
int ckpt_locate(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                struct s2s_error *err);
/* The same; in a .distcp file it also verifies the archive's members that are not storages. */
int ckpt_locate_whole(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                      struct s2s_error *err);
/* The same for a tensor that is a view. */
int ckpt_locate_view(struct s2s_ckpt *ckpt, const struct s2s_ckpt_tensor *tensor, size_t k,
                     struct s2s_error *err);
/* Sets the shape [n] that a tensor had before it was flattened (s2s_ckpt_orig_shape). FORMAT: it is
 * already set; SHAPE (also for n < 0), TRUNCATED: impossible for this tensor. */
int ckpt_set_orig_shape(struct s2s_ckpt *ckpt, struct s2s_ckpt_tensor *tensor, const int64_t *shape,
                        int n, struct s2s_error *err);

#endif
