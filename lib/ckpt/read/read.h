/* What the readers offer to the rooms above them. */
#ifndef CKPT_READ_H
#define CKPT_READ_H

#include "lib/ckpt/model.h"

/* ---- names in folders ---- */

/* The journal in a folder that is being written (lib/ckpt/write/journal.h). */
#define CKPT_JOURNAL "s2s-resume"

/* A file beside Megatron's folders iter_0001000/ and release/: it says "1000", or "release", for
 * the one that is the latest. */
#define CKPT_TRACKER "latest_checkpointed_iteration.txt"

/* The name of the byte object that newer checkpoints have in place of common.pt. */
#define CKPT_COMMON_OBJECT "common_state/shard_0_1"

#define CKPT_NEMO_CONFIG "model_config.yaml"
#define CKPT_NEMO_WEIGHTS "model_weights.ckpt"

/* ---- what lies beside the tensors ---- */

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
/*
 * Where the thing of this name stands in nested dicts and lists; lent until close. NULL: not said.
 * Joined by dots the parts of the path are the name, so only where it is to be cut is kept: the
 * first number is how many parts there are, then comes one for each, twice its length, plus 1 if
 * the part is an int. (The last part is the rest of the name, whatever its length says.)
 */
const uint16_t *ckpt_path_of(const struct s2s_ckpt *ckpt, const char *name);
/* Checks common.pt, if there is one: its CRC-32s, and that its pickle is understood. DIGEST,
 * FORMAT, TRUNCATED, UNSUPPORTED, IO. */
int ckpt_verify_common_file(struct s2s_ckpt *ckpt, struct s2s_error *err);
/* The same for any other file of torch.save's in the checkpoint's folder. */
int ckpt_verify_torch_file(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err);

/* ---- tensors ---- */

enum { CKPT_SCRATCH = S2S_CKPT_PIECE };
/* Memory for at least CKPT_SCRATCH bytes, lent until the next call that streams. */
char *ckpt_piece(struct s2s_ckpt *ckpt);
/* A view of the tensor with its last two axes exchanged, which lives as long as the checkpoint; the
 * tensor itself if it has fewer than two. */
const struct s2s_ckpt_tensor *ckpt_transposed(struct s2s_ckpt *ckpt,
                                              const struct s2s_ckpt_tensor *tensor);

#endif
