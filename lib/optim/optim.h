/*
 * The optimizer: AdamW with decoupled decay over the flat buffers of a parameter registry, and the
 * global norm. State stands in flat buffers of the same layout as the parameters, for the range
 * [begin, end) of elements that this rank updates. A border may go through a parameter.
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
    int64_t begin, end;             /* of the flat buffers */
    float *m, *v;                   /* [end - begin], device memory */
    int64_t t;                      /* steps taken */
    struct s2s_adamw_range *ranges; /* [n_ranges] from begin on, device memory */
    int64_t n_ranges;
    double *sums; /* [S2S_CLASSES], device memory */
};

/* After s2s_params_finish, for the elements [begin, end) of params->n_trained. NOMEM: no room for
 * the moments. Gives: s2s_optim_free. */
int s2s_optim_new(struct s2s_optim **optim, struct s2s_params *params,
                  const struct s2s_adamw_options *options, int64_t begin, int64_t end,
                  struct s2s_error *err);
void s2s_optim_free(struct s2s_optim *optim); /* NULL is a no-op */

/*
 * Sums of the squares of the gradients in [begin, end), a class each, into device memory
 * out [S2S_CLASSES], in a fixed order; does not wait. The norm over several ranks is the root of
 * their sum: REPLICATED and SP_SUM (once its gradients are summed) are the same on all ranks of tp,
 * CUT and EXPERT are each rank's own; COPY is counted by another stage.
 */
void s2s_optim_sumsq(struct s2s_optim *optim, double *out);
/* L2 norm of the gradients in [begin, end); NaN or Inf if one is. Waits. */
double s2s_optim_grad_norm(struct s2s_optim *optim);

/* min(1, clip_norm / (norm + 1e-6)), 1 without clipping. */
double s2s_optim_clip_factor(const struct s2s_optim *optim, double norm);

/* One step: gradients times grad_scale; parameters that s2s_param_decays decay; a parameter's own
 * multipliers count. */
void s2s_optim_step(struct s2s_optim *optim, double lr, double weight_decay, double grad_scale);

/* The elements [*begin, *end) of a parameter, of its local tensor, whose moments are here. */
void s2s_optim_range(const struct s2s_optim *optim, const struct s2s_param *param, int64_t *begin,
                     int64_t *end);
/* Their moments, out of and into host memory of the whole local tensor [numel]; other elements are
 * left alone. which: 0 m, 1 v. */
void s2s_optim_get(const struct s2s_optim *optim, const struct s2s_param *param, int which,
                   float *local);
void s2s_optim_set(struct s2s_optim *optim, const struct s2s_param *param, int which,
                   const float *local);

#endif
