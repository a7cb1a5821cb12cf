/*
 * The LLM that hears, sees, or both: encoder -> projection -> embeddings of its slots -> LLM ->
 * cross entropy on text. A composite directory holds config.json (model_type "salm", where the
 * parts are), llm/, and of sound encoder/ and projection.safetensors, of images vision/ and
 * vision_projection.safetensors; or the parts are named one by one. Parameters are called
 * encoder.*, proj.weight, proj.bias, vision.*, vision_proj.* and llm.*: s2s_params_freeze(params,
 * "encoder.") freezes a part.
 *
 *     s2s_salm_open(&model, device, par, &parts, err);
 *     s2s_params_freeze(model->params, "llm.");       // if asked for
 *     s2s_params_finish(model->params);
 *     s2s_model_load(model, err);                     // parts that have a directory
 *     s2s_params_init(model->params, seed);           // parts that have no weights
 */
#ifndef S2S_MODEL_SALM_H
#define S2S_MODEL_SALM_H

#include "lib/model/model.h"
#include "lib/model/vision_projection.h"

/* A directory with weights, or a config (file or keys) whose values s2s_params_init sets; none of
 * them: there is no such part. */
struct s2s_salm_part {
    const char *dir, *config;
    const struct s2s_conf *conf;
    const struct s2s_conf *override; /* keys in the place of those of the config; or NULL */
};

struct s2s_salm_parts {
    struct s2s_salm_part encoder, vision, llm; /* of sound, of images: one of them at least */
    const char *projection;                    /* projection.safetensors, or NULL: initialised */
    const char *vision_projection;           /* the same of images; the file then says what it is */
    struct s2s_vision_spec vision_spec;      /* where there is no file */
    bool batch_norm_batch;                   /* of the encoder */
    enum s2s_head head;                      /* of the LLM */
    bool free_steps;                         /* of the LLM */
    const struct s2s_lora *lora;             /* of the LLM; kept; NULL: none */
    const struct s2s_dropout_rates *dropout; /* struct s2s_model_options */
};

/* Strings and trees of parts are not kept. Errors as s2s_model_open. Gives: s2s_model_free. */
int s2s_salm_open(struct s2s_model **model, struct s2s_device *device, const struct s2s_par *par,
                  const struct s2s_salm_parts *parts, struct s2s_error *err);

/* The parts of a salm model (kind s2s_model_salm); lent. NULL: it has no such encoder. */
struct s2s_model *s2s_salm_encoder(const struct s2s_model *model);
struct s2s_model *s2s_salm_vision(const struct s2s_model *model);
const struct s2s_vision_spec *s2s_salm_vision_spec(const struct s2s_model *model);
struct s2s_model *s2s_salm_llm(const struct s2s_model *model);

#endif
