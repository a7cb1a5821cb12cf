/* Shared by the files of lib/model. */
#ifndef S2S_MODEL_INTERNAL_H
#define S2S_MODEL_INTERNAL_H

#include "lib/io/safetensors.h"
#include "lib/model/model.h"

/* Parameters of the model that are in the directory's model.safetensors (or the shards of
 * model.safetensors.index.json), under their names without the prefix. */
int model_load_dir(struct s2s_model *model, const char *dir, struct s2s_error *err);
/* One tensor of a file; SHAPE and DTYPE name it. */
int model_set_param(struct s2s_param *param, const struct s2s_st_tensor *t, struct s2s_error *err);

/* Appends a block whose parameters were added since block->param_begin; the name that follows the
 * model's prefix is a format. model, layer and param_end are filled in. */
void model_add_block(struct s2s_model *model, const struct s2s_block *block, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Appends blocks [begin, end) of a part; hidden false: their outputs are not kept. */
void model_take_blocks(struct s2s_model *model, const struct s2s_model *part, int begin, int end,
                       bool hidden);
void model_free_blocks(struct s2s_model *model);

/* Checks lengths, bounds and ids against each other and vocab_size (0: no ids). */
int model_check_batch(const struct s2s_batch *batch, int64_t vocab_size, struct s2s_error *err);

/* Slots that the clips of a batch fill, together. */
int64_t model_n_audio_frames(const struct s2s_batch *batch);
/* Their indices, clip after clip: where s2s_op_splice_rows puts the clips' rows. */
struct s2s_tensor *model_audio_slots(struct s2s_tape *tape, const struct s2s_batch *batch);
/* audio_embeds of a batch as a tensor [model_n_audio_frames, embed_dim]. */
struct s2s_tensor *model_audio_embeds(struct s2s_tape *tape, const struct s2s_batch *batch);

#endif
