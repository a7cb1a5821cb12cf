/* Shared by the files of lib/model. */
#ifndef S2S_MODEL_INTERNAL_H
#define S2S_MODEL_INTERNAL_H

#include "lib/io/safetensors.h"
#include "lib/model/model.h"

/* Parameters of the model that are in the directory's model.safetensors (or the shards of
 * model.safetensors.index.json), under their names without the prefix. */
int model_load_dir(struct s2s_model *model, const char *dir, struct s2s_error *err);
/* Whether the model's directory holds both tensors with values that differ: the path of the first
 * (gives: free), else NULL. A directory that cannot be read is the loader's to report. */
char *model_dir_differs(const struct s2s_model *model, const char *name, const char *other);
/* The n numbers of a tensor of the model's directory; false: it has none of so many. A directory
 * that cannot be read is the loader's to report. */
bool model_dir_read(const struct s2s_model *model, const char *name, float *out, size_t n);
/* One tensor of a file; SHAPE and DTYPE name it. */
int model_set_param(struct s2s_param *param, const struct s2s_st_tensor *t, struct s2s_error *err);

/* A size of a config that is cut over the ranks of tp, and whether it can be. */
struct model_cut {
    const char *key, *what; /* "num_attention_heads", "attention heads" */
    int64_t size;
    bool fits;
};
/* RANGE names the first that does not fit, at its place. */
int model_check_cuts(const struct s2s_model *model, const struct model_cut *cuts, size_t n,
                     struct s2s_error *err);

/* Appends a block whose parameters were added since block->param_begin; the name that follows the
 * model's prefix is a format. model, layer and param_end are filled in. */
void model_add_block(struct s2s_model *model, const struct s2s_block *block, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Appends blocks [begin, end) of a part, which n_carried tensors pass; hidden false: their outputs
 * are not kept. */
void model_take_blocks(struct s2s_model *model, const struct s2s_model *part, int begin, int end,
                       int n_carried, bool hidden);
void model_free_blocks(struct s2s_model *model);

/* Checks lengths, bounds and ids against each other and vocab_size (0: no ids). */
int model_check_batch(const struct s2s_batch *batch, int64_t vocab_size, struct s2s_error *err);

/* ---- dropout (dropout.c) ---- */

/* What the recipe says of the model's dropout. */
struct s2s_dropout_rates model_said_dropout(const struct s2s_model *model);

/* The share at this key of the config (NULL: it has none), between 0 and 1; said: what a recipe
 * says instead, or below 0. 0 where neither says one. Notes in model->draws that something is left
 * out. */
int model_read_dropout(double *rate, struct s2s_model *model, const char *key, double said,
                       struct s2s_error *err);
/* The pass' names of rows, of the slots of a batch that draws; none of another one. */
void model_name_rows(struct s2s_pass *pass);
/* What attention of that pass draws by, in its spans of rows up to n_rows. */
void model_name_spans(const struct s2s_pass *pass, struct s2s_spans *spans, int64_t n_rows);
void model_name_spans_cp(const struct s2s_pass *pass, struct s2s_spans_cp *cp, int64_t n_rows);
/* Names of the rows cu[k] .. cu[k + 1] (host) of each clip of the list, from its first on; NULL
 * where the batch does not draw. */
struct s2s_tensor *model_name_clips(struct s2s_tape *tape, const struct s2s_media *media,
                                    const int32_t *cu);
/* A table of relative positions, of which all clips of a step lack the same. */
struct s2s_tensor *model_drop_positions(const struct s2s_pass *pass,
                                        const struct s2s_nn_dropout *dropout,
                                        struct s2s_tensor *table);

/* Embeddings of sound that a language model takes as they are: in its width (text.c). */
int model_check_embeds(const struct s2s_model *model, const struct s2s_media *audio,
                       struct s2s_error *err);
/* UNSUPPORTED: the model has no encoder of images (text.c). */
int model_refuse_images(const struct s2s_media *images, struct s2s_error *err);

/* ---- attention of sequences that are whole (decode.c) ---- */

/* What attention sees of a batch, and behind it of rows up to n_rows, which see each other alone;
 * where sequences go on, keys are the rows of caches. */
struct s2s_spans model_spans(const struct s2s_pass *pass, int64_t n_rows);
/* I32 [T]: where the keys and values of the batch go in caches; NULL: nothing is kept. */
struct s2s_tensor *model_cache_rows(const struct s2s_pass *pass);

/* ---- encoders (encoder.c) ---- */

/* The clips or images of the batch that this rank encodes; without features there are none, and
 * everything runs with sizes of 0. */
struct s2s_media model_own_media(const struct s2s_model *encoder, const struct s2s_pass *pass,
                                 enum s2s_media_kind kind);
/* The last block of an encoder: its output, and the loss of a batch with a target. */
void model_add_encoder_loss(struct s2s_model *encoder);

/* ---- tokens cut over the ranks of par->cp (cp.c) ---- */

/* RANGE: heads of attention that those ranks, and those of par->tp, cannot share as cp_comm says.
 */
int model_check_cp(const struct s2s_model *model, int64_t n_heads, int64_t n_kv_heads,
                   struct s2s_error *err);
/* What attention sees of a batch whose sequences are cut, and behind them of rows up to n_rows,
 * which see nothing; NULL where they are whole: on one rank, and in generation, where each rank has
 * all of its sequence. */
const struct s2s_spans_cp *model_spans_cp(const struct s2s_model *model,
                                          const struct s2s_pass *pass, int64_t n_rows);
/* The same where some layers have a window (0: none has). */
const struct s2s_spans_cp *model_spans_cp_window(const struct s2s_model *model,
                                                 const struct s2s_pass *pass, int64_t n_rows,
                                                 int64_t window);
/* Rows for columns between those ranks, of rows up to n_rows; NULL likewise. *seqs becomes the
 * bounds of the sequences among all rows, whole or not. */
const struct s2s_trade *model_trade_cp(const struct s2s_model *model, const struct s2s_pass *pass,
                                       int64_t n_rows, struct s2s_seqs *seqs);
/*
 * Ranks over which an encoder's clips are spread; NULL: each encodes all. So in generation, and for
 * statistics of a batch, which are those of all its clips: what each rank's slots say of the
 * gradient adds up to the same.
 */
const struct s2s_group *model_spread(const struct s2s_model *encoder, const struct s2s_pass *pass);

/* The batch's list of this kind; NULL: it has none. */
const struct s2s_media *model_media(const struct s2s_batch *batch, enum s2s_media_kind kind);
/* Does it bring what an encoder reads, or embeddings? Both false for NULL and for slots alone. */
bool model_has_features(const struct s2s_media *media);
bool model_has_embeds(const struct s2s_media *media);
/* Its embeddings [n_rows, width]. */
struct s2s_tensor *model_upload_embeds(struct s2s_tape *tape, const struct s2s_media *media);
/* embeds [T, H] with the rows [n, H] in the list's slots; n is 0 or all of its rows (media may be
 * NULL for 0). Where sequences are cut, embeds are this rank's rows, and rows are those of all. */
struct s2s_tensor *model_splice(const struct s2s_pass *pass, struct s2s_tensor *embeds,
                                struct s2s_tensor *rows, const struct s2s_media *media);

#endif
