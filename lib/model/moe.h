/* What config.json says of the mixtures of experts of a decoder. */
#ifndef S2S_MODEL_MOE_H
#define S2S_MODEL_MOE_H

#include "lib/nn/moe.h"

struct s2s_conf;
struct s2s_pass;
struct s2s_error;

struct model_moe {
    struct s2s_nn_moe_options options; /* n_experts 0: no layer has experts */
    const char *place;                 /* of a layer's mixture: "mlp" */
    int64_t step;                      /* each step-th layer has one, the step-th first */
    const struct s2s_conf *dense;      /* but for these, a list of numbers, or NULL */
};

/* Decoders of transformers that have mixtures. */
enum model_moe_family { MODEL_MIXTRAL, MODEL_QWEN3_MOE, MODEL_NEMOTRON_H };

/*
 * Reads the keys of the family's class; width and act are the decoder's. UNSUPPORTED names a key
 * that would change what a router computes: one that is switched on and not implemented, or one
 * with a router's words in its name that is not known.
 */
int model_read_moe(struct model_moe *moe, enum model_moe_family family, const struct s2s_conf *conf,
                   int64_t width, enum s2s_act act, struct s2s_error *err);
/* What the pass asks of the load, over the n_rows rows inside of regions: in the memory of its
 * tape; NULL: nothing. Slots of padding do not count. */
const struct s2s_nn_load *model_load(const struct s2s_pass *pass, int64_t n_rows);
bool model_is_sparse(const struct model_moe *moe, int64_t layer);

#endif
