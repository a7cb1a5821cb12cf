/*
 * The stages of a pipeline: which blocks of the model a rank computes, and so which parameters it
 * has. Cuts are between the layers of the decoder. What comes before them (encoder, projection,
 * embeddings) is in the first stage, the final norm, the output layer and the loss in the last.
 */
#ifndef S2S_TRAIN_STAGES_H
#define S2S_TRAIN_STAGES_H

#include "lib/model/model.h"
#include "lib/train/schedule_pp.h"

struct s2s_error;

/* What a recipe says beside the number of ranks. */
struct s2s_stages_spec {
    int n_chunks;    /* of a rank */
    int64_t group;   /* of struct s2s_pipeline */
    int64_t *layers; /* [n_layers] layers of each stage, or NULL: evenly, the first ones one more */
    size_t n_layers;
};

#define S2S_STAGES_SPEC_INIT \
    { \
        .n_chunks = 1 \
    }

struct s2s_stages {
    struct s2s_pipeline pipeline; /* its microbatches are the step's to say */
    int rank, n_stages;
    int *bounds;   /* [n_stages + 1] blocks of the model: stage s computes bounds[s] to
                      bounds[s + 1] - 1 */
    bool *trained; /* [n_stages] whether anything is trained before the stage: then gradients of
                      what it takes go back */
    struct s2s_param *shared; /* that the first and the last stage both have; NULL: none here */
};

/*
 * Over a built model whose frozen parameters are known, before s2s_params_finish: parameters of
 * other stages become absent. RANGE for layers that cannot be dealt out so, UNSUPPORTED for a model
 * that is no decoder.
 */
int s2s_stages_init(struct s2s_stages *stages, struct s2s_model *model,
                    const struct s2s_stages_spec *spec, int n_ranks, int rank,
                    struct s2s_error *err);
void s2s_stages_release(struct s2s_stages *stages); /* also of ones that are zero */

/* Layers of the decoder in a stage. */
int s2s_stages_layers(const struct s2s_stages *stages, const struct s2s_model *model, int stage);
/* The pipeline of a step of n microbatches: with several chunks empty ones may have to follow. */
struct s2s_pipeline s2s_stages_pipeline(const struct s2s_stages *stages, int64_t n_microbatches);

#endif
