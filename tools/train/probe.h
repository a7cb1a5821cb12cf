/*
 * s2s-train probe: numbers of a model for comparison with another framework. probe.c owns the
 * command line, the step and the output file; what an input file means and which activations go to
 * the output is a family's business (probe_decoder.c).
 */
#ifndef S2S_TRAIN_PROBE_H
#define S2S_TRAIN_PROBE_H

#include "lib/io/safetensors.h"
#include "lib/model/model.h"
#include "lib/optim/optim.h"

struct s2s_common;
struct s2s_error;

enum probe_layout { PROBE_PACKED, PROBE_BSHD };

struct probe;

struct probe_family {
    bool (*matches)(const struct s2s_model *model);
    /* inputs -> probe->batch (host memory from probe_alloc), probe->n_labels, what is wanted of the
     * forward pass. Called once. */
    int (*prepare)(struct probe *probe, struct s2s_error *err);
    /* Adds the activations of the first forward pass to the output. */
    int (*collect)(struct probe *probe, const struct s2s_forward *fwd, struct s2s_error *err);
    /* After the first backward pass: what else it left behind. NULL: nothing. */
    void (*collect_after)(struct probe *probe, const struct s2s_forward *fwd);
};

struct probe {
    enum probe_layout layout;
    bool batch_norm_batch;
    int multiple; /* utterances are rounded up to a multiple of this */
    struct s2s_device *device;
    struct s2s_model *model;
    struct s2s_safetensors inputs;
    const struct probe_family *family;
    struct s2s_batch batch;
    const int32_t *clip_slot;  /* where each clip begins; NULL: there is none */
    struct s2s_forward wanted; /* want_* and seed of every forward pass */
    double loss_scale;         /* the loss that is written: the sum times this */
    struct s2s_arena host;     /* of probe_alloc */
    struct s2s_st_tensor *out; /* what will be written */
    size_t n_out, cap_out;
    void *state; /* the family's own, from probe_alloc */
};

extern const struct probe_family probe_decoder, probe_encoder, probe_image, probe_salm;

/* Zeroed host memory until the probe's end. */
void *probe_alloc(struct probe *probe, size_t bytes);
/* An input tensor of this dtype (F32; I32 takes I64 too) as a copy; NOTFOUND and DTYPE name it.
 * shape may be NULL. */
int probe_input_f32(struct probe *probe, const float **data, const int64_t **shape,
                    const char *name, int n_dims, struct s2s_error *err);
int probe_input_i32(struct probe *probe, const int32_t **data, const int64_t **shape,
                    const char *name, int n_dims, struct s2s_error *err);
/* Features of a padded batch, input_features [B, L, n_mels] and a mask [B, L] of valid frames (the
 * first so many of each row): the batch's list of clips, without slots. */
int probe_input_mel(struct probe *probe, const char *mask_name, struct s2s_error *err);
bool probe_has_input(const struct probe *probe, const char *name);
/* Adds an output tensor; name is copied, data must live until the probe's end (probe_alloc). */
void probe_add(struct probe *probe, const char *name, enum s2s_dtype dtype, int n_dims,
               const int64_t *shape, const void *data);

/* The family of probe->model. UNSUPPORTED: a model that probe cannot run. */
int probe_choose_family(struct probe *probe, struct s2s_error *err);

/* The object `optimizer` of an expected.json: options, and the learning rate of each step. */
struct probe_optimizer {
    struct s2s_adamw_options options;
    double *lr; /* [n_lr]; the last one also serves the steps after it */
    size_t n_lr;
};

static inline double probe_lr(const struct probe_optimizer *o, int step)
{
    return o->n_lr == 0 ? 0 : o->lr[(size_t)step < o->n_lr ? (size_t)step : o->n_lr - 1];
}

/* What the command line says, beside what is in struct probe; all borrowed. */
struct probe_options {
    const struct s2s_common *common;
    const char *model, *inputs, *out;
    const char *mesh; /* "tp=2,cp=2": keys of a recipe's mesh */
    bool grads;
    int steps;
    enum s2s_dtype dtype;
};

/*
 * The same numbers of a mesh, by the trainer's own step (probe_mesh.c): loss, norm of the
 * gradients, and gradients and parameters gathered over the ranks, without activations. Utterances
 * go to the ranks of dp in turn; with stages of a pipeline each is a microbatch, else those of a
 * rank are one. Ranks that hold copies which differ are a failure. Opens probe->model, which the
 * caller does not own, for the call. Collective over the launch; rank 0 writes.
 */
int probe_mesh(struct probe *probe, const struct probe_options *options,
               const struct probe_optimizer *optimizer, struct s2s_error *err);

int train_probe(int argc, char **argv, struct s2s_error *err);

#endif
