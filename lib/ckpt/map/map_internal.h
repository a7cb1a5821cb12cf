/* What both directions of a name map share. */
#ifndef CKPT_MAP_INTERNAL_H
#define CKPT_MAP_INTERNAL_H

#include "lib/ckpt/map/map.h"

/* A weight of the checkpoint, under the name by which the rules know it (ckpt_map_plain_name). */
struct ckpt_map_source {
    const char *name; /* of most, the end of the tensor's own: there may be a hundred thousand */
    const struct s2s_ckpt_tensor *tensor;
    uint16_t rule;      /* 1 + the index of the first that takes the name; 0: none does */
    bool used, dropped; /* dropped: by a rule that does not want it; used, too */
};

/* ---- sources and their names (map_names.c) ---- */

/* Lists all weights of the checkpoint, sorted by name, and returns how many they are; exact: under
 * the names that they have. *n_state: how many other tensors there are, such as an optimizer's.
 * Gives: ckpt_map_free_list. */
size_t ckpt_map_list(struct ckpt_map_source **sources, const struct s2s_ckpt *ckpt, bool exact,
                     size_t *n_state);
void ckpt_map_free_list(struct ckpt_map_source *sources, size_t n);
/* Renames the sources as the lines "where" and "rename" of a family say (map_spell.c). text: where
 * the family is; NULL: it is built in. */
void ckpt_map_respell(struct ckpt_map_source *sources, size_t n, const char *text,
                      const char *family);
/* Changing a name: take it (gives: free), which leaves the source without one, and set another,
 * which is taken. */
void ckpt_map_set_name(struct ckpt_map_source *source, char *name);
char *ckpt_map_take_name(struct ckpt_map_source *source);
/* Sorts them by name, as ckpt_map_find needs it. */
void ckpt_map_sort(struct ckpt_map_source *sources, size_t n);

/* ---- which rules may take a name (map_index.c) ---- */

/* The last two words of a rule's names, each as a hash; 0: any. */
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
    size_t at[2]; /* the next key of any name, and of this */
};

/* Of Hugging Face's side of the rules, or of Megatron's. */
void ckpt_map_index_begin(struct ckpt_map_index *index, const struct ckpt_map *map, bool hf);
void ckpt_map_index_end(struct ckpt_map_index *index);
struct ckpt_map_tries ckpt_map_tries(const struct ckpt_map_index *index, const char *name);
/* The next rule, in their order, whose pattern may match the name. */
bool ckpt_map_next_try(struct ckpt_map_tries *tries, size_t *rule);

/* A name that is needed and absent; of: the name in the source that it would be made of, if that is
 * another; or NULL. */
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
    const struct ckpt_map_source *copy; /* NULL, or the one that is not found (map_absence.c) */
    bool to_megatron;
    char *prefix;             /* of a part of a model; NULL: this is all of it */
    bool as_saved;            /* the sources have the names that save_pretrained gives */
    const json_t *args;       /* of the common state; NULL */
    const json_t *config;     /* of the model, or of the one part of it that this is; NULL */
    json_t *part_config;      /* that part of the configuration which config is; NULL */
    json_t *own_config;       /* the language model's configuration of the common state; NULL */
    const json_t *any_config; /* the first of the two that there is */
    int64_t *n_layers;        /* by stack: the highest layer + 1 */
    /* by section, then layer: 1 the layer has it, -1 it has not, 0 not looked up */
    signed char *in_section;
    int64_t max_layers;
    int64_t mtp_layers; /* layers a depth of multi-token prediction (map_mtp.c); 0: none */
    bool hybrid_mtp;    /* the tables number them in a row */
    bool guessed; /* a number that nothing says was taken from elsewhere, and that was warned of */
    /* by rule: 1 its tensor must be there, -1 it need not, 0 not looked up */
    signed char *needed;
    bool *own; /* by rule: its name in the source belongs to no other section */
    struct ckpt_map_missed *missed;
    size_t n_missed, cap_missed;
    int64_t n_missed_more; /* not in the list */
    int64_t rows_cut;      /* past the vocabulary */
    struct s2s_error *err;
};

/* Of what does not fit into an error that lists what is wrong. */
static inline enum s2s_log_level ckpt_map_list_level(const struct ckpt_map_engine *e)
{
    return e->request->only_warns ? S2S_LOG_WARN : S2S_LOG_ERROR;
}

