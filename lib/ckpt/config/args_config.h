/* Conversion between Megatron's saved arguments and transformers' config.json. */
#ifndef CKPT_ARGS_CONFIG_H
#define CKPT_ARGS_CONFIG_H

#include <jansson.h>

#include "lib/ckpt/plan.h"

/* A key of config.json and the argument with the same meaning. */
struct ckpt_arg_key {
    const char *config, *args;
    /* EXPERTS: a count, or -1 for none */
    enum { CKPT_ARG_COUNT, CKPT_ARG_EXPERTS, CKPT_ARG_NUMBER, CKPT_ARG_TEXT } kind;
};
/* All known pairs; the last has NULL. */
extern const struct ckpt_arg_key ckpt_arg_keys[];
/* Is this a valid value of the key? null and arrays are not. */
bool ckpt_arg_can_be(const struct ckpt_arg_key *key, const json_t *value);

/*
 * Makes the config.json for planned tensors with the Hugging Face names of a family (a name of the
 * map tables), from Megatron's arguments and the tensors' shapes. A warning lists the keys that
 * nothing determines. NULL: not possible for this family; or transformers' model does not support
 * what the arguments say, and a warning says what. Gives: free.
 */
char *ckpt_args_config(const char *family, const json_t *args, const struct s2s_ckpt_plan *plan);
/* The family of language models to which the plan's targets belong, by their names after this
 * prefix; NULL: none. */
const char *ckpt_config_family(const struct s2s_ckpt_plan *plan, const char *prefix);
/* Can ckpt_args_config make a config.json for this family? */
bool ckpt_args_config_knows(const char *family);

/* Warns if a config.json given by the user and the arguments differ in the kind of norms. */
void ckpt_args_check_norms(const char *family, const json_t *args, const json_t *config);

/* The other direction: Megatron's arguments from a config.json and the planned tensors, which have
 * Megatron's names. Gives a reference. */
json_t *ckpt_config_args(const json_t *config, const struct s2s_ckpt_plan *plan);

/* Checks that the keys above in the language model's section have valid values. FORMAT: a string or
 * a negative number instead of a count, or NaN. 0 for NULL. */
int ckpt_config_check(const json_t *config, struct s2s_error *err);

/* Checks the numbers of layers and experts in all sections: without them nobody can tell whether a
 * model is whole. FORMAT names the key. */
int ckpt_config_check_counts(const json_t *config, struct s2s_error *err);

/* The section of a config.json for the language model, which may be all of it. Lent; NULL for NULL.
 */
const json_t *ckpt_text_config(const json_t *config);

/* The model_type of a config.json; "": none. */
const char *ckpt_config_type(const json_t *config);
/* transformers' class for a model_type ("LlamaForCausalLM"); NULL: unknown here (config_types.c).
 */
const char *ckpt_config_class(const char *type);
/* Does the class of a composite model tie the words if its config.json does not say so? */
bool ckpt_config_ties(const char *type);
/* The activation that transformers' class takes if its config.json names none; NULL: unknown here.
 */
const char *ckpt_config_activation(const char *type);
/* Does transformers' class heed sliding_window? The others, whose attention has no window, ignore
 * it. */
bool ckpt_config_has_window(const char *type);
/* Does transformers' class have the biases that this key adds in other classes? It ignores a key of
 * others. True for types and keys that are unknown here. */
bool ckpt_config_heeds(const char *type, const char *key);
/* transformers' default, by model_type, for a key that this section of a config.json lacks. 0: no
 * default is known, or the key is present. */
double ckpt_config_default(const json_t *config, const char *key);

/* The layer kinds of a Nemotron-H, a letter each: M (Mamba), * (attention), - (MLP) or E (experts).
 * config.json has them as a string or a list. Gives: free. NULL: neither, or with other kinds. */
char *ckpt_config_letters(const json_t *config);

/* Has this layer of a Qwen mixture of experts experts, by config.json? 1 yes, 0 no, -1: it does not
 * say. */
int ckpt_config_has_experts(const json_t *config, int64_t layer);

/* Warns of settings in a Nemotron-H config.json that Megatron and transformers compute differently.
 */
void ckpt_nemotron_h_differences(const json_t *config);

#endif
