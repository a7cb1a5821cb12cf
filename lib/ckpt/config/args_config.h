/* Megatron's saved arguments and transformers' config.json. */
#ifndef CKPT_ARGS_CONFIG_H
#define CKPT_ARGS_CONFIG_H

#include <jansson.h>

#include "lib/ckpt/plan.h"

/* A key of config.json, and the name of the argument that says the same. */
struct ckpt_arg_key {
    const char *config, *args;
    /* EXPERTS: a count, or -1 where there are none */
    enum { CKPT_ARG_COUNT, CKPT_ARG_EXPERTS, CKPT_ARG_NUMBER, CKPT_ARG_TEXT } kind;
};
/* All that are known; the last has NULL. */
extern const struct ckpt_arg_key ckpt_arg_keys[];
/* Is it a value that the key can have? Not so null, and no array. */
bool ckpt_arg_can_be(const struct ckpt_arg_key *key, const json_t *value);

/*
 * Makes the config.json for planned tensors that have the Hugging Face names of a family (as the
 * map tables call it), from Megatron's arguments and the tensors' shapes. What nothing determines
 * is named in a warning. NULL: no config.json can be made for this family; or transformers' model
 * cannot do what the arguments say, and a warning says what. Gives: free.
 */
char *ckpt_args_config(const char *family, const json_t *args, const struct s2s_ckpt_plan *plan);
/* The family of language models whose names the plan's targets have behind this prefix; NULL: none.
 */
const char *ckpt_config_family(const struct s2s_ckpt_plan *plan, const char *prefix);
/* Can ckpt_args_config make a config.json for this family? */
bool ckpt_args_config_knows(const char *family);

/* Warns if a config.json, which the user gave, and the arguments speak of different kinds of norms.
 */
void ckpt_args_check_norms(const char *family, const json_t *args, const json_t *config);

/* The way back: Megatron's arguments, from a config.json and the planned tensors, which have
 * Megatron's names. Gives a reference. */
json_t *ckpt_config_args(const json_t *config, const struct s2s_ckpt_plan *plan);

/* Do the keys above that the language model's section has also have values of their kind? FORMAT: a
 * text or a negative number in place of a count, or NaN. 0 for NULL. */
int ckpt_config_check(const json_t *config, struct s2s_error *err);

/* The section of a config.json that is about the language model, which may be all of it. Lent; NULL
 * for NULL. */
const json_t *ckpt_config_of_words(const json_t *config);

/* The model_type of a config.json; "" where it says none. */
const char *ckpt_config_type(const json_t *config);
/* The class that transformers has for a model_type ("LlamaForCausalLM"); NULL: not known here
 * (config_types.c). */
const char *ckpt_config_class(const char *type);
/* The value that transformers takes for a key that this section of a config.json lacks, by its
 * model_type. 0: none is known, or the key is there. */
double ckpt_config_default(const json_t *config, const char *key);

/* The kinds of a Nemotron-H's layers, a letter each: M, *, - or E. Its config.json has them as a
 * word or as a list. Gives: free. NULL: it has neither, or layers of other kinds. */
char *ckpt_config_letters(const json_t *config);

/* Does this layer of one of Qwen's mixtures of experts have experts, by config.json: 1 yes, 0 no,
 * -1: it does not say. */
int ckpt_config_has_experts(const json_t *config, int64_t layer);

/* Warns of settings in a Nemotron-H config.json of which Megatron and transformers make different
 * models. */
void ckpt_nemotron_h_differences(const json_t *config);

#endif
