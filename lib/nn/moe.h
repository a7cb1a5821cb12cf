/*
 * A mixture of experts: a router sends each row to a few of many MLPs, and what these make of it is
 * added up by the router's weights; experts that all rows go to, the shared ones, are one MLP more.
 *
 *     y = sum over the chosen of w_e down_e(act(gate_e(x)) * up_e(x))  + shared(x)
 *
 * Latent experts work on a narrower fc1(x), and fc2 widens what they sum to; the router and the
 * shared ones see x itself.
 *
 * Ranks of ep have experts of their own, and send each other rows; ranks of etp have columns and
 * rows of each expert. etp is tp, or 1: then a rank of tp with a part of the tokens (sp) routes
 * these alone, as Megatron does.
 */
#ifndef S2S_NN_MOE_H
#define S2S_NN_MOE_H

#include "lib/nn/decoder.h"

struct s2s_nn_moe {
    struct s2s_router router;
    struct s2s_param *gate;                   /* of the router */
    struct s2s_param *bias;                   /* of its choice; NULL: none */
    struct s2s_param *w_gate, *w_up, *w_down; /* first of the stacks of this rank; w_gate NULL: up
                                                 alone */
    struct s2s_nn_linear narrow, widen;       /* of latent experts; w NULL: none */
    struct s2s_nn_mlp shared;                 /* up.w NULL: none */
    enum s2s_act act;
    const struct s2s_par *par;
};

/* Names of the parameters, below the layer's place. */
struct s2s_nn_moe_names {
    const char *gate, *bias;                           /* "gate.weight"; bias NULL: none */
    const char *experts;                               /* "experts" */
    const char *expert_gate, *expert_up, *expert_down; /* "gate_proj"; gate NULL: none */
    const char *shared, *narrow, *widen; /* "shared_experts", "fc1_latent_proj"; may be NULL where
                                            there are none */
};

struct s2s_nn_moe_options {
    struct s2s_router router;
    int64_t width, inner;
    int64_t latent;       /* width of the experts; 0: it is width */
    int64_t shared_inner; /* 0: no shared expert, which is a plain MLP */
    bool bias;            /* of the maps to and from the latent width, and of the shared expert */
    enum s2s_act act;
    const struct s2s_nn_moe_names *names;
};

/* Whether ranks can share so many experts: 0, or RANGE without a place. */
int s2s_nn_moe_check(const struct s2s_nn_moe_options *options, const struct s2s_par *par,
                     struct s2s_error *err);
void s2s_nn_moe_init(struct s2s_nn_moe *layer, const struct s2s_nn_ctx *ctx,
                     const struct s2s_nn_moe_options *options);
/* What is asked of the load of a batch. */
struct s2s_nn_load {
    struct s2s_balance balance; /* losses; factors of 0: none */
    struct s2s_loads *loads;    /* where counts add up over a step, or NULL */
    struct s2s_tensor *routed;  /* I32 [rows that are routed]: a negative one does not count */
};

/* x outside of the regions of tp. load: may be NULL. */
struct s2s_tensor *s2s_nn_moe(struct s2s_tape *tape, const struct s2s_nn_moe *layer,
                              const struct s2s_nn_tp *tp, struct s2s_tensor *x,
                              const struct s2s_nn_load *load);

#endif
