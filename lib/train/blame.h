/*
 * Whom a step is to be blamed on whose loss or gradient is no number, or far from what is usual:
 * where the first NaN or Inf is, and which samples of which records have it, or lift the loss most.
 * The passes of the step are run once more to find out, so that steps without trouble pay nothing.
 *
 * Every rank gets the same answer, and one process would have given it, too.
 */
#ifndef S2S_TRAIN_BLAME_H
#define S2S_TRAIN_BLAME_H

#include "lib/train/flow.h"
#include "lib/train/layout.h"

struct s2s_buf;

enum s2s_trouble {
    S2S_TROUBLE_NONE,
    S2S_TROUBLE_NAN,   /* loss or gradient norm are NaN or Inf */
    S2S_TROUBLE_SPIKE, /* they are far above what is usual (lib/train/usual.h) */
};

enum { S2S_SUSPECTS = 8 };

struct s2s_suspect {
    char id[128], place[256]; /* s2s_pack_name, cut off where it is longer */
    double loss;              /* sum over its labels */
    int64_t n_labels;
    double rank;   /* the higher the more suspect; INFINITY: its loss or gradient is no number */
    int64_t order; /* among the samples of the step */
};

struct s2s_blame {
    enum s2s_trouble trouble;
    char where[400]; /* of the first NaN or Inf, in words; "" where there is none */
    bool poisoned;   /* it is a parameter: no other data helps */
    struct s2s_suspect list[S2S_SUSPECTS]; /* [n], the most suspect first */
    int n;
    int64_t n_bad; /* samples that have the NaN or Inf; 0: those listed lift the loss most */
};

/* What happened: a step as it was run. All borrowed for the call. */
struct s2s_blame_step {
    const struct s2s_layout *layout;
    struct s2s_comm *world;
    struct s2s_flow *flow;
    const struct s2s_flow_options *passes; /* the packs and all that changes what comes out */
    double loss;                           /* mean of the step, maybe NaN */
    enum s2s_trouble trouble;
    /* Runs forward and backward of other packs in the place of the step's (as many): whether a
     * gradient on any rank holds a NaN or Inf. Collective, ctx is passed on. */
    bool (*fails)(void *ctx, struct s2s_pack *const *packs);
    void *ctx;
};

/* Collective over the launch. With NAN gradients are lost; a SPIKE leaves all as it is. */
void s2s_blame_find(struct s2s_blame *blame, const struct s2s_blame_step *step);
/* "the first NaN or Inf is in ..; loss of a (train.s2s: record 3) ..": what was found. */
void s2s_blame_say(struct s2s_buf *to, const struct s2s_blame *blame);

#endif
