/* From NeMo's configuration and tokenizer to the small files of transformers' Parakeet. */
#ifndef CKPT_FROM_NEMO_H
#define CKPT_FROM_NEMO_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

struct s2s_ckpt;
struct s2s_error;

/* The files that transformers' Parakeet has beside its weights, as texts; NULL where NeMo's
 * configuration does not determine one. */
struct ckpt_nemo_texts {
    char *config, *features, *generation; /* config.json, preprocessor_config.json, .. */
    char *tokenizer, *tokenizer_config, *processor;
};
/* Sets config, features and generation of texts, from NeMo's configuration of a model (`all`; NULL:
 * there is none). family: that of the name map, which says what head the model has. any:
 * config.json is not wanted, so the encoder may be of any kind. Gives: free all three. UNSUPPORTED:
 * transformers' Parakeet has no such encoder. */
int ckpt_nemo_config(struct ckpt_nemo_texts *texts, const struct s2s_ckpt *ckpt, const json_t *all,
                     const char *family, bool any, struct s2s_error *err);
/* Sets *config to the config.json of transformers' Parakeet encoder, from NeMo's section `encoder`
 * (without references) and the weights, which have to agree. Gives a reference. UNSUPPORTED:
 * Parakeet has no such encoder; SHAPE: they do not agree; NOTFOUND: the number of mel bins is not
 * said. */
int ckpt_nemo_encoder(json_t **config, const struct s2s_ckpt *ckpt, const json_t *encoder,
                      struct s2s_error *err);
/* Sets tokenizer, tokenizer_config and processor of texts, from a SentencePiece model (bytes
 * [len]), the model's config.json and texts->features. For an encoder alone nothing is set. Gives:
 * free all three. FORMAT: no SentencePiece model; SHAPE: one of another model. */
int ckpt_nemo_tokenizer(struct ckpt_nemo_texts *texts, const json_t *config, const void *bytes,
                        size_t len, struct s2s_error *err);
/* The preprocessor_config.json that belongs to a model_config.yaml; NULL: that has no section
 * `preprocessor`. *odd: NULL, or the key of that section whose value transformers' features cannot
 * follow, so that they would be other features. Gives a reference. */
json_t *ckpt_nemo_features(const char **odd, const json_t *model_config);
/* The same from the section `preprocessor` itself. */
json_t *ckpt_nemo_mel(const char **odd, const json_t *preprocessor);

#endif
