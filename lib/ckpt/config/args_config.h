/* Megatron's saved arguments and transformers' config.json. */
#ifndef CKPT_ARGS_CONFIG_H
#define CKPT_ARGS_CONFIG_H

#include <jansson.h>

#include "lib/ckpt/plan.h"

/* A key of config.json and the argument that says the same; ended by NULL. */
struct ckpt_arg_key {
    const char *config, *args;
    enum { CKPT_ARG_COUNT, CKPT_ARG_NUMBER, CKPT_ARG_TEXT } kind;
};
extern const struct ckpt_arg_key ckpt_arg_keys[];

/*
 * config.json of the planned Hugging Face tensors of a family (its name in the map tables) out of
 * the arguments. A warning names what they do not say. NULL: families that have no such config, or
 * arguments that transformers' model cannot follow (then a warning says which). Gives: free.
 */
char *ckpt_args_config(const char *family, const json_t *args, const struct s2s_ckpt_plan *plan);
/* The family whose names a plan has behind a prefix, of those of language models; NULL: none. */
const char *ckpt_config_family(const struct s2s_ckpt_plan *plan, const char *prefix);
/* Is this a family whose config.json can be made so? */
bool ckpt_args_config_knows(const char *family);

/* Warns where a config.json that was given means another kind of norms than the arguments. */
void ckpt_args_check_norms(const char *family, const json_t *args, const json_t *config);

/* The way back: arguments out of config.json and the planned Megatron tensors. Gives a reference.
 */
json_t *ckpt_config_args(const json_t *config, const struct s2s_ckpt_plan *plan);

/* Are the values of these keys what they can be, in the language model's part? FORMAT: a text or a
 * negative number in place of a count, or NaN; 0 where config is NULL. */
int ckpt_config_check(const json_t *config, struct s2s_error *err);

/* The language model's part of a config.json, which may be all of it. Lent; NULL for NULL. */
const json_t *ckpt_config_of_words(const json_t *config);

/* The model_type of a config.json; "" where it says none. */
const char *ckpt_config_type(const json_t *config);
/* The class of transformers of a model_type; NULL: it is not known here (config_types.c). */
const char *ckpt_config_class(const char *type);
/* What a key that this part of a config.json lacks means by its model_type; 0: nothing, or the key
 * is there. */
double ckpt_config_default(const json_t *config, const char *key);

/* The letters M * - E of a Nemotron-H's layers, as its config.json has them in a word or in a list.
 * Gives: free; NULL: it has neither, or layers of other kinds. */
char *ckpt_config_letters(const json_t *config);

/* Has that layer of Qwen's mixtures of experts some, by config.json? -1: it does not say. */
int ckpt_config_has_experts(const json_t *config, int64_t layer);

/* Warns where Megatron and transformers compute something else from a Nemotron-H config.json. */
void ckpt_nemotron_h_differences(const json_t *config);

#endif
