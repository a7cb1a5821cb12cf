/*
 * Layers of decoders, written once, forward only. Each is a struct of parameters made by its _init,
 * which adds them to a registry, and a function over the tape. struct s2s_par says how they are
 * cut; one process is the case where nothing is.
 */
#ifndef S2S_NN_DECODER_H
#define S2S_NN_DECODER_H

#include "lib/nn/linear.h"

/* RMS norm with gain "PLACE.name.weight" [size]; the gain in force is weight + offset. flags: of
 * the gain. */
struct s2s_nn_rmsnorm {
    struct s2s_param *gain;
    float eps, offset;
};
void s2s_nn_rmsnorm_init(struct s2s_nn_rmsnorm *layer, const struct s2s_nn_ctx *ctx,
                         const char *name, int64_t size, double eps, double offset, unsigned flags);
struct s2s_tensor *s2s_nn_rmsnorm(struct s2s_tape *tape, const struct s2s_nn_rmsnorm *layer,
                                  struct s2s_tensor *x);
/* *h += x, normed */
struct s2s_tensor *s2s_nn_add_rmsnorm(struct s2s_tape *tape, const struct s2s_nn_rmsnorm *layer,
                                      struct s2s_tensor **h, struct s2s_tensor *x);

/* What attention layers of one batch share. */
struct s2s_nn_batch {
    struct s2s_nn_tp tp;
    struct s2s_spans spans;         /* of the rows inside of regions: [T] below */
    const struct s2s_spans_cp *cp;  /* instead, where sequences are cut over ranks; or NULL */
    struct s2s_tensor *rope;        /* table [T, dim]; NULL: no positions */
    const struct s2s_nn_load *load; /* of mixtures of experts, or NULL */
    /* I32 [T]: in generation, the row of a cache for the keys and values of each row; NULL: they
     * are not kept */
    struct s2s_tensor *cache_rows;
};

/* Keys and values that one layer keeps of sequences that go on: device memory, [spans.n_k, width]
 * each. NULL: of none. */
struct s2s_kv_cache {
    void *keys, *values;
};

/*
 * Grouped-query attention: q_proj, k_proj, v_proj, o_proj, and q_norm, k_norm over each head. Ranks
 * of tp have heads each; where there are more ranks than key-value heads, ranks next to each other
 * that use the same one have equal parts of its rows, and exchange what these make of x.
 */
struct s2s_nn_attention {
    struct s2s_nn_linear q, k, v, o;
    struct s2s_nn_rmsnorm q_norm, k_norm;
    bool qk_norm;
    struct s2s_attention_shape shape; /* of this rank */
    int n_sharing;                    /* ranks that have a key-value head together */
};
struct s2s_nn_attention_options {
    int64_t width;
    bool qkv_bias, o_bias, qk_norm;
    double eps;     /* of q_norm, k_norm */
    double dropout; /* share of what queries see that is left out */
    struct s2s_attention_shape shape;
};
void s2s_nn_attention_init(struct s2s_nn_attention *layer, const struct s2s_nn_ctx *ctx,
                           const struct s2s_nn_attention_options *options);
/* With a cache x goes on with its sequences: the new keys and values are put into their rows. */
struct s2s_tensor *s2s_nn_attention(struct s2s_tape *tape, const struct s2s_nn_attention *layer,
                                    struct s2s_tensor *x, const struct s2s_nn_batch *batch,
                                    const struct s2s_kv_cache *cache);
/* Of keys, or of values, of one sequence of up to cap tokens. */
size_t s2s_kv_cache_bytes(const struct s2s_nn_attention *layer, int64_t cap);

/* down(act(gate(x)) * up(x)): gate_proj, up_proj, down_proj. A plain one has no gate:
 * down(act(up(x))). */
struct s2s_nn_mlp {
    struct s2s_nn_linear gate, up, down; /* gate.w NULL: none */
    enum s2s_act act;
};
void s2s_nn_mlp_init(struct s2s_nn_mlp *layer, const struct s2s_nn_ctx *ctx, int64_t width,
                     int64_t inner, enum s2s_act act, bool bias);
void s2s_nn_plain_mlp_init(struct s2s_nn_mlp *layer, const struct s2s_nn_ctx *ctx, int64_t width,
                           int64_t inner, enum s2s_act act, bool bias);
struct s2s_tensor *s2s_nn_mlp(struct s2s_tape *tape, const struct s2s_nn_mlp *layer,
                              const struct s2s_nn_tp *tp, struct s2s_tensor *x);

#endif
