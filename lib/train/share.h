/*
 * What one rank writes of a checkpoint's tensors: boxes of parameters and moments. Of boxes that
 * several ranks hold each writes some, by turns. A copy in host memory can be written by a thread
 * while training changes the tensors.
 */
#ifndef S2S_TRAIN_SHARE_H
#define S2S_TRAIN_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/optim/optim.h"
#include "lib/tensor/param.h"

struct s2s_dist_writer;
struct s2s_error;
struct s2s_share;

/* The groups this rank is in, [S2S_AXES] each; a NULL group is alone. */
struct s2s_save_axes {
    const struct s2s_group *const *dense, *const *experts; /* of S2S_PARAM_EXPERT, tp being etp */
};

/* A list of them; values are not looked at. params and optim (may be NULL: no moments) are kept.
 * Gives: s2s_share_free. */
struct s2s_share *s2s_share_new(const struct s2s_params *params, const struct s2s_optim *optim,
                                const struct s2s_save_axes *axes);
void s2s_share_free(struct s2s_share *share); /* NULL is a no-op */
/* Of all its elements, in F32. */
int64_t s2s_share_bytes(const struct s2s_share *share);

/* Room for the copy, once: NOMEM says how many bytes there are not. */
int s2s_share_reserve(struct s2s_share *share, struct s2s_error *err);
/* Copies all elements as they are now into that room, and waits for the device. */
int s2s_share_copy(struct s2s_share *share, struct s2s_error *err);
/* Into this rank's file: the copy (by any thread, which reads nothing else that training changes),
 * or else what the tensors hold now. The bytes are the same. */
int s2s_share_write(const struct s2s_share *share, struct s2s_dist_writer *writer, bool copied,
                    struct s2s_error *err);

/* For lib/train: host memory for this rank's elements of any parameter, and *room for as many.
 * Gives: free(*host), also after NOMEM. */
int train_alloc_host(float **host, float **room, const struct s2s_params *params,
                     struct s2s_error *err);

/* Names of the moments in a checkpoint, before ".<parameter>": m, v, the average of the values. */
extern const char *const train_moments[3];

#endif
