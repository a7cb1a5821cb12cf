/*
 * How frames of log-mel become fewer in front of an encoder: the ways that NeMo's ConformerEncoder
 * has. Names are those of Hugging Face's ParakeetEncoder, numbers of layers those of NeMo's list.
 */
#ifndef S2S_NN_SUBSAMPLING_H
#define S2S_NN_SUBSAMPLING_H

#include "lib/nn/filters.h"
#include "lib/nn/layernorm.h"

enum { S2S_NN_MAX_STAGES = 8 };

/*
 * A linear map follows all but the two of conv1d, whose last stage has the width.
 *   dw_striding, striding: stages of a 3x3 convolution of stride 2 over the image of frames and
 *       mels, with ReLU; from the second stage on dw_striding has one filter a channel, and a 1x1
 *       convolution behind it, where striding sees all channels
 *   vggnet: stages of two 3x3 convolutions with ReLU, and the largest of each square of 2
 *   striding_conv1d, dw_striding_conv1d: the mels are channels, convolutions are 5 frames wide, of
 *       stride 2, with ReLU; one filter a channel and a 1x1 convolution in the latter
 *   stacking, stacking_norm: `factor` frames side by side, zeros behind the last; each normed
 *   none: the linear map alone
 */
enum s2s_nn_subsampling_way {
    S2S_NN_DW_STRIDING,
    S2S_NN_STRIDING,
    S2S_NN_VGGNET,
    S2S_NN_STRIDING_CONV1D,
    S2S_NN_DW_STRIDING_CONV1D,
    S2S_NN_STACKING,
    S2S_NN_STACKING_NORM,
    S2S_NN_NO_SUBSAMPLING,
};
/* NeMo's names, "none" among them; NULL-ended, in the order of the ways. */
extern const char *const s2s_nn_subsampling_names[];
/* Of stages whose number is log2 of the factor. */
bool s2s_nn_subsampling_has_stages(enum s2s_nn_subsampling_way way);
/* Of which there are causal ones, that see nothing of what follows: n frames and mels become n / 2
 * + 1 in a stage. */
bool s2s_nn_subsampling_may_be_causal(enum s2s_nn_subsampling_way way);

struct s2s_nn_subsampling_options {
    enum s2s_nn_subsampling_way way;
    bool causal;
    int64_t factor, n_mels, channels, width;
};

struct s2s_nn_subsampling {
    struct s2s_nn_subsampling_options how;
    int n_stages;
    struct s2s_nn_filters first[S2S_NN_MAX_STAGES], second[S2S_NN_MAX_STAGES];
    struct s2s_nn_linear linear;
    struct s2s_nn_layernorm norm; /* gain NULL: none */
};
/* The factor of ways that have stages is a power of 2 up to 1 << S2S_NN_MAX_STAGES. */
void s2s_nn_subsampling_init(struct s2s_nn_subsampling *layer, const struct s2s_nn_ctx *ctx,
                             const struct s2s_nn_subsampling_options *how);
/* Frames that n mel frames become. */
int64_t s2s_nn_subsampling_frames(const struct s2s_nn_subsampling *layer, int64_t n_mel);
/* mel [sum of mel frames, n_mels, 1] of the clips bounded by cu_mel (host [n_clips + 1]) -> [sum of
 * frames, width]. */
struct s2s_tensor *s2s_nn_subsampling(struct s2s_tape *tape, const struct s2s_nn_subsampling *layer,
                                      struct s2s_tensor *mel, const int64_t *cu_mel,
                                      int64_t n_clips);

#endif