/* Sets up *e: lists the sources, finds the family (result->family) and reads its map. ckpt_map_end
 * also after failure. NOTFOUND, FORMAT; UNSUPPORTED as ckpt_map_refuse; SHAPE as
 * ckpt_map_check_family. */
int ckpt_map_begin(struct ckpt_map_engine *e, struct s2s_ckpt_plan *plan,
                   const struct ckpt_map_request *request, bool to_megatron,
                   struct ckpt_map_result *result, struct s2s_error *err);
/* Adds the sources that went nowhere to result->unused or dropped, and frees what *e has. */
void ckpt_map_end(struct ckpt_map_engine *e, struct ckpt_map_result *result);

/* The source's tensor, or a transposed view of it, as the rule asks; lent until close. */
const struct s2s_ckpt_tensor *ckpt_map_tensor(const struct ckpt_map_engine *e,
                                              const struct ckpt_rule *rule,
                                              const struct ckpt_map_source *source);
/* Can two tensors be put behind each other, row after row? SHAPE: they differ in more than the
 * number of rows, the size of axis rows_axis. */
int ckpt_map_check_alike(const struct ckpt_map_engine *e, const struct s2s_ckpt_tensor *a,
                         const struct s2s_ckpt_tensor *b, int rows_axis);
/* The pattern of a rule on the side that the source has: Megatron's or Hugging Face's. */
const char *ckpt_map_source_side(const struct ckpt_map_engine *e, const struct ckpt_rule *rule);
/* Sets the rule of each source. To Megatron, it also sets e->n_layers. */
void ckpt_map_match_sources(struct ckpt_map_engine *e);
/* The rule that takes the source's name at this layer: of all with its pattern, the first whose
 * section the layer has; else the first of all. NULL: none. After ckpt_map_sections_begin. */
const struct ckpt_rule *ckpt_map_rule_at(const struct ckpt_map_engine *e,
                                         const struct ckpt_map_source *source, int64_t layer);
/* The source of this name; NULL: there is none. */
struct ckpt_map_source *ckpt_map_find(const struct ckpt_map_engine *e, const char *name);
/* The same for a pattern, whose holes are filled with what `at` says. */
struct ckpt_map_source *ckpt_map_find_at(const struct ckpt_map_engine *e, const char *pattern,
                                         const struct ckpt_match *at);
/* A number above 0 (such as how many heads there are), from the configuration, the saved arguments,
 * or what transformers takes if the configuration does not say it. 0: unknown. */
int64_t ckpt_map_number(const struct ckpt_map_engine *e, const char *config_key,
                        const char *args_key);
/* Is this stack of layers (its Megatron prefix) a tower beside the language model, such as one for
 * images, or one that predicts further tokens? What a configuration says of layers is not about
 * these.
 */
bool ckpt_map_is_tower(const struct ckpt_map_engine *e, const char *stack);
/* Sets *heads to how many heads a vision tower has, whose q, k and v are this tensor of so many
 * rows. NOTFOUND: nothing tells. */
int ckpt_map_vision_heads(struct ckpt_map_engine *e, const struct s2s_ckpt_tensor *t, int64_t rows,
                          int64_t *heads);

/* Where the part that request->name calls by its model_type lies (map_parts.c): as a map's text
 * with its one family "part". Gives: free, and e->prefix. UNSUPPORTED: nowhere, or nobody knows
 * where. */
int ckpt_map_find_part(struct ckpt_map_engine *e, char **text, struct s2s_error *err);

/* Is called with a range of rows. */
typedef void ckpt_map_rows(void *ctx, int64_t begin, int64_t n_rows);
/* Calls add for ranges of rows of a Mamba mixer's fused tensor, in the order in which Hugging Face
 * has them (map_mamba.c). SHAPE, NOTFOUND: the layer's other tensors or the arguments do not fit.
 */
int ckpt_map_mamba(struct ckpt_map_engine *e, const struct ckpt_map_source *source, int64_t rows,
                   ckpt_map_rows *add, void *ctx);
/* The same for one half (0: gate, 1: up) of a gated MLP's first matrix, whose rows lie on this axis
 * (map_halves.c). UNSUPPORTED: nothing tells where they are. */
