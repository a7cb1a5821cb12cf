/* What the readers offer to the rooms above them. */
#ifndef CKPT_READ_H
#define CKPT_READ_H

#include "lib/ckpt/model.h"

/* ---- names in folders ---- */

/* The journal in a folder while it is being written (lib/ckpt/write/journal.h). */
#define CKPT_JOURNAL "s2s-resume"

/* A file next to Megatron's folders iter_0001000/ and release/: its content, "1000" or "release",
 * names the latest. */
#define CKPT_TRACKER "latest_checkpointed_iteration.txt"
/* beside the tensors of a folder that Lightning saved */
#define CKPT_LIGHTNING_META "meta.pt"

/* The byte object that newer Megatron-Core versions write in place of common.pt. */
#define CKPT_COMMON_OBJECT "common_state/shard_0_1"

/* Beside the files of verl's FSDP ranks: a note of how many these are, the folder of transformers'
 * files, and the beginnings of the names of the other files of each rank. */
#define CKPT_FSDP_CONFIG "fsdp_config.json"
#define CKPT_FSDP_FILES "huggingface"
#define CKPT_FSDP_OPTIM "optim_world_size_"
#define CKPT_FSDP_EXTRA "extra_state_world_size_"

#define CKPT_NEMO_CONFIG "model_config.yaml"
#define CKPT_NEMO_WEIGHTS "model_weights.ckpt"

/* ---- what lies beside the tensors ---- */

/* Is Megatron-Bridge's run_config.yaml in the folder? */
bool ckpt_has_run_config(const struct s2s_ckpt *ckpt);
/* Arguments of the Megatron training script ("num_layers", ..), which determine the model's shape;
 * lent until close. NULL: unknown. */
const json_t *ckpt_args(const struct s2s_ckpt *ckpt);
/* Size limit, in bytes, of small files beside the weights. */
enum { CKPT_MAX_SIDE_FILE = 256 << 20 };
/* Reads a JSON file in the checkpoint's folder. *value is NULL, and the result 0, if the file does
 * not exist. Gives: json_decref. FORMAT, with the line. */
int ckpt_read_json(json_t **value, const struct s2s_ckpt *ckpt, const char *name,
                   struct s2s_error *err);
/* Parses YAML text [len] into a JSON tree; name is the file's, for messages. *tree is NULL, and the
 * result 0, if it has a value that JSON cannot represent. Gives: json_decref. FORMAT, with the
 * line. */
int ckpt_parse_yaml(json_t **tree, const char *text, size_t len, const char *name,
                    struct s2s_error *err);
/*
 * The path of this tensor or object in nested dicts and lists; lent until close. NULL: unknown. The
 * parts of a path joined by dots are the name, so only the cuts are stored: the first number is how
 * many parts there are, then one number for each part, twice its length, plus 1 if the part is an
 * int. (The last part is the rest of the name, whatever length is stored.)
 */
const uint16_t *ckpt_path_of(const struct s2s_ckpt *ckpt, const char *name);
/* Verifies common.pt, if there is one: CRC-32s, and that its pickle can be parsed. DIGEST, FORMAT,
 * TRUNCATED, UNSUPPORTED, IO. */
int ckpt_verify_common_file(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* The same for any other torch.save file in the checkpoint's folder. */
int ckpt_verify_torch_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err);

/* ---- tensors ---- */

enum { CKPT_SCRATCH = S2S_CKPT_PIECE };
/* A buffer of at least CKPT_SCRATCH bytes, lent until the next call that streams. */
char *ckpt_piece(struct s2s_ckpt *ckpt);
/* A view of the tensor with its last two axes exchanged, which lives as long as the checkpoint; the
 * tensor itself if it has fewer than two. */
const struct s2s_ckpt_tensor *ckpt_transposed(struct s2s_ckpt *ckpt,
                                              const struct s2s_ckpt_tensor *tensor);

#endif
