/*
 * Rotary positions as config.json says them (transformers' modeling_rope_utils): default, linear,
 * llama3, yarn, dynamic and longrope; all of each head, or its first components.
 */
#ifndef S2S_MODEL_ROPE_H
#define S2S_MODEL_ROPE_H

#include "lib/model/model.h"

struct model_rope {
    int64_t dim;      /* components of a head that are rotated, from the first on */
    double *inv_freq; /* [dim / 2] */
    double factor;    /* of what is rotated (yarn, longrope) */
    /* Sequences of more than `limit` tokens have frequencies of their own: by their length
     * (dynamic), or these. 0: none have. */
    int64_t limit;
    double *long_freq; /* [dim / 2]; NULL for dynamic */
    double theta, stretch;
};

/* What the class of transformers takes for keys that are absent. */
struct model_rope_defaults {
    double theta;
    int64_t max_position_embeddings;
    const char *family; /* for messages */
};

/*
 * rope_scaling where it is given, else rope_parameters, else rope_theta alone.
 * partial_rotary_factor rotates a part of each head, for every family. A rope_type or a key that is
 * not known is an error, which names what is. Gives: model_rope_release.
 */
int model_read_rope(struct model_rope *rope, const struct s2s_conf *conf, int64_t head_dim,
                    const struct model_rope_defaults *defaults, struct s2s_error *err);
void model_rope_release(struct model_rope *rope);

/*
 * The table [n_rows, dim] of a batch's positions; rows behind its slots are those of position 0. In
 * transformers frequencies follow from the longest sequence of a batch, so that neighbours change
 * what a sequence is; here each has its own, which is the same for a batch of one.
 */
struct s2s_tensor *model_rope_table(const struct s2s_pass *pass, const struct model_rope *rope,
                                    int64_t n_rows);

#endif
