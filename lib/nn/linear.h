/*
 * How layers add parameters, and the linear map, which is all that tensor parallelism has to know
 * of most layers: it says how its weights are cut, nothing more.
 */
#ifndef S2S_NN_LINEAR_H
#define S2S_NN_LINEAR_H

#include "lib/tensor/ops.h"
#include "lib/tensor/param.h"

/* Where a layer adds its parameters: names are put together from the place and the layer's own
 * part. */
struct s2s_lora;

struct s2s_nn_ctx {
    struct s2s_params *params;
    const struct s2s_par *par;   /* kept */
    const char *place;           /* "llm.model.layers.3.self_attn", "" for none; borrowed */
    double init_std;             /* of the initial weights of matrices, whose biases are zero */
    const struct s2s_lora *lora; /* NULL, or which maps get an adapter */
    bool fan_in; /* instead: weights and biases uniform in 1/sqrt(inputs), as torch has them */
};

/* Adds "PLACE.name.part"; spec says all but the name. */
struct s2s_param *s2s_nn_add(const struct s2s_nn_ctx *ctx, const char *name, const char *part,
                             struct s2s_param_spec spec);

/* spec cut along this dimension over the ranks of par->tp, if there are several. */
struct s2s_param_spec s2s_nn_cut_along(struct s2s_param_spec spec, const struct s2s_nn_ctx *ctx,
                                       int dim);

/* Flags of a parameter that is used on what is outside of regions (below), so that with sp each
 * rank sees a part of the tokens. */
unsigned s2s_nn_outside(const struct s2s_par *par);

/*
 * Between s2s_nn_enter and s2s_nn_leave each rank of a group has columns of its own of an
 * activation. Outside all ranks have the same rows, or, with sp, each has a part of them: rows are
 * cut into equal parts, with rows behind the last where they do not divide.
 */
struct s2s_nn_tp {
    const struct s2s_group *group;
    bool sp;
    /* names of rows for dropout (struct s2s_dropout), inside and outside; NULL: none is left out */
    struct s2s_tensor *inside, *outside;
};
/* Rows that n tokens have inside. */
int64_t s2s_nn_rows(const struct s2s_nn_tp *tp, int64_t n);
struct s2s_tensor *s2s_nn_enter(struct s2s_tape *tape, const struct s2s_nn_tp *tp,
                                struct s2s_tensor *x);
/* y is a part of a sum over the ranks. */
struct s2s_tensor *s2s_nn_leave(struct s2s_tape *tape, const struct s2s_nn_tp *tp,
                                struct s2s_tensor *y);

/* Where a layer leaves elements out in training: the share of them, and what tells the place from
 * others. */
struct s2s_nn_dropout {
    float rate;
    uint64_t site;
};
struct s2s_nn_dropout s2s_nn_dropout_at(const struct s2s_nn_ctx *ctx, const char *name,
                                        double rate);
/* x of outside, or of inside, where this rank has columns of its own; nobody reads x afterwards. */
struct s2s_tensor *s2s_nn_drop(struct s2s_tape *tape, const struct s2s_nn_dropout *drop,
                               const struct s2s_nn_tp *tp, struct s2s_tensor *x);
struct s2s_tensor *s2s_nn_drop_inside(struct s2s_tape *tape, const struct s2s_nn_dropout *drop,
                                      const struct s2s_nn_tp *tp, struct s2s_tensor *x);

/*
 * How the ranks of par->tp share y = x w^T + b. COLUMN: each has some of the outputs (rows of w,
 * and of b). ROW: each has some of the inputs (columns of w); b is whole, and added to the sum: see
 * s2s_nn_linear_leave. One rank has everything in each case. OUTSIDE: whole, of what is outside of
 * regions.
 */
enum s2s_nn_cut { S2S_NN_WHOLE, S2S_NN_COLUMN, S2S_NN_ROW, S2S_NN_OUTSIDE };

/* y = x w^T + b; "PLACE.name.weight" [out, in] and, where asked, "PLACE.name.bias" [out]. With an
 * adapter (lib/nn/lora.h) y also has lora_scale (x lora_a^T) lora_b^T: ranks share lora_b where
 * they share the outputs, lora_a where they share the inputs. */
struct s2s_nn_linear {
    struct s2s_param *w, *b;
    struct s2s_param *lora_a, *lora_b; /* [rank, in], [out, rank]; NULL: none */
    float lora_scale;
    struct s2s_nn_dropout lora_dropout; /* of what lora_a sees of x */
};
void s2s_nn_linear_init(struct s2s_nn_linear *layer, const struct s2s_nn_ctx *ctx, const char *name,
                        int64_t out, int64_t in, bool bias, enum s2s_nn_cut cut);
/* Adds the adapter of a map whose parameters were added by other means, where ctx->lora wants one.
 */
void s2s_nn_linear_adapt(struct s2s_nn_linear *layer, const struct s2s_nn_ctx *ctx,
                         const char *name, enum s2s_nn_cut cut);
struct s2s_tensor *s2s_nn_linear(struct s2s_tape *tape, const struct s2s_nn_linear *layer,
                                 struct s2s_tensor *x);
/* Of an OUTSIDE map between regions. */
struct s2s_tensor *s2s_nn_linear_outside(struct s2s_tape *tape, const struct s2s_nn_linear *layer,
                                         const struct s2s_nn_tp *tp, struct s2s_tensor *x);
enum { S2S_NN_MAPS = 3 };
/* n of up to S2S_NN_MAPS COLUMN maps of x, which begins a region: out[i] of layers[i]. Discards an
 * x that was lent, as s2s_nn_linear_leave does. */
void s2s_nn_linear_enter(struct s2s_tape *tape, const struct s2s_nn_tp *tp, struct s2s_tensor *x,
                         int n, const struct s2s_nn_linear *const *layers, struct s2s_tensor **out);
/* Of a ROW map, which ends a region: y leaves it. */
struct s2s_tensor *s2s_nn_linear_leave(struct s2s_tape *tape, const struct s2s_nn_linear *layer,
                                       const struct s2s_nn_tp *tp, struct s2s_tensor *x);

#endif
