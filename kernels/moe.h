/* Arguments of mixtures of experts: which experts a row goes to, and how evenly they are loaded. */
#ifndef S2S_KERNELS_MOE_H
#define S2S_KERNELS_MOE_H

#include "kernels/types.h"

enum { S2S_MAX_EXPERTS = 1024 }; /* a row of scores fits a kernel's own memory */

/* s of the logits l of a row: softmax(l), or each 1 / (1 + exp(-l)). */
enum s2s_score { S2S_SCORE_SOFTMAX, S2S_SCORE_SIGMOID };

/*
 * The experts of each row. Those are chosen whose s + bias are largest, of equals the first. With
 * groups, of n_experts / n_groups neighbours each, only experts of the n_chosen_groups best groups
 * can be: the score of a group is the sum of its n_group_best largest s + bias. The weight of a
 * chosen expert is scale s, or normalised scale s / (sum over the chosen of s + 1e-20): the bias
 * chooses, nothing more. Source: TopKRouter of Megatron-LM, and transformers' NemotronH.
 */
struct s2s_k_route {
    struct s2s_mat logits; /* [n, n_experts] */
    const float *bias;     /* [n_experts], or NULL */
    int32_t *experts;      /* out [n, n_chosen], the largest first */
    float *weights;        /* out [n, n_chosen] */
    int64_t n, n_experts, n_chosen;
    int64_t n_groups, n_chosen_groups, n_group_best; /* n_groups 0: no groups */
    enum s2s_score score;
    bool normalise;
    float scale;
};

/* dlogits (+)= what the weights of the chosen experts say; nothing flows through the choice. */
struct s2s_k_route_backward {
    struct s2s_k_route forward; /* experts as they were chosen; weights and bias are not read */
    const float *dweights;      /* [n, n_chosen] */
    struct s2s_mat dlogits;
    bool accumulate;
};

/*
 * n choices sorted by expert, those of one expert in the order they have: choice i, of row
 * i / n_chosen, becomes row places[i] of what is sorted; expert e has rows offsets[e] ..
 * offsets[e+1] of it, maybe none.
 */
struct s2s_k_expert_order {
    const int32_t *experts; /* [n], below n_experts */
    int32_t *places;        /* out [n] */
    int32_t *rows;          /* out [n]: the row that each place takes, not below 0 */
    int32_t *offsets;       /* out [n_experts + 1] */
    int64_t n, n_experts, n_chosen;
    void *workspace; /* expert_order_workspace bytes */
};

/*
 * What balances the load (Megatron's auxiliary losses): p = s / (sum over all experts of s + 1e-20)
 * and, of each row, its n_chosen largest p, of equals the first. segments says which rows belong
 * together, as the tokens of a sequence.
 */
struct s2s_k_router_load {
    struct s2s_mat logits;   /* [n, n_experts] */
    const int32_t *segments; /* [n], below n_segments; negative: the row does not count; NULL: 0 */
    float *counts;           /* out [n_segments, n_experts]: how many rows chose it */
    float *probs;            /* out [n_segments, n_experts]: sums of p over rows */
    float *totals;           /* out [2]: the sum of (log sum exp l)^2, and the number of rows */
    int64_t n, n_experts, n_chosen, n_segments;
    enum s2s_score score;
    void *workspace; /* router_load_workspace bytes */
};

/*
 * Losses as sums over rows. Of counts, with n_s the rows of a segment, which is the sum of its
 * counts / n_chosen, S the segments that have rows, and n the sum of n_s:
 *   factors[s, e] = n n_experts counts[s, e] / (n_chosen n_s^2 S)     (0 without rows)
 *   losses[0] += sum over s and e of factors[s, e] probs[s, e]        (n is perfectly even)
 *   losses[1] += totals[0],  losses[2] += totals[1]
 * A rank whose probs and totals are a part, with counts summed over all ranks, has its part of each
 * loss.
 */
struct s2s_k_router_balance {
    const float *counts, *probs, *totals;
    float *factors; /* out [n_segments, n_experts] */
    double *losses; /* [3], added to; NULL: not wanted */
    int64_t n_experts, n_chosen, n_segments;
    float n_rows; /* what stands for n_s, as where padding is masked in Megatron; 0: its own */
};

/* counts[e] += how many of the choices are expert e, of rows that count. */
struct s2s_k_expert_counts {
    const int32_t *experts;  /* [n, n_chosen], below n_experts */
    const int32_t *segments; /* [n]; negative: the row does not count; NULL: all do */
    float *counts;           /* [n_experts], whole numbers */
    int64_t n, n_chosen, n_experts;
};

/*
 * Moves the biases of a choice towards an even load: bias[e] += rate where counts[e] is below the
 * mean, -= rate where it is above. Source: DeepSeek-AI 2024, and get_updated_expert_bias of
 * Megatron-LM.
 */
struct s2s_k_router_bias {
    const float *counts; /* [n_experts] */
    float *bias;         /* [n_experts] */
    int64_t n_experts;
    float rate;
};

/* dlogits (+)= the gradient of balance_scale losses[0] + square_scale losses[1], counts held. */
struct s2s_k_router_balance_backward {
    struct s2s_k_router_load forward; /* logits and segments, as they were; no outputs */
    const float *factors;
    float balance_scale, square_scale;
    struct s2s_mat dlogits;
    bool accumulate;
};

#endif
