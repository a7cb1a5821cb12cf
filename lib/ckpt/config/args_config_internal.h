/* Shared by the files that make config.json from Megatron's arguments. */
#ifndef CKPT_ARGS_CONFIG_INTERNAL_H
#define CKPT_ARGS_CONFIG_INTERNAL_H

#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"

struct ckpt_config_draft;

/* A family of the name maps for which config.json can be made. */
struct ckpt_config_family {
    const char *name;
    const char *mark; /* a part of names that no other family has, or none before it in the table;
                       * NULL */
    void (*fill)(struct ckpt_config_draft *draft);
    const char *type,
        *type_normed; /* model_type without and with q and k norms; NULL: depends on more */
    bool experts;
    bool layernorm;     /* its norms are LayerNorm (they subtract the mean) */
    bool zero_centered; /* the gains of its norms are around 0 (zero-centered gamma) */
};

struct ckpt_config_draft {
    json_t *config;
    const json_t *args;
    const struct s2s_ckpt_plan *plan;
    /* prefix of the target names considered: "" or "language_model." for the language model, "mtp."
     * for layers of multi-token prediction */
    const char *prefix;
    const struct ckpt_config_family *family;
    const char *type;      /* model_type */
    const char *hindrance; /* what transformers' model does not support; NULL: nothing */
    struct s2s_buf unsaid; /* keys of config.json that nothing determines, separated by ", " */
};

/* The value for this key of config.json: a float where transformers 5 refuses an integer. Gives a
 * reference. */
json_t *ckpt_arg_as_fraction(const char *key, json_t *value);
/* Sets num_attention_heads, head_dim and num_key_value_heads from the rows of two projections.
 * false: the rows do not fit the arguments' number of heads. */
bool ckpt_draft_heads(struct ckpt_config_draft *draft, const char *q, const char *k);
/* Hinders a softmax_scale other than 1 / sqrt(head_dim), the only one of most classes. After
 * ckpt_draft_heads. */
void ckpt_draft_plain_scale(struct ckpt_config_draft *draft);
/* The first target whose name ends in `end`, or NULL. */
const struct s2s_ckpt_target *ckpt_draft_target(const struct ckpt_config_draft *draft,
                                                const char *end);
/* Its size on an axis; 0: no such target. */
int64_t ckpt_draft_size(const struct ckpt_config_draft *draft, const char *end, int axis);
/* Number of layers ("layers.N." in names): the highest N + 1. */
int64_t ckpt_draft_layers(const struct ckpt_config_draft *draft);
/* Marks the layers that have a target named "layers.N." + name and no mark yet. */
void ckpt_draft_mark_layers(const struct ckpt_config_draft *draft, const char *name, char mark,
                            char *marks);

/* Set a key from its argument (ckpt_arg_keys); _need adds it to draft->unsaid if absent. */
bool ckpt_draft_take(struct ckpt_config_draft *draft, const char *key);
void ckpt_draft_need(struct ckpt_config_draft *draft, const char *key);
void ckpt_draft_set_int(struct ckpt_config_draft *draft, const char *key, int64_t value);
/* The same, from a target's size on an axis. */
void ckpt_draft_set_size(struct ckpt_config_draft *draft, const char *key, const char *end,
                         int axis);
void ckpt_draft_set_bool(struct ckpt_config_draft *draft, const char *key, bool value);
void ckpt_draft_set_text(struct ckpt_config_draft *draft, const char *key, const char *value);
/* Sets model_type and the class that belongs to it. */
void ckpt_draft_set_type(struct ckpt_config_draft *draft, const char *type);
void ckpt_draft_unsaid(struct ckpt_config_draft *draft, const char *what);
/* Sets draft->hindrance, unless it is set. */
void ckpt_draft_hinder(struct ckpt_config_draft *draft, const char *why);

/* Megatron's letter of a kind of layers ("mamba", "moe"); 0: it has none. */
char ckpt_config_letter(const char *kind);

bool ckpt_arg_is_true(const json_t *args, const char *key);
/* Are the gains of norms around 0 (zero-centered gamma), as in Gemma? */
bool ckpt_arg_is_zero_centered(const json_t *args);
/* Sets *value to an argument that is a nonzero number; false: it is not. */
bool ckpt_arg_is_number(const json_t *args, const char *key, double *value);

/* Fill in the keys of a family, except those of embedding and output layer. */
void ckpt_draft_decoder(struct ckpt_config_draft *draft);
void ckpt_draft_nemotron_h(struct ckpt_config_draft *draft);

#endif
