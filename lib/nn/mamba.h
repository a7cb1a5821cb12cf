/*
 * The Mamba2 layer (Dao & Gu 2024) as Nemotron-H has it: a causal convolution, a state-space model
 * scanned along each sequence, a norm that is gated first.
 *
 *     z | x | B | C | dt = in_proj(u)
 *     x, B, C = silu(conv1d(x, B, C))
 *     y = out_proj(norm(scan(x, B, C, dt) * silu(z)))
 *
 * Ranks of tp have heads each, and the groups of B and C that these use: both numbers are multiples
 * of the ranks'. Ranks of cp, which have parts of every sequence, trade rows for heads between the
 * two maps, as Megatron does; where there are more ranks than groups, ranks next to each other use
 * the same one.
 */
#ifndef S2S_NN_MAMBA_H
#define S2S_NN_MAMBA_H

#include "lib/nn/linear.h"

struct s2s_nn_mamba_shape {
    int64_t n_heads, dim;    /* x and z are n_heads * dim wide */
    int64_t n_groups, state; /* B and C are n_groups * state wide; heads next to each other share a
                                group */
    int64_t kernel;          /* inputs that the convolution sees */
};

struct s2s_nn_mamba_options {
    struct s2s_nn_mamba_shape shape;
    int64_t width;
    bool bias, conv_bias; /* of in_proj and out_proj; of conv1d */
    double eps;
    double step_min;       /* steps are not below; 0: not clamped */
    double first_step_max; /* initial steps without input are between a hundredth of it and it */
    double out_init; /* out_proj is uniform in [-out_init, out_init); 0: as the other matrices */
};

struct s2s_nn_mamba {
    struct s2s_nn_linear in, out;
    struct s2s_param *conv_w, *conv_b, *a_log, *skip, *step_bias, *gain;
    struct s2s_nn_mamba_shape shape; /* of this rank */
    float eps, step_min;
};

/* What Mamba layers of one batch share. */
struct s2s_nn_mamba_batch {
    struct s2s_nn_tp tp;
    struct s2s_seqs seqs;          /* of the rows inside of regions; with a trade of all ranks' */
    const struct s2s_trade *trade; /* where sequences are cut over ranks, or NULL */
};

/* Whether ranks can share heads and groups so: 0, or RANGE without a place. */
int s2s_nn_mamba_check(const struct s2s_nn_mamba_shape *shape, const struct s2s_par *par,
                       struct s2s_error *err);
/* Adds in_proj, conv1d.weight, conv1d.bias, dt_bias, A_log, D, norm.weight, out_proj below the
 * place. */
void s2s_nn_mamba_init(struct s2s_nn_mamba *layer, const struct s2s_nn_ctx *ctx,
                       const struct s2s_nn_mamba_options *options);
/* memory: NULL, or device memory of the batch's sequences, zeros at first, which x goes on with:
 * the states of their heads, and behind each other the last inputs of the convolution. */
struct s2s_tensor *s2s_nn_mamba(struct s2s_tape *tape, const struct s2s_nn_mamba *layer,
                                struct s2s_tensor *x, const struct s2s_nn_mamba_batch *batch,
                                void *const memory[2]);
/* Of one sequence: part 0 the states, part 1 the last inputs. */
size_t s2s_nn_mamba_state_bytes(const struct s2s_nn_mamba *layer, int part);

#endif
