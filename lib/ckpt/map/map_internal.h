/* Shared by both directions of a name map. */
#ifndef CKPT_MAP_INTERNAL_H
#define CKPT_MAP_INTERNAL_H

#include "lib/ckpt/map/map.h"

/* A weight of the checkpoint and its name as the rules spell it (ckpt_map_plain_name). */
struct ckpt_map_source {
    char *name; /* own */
    const struct s2s_ckpt_tensor *tensor;
    uint16_t rule;      /* 1 + index of the first rule that takes the name; 0: none */
    bool used, dropped; /* dropped: by a rule that does not want it; used, too */
};

/* ---- sources and their names (map_names.c) ---- */

/* Lists all weights of the checkpoint, sorted by name, and returns their number; exact: with
 * unchanged names. *n_state: number of other tensors, such as an optimizer's. Gives:
 * ckpt_map_free_list. */
size_t ckpt_map_list(struct ckpt_map_source **sources, const struct s2s_ckpt *ckpt, bool exact,
                     size_t *n_state);
void ckpt_map_free_list(struct ckpt_map_source *sources, size_t n);
/* Renames the sources by the "where" and "rename" lines of a family. text: contains
 * the family; NULL: it is built in. */
void ckpt_map_respell(struct ckpt_map_source *sources, size_t n, const char *text,
                      const char *family);
/* Sorts by name, as ckpt_map_find requires. */
void ckpt_map_sort(struct ckpt_map_source *sources, size_t n);

/* ---- index of rules by name (map_pattern.c) ---- */

/* A hash of the last two words of a name that the rule takes; 0: any. */
struct ckpt_map_key {
    uint32_t hash;
    uint16_t rule;
};

struct ckpt_map_index {
    struct ckpt_map_key *keys; /* sorted */
    size_t n, cap;
};

struct ckpt_map_tries {
    const struct ckpt_map_index *index;
    uint32_t hash;
    size_t at[2]; /* next key among those of any name, and of this hash */
};

/* Indexes the Hugging Face names of the rules, or Megatron's. */
void ckpt_map_index_begin(struct ckpt_map_index *index, const struct ckpt_map *map, bool hf);
void ckpt_map_index_end(struct ckpt_map_index *index);
struct ckpt_map_tries ckpt_map_tries(const struct ckpt_map_index *index, const char *name);
/* The next rule, in order, whose pattern may match the name. */
bool ckpt_map_next_try(struct ckpt_map_tries *tries, size_t *rule);

/* A required name that is missing; of: the source's name that it would be made of, if that differs;
 * or NULL. */
struct ckpt_map_missed {
    char *name, *of;
};

struct ckpt_map_engine {
    const struct ckpt_map_request *request;
    struct s2s_ckpt_plan *plan;
    struct ckpt_map map;
    struct ckpt_map_index index;     /* of the rules' source side */
    struct ckpt_map_source *sources; /* sorted by name */
    size_t n_sources;
    const struct ckpt_map_source *copy; /* NULL, or a redundant copy that ckpt_map_find ignores
                                         * (map_absence.c) */
    bool to_megatron;
    const char *builtin;      /* the family, if its map is built in; NULL: a user's */
    char *prefix;             /* of a part of a model; NULL: the whole */
    bool as_saved;            /* the sources have names as of save_pretrained */
    const json_t *args;       /* the saved arguments; or NULL */
    const json_t *config;     /* of the model, or of the part of it that this is; or NULL */
    json_t *part_config;      /* owns config, if that is a section; or NULL */
    json_t *own_config;       /* the language model's config.json from the common state; or NULL */
    const json_t *any_config; /* config, or else own_config */
    int64_t vision_heads;     /* of the vision tower, by the user's config.json or the one kept in
                              the common state; 0: neither says */
    int64_t *n_layers;        /* by stack: highest layer number + 1 */
    /* by section, then layer: 1 yes, -1 no, 0 not determined yet */
    signed char *in_section;
    int64_t max_layers;
    int64_t mtp_layers; /* layers per depth of multi-token prediction (map_mtp.c); 0: none */
    bool hybrid_mtp;    /* the tables number them consecutively */
    bool guessed;       /* an unknown number was guessed, with a warning */
    /* by rule: 1 required, -1 not required, 0 not determined yet */
    signed char *needed;
    bool *own; /* by rule: its source name belongs to no other section */
    struct ckpt_map_missed *missed;
    size_t n_missed, cap_missed;
    int64_t n_missed_more; /* more that are not in the list */
    int64_t rows_cut;      /* padding rows removed */
    struct s2s_error *err;
};

/* Initialises *e: lists the sources, finds the family (result->family) and reads its map. Call
 * ckpt_map_end also after failure. NOTFOUND, FORMAT; UNSUPPORTED as ckpt_map_refuse; SHAPE as
 * ckpt_map_check_family. */
