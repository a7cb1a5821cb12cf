/*
 * What every model offers: config.json -> parameters -> forward. A model is forward code over the
 * tape; whatever needs its parameters reads the registry (lib/tensor/param.h).
 *
 *     struct s2s_model *model;
 *     s2s_model_open(&model, device, par, "llm/", &options, err);   // builds, registers parameters
 *     s2s_params_finish(model->params, err);
 *     s2s_model_load(model, err);
 *     s2s_params_init(model->params, seed);                         // what was not loaded
 *     struct s2s_forward fwd = {.seed = 1.0 / n_tokens_global};
 *     s2s_model_check(model, &batch, err);                          // on the host, before all else
 *     s2s_model_forward(model, tape, &batch, &fwd);
 *     s2s_tape_backward(tape);
 *
 * A kind of model is one struct s2s_model_kind in the table of lib/model/model.c.
 */
#ifndef S2S_MODEL_H
#define S2S_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/nn/linear.h"
#include "lib/tensor/ops.h"
#include "lib/tensor/param.h"
#include "lib/tensor/tensor.h"

struct s2s_conf;
struct s2s_error;
struct s2s_loads;
struct s2s_lora;
struct s2s_model;

enum s2s_media_kind { S2S_MEDIA_AUDIO, S2S_MEDIA_IMAGE };

enum { S2S_BATCH_MEDIA = 2 };

/* What stands in the slots of a batch and is no text: clips of sound or images, as features for an
 * encoder or as embeddings. Each becomes rows, and each row has its slot, wherever that is. */
struct s2s_media {
    enum s2s_media_kind kind;
    int64_t n;                  /* K clips, or images */
    const int32_t *rows;        /* [K] rows of each; NULL for a bare encoder */
    const int32_t *slot_of_row; /* [sum of rows] each differs from all others; -1: not here */
    const float *data; /* with cu features [cu[K], width], without embeddings [sum of rows, width];
                          NULL: the slots alone */
    const int64_t *cu; /* [K + 1] bounds of features (mel frames, patches), clip after clip */
    int64_t width;     /* mel bins, numbers of a patch; of embeddings the LLM's width or the
                          encoder's */
    const int32_t *grid;   /* images: [K, 2] height and width in patches, which are row by row and
                              each [3 colours, height, width] of pixels from 0 to 1 */
    const uint64_t *draws; /* [K] of each clip: its name and its own number of the run; NULL:
                              nothing is drawn, as in evaluation */
    int64_t padded;        /* 0, or the mel frames that clips of a padded batch have: statistics of
                              batch norm then count the padding */
    bool projected;        /* the embeddings went through a projection already */
};

/*
 * One microbatch in host memory, all borrowed for the call. T slots, B sequences. What a model does
 * not need may be NULL (a bare encoder: all tokens; text only: no media).
 */
struct s2s_batch {
    int64_t n_tokens, n_seqs;    /* T, B */
    const int32_t *input_ids;    /* [T]; in slots of media the placeholder, which is not looked up;
                                    -1: a zero row */
    const int32_t *labels;       /* [T] already shifted, negative: no loss; NULL: no loss wanted */
    const int32_t *position_ids; /* [T], restart in every sequence */
    const int32_t *cu_seqlens;   /* [B + 1] bounds of the slots (of the padded lengths) */
    const int32_t *seq_lens;     /* [B] real lengths; slots after them are padding, a zero row;
                                    NULL: no padding */
    int64_t max_seqlen;          /* longest difference of cu_seqlens */
    const uint64_t *draws; /* [B] what dropout draws by: of the run, the epoch and the sample, the
                              same in whatever batch and on whatever rank; NULL: there is none */
    uint64_t draw;         /* the same of the step, for what samples share */

    struct s2s_media media[S2S_BATCH_MEDIA]; /* one of a kind */
    int n_media;
    const float *target; /* bare encoder: [frames, width]; loss 0.5 |y - target|^2 */
};

