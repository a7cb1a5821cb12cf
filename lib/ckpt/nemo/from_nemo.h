/* Converts NeMo's configuration and tokenizer to the small files of transformers' Parakeet. */
#ifndef CKPT_FROM_NEMO_H
#define CKPT_FROM_NEMO_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

struct ckpt_side_files;
struct s2s_ckpt;
struct s2s_error;

/* The section of a model_config.yaml for what transformers has and NeMo, which ignores it, has not.
 */
#define CKPT_NEMO_KEPT "transformers"

/* Texts of the files beside the weights of transformers' Parakeet; NULL if NeMo's configuration
 * does not determine one. */
struct ckpt_nemo_texts {
    char *config, *features, *generation; /* config.json, preprocessor_config.json, .. */
    char *tokenizer, *tokenizer_config, *processor;
};
/* Sets config, features and generation of texts from NeMo's configuration of a model (`all`; NULL:
 * there is none). family: of the name map, which tells the kind of head. any: config.json is not
 * needed, so the encoder may be of any kind. Gives: free all three. UNSUPPORTED: transformers'
 * Parakeet has no such encoder. */
int ckpt_nemo_config(struct ckpt_nemo_texts *texts, const struct s2s_ckpt *ckpt, const json_t *all,
                     const char *family, bool any, struct s2s_error *err);
/* The reduction of a CTC loss if torch, and so both sides, have it; else NULL. */
const char *ckpt_nemo_reduction(const json_t *said);
/* What is left of mel bins after convolutions of stride 2 and kernel 3, with padding. */
int64_t ckpt_nemo_bins_left(int64_t bins, int64_t n_stages);
/* Sets *config to the config.json of transformers' Parakeet encoder, from NeMo's section `encoder`
 * (references resolved) and the weights, which must agree. Gives a reference. UNSUPPORTED: Parakeet
 * has no such encoder; SHAPE: they do not agree; NOTFOUND: the number of mel bins is unknown;
 * FORMAT: a value of the wrong type. */
int ckpt_nemo_encoder(json_t **config, const struct s2s_ckpt *ckpt, const json_t *encoder,
                      struct s2s_error *err);
/* Sets tokenizer, tokenizer_config and processor of texts from a SentencePiece model (bytes [len]),
 * the model's config.json and texts->features. Sets nothing for an encoder alone. Gives: free all
 * three. FORMAT: not a SentencePiece model; SHAPE: that of another model. */
int ckpt_nemo_tokenizer(struct ckpt_nemo_texts *texts, const json_t *config, const void *bytes,
                        size_t len, struct s2s_error *err);
/* The preprocessor_config.json for a model_config.yaml; NULL: it has no section `preprocessor`, or
 * *odd is set: the key of that section whose value transformers' feature extractor does not
 * support, so that features would differ. Gives a reference; free *odd. */
json_t *ckpt_nemo_features(char **odd, const json_t *model_config);
/* Warns of the files of a .nemo that are neither weights nor configuration nor, with or without
 * NeMo's digest in front, in `files`. */
void ckpt_nemo_warn_left(const struct ckpt_side_files *files, const struct s2s_ckpt *ckpt);

#endif
