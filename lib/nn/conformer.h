/*
 * Layers of FastConformer encoders over packed clips, written once, forward only: subsampling of
 * log-mel images and the Conformer block with relative positions. Names are those of Hugging Face's
 * ParakeetEncoder. Initial values are uniform in 1/sqrt(fan in), as NeMo's and torch's.
 */
#ifndef S2S_NN_CONFORMER_H
#define S2S_NN_CONFORMER_H

#include "lib/nn/layernorm.h"

enum { S2S_NN_MAX_STAGES = 8 };

/* running = (1 - momentum) running + momentum * that of the batch */
#define S2S_NN_BATCH_MOMENTUM 0.1F

/*
 * log2(factor) convolutions of stride 2 (the later ones depthwise with a pointwise one behind, or
 * `full`: all channels see all), ReLU after each, then a linear map of [channels, mels / factor] to
 * the width; causal ones see nothing of what follows, and make n / 2 + 1 rows and columns of n. Or,
 * stacking: `factor` frames side by side, zeros behind a clip's last one, each normed where it is
 * asked for; then the linear map.
 */
struct s2s_nn_subsampling {
    int n_stages;
    bool causal, full;
    int64_t n_mels, channels;
    struct s2s_param *conv_w[S2S_NN_MAX_STAGES], *conv_b[S2S_NN_MAX_STAGES];   /* stride 2 */
    struct s2s_param *point_w[S2S_NN_MAX_STAGES], *point_b[S2S_NN_MAX_STAGES]; /* from stage 1 */
    struct s2s_nn_linear linear;
    int64_t stacked;              /* frames side by side; 0: convolutions */
    struct s2s_nn_layernorm norm; /* gain NULL: none */
};
void s2s_nn_stacking_init(struct s2s_nn_subsampling *layer, const struct s2s_nn_ctx *ctx,
                          int64_t factor, int64_t n_mels, int64_t width, bool norm);
/* how: n_stages, causal, full, n_mels, channels */
void s2s_nn_subsampling_init(struct s2s_nn_subsampling *layer, const struct s2s_nn_ctx *ctx,
                             const struct s2s_nn_subsampling *how, int64_t width);
/* Frames that n mel frames become. */
int64_t s2s_nn_subsampling_frames(const struct s2s_nn_subsampling *layer, int64_t n_mel);
/* mel [sum of mel frames, n_mels, 1] of the clips bounded by cu_mel (host [n_clips + 1]) -> [sum of
 * frames, width]. */
struct s2s_tensor *s2s_nn_subsampling(struct s2s_tape *tape, const struct s2s_nn_subsampling *layer,
                                      struct s2s_tensor *mel, const int64_t *cu_mel,
                                      int64_t n_clips);

struct s2s_nn_conformer_options {
    int64_t width, inner, n_heads, kernel_size;
    int64_t shift; /* the convolution sees so many frames more before a frame, and fewer after */
    bool absolute; /* the layers do not see positions, which are added before them */
    bool attention_bias; /* of attention and feed-forward */
    bool convolution_bias;
    bool layer_norm; /* in the place of batch norm; of whole channels: ranks of tp do not cut it */
    /* shares that are left out: of what a part adds, inside of a feed-forward */
    double dropout, inner_dropout;
    double attention_dropout; /* of what queries see */
};

struct s2s_nn_conformer {
    struct s2s_nn_layernorm norm_ff1, norm_attention, norm_conv, norm_ff2, norm_out; /* eps 1e-5 */
    struct s2s_nn_linear ff1[2], ff2[2];
    struct s2s_nn_linear q, k, value, o, relative_k;
    struct s2s_param *u, *v; /* bias_u, bias_v [n_heads, dim]; NULL: positions are not seen here */
    int64_t shift;
    struct s2s_param *point1_w, *point1_b, *depth_w, *depth_b, *point2_w, *point2_b;
    struct s2s_param *bn_gain, *bn_bias, *bn_mean, *bn_var;
    struct s2s_nn_dropout probabilities;
    struct s2s_nn_dropout inside_ff1, after_ff1, after_attention, after_conv, inside_ff2, after_ff2;
};
void s2s_nn_conformer_init(struct s2s_nn_conformer *layer, const struct s2s_nn_ctx *ctx,
                           const struct s2s_nn_conformer_options *options);

/* What the blocks of one batch share. */
struct s2s_nn_clips {
    struct s2s_nn_tp tp;                       /* without sp: all ranks have all frames */
    struct s2s_seqs seqs;                      /* frames of each clip */
    struct s2s_reach reach;                    /* the frames of their clip that frames attend to */
    struct s2s_tensor *positions;              /* s2s_op_relpos_table of the longest */
    struct s2s_tensor *no_positions, *no_bias; /* zeros for layers that see none: p, u and v */
    bool batch_stats;                          /* batch norm by this batch's statistics */
    /* statistics count padding, as a padded batch has it: slots of the padded batch [n_clips * P]
     * with the packed row or -1, and the place of each packed row; NULL: no padding */
    struct s2s_tensor *to_padded, *from_padded;
    struct s2s_seqs padded;
};
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