/* What a look into an encoder finds; tensors of the tape. */
struct s2s_encoder_trace {
    struct s2s_tensor *mel;         /* [mel frames, n_mels, 1], a leaf whose gradient is wanted */
    struct s2s_tensor *subsampling; /* [frames, D] before the input scale */
    struct s2s_tensor *positions;   /* [2 max - 1, D] */
    struct s2s_tensor *ff1, *attention, *conv, *ff2; /* of the first layer, before the residual */
};

/*
 * Who wants to know how far a forward and its backward are: each is called with ctx and the block's
 * index in model->blocks, on every rank, whatever the batch holds. A parameter is in the range of
 * the first block that uses it, so its gradient is complete when the backward has left that block.
 */
struct s2s_block_watch {
    void *ctx;
    void (*enter)(void *ctx, int block), (*leave)(void *ctx, int block); /* of the forward */
    void (*enter_backward)(void *ctx, int block), (*leave_backward)(void *ctx, int block);
};

/* Losses that keep the load of experts even, in the gradients of a backward (s2s_op_balance): each
 * layer's are sums over rows, as the loss is one over labels, and take the same seed. */
struct s2s_model_balance {
    double balance, square;  /* factors */
    bool by_sequence;        /* even in each sequence; else in the microbatch, */
    bool over_step;          /* or in the mean of all ranks' microbatches since the step began */
    double *losses;          /* [3] device memory, added to; NULL: not wanted */
    struct s2s_loads *loads; /* NULL, or where counts add up: for over_step, and for biases */
};

/* What a forward keeps for its backward. */
enum s2s_recompute {
    S2S_RECOMPUTE_NONE,      /* all that it reads */
    S2S_RECOMPUTE_FULL,      /* each layer's input; the layer runs again */
    S2S_RECOMPUTE_SELECTIVE, /* not what norms and activation functions give to linear maps */
};
extern const char *const s2s_recompute_names[]; /* NULL-ended */

/* What is asked of a forward pass, and what came out: tensors of the tape. */
struct s2s_forward {
    double seed;                  /* factor of the loss in the gradient: 1/N of the global batch */
    bool want_logits;             /* all of [T, V]; otherwise they never exist as a whole */
    bool want_hits;               /* how many labels are the likeliest token */
    bool want_rows;               /* the loss of each slot */
    enum s2s_recompute recompute; /* what is computed again in the backward */
    bool want_last; /* logits of the last slot of each sequence alone, [B, V] (generation) */
    struct s2s_decode *decode; /* NULL, or what sequences have seen so far: sequence s of the batch
                                  goes on with number s, on a tape that does not record */
    struct s2s_encoder_trace *trace;         /* NULL, or to be filled in */
    const struct s2s_model_balance *balance; /* NULL, or what is asked of mixtures of experts */

    struct s2s_tensor *loss;    /* F64 scalar, a sum over the labels; NULL without labels */
    struct s2s_tensor *hits;    /* F64 scalar */
    struct s2s_tensor *rows;    /* F32 [at least T, 1], 0 in slots without a label; NULL without
                                   labels */
    struct s2s_tensor *logits;  /* [T, V] */
    struct s2s_tensor *output;  /* [T, H] after the final norm (where sequences are cut, this rank's
                                   rows); a bare encoder's output */
    struct s2s_tensor **hidden; /* [n_hidden] of such: input embeddings, then each layer (the last
                                   one after the final norm, as Hugging Face counts); NULL for
                                   blocks that did not run */
    int n_hidden;
    struct s2s_tensor *audio_embeds, *image_embeds; /* [sum of rows, H] as put into the slots */
};

/* ---- blocks ---- */

enum { S2S_BLOCK_TENSORS = 4, S2S_MODEL_PARTS = 4, S2S_STATES = 2 };

/* One batch on its way over blocks on one tape, in the tape's memory. A part's share is what its
 * blocks have in common (bounds, tables), made when the first of them runs. */
