/*
 * The optimizer: AdamW with decoupled decay over the flat buffers of a parameter registry, and the
 * global norm. State is kept for the slices of these buffers that this rank updates, one after the
 * other. A border may go through a parameter, and a parameter may be in several slices.
 */
#ifndef S2S_OPTIM_H
#define S2S_OPTIM_H

#include <stddef.h>
#include <stdint.h>

#include "lib/optim/schedule.h"
#include "lib/tensor/param.h"

struct s2s_conf;
struct s2s_error;

struct s2s_adamw_options {
    double lr, beta1, beta2, eps, weight_decay;
    double clip_norm; /* 0: no clipping */
    double ema_decay; /* of a moving average of the values; 0: there is none */
};

#define S2S_ADAMW_OPTIONS_DEFAULT \
    { \
        1e-3, 0.9, 0.95, 1e-8, 0, 0, 0 \
    }

/* The section `optimizer` of a recipe (may be NULL); RANGE names what is out of range. */
int s2s_adamw_read(struct s2s_adamw_options *options, const struct s2s_conf *conf,
                   struct s2s_error *err);

/* Elements [begin, end) of the flat buffers. */
struct s2s_optim_slice {
    int64_t begin, end;
    int64_t at;     /* of its first moment; set by s2s_optim_new_slices, as the rest */
    int64_t stored; /* of its first value and gradient in params->master and grads */
    int64_t first_range, n_ranges;
};

struct s2s_optim {
    struct s2s_params *params; /* kept */
    struct s2s_adamw_options options;
    struct s2s_optim_slice *slices; /* [n_slices], by begin */
    size_t n_slices;
    bool divided;  /* ranks that have other tokens update the rest; the caller's to set */
    int64_t numel; /* of all slices */
    float *m, *v;  /* [numel], device memory */
    float *ema;    /* [numel] of the values, F32 as the masters; NULL: not kept */
    int64_t t;     /* steps taken */
    struct s2s_adamw_range *ranges;      /* [n_ranges] slice by slice, device memory */
    struct s2s_optim_range *host_ranges; /* [n_ranges] */
    int64_t n_ranges;
    double *sums; /* [S2S_CLASSES], device memory */
};

/* After s2s_params_finish, for the elements [begin, end) of params->n_trained. NOMEM: no room for
 * the moments. Gives: s2s_optim_free. */
int s2s_optim_new(struct s2s_optim **optim, struct s2s_params *params,
                  const struct s2s_adamw_options *options, int64_t begin, int64_t end,
                  struct s2s_error *err);
/* Rising order of slices, for qsort. */
int s2s_optim_slice_order(const void *x, const void *y);
/* The same for n slices (begin and end count), which do not overlap, in rising order. */
int s2s_optim_new_slices(struct s2s_optim **optim, struct s2s_params *params,
                         const struct s2s_adamw_options *options,
                         const struct s2s_optim_slice *slices, size_t n, struct s2s_error *err);
void s2s_optim_free(struct s2s_optim *optim); /* NULL is a no-op */

/*
 * Sums of the squares of the gradients in the slices, a class each, into device memory
 * out [S2S_CLASSES], in a fixed order; does not wait. The norm over several ranks is the root of
 * their sum: REPLICATED and SP_SUM (once its gradients are summed) are the same on all ranks of tp,
 * CUT and EXPERT are each rank's own; COPY is counted by another stage.
 */
void s2s_optim_sumsq(struct s2s_optim *optim, double *out);
/* L2 norm of the gradients in the slices; NaN or Inf if one is. Waits. */
double s2s_optim_grad_norm(struct s2s_optim *optim);

/* min(1, clip_norm / (norm + 1e-6)), 1 without clipping. */
double s2s_optim_clip_factor(const struct s2s_optim *optim, double norm);

/* Parameters whose schedule ends at a rate of their own (min_lr) learn at what it is at count,
 * until the next call; before a first one at 0. Others learn at the rate that a step is given. */
void s2s_optim_follow(struct s2s_optim *optim, const struct s2s_schedule *schedule, double count);
/* One step: gradients times grad_scale; parameters that s2s_param_decays decay; a parameter's own
 * multipliers count. */
void s2s_optim_step(struct s2s_optim *optim, double lr, double weight_decay, double grad_scale);
/* The same slice by slice, in any order: begin, then each once. */
void s2s_optim_begin(struct s2s_optim *optim);
void s2s_optim_update(struct s2s_optim *optim, size_t slice, double lr, double weight_decay,
                      double grad_scale);

/*
 * The elements of a parameter, of its local tensor, whose moments are here, piece by piece:
 * [*begin, *end) becomes the first piece at or after *end. false: there is none.
 *
 *     for (int64_t begin, end = 0; s2s_optim_next(optim, param, &begin, &end);)
 */
bool s2s_optim_next(const struct s2s_optim *optim, const struct s2s_param *param, int64_t *begin,
                    int64_t *end);
/* How many there are of each element: m, v, and the average of the values where it is kept. */
int s2s_optim_n_moments(const struct s2s_optim *optim);
/* The average begins at the values as they are now. Nothing where none is kept. */
void s2s_optim_begin_ema(struct s2s_optim *optim);
/* Their moments, out of and into host memory of the whole local tensor [numel]; other elements are
 * left alone. which: 0 m, 1 v, 2 the average. */
void s2s_optim_get(const struct s2s_optim *optim, const struct s2s_param *param, int which,
                   float *local);
/* One of those pieces alone, the one that begins there, into out, in the order of the device's
 * queue: it is there once the device was waited for. */
void s2s_optim_get_piece(const struct s2s_optim *optim, const struct s2s_param *param, int which,
                         int64_t begin, float *out);
void s2s_optim_set(struct s2s_optim *optim, const struct s2s_param *param, int which,
                   const float *local);

#endif