int ckpt_map_begin(struct ckpt_map_engine *e, struct s2s_ckpt_plan *plan,
                   const struct ckpt_map_request *request, bool to_megatron,
                   struct ckpt_map_result *result, struct s2s_error *err);
/* Adds the sources that went nowhere to result->unused or dropped, and frees what *e has. */
void ckpt_map_end(struct ckpt_map_engine *e, struct ckpt_map_result *result);

/* The source's tensor, or a transposed view if the rule asks for one; lent until close. */
const struct s2s_ckpt_tensor *ckpt_map_tensor(const struct ckpt_map_engine *e,
                                              const struct ckpt_rule *rule,
                                              const struct ckpt_map_source *source);
/* Can two tensors be concatenated by rows? SHAPE: they differ in more than the size of axis
 * rows_axis. */
int ckpt_map_check_alike(const struct ckpt_map_engine *e, const struct s2s_ckpt_tensor *a,
                         const struct s2s_ckpt_tensor *b, int rows_axis);
/* The rule's pattern on the source's side: Megatron's or Hugging Face's. */
const char *ckpt_map_source_side(const struct ckpt_map_engine *e, const struct ckpt_rule *rule);
/* Sets the rule of each source; towards Megatron also e->n_layers. */
void ckpt_map_match_sources(struct ckpt_map_engine *e);
/* The rule for the source's name at this layer: of all with its pattern, the first whose section
 * the layer has; else the first of all. NULL: none. After ckpt_map_sections_begin. */
const struct ckpt_rule *ckpt_map_rule_at(const struct ckpt_map_engine *e,
                                         const struct ckpt_map_source *source, int64_t layer);
/* The source of this name; NULL: none. */
struct ckpt_map_source *ckpt_map_find(const struct ckpt_map_engine *e, const char *name);
/* The same for a pattern, with its holes filled from `at`. */
struct ckpt_map_source *ckpt_map_find_at(const struct ckpt_map_engine *e, const char *pattern,
                                         const struct ckpt_match *at);
/* A positive number (such as the number of heads) from the configuration, the saved arguments, or
 * transformers' default if the configuration lacks it. 0: unknown. */
int64_t ckpt_map_number(const struct ckpt_map_engine *e, const char *config_key,
                        const char *args_key);
/* Is this stack of layers (its Megatron prefix) not the language model's but that of a tower, such
 * as a vision tower, or of multi-token prediction? The configuration's layer counts do not apply to
 * these. */
bool ckpt_map_is_tower(const struct ckpt_map_engine *e, const char *stack);
/* Sets *heads to the number of heads of a vision tower, whose fused qkv is tensor t with `rows`
 * rows. NOTFOUND: unknown. */
int ckpt_map_vision_heads(struct ckpt_map_engine *e, const struct s2s_ckpt_tensor *t, int64_t rows,
                          int64_t *heads);

/* Query heads, groups and head size of an attention whose fused tensor `name` has this many rows.
 * NOTFOUND: unknown; SHAPE: they make another number of rows. */
int ckpt_map_attention(const struct ckpt_map_engine *e, const char *name, int64_t rows,
                       int64_t *heads, int64_t *groups, int64_t *dim);

/* Finds the prefix of the part with model_type request->name (select.c), and makes the text of a
 * map with its one family "part". Gives: free *text, and e->prefix. UNSUPPORTED: not found, or
 * ambiguous. */
int ckpt_map_find_part(struct ckpt_map_engine *e, char **text, struct s2s_error *err);

/* ---- multi-token prediction (map_mtp.c) ---- */

/* Renumbers the sources as in the tables. */
void ckpt_map_mtp_begin(struct ckpt_map_engine *e);
/* The inverse: Megatron's own name for a Megatron name of the tables. Takes name; gives it, or
 * another: free. */
char *ckpt_map_mtp_name(const struct ckpt_map_engine *e, char *name);
/* Notes as missing what a depth should have once and lacks. After ckpt_map_sections_begin. */
void ckpt_map_miss_mtp(struct ckpt_map_engine *e);

/* ---- optional tensors (map_absence.c) ---- */

/* Do the arguments (or, if they do not say, the configuration) say that embedding and output layer
 * are tied? */
bool ckpt_map_says_tied(const struct ckpt_map_engine *e);
/* Does the configuration say so, while the arguments do not? */
bool ckpt_map_config_ties(const struct ckpt_map_engine *e);
/* Is there a configuration that does not say so, while the arguments do? */
bool ckpt_map_config_unties(const struct ckpt_map_engine *e);
/* To Megatron: leaves out an output matrix that is tied by the configuration, if it equals the
 * embedding bit for bit: some published models store it twice. Fails as reading does. */