struct s2s_pass {
    const struct s2s_model *model;
    struct s2s_tape *tape;
    const struct s2s_batch *batch;
    struct s2s_forward *fwd;
    struct s2s_nn_tp tp; /* how ranks share the rows between layers */
    struct {
        const struct s2s_model *model;
        void *shared;
    } parts[S2S_MODEL_PARTS];
    int n_parts;
};

struct s2s_block_ctx {
    const struct s2s_block *block;
    const void *shared;
    /* NULL, or of sequences that go on: the block's own memory, each part of all sequences [n,
     * bytes of one], of which those of the batch are the first */
    const struct s2s_block_state *state;
    struct s2s_pass *pass; /* gone when a pure block runs again */
};

/*
 * A piece of a model that runs as a whole: pipelines cut between blocks, their parameters are
 * gathered together, a pure one is run again in the backward instead of kept. What one block gives
 * in out[] the next one gets as in[]. The first takes the ids and media of the batch; the last
 * gives the output, and the loss in the pass' struct s2s_forward. What an encoder made is carried
 * past the blocks of another one: between two blocks stand the carried tensors, then out[].
 */
struct s2s_block {
    char *layer; /* names what it records: "llm.model.layers.3" */
    void (*run)(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                struct s2s_tensor *const *in, struct s2s_tensor **out);
    const struct s2s_model *model; /* it is of: of a composite or of one of its parts */
    const void *impl;              /* the layer's own; the model frees it */
    int n_in, n_out;
    int n_carried; /* tensors in front of in[] that stay in front of out[] */
    /* its parameters: this range of model->params->list. An output layer that is tied to the
     * embedding is in the range of the embedding alone. */
    size_t param_begin, param_end;
    struct s2s_param *uses; /* one of another block's that it reads as well (that output layer's
                               embedding), or NULL */
    /* Device memory that the block keeps of one sequence of up to cap tokens, in parts 0 ..
     * S2S_STATES (0: there is no such part); NULL: none. A part is a multiple of 4 bytes. */
    size_t (*state_bytes)(const struct s2s_block *block, int64_t cap, int part);
    int hidden; /* where fwd->hidden has out[0]; -1: nowhere */
    bool pure;  /* out[] follows from in[], shared, state and parameters; neither the batch nor
                   struct s2s_forward is touched */
};

struct s2s_block_state {
    void *parts[S2S_STATES]; /* device memory [n_seqs, bytes], zeros at first; NULL: no such part */
    size_t bytes[S2S_STATES];
};

/* What the blocks of a model keep of sequences, for generation: keys and values, or whatever each
 * says it needs. */
struct s2s_decode {
    struct s2s_device *device;
    int64_t n_seqs, cap; /* sequences there is room for, and tokens of each */
    int64_t *lens;       /* [n_seqs] tokens that were seen */
    int n_blocks;
    struct s2s_block_state *states; /* [n_blocks] */
    void *room;                     /* for a part of all sequences */
};

struct s2s_model_kind {
    const char *const *model_types;    /* NULL-ended: "model_type" of config.json */
    const char *stem, *stem_in_memory; /* NULL, or what names in files begin with, and those of the
                                          same in transformers' memory: "backbone.", "model." */
    const char *const *unused; /* NULL, or NULL-ended: tensors that files may have and the config
                                  makes superfluous */
    /* NULL, or whether files may have a tensor of this name as one more copy of another one */
    bool (*is_copy)(const struct s2s_model *model, const char *name);
    const char *dropped; /* files may have tensors whose names begin so: of layers that are not
                            built; NULL: none */
    /* Reads the config, adds parameters and blocks. model->kind, params, prefix, par, conf are
     * set. */
    int (*build)(struct s2s_model *model, struct s2s_error *err);
    /* What this kind asks of a batch whose bounds and ids are right. */
    int (*check)(const struct s2s_model *model, const struct s2s_batch *batch,
                 struct s2s_error *err);
    /* What the blocks of this model share, in the memory of the pass' tape; NULL: nothing. */
    void *(*prepare)(const struct s2s_model *model, const struct s2s_pass *pass);
    /* Embeddings of the ids [T, H], zero rows in pad slots and audio slots (where sequences are
     * cut, this rank's rows of them); NULL: it is no language model. A composite puts other things
     * into its slots, and takes its blocks from the second one on. */
    struct s2s_tensor *(*embed)(const struct s2s_model *model, const struct s2s_pass *pass);
    /* Frames of n mel frames; NULL: no encoder. */
    int64_t (*frames)(const struct s2s_model *model, int64_t n_mel);
    /* Loads weights; NULL: model.safetensors of the directory, names as registered. */
    int (*load)(struct s2s_model *model, struct s2s_error *err);
    void (*free_impl)(void *impl);
};

