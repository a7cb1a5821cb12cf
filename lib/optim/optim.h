/*
 * The optimizer: AdamW with decoupled decay over the flat buffers of a parameter registry, and the
 * global norm. State stands in flat buffers of the same layout as the parameters, for the range
 * [begin, end) of elements that this rank updates; today that is all of them.
 */
#ifndef S2S_OPTIM_H
#define S2S_OPTIM_H

#include <stddef.h>
#include <stdint.h>

#include "lib/tensor/param.h"

struct s2s_conf;
struct s2s_error;

struct s2s_adamw_options {
    double lr, beta1, beta2, eps, weight_decay;
    double clip_norm; /* 0: no clipping */
};

#define S2S_ADAMW_OPTIONS_DEFAULT \
    { \
        1e-3, 0.9, 0.95, 1e-8, 0, 0 \
    }

/* The section `optimizer` of a recipe (may be NULL); RANGE names what is out of range. */
int s2s_adamw_read(struct s2s_adamw_options *options, const struct s2s_conf *conf,
                   struct s2s_error *err);

struct s2s_optim {
    struct s2s_params *params; /* kept */
    struct s2s_adamw_options options;
    int64_t begin, end; /* of the flat buffer */
    float *m, *v;       /* [end - begin], device memory */
    int64_t t;          /* steps taken */
    struct optim_run *runs;
    size_t n_runs;
    double *scalar; /* device memory: a sum */
};

/* After s2s_params_finish. Gives: s2s_optim_free. */
struct s2s_optim *s2s_optim_new(struct s2s_params *params, const struct s2s_adamw_options *options);
void s2s_optim_free(struct s2s_optim *optim); /* NULL is a no-op */

/* L2 norm of all gradients, each parameter once, in a fixed order; NaN or Inf if one is. */
double s2s_optim_grad_norm(struct s2s_optim *optim);

/* min(1, clip_norm / (norm + 1e-6)), 1 without clipping. */
double s2s_optim_clip_factor(const struct s2s_optim *optim, double norm);

/* One step: gradients times grad_scale; parameters that s2s_param_decays decay. */
void s2s_optim_step(struct s2s_optim *optim, double lr, double weight_decay, double grad_scale);

/* The moments of one parameter, host memory [numel], and back. which: 0 m, 1 v. */
void s2s_optim_get(const struct s2s_optim *optim, const struct s2s_param *param, int which,
                   float *out);
void s2s_optim_set(struct s2s_optim *optim, const struct s2s_param *param, int which,
                   const float *in);

#endif
