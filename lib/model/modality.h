/*
 * What may stand between an encoder of sound and the projection: NeMo's modality adapters
 * (perception.modality_adapter of speechlm2), at the key modality_adapter of the encoder's
 * config.json. Its layers follow the encoder's own, and its width is the encoder's then.
 */
#ifndef S2S_MODEL_MODALITY_H
#define S2S_MODEL_MODALITY_H

#include "lib/model/conformer.h"

enum modality_kind { MODALITY_IDENTITY, MODALITY_LINEAR, MODALITY_CONFORMER };

/*
 * identity: x. linear: second(act(first(x))). conformer: NeMo's ConformerEncoder of
 * subsampling_factor 1: pre_encode, times sqrt(width) with xscaling, layers with relative positions
 * of their own (conformer.h), out_proj where feat_out is another width.
 */
struct modality {
    enum modality_kind kind;
    int64_t in, out; /* widths */
    int64_t inner;   /* of a linear one; of a conformer that of its layers */
    enum s2s_act act;
    bool bias;
    struct s2s_nn_linear first, last; /* last.w NULL: a conformer has none */
    struct model_conformer stack;     /* of a conformer */
};

#define MODALITY_LAYERS "modality_adapter.layers"

/* What the blocks of an encoder share in a pass. */
struct model_encoder_shared {
    struct s2s_nn_clips clips, adapted; /* of the encoder's layers, and of the adapter's */
    struct s2s_encoder_trace *trace;
};

/* Of the config of an encoder `width` wide; identity where it has none. SHAPE, RANGE and
 * UNSUPPORTED name the key. Gives: model_modality_release. */
int model_modality_read(struct modality *modality, struct s2s_model *model, int64_t width,
                        struct s2s_error *err);
void model_modality_release(struct modality *modality);
/* Adds its parameters, which files of encoders may lack, and its blocks. The modality is kept. */
int model_modality_build(struct s2s_model *model, struct modality *modality, struct s2s_error *err);
/* shared->adapted, of shared->clips, whose bounds are cu (host). rows: names of the frames, for
 * dropout, or NULL. */
void model_modality_prepare(const struct modality *modality, const struct s2s_pass *pass,
                            struct model_encoder_shared *shared, const int32_t *cu,
                            struct s2s_tensor *rows);

#endif