/* Whether an output layer that the config ties to the embedding is one with it. */
enum s2s_head {
    S2S_HEAD_BY_FILES, /* unless the directory's weights have both, and they differ */
    S2S_HEAD_TIED,     /* of a checkpoint, which has only the embedding: as the config says */
    S2S_HEAD_OWN       /* of a checkpoint that has both */
};

/* Shares that dropout leaves out in training. */
struct s2s_dropout_rates {
    double hidden, attention;                            /* of a decoder */
    double encoder, input, positions, encoder_attention; /* of an encoder of sound */
};
/* Said by nobody: as a model's config has it. */
#define S2S_DROPOUT_RATES_INIT \
    { \
        -1, -1, -1, -1, -1, -1 \
    }

/* How a model is built beside its config. */
struct s2s_model_options {
    const char *prefix;              /* NULL: "" */
    const char *config;              /* this config file instead of DIR/config.json */
    const struct s2s_conf *conf;     /* or these keys; borrowed */
    const struct s2s_conf *override; /* keys in the place of those of the config; or NULL */
    struct s2s_params *params;       /* add to this registry; NULL: a new one, owned by the model */
    bool batch_norm_batch;           /* encoders: statistics of the batch instead of frozen ones */
    enum s2s_head head;              /* decoders */
    bool free_steps; /* Mamba layers: steps are not clamped to the config's time_step_min */
    const struct s2s_lora *lora;             /* decoders: which maps get an adapter; NULL: none */
    const struct s2s_dropout_rates *dropout; /* instead of the config's; those below 0, and NULL:
                                                as the config has it */
};

struct s2s_model {
    const struct s2s_model_kind *kind;
    struct s2s_params *params; /* shared with the composite it is a part of */
    const struct s2s_par *par; /* kept */
    char *dir;                 /* the directory it came from; NULL when only a config did */
    char *prefix;              /* of its parameters' names in the registry: "" or "llm." */
    const char *stored_prefix; /* of its tensors' names in that directory: "" or "encoder." */
    const char *twin[2];       /* two names of one matrix: of the parameter, and one that files may
                                  have beside it or in its place; NULL: none */
    struct s2s_conf *conf;     /* its config.json, or its part of that */
    char *config_path;
    struct s2s_model_options options; /* its strings are not kept */
    bool owns_params;
    bool draws;                      /* it leaves something out in training: batches say by what */
    int64_t vocab_size, hidden_size; /* 0 where it has none */
    int64_t n_mels;                  /* of what an encoder of sound reads; 0: none */
    int64_t patch_dim, patch_size; /* of images: numbers of a patch, pixels of its side; 0: none */
    int32_t pad_token_id;          /* -1: none */
    struct s2s_block *blocks;
    int n_blocks, n_media_blocks; /* so many at the beginning see media alone, no text */
    size_t cap_blocks;
    int n_hidden;                        /* places in fwd->hidden */
    const struct s2s_block_watch *watch; /* NULL, or told of every pass over its blocks; kept */
    void *impl;                          /* the kind's own */
};

/*
 * Builds the model of dir (config.json there, or options->config with dir NULL): its parameters are
 * registered, not yet allocated. UNSUPPORTED names the model_type and those that are known. Gives:
 * s2s_model_free.
 */
int s2s_model_open(struct s2s_model **model, struct s2s_device *device, const struct s2s_par *par,
                   const char *dir, const struct s2s_model_options *options, struct s2s_error *err);
