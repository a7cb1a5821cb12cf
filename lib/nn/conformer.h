/*
 * The layer of Conformer encoders and adapters over packed clips, with relative positions in
 * attention or without. Names are those of Hugging Face's ParakeetEncoder. Initial values are
 * uniform in 1/sqrt(fan in), as NeMo's and torch's.
 */
#ifndef S2S_NN_CONFORMER_H
#define S2S_NN_CONFORMER_H

#include "lib/nn/filters.h"
#include "lib/nn/layernorm.h"

/* running = (1 - momentum) running + momentum * that of the batch */
#define S2S_NN_BATCH_MOMENTUM 0.1F

struct s2s_nn_conformer_options {
    int64_t width, inner, n_heads, kernel_size;
    int64_t shift; /* the convolution sees so many frames more before a frame, and fewer after */
    bool absolute; /* the layers do not see positions, which are added before them */
    struct s2s_param *u, *v; /* bias_u and bias_v of all layers; NULL: each has its own */
    bool attention_bias;     /* of attention and feed-forward */
    bool convolution_bias;
    bool layer_norm; /* in the place of batch norm; ranks of tp show each other their channels */
    /* shares that are left out: of what a part adds, inside of a feed-forward */
    double dropout, inner_dropout;
    double attention_dropout; /* of what queries see */
};

struct s2s_nn_conformer {
    struct s2s_nn_layernorm norm_ff1, norm_attention, norm_conv, norm_ff2, norm_out; /* eps 1e-5 */
    struct s2s_nn_linear ff1[2], ff2[2];
    struct s2s_nn_linear q, k, value, o, relative_k;
    struct s2s_param *u, *v; /* bias_u, bias_v [n_heads, dim]; NULL: positions are not seen here */
    int64_t n_heads, dim;    /* of this rank */
    int64_t shift;
    struct s2s_nn_filters point1, depth, point2;
    struct s2s_param *bn_gain, *bn_bias, *bn_mean, *bn_var;
    struct s2s_nn_dropout probabilities;
    struct s2s_nn_dropout inside_ff1, after_ff1, after_attention, after_conv, inside_ff2, after_ff2;
};
/* Adds bias_u and bias_v for layers to share: PLACE.self_attn of the first one has them. */
void s2s_nn_conformer_share(struct s2s_nn_conformer_options *options, const struct s2s_nn_ctx *ctx);
void s2s_nn_conformer_init(struct s2s_nn_conformer *layer, const struct s2s_nn_ctx *ctx,
                           const struct s2s_nn_conformer_options *options);

/* What the blocks of one batch share. */
struct s2s_nn_clips {
    struct s2s_nn_tp tp;          /* without sp: all ranks have all frames */
    struct s2s_seqs seqs;         /* frames of each clip */
    struct s2s_reach reach;       /* the frames of their clip that frames attend to */
    struct s2s_tensor *positions; /* s2s_op_relpos_table of the longest */
    struct s2s_tensor *places;    /* of absolute positions: the row of each frame in that table */
    struct s2s_spans spans;       /* of layers that do not see positions: what reach says, and a */
    int64_t window;               /* window (struct s2s_attention_shape) */
    bool batch_stats;             /* batch norm by this batch's statistics */
    /* statistics count padding, as a padded batch has it: slots of the padded batch [n_clips * P]
     * with the packed row or -1, and the place of each packed row; NULL: no padding */
    struct s2s_tensor *to_padded, *from_padded;
    struct s2s_seqs padded;
};
/* Fills in spans and window by seqs and reach; cu (host) are the clips' bounds. */
void s2s_nn_clips_span(struct s2s_tape *tape, struct s2s_nn_clips *clips, const int32_t *cu);
/* Fills in the padded layout of clips of cu_frames (host) for P frames each. */
void s2s_nn_clips_pad(struct s2s_tape *tape, struct s2s_nn_clips *clips, const int32_t *cu_frames,
                      int64_t padded_frames);

/* Outputs of the parts before residual and factor; NULL where not asked. */
struct s2s_nn_conformer_parts {
    struct s2s_tensor *ff1, *attention, *conv, *ff2;
};
struct s2s_tensor *s2s_nn_conformer(struct s2s_tape *tape, const struct s2s_nn_conformer *layer,
                                    struct s2s_tensor *h, const struct s2s_nn_clips *clips,
                                    struct s2s_nn_conformer_parts *parts);

#endif
