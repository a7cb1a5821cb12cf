/*
 * The registry of parameters: a model's build function adds them, everything else reads them here
 * (initial values, optimizer groups, reduction of gradients, checkpoints, export). Values and
 * gradients are flat fp32 buffers; a parameter is a range of them.
 */
#ifndef S2S_TENSOR_PARAM_H
#define S2S_TENSOR_PARAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/tensor/par.h"
#include "lib/tensor/tensor.h"

struct s2s_error;

enum s2s_param_flag {
    S2S_PARAM_NO_DECAY = 1, /* no weight decay whatever the shape says */
    S2S_PARAM_FROZEN = 2,   /* no gradient, not updated */
    S2S_PARAM_BUFFER =
        4, /* state that is saved with the model but no parameter (running statistics) */
    S2S_PARAM_EXPERT = 8,    /* one of a set of experts: its gradient is reduced over other ranks */
    S2S_PARAM_SP_SUM = 16,   /* used on a sequence shard: its gradient is summed over tp */
    S2S_PARAM_OPTIONAL = 32, /* a loader may find it absent and keep the initial value */
};

enum s2s_init_kind { S2S_INIT_ZERO, S2S_INIT_CONSTANT, S2S_INIT_NORMAL, S2S_INIT_UNIFORM };

/* Initial values: a function of seed, name and global index, the same on any mesh. */
struct s2s_init {
    enum s2s_init_kind kind;
    double value; /* the constant, the standard deviation, or the bound of [-value, value) */
};

/* What a layer says about a parameter. */
struct s2s_param_spec {
    const char *name; /* as the checkpoint has it, with the composite's prefix; copied */
    int n_dims;
    int64_t shape[S2S_TENSOR_DIMS]; /* global */
    enum s2s_axis cut_axis; /* with a cut_group: equal parts along cut_dim; of experts, etp is TP */
    int cut_dim;
    const struct s2s_group *cut_group; /* the axis' group; NULL: not cut */
    unsigned flags;
    struct s2s_init init;
};

struct s2s_param {
    char *name;
    int n_dims;
    int64_t shape[S2S_TENSOR_DIMS]; /* global */
    int64_t local[S2S_TENSOR_DIMS]; /* of this rank */
    enum s2s_axis cut_axis;
    int cut_dim;
    int64_t cut_begin; /* first index of this rank along cut_dim */
    unsigned flags;
    struct s2s_init init;
    int64_t numel;             /* local */
    int64_t offset;            /* first element in `trained` or `fixed` */
    bool trained;              /* has a gradient and optimizer state */
    struct s2s_tensor *tensor; /* its value; tensor->grad is its slice of the gradient buffer */
};

/*
 * All parameters of a model. Trained ones stand in one flat buffer in the order they were added,
 * fixed ones (frozen, buffers) in another. Each starts at a multiple of 16 elements; the gaps hold
 * zeros, in gradients too, so flat operations may run over them.
 */
struct s2s_params {
    struct s2s_device *device;
    struct s2s_param **list;
    size_t n, cap;
    bool finished;
    float *values; /* [n_trained], device memory */
    float *grads;  /* [n_trained] */
    float *fixed;  /* [n_fixed] */
    int64_t n_trained, n_fixed;
};

/* Gives: s2s_params_free. */
struct s2s_params *s2s_params_new(struct s2s_device *device);
void s2s_params_free(struct s2s_params *params); /* NULL is a no-op */

/* Adds one; a name twice is our bug. Lent until s2s_params_free. */
struct s2s_param *s2s_params_add(struct s2s_params *params, const struct s2s_param_spec *spec);
/* Freezes everything whose name starts with prefix; before s2s_params_finish. */
void s2s_params_freeze(struct s2s_params *params, const char *prefix);
/* Lays out and allocates the buffers; then values and gradients exist (gradients zero, values
 * not set). Fails where the machine has no room for them. */
int s2s_params_finish(struct s2s_params *params, struct s2s_error *err);

struct s2s_param *s2s_params_find(const struct s2s_params *params, const char *name); /* or NULL */

/* Initial values of everything (names decide, not order). */
void s2s_params_init(struct s2s_params *params, uint64_t seed);
void s2s_param_init(struct s2s_param *param, uint64_t seed);

void s2s_params_zero_grads(struct s2s_params *params);

/* This rank's part from a whole tensor in host memory (row-major, any float dtype), and back: whole
 * [product of local] in F32. Gradients likewise. */
void s2s_param_set(struct s2s_param *param, const void *whole, enum s2s_dtype dtype);
void s2s_param_get(const struct s2s_param *param, float *local);
void s2s_param_get_grad(const struct s2s_param *param, float *local);

/* The first parameter whose gradient (or value) holds a NaN or Inf; NULL: none. */
struct s2s_param *s2s_params_find_nonfinite(const struct s2s_params *params, bool gradient);

/* Megatron's rule: weights of two or more dimensions that are no biases are decayed. */
bool s2s_param_decays(const struct s2s_param *param);

#endif