void s2s_model_free(struct s2s_model *model); /* NULL is a no-op */

/* Weights of the directory into the finished registry; optional ones that it lacks stay unset.
 * NOTFOUND lists every other tensor that is absent; tensors that nobody wants are a warning. */
int s2s_model_load(struct s2s_model *model, struct s2s_error *err);

/*
 * Everything that can be wrong with a batch: RANGE and SHAPE for ids, bounds and widths that do not
 * fit each other or the model, ARG for what is missing, UNSUPPORTED for what this model does not
 * take. Reads host memory only. Ranks that compute together check, agree, and only then go on:
 * nothing after this call returns an error to one of them alone.
 */
int s2s_model_check(const struct s2s_model *model, const struct s2s_batch *batch,
                    struct s2s_error *err);
/* All blocks, of a batch that was checked. */
void s2s_model_forward(const struct s2s_model *model, struct s2s_tape *tape,
                       const struct s2s_batch *batch, struct s2s_forward *fwd);
/*
 * Blocks [begin, end) of a batch that was checked: the stage of a pipeline, or what is gathered
 * together. in[] are the tensors before block begin, on this tape (from the block before or
 * uploaded; NULL at n_media_blocks: no media); out[] becomes those after block end - 1. The
 * batch and fwd must live until the last block of the pass has run, the pass until the tape is
 * reset.
 */
struct s2s_pass *s2s_model_prepare(const struct s2s_model *model, struct s2s_tape *tape,
                                   const struct s2s_batch *batch, struct s2s_forward *fwd);
void s2s_model_run(struct s2s_pass *pass, int begin, int end, struct s2s_tensor *const *in,
                   struct s2s_tensor **out);

/* Room for cap tokens of n_seqs sequences. NOMEM names the block. Gives: s2s_decode_free. */
int s2s_decode_new(struct s2s_decode **decode, const struct s2s_model *model, int64_t n_seqs,
                   int64_t cap, struct s2s_error *err);
void s2s_decode_free(struct s2s_decode *decode); /* NULL is a no-op */
/* Sequence s becomes what from[s] was, for s below n (n <= n_seqs; one may become several). Those
 * from n on are as they were. */
void s2s_decode_choose(struct s2s_decode *decode, const int32_t *from, int64_t n);

/* The name a parameter has in this model's own directory: without the prefix. */
const char *s2s_model_local_name(const struct s2s_model *model, const struct s2s_param *param);

/* The block whose range each parameter of the registry is in, the first one that uses it; 0 for
 * what no block claims: [params->n]. Gives: free. */
int *s2s_model_blocks_of_params(const struct s2s_model *model);

/* Frames that an encoder makes of n mel frames. */
int64_t s2s_model_frames(const struct s2s_model *model, int64_t n_mel);

/* Number of labels that count (not negative). */
int64_t s2s_batch_n_labels(const struct s2s_batch *batch);
int64_t s2s_media_n_rows(const struct s2s_media *media);
/* slot_of_row [sum of rows] of n clips that fill slots one after the other, from slot[k] on. */
void s2s_media_slots(int32_t *slot_of_row, const int32_t *slot, const int32_t *rows, int64_t n);

/* ---- for kinds ---- */

/* Adds a parameter "prefix" + name; name is a format. Flags and init of spec count. */
struct s2s_param *s2s_model_add(struct s2s_model *model, const struct s2s_param_spec *spec,
                                const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The table's entries; a new kind is declared here and listed in model.c. */
extern const struct s2s_model_kind
    s2s_model_llama; /* llama, mistral, qwen2, qwen3, gemma, mixtral, qwen3_moe */
extern const struct s2s_model_kind s2s_model_nemotron_h;    /* nemotron_h */
extern const struct s2s_model_kind s2s_model_fastconformer; /* parakeet_encoder */
extern const struct s2s_model_kind s2s_model_radio;         /* radio: lib/model/radio.h */
extern const struct s2s_model_kind s2s_model_salm; /* encoder, projection, LLM: lib/model/salm.h */

#endif