int ckpt_map_leave_out_copy(struct ckpt_map_engine *e);
/* To Megatron: as ckpt_map_own_head says. */
int ckpt_map_find_own_head(struct ckpt_map_engine *e, struct ckpt_own_head *head);
/* Is this an embedding that is tied, and stored as the output matrix alone? safetensors' save_model
 * keeps the first of the two names. Only for names that are kept. */
bool ckpt_map_has_tied(const struct ckpt_map_engine *e, const struct ckpt_rule *rule);
/* May the rule's tensor be absent, by its "?" word (map.h), arguments and configuration? */
bool ckpt_map_is_optional(const struct ckpt_map_engine *e, const struct ckpt_rule *rule);

/* ---- which sections a layer has (map_missed.c) ---- */

/* Prepares the questions below, once e->n_layers is set. A layer has a section if the source has
 * any tensor there whose name belongs to this section alone. All other tensors of the section are
 * then required, even the one that the section is named after. */
void ckpt_map_sections_begin(struct ckpt_map_engine *e);
/* Does this layer have the section? Section -1 stands for the whole model: always true. */
bool ckpt_map_in_section(const struct ckpt_map_engine *e, int section, int64_t layer);
/* Does the source have this item of a pattern at this layer, numbered or on an axis? */
bool ckpt_map_has_item(const struct ckpt_map_engine *e, const char *pattern, int64_t layer,
                       int item);
/* Does the source have, at this layer, the tensor of another rule with the same result? */
bool ckpt_map_has_same(const struct ckpt_map_engine *e, size_t i_rule, int64_t layer);
/* Is the tensor of this rule required? An optional one is if another layer has it, or has one that
 * goes with it ("?+NAME"). */
bool ckpt_map_is_needed(const struct ckpt_map_engine *e, size_t i_rule);

/* ---- layers against the configuration (map_kinds.c) ---- */

/* The number of layers by the configuration or the arguments; 0: they do not say. */
int64_t ckpt_map_config_layers(const struct ckpt_map_engine *e);
/* SHAPE: there are more layers than configuration or arguments say, or layers of other kinds. */
int ckpt_map_check_layers(struct ckpt_map_engine *e);

/* ---- what is missing (map_missed.c) ---- */

/* Notes that a required name is missing. `of` as in ckpt_map_missed; both are copied. */
void ckpt_map_miss(struct ckpt_map_engine *e, const char *name, const char *of);
/* Does so for each name of a pattern, at a layer and expert (0 if it has none), that the source
 * lacks. */
void ckpt_map_miss_names(struct ckpt_map_engine *e, const char *pattern, int64_t layer,
                         int64_t expert);
/* Does so for gaps in the numbers of experts, and of layers. */
void ckpt_map_miss_experts(struct ckpt_map_engine *e);
void ckpt_map_miss_layers(struct ckpt_map_engine *e);
/* What precedes the layers' numbers in the source's names. Gives: free. */
char *ckpt_map_stack_name(const struct ckpt_map_engine *e, size_t stack);
/* NOTFOUND, with the list of all that was noted; 0: nothing was. */
int ckpt_map_missed(struct ckpt_map_engine *e);
/* Frees what the functions of this section and of the one on sections have allocated. */
void ckpt_map_missed_release(struct ckpt_map_engine *e);

/* Two counters of each rule at each layer (-1: of no layer), initially 0. */
struct ckpt_map_counts {
    const struct ckpt_map_engine *e;
    int64_t (**of)[2]; /* by rule, then by layer + 1; NULL: not requested yet */
};
void ckpt_map_counts_begin(struct ckpt_map_counts *counts, const struct ckpt_map_engine *e);
/* Pointer to the two counters; NULL: there is no such layer. */
int64_t *ckpt_map_count(struct ckpt_map_counts *counts, size_t rule, int64_t layer);
void ckpt_map_counts_end(struct ckpt_map_counts *counts);

/* ---- shapes (map_shapes.c) ---- */

/* A tensor of the source or the plan, under its Hugging Face name. Borrows. */
struct ckpt_map_shaped {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    const int64_t *shape;
};
/* The i-th of ckpt_map_n_shaped such tensors. */
struct ckpt_map_shaped ckpt_map_shaped(const struct ckpt_map_engine *e, size_t i);
size_t ckpt_map_n_shaped(const struct ckpt_map_engine *e);
/* Checks all tensors for which a rule gives a shape. SHAPE lists those that do not fit; NOTFOUND: a
 * router has outputs for experts that are missing. */
int ckpt_map_check_shapes(struct ckpt_map_engine *e);

/* SHAPE: transformers' class for the configuration's model_type lacks one of these tensors, or
 * requires one that is missing. */
int ckpt_map_check_kind(struct ckpt_map_engine *e);
/* SHAPE: the family that --map names does not fit the configuration's model_type. */
int ckpt_map_check_family(const struct ckpt_map_engine *e, const char *family,
                          struct s2s_error *err);

#endif