int ckpt_map_half(const struct ckpt_map_engine *e, const struct s2s_ckpt_tensor *t, int axis,
                  int half, ckpt_map_rows *add, void *ctx);

/* ---- layers that predict further tokens (map_mtp.c) ---- */

/* Renumbers the sources as the tables number these layers. */
void ckpt_map_mtp_begin(struct ckpt_map_engine *e);
/* The way back: the name that Megatron has for a Megatron name of the tables. Takes name; gives it,
 * or another: free. */
char *ckpt_map_mtp_name(const struct ckpt_map_engine *e, char *name);
/* Notes as missed what a depth of the prediction should have once and has not. After
 * ckpt_map_sections_begin. */
void ckpt_map_miss_mtp(struct ckpt_map_engine *e);

/* ---- what may be absent (map_absence.c) ---- */

/* Do the arguments (or, if these are silent, the configuration) say that words and outputs share
 * one matrix? */
bool ckpt_map_says_tied(const struct ckpt_map_engine *e);
/* Does the configuration say so, and the arguments do not? */
bool ckpt_map_config_ties(const struct ckpt_map_engine *e);
/* Is there a configuration that does not say it, though the arguments do? */
bool ckpt_map_config_unties(const struct ckpt_map_engine *e);
/* To Megatron: leaves out an output matrix that the configuration calls the words' own, if it is
 * the same bit for bit: some published models have it stored twice. Fails as reading does. */
int ckpt_map_leave_out_copy(struct ckpt_map_engine *e);
/* May the rule's tensor be absent, by its word (map.h) and what arguments and configuration say? */
bool ckpt_map_is_optional(const struct ckpt_map_engine *e, const struct ckpt_rule *rule);

/* ---- which sections a layer has (map_sections.c) ---- */

/* Prepares the questions below, once e->n_layers is set. A layer has a section if the source has
 * any tensor there whose name belongs to this section alone. All other tensors of the section are
 * then required, even the one that the section is named after. */
void ckpt_map_sections_begin(struct ckpt_map_engine *e);
/* Does this layer have the section? Section -1 stands for the whole model: always true. */
bool ckpt_map_in_section(const struct ckpt_map_engine *e, int section, int64_t layer);
/* Does the source have anything of this layer of the stack? */
bool ckpt_map_has_layer(const struct ckpt_map_engine *e, int stack, int64_t layer);
/* Does the source have this item of a pattern at this layer, numbered or on an axis? */
bool ckpt_map_has_item(const struct ckpt_map_engine *e, const char *pattern, int64_t layer,
                       int item);
/* Does the source have, at this layer, the tensor of another rule with the same result? */
bool ckpt_map_has_same(const struct ckpt_map_engine *e, size_t i_rule, int64_t layer);
/* Is the tensor of this rule required? An optional one is if another layer has it, or has one that
 * goes with it ("?+NAME"). */
bool ckpt_map_is_needed(const struct ckpt_map_engine *e, size_t i_rule);

/* ---- layers against the configuration (map_check_layers.c) ---- */

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
/* NOTFOUND, with the list of all that was noted; 0: nothing was. */
int ckpt_map_missed(struct ckpt_map_engine *e);
/* Frees what the functions of this section and of map_sections.c have allocated. */
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

/* ---- do the shapes fit each other? (map_shapes.c) ---- */

/* A tensor under its Hugging Face name: of the source, or of the plan. Borrows. */
struct ckpt_map_shaped {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    const int64_t *shape;
};
/* How many there are, and the i-th of them. */
struct ckpt_map_shaped ckpt_map_shaped(const struct ckpt_map_engine *e, size_t i);
size_t ckpt_map_n_shaped(const struct ckpt_map_engine *e);
/* Checks all tensors for which a rule says a shape. SHAPE lists those that do not fit; NOTFOUND:
 * experts are missing that a router has outputs for. */
int ckpt_map_check_shapes(struct ckpt_map_engine *e);

/* SHAPE: the class that transformers has for the configuration's model_type does not have one of
 * these tensors, or always has one that is not here. */
int ckpt_map_check_kind(struct ckpt_map_engine *e);
/* SHAPE: the family that --map names is not one for the configuration's model_type. */
int ckpt_map_check_family(const struct ckpt_map_engine *e, const char *family,
                          struct s2s_error *err);

#endif
