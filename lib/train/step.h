/*
 * A step of training: what it works on, and what came of it. lib/train/step.c reads from its end:
 *   validate -> count the labels -> actions -> finish reductions -> norm -> update -> publish
 */
#ifndef S2S_TRAIN_STEP_H
#define S2S_TRAIN_STEP_H

#include "lib/mesh/mesh.h"
#include "lib/model/model.h"
#include "lib/optim/optim.h"
#include "lib/tensor/loads.h"
#include "lib/tensor/running.h"
#include "lib/tensor/sums.h"
#include "lib/train/blame.h"
#include "lib/train/buckets.h"
#include "lib/train/feed.h"
#include "lib/train/flow.h"
#include "lib/train/layout.h"
#include "lib/train/usual.h"

struct s2s_error;

/* A model, and the ranks that train it together. */
struct s2s_side {
    struct s2s_mesh *mesh; /* kept, as what follows */
    const struct s2s_layout *layout;
    struct s2s_model *model;
    struct s2s_optim *optim;
    struct s2s_buckets *buckets;      /* of the gradients */
    struct s2s_flow flow;             /* the microbatches of a step, on their tapes */
    struct s2s_stages whole;          /* of a model that is no part of a pipeline */
    struct s2s_running *running;      /* NULL: batch norms use their running statistics */
    struct s2s_loads *loads;          /* of experts; NULL: nobody asks for them */
    float bias_rate;                  /* by which they move the biases of routers */
    struct s2s_sums *sums;            /* what a step reads back, at once */
    struct s2s_arena results;         /* device memory of the next */
    double *squares;                  /* [S2S_CLASSES] of the gradients */
    struct s2s_model_balance balance; /* of mixtures of experts; factors of 0: nothing is asked */
    enum s2s_recompute recompute;
};

struct s2s_side_options {
    const struct s2s_layout *layout;
    struct s2s_buckets *buckets;      /* taken; NULL: the default ones */
    const struct s2s_stages *stages;  /* of the model, on the layout's pp; NULL: all is here */
    struct s2s_model_balance balance; /* factors; losses and loads are the side's */
    double bias_rate; /* of the biases of routers' choices, after each step; 0: they stay */
    enum s2s_recompute recompute;
    bool batch_norm_batch;
};

/* Over a finished registry and its optimizer, all kept, as layout and stages: ends with
 * s2s_side_release. */
void s2s_side_init(struct s2s_side *side, struct s2s_mesh *mesh, struct s2s_model *model,
                   struct s2s_optim *optim, const struct s2s_side_options *options);
void s2s_side_release(struct s2s_side *side); /* also of one that is zero */

/* How the step that is the number-th of the run moves the parameters. */
struct s2s_step_options {
    int64_t number;
    double lr, weight_decay;
    const struct s2s_schedule *schedule; /* that lr is of, at count; NULL: no parameter follows it
                                            in another way */
    double count;
    enum s2s_answer on_nan;        /* S2S_STOP or S2S_SKIP */
    enum s2s_answer on_spike;      /* with usual */
    const struct s2s_usual *usual; /* NULL: there are no spikes */
};

struct s2s_step_result {
    double loss; /* mean over the labels of the global batch */
    double grad_norm, lr;
    bool balanced;          /* something was asked of mixtures of experts: */
    double balance, square; /* means over layers and tokens of the losses without their factors */
    int64_t samples, tokens, labels; /* of the global batch */
    int64_t peak_bytes;              /* of the rank that has most */
    struct s2s_blame blame;          /* trouble NONE: all is well; also after RANGE */
    enum s2s_answer answer;          /* to trouble; S2S_SKIP: the step changed nothing */
};

/*
 * One optimizer step on a global batch. Collective; failures are everybody's, and then nothing was
 * changed: what a batch cannot be (s2s_model_check, with its place), or RANGE, which says where the
 * first NaN or Inf is, and the samples. Whatever else fails takes the job down. The device is
 * waited for once; more often only where something is to be said of the step.
 */
int s2s_train_step(struct s2s_side *side, const struct s2s_feed_step *data,
                   const struct s2s_step_options *options, struct s2s_step_result *result,
                   struct s2s_error *err);

#endif
