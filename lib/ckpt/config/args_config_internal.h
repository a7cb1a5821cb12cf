/* What the parts of making config.json out of arguments share. */
#ifndef CKPT_ARGS_CONFIG_INTERNAL_H
#define CKPT_ARGS_CONFIG_INTERNAL_H

#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"

struct ckpt_config_draft;

/* A family of the name maps whose config.json can be made. */
struct ckpt_config_family {
    const char *name;
    const char *mark; /* a part of names that it alone has, or none before it; NULL */
    void (*fill)(struct ckpt_config_draft *draft);
    const char *type,
        *type_normed; /* model_type without and with norms of q; NULL: not yet known */
    bool experts;
    bool means;       /* its norms subtract them: LayerNorm */
    bool around_zero; /* so are the gains of its norms */
};

struct ckpt_config_draft {
    json_t *config;
    const json_t *args;
    const struct s2s_ckpt_plan *plan;
    /* of the names that it looks at: of the language model "" or "language_model.", of the layers
     * that predict further tokens "mtp." */
    const char *prefix;
    const struct ckpt_config_family *family;
    const char *type;      /* model_type */
    const char *hindrance; /* what transformers' model cannot do; NULL: nothing */
    struct s2s_buf unsaid; /* keys of config.json that nothing determines, ", " between them */
};

/* Sets num_attention_heads, head_dim and the heads of keys out of the rows of two projections.
 * false: they are not of as many heads as the arguments say. */
bool ckpt_draft_heads(struct ckpt_config_draft *draft, const char *q, const char *k);
/* The first target whose name ends so, or NULL. */
const struct s2s_ckpt_target *ckpt_draft_target(const struct ckpt_config_draft *draft,
                                                const char *end);
/* Its size on an axis; 0: there is none. */
int64_t ckpt_draft_size(const struct ckpt_config_draft *draft, const char *end, int axis);
/* How many layers ("layers.N." in names) there are, the highest + 1. */
int64_t ckpt_draft_layers(const struct ckpt_config_draft *draft);
/* Marks the layers that have a target with this name behind "layers.N." and no mark yet. */
void ckpt_draft_mark_layers(const struct ckpt_config_draft *draft, const char *name, char mark,
                            char *marks);

/* Sets a key from its argument (ckpt_arg_keys); need notes one that is absent as unsaid. */
bool ckpt_draft_take(struct ckpt_config_draft *draft, const char *key);
void ckpt_draft_need(struct ckpt_config_draft *draft, const char *key);
void ckpt_draft_set_int(struct ckpt_config_draft *draft, const char *key, int64_t value);
/* The same of a target's size on an axis. */
void ckpt_draft_set_size(struct ckpt_config_draft *draft, const char *key, const char *end,
                         int axis);
void ckpt_draft_set_bool(struct ckpt_config_draft *draft, const char *key, bool value);
void ckpt_draft_set_text(struct ckpt_config_draft *draft, const char *key, const char *value);
/* The model_type, and the class that belongs to it. */
void ckpt_draft_set_type(struct ckpt_config_draft *draft, const char *type);
void ckpt_draft_unsaid(struct ckpt_config_draft *draft, const char *what);
/* Notes what transformers' model cannot do, the first time. */
void ckpt_draft_hinder(struct ckpt_config_draft *draft, const char *why);

/* Megatron's letter of a kind of layers ("mamba", "moe"); 0: it has none. */
char ckpt_config_letter(const char *kind);

bool ckpt_arg_is_true(const json_t *args, const char *key);
/* Have norms gains around 0, as a Gemma's (zero-centered gamma)? */
bool ckpt_arg_is_zero_centered(const json_t *args);
/* An argument that is a number other than 0. */
bool ckpt_arg_is_number(const json_t *args, const char *key, double *value);

/* Fill in what a family has; the embedding's and the output's part is the caller's. */
void ckpt_draft_decoder(struct ckpt_config_draft *draft);
void ckpt_draft_nemotron_h(struct ckpt_config_draft *draft);

#endif
